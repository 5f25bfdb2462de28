"""Images with channels side by side, and several outputs in one pass through a long graph: the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import pytest
import torch
from brute_force import jacobian, kernel_of
from torch import Tensor, nn

from foretrain.empirical.autograd_graph import tape
from foretrain.empirical.autograd_graph.tape import Tape
from foretrain.empirical.tangent_kernel import capture, engine, ntk
from foretrain.empirical.tangent_kernel.kernel import prepare
from foretrain.support import threads
from foretrain.support.errors import NotSupportedError


def exact(model: nn.Module, x: Tensor) -> Tensor:
    double = deepcopy(model).double()
    rows = [lambda n=n: double(x[n : n + 1].double()) for n in range(len(x))]
    found = jacobian(double.parameters(), rows)
    return kernel_of(found, found)


def relative(found: object, expected: Tensor) -> float:
    difference = torch.as_tensor(found[:] if not isinstance(found, Tensor) else found) - expected
    return float(difference.abs().max() / expected.abs().max())


class Flattening(nn.Module):
    """Sees its image as a vector without a copy, which needs the usual order in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.linear = nn.Conv2d(2, 4, 3, padding=1), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(torch.relu(self.convolution(x)).view(len(x), -1))


class Strided(Flattening):
    """Reads memory as it lies, without asking for its order."""

    def forward(self, x: Tensor) -> Tensor:
        image = torch.relu(self.convolution(x))
        return self.linear(image.as_strided((len(x), 64), (64, 1)))


def images(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.LazyLinear(3))


MODELS = {
    "strides": lambda: images(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 5, 3, stride=2, dilation=2, padding=2)
    ),
    "unequal": lambda: images(nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(0, 1)), nn.Tanh()),
    "groups": lambda: images(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=2)),
    "norms": lambda: images(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 3, 1)),
    "view": Flattening,
    "as_strided": Strided,
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("outputs", ["full", "trace"])
def test_images_in_single_precision(name: str, outputs: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    x = torch.randn(5, 2, 4, 4) if isinstance(model, Flattening) else torch.randn(5, 2, 9, 8)
    model(x)
    expected = exact(model, x)
    if outputs == "trace":
        expected = expected.diagonal(dim1=2, dim2=3).sum(-1)
    assert relative(ntk(model, x, outputs=outputs), expected) < 2e-6
    assert relative(ntk(model, x, outputs=outputs, batch_size=2), expected) < 2e-6


def test_channels_lie_side_by_side_only_where_the_model_takes_it() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 2, 9, 8)
    for name, taken in {"strides": True, "norms": True, "groups": False}.items():
        model = MODELS[name]()
        model(x)
        assert prepare(model, x)[0].model.channels_last == taken
    square = torch.randn(4, 2, 4, 4)
    assert not prepare(Flattening(), square)[0].model.channels_last
    assert not prepare(Strided(), square)[0].model.channels_last


class Cell(nn.Module):
    """A recurrent network of many small nodes, with a function of its own in every step."""

    def __init__(self, steps: int, step: object = torch.tanh) -> None:
        super().__init__()
        self.steps, self.step = steps, step
        self.inner, self.readout = nn.Linear(3, 3), nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        state = x
        for _ in range(self.steps):
            state = 0.5 * state + self.step(self.inner(state)) * torch.sigmoid(state)
        return self.readout(state)


class Once(torch.autograd.Function):
    """A tanh that takes one gradient at a time."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        result = torch.tanh(x)
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        (result,) = ctx.saved_tensors
        float(gradient.detach().sum())  # a number of its own for every gradient: not for many at once
        return gradient * (1 - result**2)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each attempt to take several outputs in one pass succeeded."""
    made: list[bool] = []
    original = Tape._in_one_pass

    def counted(self: Tape, *arguments: object) -> object:
        found = original(self, *arguments)
        made.append(found is not None)
        return found

    monkeypatch.setattr(Tape, "_in_one_pass", counted)
    monkeypatch.setattr(engine, "SMALL_NODE", 0)  # all nodes are read
    return made


def test_several_outputs_in_one_pass(passes: list[bool]) -> None:
    torch.manual_seed(0)
    model, x = Cell(40).double(), torch.randn(5, 3, dtype=torch.float64)
    expected = exact(model, x)
    assert relative(ntk(model, x), expected) < 1e-12
    assert relative(ntk(model, x, outputs=[2, 0]), expected[:, :, [2, 0]][..., [2, 0]]) < 1e-12
    assert passes == [True, True]


def test_short_graphs_go_output_by_output(passes: list[bool]) -> None:
    ntk(Cell(2), torch.randn(5, 3))
    assert passes == []


def test_a_function_that_takes_one_gradient_at_a_time(passes: list[bool]) -> None:
    torch.manual_seed(0)
    model, x = Cell(40, Once.apply).double(), torch.randn(5, 3, dtype=torch.float64)
    assert relative(ntk(model, x), exact(model, x)) < 1e-12
    assert passes == []  # what a user wrote is never tried with several


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
def test_long_recurrent_modules(kind: type[nn.RNNBase], passes: list[bool]) -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = kind(2, 3, num_layers=2, batch_first=True)
            self.readout = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.readout(self.cell(x)[0][:, -1])

    torch.manual_seed(0)
    model, x = Last().double(), torch.randn(4, 25, 2, dtype=torch.float64)
    assert relative(ntk(model, x), exact(model, x)) < 1e-12
    assert passes == [True]


class Mixed(nn.Module):
    """A long graph: a weight used over and over, rows looked up, a parameter unused, one for some outputs."""

    def __init__(self, function: object = torch.tanh) -> None:
        super().__init__()
        self.table, self.cell = nn.Embedding(7, 3), Cell(40, function)
        self.unused, self.last = nn.Parameter(torch.randn(2)), nn.Parameter(torch.randn(()))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.cell(self.table(x[:, 0]) + self.table(x[:, 1]))
        return torch.cat([found, self.last * found[:, :1].square()], 1)


@pytest.mark.parametrize("function", [torch.tanh, Once.apply])
@pytest.mark.parametrize("batch_size", ["auto", 2, 1])
def test_all_rows_of_a_tiny_kernel_in_one_pass(function: object, batch_size: int | str) -> None:
    torch.manual_seed(0)
    model, x = Mixed(function).double(), torch.randint(7, (5, 2))
    expected = exact_of_rows(model, x)
    found = ntk(model, x, batch_size=batch_size)
    together = any(route.note == "all samples and outputs in one pass" for route in found.routes.values())
    assert together == (function is torch.tanh)  # what a user wrote takes one gradient at a time
    assert found.routes["unused"].way == "unused"
    assert relative(found, expected) < 1e-12
    assert (
        relative(ntk(model, x, outputs=[3, 0], batch_size=batch_size), expected[..., [3, 0], :][..., [3, 0]])
        < 1e-12
    )
    trace = ntk(model, x, outputs="trace", batch_size=batch_size)
    assert relative(trace, torch.einsum("nmaa->nm", expected)) < 1e-12
    assert relative(ntk(model, x, x[1:4], batch_size=batch_size), expected[:, 1:4]) < 1e-12
    assert relative(ntk(model, x[:1], batch_size=batch_size), expected[:1, :1]) < 1e-12


def test_a_tiny_kernel_by_parameter_and_with_rates() -> None:
    torch.manual_seed(0)
    model, x = Mixed().double(), torch.randint(7, (4, 2))
    parts = ntk(model, x, by="parameter")
    assert relative(parts.total(), exact_of_rows(model, x)) < 1e-12
    assert float(parts["unused"].abs().max()) == 0
    rates = {"table.*": 3.0, "cell.*": 0.5, "unused": 1.0, "last": 1.0}
    weighed = 3 * parts["table.weight"] + parts["last"]
    weighed += 0.5 * sum(parts[name] for name in parts.labels or () if name.startswith("cell"))
    assert relative(ntk(model, x, rates=rates), weighed) < 1e-12


def test_a_tiny_kernel_agrees_with_the_graph_read_node_by_node(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, x = Mixed().double(), torch.randint(7, (6, 2))
    at_once = ntk(model, x)
    monkeypatch.setattr(engine, "SMALL_NODE", 0)
    by_nodes = ntk(model, x)
    assert at_once.routes != by_nodes.routes
    assert relative(at_once, by_nodes.values) < 1e-12


@pytest.mark.parametrize("samples", [2, 200])
def test_samples_that_depend_on_each_other_are_refused_on_long_graphs(samples: int) -> None:
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = Cell(40)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.cell(x)
            return found - found.mean(0)

    with pytest.raises(NotSupportedError, match="other samples"):
        ntk(Centred(), torch.randn(samples, 3))


class Branching(nn.Module):
    """Outputs that reach different layers, one of them none."""

    def __init__(self, function: object = torch.tanh) -> None:
        super().__init__()
        self.first, self.norm, self.function = nn.Linear(3, 20), nn.LayerNorm(20), function
        self.left, self.right, self.shift = nn.Linear(20, 2), nn.Linear(3, 2), nn.Parameter(torch.randn(1))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.function(self.first(x)))
        return torch.cat([self.right(x.mean(1)), self.left(hidden).mean(1), self.shift.expand(len(x), 1)], 1)


@pytest.mark.parametrize("cores", [1, 2, 3])
@pytest.mark.parametrize("function", [torch.tanh, Once.apply])
def test_passes_of_several_outputs_beside_each_other(
    function: object, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[int] = []

    def counted(work: Callable[[Any], Any], given: Sequence[Any]) -> list[Any]:
        parts.append(len(given))
        return threads.over_cores(work, given)

    monkeypatch.setattr(capture, "over_cores", counted)
    monkeypatch.setattr(tape, "SMALL_NODE", 0)
    monkeypatch.setattr(threads, "free_cores", lambda: cores)
    torch.manual_seed(0)
    model, x = Branching(function).double(), torch.randn(6, 4, 3, dtype=torch.float64)
    expected, before = exact(model, x), torch.get_num_threads()
    torch.set_num_threads(cores)
    try:
        found = ntk(model, x)
        assert torch.get_num_threads() == cores
        several = ntk(model, x, x[2:], batch_size=3, outputs=[4, 2, 0])
    finally:
        torch.set_num_threads(before)
    assert set(parts) == ({cores} if cores > 1 and function is torch.tanh else set())
    assert relative(found, expected) < 1e-12
    assert relative(several, expected[:, 2:, [4, 2, 0]][..., [4, 2, 0]]) < 1e-12


def exact_of_rows(model: nn.Module, x: Tensor) -> Tensor:
    """That of rows of a table, which stay whole numbers."""
    found = jacobian(model.parameters(), [lambda n=n: model(x[n : n + 1]) for n in range(len(x))])
    return kernel_of(found, found)
