"""Will it learn? A short real training as given, judged on samples held out, beside baselines fitted to the same.

The verdict compares what the network gained over a constant answer with what the best baseline gained, each with the
standard error of the paired difference over the samples held out. "Learns" is said only of a network that was seen to
get clearly above the constant and near the best baseline.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from foretrain.doctor.baselines import Baseline
from foretrain.doctor.finding import number_of
from foretrain.doctor.outcome_chart import loss_chart, outcome_chart
from foretrain.doctor.setup import Case, Setup, once
from foretrain.doctor.short_training import (
    LONGER,
    Bench,
    Run,
    bench_of,
    constant_loss,
    divide,
    extent_of,
    is_heavy,
    room,
    train,
)
from foretrain.support.answers import Answer, Column, Figure, Result, Table
from foretrain.support.progress import OutOfTimeError

if TYPE_CHECKING:
    import xarray

Array = NDArray[np.float64]

_ONCE = 0.75  # of that, where there is one training alone
_SURE = 3.0  # standard errors from which on a difference is taken for real
_SURE_OF_FAR = 2.0  # the same for a network that has less than half of what the best baseline has
_NEAR = 0.8  # of what the best baseline gains: a network that is still rising may be so far away from it
_ENOUGH = 0.5  # of what the best baseline gains: below, the network has learned less than a simple learner
_LITTLE = 0.03  # of the loss of a constant: less is no proof of learning where answers cannot be scored
_FEW = 8  # samples that any network should learn by heart
_FALLEN = 0.2  # of the first loss, where that of a constant is not known
_COLLAPSED = 0.2  # of how far answers differed at first: equal answers may lower a loss without targets
_FITTED = 0.5  # of the way from the constant to perfect answers, on the training samples


class Status(Enum):
    """What was seen of the training."""

    LEARNS = "learns"
    LESS = "learns less than it should"
    STALLS = "does not learn"
    BY_HEART = "learns by heart"
    NOTHING = "nothing to learn was seen"
    UNSEEN = "was not seen to learn"
    DIVERGES = "diverges"
    FAILS = "cannot be trained"


@dataclass(frozen=True, eq=False, repr=False)
class Outcome(Result):
    """What the training showed, beside the baselines."""

    course: Run
    bench: Bench
    constant: float  # loss of the best constant answer
    loss_name: str
    apart: bool  # whether samples were held out
    batch: int
    longer: bool = False

    @property
    def scored(self) -> bool:
        """Whether answers are scored; else only the loss can tell."""
        return self.bench.judge is not None

    @property
    def compared(self) -> bool:
        """Whether the loss of a constant answer is known."""
        return math.isfinite(self.constant)

    @property
    def _reference(self) -> str:
        """What the loss is compared with."""
        if not self.compared and self.course.kept_apart <= _COLLAPSED:
            return f"but answers for different samples have become alike, to {self.course.kept_apart:.1g} of before"
        if self.compared:
            return f"a constant has {self.constant:.3g}"
        return f"from {self.course.held_out[0]:.3g} (what a constant would have is not known for this loss)"

    @cached_property
    def gain(self) -> tuple[float, float]:
        """What the network has over the constant, and its standard error: in scores, or in parts of the loss."""
        if self.scored:
            return _paired(self.course.best_scores - self.bench.baselines[0].scores)
        start = self.constant if math.isfinite(self.constant) else float(self.course.held_out[0])
        rounds = self.course.losses[-max(10, len(self.course.losses) // 10) :]
        noise = float(np.std(rounds) / math.sqrt(len(rounds))) if np.isfinite(rounds).all() else math.inf
        return start - self.course.end, max(noise, 1e-3 * abs(start))

    @cached_property
    def best(self) -> Baseline | None:
        """The baseline that gains most over the constant, if any gains for sure."""
        if not self.scored:
            return None
        constant = self.bench.baselines[0].scores
        sure = []
        for one in self.bench.baselines[1:]:
            gain, error = _paired(one.scores - constant)
            own, own_error = _paired(one.left_out) if len(one.left_out) else (0.0, 0.0)
            if (gain > _SURE * error or own > _SURE * own_error) and gain > 0:
                sure.append(one)
        return max(sure, key=lambda one: one.score, default=None)

    @cached_property
    def status(self) -> Status:
        """The verdict; a training that was cut early may show that it learns, but not that it does not."""
        verdict = self._verdict
        cut = self.course.unfinished and not (self.course.error or self.course.diverged)
        return Status.UNSEEN if cut and verdict is not Status.LEARNS else verdict

    @property
    def _verdict(self) -> Status:
        course = self.course
        if course.error:
            return Status.FAILS
        if course.diverged:
            return Status.DIVERGES
        gain, error = self.gain
        sure = gain > _SURE * error
        if not self.apart:
            return Status.LEARNS if self._fits else Status.UNSEEN
        if not self.scored:
            least = _LITTLE * abs(self.constant) if self.compared else _FALLEN * abs(course.held_out[0])
            apart = self.compared or course.kept_apart > _COLLAPSED
            return Status.LEARNS if sure and gain > least and apart else Status.UNSEEN
        if self.best is None:
            if sure:
                return Status.LEARNS
            return Status.BY_HEART if self._fits else Status.NOTHING
        target = self.best.score - self.bench.baselines[0].score
        behind, noise = _paired(self.best.scores - course.best_scores)
        if not sure and self._fits:  # too few samples may be held out to see what it makes of others
            return Status.BY_HEART if behind > _SURE * noise else Status.LEARNS
        if not sure:
            return Status.STALLS
        far = gain < _ENOUGH * target and behind > _SURE_OF_FAR * noise
        if far or (gain < _NEAR * target and not self.rising and behind > _SURE * noise):
            return Status.LESS
        return Status.LEARNS

    @property
    def fitted(self) -> float:
        """How far answers for the training samples came, from those of a constant (0) to perfect ones (1)."""
        constant = self.bench.baselines[0].score if self.scored else 0.0
        return (
            max(0.0, (self.course.trained_score - constant) / max(1 - constant, 1e-9))
            if self.scored
            else math.nan
        )

    @property
    def _fits(self) -> bool:
        """Whether the training samples are answered far better than by a constant."""
        if not self.scored:
            start = self.constant if math.isfinite(self.constant) else float(self.course.losses[0])
            return float(np.median(self.course.losses[-10:])) < (1 - _FITTED) * start
        return self.fitted > _FITTED

    @cached_property
    def rising(self) -> bool:
        """Whether it would come near the best baseline, getting on as it does, in four times as many steps."""
        records = self.course.scores if self.scored else -self.course.held_out[:, None]
        if len(records) < 8:
            return True
        quarter = len(records) // 4
        late, before = records[-quarter:].mean(0), records[quarter : 2 * quarter].mean(0)
        gain, error = _paired(late - before)  # over about one doubling of the steps
        if not gain > max(error, 1e-3 * abs(float(late.mean()))) or self.best is None:
            return gain > error
        wanted = self.best.score - self.bench.baselines[0].score
        return float(late.mean()) + 2 * gain - self.bench.baselines[0].score > _NEAR * wanted

    @property
    def arrived(self) -> bool:
        """Whether it has come near the best baseline, where there is one."""
        if self.best is None:
            return True
        return self.gain[0] > _NEAR * (self.best.score - self.bench.baselines[0].score)

    @property
    def judged(self) -> bool:
        """Whether good answers can be told from a constant: not where there is a single sample with one."""
        return self.status is not Status.UNSEEN or self.apart or self.course.scores.shape[1:] != (1,)

    @property
    def at_ease(self) -> bool:
        """Whether it was seen to learn within the first, short training: nothing holds it back."""
        return self.learns and self.arrived and not self.longer

    @property
    def learns(self) -> bool:
        """Whether it was seen to learn what there is to learn."""
        return self.status is Status.LEARNS

    @property
    def score(self) -> float:
        """Of the network on the samples held out."""
        return float(self.course.best_scores.mean()) if self.scored else math.nan

    @property
    def evidence(self) -> str:
        """Losses and scores, in one sentence."""
        course = self.course
        where = "on samples held out" if self.apart else "on the training samples (too few to hold any out)"
        steps = f"in {number_of(len(course.losses), 'step')} of {number_of(self.batch, 'sample')}"
        if course.error:
            return f"Training stopped with an error: {course.error.rstrip('.')}."
        if course.diverged:
            return f"{steps.capitalize()} the loss went from {course.losses[0]:.3g} beyond all bounds."
        start, end = course.losses[0], float(np.median(course.losses[-10:]))
        loss = f"{steps.capitalize()} the training loss ({self.loss_name}) went from {start:.3g} to {end:.3g}"
        constant = (
            f"; the best constant answer has {self.constant:.3g}" if math.isfinite(self.constant) else ""
        )
        if not self.scored:
            return f"{loss}, {where} it is {course.end:.3g}{constant}."
        name = self.bench.judge.measure.name if self.bench.judge else ""
        others = ", ".join(f"{one.name} {_shown(one.score)}" for one in self.bench.baselines)
        score = course.trained_score if not self.apart else self.score
        return f"{loss}{constant}. {name.capitalize()} {where}: {_shown(score)}; {others}."

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        status, course = self.status, self.course
        name = self.bench.judge.measure.name if self.bench.judge else "loss"
        steps = course.length
        beside = ""
        if self.scored:
            rival = self.best or self.bench.baselines[0]
            score = self.score if self.apart else course.trained_score
            moving = " and rising" if status is Status.LEARNS and not self.arrived else ""
            beside = (
                f"{name} {_shown(score)} after {steps}{moving}, where {rival.name} has {_shown(rival.score)}"
            )
        if not self.judged:
            return "One sample cannot be judged: a constant answers it as well as a network that has learned."
        match status:
            case Status.LEARNS:
                said = beside or f"in {steps} the loss fell to {course.end:.3g}, {self._reference}"
                return f"It learns: {said}."
            case Status.LESS:
                return f"It learns less than {self.best.name if self.best else 'it should'}: {beside}."
            case Status.STALLS:
                return f"It does not learn: {beside}."
            case Status.BY_HEART:
                trained = _shown(course.trained_score)
                what = f"the training samples by heart ({name} {trained}) and nothing that helps on others"
                return f"It learns {what}: {beside}."
            case Status.NOTHING:
                return f"Neither the network nor any baseline found anything to learn in these samples: {beside}."
            case Status.UNSEEN:
                said = beside or f"after {steps} the loss is {course.end:.3g}, {self._reference}"
                return f"It was not seen to learn: {said}."
            case Status.DIVERGES:
                return f"Training diverges: after {steps} the loss has left all bounds."
        return f"It cannot be trained: {course.error}."

    def answer(self) -> Answer:
        """The verdict, the table of baselines and the curve."""
        rows = [(one.name, round(one.score, 3) + 0.0, _error(one.scores)) for one in self.bench.baselines]
        parts: list[Any] = []
        if self.scored:
            rows.append(("this network", round(self.score, 3) + 0.0, _error(self.course.best_scores)))
            name = self.bench.judge.measure.name if self.bench.judge else ""
            score = Column(f"{name.capitalize()}, held out", error="Standard error")
            parts.append(Table(["Learner", score, "Standard error"], rows))
            parts.append(partial(loss_chart, self))
        record = {
            "status": self.status.value,
            "learns": self.learns,
            "score": _finite(self.score),
            "baselines": {one.name: one.score for one in self.bench.baselines},
            "constant_loss": _finite(self.constant),
            "losses": [_finite(value) for value in self.course.losses],
        }
        return Answer(self.sentence, [self.figure, *parts], self.to_dataset, record, title="Outcome")

    def figure(self) -> Figure:
        """The curve beside the baselines."""
        return outcome_chart(self)

    def to_dataset(self) -> xarray.Dataset:
        """The loss by step, the loss and the score of samples held out by record, and the baselines' scores."""
        import xarray

        course = self.course
        data = xarray.Dataset(
            {
                "loss": ("step", course.losses, {"long_name": self.loss_name}),
                "held_out_loss": ("record", course.held_out),
                "constant_loss": self.constant,
            },
            {"step": np.arange(len(course.losses)), "record": course.steps},
            {"status": self.status.value},
        )
        if self.scored:
            data["score"] = ("record", course.scores.mean(1))
            data["baseline_score"] = ("baseline", [one.score for one in self.bench.baselines])
            data = data.assign_coords(baseline=[one.name for one in self.bench.baselines])
        return data


def observe(setup: Setup, seconds: float = 2.5) -> Outcome:
    """Train as given; where the network has not arrived and is still moving, or might be slow, for longer.

    Models of which that would take too long are trained once, for as long as there is room.
    """
    if is_heavy(setup):
        return _observe(setup, _ONCE * room(setup), 1)
    outcome = _observe(setup, seconds, 1)
    slow = (
        outcome.status in (Status.LESS, Status.STALLS, Status.UNSEEN, Status.NOTHING) or not outcome.arrived
    )
    if not slow or outcome.course.stopped:
        return outcome
    try:
        longer = _observe(setup, seconds, LONGER)
    except OutOfTimeError:
        return outcome
    cut_short = longer.course.stopped and len(longer.course.losses) <= len(outcome.course.losses)
    return outcome if cut_short else longer


def observe_briefly(setup: Setup) -> Outcome:
    """One short training, however it ends: what cures are compared by."""
    outcome = _observe(setup, setup.training_seconds, 1)
    if outcome.course.stopped:
        raise OutOfTimeError("a training that was stopped cannot be compared with others.")
    return outcome


@once
def learned_by_heart(case: Case) -> float:
    """What part of the loss of a few samples goes away when the network is trained on them alone."""
    few = case.task.taken(torch.arange(min(_FEW, len(case.task.x))))
    run = train(replace(case.setup, task=few, batch_size=None, known={}), case.setup.training_seconds)
    if run.stopped:
        raise OutOfTimeError("a training that was stopped does not tell what can be learned by heart.")
    if run.error or run.diverged:
        return 0.0
    best = constant_loss(replace(case.setup, task=few, known={}))
    start = min(best, float(run.losses[0])) if math.isfinite(best) else float(run.losses[0])
    return 1 - float(np.min(run.losses)) / start if start > 0 else math.nan


@once
def outcome_of(case: Case) -> Outcome:
    """Of the network as it is, observed once for each recipe."""
    setup = case.setup
    known, key = setup.known, ("outcome", repr(setup.recipe), setup.batch_size, setup.training_seconds)
    if key not in known:
        known[key] = observe(setup, setup.training_seconds)
    outcome: Outcome = known[key]
    return outcome


def _observe(setup: Setup, seconds: float, longer: int) -> Outcome:
    extent = extent_of(setup, seconds)
    course = train(setup, seconds, longer)
    apart = divide(setup).apart
    return Outcome(
        course, bench_of(setup), constant_loss(setup), setup.task.loss_name, apart, extent.batch, longer > 1
    )


def _paired(differences: Array) -> tuple[float, float]:
    """Mean and standard error."""
    if not np.isfinite(differences).all():
        return -math.inf, 0.0
    return float(differences.mean()), _error(differences)


def _error(values: Array) -> float:
    return float(values.std() / math.sqrt(max(1, len(values) - 1))) if len(values) else math.nan


def _shown(score: float) -> str:
    return f"{round(score, 4) + 0.0:.3g}" if score > -10 else "far below 0"


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
