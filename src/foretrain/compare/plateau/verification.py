"""Training the given and the rescaled network by real descent, beside their forecasts."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from foretrain.compare.plateau.prediction import first_below, step_text
from foretrain.compare.plateau.rates import Descent
from foretrain.compare.task import Task
from foretrain.support.arguments import whole_number
from foretrain.support.progress import Progress
from foretrain.support.seeds import Seed, spawn, torch_generator
from foretrain.theory.architecture import FloatArray

_LOOKS = 250  # at the loss over all data, until the predicted escape
_PATIENCE = 2.0  # times the prediction, after which a run is given up
_GRACE = 50  # steps on top, for networks that escape at once


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
    task: Task,
    descent: Descent,
    threshold: float,
    predicted: float,
    batch_size: int | None,
    runs: int,
    max_steps: int,
    seed: Seed,
) -> TrainedRuns:
    """Descend from the same weights with several orders of the batches, until the loss is below the threshold."""
    runs, most = whole_number("runs", runs), whole_number("max_steps", max_steps)
    limit = int(min(most, _PATIENCE * predicted + _GRACE))
    every = max(1, round(min(predicted, limit) / _LOOKS))
    count = 1 if batch_size is None else runs
    curves = [
        _run(model, task, descent, threshold, batch_size, limit, every, own) for own in spawn(seed, count)
    ]
    longest = max(map(len, curves))
    steps = every * np.arange(longest, dtype=float)
    losses = np.stack([filled(np.asarray(curve), longest) for curve in curves])
    escapes = [first_below(steps[: len(curve)], np.asarray(curve), threshold) for curve in curves]
    diverged = any(not math.isfinite(curve[-1]) for curve in curves)
    return TrainedRuns(steps, losses, predicted, np.asarray(escapes), diverged)


def _run(
    model: nn.Module,
    task: Task,
    descent: Descent,
    threshold: float,
    batch_size: int | None,
    limit: int,
    every: int,
    seed: np.random.SeedSequence,
) -> list[float]:
    """The loss over all data at every so many steps, until it is below the threshold, the limit or no number."""
    network = copy.deepcopy(model)
    optimizer = descent.optimizer(network)
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
                if not curve[-1] > threshold:
                    break
    return curve


def filled(values: FloatArray, length: int) -> FloatArray:
    """Filled up with nan along the last axis."""
    full = np.full((*values.shape[:-1], length), np.nan)
    full[..., : values.shape[-1]] = values
    return full
