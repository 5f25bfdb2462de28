"""Calls of layers are recorded alike from modules and from functions, with what they depend on and their slopes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from foretrain.empirical.autograd_graph.chain import record_run
from foretrain.empirical.autograd_graph.layers import (
    WeightCall,
    WeightCalls,
    dependence,
    is_elementwise,
    linear_calls,
    slopes,
)
from foretrain.support.errors import NotSupportedError


class Skip(nn.Module):
    """A connection leads around the second layer, and around the last one if ``last``."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        first = torch.tanh(self.a(x))
        second = torch.tanh(self.b(first))
        return self.c(second) + first if self.last else self.c(second + first)


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2), nn.ReLU(inplace=True)).double()


def weight_calls(model: nn.Module, x: Tensor, cut: bool = True) -> list[WeightCall]:
    with WeightCalls(dict(model.named_parameters()), cut) as watch:
        model(x)
    return watch.calls


def test_modules_and_functions_show_the_same_calls() -> None:
    model, x = mlp(), torch.randn(5, 3, dtype=torch.float64)
    with linear_calls(model) as calls:
        model(x)
    found = weight_calls(model, x)
    assert [call.name for call in calls] == ["0", "2"]
    assert [(call.weight, call.bias) for call in found] == [("0.weight", "0.bias"), ("2.weight", "2.bias")]
    for one, other in zip(calls, found, strict=True):
        assert torch.equal(one.value, other.value)
        assert torch.equal(one.input, other.signal)


def test_hooks_are_gone_after_the_run() -> None:
    model = mlp()
    with pytest.raises(RuntimeError), linear_calls(model):
        model(torch.randn(5, 7, dtype=torch.float64))
    assert not any(module._forward_hooks for module in model.modules())


def test_a_cut_graph_shows_direct_dependence_only() -> None:
    model, x = Skip(last=False).double(), torch.randn(5, 3, dtype=torch.float64)
    cut, whole = (weight_calls(model, x, cut) for cut in (True, False))
    values = [call.value for call in cut]
    assert [dependence(call.signal, values) for call in cut] == [[], [0], [0, 1]]
    # Without cuts everything below is reached.
    assert dependence(whole[2].signal, [whole[0].value]) == [0]
    assert dependence(x, values) == []
    assert dependence(cut[2].signal, [x, values[1]]) == [1]


@pytest.mark.parametrize(
    ("between", "expected"),
    [(torch.sin, True), (torch.relu, True), (lambda z: z.softmax(-1), False), (lambda z: z.flip(0), False)],
)
def test_slopes_are_told_from_mixing(between, expected) -> None:  # type: ignore[no-untyped-def]
    z = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    end = between(z).reshape(6, 2, 2)
    slope, other = slopes(end, [z, torch.ones(1)])
    assert slope is not None
    assert other is None
    assert is_elementwise(z, end, slope) == expected
    if between is torch.sin:
        assert torch.equal(slope, torch.cos(z).detach())


def test_a_chain_may_end_before_the_model_does() -> None:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2), nn.Softmax(1)).double()
    run = record_run(body, torch.randn(5, 3, dtype=torch.float64))
    assert not run.goes_around()
    chain = run.chain(to_the_end=False)
    assert torch.equal(chain.u(2), chain.v(2))
    assert torch.equal(chain.a(2), torch.ones(5, 2, dtype=torch.float64))
    with pytest.raises(NotSupportedError, match="mixed"):
        run.chain()


def test_ways_around_the_last_layer_are_seen() -> None:
    x = torch.randn(5, 3, dtype=torch.float64)
    assert record_run(Skip(last=True).double(), x).goes_around()
    assert not record_run(Skip(last=False).double(), x).goes_around()
