"""MLPs with given C_W, tasks for them, and training with the advice of one check."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from foretrain.doctor.examine import Training, make_setup
from foretrain.doctor.finding import Examination, Finding
from foretrain.doctor.setup import Case, Setup
from foretrain.doctor.stability import with_chosen_rate


class Sine(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x)


class Erf(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.erf(x)


def network(
    activation: Callable[[], nn.Module],
    depth: int,
    width: int,
    C_W: float | None,
    *,
    outputs: int = 1,
    features: int = 10,
    bias: bool = True,
    seed: int = 0,
) -> nn.Sequential:
    """As torch makes it for C_W None, else with normal weights and zero biases."""
    torch.manual_seed(seed)
    parts: list[nn.Module] = []
    for fan_in, fan_out in pairwise([features, *[width] * (depth - 1), outputs]):
        layer = nn.Linear(fan_in, fan_out, bias=bias)
        if C_W is not None:
            nn.init.normal_(layer.weight, std=math.sqrt(C_W / fan_in))
            if bias:
                nn.init.zeros_(layer.bias)
        parts += [layer, activation()]
    return nn.Sequential(*parts[:-1])


def task(labels: bool = False, samples: int = 192, features: int = 10) -> tuple[Tensor, Tensor]:
    """A smooth target of normal inputs, or its thirds as classes."""
    source = torch.Generator().manual_seed(1)
    x = torch.randn(samples, features, generator=source)
    t = torch.sin(x[:, 0]) + 0.5 * x[:, 1] * x[:, 2] + 0.5 * x[:, 3]
    if labels:
        return x, torch.bucketize(t, torch.quantile(t, torch.tensor([1 / 3, 2 / 3])))
    return x, ((t - t.mean()) / t.std())[:, None]


def setup_of(model: nn.Module, x: Tensor, y: Tensor, rate: float | None = 0.1) -> Setup:
    return make_setup(model, x, y, Training(loss=None, optimizer=rate, batch_size=None, seed=0))


def only(found: Examination) -> Finding:
    (finding,) = found.findings
    return finding


def final_loss(setup: Setup, steps: int) -> float:
    """After plain training of a copy; infinite where it diverges."""
    model = copy.deepcopy(setup.model)
    optimizer = setup.recipe.build(model)
    for _ in range(steps):
        optimizer.zero_grad()
        setup.task.loss(model(setup.task.x), setup.task.y).backward()
        optimizer.step()
    value = setup.task.value(model)
    return value if math.isfinite(value) else math.inf


def with_and_without(
    check: Callable[[Case], Examination],
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    steps: int = 100,
    rate: float | None = None,
) -> tuple[float, float]:
    """The loss as given and as treated, by descent at one rate, or each at the rate that is recommended for it."""
    given = setup_of(model, x, y, rate)
    treatment = check(Case(given)).findings[0].treatment
    assert treatment is not None
    treated = treatment.apply(given)
    return final_loss(given, steps), final_loss(with_chosen_rate(treated) if rate is None else treated, steps)


def run_code(finding: Finding, model: nn.Module, x: Tensor) -> nn.Module:
    """The advice as a user would run it."""
    private = copy.deepcopy(model)
    names: dict[str, Any] = {"model": private, "x": x}
    exec(f"import torch\n{finding.code}", names)
    return private


def same_weights(first: nn.Module, second: nn.Module) -> bool:
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return all(torch.allclose(one, other, rtol=1e-5) for one, other in pairs)
