"""Images with channels side by side, and several outputs in one pass through a long graph: the same numbers."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from brute_force import jacobian, kernel_of
from torch import Tensor, nn

from foretrain.empirical.autograd_graph.tape import Tape
from foretrain.empirical.tangent_kernel import ntk
from foretrain.empirical.tangent_kernel.kernel import prepare


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
    assert passes == [False]


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
