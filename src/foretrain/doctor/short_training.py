"""A short real training as given, and the samples by which it is judged.

How far a training goes is counted in work and not in time (multiplications, and a price for every operation that is
called), so that every machine sees the same steps. Some samples are held out; answers for them are scored beside
those of baselines fitted to the others.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from foretrain.compare.task import Loss, Task
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
from foretrain.doctor.finding import number_of
from foretrain.doctor.setup import (
    SPEED,
    STEP_PASSES,
    Case,
    Setup,
    in_parts,
    samples_at_once,
    seen_in_a_pass,
    work_of,
)
from foretrain.doctor.step_task import StepTask
from foretrain.doctor.trials import descend
from foretrain.empirical.models.model import unchanged
from foretrain.support.errors import ForetrainError, NotSupportedError, error_text
from foretrain.support.progress import OutOfTimeError, Progress, within
from foretrain.support.seeds import integer, torch_generator

Array = NDArray[np.float64]

STEPS = 300
LONGER = 4  # times as many where the network has not arrived, if there is room for it
_ROOM = 0.43  # of the usual budget: seconds that all trainings of an outcome may take, counted
_FEWEST_STEPS = 80
_SMALL_BATCH = 16
_FEWEST_HELD_OUT = 10
_MOST_HELD_OUT = 512
_RECORDS = 25
_FEW_RECORDS = 13  # of trainings that take long
_HEAVIEST = 300.0  # seconds of one training, counted: those of large models are several times faster
_SMALLEST_BATCH, _LEAST_STEPS = 4, 20  # of such models
_CALL = 1.5e-5  # seconds for each operation that is called, forwards or backwards
_HISTORY = 4e6  # numbers that the search for a constant remembers of one kind: 16 MB
_BLOWN_UP = 1e3  # times the loss at the start or of a constant: it does not come back
_SEES = 1e-3  # of the variation of the answers: less is rounding
ALIKE = 0.3  # of neighbouring targets: more than a few accidents
_RARE = 3  # samples held out of a class: fewer must not count as much as all others together
_ASIDE, _FAR_ASIDE = 0.5, 20.0  # deviations by which outputs miss targets; times the largest of them
_LOPSIDED = 0.5  # of what a miss costs may depend on its side
_ONE_CLASS = 0.9  # of the labels: an answer for all samples would pass for a good one
_LOOKED_AHEAD, _FEWEST_AHEAD = 16, 4  # samples
_WHOLE = 10**6  # outputs that are looked at together


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
    unfinished: bool = False  # so early that it cannot show that nothing is learned
    forgets: bool = False  # samples were never shuffled, and neighbours are alike
    kept_apart: float = (
        math.nan
    )  # how far answers differ between samples, over how far they did before training

    @property
    def length(self) -> str:
        """The number of its steps, in words."""
        return number_of(len(self.losses), "step") + (", cut by the budget" if self.stopped else "")

    @property
    def diverged(self) -> bool:
        """Whether the loss has left all bounds."""
        return not len(self.losses) or not math.isfinite(self.losses[-1])

    @property
    def best_scores(self) -> Array:
        """By sample, over the three records in a row that are best: training may be stopped there.

        Where one step may unlearn what another taught, over the last third: no moment to stop at stands out.
        """
        if self.forgets:
            return np.asarray(self.scores[-max(1, len(self.scores) // 3) :].mean(0))
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
    places: Tensor | None = None  # of the training samples among all; None: as they are


def divide(setup: Setup) -> Division:
    """A fifth is held out, at most some hundreds; by the seed."""
    total = len(setup.task.x)
    if "held out" not in setup.known:
        setup.known["held out"] = min(total // 5, seen_in_a_pass(setup, _MOST_HELD_OUT))
    count = setup.known["held out"]
    if count < _FEWEST_HELD_OUT:
        return Division(setup.task, setup.task, False)
    order = torch.randperm(total, generator=torch_generator(setup.seed))
    return Division(setup.task.taken(order[count:]), setup.task.taken(order[:count]), True, order[count:])


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


def is_heavy(setup: Setup) -> bool:
    """Whether a longer training would take too long, counted; then the first one is stopped when the time is over."""
    extent = extent_of(setup, setup.training_seconds)
    return (1 + LONGER) * extent.steps * seconds_of_step(setup, extent.batch) > room(setup)


def room(setup: Setup) -> float:
    """Seconds that all trainings behind an outcome may take, counted."""
    return _ROOM * default_budget(setup.trained_parameters)


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
    bench_of(setup)  # the looks need it, and it may take long
    constant = constant_loss(setup)
    with torch.random.fork_rng(devices=[]), Progress("training as it is", total=steps) as bar:
        torch.manual_seed(integer(setup.seed))
        optimizer = setup.recipe.build(model)
        batches = _batches(division, extent.batch, setup)
        while True:
            step = len(losses)
            if (step in wanted or stopped) and step not in records:
                with within(None):  # where the time is over, the training ends with what it has
                    loss, score = look_at_rest(setup, model)
                records.append(step)
                held_out.append(loss)
                scores.append(score)
            if step == steps or stopped:
                break
            try:
                losses.append(descend(optimizer, model, next(batches)))
                bar.advance()
            except OutOfTimeError:
                if not losses:
                    raise
                stopped = True
            except Exception as failure:  # whatever a step of the user's model stumbles over
                error = error_text(failure)
                break
            if step in wanted:
                for name, parameter in model.named_parameters():
                    if name in gradients and parameter.grad is not None:
                        gradients[name] = max(gradients[name], float(parameter.grad.abs().max()))
            if step == 0:
                limit = _BLOWN_UP * max(abs(losses[0]), constant, 1e-6)
            if not math.isfinite(losses[-1]) or losses[-1] > limit:
                losses[-1] = math.inf
                break
        trained, kept_apart = math.nan, math.nan
        if not error and not stopped:
            trained = _score_on_training(setup, model)
        elif stopped and not division.apart and scores[-1].size:
            trained = float(scores[-1].mean())
        if bench_of(setup).judge is None and not error:
            with within(None):
                kept_apart = _variation(setup, model) / _variation(setup, setup.model)
    return Run(
        losses=np.array(losses),
        steps=np.array(records),
        held_out=np.array(held_out),
        scores=np.array(scores),
        trained_score=trained,
        model=model.eval(),
        largest_gradients=gradients,
        error=error,
        stopped=stopped,
        unfinished=stopped and len(losses) < (_LEAST_STEPS if is_heavy(setup) else extent.steps),
        forgets=setup.in_order and alike_neighbours(setup.task.y) > ALIKE,
        kept_apart=kept_apart,
    )


def alike_neighbours(y: Tensor | None) -> float:
    """How alike the targets of neighbouring samples are: 0 by chance, 1 if they come sorted."""
    if y is None or len(y) < 2:
        return 0.0
    rows = y.reshape(len(y), -1).double()
    if y.is_floating_point():
        centred = rows - rows.mean(0)
        return float((centred[1:] * centred[:-1]).mean() / centred.square().mean().clamp_min(1e-300))
    same = float((rows[1:] == rows[:-1]).all(1).double().mean())
    chance = float((torch.unique(rows, dim=0, return_counts=True)[1] / len(rows)).square().sum())
    return (same - chance) / (1 - chance) if chance < 1 else 0.0


def _variation(setup: Setup, model: nn.Module) -> float:
    """How far answers differ between samples, relative to their size; nan where the model gives none by itself."""
    try:
        outputs = outputs_at_rest(setup, model, _first(divide(setup).held_out, _SMALL_BATCH)).double()
    except (RuntimeError, ValueError, IndexError, TypeError, ForetrainError):
        return math.nan
    size = outputs.square().mean().sqrt().clamp_min(1e-300)
    return float((outputs - outputs.mean(0)).square().mean().sqrt() / size) + 1e-300


def _batches(division: Division, size: int, setup: Setup) -> Iterator[Task]:
    """All samples in every step, or parts of a new order in every epoch; of the given one if it is never shuffled."""
    task, source = division.training, torch_generator(setup.seed)
    total = len(task.x)
    while True:
        if size >= total:
            yield task
            continue
        order = torch.randperm(total, generator=source)
        if setup.in_order:
            order = torch.arange(total) if division.places is None else division.places.argsort()
        for start in range(0, total - size + 1, size):
            yield task.taken(order[start : start + size])


def look_at_rest(setup: Setup, model: nn.Module) -> tuple[float, Array]:
    """The loss and the scores of the samples held out, by one pass where the loss is one of the outputs."""
    judge, task = bench_of(setup).judge, divide(setup).held_out
    if judge is None:
        return value_at_rest(setup, model, task), np.zeros(0)
    if isinstance(task, StepTask):
        return value_at_rest(setup, model, task), _scores(setup, judge, task, model)
    losses = list[float]()

    def add_loss(part: Task, outputs: Tensor) -> None:
        try:
            losses.append(float(part.loss(outputs, part.y)) * len(part.x) / len(task.x))
        except (RuntimeError, ValueError, IndexError):
            losses.append(math.nan)

    scores = _scores(setup, judge, task, model, add_loss)
    return sum(losses), scores


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
    parts = [outputs for _, outputs in _outputs_in_parts(setup, model, task)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _outputs_in_parts(setup: Setup, model: nn.Module, task: Task) -> Iterator[tuple[Task, Tensor]]:
    """Parts of a task and their outputs in evaluation mode."""
    for part in in_parts(setup, task):
        training = model.training
        model.eval()
        try:
            with unchanged(model), torch.no_grad():
                outputs = model(part.x)
        finally:
            model.train(training)
        yield part, outputs
        del outputs  # before the next ones are made


@dataclass(frozen=True, eq=False)
class Bench:
    """The samples held out, and what judges answers for them; the same for every network of these data."""

    judge: Judge | None
    baselines: tuple[Baseline, ...]
    known: Tensor | None = field(default=None, repr=False)  # targets of the training samples
    outputs: int = 1  # numbers that the model returns for a sample


def bench_of(setup: Setup) -> Bench:
    """Made once for each set of data."""
    if "bench" not in setup.known:
        setup.known["bench"] = _make_bench(setup)
    bench: Bench = setup.known["bench"]
    return bench


def _asks_for_targets(loss: Loss, y: Tensor, outputs: Tensor) -> bool:
    """False where good outputs explain little of the targets' variance, as logarithms of rates or quantiles do.

    Then misses to one side cost much more than to the other, or the best outputs are others than the targets; a loss
    that falls without bound when outputs leave the targets is a mistake, and no reason to score them less.
    """
    y = y[: len(outputs)].to(outputs.dtype)
    if y.shape != outputs.shape:
        return True
    deviation = y.double().std(correction=0).clamp_min(1e-6).to(y)
    nowhere, far = torch.zeros_like(y), _FAR_ASIDE * y.abs().max().clamp_min(1.0)
    tried = (y, y + _ASIDE * deviation, y - _ASIDE * deviation, nowhere, nowhere + far, nowhere - far)
    try:
        exact, above, below, near, *away = (float(loss(outputs, y)) for outputs in tried)
    except (RuntimeError, ValueError, IndexError, TypeError):
        return True
    dearer = min(above, below) - exact
    return abs(above - below) < _LOPSIDED * dearer if dearer > 0 else not min(away) > near


def _make_bench(setup: Setup) -> Bench:
    division = divide(setup)
    case = Case(setup)
    model, few = case.model, _first(division.held_out, case.at_once(_SMALL_BATCH))
    try:
        outputs = outputs_at_rest(setup, model, few)
    except NotSupportedError:  # only the step of a whole batch knows how the model is called
        return Bench(None, ())
    measure = measure_for(outputs, division.held_out.y, setup.task.loss)
    if measure is None:
        return Bench(None, ())
    if measure.kind == "numbers" and not _asks_for_targets(setup.task.loss, division.held_out.y, outputs):
        return Bench(None, ())
    measure = as_counted(measure, few, outputs)
    if measure.kind == "labels" and setup.task.y.ndim == 1:
        counts = torch.bincount(division.held_out.y.clamp_min(0))
        common, rarest = float(counts.max()) / len(division.held_out.y), int(counts[counts > 0].min())
        measure = replace(measure, balanced=_ONE_CLASS < common < 1 and rarest >= _RARE)
    wanted = _targets(measure, division.held_out.y, outputs)
    known = _targets(measure, division.training.y, outputs)
    data = (division.training.x, known), (division.held_out.x, wanted)
    positions = position_count(division.held_out.x, wanted, measure)
    count = outputs[:1].numel()
    del outputs  # of a language model they are larger than all else
    causal = positions > 1 and future_share(model, division.held_out.x, measure) < _SEES
    judge, baselines = fit_baselines(*data, measure, positions, causal, integer(setup.seed) % 2**31)
    if not division.apart:
        return Bench(judge, (baselines[0],), known, count)
    some = _first(division.training, seen_in_a_pass(setup, len(known)))
    pooled = [_pooled_features(setup, model, task, positions) for task in (some, division.held_out)]
    if pooled[0] is not None and pooled[1] is not None:
        baselines.append(fit_readout(pooled[0], known[: len(pooled[0])], pooled[1], judge, positions))
    return Bench(judge, tuple(baselines), known, count)


def position_count(x: Any, wanted: Tensor, measure: Measure) -> int:
    """Of the answers, where they lie along the second axis of the inputs; 1 where each sample has one answer."""
    if not isinstance(x, Tensor) or x.ndim < 2 or (x.is_floating_point() and x.ndim < 3):
        return 1
    whole = measure.kind == "labels"
    fits = wanted.shape[1] == x.shape[1] if whole else wanted.shape[1] % x.shape[1] == 0
    return x.shape[1] if fits and wanted.shape[1] > 1 else 1


def future_share(model: nn.Module, x: Tensor, measure: Measure) -> float:
    """How much answers in the first half change with inputs in the second half, relative to their variation."""
    axis = 2 if measure.kind == "labels" and measure.axis == 1 else 1
    with torch.no_grad():
        # Fewer samples where each has many outputs, as words of a language.
        count = max(_FEWEST_AHEAD, min(_LOOKED_AHEAD, _WHOLE // max(1, model(x[:1]).numel())))
        x, middle = x[:count], x.shape[1] // 2
        other = x.clone()
        other[:, middle:] = x.roll(len(x) // 2, 0)[:, middle:]
        outputs = model(x)
        before = (outputs.narrow(axis, 0, middle) - model(other).narrow(axis, 0, middle)).abs_().mean()
        return float(before / (outputs - outputs.mean(0)).abs_().mean().clamp_min(1e-12))


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


def _scores(
    setup: Setup,
    judge: Judge,
    task: Task,
    model: nn.Module,
    look: Callable[[Task, Tensor], None] = lambda part, outputs: None,
) -> Array:
    """Of samples, one by one. ``look`` is shown their outputs too: together, or where they are many in parts."""
    bench, threshold = bench_of(setup), None
    known = bench.known
    if judge.measure.kind == "sides" and known is not None:
        some = _first(divide(setup).training, seen_in_a_pass(setup, len(known)))
        threshold = outputs_at_rest(setup, model, some), known[: len(some.x)]
    parts: Iterable[tuple[Task, Tensor]] = _outputs_in_parts(setup, model, task)
    if judge.measure.kind != "labels" or len(task.x) * bench.outputs <= _WHOLE:
        parts = [(task, outputs_at_rest(setup, model, task))]
    answers, finite = list[Tensor](), True
    for part, outputs in parts:
        look(part, outputs)
        finite = finite and bool(torch.isfinite(torch.stack(outputs.aminmax())).all())
        answers.append(judge.read(outputs, threshold))
    if not finite:
        return np.full(len(task.x), -np.inf if judge.measure.kind == "numbers" else 0.0)
    return judge.scores(torch.cat(answers))


def _score_on_training(setup: Setup, model: nn.Module) -> float:
    bench, division = bench_of(setup), divide(setup)
    if bench.judge is None or bench.known is None:
        return math.nan
    task = _first(division.training, seen_in_a_pass(setup, len(bench.known)))
    known = bench.known[: len(task.x)]
    judge = Judge.of(bench.judge.measure, known, known)
    return float(_scores(setup, judge, task, model).mean())


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
        answer = outputs_at_rest(setup, Case(setup).model, training).mean(0, keepdim=True).requires_grad_()
        history = max(3, min(100, int(_HISTORY / answer.numel())))
        optimizer = torch.optim.LBFGS(
            [answer], max_iter=50, history_size=history, line_search_fn="strong_wolfe"
        )

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = training.loss(answer.expand(len(training.x), *answer.shape[1:]), training.y)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        with torch.enable_grad():
            optimizer.step(closure)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            return float(judged.loss(answer.expand(len(judged.x), *answer.shape[1:]), judged.y))
    except (RuntimeError, ValueError, IndexError, ForetrainError):
        return math.nan
