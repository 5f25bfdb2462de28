"""Linear models: features against kernels, ridge against least norm, and the kernels by name."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.gaussian_process.kernels import RBF
from sklearn.linear_model import Ridge

import foretrain as ft
from foretrain.support.errors import AccuracyWarning, InputError, NotSupportedError
from foretrain.theory.prediction.bayes import bayes_prediction
from foretrain.theory.prediction.linear_models import (
    fit_features,
    fit_kernel,
    fit_singular_kernel,
    gaussian_kernel,
    linear_kernel,
    linear_kernel_as_printed,
    network_kernel,
    push_through,
    weighted_kernel,
)

RNG = np.random.default_rng(11)


def data(samples: int, features: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(samples, features)), rng.normal(size=(samples, 2)), rng.normal(size=(3, features))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.floats(1e-3, 10), st.integers(0, 1000))
def test_features_and_kernel_agree_for_any_sizes(
    samples: int, features: int, ridge: float, seed: int
) -> None:
    phi, Y, test = data(samples, features, seed)
    primal = fit_features(phi, Y, ridge).predict(test)
    dual = fit_kernel(phi @ phi.T, Y, ridge).predict(test @ phi.T)
    np.testing.assert_allclose(primal, dual, atol=1e-8)
    left, right = push_through(phi, ridge)
    np.testing.assert_allclose(left, right, atol=1e-8)
    np.testing.assert_allclose(test @ left @ Y, primal, atol=1e-8)
    order = np.random.default_rng(seed).permutation(samples)
    np.testing.assert_allclose(
        fit_features(phi[order], Y[order], ridge).weights, fit_features(phi, Y, ridge).weights, atol=1e-8
    )


@pytest.mark.parametrize(("samples", "features"), [(20, 4), (4, 20)])
def test_ridge_is_that_of_scikit_learn(samples: int, features: int) -> None:
    phi, Y, _ = data(samples, features)
    other = Ridge(alpha=2 * 0.7, fit_intercept=False).fit(phi, Y)
    np.testing.assert_allclose(fit_features(phi, Y, 0.7).weights, other.coef_.T, atol=1e-8)


@pytest.mark.parametrize(("samples", "features"), [(20, 4), (4, 20), (5, 5)])
def test_least_norm_is_the_limit_of_no_ridge(samples: int, features: int) -> None:
    phi, Y, test = data(samples, features)
    found = fit_features(phi, Y)
    assert found.rank == min(samples, features)
    np.testing.assert_allclose(found.weights, np.linalg.pinv(phi) @ Y, atol=1e-9)
    np.testing.assert_allclose(found.predict(test), fit_features(phi, Y, 1e-9).predict(test), atol=1e-5)
    dual = fit_singular_kernel(phi @ phi.T, Y)
    assert dual.rank == found.rank
    np.testing.assert_allclose(dual.predict(test @ phi.T), found.predict(test), atol=1e-8)
    if features >= samples:
        np.testing.assert_allclose(fit_kernel(phi @ phi.T, Y).predict(phi @ phi.T), Y, atol=1e-8)


def test_kernel_with_too_few_features_reports_its_jitter() -> None:
    phi, Y, _ = data(8, 3)
    with pytest.warns(AccuracyWarning, match="added to its diagonal"):
        assert fit_kernel(phi @ phi.T, Y).jitter > 0


def test_linear_kernel_is_that_of_features_with_a_bias() -> None:
    X, Y, test = data(5, 9)
    augmented, augmented_test = (np.hstack([np.ones((len(part), 1)), part]) for part in (X, test))
    np.testing.assert_allclose(linear_kernel(X, test), augmented @ augmented_test.T, atol=1e-12)
    np.testing.assert_allclose(linear_kernel_as_printed(X, test), X @ test.T, atol=1e-12)
    by_kernel = fit_kernel(linear_kernel(X, X), Y).predict(linear_kernel(test, X))
    np.testing.assert_allclose(by_kernel, fit_features(augmented, Y).predict(augmented_test), atol=1e-9)
    shifted = fit_kernel(linear_kernel(X, X), Y + 3.0).predict(linear_kernel(test, X))
    assert not np.allclose(shifted, by_kernel + 3.0)  # the bias is penalised like any other weight


def test_gaussian_kernel_is_that_of_scikit_learn() -> None:
    X, _, test = data(6, 3)
    np.testing.assert_allclose(gaussian_kernel(X, test, 0.7), RBF(0.7)(X, test), atol=1e-14)


def test_weighted_kernels() -> None:
    phi, _, test = data(6, 4)
    c = np.array([0.5, 0.0, 2.0, 1.0])
    np.testing.assert_allclose(
        weighted_kernel(phi, test, c), (phi * np.sqrt(c)) @ (test * np.sqrt(c)).T, atol=1e-13
    )
    np.testing.assert_allclose(
        weighted_kernel(phi, test, np.diag(c)), weighted_kernel(phi, test, c), atol=1e-13
    )
    root = RNG.normal(size=(4, 4))
    np.testing.assert_allclose(
        weighted_kernel(phi, test, root @ root.T), (phi @ root) @ (test @ root).T, atol=1e-12
    )
    with pytest.raises(InputError, match="positive semidefinite"):
        weighted_kernel(phi, test, -c)
    with pytest.raises(InputError, match="weights have shape"):
        weighted_kernel(phi, test, c[:2])


def test_network_kernels() -> None:
    X, Y, test = data(5, 3)
    mlp = ft.MLP("tanh", 3, 50, n_out=2, C_b=0.1, C_W=1.3, lambda_b=0.2, lambda_W=0.8)
    whole = ft.flow(mlp, np.concatenate([X, test]), ["K", "Theta"])
    for name in ("K", "Theta"):
        k = network_kernel(mlp, name)
        np.testing.assert_allclose(k(X, test), whole[name].values[-1][:5, 5:], atol=1e-10)
    k = network_kernel(mlp)
    found = fit_kernel(k(X, X), Y, ridge=0.05).predict(k(test, X))
    np.testing.assert_allclose(found, bayes_prediction(mlp, X, Y, test, noise=0.1).mean, atol=1e-8)
    with pytest.raises(InputError, match="kernel of a network"):
        network_kernel(mlp, "V")  # type: ignore[arg-type]


def test_tangent_kernel_where_slopes_fail() -> None:
    with pytest.raises(NotSupportedError, match="jumps"):
        network_kernel(ft.MLP(np.sign, 2, 10), "Theta")(np.eye(2), np.eye(2))
    relu, zero = ft.MLP("relu", 2, 10, C_W=2.0), np.zeros((1, 2))
    for sets in ((zero, np.eye(2)), (np.eye(2), zero)):
        with pytest.warns(AccuracyWarning, match="exactly zero"):
            network_kernel(relu, "Theta")(*sets)


def test_reprs_teach() -> None:
    phi, Y, _ = data(6, 4)
    assert "4 × 2 numbers" in repr(fit_features(phi, Y))
    assert "rank" in repr(fit_features(phi, Y))
    assert "training samples" in repr(fit_kernel(phi @ phi.T, Y, 0.1))


def test_bad_input() -> None:
    phi, Y, test = data(6, 4)
    for ridge in (-1.0, np.nan):
        with pytest.raises(InputError, match="ridge"):
            fit_features(phi, Y, ridge)
    with pytest.raises(InputError, match="targets has shape"):
        fit_features(phi, Y[:3])
    with pytest.raises(InputError, match="features have shape"):
        fit_features(phi[:, 0], Y)
    with pytest.raises(InputError, match="features have shape"):
        fit_features(phi, Y).predict(test[:, :2])
    with pytest.raises(InputError, match="kernel has shape"):
        fit_kernel(phi @ phi.T, Y, 0.1).predict(test)
    with pytest.raises(InputError, match="ridge is 0"):
        push_through(phi, 0.0)
    with pytest.raises(InputError, match="no positive eigenvalue"):
        fit_singular_kernel(-np.eye(3), [1.0, 2.0, 3.0])
    with pytest.raises(InputError, match="scale"):
        gaussian_kernel(phi, test, 0.0)
    with pytest.raises(InputError, match="two sets"):
        linear_kernel(phi, test[:, :2])
