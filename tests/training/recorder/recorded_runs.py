"""Small trainings for the tests of the recorder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from foretrain.training.recorder import Recorder

MSE = nn.functional.mse_loss


def data(samples: int = 12) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(3)
    x = torch.randn(samples, 4, generator=source)
    return x, torch.randn(samples, 2, generator=source)


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def sgd(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), **({"lr": 0.05} | options))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    """Plain steps on all data; the loss after each."""
    x, y = data()
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        MSE(model(x), y).backward()
        optimizer.step()
        with torch.no_grad():
            found.append(float(MSE(model(x), y)))
    return found


def recorder(folder: Path, model: nn.Module, observables: Any = "loss", **options: Any) -> Recorder:
    """Without a limit, so that nothing depends on the speed of the machine."""
    return Recorder(folder, model, observables, **({"batch": data(), "loss": MSE, "budget": None} | options))


def weight_sum(model: nn.Module, batch: Any) -> float:
    return float(sum(parameter.detach().double().sum() for parameter in model.parameters()))
