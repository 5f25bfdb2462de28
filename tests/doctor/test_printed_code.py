"""The code that is printed below a finding runs as it stands, and does what the treatment does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from planted_networks import chain, default_mlp, digits, mlp, regression
from torch import nn

import foretrain as ft
from foretrain.training.tasks import MemoryPro, Recurrent


def descending(model: nn.Module, x: Any, y: Any, rate: float = 0.05, **options: Any) -> dict[str, Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    return {"model": model, "x": x, "y": y, "optimizer": optimizer, **options}


def uneven() -> dict[str, Any]:
    x, y = regression()
    scales = torch.tensor([1.0, 1000.0, 0.01]).repeat(10)[:10]
    return descending(default_mlp(chain(10, 40, 2, 1), nn.ReLU), x * scales, y)


def shifted_targets() -> dict[str, Any]:
    x, y = regression()
    return descending(default_mlp(chain(10, 40, 2, 1), nn.Tanh), x, y + 1000.0, 0.01)


def vanishing() -> dict[str, Any]:
    return descending(mlp(chain(64, 32, 29, 10), nn.Tanh, 0.25), *digits())


def large_outputs() -> dict[str, Any]:
    model = default_mlp(chain(10, 40, 2, 1), nn.ReLU)
    with torch.no_grad():
        model[-1].weight.mul_(3000)
    return descending(model, *regression(), 1e-6)


def faint_convolutions() -> dict[str, Any]:
    torch.manual_seed(0)
    parts = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU()]
    for _ in range(8):
        parts += [nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(*parts, nn.Flatten(), nn.Linear(512, 10))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.3)
    x, y = digits(100)
    return descending(model, x.reshape(-1, 1, 8, 8), y)


def dead() -> dict[str, Any]:
    return descending(mlp(chain(10, 40, 2, 1), nn.ReLU, 2.0, bias=-6.0), *regression())


def saturated() -> dict[str, Any]:
    return descending(mlp(chain(10, 40, 2, 1), nn.Tanh, 3000.0), *regression(), 1e-3)


def small_layers() -> dict[str, Any]:
    model = mlp(chain(10, 40, 7, 1), nn.Tanh, 1.0)
    with torch.no_grad():
        for place in (2, 4, 6, 8, 10):
            model[place].weight.mul_(0.1)
    return descending(model, *regression())


def starved() -> dict[str, Any]:
    model = default_mlp(chain(10, 40, 2, 1), nn.Tanh)
    groups = [
        {"params": model[0].parameters(), "lr": 1e-8},
        {"params": [*model[2].parameters(), *model[4].parameters()]},
    ]
    x, y = regression()
    return {"model": model, "x": x, "y": y, "optimizer": torch.optim.SGD(groups, lr=0.05)}


def forgetful() -> dict[str, Any]:
    task = MemoryPro(stimulus=10, memory=10, response=10)
    angles = task.angles(16)
    return descending(
        Recurrent(3, 24, 3, "gru", seed=0), task.inputs(angles), task.targets(angles), 0.1, loss="mse"
    )


def slow_modes() -> dict[str, Any]:
    return descending(default_mlp(chain(64, 50, 6, 10), nn.GELU, seed=2), *digits(), 0.1)


def too_fast() -> dict[str, Any]:
    return descending(default_mlp(chain(64, 40, 2, 10), nn.ReLU), *digits(), 30.0)


FAULTS: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "inputs": ("inputs", uneven),
    "targets": ("inputs", shifted_targets),
    "initialisation": ("initialisation", vanishing),
    "large outputs": ("initialisation", large_outputs),
    "gains": ("gains", faint_convolutions),
    "dead units": ("dead_units", dead),
    "saturated units": ("dead_units", saturated),
    "plateau": ("plateau", small_layers),
    "shares": ("layer_shares", starved),
    "states": ("states", forgetful),
    "modes": ("modes", slow_modes),
    "rate": ("learning_rate", too_fast),
}


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", FAULTS)
def test_the_code_does_what_the_treatment_does(name: str) -> None:
    check, make = FAULTS[name]
    given = make()
    found = ft.doctor(**given, checks=[check])
    advised = [finding for _, finding in found.complaints() if finding.code]
    assert advised, found
    for finding in advised:
        assert finding.treatment is not None
        wanted = finding.treatment.apply(found.setup)
        model, optimizer = copy.deepcopy((given["model"], given["optimizer"]))
        names: dict[str, Any] = {"model": model, "optimizer": optimizer, "x": given["x"], "y": given["y"]}
        exec(f"import torch\n{finding.code}", names)
        assert torch.allclose(names["x"], wanted.task.x, rtol=1e-4, atol=1e-5)
        treated = dict(wanted.model.named_parameters())
        for path, parameter in names["model"].named_parameters():
            assert torch.allclose(parameter, treated[path], rtol=1e-4, atol=1e-5), path
        assert type(names["optimizer"]) is wanted.recipe.kind
        paths = {id(parameter): path for path, parameter in names["model"].named_parameters()}
        rates = {
            paths[id(p)]: group["lr"] for group in names["optimizer"].param_groups for p in group["params"]
        }
        assert rates == pytest.approx(wanted.recipe.rates, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["initialisation", "plateau", "dead units"])
def test_the_code_is_short_enough_to_be_read(name: str) -> None:
    check, make = FAULTS[name]
    found = ft.doctor(**make(), checks=[check])
    code = next(finding.code for _, finding in found.complaints() if finding.code)
    assert len(code.splitlines()) <= 24
    assert max(map(len, code.splitlines())) <= 110
