from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

import foretrain as ft
from foretrain.compare.build import build
from foretrain.compare.ensembles import Ensemble
from foretrain.support.errors import InputError

X = np.array([[1.0, -0.5, 0.8], [0.3, 1.1, -0.4]])
RESIDUAL = ft.MLP("gelu", depth=4, width=[6, 9, 9], n_in=3, n_out=2, C_b=0.3, C_W=1.4, gamma=[0, 0, 0.5, 0])


@pytest.mark.parametrize(
    "mlp", [ft.MLP("tanh", depth=3, width=7, n_in=3, n_out=2), RESIDUAL], ids=["plain", "residual"]
)
def test_layers_are_those_of_the_built_networks(mlp: ft.MLP) -> None:
    (states,) = map(list, Ensemble(mlp, X, 5, 2, "weights", 2).walks(0))
    for draw in range(5):
        network = build(mlp)
        for linear, state in zip(network.layers, states, strict=True):
            weights, biases, scale = state.parameters
            linear.load_state_dict({"weight": scale * weights[draw], "bias": biases[draw]})
        for state, z in zip(states, network.preactivations(torch.tensor(X)), strict=True):
            np.testing.assert_allclose(
                state.preactivations[draw].T.numpy(), z.detach().numpy(), rtol=1e-12, atol=1e-12
            )


@pytest.mark.parametrize("method", ["weights", "conditional"])
def test_the_seed_fixes_every_batch_in_any_order(method: str) -> None:
    ensemble = Ensemble(RESIDUAL, X, 4, 3, method, 7)
    states = {number: list(map(list, ensemble.walks(number))) for number in (2, 0, 1)}
    again = list(map(list, Ensemble(RESIDUAL, X, 4, 3, method, 7).walks(2)))
    for state, same in zip(states[2][0], again[0], strict=True):
        assert torch.equal(state.metric, same.metric)
    assert not torch.equal(states[0][0][-1].metric, states[1][0][-1].metric)


def test_a_batch_comes_in_chunks_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretrain.compare.ensembles._CHUNK_BYTES", 20_000)
    ensemble = Ensemble(RESIDUAL, X, 50, 2, "weights", 0)
    sizes = [len(next(walk).metric) for walk in ensemble.walks(0)]
    assert sum(sizes) == 50
    assert max(sizes) == ensemble.chunk_size < 50


def test_states_are_the_layers_of_networks() -> None:
    (states,) = map(list, Ensemble(RESIDUAL, X, 4, 2, "weights", 1).walks(0))
    kernel = RESIDUAL.first_kernel(X)
    np.testing.assert_allclose(states[0].metric[3].numpy(), kernel, rtol=1e-14)
    act = RESIDUAL.activation
    for before, state in pairwise(states):
        signal = act.value(before.preactivations.numpy())
        gram = np.einsum("dja,djb->dab", signal, signal) / signal.shape[1]
        np.testing.assert_allclose(state.metric.numpy(), 0.3 + 1.4 * gram, rtol=1e-12)
        assert state.previous is before.preactivations


@pytest.mark.parametrize("method", ["weights", "conditional"])
def test_layers_have_the_covariance_they_are_given(method: str) -> None:
    """Second moment of the fresh part of z over its own metric, neuron by neuron: mean 1, variance 2."""
    (states,) = map(list, Ensemble(RESIDUAL, X, 4000, 2, method, 3).walks(0))
    for state in states[:-1]:
        z = state.preactivations.numpy()
        if state.layer.gamma:
            z = z - state.layer.gamma * state.previous.numpy()
        direction = np.array([0.6, -0.8])
        variance = np.einsum("a,dab,b->d", direction, state.metric.numpy(), direction)
        squares = (z @ direction) ** 2 / variance[:, None]
        assert abs(squares.mean() - 1) < 4 * np.sqrt(2 / squares.size)


def test_singular_metrics_are_drawn_from() -> None:
    twice = np.concatenate([X[:1], X[:1]])
    (states,) = map(
        list, Ensemble(ft.MLP("relu", depth=3, width=5, n_in=3), twice, 20, 2, "conditional", 0).walks(0)
    )
    z = states[1].preactivations
    np.testing.assert_allclose(z[..., 0].numpy(), z[..., 1].numpy(), atol=1e-7)


def test_bad_requests() -> None:
    with pytest.raises(InputError, match="did you mean 'weights'"):
        Ensemble(RESIDUAL, X, 4, 2, "weight", 0)
    with pytest.raises(InputError, match="at least two batches"):
        Ensemble(RESIDUAL, X, 4, 1, "weights", 0)
