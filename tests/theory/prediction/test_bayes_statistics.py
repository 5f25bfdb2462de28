"""The posterior against networks of finite width: importance weights, and output layers that were really fitted."""

from __future__ import annotations

import numpy as np
import pytest

import foretrain as ft
from foretrain.theory.ensembles import Ensemble
from foretrain.theory.prediction.bayes import bayes_prediction
from foretrain.theory.prediction.linear_models import fit_features, network_features

pytestmark = pytest.mark.statistical

FIRST = np.array([[1, 0.5, -0.3], [0.5, 0.8, 0.2], [-0.3, 0.2, 1.2]])
INPUTS = np.linalg.cholesky((FIRST - 0.1) / 1.5) * np.sqrt(3)
TARGETS = np.array([(0.7, -0.4), (0.2, 0.9)]).T


MLP = ft.MLP("tanh", depth=3, width=256, n_out=2, C_b=0.1, C_W=1.5)


def weighted_networks(width: int, draws: int, noise: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Exact posterior at finite width, and its standard errors: log evidence, mean of two outputs, variance.

    Given the metric of the last layer, outputs are Gaussian; its draws are weighted with the density of the targets.
    """
    chunks = Ensemble(MLP.replace(width=width), INPUTS, draws, seed=seed).metrics([3])
    metric = np.concatenate([chunk[3] for chunk in chunks])
    seen = metric[:, :2, :2] + noise * np.eye(2)
    cross = metric[:, 2:, :2]
    solved = np.linalg.solve(seen, np.broadcast_to(TARGETS, (draws, 2, 2)))
    log_weight = -0.5 * (TARGETS * solved).sum(axis=(1, 2)) - np.log(4 * np.pi**2 * np.linalg.det(seen))
    mean = (cross @ solved)[:, 0]
    variance = metric[:, 2, 2] - (cross @ np.linalg.solve(seen, cross.swapaxes(1, 2)))[:, 0, 0]
    share = np.exp(log_weight - log_weight.max())
    evidence = np.log(share.mean()) + log_weight.max()
    share = (share / share.mean())[:, None]
    table = np.column_stack([mean, variance])
    values = (share * table).mean(axis=0)
    spread = (share * (table - values)).std(axis=0)
    return np.array([evidence, *values]), np.array([share.std(), *spread]) / np.sqrt(draws)


def infinite_width(mlp: ft.MLP, noise: float) -> np.ndarray:
    """The same four numbers."""
    found = bayes_prediction(mlp, INPUTS[:2], TARGETS, INPUTS[2:], noise=noise)
    assert found.variance is not None
    return np.array([found.log_evidence, *found.mean.values[0], float(found.variance[0])])


def test_importance_weights_reach_the_infinite_width_posterior() -> None:
    """The example of the reference: exact - infinite width - (known coefficient) / n, at n = 256, within errors.

    The coefficient of the variance is that of its mean over networks: the reference's, without the spread of means.
    """
    found, errors = weighted_networks(256, 60_000, 0.0, seed=1)
    slope = np.array([-3.672560350, 0.352063599, 0.264170558, -1.494715315])
    shift = (found - infinite_width(MLP, 0.0)) / errors
    assert np.abs(shift - slope / 256 / errors).max() < 4
    assert np.abs(shift[[0, 3]]).min() > 10  # the sample is large enough to see the 1/n


def test_importance_weights_with_noise_on_the_diagonal() -> None:
    narrow, narrow_errors = weighted_networks(128, 40_000, 0.25, seed=2)
    wide, wide_errors = weighted_networks(512, 40_000, 0.25, seed=3)
    extrapolated = (4 * wide - narrow) / 3
    errors = np.hypot(4 * wide_errors, narrow_errors) / 3
    assert np.abs((extrapolated - infinite_width(MLP, 0.25)) / errors).max() < 4
    shared = infinite_width(MLP.replace(C_b=(0.1, 0.1, 0.35)), 0.0)  # noise that all samples share
    assert abs((shared - extrapolated) / errors)[0] > 20


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
