"""Gradient descent of a network: its learning rates by parameter, and real runs of it beside a forecast."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from foretrain.compare.task import Task
from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.progress import Progress
from foretrain.support.seeds import Seed, spawn, torch_generator
from foretrain.theory.architecture import FloatArray

_LOOKS = 250  # at the loss over all data, until the predicted escape
_PATIENCE = 2.0  # times the prediction, after which a run is given up
_GRACE = 50  # steps on top, for networks that escape at once


@dataclass(frozen=True)
class Descent:
    """Plain descent or descent with momentum: learning rates by parameter name, and the momentum."""

    rates: dict[str, float]
    momentum: float = 0.0
    nesterov: bool = False

    @property
    def flow_rates(self) -> dict[str, float]:
        """ρ for which the time of θ̇ = -ρ ∇ counts steps; on a plateau momentum m multiplies rates by 1/(1-m)."""
        return {name: rate / (1 - self.momentum) for name, rate in self.rates.items()}

    @property
    def largest_stable(self) -> float:
        """Rate × curvature at which descent on a quadratic loss begins to diverge."""
        m = self.momentum
        return (2 + 2 * m) / (1 + 2 * m) if self.nesterov else 2 + 2 * m

    def optimizer(self, model: nn.Module) -> torch.optim.SGD:
        """The same descent for the parameters of a copy of the model."""
        groups: list[dict[str, Any]] = [
            {"params": [parameter], "lr": self.rates[name]}
            for name, parameter in model.named_parameters()
            if name in self.rates
        ]
        return torch.optim.SGD(groups, lr=1.0, momentum=self.momentum, nesterov=self.nesterov)


def descent_of(model: nn.Module, lr: float | None, optimizer: torch.optim.Optimizer | None) -> Descent:
    """From one learning rate for all parameters, or from the groups of an optimizer."""
    if (lr is None) == (optimizer is None):
        raise InputError("give a learning rate `lr=`, or an `optimizer=` whose groups hold the rates.")
    names = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    if not names:
        raise NotSupportedError("the model has no parameter with requires_grad: there is nothing to train.")
    if lr is not None:
        given: Any = lr
        if not isinstance(given, Real) or not 0 < float(given) < math.inf:
            raise InputError(f"`lr` is {lr!r}: give a positive learning rate.")
        return Descent(dict.fromkeys(names.values(), float(given)))
    if not isinstance(optimizer, torch.optim.SGD):
        raise NotSupportedError(
            f"the flow speaks of gradient descent, not of {type(optimizer).__name__}: give torch.optim.SGD."
        )
    for group in optimizer.param_groups:
        if group["weight_decay"] or group["dampening"] or group["maximize"]:
            raise NotSupportedError(
                "weight decay, dampening and maximize are not in the flow: give an optimizer without them."
            )
    momenta = {(float(group["momentum"]), bool(group["nesterov"])) for group in optimizer.param_groups}
    if len(momenta) != 1:
        raise NotSupportedError("the groups of the optimizer differ in momentum: give one momentum for all.")
    rates = {
        names[id(p)]: float(group["lr"])
        for group in optimizer.param_groups
        for p in group["params"]
        if id(p) in names
    }
    missing = sorted(set(names.values()) - set(rates))
    if missing:
        raise InputError(
            f"the optimizer does not train {missing[0]}: set requires_grad_(False) on what stays."
        )
    return Descent(rates, *momenta.pop())


class Escape(NamedTuple):
    """What is learned by which descent, the loss at the saddle, and the loss below which a network has escaped."""

    task: Task
    descent: Descent
    level: float
    threshold: float


@dataclass(frozen=True, eq=False)
class TrainedRuns:
    """Runs of one network: ``steps`` where the loss over all data was looked at, ``losses`` (runs, steps)."""

    steps: FloatArray = field(repr=False)
    losses: FloatArray = field(repr=False)
    predicted: float
    escapes: FloatArray  # by run; inf: not within the steps
    diverged: bool  # whether a run blew up instead of learning

    @property
    def measured(self) -> float:
        """Mean escape step over runs; inf if one did not escape."""
        return float(self.escapes.mean())

    @property
    def standard_error(self) -> float:
        """Of the mean, over orders of the batches; nan for a single run."""
        count = len(self.escapes)
        if count < 2 or not np.isfinite(self.escapes).all():
            return math.nan
        return float(self.escapes.std(ddof=1) / math.sqrt(count))

    @property
    def error(self) -> float:
        """Measured over predicted escape step, less one."""
        known = 0 < self.predicted < math.inf and math.isfinite(self.measured)
        return self.measured / self.predicted - 1 if known else math.nan

    @property
    def statement(self) -> str:
        """When the runs escaped, beside the prediction."""
        followed = int(self.steps[-1])
        if self.diverged:
            return f"descent diverged within {followed:,} steps: take a smaller learning rate"
        if not math.isfinite(self.measured):
            return f"not escaped within {followed:,} steps"
        spread = "" if math.isnan(self.standard_error) else f" ± {self.standard_error:.1f}"
        off = f", {self.error:+.1%} from the predicted {step_text(self.predicted)}"
        runs = f"{len(self.escapes)} run{'s' if len(self.escapes) > 1 else ''}"
        known = "" if math.isnan(self.error) else off
        return f"escaped at step {step_text(self.measured)}{spread} ({runs}{known})"


def train_runs(
    model: nn.Module,
    escape: Escape,
    predicted: float,
    *,
    batch_size: int | None,
    runs: int,
    max_steps: int,
    seed: Seed,
) -> TrainedRuns:
    """Descend from the same weights with several orders of the batches, until the loss is below the threshold."""
    runs, most = whole_number("runs", runs), whole_number("max_steps", max_steps)
    limit = int(min(most, _PATIENCE * predicted + _GRACE))
    every = max(1, round(min(predicted, limit) / _LOOKS))
    seeds = spawn(seed, 1 if batch_size is None else runs)
    curves = [_run(model, escape, batch_size, limit, every, own) for own in seeds]
    longest = max(map(len, curves))
    steps = every * np.arange(longest, dtype=float)
    losses = np.stack([filled(curve, longest) for curve in curves])
    escapes = [first_below(steps[: len(curve)], curve, escape.threshold) for curve in curves]
    diverged = any(not math.isfinite(curve[-1]) for curve in curves)
    return TrainedRuns(steps, losses, predicted, np.asarray(escapes), diverged)


def _run(
    model: nn.Module, escape: Escape, batch_size: int | None, limit: int, every: int, seed: Seed
) -> FloatArray:
    """The loss over all data at every so many steps, until it is below the threshold, the limit or no number."""
    task, network = escape.task, copy.deepcopy(model)
    optimizer = escape.descent.optimizer(network)
    source, size = torch_generator(seed), batch_size or len(task.x)
    order, place = torch.randperm(len(task.x), generator=source), 0
    curve = [task.value(network)]
    with Progress("descent", total=limit) as bar:
        for step in range(1, limit + 1):
            if place + size > len(order):  # what is left of an epoch is smaller than a batch
                order, place = torch.randperm(len(task.x), generator=source), 0
            chosen = order[place : place + size].to(task.x.device)
            place += size
            optimizer.zero_grad()
            with torch.enable_grad():
                torch.autograd.backward(task.loss(network(task.x[chosen]), task.y[chosen]))
            optimizer.step()
            bar.advance()
            if step % every == 0:
                curve.append(task.value(network))
                if not curve[-1] > escape.threshold:
                    break
    return np.asarray(curve)


def filled(values: FloatArray, length: int) -> FloatArray:
    """Filled up with nan along the last axis."""
    full = np.full((*values.shape[:-1], length), np.nan)
    full[..., : values.shape[-1]] = values
    return full


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
