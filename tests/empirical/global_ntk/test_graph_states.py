"""How states are named, which axes they have, and which models are refused with a sentence that helps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from dense_dynamics import assert_close, check_blocks, normal
from graph_models import CASES, INPUTS, UNITS, Loop, Perceptron, TanhStep
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from foretrain.empirical.global_ntk.graph.dynamics import GraphDynamics
from foretrain.operators import Space, SumSpace
from foretrain.support.errors import InputError, NotSupportedError

X = normal(4, INPUTS)


def _perceptron() -> nn.Module:
    return Perceptron().double()


def _cells() -> nn.Module:
    return Loop(nn.LSTMCell(INPUTS, UNITS), cell=True).double()


def test_axes_of_loops_rows_tokens_and_images() -> None:
    assert CASES["tanh loop"].dynamics().space == Space.of(batch=3, time=4, unit=3)
    assert CASES["images"].dynamics().space == SumSpace(
        {
            "0": Space.of(batch=3, channel=2, row=3, column=3),
            "3": Space.of(batch=3, channel=2, row=2, column=2),
            "5": Space.of(batch=3, unit=2),
        }
    )
    tokens = CASES["attention"].dynamics().space
    assert isinstance(tokens, SumSpace)
    assert tokens["inside"] == Space.of(batch=2, time=4, unit=5)


@pytest.mark.parametrize(
    "states",
    [
        {"hidden": "step", "cell": ("step", 1)},
        {"hidden": "step.hidden", "cell": "step.cell"},
        {"hidden": "step.0", "cell": ("step", "cell")},
    ],
)
def test_both_states_of_an_lstm_cell(states: Any) -> None:
    dynamics = GraphDynamics(_cells(), normal(2, 3, INPUTS), states)
    each = Space.of(batch=2, time=3, unit=UNITS)
    assert dynamics.space == SumSpace({"hidden": each, "cell": each})


def test_entries_name_themselves() -> None:
    space = GraphDynamics(_cells(), normal(2, 3, INPUTS), ("step", ("step", 1), "")).space
    assert isinstance(space, SumSpace)
    assert space.names == ("step", "step.1", "output")
    alone = GraphDynamics(_cells(), normal(2, 3, INPUTS), ("step", 1)).space
    assert alone == Space.of(batch=2, time=3, unit=UNITS)


def test_samples_are_found_where_sizes_agree_by_chance() -> None:
    """Times, samples and units are all 3: a pass with one more sample tells which axis is which."""
    x = normal(3, 3, INPUTS)
    model = Loop(TanhStep(), times_first=True).double()
    dynamics = GraphDynamics(model, x, "step", batch_axis=1)
    expected = GraphDynamics(Loop(model.step), x.transpose(0, 1), "step")
    assert_close(dynamics.values, expected.values)


def test_a_state_without_samples_has_numbered_axes() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scales, self.out = nn.Linear(5, INPUTS), nn.Linear(INPUTS, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(x * self.scales(torch.eye(5, dtype=x.dtype)).sum(0))

    dynamics = GraphDynamics(Shared().double(), X, ("scales", "out"))
    assert isinstance(dynamics.space, SumSpace)
    assert dynamics.space["scales"] == Space.of(axis_0=5, axis_1=INPUTS)
    check_blocks(dynamics)
    units = torch.eye(dynamics.space.size, dtype=torch.float64)
    total = sum(site.product(units) for site in dynamics.sites)
    assert isinstance(total, Tensor)
    assert_close(total, dynamics.product(units))


def test_results_in_dicts_and_lists() -> None:
    class Named(nn.Module):
        def __init__(self, kind: str) -> None:
            super().__init__()
            self.inside, self.kind = nn.Linear(INPUTS, 3), kind

        def forward(self, x: Tensor) -> Any:
            h = self.inside(x)
            return {"first": h, "second": torch.tanh(h)} if self.kind == "dict" else [h, torch.tanh(h)]

    for kind, entry in (("dict", "second"), ("list", 1)):
        outer = nn.Sequential(Named(kind)).double()
        values = GraphDynamics(outer, X, [("0", entry)]).values
        assert_close(values, torch.tanh(outer[0].inside(X)).flatten().detach())


@pytest.mark.parametrize(
    ("states", "words"),
    [
        ("frist", "did you mean 'first'"),
        ((), "names no module"),
        (("first", "first"), "named twice"),
        ("first.1", "returns one tensor"),
        ([3], "paths"),
    ],
)
def test_names_that_do_not_fit(states: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        GraphDynamics(_perceptron(), X, states)


def test_entries_that_do_not_fit() -> None:
    x = normal(2, 3, INPUTS)
    with pytest.raises(InputError, match="no entry 5"):
        GraphDynamics(_cells(), x, ("step", 5))
    attention = nn.MultiheadAttention(4, 2, batch_first=True).double()

    class Attend(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = attention

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x, x, need_weights=False)[0]

    with pytest.raises(InputError, match="is a NoneType"):
        GraphDynamics(Attend(), normal(2, 3, 4), ("attention", 1))
    with pytest.raises(InputError, match="never called"):
        GraphDynamics(Attend(), normal(2, 3, 4), "attention.out_proj")


class _Odd(nn.Module):
    """One layer, and something done with it that has no kernel."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.layer, self.out, self.function = nn.Linear(INPUTS, INPUTS), nn.Identity(), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def _without_gradients(model: Any, x: Tensor) -> Any:
    with torch.no_grad():
        return model.layer(x)


class _Opaque(torch.autograd.Function):
    """A right first derivative that cannot be differentiated."""

    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        (x,) = ctx.saved_tensors
        return torch.from_numpy((3 * x**2 * gradient).detach().numpy())


@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        (_without_gradients, NotSupportedError, "without gradients"),
        (lambda m, x: m.layer(x) + m.layer(x[:1]), InputError, "in another"),
        (lambda m, x: m.layer(x + torch.randn_like(x)), NotSupportedError, "different outputs"),
        (lambda m, x: m.out(m.layer(x).argmax(1)), NotSupportedError, "no derivative"),
        (lambda m, x: m.layer(x / 0), NotSupportedError, "not finite"),
        (
            lambda m, x: m.out(checkpoint(m.layer, x.requires_grad_(), use_reentrant=True)),
            NotSupportedError,
            "without gradients",
        ),
    ],
)
def test_states_that_are_refused(function: Any, error: type[Exception], words: str) -> None:
    states = ("layer", "out") if "out" in getattr(function.__code__, "co_names", ()) else ("layer",)
    with pytest.raises(error, match=words):
        GraphDynamics(_Odd(function).double(), X.clone(), states)


def test_dropout_and_batch_statistics_are_refused() -> None:
    for layer in (nn.Dropout(), nn.BatchNorm1d(3)):
        with pytest.raises(NotSupportedError, match=r"statistics of the batch|at random"):
            GraphDynamics(nn.Sequential(nn.Linear(INPUTS, 3), layer).double(), X, "0")


def test_states_that_no_parameter_moves_are_refused() -> None:
    with pytest.raises(InputError, match="no state depends"):
        GraphDynamics(_perceptron(), X, "first", parameters="last")


def test_derivatives_that_cannot_be_transposed_are_refused() -> None:
    dynamics = GraphDynamics(
        _Odd(lambda m, x: m.out(_Opaque.apply(m.layer(x)))).double(), X, ("layer", "out")
    )
    vectors = normal(1, dynamics.space.size)
    dynamics.propagate_adjoint(vectors)
    with pytest.raises(NotSupportedError, match="not differentiable"):
        dynamics.propagate(vectors)


def test_a_training_step_makes_the_operators_stale() -> None:
    model = _perceptron()
    dynamics = GraphDynamics(model, X, ("first", "last"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    with pytest.raises(NotSupportedError, match="again after a step"):
        dynamics.propagate_adjoint(normal(2, dynamics.space.size))


def test_a_graph_without_the_reentrant_checkpoint_is_right() -> None:
    plain = _Odd(lambda m, x: m.out(torch.tanh(m.layer(x)))).double()
    dynamics = GraphDynamics(plain, X, ("layer", "out"))
    plain.function = lambda m, x: m.out(checkpoint(lambda y: torch.tanh(m.layer(y)), x, use_reentrant=False))
    again = GraphDynamics(plain, X, ("layer", "out"))
    units = torch.eye(dynamics.space.size, dtype=torch.float64)
    assert_close(again.product(units), dynamics.product(units))
    assert_close(again.propagate(units), dynamics.propagate(units))


def test_fused_recurrent_layers_and_fast_attention() -> None:
    """Their own kernels know no second derivatives; the states of a whole sequence are one state."""
    torch.manual_seed(0)
    recurrent = nn.Sequential(nn.LSTM(INPUTS, UNITS, batch_first=True))
    check_blocks(GraphDynamics(recurrent, normal(2, 5, INPUTS).float(), "0"), 1e-4)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2).eval().double()
    dynamics = GraphDynamics(encoder, normal(2, 3, 4), ("layers.0", "layers.1.linear1", ""))
    check_blocks(dynamics)
    assert len(dynamics.without_site) == 4


def test_one_number_for_each_sample_and_a_parameter_that_is_a_number() -> None:
    class Readout(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.vector = nn.Linear(INPUTS, 3), nn.Parameter(torch.ones(3))
            self.gain = nn.Parameter(torch.tensor(0.7))

        def forward(self, x: Tensor) -> Tensor:
            return self.gain * torch.tanh(self.layer(x)) @ self.vector

    model = Readout().double()
    dynamics = GraphDynamics(model, X, ("layer", ""))
    assert isinstance(dynamics.space, SumSpace)
    assert dynamics.space["output"] == Space.of(batch=4)
    check_blocks(dynamics)
    units = torch.eye(dynamics.space.size, dtype=torch.float64)
    hidden = torch.tanh(model.layer(X)).detach()
    assert_close(dynamics.pull(units)["gain"][12:], hidden.sum(1))
    assert dynamics.without_site == ("gain",)
    vector = next(site for site in dynamics.sites if site.parameters == ("vector",))
    assert_close(vector.inputs, 0.7 * hidden, 1e-7)  # 0.7 was rounded to single precision


def test_an_operation_without_second_derivatives_is_named() -> None:
    model = nn.Sequential(nn.EmbeddingBag(5, 3), nn.Tanh()).double()
    dynamics = GraphDynamics(model, torch.tensor([[0, 1], [2, 4]]), "1")
    with pytest.raises(NotSupportedError, match="_embedding_bag_backward"):
        dynamics.product(normal(1, 6))
