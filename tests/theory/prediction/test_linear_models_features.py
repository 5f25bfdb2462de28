"""Features of networks: exact identities at any width, and the kernels they tend to."""

from __future__ import annotations

import numpy as np
import pytest

import foretrain as ft
from foretrain.support.errors import InputError
from foretrain.theory.network_tangent_kernel import output_kernel
from foretrain.theory.prediction.linear_models import (
    eigen_features,
    fit_features,
    fit_kernel,
    gaussian_kernel,
    network_features,
    network_kernel,
)

RNG = np.random.default_rng(13)
X = RNG.normal(size=(5, 3))
MLP = ft.MLP(
    "tanh", 3, [7, 5], n_in=3, n_out=2, C_b=(0.1, 0.2, 0.3), C_W=1.2, lambda_b=(0.2, 0.3, 0.1), lambda_W=0.8
)


@pytest.mark.parametrize("mlp", [MLP, MLP.replace(width=6, gamma=0.5)], ids=["plain", "skips"])
def test_tangent_features_make_the_tangent_kernel(mlp: ft.MLP) -> None:
    features = network_features(mlp, X, seed=2)
    exact = output_kernel(features.parameters, X)[0]
    for output in range(2):
        phi = features.tangent(X, output)
        assert phi.shape == (5, mlp.parameter_count)
        np.testing.assert_allclose(phi @ phi.T, exact[output, output], atol=1e-12)
    np.testing.assert_allclose(features.tangent(X, 0) @ features.tangent(X, 1).T, exact[0, 1], atol=1e-12)


def test_random_features_are_the_tangent_features_of_the_output_layer() -> None:
    rates = MLP.replace(lambda_b=(0, 0, 0.3), lambda_W=(0, 0, 1.2))
    features = network_features(rates, X, seed=4)
    phi, tangent = features.random(X), features.tangent(X)
    assert phi.shape == (5, 6)
    np.testing.assert_allclose(phi @ phi.T, tangent @ tangent.T, atol=1e-12)
    assert "one random network" in repr(features)


def test_one_layer_has_the_inputs_as_features() -> None:
    features = network_features(ft.MLP("tanh", 1, C_b=0.5, C_W=2.0), X)
    phi = features.random(X)
    np.testing.assert_allclose(phi @ phi.T, 0.5 + 2.0 * X @ X.T / 3, atol=1e-12)


def test_the_same_seed_is_the_same_network() -> None:
    first, second = network_features(MLP, X, seed=1), network_features(MLP, X[:2], seed=1)
    np.testing.assert_array_equal(first.random(X[:2]), second.random(X[:2]))
    assert not np.allclose(first.random(X), network_features(MLP, X, seed=2).random(X))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["K", "Theta"])
def test_kernels_of_features_tend_to_those_of_infinite_width(name: str) -> None:
    """Exact on average with one hidden layer, within standard errors; single networks fluctuate as n^-1/2."""
    shallow, spread = MLP.replace(depth=2, width=10, C_b=0.1, lambda_b=0.2), []
    limit = network_kernel(shallow, name)(X, X)  # type: ignore[arg-type]
    for width in (50, 800):
        mlp = shallow.replace(width=width)
        samples = []
        for seed in range(200):
            features = network_features(mlp, X, seed=seed)
            phi = features.random(X) if name == "K" else features.tangent(X)
            samples.append(phi @ phi.T)
        errors = np.std(samples, axis=0) / np.sqrt(200)
        assert (np.abs(np.mean(samples, axis=0) - limit) / errors).max() < 4.5
        spread.append(np.std(samples, axis=0).mean())
    assert spread[0] / spread[1] == pytest.approx(4.0, rel=0.25)


def test_eigenfeatures_are_the_kernel_and_predict_like_it() -> None:
    inputs, test, Y = RNG.normal(size=(12, 2)), RNG.normal(size=(4, 2)), RNG.normal(size=(12, 1))
    k, cross = gaussian_kernel(inputs, inputs), gaussian_kernel(test, inputs)
    features = eigen_features(k)
    np.testing.assert_allclose(features.training @ features.training.T, k, atol=1e-10)
    np.testing.assert_allclose(features.extend(k), features.training, atol=1e-8)
    assert (np.diff(features.values) <= 0).all()
    assert "eigenvectors" in repr(features)
    primal = fit_features(features.training, Y, ridge=0.05).predict(features.extend(cross))
    np.testing.assert_allclose(primal, fit_kernel(k, Y, ridge=0.05).predict(cross), atol=1e-7)


def test_few_eigenfeatures_say_what_they_leave_out() -> None:
    root = RNG.normal(size=(8, 3))
    assert len(eigen_features(root @ root.T).values) == 3
    part = eigen_features(root @ root.T, rank=2)
    values = np.linalg.eigvalsh(root @ root.T)
    assert part.left_out == pytest.approx(values[-3] / values[-3:].sum())
    best = np.abs(part.training @ part.training.T - root @ root.T)
    assert np.linalg.norm(best) == pytest.approx(values[-3])


def test_bad_input() -> None:
    with pytest.raises(InputError, match="output is 2"):
        network_features(MLP, X).tangent(X, 2)
    with pytest.raises(InputError, match="rank is 0"):
        eigen_features(np.eye(3), rank=0)
    with pytest.raises(InputError, match="kernel has shape"):
        eigen_features(np.eye(3)).extend(np.ones((2, 2)))
    with pytest.raises(InputError, match="no positive eigenvalue"):
        eigen_features(np.zeros((2, 2)))
