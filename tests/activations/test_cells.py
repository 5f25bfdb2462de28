"""How quickly a callable varies is measured, kinks apart."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrain.activations import activation
from foretrain.activations._callables.cells import Features, resolve
from foretrain.activations._callables.pointwise import pointwise

WIDEST = 1.26


def bump(width: float, centre: float = 1.234) -> Callable[..., Any]:
    return lambda t: np.exp(-0.5 * ((t - centre) / width) ** 2)


@pytest.mark.parametrize(
    ("function", "lower", "upper"),
    [
        (lambda t: np.tanh(t), 0.6, 1.6),
        (lambda t: np.tanh(20 * t), 0.03, 0.08),
        (lambda t: np.tanh(200 * t), 0.003, 0.008),
        (lambda t: math.tanh(20 * t), 0.03, 0.08),
        (bump(0.1), 0.1, 0.3),
        (bump(0.01), 0.01, 0.035),
        (bump(0.003), 0.002, 0.01),
        (lambda z: z * np.tanh(np.logaddexp(0.0, z)), 1.0, WIDEST),
        (lambda z: np.sin(z), 1.0, WIDEST),
        (lambda z: np.sin(10 * z), 0.2, 0.6),
        (lambda z: 1.0 / (1.0 + 400.0 * (z - 0.3) ** 2), 0.02, 0.06),
    ],
)
def test_strip_of_smooth_callables(function: Callable[..., Any], lower: float, upper: float) -> None:
    found, declared = activation(function), activation(function, kinks=())
    assert lower < found.strip < upper
    assert found.strip_is_measured
    assert declared.strip == found.strip


@pytest.mark.parametrize(
    ("function", "kinks"),
    [
        (lambda z: np.clip(z, -1.0, 1.0) * np.exp(0.1 * z), (-1.0, 1.0)),
        (lambda z: np.where(z > 0, z, np.expm1(np.minimum(z, 0.0))), (0.0,)),
        (lambda z: z / (1.0 + np.abs(z)), (0.0,)),
        (lambda z: np.maximum(z, 0.0) + np.maximum(z - 0.001, 0.0) + np.sin(z), (0.0, 0.001)),
    ],
)
def test_kinks_do_not_make_the_strip_narrow(function: Callable[..., Any], kinks: tuple[float, ...]) -> None:
    assert np.min(resolve(pointwise(function, "f")).width) < 1e-3
    assert activation(function).strip > 1.0
    assert activation(function, kinks=kinks).strip > 1.0


def test_a_narrow_feature_beside_a_kink_counts() -> None:
    assert activation(lambda z: np.maximum(np.tanh(200 * z), 0.0)).strip < 0.01
    assert activation(lambda z: np.maximum(z, 0.0) + bump(0.02, 0.5)(z)).strip < 0.1


def test_piecewise_polynomials_have_an_infinite_strip() -> None:
    for function in (lambda z: np.clip(z, -1.0, 1.0), lambda z: z**3 - z, np.sign):
        act = activation(function, name="mine")
        assert act.strip == math.inf
        assert not act.strip_is_measured


@pytest.mark.slow
def test_a_narrow_feature_hides_from_nothing() -> None:
    """Centres that fall between samples; a polynomial elsewhere is not taken for one here."""
    for centre in np.linspace(0.6, 1.2, 23):
        act = activation(lambda z, c=float(centre): np.maximum(z, 0.0) + bump(0.004, c)(z))
        assert act.strip < 0.02
        assert act.pieces is None


def test_the_strip_is_explained() -> None:
    assert "variation    over lengths down to about 0.0628, besides kinks" in repr(
        activation(lambda z: np.tanh(20 * z))
    )
    assert "nearest in the complex plane" not in repr(activation(lambda z: np.tanh(z)))


def test_a_callable_too_fast_to_resolve_is_still_given_a_length() -> None:
    assert activation(lambda z: np.sin(5000.0 * z), kinks=()).strip < 0.02


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(st.floats(0.0, 2.0), st.floats(1e-3, 1.0)), min_size=1, max_size=6),
    st.lists(st.floats(-5.0, 15.0), min_size=1, max_size=9),
)
def test_largest_window_by_brute_force(gaps: list[tuple[float, float]], points: list[float]) -> None:
    left, right, place = [], [], 0.0
    for gap, width in gaps:
        left.append(place + gap)
        right.append(place + gap + width)
        place = right[-1]
    expected = [min(max(a - z, z - b, 0.0) + 2.0 * (b - a) for a, b in zip(left, right)) for z in points]
    found = Features(np.array(left), np.array(right)).largest_window(np.array(points))
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_windows_are_unlimited_without_features() -> None:
    nothing = Features(np.array([]), np.array([]))
    assert nothing.largest_window(np.array([0.0, 3.0])).tolist() == [math.inf, math.inf]
