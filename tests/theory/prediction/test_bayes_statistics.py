"""The posterior against networks of finite width: importance weights, and output layers that were really fitted."""

from __future__ import annotations

import numpy as np
import pytest

import foretrain as ft
from foretrain.theory.ensembles.sampling import Ensemble
from foretrain.theory.prediction.bayes import bayes_prediction, condition
from foretrain.theory.prediction.linear_models import fit_features, network_features

pytestmark = pytest.mark.statistical

FIRST = np.array([[1, 0.5, -0.3], [0.5, 0.8, 0.2], [-0.3, 0.2, 1.2]])
INPUTS = np.linalg.cholesky((FIRST - 0.1) / 1.5) * np.sqrt(3)
TARGETS = np.array([(0.7, -0.4), (0.2, 0.9)]).T


def weighted_networks(width: int, draws: int, noise: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Exact posterior at finite width, and its standard errors: log evidence, mean of two outputs, variance.

    Given the metric of the last layer, outputs are Gaussian; its draws are weighted with the density of the targets.
    """
    mlp = ft.MLP("tanh", depth=3, width=width, n_out=2, C_b=0.1, C_W=1.5)
    rows = []
    for chunk in Ensemble(mlp, INPUTS, draws, seed=seed).metrics([3]):
        for metric in chunk[3]:
            found = condition(metric[:2, :2], TARGETS, metric[:2, 2:], metric[2:, 2:], noise=noise)
            assert found.variance is not None
            rows.append([found.log_evidence, *found.mean.values[0], float(found.variance[0])])
    table = np.array(rows)
    weights = np.exp(table[:, 0] - table[:, 0].max())
    share = weights / weights.mean()
    evidence = np.log(weights.mean()) + table[:, 0].max()
    values = (share[:, None] * table[:, 1:]).mean(axis=0)
    spread = (share[:, None] * (table[:, 1:] - values)).std(axis=0)
    return np.array([evidence, *values]), np.array([share.std(), *spread]) / np.sqrt(draws)


def test_importance_weights_reach_the_infinite_width_posterior() -> None:
    """The example of the reference: exact - infinite width - (known coefficient) / n, at n = 256, within errors.

    The coefficient of the variance is that of its mean over networks: the reference's, without the spread of means.
    """
    found, errors = weighted_networks(256, 6000, 0.0, seed=1)
    limit = np.array([-4.504691324, -0.461599479, 0.506881227, 0.475737677])
    slope = np.array([-3.672560350, 0.352063599, 0.264170558, -1.494715315])
    z = (found - limit - slope / 256) / errors
    assert np.abs(z).max() < 4
    assert np.abs((found - limit) / errors)[0] > 4  # the sample is large enough to see the 1/n
    assert (errors < [2e-3, 2e-3, 2e-3, 1e-3]).all()


def test_importance_weights_with_noise_on_the_diagonal() -> None:
    mlp = ft.MLP("tanh", depth=3, width=10, n_out=2, C_b=0.1, C_W=1.5)
    exact = bayes_prediction(mlp, INPUTS[:2], TARGETS, INPUTS[2:], noise=0.25)
    assert exact.variance is not None
    limit = np.array([exact.log_evidence, *exact.mean.values[0], float(exact.variance[0])])
    narrow, narrow_errors = weighted_networks(128, 4000, 0.25, seed=2)
    wide, wide_errors = weighted_networks(512, 4000, 0.25, seed=3)
    extrapolated = (4 * wide - narrow) / 3
    errors = np.hypot(4 * wide_errors, narrow_errors) / 3
    assert np.abs((extrapolated - limit) / errors).max() < 4
    shared = bayes_prediction(mlp.replace(C_b=(0.1, 0.1, 0.35)), INPUTS[:2], TARGETS, INPUTS[2:])
    assert (
        abs((shared.log_evidence - extrapolated[0]) / errors[0]) > 20
    )  # noise that is shared by all samples


def test_fitted_output_layers_have_the_posterior_as_their_law() -> None:
    """Random networks whose output layer is trained to the end, from its random start (10.46)-(10.49)."""
    X = 1.3 * np.array(
        [(1, 0.2, -0.5), (-0.4, 1.1, 0.3), (0.1, -0.6, 1.2), (0.8, 0.7, 0.1), (-0.9, 0.3, 0.8)]
    )
    Y = np.array([(1, -0.5), (-0.7, 0.8), (0.4, 1.2)])
    mlp = ft.MLP("tanh", depth=3, width=400, n_out=2, C_b=(0.1, 0.1, 0.05), C_W=(1.2, 1.3, 1))
    exact = bayes_prediction(mlp, X[:3], Y, X[3:])
    ends = []
    for seed in range(800):
        features = network_features(mlp, X, seed=seed)
        phi, start = features.random(X), features.outputs(X)
        ends.append(start[3:] + fit_features(phi[:3], Y - start[:3]).predict(phi[3:]))
    outputs = np.array(ends)  # (draws, tests, outputs)
    errors = outputs.std(axis=0) / np.sqrt(len(outputs))
    assert np.abs((outputs.mean(axis=0) - exact.mean.values) / errors).max() < 4
    squares = (outputs - outputs.mean(axis=0)) ** 2
    variance, spread = squares.mean(axis=(0, 2)), squares.mean(axis=2).std(axis=0) / np.sqrt(len(outputs))
    assert exact.variance is not None
    assert np.abs((variance - exact.variance.values) / spread).max() < 4
    assert (spread < 0.05 * variance).all()
