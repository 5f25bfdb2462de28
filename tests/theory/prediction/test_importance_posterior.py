"""The exact posterior by importance weights: where it is known, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from finite_bayes_example import MLP, TARGETS, TEST, TRAIN
from scipy.integrate import quad
from scipy.stats import chi2

import foretrain as ft
from foretrain.support.errors import AccuracyWarning, InputError, NotEnoughMemoryError, NotSupportedError
from foretrain.theory.prediction.bayes import bayes_prediction, importance_posterior

INPUTS = np.array([[1.0, 0.4], [-0.3, 0.9]])


def test_one_narrow_linear_layer_has_a_known_posterior() -> None:
    """Width 5: metric and targets are a mixture over chi-squared, far from infinite width."""
    mlp, n, y = ft.MLP("linear", 2, 5, n_out=2, C_W=(1.3, 0.8)), 5, np.array([0.9, -1.2])
    K = ft.flow(mlp, INPUTS)["K"].values[-1]
    phi, rest = K[1, 0] / K[0, 0], K[1, 1] - K[1, 0] ** 2 / K[0, 0]

    def moment(power: int) -> float:
        def integrand(x: float) -> float:
            metric = K[0, 0] * x / n
            return float(
                chi2.pdf(x, n) * metric**power * np.exp(-0.5 * y @ y / metric) / (2 * np.pi * metric)
            )

        return float(quad(integrand, 0, 200, epsrel=1e-10)[0])

    found = importance_posterior(mlp, INPUTS[:1], [y], INPUTS[1:], draws=40_000, seed=1)
    errors, evidence = found.standard_error, moment(0)
    scores = [
        (found.log_evidence - np.log(evidence)) / errors["log_evidence"],
        *((found.mean.values - phi * y) / errors["mean"]).values.ravel(),
        *((found.covariance - rest * (1 - 1 / n)) / errors["covariance"]).values.ravel(),
        *(
            (found.wiring.values[0, :, 0] - np.outer(y, y) * rest / n * moment(-1) / evidence)
            / errors["wiring"].values[0, :, 0]
        ).ravel(),
        (found.metric[0, 0, 0] - (moment(1) / evidence - K[0, 0])) / errors["metric"][0, 0, 0],
    ]
    assert np.abs(scores).max() < 4
    assert np.abs(scores).max() > 0.1
    infinite = bayes_prediction(mlp, INPUTS[:1], [y], INPUTS[1:])
    assert abs(found.log_evidence - infinite.log_evidence) > 10 * float(errors["log_evidence"])


def test_the_same_seed_gives_the_same_numbers_and_everything_can_be_saved() -> None:
    first, second, other = (
        importance_posterior(MLP, TRAIN, TARGETS, TEST, draws=2000, seed=seed) for seed in (5, 5, 6)
    )
    np.testing.assert_array_equal(first.mean, second.mean)
    assert first.log_evidence == second.log_evidence != other.log_evidence
    assert {"mean", "wiring", "metric", "standard_error_of_metric"} <= set(first.to_dataset())
    assert first.metric.dims == ("layer", "input_1", "input_2")
    np.testing.assert_array_equal(first.metric["layer"], [2, 3])
    assert "as good as" in repr(first)


def test_order_of_outputs_and_training_inputs_does_not_matter() -> None:
    found = importance_posterior(MLP, TRAIN, TARGETS, TEST, draws=3000, noise=0.2)
    other = importance_posterior(MLP, TRAIN, TARGETS[:, ::-1], TEST, draws=3000, noise=0.2)
    np.testing.assert_allclose(other.mean, found.mean[:, ::-1], atol=1e-12)
    np.testing.assert_allclose(other.wiring, found.wiring[:, ::-1, :, ::-1], atol=1e-12)
    swapped = importance_posterior(MLP, TRAIN[::-1], TARGETS[::-1], TEST, draws=3000, noise=0.2)
    error = np.sqrt(2) * found.standard_error["mean"]  # the same law, drawn along other axes
    assert float(np.abs((swapped.mean - found.mean) / error).max()) < 4


def test_without_hidden_layers_every_network_is_the_same() -> None:
    mlp = ft.MLP("tanh", 1, n_out=2, C_b=0.1)
    found = importance_posterior(mlp, TRAIN, TARGETS, TEST, draws=500, noise=0.1)
    infinite = bayes_prediction(mlp, TRAIN, TARGETS, TEST, noise=0.1)
    np.testing.assert_allclose(found.mean, infinite.mean, atol=1e-10)
    assert found.log_evidence == pytest.approx(infinite.log_evidence, abs=1e-10)
    assert found.effective_draws == pytest.approx(500)


def test_networks_whose_neurons_are_all_silent_have_no_weight() -> None:
    """Three relu neurons: a metric chi-squared with as many degrees as are active, and none with chance 1/8."""
    mlp, y = ft.MLP("relu", 2, 3), 0.8

    def density(active: int) -> float:
        def integrand(x: float) -> float:
            return float(chi2.pdf(x, active) * np.exp(-1.5 * y**2 / x) / np.sqrt(2 * np.pi * x / 3))

        return float(quad(integrand, 0, 100, epsrel=1e-10)[0])

    expected = sum(chance * density(active) for active, chance in ((1, 3 / 8), (2, 3 / 8), (3, 1 / 8)))
    found = importance_posterior(mlp, [[1.0]], [y], [[2.0]], draws=20_000)
    assert found.log_evidence == pytest.approx(
        np.log(expected), abs=4 * float(found.standard_error["log_evidence"])
    )
    assert found.mean.item() == pytest.approx(2 * y)
    with pytest.raises(InputError, match="no density"):
        importance_posterior(mlp, [[1.0]], [0.0], [[2.0]], draws=1000)


def test_few_effective_draws_are_told_or_refused() -> None:
    with pytest.warns(AccuracyWarning, match="rough"):
        found = importance_posterior(MLP, TRAIN, TARGETS, TEST, draws=300)
    assert found.effective_draws < 300
    far = 6 * TARGETS
    with pytest.raises(InputError, match="nearly all the weight"):
        importance_posterior(MLP.replace(width=16), TRAIN, far, TEST, draws=1000)


def test_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    many = np.random.default_rng(0).normal(size=(6, 3))
    with pytest.raises(InputError, match="width 4 cannot take"):
        importance_posterior(MLP.replace(width=4), many, np.zeros((6, 2)), TEST)
    with pytest.raises(InputError, match="draws"):
        importance_posterior(MLP, TRAIN, TARGETS, TEST, draws=1)
    with pytest.raises(InputError, match="components"):
        importance_posterior(MLP, TRAIN, TARGETS, TEST[:, :2])
    with pytest.raises(NotSupportedError, match="skip connections"):
        importance_posterior(MLP.replace(gamma=0.5), TRAIN, TARGETS, TEST)
    monkeypatch.setenv("FORETRAIN_MEMORY", "50MB")
    with pytest.raises(NotEnoughMemoryError, match="batches"):
        importance_posterior(MLP, TRAIN, TARGETS, np.ones((200, 3)))
