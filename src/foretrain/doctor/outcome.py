"""Will it learn? A short real training as given, judged on samples held out, beside baselines fitted to the same.

The verdict compares what the network gained over a constant answer with what the best baseline gained, each with the
standard error of the paired difference over the samples held out. "Learns" is said only of a network that was seen to
get clearly above the constant and near the best baseline.

How far a training goes is counted in work and not in time (multiplications, and a price for every operation that is
called), so that every machine sees the same steps.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from foretrain.compare.task import Task
from foretrain.doctor.baselines import (
    Baseline,
    Judge,
    Measure,
    fit_baselines,
    fit_readout,
    measure_for,
    readout_features,
)
from foretrain.doctor.budget import default_budget
from foretrain.doctor.outcome_chart import loss_chart, outcome_chart
from foretrain.doctor.setup import (
    SPEED,
    STEP_PASSES,
    Case,
    Setup,
    in_parts,
    once,
    samples_at_once,
    seen_in_a_pass,
    work_of,
)
from foretrain.doctor.step_task import StepTask
from foretrain.doctor.trials import descend
from foretrain.empirical.models.model import unchanged
from foretrain.support.answers import Answer, Column, Figure, Result, Table
from foretrain.support.deadline import OutOfTimeError
from foretrain.support.errors import ForetrainError, NotSupportedError
from foretrain.support.progress import Progress
from foretrain.support.seeds import integer, torch_generator

if TYPE_CHECKING:
    import xarray

Array = NDArray[np.float64]

STEPS = 300
_LONGER = 4  # times as many where the network has not arrived, if there is room for it
_FEWEST_STEPS = 80
_SMALL_BATCH = 16
_FEWEST_HELD_OUT = 10
_MOST_HELD_OUT = 512
_ONCE = 0.75  # of that, where there is one training alone
_RECORDS = 25
_FEW_RECORDS = 13  # of trainings that take long
_ROOM = 0.43  # of the usual budget: seconds that all trainings of an outcome may take, counted
_HEAVIEST = 300.0  # seconds of one training, counted: those of large models are several times faster
_SMALLEST_BATCH, _LEAST_STEPS = 4, 20  # of such models
_CALL = 1.5e-5  # seconds for each operation that is called, forwards or backwards
_HISTORY = 1e7  # numbers that the search for a constant remembers of one kind: 40 MB
_BLOWN_UP = 1e3  # times the loss at the start or of a constant: it does not come back
_SURE = 3.0  # standard errors from which on a difference is taken for real
_SURE_OF_FAR = 2.0  # the same for a network that has less than half of what the best baseline has
_NEAR = 0.8  # of what the best baseline gains: a network that is still rising may be so far away from it
_ENOUGH = 0.5  # of what the best baseline gains: below, the network has learned less than a simple learner
_LITTLE = 0.03  # of the loss of a constant: less is no proof of learning where answers cannot be scored
_SEES = 1e-3  # of the variation of the answers: less is rounding
_FEW = 8  # samples that any network should learn by heart
_ONE_CLASS = 0.9  # of the labels: an answer for all samples would pass for a good one
_LOOKED_AHEAD = 8
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


@dataclass(frozen=True, eq=False)
class Run:
    """A training: the loss of every step, and at some ``steps`` the loss and the scores of the samples held out."""

    losses: Array
    steps: Array
    held_out: Array  # the loss at these steps
    scores: Array  # (records, samples); without columns where only the loss can tell
    trained_score: float  # of the training samples at the end
    model: nn.Module = field(repr=False)
    largest_gradients: Mapping[str, float] = field(default_factory=dict, repr=False)
    error: str = ""
    stopped: bool = False  # before its end, because the time was over

    @property
    def diverged(self) -> bool:
        """Whether the loss has left all bounds."""
        return not len(self.losses) or not math.isfinite(self.losses[-1])

    @property
    def best_scores(self) -> Array:
        """By sample, over the three records in a row that are best: training may be stopped there."""
        width = min(3, len(self.scores))
        windows = [self.scores[end - width : end].mean(0) for end in range(width, len(self.scores) + 1)]
        return np.asarray(max(windows, key=lambda scores: scores.mean()))

    @property
    def end(self) -> float:
        """The loss of the samples held out, the median over the last records; inf where it has diverged."""
        return (
            math.inf if self.diverged else float(np.median(self.held_out[-max(1, len(self.held_out) // 8) :]))
        )


@dataclass(frozen=True, eq=False)
class Division:
    """Samples to train on and samples held out; the same where there are too few to hold any out."""

    training: Task
    held_out: Task
    apart: bool


def divide(setup: Setup) -> Division:
    """A fifth is held out, at most some hundreds; by the seed."""
    total = len(setup.task.x)
    if "held out" not in setup.known:
        setup.known["held out"] = min(total // 5, seen_in_a_pass(setup, _MOST_HELD_OUT))
    count = setup.known["held out"]
    if count < _FEWEST_HELD_OUT:
        return Division(setup.task, setup.task, False)
    order = torch.randperm(total, generator=torch_generator(setup.seed))
    return Division(setup.task.taken(order[count:]), setup.task.taken(order[:count]), True)


class _Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def seconds_of_step(setup: Setup, batch: int) -> float:
    """About what one step costs on one core, counted and not timed."""
    if "calls" not in setup.known:
        model = copy.deepcopy(setup.model).eval()
        few = setup.task.taken(torch.arange(min(2, len(setup.task.x))))
        with _Calls() as calls:  # type: ignore[no-untyped-call]
            few.value(model)
        setup.known["calls"] = calls.count
    calls_of_step: int = STEP_PASSES * (setup.known["calls"] + len(list(setup.model.parameters())))
    parameters = sum(p.numel() for p in setup.model.parameters())
    multiplications = STEP_PASSES * batch * work_of(setup).total + 10 * parameters
    return multiplications / SPEED + _CALL * calls_of_step


@dataclass(frozen=True)
class Extent:
    """How far a training goes."""

    batch: int
    steps: int


def extent_of(setup: Setup, seconds: float) -> Extent:
    """Steps of the user's batches, fewer samples in each where the time would not allow the fewest steps."""
    total = len(divide(setup).training.x)
    batch = min(setup.batch_size or total, total)
    wanted = STEPS if setup.batch_size is None else _FEWEST_STEPS
    while batch > _SMALL_BATCH and seconds_of_step(setup, batch) * wanted > seconds:
        batch = max(_SMALL_BATCH, batch // 2)
    while batch > _SMALLEST_BATCH and seconds_of_step(setup, batch) * _FEWEST_STEPS > _HEAVIEST:
        batch = max(_SMALLEST_BATCH, batch // 2)
    each = seconds_of_step(setup, batch)
    fewest = max(_LEAST_STEPS, min(_FEWEST_STEPS, int(_HEAVIEST / each)))
    return Extent(batch, max(fewest, min(STEPS, int(seconds / each))))


def train(setup: Setup, seconds: float, longer: int = 1) -> Run:
    """The network as this setup has it, for some steps; known trainings are not made again."""
    extent = extent_of(setup, seconds)
    key = ("course", repr(setup.recipe), extent, longer)
    course: Run = setup.known[key] if key in setup.known else _train(setup, extent, longer)
    if not course.stopped:  # cures are compared with trainings of the same length
        setup.known[key] = course
    return course


def _train(setup: Setup, extent: Extent, longer: int) -> Run:
    division, steps = divide(setup), extent.steps * longer
    model = copy.deepcopy(setup.model).train()
    losses, records, held_out, scores = list[float](), list[int](), list[float](), list[Array]()
    gradients = dict.fromkeys((name for name, p in model.named_parameters() if p.requires_grad), 0.0)
    error, limit, stopped = "", math.inf, False
    count = _FEW_RECORDS if is_heavy(setup) else _RECORDS
    wanted = set(np.unique(np.linspace(0, steps, count).astype(int)).tolist())
    with torch.random.fork_rng(devices=[]), Progress("training as it is", total=steps) as bar:
        torch.manual_seed(integer(setup.seed))
        optimizer = setup.recipe.build(model)
        batches = _batches(division.training, extent.batch, setup)
        for step in range(steps + 1):
            if step in wanted or stopped:
                records.append(step)
                loss, score = look_at_rest(setup, model)
                held_out.append(loss)
                scores.append(score)
            if step == steps or stopped:
                break
            try:
                losses.append(descend(optimizer, model, next(batches)))
            except (RuntimeError, ValueError, IndexError, TypeError, ForetrainError) as failure:
                error = (str(failure).splitlines() or [type(failure).__name__])[0]
                break
            if step in wanted:
                for name, parameter in model.named_parameters():
                    if name in gradients and parameter.grad is not None:
                        gradients[name] = max(gradients[name], float(parameter.grad.abs().max()))
            if step == 0:
                limit = _BLOWN_UP * max(abs(losses[0]), constant_loss(setup), 1e-6)
            if not math.isfinite(losses[-1]) or losses[-1] > limit:
                losses[-1] = math.inf
                break
            try:
                bar.advance()
            except OutOfTimeError:
                if not is_heavy(setup):
                    raise
                stopped = step + 1 >= _LEAST_STEPS
        trained = _score_on_training(setup, model) if not error else math.nan
    return Run(
        np.array(losses),
        np.array(records),
        np.array(held_out),
        np.array(scores),
        trained,
        model.eval(),
        gradients,
        error,
        stopped,
    )


def _batches(task: Task, size: int, setup: Setup) -> Iterator[Task]:
    """All samples in every step, or parts of a new order in every epoch."""
    source, total = torch_generator(setup.seed), len(task.x)
    while True:
        if size >= total:
            yield task
            continue
        order = torch.randperm(total, generator=source)
        for start in range(0, total - size + 1, size):
            yield task.taken(order[start : start + size])


def look_at_rest(setup: Setup, model: nn.Module) -> tuple[float, Array]:
    """The loss and the scores of the samples held out, by one pass where the loss is one of the outputs."""
    bench, division = bench_of(setup), divide(setup)
    task = division.held_out
    if bench.judge is None or isinstance(task, StepTask):
        loss = value_at_rest(setup, model, task)
        return loss, scores_of(setup, model)
    outputs = outputs_at_rest(setup, model, task)
    try:
        loss = float(task.loss(outputs, task.y))
    except (RuntimeError, ValueError, IndexError):
        loss = math.nan
    return loss, _scores(setup, bench.judge, division, model, outputs)


def value_at_rest(setup: Setup, model: nn.Module, task: Task) -> float:
    """The loss without dropout, with the running statistics of batch normalisation; nan where it cannot be had."""
    training = model.training
    model.eval()
    try:
        with unchanged(model):
            parts = [(len(part.x), part.value(model)) for part in in_parts(setup, task)]
        return sum(count * value for count, value in parts) / len(task.x)
    except (RuntimeError, ValueError, IndexError):
        return math.nan
    finally:
        model.train(training)


def outputs_at_rest(setup: Setup, model: nn.Module, task: Task) -> Tensor:
    """Outputs in evaluation mode."""
    training = model.training
    model.eval()
    try:
        with unchanged(model), torch.no_grad():
            parts = [model(part.x) for part in in_parts(setup, task)]
            return parts[0] if len(parts) == 1 else torch.cat(parts)
    finally:
        model.train(training)


@dataclass(frozen=True, eq=False)
class Bench:
    """The samples held out, and what judges answers for them; the same for every network of these data."""

    judge: Judge | None
    baselines: tuple[Baseline, ...]
    known: Tensor | None = field(default=None, repr=False)  # targets of the training samples


def bench_of(setup: Setup) -> Bench:
    """Made once for each set of data."""
    if "bench" not in setup.known:
        setup.known["bench"] = _make_bench(setup)
    bench: Bench = setup.known["bench"]
    return bench


def _make_bench(setup: Setup) -> Bench:
    division = divide(setup)
    model = Case(setup).model
    try:
        outputs = outputs_at_rest(setup, model, _first(division.held_out, _SMALL_BATCH))
    except NotSupportedError:  # only the step of a whole batch knows how the model is called
        return Bench(None, ())
    measure = measure_for(outputs, division.held_out.y, setup.task.loss)
    if measure is None:
        return Bench(None, ())
    measure = as_counted(measure, _first(division.held_out, _SMALL_BATCH), outputs)
    if measure.kind == "labels" and setup.task.y.ndim == 1:
        shares = torch.bincount(setup.task.y.clamp_min(0)).double() / len(setup.task.y)
        measure = replace(measure, balanced=_ONE_CLASS < float(shares.max()) < 1)
    wanted = _targets(measure, division.held_out.y, outputs)
    known = _targets(measure, division.training.y, outputs)
    data = (division.training.x, known), (division.held_out.x, wanted)
    positions = position_count(division.held_out.x, wanted, measure)
    causal = positions > 1 and future_share(model, division.held_out.x, measure) < _SEES
    judge, baselines = fit_baselines(*data, measure, positions, causal, integer(setup.seed) % 2**31)
    if not division.apart:
        return Bench(judge, (baselines[0],), known)
    some = _first(division.training, seen_in_a_pass(setup, len(known)))
    pooled = [_pooled_features(setup, model, task, positions) for task in (some, division.held_out)]
    if pooled[0] is not None and pooled[1] is not None:
        baselines.append(fit_readout(pooled[0], known[: len(pooled[0])], pooled[1], judge, positions))
    return Bench(judge, tuple(baselines), known)


def position_count(x: Any, wanted: Tensor, measure: Measure) -> int:
    """Of the answers, where they lie along the second axis of the inputs; 1 where each sample has one answer."""
    if not isinstance(x, Tensor) or x.ndim < 2 or (x.is_floating_point() and x.ndim < 3):
        return 1
    whole = measure.kind == "labels"
    fits = wanted.shape[1] == x.shape[1] if whole else wanted.shape[1] % x.shape[1] == 0
    return x.shape[1] if fits and wanted.shape[1] > 1 else 1


def future_share(model: nn.Module, x: Tensor, measure: Measure) -> float:
    """How much answers in the first half change with inputs in the second half, relative to their variation."""
    middle, some = x.shape[1] // 2, x[: 2 * _LOOKED_AHEAD]
    other = some.clone()
    other[:, middle:] = some.roll(len(some) // 2, 0)[:, middle:]
    with torch.no_grad():
        outputs, changed = model(some), model(other)
    axis = 2 if measure.kind == "labels" and measure.axis == 1 else 1
    before = (outputs - changed).narrow(axis, 0, middle).abs().mean()
    return float(before / (outputs - outputs.mean(0)).abs().mean().clamp_min(1e-12))


def as_counted(measure: Measure, task: Task, outputs: Tensor) -> Measure:
    """The same without labels and positions whose outputs the loss does not look at.

    A label of whole samples is not left out: who gives a sample wants it learned.
    """
    if measure.kind != "labels" or task.y.shape == outputs.shape:
        return measure
    if task.y.ndim < 2:
        return measure
    labels, counts = task.y.reshape(len(task.y), -1), counted_positions(task, outputs, measure)
    unread = tuple((~counts.any(0)).nonzero().ravel().tolist())
    read = counts.any(0).expand_as(labels)
    ignored = [
        int(one) for one in torch.unique(labels[read]) if not bool(counts[read & (labels == one)].any())
    ]
    return replace(measure, ignored=tuple(ignored), unread=unread)


def counted_positions(task: Task, outputs: Tensor, measure: Measure) -> Tensor:
    """(samples, positions): whether the loss changes with the outputs there."""
    with torch.enable_grad():
        points = (
            torch.randn(outputs.shape, generator=torch.Generator().manual_seed(0))
            .to(outputs)
            .requires_grad_()
        )
        (slope,) = torch.autograd.grad(task.loss(points, task.y), points)
    return (slope != 0).any(measure.axis).reshape(len(outputs), -1)


def _targets(measure: Measure, y: Tensor, outputs: Tensor) -> Tensor:
    shape = (len(y), *outputs.shape[1:])
    return measure.targets(y, torch.empty(shape, device="meta") if y.shape == shape else outputs)


def _pooled_features(setup: Setup, model: nn.Module, task: Task, positions: int) -> Tensor | None:
    """What the last layer is given, (samples, any); averaged over positions where the answers have none."""
    rows = []
    for part in in_parts(setup, task):
        features = readout_features(model, partial(outputs_at_rest, setup, model, part))
        if features is None or len(features) != len(part.x):
            return None
        if positions > 1 and (features.ndim != 3 or features.shape[1] != positions):
            return None
        if positions == 1 and features.ndim > 2:
            features = features.reshape(len(features), -1, features.shape[-1]).mean(1)
        rows.append(features.reshape(len(features), -1))
    return torch.cat(rows)


def _first(task: Task, count: int) -> Task:
    return task.taken(torch.arange(min(count, len(task.x))))


def scores_of(setup: Setup, model: nn.Module) -> Array:
    """Of the samples held out, one by one; empty where only the loss can tell."""
    bench, division = bench_of(setup), divide(setup)
    if bench.judge is None:
        return np.zeros(0)
    outputs = outputs_at_rest(setup, model, division.held_out)
    return _scores(setup, bench.judge, division, model, outputs)


def _scores(setup: Setup, judge: Judge, division: Division, model: nn.Module, outputs: Tensor) -> Array:
    if not torch.isfinite(outputs).all():
        return np.full(len(outputs), -np.inf if judge.measure.kind == "numbers" else 0.0)
    training, known = None, bench_of(setup).known
    if judge.measure.kind == "sides" and known is not None:
        some = _first(division.training, seen_in_a_pass(setup, len(known)))
        training = outputs_at_rest(setup, model, some), known[: len(some.x)]
    return judge.scores(judge.read(outputs, training))


def _score_on_training(setup: Setup, model: nn.Module) -> float:
    bench, division = bench_of(setup), divide(setup)
    if bench.judge is None or bench.known is None:
        return math.nan
    task = _first(division.training, seen_in_a_pass(setup, len(bench.known)))
    known = bench.known[: len(task.x)]
    judge = Judge.of(bench.judge.measure, known, known)
    outputs = outputs_at_rest(setup, model, task)
    return float(_scores(setup, judge, Division(task, task, False), model, outputs).mean())


def constant_loss(setup: Setup) -> float:
    """The least loss that a constant answer has on the samples held out, fitted to the training samples."""
    if "constant loss" not in setup.known:
        setup.known["constant loss"] = _constant_loss(setup)
    value: float = setup.known["constant loss"]
    return value


def _constant_loss(setup: Setup) -> float:
    division = divide(setup)
    training, judged = (
        _first(task, min(256, samples_at_once(setup))) for task in (division.training, division.held_out)
    )
    try:
        outputs = outputs_at_rest(setup, Case(setup).model, training)
        answer = outputs.mean(0, keepdim=True).detach().clone().requires_grad_()
        history = max(5, min(100, int(_HISTORY / answer.numel())))
        optimizer = torch.optim.LBFGS(
            [answer], max_iter=50, history_size=history, line_search_fn="strong_wolfe"
        )

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = training.loss(answer.expand_as(outputs), training.y)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        with torch.enable_grad():
            optimizer.step(closure)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            return float(judged.loss(answer.expand(len(judged.x), *answer.shape[1:]), judged.y))
    except (RuntimeError, ValueError, IndexError, ForetrainError):
        return math.nan


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
        """The verdict."""
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
            return Status.LEARNS if sure and gain > _LITTLE * abs(self.constant) else Status.UNSEEN
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
        steps = f"in {len(course.losses)} steps of {self.batch} samples"
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
        steps = f"{len(course.losses)} steps"
        beside = ""
        if self.scored:
            rival = self.best or self.bench.baselines[0]
            score = self.score if self.apart else course.trained_score
            moving = " and rising" if status is Status.LEARNS and not self.arrived else ""
            beside = (
                f"{name} {_shown(score)} after {steps}{moving}, where {rival.name} has {_shown(rival.score)}"
            )
        match status:
            case Status.LEARNS:
                said = (
                    beside
                    or f"in {steps} the loss fell to {course.end:.3g}, a constant has {self.constant:.3g}"
                )
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
                said = (
                    beside
                    or f"after {steps} the loss is {course.end:.3g}, a constant has {self.constant:.3g}"
                )
                return f"It was not seen to learn: {said}."
            case Status.DIVERGES:
                return f"Training diverges: after {steps} the loss has left all bounds."
        return f"It cannot be trained as given: {course.error}."

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


def is_heavy(setup: Setup) -> bool:
    """Whether a longer training would take too long, counted; then the first one is stopped when the time is over."""
    extent = extent_of(setup, setup.training_seconds)
    return (1 + _LONGER) * extent.steps * seconds_of_step(setup, extent.batch) > _room(setup)


def _room(setup: Setup) -> float:
    return _ROOM * default_budget(setup.trained_parameters)


def observe(setup: Setup, seconds: float = 2.5) -> Outcome:
    """Train as given; where the network has not arrived and is still moving, or might be slow, for longer.

    Models of which that would take too long are trained once, for as long as there is room.
    """
    if is_heavy(setup):
        return _observe(setup, _ONCE * _room(setup), 1)
    outcome = _observe(setup, seconds, 1)
    slow = (
        outcome.status in (Status.LESS, Status.STALLS, Status.UNSEEN, Status.NOTHING) or not outcome.arrived
    )
    return _observe(setup, seconds, _LONGER) if slow else outcome


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
    if run.error or run.diverged:
        return 0.0
    best = constant_loss(replace(case.setup, task=few, known={}))
    start = min(best, float(run.losses[0])) if math.isfinite(best) else float(run.losses[0])
    return 1 - float(np.min(run.losses)) / start if start > 0 else math.nan


@once
def outcome_of(case: Case) -> Outcome:
    """Of the network as it is, observed once."""
    return observe(case.setup, case.setup.training_seconds)


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
