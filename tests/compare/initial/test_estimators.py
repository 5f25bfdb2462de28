from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import foretrain as ft
from foretrain.compare.ensembles import Ensemble
from foretrain.compare.initial.comparison import entries_of
from foretrain.compare.initial.preactivations import batch_values, collect
from foretrain.compare.judging.ladder import Entry

X = np.array([[1.0, -0.5, 0.8], [0.3, 1.1, -0.4]])
PLAIN = ft.MLP("tanh", depth=4, width=[12, 24, 16], n_in=3, C_b=0.15, C_W=1.6)
RESIDUAL = ft.MLP("relu", depth=4, width=6, n_in=3, C_b=0.1, C_W=1.2, gamma=0.6)


def kernel(mlp: ft.MLP) -> np.ndarray:
    return ft.flow(mlp, X)["K"].values


def draws_of(ensemble: Ensemble) -> list[list[torch.Tensor]]:
    """For every network the list of its layers' states, batch after batch."""
    return [states for number in range(ensemble.batches) for states in map(list, ensemble.walks(number))]


def test_entries_name_each_component_once() -> None:
    assert len(entries_of("K", PLAIN, 2)) == 3 * 3
    assert len(entries_of("V", PLAIN, 2)) == 3 * 6
    assert len(entries_of("V", PLAIN, 4)) == 3 * 55
    assert {entry.layer for entry in entries_of("G1", PLAIN, 2)} == {3, 4}
    assert {entry.layer for entry in entries_of("three_point", RESIDUAL, 2)} == {2, 3}
    assert Entry("V", 3, (0, 0, 0, 1)).label == "V_(00)(01)"


def test_metric_covariance_is_the_plain_one() -> None:
    """With one network per batch the jackknife gives fan-in times the unbiased covariance of Ĝ exactly."""
    ensemble = Ensemble(PLAIN, X, 1, 60, "weights", 0)
    statistics = collect(ensemble, kernel(PLAIN), "metric", with_remainder=False)
    entries = [Entry("V", 3, (0, 0, 0, 1)), Entry("K", 3, (0, 1))]
    found = batch_values(PLAIN, kernel(PLAIN), statistics, entries)
    metrics = torch.cat([states[2].metric for states in draws_of(ensemble)]).numpy()
    covariance = np.cov(metrics[:, 0, 0], metrics[:, 0, 1])[0, 1]
    assert found.estimate[0] == pytest.approx(24 * covariance, rel=1e-9)
    assert found.estimate[1] == pytest.approx(metrics[:, 0, 1].mean(), rel=1e-12)
    assert found.standard_error[1] == pytest.approx(metrics[:, 0, 1].std(ddof=1) / np.sqrt(60), rel=1e-10)


def test_sums_over_different_neurons_by_brute_force() -> None:
    """The residual estimator written out as a double loop over neurons."""
    K = kernel(RESIDUAL)
    ensemble = Ensemble(RESIDUAL, X, 3, 4, "weights", 1)
    statistics = collect(ensemble, K, "metric", with_remainder=False)
    products, triples = [], []
    for states in draws_of(ensemble):
        for draw in range(3):
            state = states[2]
            z = 0.6 * state.previous[draw].numpy()
            G = state.metric[draw].numpy() - K[2]
            pairs = itertools.permutations(range(6), 2)
            terms = [
                (
                    (G[0, 0] + z[j, 0] ** 2) * (G[0, 1] + z[k, 0] * z[k, 1]),
                    z[j, 1] * (G[0, 1] + z[k, 0] * z[k, 1]),
                )
                for j, k in pairs
            ]
            products.append(np.mean([term[0] for term in terms]))
            triples.append(np.mean([term[1] for term in terms]))
    assert statistics.product[:, 2, 0, 1].mean() == pytest.approx(np.mean(products), rel=1e-12)
    assert statistics.triple[:, 2, 1, 1].mean() == pytest.approx(np.mean(triples), rel=1e-12)


def test_nothing_is_curved_before_layer_three() -> None:
    """Layer 1 has one metric in all networks, so what layer 2 sees of it has no remainder."""
    found = collect(Ensemble(PLAIN, X, 40, 2, "conditional", 0), kernel(PLAIN), "metric", with_remainder=True)
    assert found.mean.shape == (2, 4, 3)
    assert np.abs(found.remainder[:, :2]).max() < 1e-14
    assert np.abs(found.remainder[:, 2:]).min() > 1e-6


def test_the_rearrangement_holds_for_the_plain_mean() -> None:
    """n E[Ĝ − K] directly and by the rearrangement: the same number, the second with far less noise."""
    ensemble = Ensemble(PLAIN.replace(width=200), X, 40, 100, "conditional", 4)
    K = kernel(ensemble.mlp)
    statistics = collect(ensemble, K, "metric", with_remainder=True)
    entries = entries_of("G1", ensemble.mlp, 2)
    sharp = batch_values(ensemble.mlp, K, statistics, entries)
    means = batch_values(
        ensemble.mlp, K, statistics, [Entry("K", entry.layer, entry.inputs) for entry in entries]
    )
    direct = 200 * (means.estimate - np.array([K[(e.layer - 1, *e.inputs)] for e in entries]))
    noise = 200 * means.standard_error
    assert (sharp.standard_error < 0.3 * noise).all()
    assert (np.abs(direct - sharp.estimate) < 4 * noise).all()


def test_relu_has_no_shift_of_single_inputs() -> None:
    mlp = ft.MLP("relu", depth=4, width=20, n_in=3, C_W=2.0)
    ensemble = Ensemble(mlp, X, 5, 20, "conditional", 0)
    statistics = collect(ensemble, kernel(mlp), "metric", with_remainder=True)
    found = batch_values(mlp, kernel(mlp), statistics, [Entry("G1", 4, (0, 0)), Entry("G1", 4, (0, 1))])
    assert abs(found.estimate[0]) < 1e-12
    assert abs(found.estimate[1]) > 1e-3


@pytest.mark.statistical
@pytest.mark.parametrize("method", ["weights", "conditional"])
def test_layer_two_is_exact_at_any_width(method: str) -> None:
    """(4.37), (4.40) at width 8: reference values of K and V for two inputs, by both estimators."""
    mlp = ft.MLP("tanh", depth=3, width=[12, 8], n_in=3, C_b=0.15, C_W=1.6)
    K = kernel(mlp)
    V = [0.264687434, -0.043236367, 0.003757794, 0.406472637, -0.042963645, 0.241550982]
    entries = [entry for entry in entries_of("V", mlp, 2) if entry.layer == 2]
    for estimator, batches in (("metric", 200), ("neurons", 400)):
        ensemble = Ensemble(mlp, X, 200, batches, method, 5)
        statistics = collect(ensemble, K, estimator, with_remainder=False)
        found = batch_values(mlp, K, statistics, entries)
        z = (found.estimate - V) / found.standard_error
        assert np.abs(z).max() < 3.2, z
        assert (found.standard_error < 0.03).all()
