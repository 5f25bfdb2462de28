"""The plateau of a network in steps, from its own gradient flow on its own data."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from foretrain.compare.plateau.layers import leaf_calls
from foretrain.compare.plateau.levels import FLAT
from foretrain.compare.plateau.rates import Descent
from foretrain.compare.task import Task
from foretrain.support.answers import Answer, Result, fields_answer, labelled
from foretrain.support.memory import require_memory
from foretrain.theory.architecture import FloatArray
from foretrain.training.gradient_flow import gradient_flow

_GRADIENTS = 20_000  # of all data, at most, for one flow
_POWER_STEPS = 25
_STATES = 30  # copies of all weights, at most, while the flow makes a step


@dataclass(frozen=True, eq=False, repr=False)
class Forecast(Result):
    """The loss along the flow, in steps of descent.

    ``begins`` and ``ends``: when the loss first comes within a tenth of the plateau's level, and when it falls a
    tenth below it; ``escape``: when it passes the threshold (inf: not within what was followed).
    ``stability`` is the learning rate times the largest curvature at the end, to be below ``stability_limit``.
    """

    steps: FloatArray
    losses: FloatArray
    level: float
    threshold: float
    begins: float
    ends: float
    escape: float
    stability: float
    stability_limit: float
    status: str
    evaluations: int

    @property
    def followed(self) -> float:
        """How many steps the flow was followed."""
        return float(self.steps[-1])

    @property
    def length(self) -> float:
        """Steps on the plateau."""
        return self.ends - self.begins if math.isfinite(self.begins) else 0.0

    @property
    def has_plateau(self) -> bool:
        """Whether the loss stays near its level for more than half the time in which it then falls to the threshold.

        An exponential decay through the level to half of it stays for a third of that time at most.
        """
        if not math.isfinite(self.begins):
            return False
        if not math.isfinite(self.ends):
            return True
        fall = min(self.escape, self.followed) - self.ends
        return self.length > 0.5 * fall

    @property
    def stable(self) -> bool:
        """Whether descent with this learning rate can follow the flow."""
        return self.stability < self.stability_limit

    def loss_at(self, steps: FloatArray) -> FloatArray:
        """The loss of the flow at other steps (between recorded ones along straight lines)."""
        return np.interp(steps, self.steps, self.losses)

    def answer(self) -> Answer:
        """How the loss goes, and its curve."""
        waits = f"waits near {self.level:.4g} for {step_text(self.length)} steps"
        statement = (
            f"The loss goes from {self.losses[0]:.4g} to {self.losses[-1]:.4g} in {step_text(self.followed)} steps "
            f"({self.status}): {waits if self.has_plateau else 'no plateau'}."
        )
        return fields_answer(
            self, statement, data=lambda: labelled({"loss": ("step", self.losses)}, step=self.steps)
        )


def forecast(
    model: nn.Module, task: Task, descent: Descent, level: float, threshold: float, max_steps: float
) -> Forecast:
    """Integrate θ̇ = -ρ ∇ loss, with ρ such that time counts steps, until the loss passes the threshold."""
    require_flow_memory(model, task)
    flow = gradient_flow(
        model,
        task.x,
        task.y,
        task.loss,
        max_time=max_steps,
        stop=threshold,
        rates=descent.flow_rates,
        max_evaluations=_GRADIENTS,
    )
    steps, losses, slopes = (np.asarray(flow.data[name].values) for name in ("time", "loss", "loss_rate"))
    steps, losses = _refined(steps, losses, slopes)
    reached = flow.status == "reached"
    return Forecast(
        steps,
        losses,
        level,
        threshold,
        begins=first_below(steps, losses, (1 + FLAT) * level),
        ends=first_below(steps, losses, (1 - FLAT) * level),
        escape=float(steps[-1]) if reached else math.inf,
        stability=stability(flow.model, task, descent),
        stability_limit=descent.largest_stable,
        status=flow.status,
        evaluations=flow.evaluations,
    )


def _refined(
    steps: FloatArray, losses: FloatArray, slopes: FloatArray, parts: int = 8
) -> tuple[FloatArray, FloatArray]:
    """Points inside the long steps of the flow, on Hermite's cubic through values and slopes."""
    from scipy.interpolate import CubicHermiteSpline

    if len(steps) < 2:
        return steps, losses
    inner = steps[:-1, None] + np.diff(steps)[:, None] * np.arange(parts) / parts
    fine = np.append(inner.ravel(), steps[-1])
    values = np.asarray(CubicHermiteSpline(steps, losses, slopes)(fine))
    values[::parts] = losses
    return fine, values


def first_below(steps: FloatArray, losses: FloatArray, level: float) -> float:
    """When a loss first is at most the level, along straight lines between points; inf if never."""
    under = np.flatnonzero(losses <= level)
    if not len(under):
        return math.inf
    after = int(under[0])
    if after == 0:
        return float(steps[0])
    fraction = (losses[after - 1] - level) / (losses[after - 1] - losses[after])
    return float(steps[after - 1] + fraction * (steps[after] - steps[after - 1]))


def step_text(step: float) -> str:
    """A number of steps as it is told: whole, but with two digits where it is small."""
    return f"{step:,.0f}" if step >= 10 else f"{step:.2g}"


def stability(model: nn.Module, task: Task, descent: Descent) -> float:
    """Largest eigenvalue of √η H √η, by the power method with differences of gradients."""
    trained = {name: p for name, p in model.named_parameters() if name in descent.rates}
    roots = [descent.rates[name] ** 0.5 for name in trained]
    small = 1e-3 if next(iter(trained.values())).dtype == torch.float32 else 1e-5
    width = small * max(_length([p.detach() for p in trained.values()]), 1e-6)

    def product(direction: list[Tensor]) -> list[Tensor]:
        moves = [root * part for root, part in zip(roots, direction)]
        reach = width / _length(moves)
        ahead, behind = (_gradients(model, task, trained, moves, sign * reach) for sign in (1, -1))
        return [root * (a - b) / (2 * reach) for root, a, b in zip(roots, ahead, behind)]

    # A fixed direction makes the answer reproducible.
    source = torch.Generator().manual_seed(0)
    start = [torch.randn(p.shape, generator=source).to(p.device, p.dtype) for p in trained.values()]
    found, size = _dominant(product, start, 0.0)
    if found >= 0.99 * size:
        return found
    # Near a saddle an eigenvalue of largest size may be negative; moved by its size, the largest one dominates.
    return _dominant(product, start, size)[0] - size


def _dominant(
    product: Callable[[list[Tensor]], list[Tensor]], start: list[Tensor], shift: float
) -> tuple[float, float]:
    """Rayleigh quotient and length of the last product of the power method, for an operator moved by ``shift``."""
    direction, value = start, 0.0
    for _ in range(_POWER_STEPS):
        norm = _length(direction)
        if not 0 < norm < math.inf:
            break
        unit = [part / norm for part in direction]
        direction = [moved + shift * part for moved, part in zip(product(unit), unit)]
        value = sum(float((part * moved).double().sum()) for part, moved in zip(unit, direction))
    return value, _length(direction)


def _length(parts: list[Tensor]) -> float:
    return math.sqrt(sum(float(part.double().square().sum()) for part in parts))


def _gradients(
    model: nn.Module, task: Task, trained: dict[str, nn.Parameter], moves: list[Tensor], by: float
) -> tuple[Tensor, ...]:
    """Gradients at parameters moved a little; the model itself is left as it was."""
    moved = {
        name: (p.detach() + by * move).requires_grad_() for (name, p), move in zip(trained.items(), moves)
    }
    with torch.enable_grad():
        value = task.loss(torch.func.functional_call(model, moved, (task.x,)), task.y)
        return torch.autograd.grad(value, list(moved.values()), allow_unused=True, materialize_grads=True)


def require_flow_memory(model: nn.Module, task: Task) -> None:
    """Refuse data whose activations would not fit; the flow looks at all of them at once."""
    with leaf_calls(model) as calls, torch.no_grad():
        model(task.x[:1])
    kept = sum(out.numel() * out.element_size() for *_, out in calls if isinstance(out, Tensor))
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    require_memory(
        3 * kept * len(task.x) + _STATES * weights,
        f"the gradient flow of {type(model).__name__} on {len(task.x):,} samples",
        "give fewer samples (a few thousand say the same about the plateau)",
    )
