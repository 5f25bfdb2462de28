"""What an activation says about itself."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from foretrain.activations import Activation, Kink, activation, catalogue
from foretrain.support.errors import InputError, NotSupportedError

PARAMETERS = {"scale_invariant": {"minus": -0.3}, "monomial": {"power": 3}}
MEMBERS = [activation(name, **PARAMETERS.get(name, {})) for name in catalogue()]
NUMBERS = st.floats(-50.0, 50.0, allow_subnormal=False)


def label(act: Activation) -> str:
    return act.label


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sigmoid", (0.5, 0.25, 0.0, -0.125)),
        ("tanh", (0.0, 1.0, 0.0, -2.0)),
        ("sin", (0.0, 1.0, 0.0, -1.0)),
        ("linear(slope=1.5)", (0.0, 1.5, 0.0, 0.0)),
        ("softplus", (math.log(2.0), 0.5, 0.25, 0.0)),
        ("swish", (0.0, 0.5, 0.5, 0.0)),
        ("gelu", (0.0, 0.5, math.sqrt(2.0 / math.pi), 0.0)),
    ],
)
def test_the_books_table_of_derivatives_at_zero(name: str, expected: tuple[float, ...]) -> None:
    np.testing.assert_allclose(activation(name).taylor(3), expected, rtol=1e-15, atol=1e-16)


@pytest.mark.parametrize(
    ("name", "place", "depth"), [("swish", -1.278465, -0.278465), ("gelu", -0.751792, -0.169971)]
)
def test_the_books_minima(name: str, place: float, depth: float) -> None:
    found = minimize_scalar(
        activation(name).value, bounds=(-3.0, 0.0), method="bounded", options={"xatol": 1e-9}
    )
    assert found.x == pytest.approx(place, abs=1e-6)
    assert found.fun == pytest.approx(depth, abs=1e-6)


def test_series_divides_by_factorials() -> None:
    series = activation("tanh").taylor(7, series=True)
    np.testing.assert_allclose(series, [0, 1, 0, -1 / 3, 0, 2 / 15, 0, -17 / 315], rtol=1e-14, atol=0.0)


@pytest.mark.parametrize("name", ["relu", "softsign", "elu", "perceptron"])
def test_no_taylor_series_at_a_kink(name: str) -> None:
    with pytest.raises(NotSupportedError, match="kink"):
        activation(name).taylor(2)


@pytest.mark.parametrize("act", MEMBERS, ids=label)
@settings(deadline=None, max_examples=25)
@given(z=NUMBERS)
def test_parity_holds_for_values_and_derivatives(act: Activation, z: float) -> None:
    if act.parity is None:
        gap = np.abs(act.value(1.3)) - np.abs(act.value(-1.3))
        assert abs(gap) > 1e-3
        return
    if z == 0.0:
        return
    for order in range(4):
        sign = (1 if act.parity == "even" else -1) * (-1) ** order
        np.testing.assert_allclose(act.derivative(-z, order), sign * act.derivative(z, order), rtol=1e-13)


@pytest.mark.slow(after=9)
@pytest.mark.parametrize("act", MEMBERS, ids=label)
@settings(deadline=None, max_examples=25)
@given(z=NUMBERS, factor=st.floats(1e-3, 1e3))
def test_homogeneity(act: Activation, z: float, factor: float) -> None:
    if act.degree is None:
        ratios = [act.value(2.0 * s) * act.value(0.5 * s) - act.value(s) ** 2 for s in (-1.0, 1.0)]
        assert max(map(abs, ratios)) > 1e-3
        return
    expected = factor**act.degree * act.value(z)
    np.testing.assert_allclose(act.value(factor * z), expected, rtol=1e-12, atol=1e-300)


def test_slopes_belong_to_scale_invariant_members_only() -> None:
    expected = {
        "relu": (0.0, 1.0),
        "leaky_relu": (0.01, 1.0),
        "linear": (1.0, 1.0),
        "abs": (-1.0, 1.0),
        "scale_invariant": (-0.3, 1.0),
    }
    assert {act.name: act.slopes for act in MEMBERS if act.slopes is not None} == expected


@pytest.mark.parametrize("act", [act for act in MEMBERS if act.pieces is not None], ids=label)
def test_pieces_are_the_function(act: Activation) -> None:
    assert act.pieces is not None
    z = np.linspace(-3.0, 3.0, 31)
    minus, plus = (np.polynomial.Polynomial(piece)(z) for piece in act.pieces)
    np.testing.assert_allclose(act.value(z), np.where(z < 0, minus, plus), rtol=1e-14)


def test_known_jumps() -> None:
    assert activation("perceptron").kinks[0].jumps[:3] == (1.0, 0.0, 0.0)
    assert activation("sign").kinks[0].jump(0) == 2.0
    assert activation("leaky_relu", slope=0.25).kinks[0].jumps[:3] == (0.0, 0.75, 0.0)
    assert activation("softsign").kinks[0].jumps[:5] == (0.0, 0.0, -4.0, 0.0, -48.0)
    assert activation("elu", alpha=2.0).kinks[0].jumps[:4] == (0.0, -1.0, -2.0, -2.0)
    assert activation("leaky_relu", slope=1.0).is_smooth
    assert activation("tanh").is_smooth


def test_an_unknown_jump_says_so() -> None:
    with pytest.raises(NotSupportedError, match="derivatives="):
        Kink(0.0, (0.0, math.nan)).jump(1)
    with pytest.raises(NotSupportedError, match="not known"):
        Kink(0.0, (0.0, 1.0)).jump(2)


DENOMINATORS: dict[str, Callable[[Any], Any]] = {
    "tanh": mp.cosh,
    "sigmoid": lambda w: mp.cosh(w / 2),
    "softplus": lambda w: mp.cosh(w / 2),
    "swish(beta=2)": mp.cosh,
    "mish": lambda w: 2 * mp.exp(-w) + 2 + mp.exp(w),
    "gelu_tanh": lambda w: mp.cosh(mp.sqrt(2 / mp.pi) * (w + 0.044715 * w**3)),
}


@pytest.mark.parametrize("name", DENOMINATORS)
def test_strip_is_the_height_of_the_lowest_pole(name: str) -> None:
    heights = []
    for start in (complex(real, height) for real in (-1.5, -0.3, 0.2, 1.4) for height in (1, 2, 3)):
        try:
            root = mp.findroot(DENOMINATORS[name], mp.mpc(start), maxsteps=60)
        except (ValueError, ZeroDivisionError):
            continue
        heights.append(float(abs(root.imag)))
    assert activation(name).strip == pytest.approx(min(heights), rel=1e-10)


@pytest.mark.parametrize("act", MEMBERS, ids=label)
def test_pickle_equality_and_hash(act: Activation) -> None:
    copy = pickle.loads(pickle.dumps(act))
    assert copy == act
    assert hash(copy) == hash(act)
    assert copy.parameters == act.parameters
    z = np.linspace(-2.0, 2.0, 9)
    np.testing.assert_array_equal(copy.derivative(z, 2), act.derivative(z, 2))


def test_different_members_differ() -> None:
    assert len(set(MEMBERS)) == len(MEMBERS) - 1  # "cubic" is monomial(power=3)
    assert activation("swish", beta=2.0) != activation("swish")
    assert activation("swish", beta=1) == activation("silu")
    assert activation("tanh") != "tanh"


def test_immutable() -> None:
    act: Any = activation("leaky_relu")
    with pytest.raises(AttributeError):
        act.name = "other"
    with pytest.raises(TypeError):
        act.parameters["slope"] = 2.0


def test_shapes_and_types() -> None:
    act = activation("gelu")
    assert act(np.zeros((2, 0, 3))).shape == (2, 0, 3)
    assert act.value(np.arange(6).reshape(2, 3)).shape == (2, 3)
    assert act.value([1, 2]).dtype == np.float64
    assert act.value(np.float32(1.0)).dtype == np.float32
    assert act.value(np.array([True])).dtype == np.float64
    assert np.ndim(act.derivative(0.3, 2)) == 0
    assert float(act(0.3)) == float(act.value(np.array([0.3]))[0])


def test_right_continuous_at_kinks() -> None:
    assert activation("perceptron")(0.0) == 1.0
    assert activation("perceptron")(-0.0) == 1.0
    assert activation("sign")(0.0) == 1.0
    for act in MEMBERS:
        for order in range(6):
            at, right = act.derivative(0.0, order), act.derivative(1e-13, order)
            np.testing.assert_allclose(at, right, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("act", MEMBERS, ids=label)
def test_each_derivative_is_the_slope_of_the_one_below(act: Activation) -> None:
    for low, high in ((-2.0, -0.1), (0.1, 2.5)):
        nodes, weights = np.polynomial.legendre.leggauss(40)
        z = 0.5 * (high + low) + 0.5 * (high - low) * nodes
        for below, order in pairwise(range(act.max_order + 1)):
            integral = 0.5 * (high - low) * np.sum(weights * act.derivative(z, order))
            rise = act.derivative(high, below) - act.derivative(low, below)
            scale = float(np.max(np.abs(act.derivative(z, below)))) + float(
                np.max(np.abs(act.derivative(z, order)))
            )
            assert abs(integral - rise) <= 1e-12 * scale + 1e-15


def test_repr_teaches() -> None:
    text = repr(activation("tanh"))
    for part in ("tanh", "odd", "smooth", "1.5708", "order 10", "0, 1, 0, -2, 0, 16"):
        assert part in text
    text = repr(activation("leaky_relu", slope=0.2))
    for part in ("leaky_relu(slope=0.2)", "(0.2, 1)", "z = 0", "σ^(1) by 0.8", "piecewise_polynomial"):
        assert part in text
    assert "Taylor" not in text
    assert "higher" not in repr(activation("softsign"))


@pytest.mark.parametrize(
    ("z", "order", "words"),
    [
        (1j, 0, "real"),
        ("a", 0, "real"),
        (0.0, -1, "0 or more"),
        (0.0, 1.5, "whole number"),
        (None, 0, "real"),
        (np.ma.masked_array([1.0], mask=[True]), 0, "masked"),
    ],
)
def test_bad_arguments(z: Any, order: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        activation("tanh").derivative(z, order)


def test_too_high_an_order_names_the_limit() -> None:
    with pytest.raises(NotSupportedError, match="highest order is 10"):
        activation("tanh").derivative(0.0, 11)
    with pytest.raises(NotSupportedError, match="highest order is 10"):
        activation("tanh").taylor(12)
