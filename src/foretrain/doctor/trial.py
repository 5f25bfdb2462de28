"""A short real training, by which a check weighs two ways against each other."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from foretrain.compare.plateau.levels import Task
from foretrain.doctor.setup import Case, Setup
from foretrain.support.seeds import integer, torch_generator

Array = NDArray[np.float64]

STEPS = 60
_SAMPLES = 128  # at most, unless one batch has more; batches are drawn from them
_PLATEAU = 0.1  # of the loss: a trial that takes less has not left where it began
_LONGER = 4  # times, for trials on a plateau
_END = 10  # steps over which the loss at the end is averaged


@dataclass(frozen=True, eq=False)
class Trial:
    """``losses`` before every step and after the last; inf from where the loss is no number."""

    losses: Array

    @property
    def steps(self) -> int:
        """How many there were."""
        return len(self.losses) - 1

    @property
    def start(self) -> float:
        """The loss before the first step."""
        return float(self.losses[0])

    @property
    def end(self) -> float:
        """The loss that was reached: the median of the last steps, so that one spike does not decide."""
        return float(np.median(self.losses[-_END:]))

    @property
    def drop(self) -> float:
        """By how much the loss fell; -inf where it ended as no number."""
        return self.start - self.end

    def steps_to(self, loss: float) -> int:
        """The first step before which the loss is no more than this; the number of steps where there is none."""
        reached = np.flatnonzero(self.losses <= loss)
        return int(reached[0]) if len(reached) else self.steps


def trial(setup: Setup, steps: int = STEPS, samples: int = _SAMPLES) -> Trial:
    """Train a copy on some of the data, in batches as given."""
    task = Case(setup).chosen(max(samples, setup.batch_size or 0))
    size = min(setup.batch_size or len(task.x), len(task.x))
    losses = np.full(steps + 1, np.inf)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(integer(setup.seed))  # dropout draws from the global stream
        model = copy.deepcopy(setup.model).train()
        optimizer, order = setup.recipe.build(model), torch_generator(setup.seed)
        for step in range(steps + 1):
            batch = task
            if size < len(task.x):
                batch = task.taken(torch.randperm(len(task.x), generator=order)[:size])
            losses[step] = descend(optimizer, model, batch)
            if not np.isfinite(losses[step]):
                losses[step:] = np.inf
                break
    return Trial(losses)


def descend(optimizer: torch.optim.Optimizer, model: nn.Module, task: Task) -> float:
    """One step, and the loss before it. By a closure, because some optimizers ask for the loss more than once."""

    def closure() -> float:
        optimizer.zero_grad()
        loss = task.loss(model(task.x), task.y)
        torch.autograd.backward(loss)
        return float(loss.detach())

    with torch.enable_grad():
        return optimizer.step(closure)


def best_of(setups: Sequence[Setup]) -> tuple[int, Trial]:
    """The first of some setups whose trial ends better than that of the next, by its place.

    Where the loss hardly moves, as on a plateau, longer trials decide: what comes after it may be steeper.
    """
    place, found = _first_best(setups, STEPS)
    if abs(found.drop) < _PLATEAU * abs(found.start):
        return _first_best(setups[place:], _LONGER * STEPS, place)
    return place, found


def _first_best(setups: Sequence[Setup], steps: int, skipped: int = 0) -> tuple[int, Trial]:
    place, best = skipped, trial(setups[0], steps)
    for after, setup in enumerate(setups[1:], skipped + 1):
        found = trial(setup, steps)
        if found.end >= best.end and best.drop > 0:
            break
        if found.end < best.end:
            place, best = after, found
    return place, best
