"""Training with and without the advice: the same batches, the same samples to judge by, the same units."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from foretrain.compare.task import Task
from foretrain.doctor.finding import finite
from foretrain.doctor.setup import STEP_PASSES, Case, Setup, affordable_samples, suited_threads
from foretrain.doctor.stability import divided
from foretrain.doctor.treatment import Plan
from foretrain.doctor.trials import descend
from foretrain.empirical.models.model import unchanged
from foretrain.support.answers import GREEN, ORANGE, Answer, Axis, Figure, Result, scale_for
from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, integer, spawn, torch_generator

if TYPE_CHECKING:
    import xarray

_RECORDS = 60  # points of a curve
_JUDGED = 512  # samples over which the loss is recorded; more would take longer than the training itself
_BLOWN_UP = 1e6  # times the loss at the start: never comes back
_LAST = 0.1  # part of the curve whose median is its final loss: single spikes do not count
_SPEED = 1e10  # multiplications in a second
_LEAST_STEPS = 50  # that should fit into the time, with fewer samples in each if need be
_RECORD_WORK = 1e12  # multiplications of all records of one network
_DIFFERENCE = 1.1  # factors of the loss below this one are called no difference
_EXACT = 1e-3  # of the targets' size: how well scale and shift must explain the change, in float32


@dataclass(frozen=True, eq=False)
class Curve:
    """Loss over the steps; after a divergence nothing more is recorded."""

    steps: NDArray[np.int64]
    losses: NDArray[np.float64]
    diverged_at: int | None = None

    @property
    def final(self) -> float:
        """Median over the last tenth of the curve; infinite if it diverged."""
        if self.diverged_at is not None:
            return math.inf
        return float(np.median(self.losses[-self._last :]))

    @property
    def best(self) -> float:
        """The lowest median over a tenth of the curve in a row; infinite if it diverged."""
        if self.diverged_at is not None:
            return math.inf
        windows = np.lib.stride_tricks.sliding_window_view(self.losses, self._last)
        return float(np.median(windows, axis=1).min())

    @property
    def final_over(self) -> int:
        """How many steps the last tenth of the curve spans, from its first recorded point to its last."""
        return int(self.steps[-1] - self.steps[-self._last]) + 1 if len(self.steps) else 0

    @property
    def _last(self) -> int:
        return max(1, round(_LAST * len(self.losses)))

    def first_below(self, level: float) -> float:
        """The first recorded step with at most this loss; infinite if there is none."""
        reached = np.flatnonzero(self.losses <= level)
        return float(self.steps[reached[0]]) if len(reached) else math.inf


@dataclass(frozen=True, eq=False, repr=False)
class Verification(Result):
    """Two trainings. ``curves`` has "given" and, if there was something to treat, "treated"."""

    plan: Plan
    curves: Mapping[str, Curve]
    loss_name: str
    samples: int  # over which the loss is recorded
    # Why training ended before the steps that were asked for, or took fewer samples in each.
    stopped: str = ""
    unseen: bool = False  # whether these samples were held out of the training

    @property
    def given(self) -> Curve:
        """Of the network as it came."""
        return self.curves["given"]

    @property
    def treated(self) -> Curve:
        """Of the network with the advice carried out; the given one where there is none."""
        return self.curves.get("treated", self.curves["given"])

    @property
    def improvement(self) -> float:
        """Loss as given over loss as treated, at the end or, of samples held out, at its best: above 1 it helps."""
        ours, theirs = self._reached(self.treated), self._reached(self.given)
        if math.isinf(ours):
            return math.nan if math.isinf(theirs) else 0.0
        return theirs / ours if ours > 0 else (math.inf if theirs > 0 else 1.0)

    def _reached(self, curve: Curve) -> float:
        """The loss that counts: what is held out grows again once the others are learned by heart."""
        return curve.best if self.unseen else curve.final

    @property
    def speedup(self) -> float:
        """Steps in which the given network reaches its best loss, over those of the treated one to the same loss."""
        best = float(np.min(self.given.losses))
        needed = self.treated.first_below(best)
        return self.given.first_below(best) / needed if needed > 0 else 1.0

    @property
    def verdict(self) -> str:
        """One honest sentence about the two trainings."""
        return f"{self._outcome()} ({self.stopped})." if self.stopped else f"{self._outcome()}."

    def _outcome(self) -> str:
        given, treated, steps = self.given, self.treated, int(self.treated.steps[-1])
        if "treated" not in self.curves:
            if given.diverged_at is not None:
                return f"nothing was treated, and training diverged at step {given.diverged_at}"
            start = given.losses[0] if len(given.losses) else math.nan
            return (
                f"nothing was treated; in {steps} steps the loss went from {start:.4g} to {given.final:.4g}"
            )
        match given.diverged_at, treated.diverged_at:
            case int(first), int(second):
                return f"the advice does not help: both trainings diverged, at steps {first} and {second}"
            case None, int(second):
                before = f"without it the loss reached {given.final:.4g}"
                return f"the advice does harm: with it training diverged at step {second}, {before}"
            case int(first), None:
                after = f"with it the loss reached {treated.final:.4g} after {steps} steps"
                return f"the advice helps: without it training diverged at step {first}, {after}"
        factor, over = self.improvement, treated.final_over
        where = f" on {self.samples} samples held out" if self.unseen else ""
        reached = f"{self._reached(treated):.4g} with it and {self._reached(given):.4g} without"
        if over > 1:
            reached += f" (median of {over} steps)" if self.unseen else f" (median of the last {over} steps)"
        when = f"at its best in {steps} steps" if self.unseen else f"after {steps} steps"
        losses = f"{when} the loss{where} is {reached}"
        if factor >= _DIFFERENCE:
            times = f", {factor:.3g} times less" if math.isfinite(factor) else ""
            sooner = f"; the given network's best loss is reached {self.speedup:.3g} times sooner"
            return f"the advice helps: {losses}{times}{sooner if 1 < self.speedup < math.inf else ''}"
        little = factor > 1 / _DIFFERENCE
        words = "makes little difference here" if little else "does not help in this run"
        return f"the advice {words}: {losses}"

    def answer(self) -> Answer:
        """The verdict and both curves."""
        record = {
            "verdict": self.verdict,
            "improvement": finite(self.improvement),
            "speedup": finite(self.speedup),
            "stopped": self.stopped or None,
            "samples": self.samples,
            "held_out": self.unseen,
            "curves": {
                name: {"step": curve.steps, "loss": curve.losses, "diverged_at": curve.diverged_at}
                for name, curve in self.curves.items()
            },
        }
        return Answer(self.verdict, [self.figure], self.to_dataset, record, title="Training")

    def figure(self) -> Figure:
        """The loss over the steps of both trainings; a line where one diverged."""
        held_out = ", samples held out" if self.unseen else ""
        losses = np.concatenate([curve.losses for curve in self.curves.values()])
        figure = Figure(size=(7.0, 4.3))
        panel = figure.panel(
            "Trained with and without the advice" if len(self.curves) > 1 else "Trained as given",
            x="step",
            y=Axis(f"loss ({self.loss_name}{held_out})", scale_for(losses, 3.0)),
            caption=f"{self.verdict[:1].upper()}{self.verdict[1:]}",
        )
        looks = {"given": ("as given", ORANGE, "--"), "treated": ("with the advice", GREEN, "-")}
        for name, curve in self.curves.items():
            label, color, dash = looks[name]
            if curve.diverged_at is not None:
                label += f" (diverges at step {curve.diverged_at})"
                panel.level(x=curve.diverged_at, color=color, dash=":")
            panel.curve(curve.steps, curve.losses, dash, label, color, width=1.8)
        return figure

    def to_dataset(self) -> xarray.Dataset:
        """Loss by network and step; missing after a divergence."""
        import xarray

        steps = np.unique(np.concatenate([curve.steps for curve in self.curves.values()]))
        losses = np.full((len(self.curves), len(steps)), np.nan)
        for row, curve in zip(losses, self.curves.values()):
            row[np.searchsorted(steps, curve.steps)] = curve.losses
        return xarray.Dataset(
            {"loss": (("network", "step"), losses, {"long_name": self.loss_name})},
            {"network": list(self.curves), "step": steps},
            {
                "improvement": self.improvement,
                "verdict": self.verdict,
                "samples": self.samples,
                "stopped": self.stopped,
                "treatments": "; ".join(step.treatment.name for step in self.plan.steps),
            },
        )


def verify(plan: Plan, steps: int = 200, *, seconds: float = 60.0) -> Verification:
    """Train the given and the treated network side by side for some steps, or until the time is over.

    Both see the same samples in the same order. The loss is that of the same samples in the units of the given
    targets; the treated network gets them through its own treatment of inputs. Where the first finding says that
    samples are learned by heart, a fifth of them is held out of both trainings and judges them.
    """
    steps = whole_number("steps", steps)
    if not seconds > 0:
        raise InputError(f"seconds is {seconds}: give a positive time.")
    units = units_between(plan.treated.task, plan.given.task)
    unseen = bool(plan.steps) and "held_out_loss" in plan.steps[0].finding.numbers
    parts = divided(len(plan.given.task.x), plan.given.seed) if unseen else None
    runs = {"given": _Run(plan.given, Units(), parts)}
    if plan.steps:
        runs["treated"] = _Run(plan.treated, units, parts)
    with suited_threads(plan.given):
        # As given, or so few samples in a step that some steps of both networks fit into the time.
        total, cut, size = len(runs["given"].task.x), "", plan.given.batch_size
        asked = min(size or total, total)
        passes = 2 * STEP_PASSES * min(steps, _LEAST_STEPS)
        most = affordable_samples(plan.given, asked, passes, seconds * _SPEED)
        if most != asked:
            size = most
            cut = f"with {size} samples in a step instead of {asked}, because steps of this model are long"
        stopped = _train(list(runs.values()), plan.given, size, steps, seconds)
    curves = {name: run.curve() for name, run in runs.items()}
    count = len(runs["given"].judged.x)
    told = "; ".join(reason for reason in (cut, stopped) if reason)
    return Verification(plan, curves, plan.given.task.loss_name, count, told, unseen)


def _train(runs: list[_Run], given: Setup, size: int | None, steps: int, seconds: float) -> str:
    """Steps of all in turn, so that they have made equally many when the time is over."""
    recorded = set(np.unique(np.linspace(0, steps, min(steps, _RECORDS) + 1).astype(int)).tolist())
    end = time.monotonic() + seconds
    order, dice = spawn(given.seed, 2)
    first = integer(dice) % 2**62
    batches = _batches(len(runs[0].task.x), size, order)
    with torch.random.fork_rng(devices=[]):
        for run in runs:
            run.record(0)
        for step in track(range(1, steps + 1), "training with and without the advice"):
            batch = next(batches)
            late = time.monotonic() > end
            for run in (one for one in runs if one.diverged_at is None):
                torch.manual_seed(first + step)  # the same dropout in both
                run.step(batch)
                if step in recorded or late:
                    run.record(step)
            if late:
                return f"stopped after {step} of {steps} steps, because {seconds:g} seconds were over"
            if all(run.diverged_at is not None for run in runs):
                break
    return ""


def _batches(total: int, size: int | None, seed: Seed) -> Iterator[Tensor | None]:
    """Places of the samples in each step: None for all, or parts of a new order in every epoch."""
    source = torch_generator(seed)
    while True:
        if size is None or size >= total:
            yield None
            continue
        order = torch.randperm(total, generator=source)
        yield from (order[start : start + size] for start in range(0, total - size + 1, size))


class _Run:
    """One network on its way."""

    def __init__(self, setup: Setup, units: Units, parts: tuple[Tensor, Tensor] | None = None) -> None:
        self.model = copy.deepcopy(setup.model).train()
        most = affordable_samples(setup, _JUDGED, _RECORDS + 1, _RECORD_WORK)
        self.task, judged = setup.task, Case(setup).chosen(most)
        if parts is not None:  # places to train on, and those held out
            self.task, judged = setup.task.taken(parts[0]), setup.task.taken(parts[1][:most])
        self.optimizer = setup.recipe.build(self.model)
        self.units = units
        self.judged = judged
        self.diverged_at: int | None = None
        self.steps, self.losses = list[int](), list[float]()

    def step(self, batch: Tensor | None) -> None:
        """One step of the optimizer, with some of the samples or all."""
        descend(self.optimizer, self.model, self.task if batch is None else self.task.taken(batch))

    def record(self, step: int) -> None:
        """The loss now, or that it has diverged."""
        self.model.eval()  # without dropout
        for part in self.model.modules():  # batch normalisation takes the statistics of the judged samples
            if isinstance(part, nn.modules.batchnorm._BatchNorm) and len(self.judged.x) > 1:
                part.train()
        with unchanged(self.model), torch.no_grad():
            if self.units.same:
                value = self.judged.value(self.model)
            else:
                outputs, targets = self.units.back(self.model(self.judged.x)), self.units.back(self.judged.y)
                value = float(self.judged.loss(outputs, targets))
        self.model.train()
        if not math.isfinite(value) or (self.losses and value > _BLOWN_UP * max(self.losses[0], 1e-12)):
            self.diverged_at = step
            return
        self.steps.append(step)
        self.losses.append(value)

    def curve(self) -> Curve:
        """All that was recorded."""
        return Curve(np.array(self.steps, np.int64), np.array(self.losses), self.diverged_at)


@dataclass(frozen=True)
class Units:
    """Takes treated values back: values * scale + shift for each output."""

    scale: Tensor | float = 1.0
    shift: Tensor | float = 0.0

    @property
    def same(self) -> bool:
        """Whether nothing was treated, as with labels."""
        return isinstance(self.scale, float) and self.scale == 1.0

    def back(self, values: Tensor) -> Tensor:
        """In the units of the given targets."""
        return values * self.scale + self.shift


def units_between(treated: Task, given: Task) -> Units:
    """From the two targets of the same samples."""
    if treated.y is given.y or not given.y.is_floating_point() or torch.equal(treated.y, given.y):
        return Units()
    ours, theirs = treated.y.double(), given.y.double()
    mean_ours, mean_theirs = ours.mean(0, keepdim=True), theirs.mean(0, keepdim=True)
    spread = (ours - mean_ours).square().mean(0, keepdim=True)
    shared = ((ours - mean_ours) * (theirs - mean_theirs)).mean(0, keepdim=True)
    scale = torch.where(spread > 0, shared / spread.clamp_min(1e-300), torch.ones_like(spread))
    shift = mean_theirs - scale * mean_ours
    missed = (ours * scale + shift - theirs).abs().max()
    if missed > _EXACT * theirs.abs().max():
        raise NotSupportedError(
            "the targets were changed by more than scale and shift, so losses before and after cannot be compared: "
            "leave out that treatment."
        )
    return Units(scale.to(given.y), shift.to(given.y))
