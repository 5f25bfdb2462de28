"""The table of test values of the foundations reference, to the digits given there."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from foretrain.gaussian import expectation, expectations_at, factor, gram, orthant
from foretrain.gaussian.wick import gaussian_moment

HALF = [[1, 0.5], [0.5, 1]]
PAIR = [[1, 0.6], [0.6, 1.4]]
FOUR = np.array([[1, 0.5, 0.2, -0.3], [0.5, 1.2, 0.4, 0.1], [0.2, 0.4, 0.9, 0.25], [-0.3, 0.1, 0.25, 1.1]])
DIGITS = 6e-11
LEAKY = "leaky_relu(slope=0.1)"

TABLE = {
    "relu": (0.3989422804, 0.5, 1.5, 0.5, 0.3044988905, 0.3333333333),
    LEAKY: (0.3590480524, 0.505, 1.50015, 0.505, 0.2966441013, 0.37),
    "perceptron": (0.5, 0.5, 0.5, math.inf, 0.3333333333, 0.1837762985),
    "sigmoid": (0.5, 0.2933790359, 0.1315943131, 0.0448362414, 0.2714283256, 0.0431900205),
    "tanh": (0.0, 0.3942944904, 0.2529918832, 0.4644029024, 0.1863244132, 0.3847470284),
    "sin": (0.0, 0.4323323584, 0.3073742912, 0.5676676416, 0.1917002498, 0.4148304099),
    "softplus": (0.8060591833, 0.9212459089, 2.3377521538, 0.2933790359, 0.7800781652, 0.2714283256),
    "swish": (0.2066209641, 0.3557755198, 0.9191644113, 0.3794823516, 0.1831696631, 0.3122796153),
    "gelu": (0.2820947918, 0.4252214826, 1.3046790972, 0.4558508656, 0.2272949150, 0.3422672425),
}


def value(factors: Any, K: Any) -> float:
    return float(expectation(factors, K))


@pytest.mark.parametrize("name", TABLE)
def test_one_input_and_one_pair(name: str) -> None:
    s, slope = factor(name), factor(name, order=1)
    found = (
        value([s], [[1.0]]),
        value([s**2], [[1.0]]),
        value([s**4], [[1.0]]),
        value([slope**2], [[1.0]]),
        value([s, s], HALF),
        value([slope, slope], HALF),
    )
    assert found == pytest.approx(TABLE[name], abs=DIGITS)


@pytest.mark.parametrize("name", TABLE)
def test_the_same_by_gram(name: str) -> None:
    results = gram([(name, name), ((name, 1), (name, 1))], HALF)
    assert isinstance(results, list)
    _, square, _, slope_square, pair, slope_pair = TABLE[name]
    assert results[0].value == pytest.approx(np.array([[square, pair], [pair, square]]), abs=1.6e-10)
    expected = np.array([[slope_square, slope_pair], [slope_pair, slope_square]])
    assert results[1].value == pytest.approx(expected, abs=1.6e-10)


@pytest.mark.parametrize(
    ("name", "K", "expected"),
    [
        ("tanh", 0.1, 0.0842139284),
        ("tanh", 0.5, 0.2736763079),
        ("tanh", 2.0, 0.5199757457),
        ("tanh", 10.0, 0.7572662769),
        ("tanh", 100.0, 0.9205368634),
        ("gelu", 0.1, 0.0290904621),
        ("gelu", 2.0, 0.9220828721),
        ("gelu", 10.0, 4.9475745755),
        ("swish", 0.1, 0.0267326430),
        ("swish", 2.0, 0.7991531520),
        ("swish", 10.0, 4.7516394602),
    ],
)
def test_other_variances(name: str, K: float, expected: float) -> None:
    assert value([factor(name) ** 2], [[K]]) == pytest.approx(expected, abs=DIGITS)
    assert value([name, name], [[K, K], [K, K]]) == pytest.approx(expected, abs=2e-10)


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        (["relu", "relu"], 0.3630907645),
        ([("relu", 1), ("relu", 1)], 0.3346398874),
        ([factor("relu") ** 2, factor("relu") ** 2], 1.0015888591),
        ([factor("relu") ** 3, "relu"], 0.9687015041),
        ([LEAKY, LEAKY], 0.3541035193),
        ([(LEAKY, 1), (LEAKY, 1)], 0.3710583088),
        ([factor(LEAKY) ** 2, factor(LEAKY) ** 2], 1.0028572408),
        (["gelu", "gelu"], 0.2799685585),
        ([("gelu", 1), ("gelu", 1)], 0.3458998076),
        (["sin", "sin"], 0.1917563739),
        (["cos", "cos"], 0.3570552622),
        (["tanh", "tanh"], 0.2013971455),
        (["swish", "swish"], 0.2267413850),
        (["softplus", "softplus"], 0.8393791386),
        (["sigmoid", "sigmoid"], 0.2743279428),
        ([("perceptron", 1), ("perceptron", 1)], 0.1560642616),
        ([("relu", 2), ("relu", 2)], 0.1560642616),
    ],
    ids=str,
)
def test_unequal_pair(factors: list[Any], expected: float) -> None:
    assert value(factors, PAIR) == pytest.approx(expected, abs=DIGITS)


def test_wide_and_nearly_parallel() -> None:
    assert value(["tanh", "tanh"], [[50, 49], [49, 51]]) == pytest.approx(0.8084975611, abs=DIGITS)


RELU, STEP = "relu", ("relu", 1)


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        (["perceptron"] * 4, 0.1082068001),
        ([RELU] * 4, 0.0969781591),
        ([RELU, RELU, STEP, STEP], 0.1086651596),
        ([factor("relu") ** 2, RELU, STEP, RELU], 0.1058463888),
        ([LEAKY] * 4, 0.0844335485),
        (["tanh"] * 4, 0.0032284976),
        (["sin"] * 4, 0.0032567567),
        (["sin", "sin", "cos", "cos"], 0.0651894039),
        (["gelu"] * 4, 0.0467776504),
        (["swish"] * 4, 0.0243441832),
    ],
    ids=str,
)
def test_four_inputs(factors: list[Any], expected: float) -> None:
    # The quadrature promises 1e-8 of the scale at four inputs, which these products fall well below.
    assert value(factors, FOUR) == pytest.approx(expected, abs=3e-9)
    at = expectations_at(factors, FOUR, [[0, 1, 2, 3]])
    assert float(at.value[0]) == pytest.approx(expected, abs=3e-9)


def test_four_inputs_to_all_digits() -> None:
    for name, expected in (("tanh", 0.0032284976), ("gelu", 0.0467776504), ("swish", 0.0243441832)):
        tight = expectation([name] * 4, FOUR, tolerance=1e-10)
        assert float(tight) == pytest.approx(expected, abs=DIGITS)


def test_wick_and_orthants() -> None:
    assert float(gaussian_moment(FOUR, (1, 1, 1, 1))) == pytest.approx(0.025, abs=1e-15)
    assert float(gaussian_moment(FOUR, (2, 2, 1, 1))) == pytest.approx(0.161, abs=1e-14)
    assert float(gaussian_moment(FOUR, (2, 2, 2, 2))) == pytest.approx(2.5663, abs=1e-13)
    equal = np.full((4, 4), 0.9) + 0.1 * np.eye(4)
    assert value(["perceptron"] * 4, equal) == pytest.approx(0.3693123627, abs=DIGITS)
    assert float(orthant.orthant_probability(equal)) == pytest.approx(0.3693123627, abs=DIGITS)
