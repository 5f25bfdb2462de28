"""The plateau of a network in steps of descent, from its own gradient flow on its own data.

The loss on the plateau is that at the saddle (:func:`plateau_level`); the flow is followed until the loss passes the
one at which the network counts as escaped.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from foretrain.compare.plateau.descent import Descent, Escape, first_below, step_text
from foretrain.compare.plateau.layers import leaf_calls
from foretrain.compare.task import Task
from foretrain.support.answers import Answer, Result, fields_answer, labelled
from foretrain.support.errors import InputError
from foretrain.support.memory import require_memory
from foretrain.theory.architecture import FloatArray
from foretrain.training.gradient_flow import gradient_flow

FLAT = 0.1  # within this share of its level the loss is called flat
_GRADIENTS = 20_000  # of all data, at most, for one flow
_POWER_STEPS = 25
_PARTS = 8  # of a step of the flow, between whose ends the loss is told
_STATES = 30  # copies of all weights, at most, while the flow makes a step


def plateau_level(model: nn.Module, task: Task) -> float:
    """The loss at the saddle.

    At zero weight matrices the output is the same for all inputs. If the loss has a slope there (a bias, or an
    activation with σ(0) ≠ 0, can still move it), the network first learns the best constant, and waits at its loss.
    """
    from scipy.optimize import minimize

    zeroed = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in zeroed.parameters():
            if parameter.ndim >= 2 and parameter.requires_grad:
                parameter.zero_()
    moving = [parameter for parameter in zeroed.parameters() if parameter.requires_grad]
    with torch.enable_grad():
        outputs = zeroed(task.x)
        value = task.loss(outputs, task.y)
        slopes = torch.autograd.grad(value, moving, allow_unused=True) if value.requires_grad else ()
    steep = max((float(slope.abs().max()) for slope in slopes if slope is not None), default=0.0)
    varies = float((outputs - outputs[:1]).detach().abs().max())
    at_zero = float(value.detach())
    if steep <= 1e-7 * max(abs(at_zero), 1e-30) or varies > 1e-6 * (1 + float(outputs.detach().abs().max())):
        return at_zero
    start = outputs[:1].detach()

    def loss_and_slope(values: FloatArray) -> tuple[float, FloatArray]:
        constant = torch.as_tensor(values).to(start).reshape(start.shape).requires_grad_()
        with torch.enable_grad():
            value = task.loss(constant.expand(len(task.x), *start.shape[1:]), task.y)
        (slope,) = torch.autograd.grad(value, constant)
        return float(value.detach()), slope.double().cpu().numpy().ravel()

    at = start.double().cpu().numpy().ravel()
    return min(at_zero, float(minimize(loss_and_slope, at, jac=True, method="L-BFGS-B").fun))


def escape_level(level: float, threshold: float | None, share: float) -> float:
    """The loss below which the network has escaped: given, or a share of the plateau's."""
    highest = 1 - FLAT
    if not level > 0:
        raise InputError(
            f"the loss at the saddle is {level:g}, so there is nothing to learn from it: give targets that are not "
            "fitted by a constant, and a loss that is positive."
        )
    if threshold is None:
        if not 0 < share < highest:
            raise InputError(
                f"`share` is {share}: give a part of the plateau's loss between 0 and {highest:g}."
            )
        return share * level
    if not threshold < highest * level:
        raise InputError(
            f"`threshold` is {threshold:g}, but the plateau is at {level:g}: give less than {highest * level:g}."
        )
    return threshold


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


def forecast(model: nn.Module, escape: Escape, max_steps: float) -> Forecast:
    """Integrate θ̇ = -ρ ∇ loss, with ρ such that time counts steps, until the loss passes the threshold."""
    from scipy.interpolate import CubicHermiteSpline

    task, descent, level, threshold = escape
    # The flow looks at all data at once: refuse them where their activations would not fit.
    with leaf_calls(model) as calls, torch.no_grad():
        model(task.x[:1])
    kept = sum(out.numel() * out.element_size() for *_, out in calls if isinstance(out, Tensor))
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    require_memory(
        3 * kept * len(task.x) + _STATES * weights,
        f"the gradient flow of {type(model).__name__} on {len(task.x):,} samples",
        "give fewer samples (a few thousand say the same about the plateau)",
    )
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
    if len(steps) > 1:  # points inside the long steps of the flow, on Hermite's cubic
        known, cubic = losses, CubicHermiteSpline(steps, losses, slopes)
        inner = steps[:-1, None] + np.diff(steps)[:, None] * np.arange(_PARTS) / _PARTS
        steps = np.append(inner.ravel(), steps[-1])
        losses = np.asarray(cubic(steps))
        losses[::_PARTS] = known
    return Forecast(
        steps,
        losses,
        level,
        threshold,
        begins=first_below(steps, losses, (1 + FLAT) * level),
        ends=first_below(steps, losses, (1 - FLAT) * level),
        escape=float(steps[-1]) if flow.status == "reached" else math.inf,
        stability=stability(flow.model, task, descent),
        stability_limit=descent.largest_stable,
        status=flow.status,
        evaluations=flow.evaluations,
    )


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
