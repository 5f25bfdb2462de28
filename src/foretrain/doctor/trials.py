"""A short real training, by which a check weighs two ways against each other, and the loss of a constant."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from foretrain.compare.task import Task
from foretrain.doctor.intake import StepSum
from foretrain.doctor.setup import (
    STEP_PASSES,
    Case,
    Course,
    Recipe,
    Setup,
    affordable_samples,
    course_of,
    once,
    work_of,
)
from foretrain.support.progress import Progress
from foretrain.support.seeds import integer, torch_generator

Array = NDArray[np.float64]

STEPS = 60
LONG = 240  # where the first steps do not decide
_SAMPLES = 128  # at most, unless one batch has more; batches are drawn from them
_PLATEAU = 0.1  # of the loss: a trial that takes less has not left where it began
_END = 10  # steps over which the loss at the end is averaged
_ALIKE = 0.05  # of the loss at the end: what is nearer is decided by rounding, and so by the processor
_WORK = 5e11  # multiplications of one trial: ten to fifty seconds of one core
_FEWEST_STEPS = 20
_HALF_SCALE = 2.0**10  # of the loss, for gradients in half precision
_CONSTANT_ON = 256  # samples
LOOKED_AT = 512  # samples
_LEARNED_BEFORE = 0.9  # of the loss of a constant, if training has begun: less has been learned
# Of a network that is said to be fresh only this little is proof: with few inputs, random outputs are near by chance.
_LEARNED_THOUGH_FRESH = 0.5


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


@dataclass(frozen=True)
class Extent:
    """How far a trial goes: samples in a step, those that they are drawn from, and steps at most."""

    batch: int
    pool: int
    steps: int


def extent(setup: Setup, samples: int = _SAMPLES) -> Extent:
    """As asked, or less where that would be too much work: first fewer samples in a step, then fewer steps."""
    pool = min(max(samples, setup.batch_size or 0), len(setup.task.x))
    wanted = min(setup.batch_size or pool, pool)
    batch = affordable_samples(setup, wanted, STEP_PASSES * STEPS, _WORK)
    steps = int(_WORK / max(1.0, STEP_PASSES * batch * work_of(setup).total))
    return Extent(batch, pool, max(_FEWEST_STEPS, steps))


def shortened_trials(setup: Setup) -> tuple[str, ...]:
    """One sentence, if trials of this model are shorter than others because it is large."""
    found, usual = extent(setup), min(setup.batch_size or _SAMPLES, len(setup.task.x))
    if found.batch == usual and found.steps >= STEPS:
        return ()
    cost = f"{work_of(setup).total / 1e6:,.0f} million multiplications"
    steps = min(found.steps, STEPS)
    return (f"One sample costs {cost}, so short trainings make {steps} steps of {found.batch} samples.",)


def trial(setup: Setup, steps: int = STEPS, samples: int = _SAMPLES) -> Trial:
    """Train a copy on some of the data, in batches as given; what was trained before is known."""
    return _Training(setup, samples).until(steps)


class _Training:
    """A copy on its way: more steps go on where the last ones ended, as if all had been made at once."""

    def __init__(self, setup: Setup, samples: int = _SAMPLES) -> None:
        self._setup, self._extent = setup, extent(setup, samples)
        self._task = Case(setup).pool(self._extent.pool)
        self._key = ("trial", repr(setup.recipe), self._extent)
        self._losses = list[float]()

    def until(self, steps: int) -> Trial:
        """The first so many steps, or as many as a trial may have."""
        steps = min(steps, self._extent.steps)
        known = self._setup.known.get(self._key, self._losses)
        if len(known) <= steps:
            self._train(steps)
            known = self._setup.known[self._key] = self._losses
        return Trial(np.array(known[: steps + 1]))

    @cached_property
    def _parts(self) -> tuple[nn.Module, torch.optim.Optimizer, torch.Generator]:
        model = copy.deepcopy(self._setup.model).train()
        torch.manual_seed(integer(self._setup.seed))  # dropout draws from the global stream
        self._dice = torch.get_rng_state()
        return model, self._setup.recipe.build(model), torch_generator(self._setup.seed)

    def _train(self, steps: int) -> None:
        with torch.random.fork_rng(devices=[]), Progress("short trainings", total=steps) as bar:
            model, optimizer, order = self._parts
            torch.set_rng_state(self._dice)
            while len(self._losses) <= steps:
                if self._losses and not np.isfinite(self._losses[-1]):
                    self._losses += [np.inf] * (steps + 1 - len(self._losses))
                    break
                batch = self._task
                if self._extent.batch < len(batch.x):
                    batch = batch.taken(torch.randperm(len(batch.x), generator=order)[: self._extent.batch])
                loss = descend(optimizer, model, batch)
                self._losses.append(loss if np.isfinite(loss) else np.inf)
                bar.advance()
            self._dice = torch.get_rng_state()


def descend(optimizer: torch.optim.Optimizer, model: nn.Module, task: Task) -> float:
    """One step as the optimizer's recipe has it, and the loss before it: what all trainings are made of.

    By a closure, because some optimizers ask for the loss more than once.
    """
    course = course_of(optimizer) or Course(Recipe(type(optimizer), ()))
    recipe, weights = course.recipe, [p for group in optimizer.param_groups for p in group["params"]]
    micro_batches = [task]
    if recipe.accumulate > 1:
        parts = torch.arange(len(task.x)).chunk(recipe.accumulate)
        micro_batches = [task.taken(part) for part in parts]
    # Gradients below the smallest float16 would vanish; torch's own scaler is not made for closures.
    scale = _HALF_SCALE if recipe.autocast is torch.float16 else 1.0

    def closure() -> float:
        optimizer.zero_grad()
        total = 0.0
        for part in micro_batches:
            with torch.autocast(weights[0].device.type, recipe.autocast, recipe.autocast is not None):
                loss = part.loss_of(model) / len(micro_batches)
            torch.autograd.backward(loss * scale)
            total += float(loss.detach())
        if scale != 1.0:
            for weight in weights:
                weight.grad = None if weight.grad is None else weight.grad / scale
        if recipe.clip_value is not None:
            nn.utils.clip_grad_value_(weights, recipe.clip_value)
        if recipe.clip_norm is not None:
            nn.utils.clip_grad_norm_(weights, recipe.clip_norm)
        return total

    for options, group in zip(optimizer.param_groups, recipe.groups):
        if group.schedule:
            options["lr"] = group.rate_at(course.steps)
    course.steps += 1
    with torch.enable_grad():
        return optimizer.step(closure)


def best_of(setups: Sequence[Setup]) -> tuple[int, Trial]:
    """The first of some setups, by its place, whose trial ends as well as any up to the one after which they worsen.

    Trials that differ by a twentieth end as well as each other. Where the loss hardly moves, as on a plateau, longer
    trials decide: what comes after it may be steeper.
    """
    trainings = [_Training(setup) for setup in setups]
    place, found = _first_best(trainings, STEPS)
    if abs(found.drop) < _PLATEAU * abs(found.start):
        return _first_best(trainings, LONG, place)
    return place, found


def _first_best(trainings: Sequence[_Training], steps: int, first: int = 0) -> tuple[int, Trial]:
    trials = [trainings[first].until(steps)]
    best = trials[0]
    for training in trainings[first + 1 :]:
        trials.append(training.until(steps))
        if trials[-1].end >= best.end and best.drop > 0:
            break
        best = min(best, trials[-1], key=lambda one: one.end)
    enough = best.end + _ALIKE * abs(best.end)
    place = next(number for number, one in enumerate(trials) if one.end <= enough)
    return first + place, trials[place]


def constant_loss(case: Case) -> float:
    """A scale for what has been learned: of the mean target for squares, of zero outputs for other losses."""
    task = case.chosen(_CONSTANT_ON)
    with torch.no_grad():
        outputs = case.model(task.x)
    if is_regression(case):
        return float(task.loss(task.y.mean(0, keepdim=True).expand_as(outputs), task.y))
    return float(task.loss(torch.zeros_like(outputs), task.y))


def is_regression(case: Case) -> bool:
    """Whether squares of as many targets as outputs are learned."""
    y = case.task.y
    if y is None:
        return False
    with torch.no_grad():
        same = y.is_floating_point() and y.shape[1:] == case.model(case.task.x[:1]).shape[1:]
    loss = case.task.loss
    return same and (loss is nn.functional.mse_loss or isinstance(loss, nn.MSELoss | StepSum))


@once
def losses_of(case: Case) -> tuple[float, float]:
    """The loss now, and that of a constant."""
    return case.chosen(LOOKED_AT).value(case.model), constant_loss(case)


def has_learned(case: Case) -> bool:
    """Whether it does clearly better than a constant."""
    now, constant = losses_of(case)
    if constant <= 0:  # a loss without a zero has no shares; what has begun may have learned
        return not case.setup.fresh
    return now < (_LEARNED_BEFORE if not case.setup.fresh else _LEARNED_THOUGH_FRESH) * constant
