"""Calls of torch functions are seen with the user's line, and can be replaced in a copy of the model."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from foretrain.doctor.calls import Rule, intercept, last_operation, pass_on, watch


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x).detach())
        return torch.relu(self.second(h)).view(-1, 2)


def test_calls_are_seen_in_their_order_with_the_line_of_the_user() -> None:
    model, x = Model(), torch.ones(1, 3)
    result, calls = watch(model, x, {"relu", "detach"})
    assert torch.equal(result, model(x))
    assert [call.name for call in calls] == ["detach", "relu", "relu"]
    assert calls[0].line.startswith("test_calls.py:")
    assert calls[0].line.endswith("h = torch.relu(self.first(x).detach())")
    assert torch.equal(calls[-1].result, result)


def test_a_rule_replaces_one_call_or_all_of_its_names() -> None:
    model, x = Model(), torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    last, every = copy.deepcopy(model), copy.deepcopy(model)
    intercept(last, Rule(frozenset({"relu"}), pass_on, number=1))
    intercept(every, Rule(frozenset({"relu"}), pass_on))
    torch.testing.assert_close(last(x), model.second(torch.relu(model.first(x))))
    torch.testing.assert_close(every(x), model.second(model.first(x)))
    torch.testing.assert_close(copy.deepcopy(every)(x), every(x))
    assert (model(x) >= 0).all(), "the given model is left alone"


def test_without_a_detach_gradients_reach_what_lies_before_it() -> None:
    model = Model()
    free = copy.deepcopy(model)
    intercept(free, Rule(frozenset({"detach"}), pass_on))
    x = torch.ones(2, 3)
    model(x).sum().backward()
    free(x).sum().backward()
    assert model.first.weight.grad is None
    assert free.first.weight.grad is not None


def test_the_rule_ends_where_the_model_fails() -> None:
    model = Model()
    intercept(model, Rule(frozenset({"relu"}), pass_on))
    with pytest.raises(RuntimeError):
        model(torch.ones(1, 7))
    assert torch.equal(torch.relu(torch.tensor([-1.0])), torch.tensor([0.0]))


def test_the_last_operation_is_looked_for_behind_views() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    assert last_operation(torch.sigmoid(x).reshape(3, 2).T) == "sigmoid"
    assert last_operation(x * 2) == "mul"
    assert last_operation(torch.ones(2)) == ""
