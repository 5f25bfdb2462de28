"""One hidden layer trained without weights follows training with them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from chain_networks import normal, note_network, redraw
from torch import Tensor, nn

from foretrain.empirical.fields import simulate, weight_free, weight_training
from foretrain.support.errors import InputError, NotSupportedError

WIDTH, INPUTS = 24, 6


def hidden(activation: nn.Module, bias: bool = True) -> nn.Module:
    return redraw(nn.Sequential(nn.Linear(4, WIDTH, bias=bias), activation), gain=2.0)


def with_head(activation: nn.Module, outputs: int = 2) -> nn.Module:
    return redraw(nn.Sequential(nn.Linear(4, WIDTH), activation, nn.Linear(WIDTH, outputs)))


X = normal(INPUTS, 4, seed=7)


def train_by_hand(model: nn.Module, y: Tensor, steps: int, lr: float, readout: Tensor) -> Tensor:
    """Weights of the hidden layer after plain gradient descent, written out for ReLU without bias."""
    W = model[0].weight.detach().clone()
    for _ in range(steps):
        v = X @ W.T
        r = torch.relu(v) @ readout - y
        W -= lr * 2 / INPUTS * ((v > 0) * r[:, None] * readout).T @ X
    return X @ W.T


@pytest.mark.slow
def test_ten_thousand_steps_to_round_off() -> None:
    """ReLU with the note's readout: masks flip on the way, and the trajectories stay the same."""
    model, y = hidden(nn.ReLU(), bias=False), normal(INPUTS, seed=8).abs()
    arguments = {"steps": 10_000, "lr": 0.3, "readout": "mean", "every": 100, "unseen": normal(3, 4, seed=9)}
    free = simulate(model, X, y, keep_fields=True, **arguments)
    weights = weight_training(model, X, y, **arguments)
    assert free.sizes == {"step": 101, "input": 9, "output": 1, "unit": WIDTH}
    masks = free["v_1"].values > 0
    assert int((masks[1:] != masks[:-1]).sum()) > 10
    assert float(free["loss"][-1]) < 0.05 * float(free["loss"][0])
    np.testing.assert_allclose(free["outputs"], weights["outputs"], rtol=0, atol=1e-13)
    np.testing.assert_allclose(free["loss"], weights["loss"], rtol=0, atol=1e-13)
    by_hand = train_by_hand(model, y, 10_000, 0.3, torch.full((WIDTH,), 1 / WIDTH, dtype=torch.float64))
    np.testing.assert_allclose(free["v_1"].values[-1, :INPUTS], by_hand, rtol=0, atol=1e-12)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("activation", [nn.ReLU(), nn.Tanh(), nn.GELU()], ids=["relu", "tanh", "gelu"])
@pytest.mark.parametrize("kind", ["fixed", "trained"])
def test_any_activation_biases_and_readouts(activation: nn.Module, kind: str) -> None:
    if kind == "fixed":
        model, readout = hidden(activation), normal(2, WIDTH, seed=3) / WIDTH**0.5
    else:
        model, readout = with_head(activation), None
    y = normal(INPUTS, 2, seed=8)
    arguments = {
        "steps": 300,
        "lr": 0.02,
        "readout": readout,
        "every": 50,
        "loss_scale": 0.5,
        "unseen": normal(2, 4, seed=9),
    }
    free, weights = simulate(model, X, y, **arguments), weight_training(model, X, y, **arguments)
    assert float(free["loss"][-1]) < 0.5 * float(free["loss"][0])
    np.testing.assert_allclose(free["outputs"], weights["outputs"], rtol=0, atol=1e-13)


def test_frozen_parts_stay() -> None:
    model, y = with_head(nn.ReLU()), normal(INPUTS, 2, seed=8)
    model[0].weight.requires_grad_(False)
    model[2].bias.requires_grad_(False)
    arguments = {"steps": 100, "lr": 0.02}
    free, weights = simulate(model, X, y, **arguments), weight_training(model, X, y, **arguments)
    np.testing.assert_allclose(free["outputs"], weights["outputs"], rtol=0, atol=1e-13)


def revived_network() -> tuple[nn.Module, Tensor, Tensor]:
    """Two ReLU units: the first is off for input 1, which has no target to correct, and is switched on by input 0."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU()).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, -0.2], [0.1, 1.0]]))
    x = torch.tensor([[1.0, 0.0], [0.2, 1.05]], dtype=torch.float64)
    return model, x, torch.tensor([6.0, 0.525], dtype=torch.float64)


def test_activations_alone_follow_until_a_dead_unit_revives() -> None:
    model, x, y = revived_network()
    arguments = {"steps": 60, "lr": 0.05, "readout": "mean", "keep_fields": True}
    by_v, by_u = (
        simulate(model, x, y, evolve=field, **arguments) for field in ("preactivation", "activation")
    )
    off = by_v["v_1"].values <= 0
    revived = np.flatnonzero((off[:-1] & ~off[1:]).any(axis=(1, 2)))
    assert len(revived) > 0
    first = revived[0] + 1
    np.testing.assert_allclose(by_u["outputs"][:first], by_v["outputs"][:first], rtol=0, atol=1e-13)
    np.testing.assert_allclose(by_u["u_1"][:first], np.maximum(by_v["v_1"], 0)[:first], rtol=0, atol=1e-13)
    assert float(np.abs(by_u["outputs"] - by_v["outputs"]).max()) > 1e-3


def test_activations_that_only_die_are_followed_for_ever() -> None:
    """Positive inputs with target zero: no preactivation ever rises."""
    model, x, y = hidden(nn.ReLU(), bias=False), X.abs(), torch.zeros(INPUTS)
    arguments = {"steps": 400, "lr": 2.0, "readout": "mean", "every": 20, "keep_fields": True}
    by_v, by_u = (
        simulate(model, x, y, evolve=field, **arguments) for field in ("preactivation", "activation")
    )
    off = by_v["v_1"].values <= 0
    assert (off[1:] & ~off[:-1]).any()
    assert not (off[:-1] & ~off[1:]).any()
    np.testing.assert_allclose(by_u["outputs"], by_v["outputs"], rtol=0, atol=1e-13)


def test_steps_by_hand() -> None:
    model, y = hidden(nn.Tanh()), normal(INPUTS, seed=8)
    network = weight_free(model, X, y, readout="mean")
    losses = [network.step(0.1, 1 / INPUTS) for _ in range(5)]
    whole = simulate(model, X, y, 5, 0.1, readout="mean")
    np.testing.assert_allclose(losses, whole["loss"].values[:5], rtol=1e-13)
    np.testing.assert_allclose(network.outputs, whole["outputs"].values[5], rtol=1e-13)
    assert network.steps == 5
    assert "exact for all time" in repr(network)


def test_one_step_is_the_kernel_while_masks_hold() -> None:
    """r(t+1) = (1 - (2 lr / M) J) r (60)."""
    model, y = hidden(nn.ReLU(), bias=False), normal(INPUTS, seed=8)
    found = simulate(model, X, y, 1, 1e-3, readout="mean")
    a = (model[0](X) > 0).double()
    J = ((X @ X.T) * (a @ a.T) / WIDTH**2).numpy()
    r = found["outputs"].values[..., 0] - y.numpy()
    np.testing.assert_allclose(r[1], (np.eye(INPUTS) - 2e-3 / INPUTS * J) @ r[0], atol=1e-15)


def test_what_does_not_close_is_refused() -> None:
    y = normal(INPUTS, seed=8)
    with pytest.raises(NotSupportedError, match="3 layers"):
        simulate(note_network(3, width=4), X, y, 5, 0.1, readout="mean")
    with pytest.raises(NotSupportedError, match=r"second nn\.Linear"):
        simulate(note_network(2, width=4), X, y, 5, 0.1, readout="mean")
    with pytest.raises(NotSupportedError, match="ReLU"):
        simulate(hidden(nn.Tanh()), X, y, 5, 0.1, readout="mean", evolve="activation")


def test_bad_requests() -> None:
    model, y = hidden(nn.ReLU()), normal(INPUTS, seed=8)
    with pytest.raises(InputError, match="unknown field to evolve"):
        simulate(model, X, y, 5, 0.1, readout="mean", evolve="weights")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="steps is 0"):
        simulate(model, X, y, 0, 0.1, readout="mean")
    with pytest.raises(InputError, match="every is 0"):
        weight_training(model, X, y, 5, 0.1, readout="mean", every=0)
