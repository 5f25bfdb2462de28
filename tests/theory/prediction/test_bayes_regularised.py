"""Penalties on parameters: the recursion (10.43), its law at infinite width, and where regularised training ends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import norm

import foretrain as ft
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory.ensembles import Parameters, forward, sample_parameters
from foretrain.theory.network_tangent_kernel import descend
from foretrain.theory.prediction.bayes import (
    Penalty,
    bayes_equivalent_rates,
    bayes_prediction,
    categorical_loss,
    gaussian_loss,
    log_prior,
    negative_log_posterior,
    output_layer_estimates,
    penalty_response,
    prior_penalties,
    regularised_prediction,
    response_law,
)
from foretrain.theory.prediction.linear_models import NetworkFeatures, fit_features, network_features

RNG = np.random.default_rng(7)
X, Y = RNG.normal(size=(5, 3)), RNG.normal(size=(3, 2))
MLP = ft.MLP(
    "tanh",
    depth=3,
    width=6,
    n_in=3,
    n_out=2,
    C_b=(0.1, 0.2, 0.3),
    C_W=(1.2, 1.3, 1.0),
    lambda_b=(0.2, 0.3, 0.1),
    lambda_W=(0.6, 0.8, 0.5),
)
PENALTIES = (Penalty(0.4, 0.7), Penalty(0.2, 1.1), Penalty(0.9, 0.3))


@pytest.mark.parametrize("gamma", [None, 0.6])
def test_recursion_is_the_derivative_along_the_decay(gamma: float | None) -> None:
    """R = sum lambda a theta dz/dtheta is the rate at which z changes as theta grows by lambda a theta."""
    mlp = MLP.replace(gamma=gamma)
    drawn = sample_parameters(mlp, 3, seed=1)

    def scaled(step: float) -> dict[int, np.ndarray]:
        biases = [
            b * (1 + step * p.bias * lay.lambda_b) for b, p, lay in zip(drawn.biases, PENALTIES, mlp.layers)
        ]
        weights = [
            W * (1 + step * p.weight * lay.lambda_W / W.shape[2])
            for W, p, lay in zip(drawn.weights, PENALTIES, mlp.layers)
        ]
        return forward(replace(drawn, biases=tuple(biases), weights=tuple(weights)), X)

    above, below = scaled(1e-4), scaled(-1e-4)
    for layer, found in penalty_response(drawn, X, PENALTIES).items():
        np.testing.assert_allclose(found, (above[layer] - below[layer]) / 2e-4, atol=1e-8)


def test_law_of_linear_networks_with_equal_decay() -> None:
    """Outputs of degree L in parameters that all decay alike: R = alpha L z, exactly."""
    linear = ft.MLP("linear", depth=4, width=10, n_in=3, C_W=1.1, lambda_b=0.0, lambda_W=2.0)
    law = response_law(linear, X, [Penalty(0.0, 0.3 * n / 2.0) for n in linear.widths[:-1]])
    for layer in range(1, 5):
        part = law.sel(layer=layer)
        np.testing.assert_allclose(part["S"], 0.3 * layer * part["K"], rtol=1e-10)
        np.testing.assert_allclose(part["Q"], (0.3 * layer) ** 2 * part["K"], rtol=1e-10)


def test_response_of_homogeneous_networks() -> None:
    """The same for every ReLU network, at finite width."""
    relu = ft.MLP("relu", depth=3, width=8, n_in=3, C_W=2.0, lambda_W=2.0)
    drawn = sample_parameters(relu, 2, seed=3)
    found = penalty_response(drawn, X, [Penalty(0.0, 0.3 * n / 2.0) for n in relu.widths[:-1]])
    np.testing.assert_allclose(found[3], 0.9 * forward(drawn, X)[3], rtol=1e-10)


@pytest.mark.parametrize("gamma", [None, 0.6])
def test_law_of_wide_networks(gamma: float | None) -> None:
    wide = MLP.replace(width=300, n_out=100, gamma=gamma)
    penalties = [Penalty(p.bias, p.weight * n) for p, n in zip(PENALTIES, wide.widths)]
    law = response_law(wide, X, penalties).sel(layer=3)
    samples = []
    for seed in range(40):
        drawn = network_features(wide, X, seed=seed).parameters
        z, R = forward(drawn, X)[3][0], penalty_response(drawn, X, penalties)[3][0]
        samples.append([z.T @ z / 100, R.T @ z / 100, R.T @ R / 100])
    means, errors = np.mean(samples, axis=0), np.std(samples, axis=0) / np.sqrt(40)
    for name, mean, error in zip(("K", "S", "Q"), means, errors):
        assert (np.abs(mean - law[name].values) / error).max() < 4.5, name
    assert (
        errors[1] < 0.05 * np.abs(np.diagonal(law["S"]).mean())
    ).all()  # so that the comparison means something


def test_law_refuses_kinks() -> None:
    with pytest.raises(NotSupportedError, match="kinks"):
        response_law(MLP.replace(activation="relu"), X, PENALTIES)
    with pytest.raises(InputError, match="penalties list 2"):
        response_law(MLP, X, PENALTIES[:2])
    with pytest.raises(InputError, match="negative or infinite"):
        penalty_response(network_features(MLP, X).parameters, X, [Penalty(-1.0, 0.0)] * 3)


def test_prior_penalties_and_posterior_loss() -> None:
    assert prior_penalties(MLP)[1] == pytest.approx((2.5, 6 / 2.6))
    assert prior_penalties(MLP.replace(C_b=0.0))[0].bias == np.inf
    drawn = sample_parameters(MLP, 2, seed=4)
    expected = np.zeros(2)
    for layer, fan_in, b, W in zip(MLP.layers, MLP.widths, drawn.biases, drawn.weights):
        expected += norm(scale=np.sqrt(layer.C_b)).logpdf(b).sum(axis=1)
        expected += norm(scale=np.sqrt(layer.C_W / fan_in)).logpdf(W).sum(axis=(1, 2))
    np.testing.assert_allclose(log_prior(drawn), expected, rtol=1e-12)
    misses = norm(scale=0.5).logpdf(forward(drawn, X[:3])[3] - Y.T).sum(axis=(1, 2))
    np.testing.assert_allclose(negative_log_posterior(drawn, X[:3], Y, 0.25), -misses - expected, rtol=1e-12)
    unbiased = network_features(MLP.replace(C_b=0.0), X).parameters
    assert np.isfinite(log_prior(unbiased)).all()
    with pytest.raises(InputError, match="prior variance is zero"):
        log_prior(
            Parameters(unbiased.mlp, unbiased.weights, drawn.biases[:0] + tuple(b[:1] for b in drawn.biases))
        )


def test_losses() -> None:
    outputs = RNG.normal(size=(3, 2))
    assert gaussian_loss(outputs, Y, 0.3) == pytest.approx(
        -norm(scale=np.sqrt(0.3)).logpdf(outputs - Y).sum()
    )
    chances = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
    assert categorical_loss(outputs, np.eye(2)[[0, 1, 0]]) == pytest.approx(
        -np.log(chances[range(3), [0, 1, 0]]).sum()
    )
    shifted = categorical_loss(outputs + 700.0, np.eye(2)[[0, 1, 0]])
    assert shifted == pytest.approx(categorical_loss(outputs, np.eye(2)[[0, 1, 0]]))
    with pytest.raises(InputError, match="positive variance"):
        gaussian_loss(outputs, Y, 0.0)
    with pytest.raises(InputError, match="not probabilities"):
        categorical_loss(outputs, Y)


def test_map_of_the_output_layer_minimises_the_posterior_loss() -> None:
    """Ridge with the prior's penalties times the noise, against direct minimisation over the output layer."""
    noise, drawn = 0.2, network_features(MLP, X, seed=5).parameters

    def loss(flat: np.ndarray) -> float:
        W, b = flat[:12].reshape(1, 2, 6), flat[12:].reshape(1, 2)
        moved = replace(drawn, weights=(*drawn.weights[:2], W), biases=(*drawn.biases[:2], b))
        return float(negative_log_posterior(moved, X[:3], Y, noise)[0])

    best = minimize(loss, np.zeros(14), method="BFGS", options={"gtol": 1e-9}).x
    features = NetworkFeatures(drawn)
    fitted = fit_features(features.random(X[:3]), Y, ridge=noise / 2).predict(features.random(X[3:]))
    W, b = best[:12].reshape(1, 2, 6), best[12:].reshape(1, 2)
    moved = replace(drawn, weights=(*drawn.weights[:2], W), biases=(*drawn.biases[:2], b))
    np.testing.assert_allclose(fitted, forward(moved, X[3:])[3][0].T, atol=1e-5)


def test_regularised_training_at_infinite_width_is_the_posterior_mean_with_noise() -> None:
    noise, last = 0.2, prior_penalties(MLP)[-1]
    found = regularised_prediction(MLP, X[:3], Y, X[3:], Penalty(noise * last.bias, noise * last.weight))
    posterior = bayes_prediction(MLP, X[:3], Y, X[3:], noise=noise)
    np.testing.assert_allclose(found, posterior.mean, atol=1e-10)
    estimates = output_layer_estimates(MLP, X[:3], Y, X[3:], noise)
    np.testing.assert_allclose(estimates["maximum_a_posteriori"], found, atol=1e-10)
    np.testing.assert_allclose(
        estimates["maximum_likelihood"], bayes_prediction(MLP, X[:3], Y, X[3:]).mean, atol=1e-10
    )
    with pytest.raises(InputError, match="two positive numbers"):
        regularised_prediction(MLP, X[:3], Y, X[3:], Penalty(0.0, 1.0))


def test_regularised_training_on_a_wide_network_forgets_its_start() -> None:
    """Ridge on the random features of one wide network against the limit: the distance falls like n^-1/2."""
    distances = []
    for width in (100, 6400):
        wide = MLP.replace(width=width, depth=2, C_b=0.1, C_W=1.2, lambda_b=0.1, lambda_W=0.5)
        last, limit = prior_penalties(wide)[-1], None
        limit = regularised_prediction(wide, X[:3], Y, X[3:], Penalty(0.2 * last.bias, 0.2 * last.weight))
        squares = []
        for seed in range(12):
            features = network_features(wide, X, seed=seed)
            fitted = fit_features(features.random(X[:3]), Y, ridge=0.1).predict(features.random(X[3:]))
            squares.append(np.mean((fitted - limit.values) ** 2))
        distances.append(np.sqrt(np.mean(squares)))
    assert 4 < distances[0] / distances[1] < 16  # 8 for the square root of 64


@pytest.mark.slow
def test_gradient_descent_with_the_equivalent_rates_trains_the_output_layer_alone() -> None:
    """Real steps of gradient descent end at the initial outputs plus the least-norm fit of what they miss."""
    mlp = bayes_equivalent_rates(MLP.replace(width=40))
    assert mlp.lambda_b == (0.0, 0.0, 0.3)
    assert mlp.lambda_W == (0.0, 0.0, 1.0)
    drawn = network_features(mlp, X, seed=6).parameters
    features = NetworkFeatures(drawn)
    phi, start = features.random(X), features.outputs(X)
    fitted = start[3:] + fit_features(phi[:3], Y - start[:3]).predict(phi[3:])
    spectrum = np.linalg.eigvalsh(phi[:3] @ phi[:3].T)
    trained = drawn
    for _ in range(1500):
        trained = descend(trained, X[:3], Y, 2 / (spectrum[0] + spectrum[-1]))
    np.testing.assert_array_equal(trained.weights[0], drawn.weights[0])
    np.testing.assert_allclose(forward(trained, X)[3][0].T, np.concatenate([Y, fitted]), atol=1e-8)
