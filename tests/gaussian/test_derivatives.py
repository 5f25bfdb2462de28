"""Price's theorem, against finite differences of expectations and known derivatives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_integrals import KINKED, SMOOTH, line, pair, random_covariance, two

from foretrain.gaussian import covariance_gradient, expectation, factor, z
from foretrain.support.errors import InputError

quick = settings(deadline=None, max_examples=12)
TANH, SELU = SMOOTH["tanh"][0], KINKED["selu"][0]


def differences(factors: list[Any], K: np.ndarray, i: int, j: int) -> float:
    """Fourth-order central difference in one symmetric parameter."""
    step = 1e-4 * math.sqrt(K[i, i] * K[j, j])
    change = np.zeros_like(K)
    change[i, j] = change[j, i] = step
    stack = np.stack([K + k * change for k in (-2, -1, 1, 2)])
    values = expectation(factors, stack, tolerance=1e-12).value
    return float(np.array([1.0, -8.0, 8.0, -1.0]) @ values / (12 * step))


@pytest.mark.slow(after=13)
@pytest.mark.parametrize(
    "factors",
    [
        ["relu"],
        ["selu"],
        ["gelu"],
        ["relu", "relu"],
        ["tanh", "relu"],
        ["softsign", "selu"],
        ["gelu", "gelu"],
        [factor("relu") ** 2, "relu"],
        ["perceptron", "relu"],
        ["sign", "tanh"],
        [("relu", 1), ("relu", 1)],
        [factor("tanh") * z, "cos"],
        ["relu", "relu", "relu"],
        ["tanh", "gelu", "relu"],
        ["relu", "relu", "relu", "relu"],
        ["tanh", "tanh", "tanh", "tanh"],
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::foretrain.support.errors.AccuracyWarning")
def test_agrees_with_finite_differences(factors: list[Any]) -> None:
    n = len(factors)
    K = random_covariance(np.random.default_rng(n), n, 1.5)
    found = covariance_gradient(factors, K)
    assert found.value.shape == found.error.shape == (n, n)
    assert np.array_equal(found.value, found.value.T)
    for i in range(n):
        for j in range(i, n):
            assert found.value[i, j] == pytest.approx(differences(factors, K, i, j), abs=3e-8)


def test_against_differences_of_the_oracle() -> None:
    K = two(1.3, 0.4, 1.1)
    h = 1e-3
    bump = np.array([[0.0, h], [h, 0.0]])
    values = [pair(TANH, SELU, K + k * bump) for k in (-2, -1, 1, 2)]
    slope = float(np.array([1.0, -8.0, 8.0, -1.0]) @ values) / (12 * h)
    assert covariance_gradient(["tanh", "selu"], K).value[0, 1] == pytest.approx(slope, abs=1e-10)


def test_without_differentiating_the_function() -> None:
    """d<F>/dK = <F (z^2 - K)> / (2 K^2)."""
    for name, K in (("selu", 0.7), ("relu", 2.0), ("softplus", 1.0)):
        f = {**SMOOTH, **KINKED}[name][0]
        exact = line(lambda t, f=f, K=K: f(t) * (t**2 - K) / (2 * K**2), K)
        assert float(covariance_gradient([name], [[K]]).value[0, 0]) == pytest.approx(exact, rel=1e-10)


def test_known_gradients() -> None:
    K = two(1.0, 0.5)
    slope = covariance_gradient(["relu", "relu"], K).value
    assert slope[0, 1] == pytest.approx(1 / 3, rel=1e-12)
    assert covariance_gradient(["perceptron", "perceptron"], K).value[0, 1] == pytest.approx(
        1 / (2 * math.pi * math.sqrt(0.75)), rel=1e-12
    )
    assert covariance_gradient([z**2, z**2], [[2.0, 0.5], [0.5, 3.0]]).value == pytest.approx(
        np.array([[3.0, 2.0], [2.0, 2.0]])
    )
    assert covariance_gradient([z, 3.0], np.eye(2)).value == pytest.approx(np.zeros((2, 2)))


def test_singular_covariances() -> None:
    """At equal inputs d<f f>/dK_12 is <f'^2>."""
    found = covariance_gradient(["tanh", "tanh"], np.ones((2, 2))).value
    assert found[0, 1] == pytest.approx(line(lambda t: SMOOTH["tanh"][1](t) ** 2, 1.0), rel=1e-9)
    assert covariance_gradient(["relu", "relu"], np.ones((2, 2))).value[0, 1] == pytest.approx(0.5)


def test_stacks() -> None:
    K = np.stack([two(1.0, 0.2), two(2.0, -0.7)])
    found = covariance_gradient(["tanh", "relu"], K)
    assert found.value.shape == (2, 2, 2)
    for k in range(2):
        assert found.value[k] == pytest.approx(covariance_gradient(["tanh", "relu"], K[k]).value, abs=1e-10)


@quick
@given(seed=st.integers(0, 200))
def test_euler_for_homogeneous_products(seed: int) -> None:
    """<relu relu relu> is of degree 3/2 in K: sum_ij K_ij d_ij (each pair once) = 3/2 of it."""
    K = random_covariance(np.random.default_rng(seed), 3)
    slope = covariance_gradient(["relu"] * 3, K).value
    total = np.sum(np.triu(K * slope))
    assert total == pytest.approx(1.5 * float(expectation(["relu"] * 3, K)), rel=1e-9)


def test_bad_input() -> None:
    with pytest.raises(InputError, match="2 x 2, but there are 1"):
        covariance_gradient(["tanh"], np.eye(2))
    with pytest.raises(InputError, match="tolerance"):
        covariance_gradient(["tanh"], np.eye(1), tolerance=3.0)
    with pytest.raises(InputError, match="not positive semidefinite"):
        covariance_gradient(["tanh", "tanh"], [[1, 2], [2, 1]])
