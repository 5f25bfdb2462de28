"""Python of the user's own in backward passes, and slopes that are infinite: on short and on long graphs alike."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from subprocess import run
from threading import Thread
from typing import Any

import pytest
import torch
from brute_force import jacobian, kernel_of
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from foretrain.empirical.tangent_kernel import ntk

SHORT, LONG = 5, 60  # layers; a small kernel of a long graph takes all its rows at once


def deep(layers: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(4, 4), nn.Tanh()))).double()


class Ending(nn.Module):
    """A deep network with something behind it."""

    def __init__(self, layers: int, end: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.body, self.end = deep(layers), end

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.body(x))


def exact(model: nn.Module, x: Tensor) -> Tensor:
    rows = jacobian(model.parameters(), [lambda n=n: model(x[n : n + 1]) for n in range(len(x))])
    return kernel_of(rows, rows)


def relative(kernel: Any, expected: Tensor) -> float:
    return float((torch.as_tensor(kernel[:]) - expected).abs().max() / expected.abs().max())


class Refusing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        if torch._C._functorch.is_batchedtensor(gradient):
            raise TypeError("one gradient at a time")
        return gradient * 3


def hooked(x: Tensor) -> Tensor:
    y = x * 1
    if y.requires_grad:
        y.register_hook(lambda gradient: gradient.data.clamp(-0.5, 0.5))
    return y


def recomputed(x: Tensor) -> Tensor:
    return checkpoint(lambda value: (value * 2).sin(), x, use_reentrant=False)  # type: ignore[no-any-return]


X = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("layers", [SHORT, LONG])
@pytest.mark.parametrize("end", [Refusing.apply, hooked, recomputed])
def test_python_in_the_backward_pass_is_called_for_one_gradient_at_a_time(
    layers: int, end: Callable[[Tensor], Tensor]
) -> None:
    model = Ending(layers, end)
    expected = exact(model, X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert relative(ntk(model, X), expected) < 1e-12


def test_hooks_that_read_memory_do_not_end_the_process() -> None:
    """Torch dies of reading ``gradient.data`` in a pass for several gradients: the call has a process of its own."""
    code = (
        "import torch, foretrain as ft\n"
        "layers = [p for _ in range(60) for p in (torch.nn.Linear(4, 4), torch.nn.Tanh())]\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.body = torch.nn.Sequential(*layers)\n"
        "    def forward(self, x):\n"
        "        y = self.body(x) * 1\n"
        "        y.register_hook(lambda g: g.data * 2)\n"
        "        return y\n"
        "print(ft.ntk(Net(), torch.randn(3, 4)).shape)\n"
    )
    done = run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "(3, 3, 4, 4)" in done.stdout


@pytest.mark.parametrize("layers", [SHORT, LONG])
def test_hooks_on_parameters_do_not_count(layers: int) -> None:
    """They change what a training does with gradients, not the function that the kernel belongs to."""
    model = deep(layers)
    expected = exact(model, X)
    model[0].weight.register_hook(lambda gradient: gradient * 5)
    assert relative(ntk(model, X), expected) < 1e-12


@pytest.mark.parametrize("layers", [SHORT, LONG])
def test_an_infinite_slope_of_one_sample_leaves_the_others_alone(layers: int) -> None:
    class Rooted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.side = deep(layers), nn.Linear(4, 2, bias=False).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x) + self.side(x).pow(2).sum(1, keepdim=True).sqrt()

    x = X.clone()
    x[1] = 0  # where the root has no slope
    kernel = torch.as_tensor(ntk(Rooted(), x, outputs="trace")[:])
    assert kernel[0].isfinite().tolist() == kernel[2].isfinite().tolist() == [True, False, True]
    assert not kernel[1].isfinite().any()


def test_two_threads_leave_the_filters_of_warnings_as_they_were() -> None:
    before, model = list(warnings.filters), deep(LONG)
    threads = [Thread(target=lambda: [ntk(model, X) for _ in range(20)]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert warnings.filters == before


def test_anomaly_mode_finds_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with torch.autograd.set_detect_anomaly(True), warnings.catch_warnings():
        warnings.filterwarnings("error", message="Error detected")
        assert relative(ntk(deep(LONG), X), exact(deep(LONG), X)) < 1e-12
    assert "Error detected" not in capfd.readouterr().err
