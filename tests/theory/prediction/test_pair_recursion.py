"""Kernels of the output layer between two sets of inputs, against recursions of two inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import foretrain as ft
from foretrain.gaussian import expectation
from foretrain.gaussian.factors import factor
from foretrain.support.errors import InputError
from foretrain.theory.prediction import kernels
from foretrain.theory.prediction.kernels import (
    cross_kernel,
    cross_tangent_kernel,
    last_layer,
    tangent_blocks,
    training_blocks,
)

pytestmark = pytest.mark.usefixtures("loops")

NAMES = ["relu", "leaky_relu(slope=0.3)", "erf", "gelu", "sin", "tanh", "selu"]
OPTIONS: dict[str, Any] = {"width": 50, "C_b": 0.2, "C_W": 1.4, "lambda_b": 0.3, "lambda_W": 0.7}


def network(name: str, gamma: float | None = None) -> ft.MLP:
    return ft.MLP(name, depth=4, gamma=gamma, **OPTIONS)


def by_pairs(mlp: ft.MLP, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """K and Theta of two inputs, written out with single expectations."""
    both = np.stack([x, y])
    product = both @ both.T / len(x)
    first = mlp.layers[0]
    K, Theta = first.C_b + first.C_W * product, first.lambda_b + first.lambda_W * product
    for layer in mlp.layers[1:]:
        values = []
        for order in (0, 1):
            f = factor(mlp.activation, order)
            mixed = float(expectation([f, f], K).value)
            own = [float(expectation([f * f], K[i : i + 1, i : i + 1]).value) for i in (0, 1)]
            values.append(np.array([[own[0], mixed], [mixed, own[1]]]))
        Theta = layer.lambda_b + layer.lambda_W * values[0] + (layer.gamma**2 + layer.C_W * values[1]) * Theta
        K = layer.C_b + layer.C_W * values[0] + layer.gamma**2 * K
    return float(K[0, 1]), float(Theta[0, 1])


@pytest.mark.slow(after=4)
@pytest.mark.parametrize("gamma", [None, 0.8])
@pytest.mark.parametrize("name", NAMES)
def test_every_entry_is_that_of_its_two_inputs(name: str, gamma: float | None) -> None:
    X = np.random.default_rng(0).normal(size=(5, 3))
    K, Theta = tangent_blocks(network(name, gamma), X[:3], X[3:])
    for i, j in [(0, 0), (2, 1)]:
        expected = by_pairs(network(name, gamma), X[i], X[3 + j])
        assert (K.cross[i, j], Theta.cross[i, j]) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    expected = by_pairs(network(name, gamma), X[0], X[2])
    assert (K.train[2, 0], Theta.train[2, 0]) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("name", ["relu", "erf", "tanh"])
def test_tiles_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.random.default_rng(1).normal(size=(23, 4))
    mlp = network(name, 0.5)
    whole = last_layer(mlp, X)
    for name_of_size in ("_IN_CACHE", "_AT_ONCE"):
        monkeypatch.setattr(kernels, name_of_size, 5)
    monkeypatch.setattr(kernels, "_TILES_PER_STEP", 3)
    np.testing.assert_allclose(last_layer(mlp, X), whole, rtol=0, atol=1e-9)
    np.testing.assert_allclose(cross_kernel(mlp, X[:14], X[14:]), whole[0][:14, 14:], rtol=0, atol=1e-9)
    np.testing.assert_allclose(
        cross_tangent_kernel(mlp, X[:14], X[14:]), whole[1][:14, 14:], rtol=0, atol=1e-9
    )
    np.testing.assert_allclose(training_blocks(mlp, X, X, "variance").test, np.diagonal(whole[0]), rtol=1e-10)


@pytest.mark.slow(after=5)
@pytest.mark.parametrize("name", NAMES)
def test_an_input_of_both_sets_has_no_angle(name: str) -> None:
    """A rounded angle of 1e-8 would reach the slopes, and with them Theta, at first order."""
    X = np.random.default_rng(2).normal(size=(300, 7))
    K, Theta = tangent_blocks(network(name), X, X[40:60])
    assert K.test is not None
    for matrix in (K.train[40:60, 40:60], K.test):
        assert (np.diagonal(matrix) == np.diagonal(K.cross[40:60])).all()
    assert (np.diagonal(Theta.train)[40:60] == np.diagonal(Theta.cross[40:60])).all()
    np.testing.assert_allclose(Theta.cross, Theta.train[:, 40:60], rtol=0, atol=1e-9)


def test_a_trained_input_is_predicted_exactly() -> None:
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(200, 9)), rng.normal(size=200)
    mlp = ft.MLP("relu", depth=3, width=50, C_W=2.0)
    found = ft.predict(mlp, X, y, X[70:80])
    np.testing.assert_allclose(found.mean.values[:, 0], y[70:80], atol=1e-11)
    np.testing.assert_allclose(found.variance, 0.0, atol=1e-11)


def test_an_input_of_zeros() -> None:
    """Without biases a zero input has no variance: K vanishes there, and the slopes are those of the activation."""
    X = np.array([[0.0, 0.0], [1.0, -0.5]])
    mlp = ft.MLP("relu", depth=2, width=50, C_W=2.0, lambda_b=0.5)
    K, Theta = last_layer(mlp, X)
    assert K[0] == pytest.approx([0.0, 0.0])
    # <s' s'> = 1/2 of an input with itself (8.63)
    assert Theta[0, 0] == pytest.approx(0.5 + 2.0 * 0.5 * 0.5)


def test_a_kernel_that_explodes_names_its_layer() -> None:
    mlp = ft.MLP("relu", depth=30, width=50, C_W=1e3)
    with pytest.raises(InputError, match="at layer 1"):
        cross_kernel(mlp, np.ones((2, 3)), np.ones((1, 3)))


def test_no_test_inputs() -> None:
    K, Theta = tangent_blocks(network("relu"), np.eye(3), np.empty((0, 3)))
    assert K.cross.shape == Theta.cross.shape == (3, 0)
    assert K.test is not None
    assert K.test.shape == (0, 0)
