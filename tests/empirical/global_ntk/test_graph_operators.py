"""States by named modules: every operator against the equations of the model, inverted and differentiated densely."""

from __future__ import annotations

import pytest
import torch
from dense_dynamics import assert_close, check_blocks, check_operators, normal
from graph_models import CASES
from loop_models import LOOPS
from torch import nn

from foretrain.empirical.global_ntk.graph.dynamics import GraphDynamics


@pytest.mark.slow(after=6)
@pytest.mark.parametrize("name", [*CASES, *LOOPS])
def test_all_operators_are_those_of_the_equations(name: str) -> None:
    case = (CASES | LOOPS)[name]
    dynamics = case.dynamics()
    check_operators(dynamics, case.dense(dynamics))


@pytest.mark.parametrize("name", ["GRU cell", "LSTM cell", "images", "attention"])
def test_blocks_are_like_single_vectors(name: str) -> None:
    check_blocks(CASES[name].dynamics())


@pytest.mark.parametrize("name", ["tanh loop", "LSTM cell", "images", "attention"])
def test_single_precision(name: str) -> None:
    case = CASES[name]
    dynamics = case.dynamics(torch.float32)
    assert dynamics.dtype == torch.float32
    check_blocks(dynamics, 1e-4)
    expected = case.dense(dynamics)
    units = torch.eye(dynamics.space.size)
    assert_close(dynamics.product(units), expected.jacobian @ expected.jacobian.T, 1e-5)


class _NoBatchingRule(torch.autograd.Function):
    """Squares, by an operation that refuses batches of cotangents."""

    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        if torch._C._functorch.is_batchedtensor(gradient):
            raise RuntimeError("one at a time")
        return 2 * gradient * ctx.saved_tensors[0]


class _Square(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 3), nn.Linear(3, 2)

    def forward(self, x):  # type: ignore[no-untyped-def]
        return self.last(_NoBatchingRule.apply(self.first(x)))


def test_vectors_go_one_by_one_where_a_node_takes_no_blocks() -> None:
    model = _Square().double()
    x = normal(3, 2)
    dynamics = GraphDynamics(model, x, ("first", "last"))
    check_blocks(dynamics)
    units = torch.eye(dynamics.space.size, dtype=torch.float64)
    slope = torch.diag_embed(2 * model.first(x))  # d last / d first of every sample is W diag(2 h)
    expected = torch.block_diag(*(model.last.weight @ slope))
    assert_close(dynamics.propagate(units).T[9:, :9], expected.detach())


def test_the_model_and_the_random_numbers_stay_as_they_were() -> None:
    case = CASES["tanh loop"]
    model = case.model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.random.get_rng_state()
    dynamics = GraphDynamics(model, case.x, "step")
    dynamics.product(torch.ones(1, dynamics.space.size, dtype=torch.float64))
    assert torch.equal(random, torch.random.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
