"""Order 1/n of posterior, evidence and hidden layers against exact posteriors at several widths, and networks."""

from __future__ import annotations

import numpy as np
import pytest
from finite_bayes_example import MLP, TARGETS, TEST, TRAIN, UNEQUAL

import foretrain as ft
from foretrain.compare.judging.ladder import extrapolation_weights
from foretrain.theory.ensembles import Ensemble
from foretrain.theory.prediction.bayes import (
    finite_bayes_prediction,
    hebbian_variance,
    importance_posterior,
    representation_shift,
)

pytestmark = pytest.mark.statistical

X = np.random.default_rng(5).normal(size=(5, 4))
Y = np.random.default_rng(6).normal(size=(3, 2))


@pytest.mark.parametrize("case", ["reference", "unequal", "noise", "relu"])
def test_exact_posteriors_extrapolate_to_the_order_one_over_n(case: str) -> None:
    """n (exact - infinite width) at three widths, carried to 1/n = 0 with a quadratic."""
    mlp, train, targets, test, noise, widths = {
        "reference": (MLP.replace(width=32), TRAIN, TARGETS, TEST, 0.0, (1, 2, 4)),
        "unequal": (UNEQUAL.replace(width=[60, 30, 48]), X[:2], 0.6 * Y[:2], X[3:4], 0.4, (1, 2, 4)),
        "noise": (MLP.replace(width=32), TRAIN, TARGETS, TEST, 0.25, (1, 2, 4)),
        "relu": (ft.MLP("relu", 3, 40, n_out=2, C_b=0.1, C_W=1.8), TRAIN, TARGETS, TEST, 0.1, (1, 2, 4)),
    }[case]
    values, errors = [], []
    for scale in widths:
        wide = mlp.replace(width=[scale * width for width in mlp.hidden_widths])
        found = importance_posterior(wide, train, targets, test, draws=100_000, noise=noise, seed=scale)
        infinite = finite_bayes_prediction(wide, train, targets, test, noise=noise)
        n = wide.hidden_widths[-1]
        assert infinite.infinite_covariance is not None
        parts = (
            found.log_evidence - infinite.infinite_log_evidence,
            found.mean - infinite.infinite_mean,
            found.covariance - infinite.infinite_covariance,
            found.wiring,
            found.metric,
        )
        names = ("log_evidence", "mean", "covariance", "wiring", "metric")
        values.append(n * np.concatenate([np.ravel(part) for part in parts]))
        errors.append(n * np.concatenate([np.ravel(found.standard_error[name]) for name in names]))
    weights = extrapolation_weights(1 / np.array(widths, dtype=float), np.stack(errors))
    limit, error = (weights * values).sum(axis=0), np.sqrt((weights**2 * np.square(errors)).sum(axis=0))
    theory, moved = infinite, representation_shift(wide, train, targets, test, noise=noise)
    assert theory.wiring is not None
    assert theory.covariance is not None
    expected = n * np.concatenate(
        [
            [theory.log_evidence - theory.infinite_log_evidence],
            (theory.mean - theory.infinite_mean).values.ravel(),
            (theory.covariance - theory.infinite_covariance).values.ravel(),
            theory.wiring.values.ravel(),
            moved["metric"].values.ravel(),
        ]
    )
    scores = (limit - expected) / error
    assert np.abs(scores).max() < 4
    assert np.sqrt(np.mean(scores**2)) < 1.6  # entries are correlated
    assert np.abs(limit / error).max() > 20


def test_networks_with_explicit_weights_and_noisy_targets() -> None:
    """Weighted with the density of the noise alone: nothing is integrated out, and noise sits on the diagonal."""
    mlp, noise = MLP.replace(width=48, n_out=1), 0.25
    y = TARGETS[:, 0]
    inputs = np.concatenate([TRAIN, TEST])
    log_weights, outputs = [], []
    for chunk in Ensemble(mlp, inputs, 60_000, method="weights", seed=8).preactivations([3]):
        z = chunk[3][:, 0]
        log_weights.append(-0.5 * ((z[:, :2] - y) ** 2).sum(axis=1) / noise - np.log(2 * np.pi * noise))
        outputs.append(z[:, 2])
    weight, z = np.exp(np.concatenate(log_weights)), np.concatenate(outputs)
    share = weight / weight.mean()
    mean = float((share * z).mean())
    error = float((share * (z - mean)).std() / np.sqrt(len(z)))
    found = finite_bayes_prediction(mlp, TRAIN, y, TEST, noise=noise)
    assert abs(mean - float(found.mean[0, 0])) < 4 * error
    evidence, evidence_error = np.log(weight.mean()), share.std() / np.sqrt(len(z))
    assert abs(evidence - found.log_evidence) < 4 * evidence_error
    shared = finite_bayes_prediction(mlp.replace(C_b=(0.1, 0.1, 0.35)), TRAIN, y, TEST)
    assert abs(mean - float(shared.mean[0, 0])) > 20 * error  # footnote 6 would shift the last C_b


def test_neurons_of_a_layer_given_others() -> None:
    """Three of four neurons near given values would be rare; their density weights the metrics instead."""
    mlp, seen = ft.MLP("tanh", 4, 48, C_b=0.05, C_W=1.4), np.array([[1.2, -1.1, 0.9]])
    limits, errors = [], []
    scales = (1, 2, 4)
    for scale in scales:
        wide = mlp.replace(width=48 * scale)
        chunks = Ensemble(wide, [[1.0]], 100_000, seed=scale).metrics([4])
        metric = np.concatenate([chunk[4][:, 0, 0] for chunk in chunks])
        weight = np.exp(-0.5 * (seen**2).sum() / metric) / metric**1.5
        weight /= weight.mean()
        found = hebbian_variance(wide, [[1.0]], seen)
        value = (weight * metric).mean()
        limits.append([48 * scale * (value - found["kernel"].item())])
        errors.append([48 * scale * (weight * (metric - value)).std() / np.sqrt(len(metric))])
    weights = extrapolation_weights(1 / np.array(scales, dtype=float), np.array(errors))
    limit, error = float((weights * limits).sum()), float(np.sqrt((weights**2 * np.square(errors)).sum()))
    expected = 192 * (found["metric_correction"] + found["association"]).item()
    assert abs(limit - expected) < 4 * error
    assert abs(expected) > 8 * error
