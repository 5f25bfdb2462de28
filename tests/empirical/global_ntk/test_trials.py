"""Trials of different lengths, and models in continuous time."""

from __future__ import annotations

import pytest
import torch
from dense_dynamics import assert_close, normal
from graph_models import BATCH, INPUTS, TIMES, UNITS
from loop_models import LOOPS
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import foretrain as ft
from foretrain.empirical.global_ntk import GlobalNTK
from foretrain.support.errors import ForetrainError

X = normal(BATCH, TIMES, INPUTS)
LENGTHS = [2, 4, 1]
KEPT = (torch.arange(TIMES) < torch.tensor(LENGTHS)[:, None]).repeat_interleave(UNITS, 1).flatten()


def layer() -> nn.GRU:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.GRU(INPUTS, UNITS, batch_first=True).double()


def check(kernel: GlobalNTK, whole: GlobalNTK) -> None:
    """The kernel is the block of the kept states; P K P*, P^-1 and the sites agree with it."""
    found, both = kernel.dense(), KEPT[:, None] & KEPT
    assert_close(found, torch.where(both, whole.dense(), 0))
    propagator = kernel.P.dense()
    assert_close(propagator @ kernel.K.dense() @ propagator.T, found)
    assert_close(torch.linalg.inv(propagator), kernel.P_inverse.dense())
    assert_close(kernel.core.dense(), found)
    assert_close(kernel.J.dense() @ kernel.J.dense().T, found)
    assert float(kernel.trace()) == pytest.approx(float(found.trace()))
    assert not kernel.states[0, 2:].any()  # type: ignore[index,union-attr]
    assert f"{int((~KEPT).sum())} states after the ends" in kernel.structure


def test_states_of_packed_sequences_are_each_trials_own() -> None:
    """A trial alone, without any padding, has the same block."""
    model = layer()
    packed = pack_padded_sequence(X, LENGTHS, batch_first=True, enforce_sorted=False)
    kernel = ft.global_ntk(model, packed)
    sorted_already = pack_padded_sequence(X[[1, 0, 2]], [4, 2, 1], batch_first=True)
    again = ft.global_ntk(model, sorted_already)
    assert float(again.trace()) == pytest.approx(float(kernel.dense().trace()))
    check(kernel, ft.global_ntk(model, X))
    alone = ft.global_ntk(model, X[:1, :2]).dense()
    size = 2 * UNITS
    assert_close(kernel.dense()[:size, :size], alone)


def test_packing_inside_a_model() -> None:
    class Packs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer()

        def forward(self, x: Tensor) -> Tensor:
            packed = pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False)
            return self.layer(packed)[1][0]

    model = Packs()
    check(ft.global_ntk(model, X), ft.global_ntk(model.layer, X))


@pytest.mark.parametrize("name", ["tanh by hand, stack", "leaky and low-rank"])
def test_lengths_of_trials_in_a_loop(name: str) -> None:
    model = LOOPS[name].model()
    check(ft.global_ntk(model, X, lengths=LENGTHS), ft.global_ntk(model, X))


def test_lengths_that_do_not_fit() -> None:
    with pytest.raises(ForetrainError, match="from 1 to 4 for each of 3"):
        ft.global_ntk(layer(), X, lengths=[1, 2])
    backwards = nn.GRU(INPUTS, UNITS, batch_first=True, bidirectional=True).double()
    with pytest.raises(ForetrainError, match="after the end of their trial"):
        ft.global_ntk(backwards, X, lengths=LENGTHS)
    packed = pack_padded_sequence(X, LENGTHS, batch_first=True, enforce_sorted=False)
    with pytest.raises(ForetrainError, match="packed sequence"):
        ft.global_ntk(nn.Linear(INPUTS, 2).double(), packed)


class Rate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.W, self.U = nn.Linear(UNITS, UNITS), nn.Linear(INPUTS, UNITS, bias=False)

    def forward(self, h: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(self.W(h) + self.U(x)) - h


@pytest.mark.parametrize("method", ["euler", "rk4"])
def test_a_right_hand_side_and_a_step(method: str) -> None:
    """F = D_t h - phi: its derivatives by the states and by a parameter are dense Jacobians of the constraint."""
    torch.manual_seed(0)
    rate, dt, start = Rate().double(), 0.3, nn.Parameter(normal(UNITS))
    kernel = ft.global_ntk(rate, X, step=dt, method=method, start=start)  # type: ignore[arg-type]

    def constraint(h: Tensor, weight: Tensor) -> Tensor:
        values = {**dict(rate.named_parameters()), "W.weight": weight}
        f = lambda h: torch.func.functional_call(rate, values, (h, X))  # noqa: E731
        before = torch.cat([start.expand(BATCH, 1, UNITS), h[:, :-1]], 1)
        phi = f(before)
        if method == "rk4":
            second = f(before + dt / 2 * phi)
            third = f(before + dt / 2 * second)
            phi = (phi + 2 * second + 2 * third + f(before + dt * third)) / 6
        return ((h - before) / dt - phi).flatten()

    states = kernel.states
    assert isinstance(states, Tensor)
    by_state, by_weight = torch.func.jacrev(constraint, (0, 1))(states, rate.W.weight)
    assert float(constraint(states, rate.W.weight).abs().max()) < 1e-12
    assert_close(kernel.P_inverse.dense(), by_state.flatten(1).detach())
    assert_close(kernel.P.dense(), torch.linalg.inv(by_state.flatten(1).detach()))
    pulled = kernel.dynamics.local_pull(torch.eye(kernel.size, dtype=torch.float64))
    assert_close(pulled["W.weight"].flatten(1), -by_weight.flatten(1).detach())
    propagator = kernel.P.dense()
    assert_close(propagator @ kernel.K.dense() @ propagator.T, kernel.dense())
    assert "start" in pulled
    assert "D_t h = f" in kernel.structure


def test_right_hand_sides_that_lack_something() -> None:
    with pytest.raises(ForetrainError, match="start="):
        ft.global_ntk(Rate().double(), X, step=0.1)
    with pytest.raises(ForetrainError, match="positive"):
        ft.global_ntk(Rate().double(), X, step=-1.0, start=torch.zeros(UNITS))
    with pytest.raises(ForetrainError, match="rk5"):
        ft.global_ntk(Rate().double(), X, step=0.1, method="rk5", start=torch.zeros(UNITS))  # type: ignore[arg-type]
