"""Planted faults are found, and the advice, carried out automatically, trains better; healthy networks pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from planted_networks import chain, default_mlp, digits, mlp, regression
from torch import nn

import foretrain as ft
from foretrain.doctor import Severity
from foretrain.training.tasks.memory_pro import MemoryPro, Recurrent

CRITICAL, WARNING = Severity.CRITICAL, Severity.WARNING


@dataclass(frozen=True)
class Fault:
    """What is planted, which checks may name it and how severely, and how much better treatment must train."""

    make: Callable[[], dict[str, Any]]
    named_by: tuple[str, ...]
    severity: Severity
    steps: int = 100
    improvement: float = 1.2


def on_digits(model: nn.Module, **options: Any) -> dict[str, Any]:
    x, y = digits()
    return {"model": model, "x": x, "y": y} | options


def on_regression(model: nn.Module, **options: Any) -> dict[str, Any]:
    x, y = regression()
    return {"model": model, "x": x, "y": y} | options


def small_layers(seed: int = 0) -> nn.Module:
    model = mlp(chain(10, 40, 7, 1), nn.Tanh, 1.0, seed=seed)
    with torch.no_grad():
        for place in (2, 4, 6, 8, 10):
            model[place].weight.mul_(0.1)
    return model


def unequal_inputs(scales: tuple[float, ...]) -> dict[str, Any]:
    x, y = regression()
    return {
        "model": default_mlp(chain(10, 40, 2, 1), nn.ReLU),
        "x": x * torch.tensor(scales).repeat(10)[:10],
        "y": y,
    }


def remembering_gru(units: int, periods: int, seed: int, lr: float) -> dict[str, Any]:
    task = MemoryPro(stimulus=periods, memory=periods, response=periods)
    angles = task.angles(16)
    model = Recurrent(3, units, 3, "gru", seed=seed)
    x, y = task.inputs(angles), task.targets(angles)
    return {
        "model": model,
        "x": x,
        "y": y,
        "loss": "mse",
        "optimizer": torch.optim.SGD(model.parameters(), lr=lr),
    }


INIT = ("initialisation", "gains")
FAULTS = {  # the quickest first: it is in the quick suite
    "a rate above the edge, squares": Fault(
        lambda: on_regression(default_mlp(chain(10, 40, 2, 1), nn.Tanh), optimizer=10.0),
        ("learning_rate",),
        CRITICAL,
    ),
    "30 tanh layers, weights x 0.5": Fault(
        lambda: on_digits(mlp(chain(64, 32, 29, 10), nn.Tanh, 0.25)), INIT, CRITICAL
    ),
    "30 tanh layers, weights x 2": Fault(
        lambda: on_digits(mlp(chain(64, 32, 29, 10), nn.Tanh, 4.0)), INIT, WARNING, 100, 1.2
    ),
    "20 ReLU layers without the factor 2": Fault(
        lambda: on_regression(mlp(chain(10, 40, 19, 1), nn.ReLU, 1.0, seed=1)), INIT, WARNING
    ),
    "5 of 8 layers at 0.1": Fault(lambda: on_regression(small_layers()), ("plateau",), WARNING),
    "a rate above the edge": Fault(
        lambda: on_digits(default_mlp(chain(64, 40, 2, 10), nn.ReLU), optimizer=30.0),
        ("learning_rate",),
        CRITICAL,
    ),
    "inputs on different scales": Fault(lambda: unequal_inputs((1.0, 1000.0, 0.01)), ("inputs",), WARNING),
    "dead ReLU units": Fault(
        lambda: on_regression(mlp(chain(10, 40, 2, 1), nn.ReLU, 2.0, bias=-6.0)), ("dead_units",), WARNING
    ),
    "a GRU asked in the response": Fault(
        lambda: remembering_gru(24, 6, 0, 0.1), ("states", "modes", "conditioning"), WARNING, 100, 1.1
    ),
    "a tiny rate": Fault(
        lambda: on_digits(default_mlp(chain(64, 40, 2, 10), nn.ReLU), optimizer=1e-5),
        ("learning_rate",),
        WARNING,
    ),
}
VARIANTS = {
    "50 tanh layers, weights x 0.7": Fault(
        lambda: on_regression(mlp(chain(10, 48, 49, 1), nn.Tanh, 0.49, seed=3)), INIT, WARNING
    ),
    "25 GELU layers, torch's weights": Fault(
        lambda: on_digits(default_mlp(chain(64, 50, 24, 10), nn.GELU, seed=2)), INIT, WARNING
    ),
    "24 ReLU layers, weights x 3": Fault(
        lambda: on_regression(mlp(chain(10, 60, 23, 1), nn.ReLU, 18.0, seed=4)), INIT, WARNING
    ),
    "sigmoid layers": Fault(lambda: on_digits(default_mlp(chain(64, 64, 8, 10), nn.Sigmoid)), INIT, WARNING),
    "Adam with a rate of 1": Fault(lambda: adam_on_digits(1.0), ("learning_rate",), WARNING),
    "pixels from 0 to 255 beside fractions": Fault(
        lambda: unequal_inputs((255.0, 0.1)), ("inputs",), WARNING
    ),
}


def adam_on_digits(lr: float) -> dict[str, Any]:
    model = default_mlp(chain(64, 40, 3, 10), nn.ReLU)
    return on_digits(model, optimizer=torch.optim.Adam(model.parameters(), lr=lr))


def check_fault(fault: Fault) -> None:
    found = ft.doctor(**fault.make())
    worst = {
        name: min(finding.severity for finding in one.findings)
        for name, one in found.examinations.items()
        if one.findings
    }
    named = [name for name in fault.named_by if worst.get(name, Severity.GOOD) <= fault.severity]
    assert named, found
    assert found.plan().steps
    trained = found.verify(fault.steps)
    assert trained.improvement > fault.improvement, trained
    assert trained.treated.final < 0.9 * trained.treated.losses[0], trained


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_and_mended(name: str) -> None:
    check_fault(FAULTS[name])


@pytest.mark.statistical
@pytest.mark.parametrize("name", VARIANTS)
def test_other_sizes_and_functions_are_found_and_mended_too(name: str) -> None:
    check_fault(VARIANTS[name])


def critical_tanh() -> dict[str, Any]:
    return on_digits(mlp(chain(64, 64, 29, 10), nn.Tanh, 1.0))


HEALTHY = {
    "relu, regression": lambda: on_regression(default_mlp(chain(10, 80, 1, 1), nn.ReLU)),
    "relu on digits": lambda: on_digits(default_mlp(chain(64, 50, 2, 10), nn.ReLU)),
    "tanh on digits": lambda: on_digits(default_mlp(chain(64, 40, 3, 10), nn.Tanh)),
    "gelu on digits, Adam": lambda: adam_on_digits(1e-3),
    "gelu, regression, 4 layers": lambda: on_regression(default_mlp(chain(10, 64, 3, 1), nn.GELU)),
    "critical relu": lambda: on_digits(mlp(chain(64, 64, 4, 10), nn.ReLU, 2.0)),
    "30 tanh layers, critical": critical_tanh,
}


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_network_gets_a_clean_bill(name: str) -> None:
    found = ft.doctor(**HEALTHY[name]())
    assert found.healthy, found
