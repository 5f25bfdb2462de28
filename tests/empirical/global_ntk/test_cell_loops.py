"""Loops over a cell that are read as recurrent layers, and those that are not, against their graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrain as ft
from foretrain.empirical.global_ntk import GlobalNTK
from foretrain.empirical.global_ntk.graph.dynamics import GraphDynamics
from foretrain.empirical.global_ntk.recurrent.dynamics import RecurrentDynamics
from foretrain.support.errors import ForetrainError

CELLS: dict[str, Callable[[], nn.Module]] = {
    "gru": lambda: nn.GRUCell(2, 4),
    "gru without biases": lambda: nn.GRUCell(2, 4, bias=False),
    "tanh": lambda: nn.RNNCell(2, 4),
    "relu": lambda: nn.RNNCell(2, 4, nonlinearity="relu"),
}
Step = Callable[[Tensor], Tensor]


class Loop(nn.Module):
    """h = cell(x, h), with something in between, and a readout."""

    def __init__(
        self,
        cell: nn.Module,
        *,
        before: Step | None = None,
        between: Step | None = None,
        start: Tensor | None = None,
        encoder: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.cell, self.readout, self.encoder = cell, nn.Linear(4, 1), encoder
        self._before, self._between, self._start = before, between, start

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.encoder is None else self.encoder(x)
        h, found = self._start, []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t] if self._before is None else self._before(x[:, t]), h)
            found.append(self.readout(h))
            if self._between is not None:
                h = self._between(h)
        return torch.stack(found, 1)


@pytest.fixture
def x() -> Tensor:
    return torch.randn(3, 5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def loop(make: Callable[[], nn.Module] = CELLS["gru"], **options: Any) -> Loop:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Loop(make(), **options).double()


@pytest.mark.parametrize("start", [None, torch.full((3, 4), 0.3, dtype=torch.float64)])
@pytest.mark.parametrize("name", CELLS)
def test_a_loop_is_the_layer_that_its_graph_says(name: str, start: Tensor | None, x: Tensor) -> None:
    model = loop(CELLS[name], start=start)
    found, expected = ft.global_ntk(model, x, "cell"), GlobalNTK(GraphDynamics(model, x, "cell"))
    assert isinstance(found.dynamics, RecurrentDynamics)
    assert found.domain == expected.domain
    for part in (lambda kernel: kernel, lambda kernel: kernel.P, lambda kernel: kernel.K):
        torch.testing.assert_close(part(found).dense(), part(expected).dense(), rtol=1e-10, atol=1e-12)
    assert set(found.terms) <= set(expected.terms) | {"cell.weight_hh", "cell.weight_ih"}
    torch.testing.assert_close(found.core.dense(), expected.dense(), rtol=1e-10, atol=1e-12)


def test_some_parameters_of_a_cell(x: Tensor) -> None:
    model = loop()
    found = ft.global_ntk(model, x, "cell", parameters="*weight_hh")
    assert isinstance(found.dynamics, RecurrentDynamics)
    expected = GlobalNTK(GraphDynamics(model, x, "cell", parameters="*weight_hh")).dense()
    torch.testing.assert_close(found.dense(), expected, rtol=1e-10, atol=1e-12)


class Leaky(nn.GRUCell):
    """Another step than its parent's."""

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return 0.5 * super().forward(input, hx)


OTHERS: dict[str, Callable[[], Loop]] = {
    "states that are scaled": lambda: loop(between=lambda h: 0.5 * h),
    "states that are scaled in place": lambda: loop(between=lambda h: h.mul_(0.5)),
    "states that are cut": lambda: loop(between=lambda h: h.detach()),
    "a trained encoder": lambda: loop(encoder=nn.Linear(2, 2)),
    "a trained start": lambda: loop(start=nn.Parameter(torch.zeros(3, 4, dtype=torch.float64))),
    "another step": lambda: loop(lambda: Leaky(2, 4)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_a_layer_is_left_to_the_graph(name: str, x: Tensor) -> None:
    model = OTHERS[name]()
    found = ft.global_ntk(model, x, "cell")
    assert isinstance(found.dynamics, GraphDynamics)
    torch.testing.assert_close(found.dense(), GlobalNTK(GraphDynamics(model, x, "cell")).dense())


def test_inputs_that_are_random_are_refused(x: Tensor) -> None:
    with pytest.raises(ForetrainError, match="random"):
        ft.global_ntk(loop(before=lambda x: x + torch.randn_like(x)), x, "cell")


def test_one_step_has_no_axis_of_time(x: Tensor) -> None:
    assert ft.global_ntk(loop(), x[:, :1], "cell").domain.names == ("batch", "unit")
