"""Where a callable's derivatives jump is found, and nothing else is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from foretrain.activations import activation
from foretrain.activations._callables.cells import resolve
from foretrain.activations._callables.kinks import find_kinks
from foretrain.activations._callables.pointwise import pointwise
from foretrain.support.errors import InputError, NotSupportedError


def ramp(z: Any) -> Any:
    return np.maximum(z, 0.0)


def places(function: Callable[..., Any]) -> tuple[float, ...]:
    checked = pointwise(function, "function")
    return find_kinks(checked, resolve(checked))


@pytest.mark.slow(after=15)
@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (ramp, [0.0]),
        (np.abs, [0.0]),
        (np.sign, [0.0]),
        (lambda z: z >= 0, [0.0]),
        (lambda z: np.clip(z, -1.0, 1.0), [-1.0, 1.0]),
        (lambda z: np.clip(z, 0.0, 6.0), [0.0, 6.0]),
        (lambda z: z * np.clip(z + 3.0, 0.0, 6.0) / 6.0, [-3.0, 3.0]),
        (lambda z: np.clip(z / 6.0 + 0.5, 0.0, 1.0), [-3.0, 3.0]),
        (lambda z: np.where(z > 0, z, np.expm1(np.minimum(z, 0.0))), [0.0]),
        (lambda z: np.where(z > 0, z, 0.7 * np.expm1(np.minimum(z, 0.0))), [0.0]),
        (lambda z: z / (1.0 + np.abs(z)), [0.0]),
        (lambda z: np.where(np.abs(z) > 0.5, z, 0.0), [-0.5, 0.5]),
        (lambda z: ramp(z) ** 2, [0.0]),
        (lambda z: ramp(z) ** 3, [0.0]),
        (lambda z: ramp(z) ** 4, [0.0]),
        (lambda z: ramp(z) + ramp(z - 0.001), [0.0, 0.001]),
        (np.round, list(np.arange(-19.5, 20.0))),
    ],
)
def test_kinks_at_round_numbers_are_found_exactly(
    function: Callable[..., Any], expected: list[float]
) -> None:
    assert list(places(function)) == expected


@pytest.mark.parametrize(
    "function",
    [
        np.tanh,
        lambda z: np.sin(5.0 * z),
        lambda z: np.exp(-(z**2)),
        lambda z: z * np.tanh(np.logaddexp(0.0, z)),
        lambda z: np.log(1.0 + np.exp(z)),
        lambda z: np.tanh(1e4 * z),
        lambda z: np.sqrt(1e-4 + z**2),
        lambda z: 1.0 / (1.0 + 400.0 * (z - 0.3) ** 2),
        lambda z: z * special.ndtr(20.0 * z),
        lambda z: 0.0 * z,
        lambda z: z**5,
        lambda z: math.erf(z),
    ],
)
def test_smooth_functions_have_none(function: Callable[..., Any]) -> None:
    assert places(function) == ()


@pytest.mark.slow
@settings(deadline=None, max_examples=15)
@given(
    order=st.integers(0, 2),
    place=st.floats(-18.0, 18.0),
    height=st.floats(0.1, 10.0),
    sign=st.sampled_from([-1.0, 1.0]),
    slope=st.floats(0.2, 2.0),
)
def test_a_kink_anywhere_is_found(order: int, place: float, height: float, sign: float, slope: float) -> None:
    def function(z: Any) -> Any:
        bump = np.exp(-((z - place) ** 2) / 9.0)
        return np.sin(slope * z) + sign * height * np.where(z >= place, (z - place) ** order, 0.0) * bump

    found = places(function)
    assert len(found) == 1
    assert found[0] == pytest.approx(place, abs=1e-7)
    kink = activation(function, kinks=found).kinks[0]
    for lower in range(order):
        assert kink.jump(lower) == pytest.approx(0.0, abs=1e-6)
    assert kink.jump(order) == pytest.approx(sign * height * math.factorial(order), rel=1e-6)


@settings(deadline=None, max_examples=25)
@given(
    st.lists(
        st.tuples(st.floats(-2.0, 2.0), st.floats(0.3, 4.0), st.floats(-5.0, 5.0)), min_size=1, max_size=4
    )
)
def test_sums_of_smooth_functions_have_none(parts: list[tuple[float, float, float]]) -> None:
    shapes = (np.tanh, np.sin, special.expit, np.arctan)

    def function(z: Any) -> Any:
        return sum(a * shape(b * (z - c)) for (a, b, c), shape in zip(parts, shapes)) + 0.0 * z

    assert places(function) == ()


def test_the_value_at_a_jump_decides_its_side() -> None:
    third = 1.0 / 3.0
    assert places(lambda z: np.where(z >= third, np.cos(z), 0.0)) == (third,)
    (after,) = places(lambda z: np.where(z > third, np.cos(z), 0.0))
    assert third < after <= np.nextafter(third, 1.0) + 1e-16


def test_a_declared_kink_is_taken_as_it_is() -> None:
    act = activation(lambda z: np.maximum(z - 1.5, 0.0), kinks=(1.5,))
    assert act.kinks[0].location == 1.5
    assert act.kinks[0].jumps[:3] == (0.0, 1.0, 0.0)
    assert activation(lambda z: np.sin(z), kinks=(0.0,)).kinks[0].jumps[:3] == pytest.approx((0.0, 0.0, 0.0))
    far = activation(lambda z: np.maximum(z - 30.0, 0.0), kinks=[30.0])
    assert far.derivative(np.array([29.0, 30.0, 31.0])).tolist() == [0.0, 1.0, 1.0]


def test_denying_a_kink_makes_its_neighbourhood_unusable() -> None:
    act = activation(lambda z: np.maximum(z, 0.0) + np.sin(z), kinks=())
    assert act.is_smooth
    assert float(act.derivative(2.0, 1)) == pytest.approx(1.0 + math.cos(2.0), abs=1e-9)
    with pytest.raises(NotSupportedError, match="cannot be computed"):
        act.derivative(0.0, 1)


def test_rounding_size_jumps_are_not_reported() -> None:
    """A softplus that turns linear beyond 18 jumps there by 1.5e-8."""
    act = activation(lambda z: np.where(z > 18.0, z, np.log1p(np.exp(np.minimum(z, 18.0)))))
    assert act.is_smooth
    np.testing.assert_allclose(act.derivative(np.array([17.9, 18.1]), 1), [1.0, 1.0], atol=1e-7)


@pytest.mark.parametrize("power", [0.5, 1.5, 2.5])
def test_power_law_singularities_are_refused(power: float) -> None:
    with pytest.raises(NotSupportedError, match="piecewise smooth"):
        activation(lambda z: np.abs(z) ** power)


def test_single_precision_is_refused() -> None:
    with pytest.raises(NotSupportedError, match="float64"):
        activation(lambda z: np.tanh(z.astype(np.float32)))


@pytest.mark.parametrize("kinks", ["auto", (0.0, "a"), 1.0, (math.inf,)])
def test_bad_declarations(kinks: Any) -> None:
    with pytest.raises(InputError, match="kinks"):
        activation(lambda z: np.abs(z), kinks=kinks)
