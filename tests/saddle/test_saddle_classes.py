"""Classes of activations against closed forms, independent quadrature, and the leading rates of the flow itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

import foretrain as ft
from foretrain.saddle import ChainField, centred, classify, coupling
from foretrain.support.errors import InputError, NotSupportedError


def algebraic(z: Any) -> Any:
    return z / np.sqrt(1 + z * z)


def quintic(z: Any) -> Any:
    """Odd and bounded, z - z^5/4 + ..."""
    return z / (1 + z**4) ** 0.25


@pytest.mark.parametrize(
    ("name", "h"),
    [
        ("tanh", 0.605705510),
        ("erf", 0.651470016),
        ("sin", math.exp(-0.5)),
        ("gelu", 0.5),
        ("swish", 0.5),
        ("softplus", 0.5),
        ("sigmoid", 0.206620964),
    ],
)
def test_h_of_the_reference(name: str, h: float) -> None:
    assert classify(name).h == pytest.approx(h, abs=1e-9)


@pytest.mark.parametrize(
    ("spec", "letter", "q", "alpha"),
    [
        ("linear", "A", None, 1.0),
        ("relu", "A", None, 1.0),
        (ft.activation("leaky_relu", slope=0.2), "A", None, 1.0),
        ("abs", "A", None, 1.0),
        ("tanh", "B", 3, 1.0),
        ("erf", "B", 3, 2 / math.sqrt(math.pi)),
        ("sin", "B", 3, 1.0),
        (np.arctan, "B", 3, 1.0),
        (algebraic, "B", 3, 1.0),
        (quintic, "B", 5, 1.0),
        (lambda z: 0.5 * z + 0.01 * z**5, "B", 5, 0.5),
        (lambda z: -np.tanh(z), "B", 3, -1.0),
        ("gelu", "C", 2, 0.5),
        ("gelu_tanh", "C", 2, 0.5),
        ("swish", "C", 2, 0.5),
        ("mish", "C", 2, 0.6),
        (lambda z: z * np.clip(z + 3, 0, 6) / 6, "C", 2, 0.5),
        ("sigmoid", "D", 3, 0.25),
        ("softplus", "D", 2, 0.5),
        (lambda z: 2 * z + 1, "D", None, 2.0),
    ],
)
def test_letters(spec: Any, letter: str, q: int | None, alpha: float) -> None:
    found = classify(spec)
    assert (found.letter, found.q) == (letter, q)
    assert found.alpha == pytest.approx(alpha, rel=1e-9)
    assert f"class {letter}" in repr(found)


@pytest.mark.parametrize(("name", "letter"), [("sigmoid", "B"), ("softplus", "C"), ("tanh", "B")])
def test_the_class_after_centring(name: str, letter: str) -> None:
    whole, again = classify(name), classify(centred(name))
    assert whole.centred_letter == again.letter == letter
    assert again.kappa == pytest.approx(whole.kappa, rel=1e-8)
    assert again.h == pytest.approx(whole.h, rel=1e-10)
    points = np.linspace(-3, 3, 7)
    np.testing.assert_allclose(
        centred(name).value(points), ft.activation(name).value(points) - ft.activation(name).value(0.0)
    )


@pytest.mark.parametrize(
    ("spec", "q", "word"),
    [
        (lambda z: z + z**4, 4, "power 4"),
        (lambda z: z + z**3 + z**4 * np.exp(-z * z), 3, "not odd"),
        (lambda z: np.clip(z, -1.0, 1.0), None, "linear near 0"),
        ("softsign", None, "kink"),
        ("elu", None, "kink"),
        ("quadratic", 2, "no slope"),
        ("cos", 2, "no slope"),
    ],
)
def test_outside_is_said(spec: Any, q: int | None, word: str) -> None:
    found = classify(spec)
    assert (found.letter, found.q) == ("outside", q)
    assert math.isnan(found.kappa)
    assert word in found.reason


def test_a_jump_is_refused() -> None:
    with pytest.raises(NotSupportedError, match="jumps"):
        classify("perceptron")


def test_kappa_in_closed_form() -> None:
    moment = 5 / (4 * math.sqrt(math.pi))  # E[g^3 Phi(g)] = 2 E[phi] + E[g^2 phi]
    assert classify("gelu").kappa == pytest.approx(moment / math.sqrt(2 * math.pi) / 0.25, rel=1e-11)
    assert classify("sin").kappa == pytest.approx(-1 / 3, rel=1e-11)
    assert classify("erf").kappa == pytest.approx(-7 / 9, rel=1e-11)
    assert classify("linear").kappa == 0.0


@pytest.mark.parametrize(
    ("spec", "formula", "q"),
    [
        ("tanh", mpmath.tanh, 3),
        (np.arctan, mpmath.atan, 3),
        (algebraic, lambda z: z / mpmath.sqrt(1 + z * z), 3),
        ("mish", lambda z: z * mpmath.tanh(mpmath.log1p(mpmath.exp(z))), 2),
        (quintic, lambda z: z / (1 + z**4) ** mpmath.mpf("0.25"), 5),
        ("softplus", lambda z: mpmath.log1p(mpmath.exp(z)) - mpmath.log(2), 2),
    ],
)
def test_h_and_kappa_by_other_quadrature(spec: Any, formula: Callable[[Any], Any], q: int) -> None:
    def mean(power: int) -> float:
        edges = [-12, -6, -3, -1, 0, 1, 3, 6, 12]
        return float(mpmath.quad(lambda g: g**power * formula(g) * mpmath.npdf(g), edges))

    series = mpmath.taylor(formula, 0, q)
    found = classify(spec)
    assert found.h == pytest.approx(mean(1), rel=1e-10)
    assert found.a_q == pytest.approx(float(series[q]), rel=1e-8)
    assert found.kappa == pytest.approx(float(series[q]) * mean(q) / (float(series[1]) * mean(1)), rel=1e-8)


@pytest.mark.parametrize("depth", [2, 3, 5])
@pytest.mark.parametrize(
    "spec",
    ["tanh", "gelu", "relu", ft.activation("leaky_relu", slope=0.3), "selu", "abs", np.arctan, "softsign"],
    ids=str,
)
def test_the_coupling_is_the_leading_rate_of_the_exact_flow(spec: Any, depth: int) -> None:
    """Also with a kink at 0, where the two signs of g pass through different slopes."""
    X = 1e-5 * np.linspace(1.0, 2.0, depth)
    field = ChainField(ft.activation(spec), 9, 0.7)
    expected = coupling(spec, depth, width=9, beta=0.7, time="reduced") * X.prod() / X
    np.testing.assert_allclose(field.rates(X), expected, rtol=1e-4)


def test_units_of_the_coupling() -> None:
    found = classify("erf")
    s = coupling("erf", 5, width=49, beta=2.0)
    assert s == pytest.approx(2.0 * found.h * found.alpha**4 / 7)
    assert coupling("erf", 5, width=49, beta=2.0, time="reduced") == pytest.approx(49 * s)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"depth": 1}, "depth"),
        ({"depth": 2.5}, "whole"),
        ({"depth": 3, "width": 0}, "width"),
        ({"depth": 3, "time": "seconds"}, "time unit"),
    ],
)
def test_bad_input_of_the_coupling(arguments: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        coupling("tanh", **arguments)


@pytest.mark.parametrize(
    ("spec", "q", "a_q"),
    [
        (lambda z: z + z**7, 7, 1.0),
        (lambda z: z / (1 + z**6) ** (1 / 6), 7, -1 / 6),
        (lambda z: z - 0.001 * z**9, 9, -0.001),
    ],
)
def test_odd_powers_beyond_the_known_derivatives(spec: Any, q: int, a_q: float) -> None:
    found = classify(spec)
    assert (found.letter, found.q) == ("B", q)
    assert found.a_q == pytest.approx(a_q, rel=1e-5)


def test_a_function_without_a_series_has_no_power() -> None:
    found = classify(lambda z: z + z * np.exp(-1 / np.maximum(z * z, 1e-12)))
    assert (found.letter, found.q) == ("outside", None)


@pytest.mark.parametrize("name", ["gelu", "relu", "sigmoid", "linear"])
def test_the_numbers_of_a_class_are_kept_and_drawn(name: str) -> None:
    found = classify(name)
    data = found.to_dataset()
    assert [float(data[key]) for key in ("alpha", "h", "kappa")] == [found.alpha, found.h, found.kappa]
    assert float(data["q"]) == found.q if found.q else math.isnan(float(data["q"]))
    series, numbers = found.answer().figures[0].panels
    assert len(series.marks) == (2 if found.q is None else 3)
    np.testing.assert_allclose(numbers.marks[0].values, [found.alpha, found.h, found.kappa])
    middle = [float(mark.y[len(mark.y) // 2]) for mark in series.marks]
    np.testing.assert_allclose(middle, found.a_0, atol=1e-15)
