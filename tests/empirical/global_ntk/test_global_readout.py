"""Readouts are found by what they compute, and targets are put where the states are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import foretrain as ft
from foretrain.empirical.global_ntk.readout import Readout, find_readout, placed_target
from foretrain.operators import Space
from foretrain.support.errors import InputError


class Reading(nn.Module):
    """A GRU and two linear layers, of which one is used at all steps or at the last."""

    def __init__(self, last: bool = False, bend: bool = False) -> None:
        super().__init__()
        self.rnn = nn.GRU(2, 5, batch_first=True)
        self.other = nn.Linear(5, 3)
        self.head = nn.Linear(5, 3)
        self.last, self.bend = last, bend

    def forward(self, x: Tensor) -> Tensor:
        states, final = self.rnn(x)
        found = self.head(final[-1] if self.last else states)
        return torch.tanh(found) if self.bend else found


def drawn(**form: bool) -> tuple[nn.Module, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Reading(**form).double(), torch.randn(4, 6, 2, dtype=torch.float64)


@pytest.mark.parametrize("last", [False, True])
def test_the_layer_that_reads_the_states(last: bool) -> None:
    model, x = drawn(last=last)
    kernel = ft.global_ntk(model, x)
    readout = find_readout(model, x, kernel)
    assert readout is not None
    assert (readout.name, readout.last) == ("head", last)
    assert "'head'" in repr(readout)
    target = torch.randn(4, 6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    outputs = model(x)
    loss = 0.5 * (outputs - (target[:, -1] if last else target)).square().sum()
    counted = {name: value for name, value in model.named_parameters() if name.startswith("rnn")}
    gradients = torch.autograd.grad(loss, list(counted.values()))
    found = kernel.loss_decrease(readout.error(kernel.states, target))
    for name, gradient in zip(counted, gradients):
        assert found.by_parameter[name] == pytest.approx(float(gradient.square().sum()), rel=1e-10)


def test_no_layer_and_two_layers() -> None:
    model, x = drawn(bend=True)
    assert find_readout(model, x, ft.global_ntk(model, x)) is None
    twice, x = drawn()
    twice.other.load_state_dict(twice.head.state_dict())  # type: ignore[union-attr, arg-type]
    assert find_readout(twice, x, ft.global_ntk(twice, x)) is None


def test_states_that_are_the_outputs() -> None:
    module = nn.RNN(2, 3, batch_first=True).double()
    x = torch.randn(2, 4, 2, dtype=torch.float64)
    readout = find_readout(module, x, ft.global_ntk(module, x))
    assert readout is not None
    assert (readout.name, readout.last) == ("", False)
    assert torch.equal(readout.weight, torch.eye(3, dtype=torch.float64))
    assert "themselves" in repr(readout)


def test_a_direct_sum_has_none() -> None:
    module = nn.LSTM(2, 3, batch_first=True).double()
    x = torch.randn(2, 4, 2, dtype=torch.float64)
    assert find_readout(module, x, ft.global_ntk(module, x, ("hidden", "cell"))) is None


PLACES = Space.of(batch=2, time=3)


def test_targets_of_steps_and_of_samples() -> None:
    random = np.random.default_rng(0)
    steps, samples = random.normal(size=(2, 3, 4)), random.normal(size=(2, 4))
    assert np.array_equal(placed_target(steps, PLACES, None), steps)
    placed = placed_target(samples, PLACES, None)
    assert placed.shape == (2, 3, 4)
    assert np.array_equal(placed[:, -1], samples)
    assert not placed[:, :-1].any()
    scalar = random.normal(size=(2, 3))
    assert np.array_equal(placed_target(scalar, PLACES, None)[..., 0], scalar)
    three = Readout("head", torch.zeros(3, 5), None, last=False)
    assert placed_target(scalar, PLACES, three).shape == (
        2,
        3,
        3,
    )  # three outputs of a sample, not three steps
    assert placed_target(np.array([[1, 2, 3], [4, 5, 6]]), PLACES, None).dtype == torch.float64


@pytest.mark.parametrize(
    ("shape", "words"), [((2,), "places"), ((3, 3, 4), "places"), ((2, 3, 4), "4 outputs")]
)
def test_targets_that_do_not_fit(shape: tuple[int, ...], words: str) -> None:
    readout = Readout("head", torch.zeros(2, 5), None, last=False)
    with pytest.raises(InputError, match=words):
        placed_target(np.ones(shape), PLACES, readout)
