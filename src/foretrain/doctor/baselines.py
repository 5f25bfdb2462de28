"""What simple learners make of the same samples: a constant, a linear model, nearest neighbours, a readout.

All of them see samples through a kernel between samples: the linear one is ridge regression in it, the neighbours
are the nearest in its distance. So inputs of any size cost the same, and tokens (equal or not, position by position)
are treated as features are. Ridges are chosen by generalised cross-validation (Golub, Heath & Wahba 1979).

Answers are scored in units that every learner shares, whatever the loss is: the share of right labels, or the share
of the targets' variance that is explained; with one number for each sample, so that differences have error bars.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Array = NDArray[np.float64]

_MOST_TARGETS = 4096  # numbers to predict for a sample
_MOST_ROWS = 1024  # samples that a baseline is fitted to: a matrix of their size is taken apart
_ROWS_AT_ONCE = 256  # samples that are compared with the fitted ones
_TABLE = 2**20  # numbers that are regressed at once: 8 MB
_WINDOW = 3  # positions up to the one that is labelled, of sequences with a label for each position
_NEIGHBOURS = 5
_RIDGES = np.logspace(-6, 3, 19)  # of the mean eigenvalue of the kernel
_MOST_NUMBERS = 100_000  # by which a threshold is chosen
_THRESHOLDS = 65  # that are tried for answers to yes-or-no questions


@dataclass(frozen=True)
class Measure:
    """How answers are scored. ``kind`` is "labels", "sides" (of a threshold) or "numbers".

    ``axis``: of the classes in the outputs. ``ignored`` labels and ``unread`` positions do not count: the loss does
    not look at them, as it should be of padding and of a question that is given.
    """

    kind: str
    axis: int = 1
    ignored: tuple[int, ...] = ()
    unread: tuple[int, ...] = ()
    balanced: bool = False  # every class counts as much as every other, however rare it is

    @property
    def name(self) -> str:
        """In words."""
        if self.kind == "numbers":
            return "explained variance"
        return "balanced accuracy" if self.balanced else "accuracy"

    def targets(self, y: Tensor, outputs: Tensor) -> Tensor:
        """What is to be answered: labels (samples, any), or numbers (samples, any)."""
        if self.kind != "labels":
            return y.reshape(len(y), -1).double()
        if y.shape == outputs.shape:  # probabilities of the classes
            y = y.argmax(self.axis)
        labels = y.reshape(len(y), -1).long()
        left_out = torch.isin(labels, torch.tensor(self.ignored, device=labels.device, dtype=labels.dtype))
        left_out[:, list(self.unread)] = True
        return torch.where(left_out, -1, labels)

    def hot(self, y: Tensor, outputs: Tensor) -> Tensor:
        """Labels as outputs: 1 for the right class and 0 for the others."""
        places = outputs.movedim(self.axis, -1).shape[:-1]
        labels = self.targets(y, outputs).clamp_min(0).reshape(places)
        return torch.zeros_like(outputs).scatter_(
            self.axis, labels.to(outputs.device).unsqueeze(self.axis), 1
        )


def measure_for(outputs: Tensor, y: Any, loss: Callable[[Any, Any], Tensor]) -> Measure | None:
    """How outputs of this shape are scored against these targets; None where only the loss can tell.

    Where there are as many positions as classes, the axis is that of the classes for which right answers have the
    smaller loss.
    """
    if not isinstance(y, Tensor) or not y.numel() or not outputs.ndim or y.is_complex():
        return None
    whole = not y.is_floating_point()
    axes = []
    for axis in dict.fromkeys((1, outputs.ndim - 1)) if whole and outputs.ndim >= 2 else ():
        apart = outputs.shape[1:axis] + outputs.shape[axis + 1 :]
        if y.shape[1:] == apart and int(y.max()) < outputs.shape[axis] > 1:
            axes.append(Measure("labels", axis))
    if axes:
        some = y[: len(outputs)]
        return min(axes, key=lambda one: float(loss(one.hot(some, outputs), some)) if len(axes) > 1 else 0.0)
    same = y[:1].numel() * len(outputs) == outputs.numel()
    if (whole and same and y.ndim == 1) or (same and y.shape[1:] == outputs.shape[1:]):
        values = torch.unique(y[:_MOST_ROWS])
        if len(values) == 2:
            return Measure("sides")
        shares = y.is_floating_point() and y.ndim == 2 and y.shape[1] > 1 and bool((y >= 0).all())
        if shares and torch.allclose(y.sum(1), torch.ones_like(y[:, 0]), atol=1e-3):
            return Measure("labels")
        return Measure("numbers")
    return Measure("numbers") if same and not whole else None


@dataclass(frozen=True, eq=False)
class Judge:
    """Scores answers for samples held out; what depends on the training samples alone is taken from them."""

    measure: Measure
    wanted: Tensor  # of the samples that are judged, (samples, any)
    usual: (
        Tensor  # the best constant answer, (1, any): of labels in hindsight, so that chance is not undercut
    )
    variance: float

    @staticmethod
    def of(measure: Measure, known: Tensor, wanted: Tensor) -> Judge:
        """``known``: the targets of the training samples."""
        if measure.kind == "numbers":
            usual = known.mean(0, keepdim=True)
            return Judge(measure, wanted, usual, float((wanted - usual).square().sum(1).mean()))
        return Judge(measure, wanted, wanted.mode(0, keepdim=True).values, 1.0)

    def scores(self, answers: Tensor) -> Array:
        """One number for each sample, whose mean is the score; answers as labels or as numbers, (samples, any)."""
        if self.measure.kind == "numbers":
            missed = (answers.double() - self.wanted).square().sum(1)
            return (1 - missed / max(self.variance, 1e-300)).cpu().numpy()
        counted = (
            self.wanted >= 0
            if self.measure.kind == "labels"
            else torch.ones_like(self.wanted, dtype=torch.bool)
        )
        right = ((answers == self.wanted) & counted).sum(1) / counted.sum(1).clamp_min(1)
        if self.measure.balanced:
            _, places, counts = torch.unique(self.wanted[:, 0], return_inverse=True, return_counts=True)
            right = right * (len(right) / (len(counts) * counts.double()))[places]
        return right.double().cpu().numpy()

    def read(self, outputs: Tensor, training: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """A network's outputs as answers; for two sides by the threshold that suits (outputs, targets) best."""
        if self.measure.kind == "labels":
            return outputs.argmax(self.measure.axis).reshape(len(outputs), -1)
        rows = outputs.reshape(len(outputs), -1).double()
        if self.measure.kind == "numbers" or training is None:
            return rows
        stride = max(1, training[0].numel() // _MOST_NUMBERS)
        seen, known = training[0].reshape(-1)[::stride].double(), training[1].reshape(-1)[::stride]
        low, high = known.min(), known.max()
        levels = torch.quantile(seen, torch.linspace(0, 1, _THRESHOLDS, dtype=torch.float64).to(seen))
        hits = [float(((seen > level) == (known == high)).double().mean()) for level in levels]
        return torch.where(rows > levels[int(np.argmax(hits))], high, low)


@dataclass(frozen=True, eq=False)
class Baseline:
    """A simple learner's answers for the samples held out: their scores, one for each sample.

    ``left_out``: what its answers for the training samples gain over a constant, each fitted to all others; there are
    more of these, so that they tell better whether there is anything to learn.
    """

    name: str
    scores: Array
    left_out: Array = field(default_factory=lambda: np.zeros(0))

    @property
    def score(self) -> float:
        """Their mean."""
        return float(self.scores.mean())


def fit_baselines(
    training: tuple[Any, Tensor],
    held_out: tuple[Any, Tensor],
    measure: Measure,
    positions: int = 1,
    causal: bool = False,
    seed: int = 0,
) -> tuple[Judge, list[Baseline]]:
    """Of (inputs, targets as ``Measure.targets`` gives them): constant, linear, neighbours, as far as they apply.

    ``positions``: of the targets along the second axis of the inputs. ``causal``: what is to be answered for one of
    them is known from those before it, so that no baseline may look further.
    """
    (x, known), (unseen, wanted) = training, held_out
    judge = Judge.of(measure, known, wanted)
    fitted = [Baseline("a constant", judge.scores(judge.usual.expand_as(wanted)))]
    if not isinstance(x, Tensor):
        return judge, fitted
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:_MOST_ROWS]
    x, known = x[chosen.to(x.device)], known[chosen.to(known.device)]
    columns = known.shape[1] * (len(torch.unique(known)) if measure.kind == "labels" else 1)
    if columns <= _MOST_TARGETS and not (causal and positions > 1):
        fitted += _learners(x, known, unseen, judge)
    if positions > 1:
        windows = _windows(x).flatten(0, 1), _windows(unseen).flatten(0, 1)
        fitted += _by_position(*windows, known, judge, positions, seed)
    best: dict[str, Baseline] = {}
    for one in fitted:
        if one.name not in best or one.score > best[one.name].score:
            best[one.name] = one
    return judge, list(best.values())


def fit_readout(
    features: Tensor, known: Tensor, unseen: Tensor, judge: Judge, positions: int = 1
) -> Baseline:
    """A linear readout of what the network makes of the inputs before it is trained; position by position."""
    name = "a linear readout of the untrained network"
    if positions > 1:
        rows, others = (values.reshape(len(values) * positions, -1) for values in (features, unseen))
        return replace(_by_position(rows, others, known, judge, positions, 0)[0], name=name)
    return Baseline(name, fit_learners(features, known, unseen, judge)[0].scores)


def fit_learners(features: Tensor, known: Tensor, unseen: Tensor, judge: Judge) -> list[Baseline]:
    """A linear model and nearest neighbours of (samples, features)."""
    places = torch.randperm(len(features), generator=torch.Generator().manual_seed(0))[:_MOST_ROWS]
    return _learners(features[places.to(features.device)], known[places.to(known.device)], unseen, judge)


def _learners(x: Tensor, known: Tensor, unseen: Tensor, judge: Judge) -> list[Baseline]:
    """The same of any inputs. Some of the targets are answered at a time, and for some of the unseen samples.

    A table of all samples, positions and labels would be larger than all else that the doctor needs.
    """
    kernel, own_judge = sample_kernel(x), Judge.of(judge.measure, known, known)
    labels = len(torch.unique(known)) if judge.measure.kind == "labels" else 1
    targets = torch.split(known, max(1, _TABLE // (len(known) * labels)), dim=1)
    ridge = Ridge.of(kernel, (_columns(judge, part) for part in targets))
    count = min(_NEIGHBOURS, max(1, len(known) - 1))

    def answers(answer: Callable[[Tensor], Tensor]) -> Tensor:
        """By a function from columns to columns, for all targets."""
        return torch.cat([_answers(judge, answer(_columns(judge, part)), part) for part in targets], dim=1)

    def neighbours(distances: Tensor) -> Tensor:
        places = distances.topk(count, dim=1, largest=False).indices.T
        return answers(lambda columns: sum((columns[one] for one in places), torch.zeros(())) / count)

    linear, near = [], []
    for others in torch.split(unseen, _ROWS_AT_ONCE):
        cross, distances = kernel.compare(others)
        linear.append(answers(partial(ridge.answers, cross)))
        near.append(neighbours(distances))
    sizes = kernel.own.diagonal()
    own_distances = (sizes[:, None] - 2 * kernel.own + sizes[None]).fill_diagonal_(torch.inf)
    constant = own_judge.scores(own_judge.usual.expand_as(known))
    return [
        Baseline(name, judge.scores(torch.cat(parts)), own_judge.scores(left_out) - constant)
        for name, parts, left_out in (
            ("a linear model", linear, answers(ridge.left_out)),
            ("nearest neighbours", near, neighbours(own_distances)),
        )
    ]


def _by_position(
    rows: Tensor, unseen: Tensor, known: Tensor, judge: Judge, positions: int, seed: int
) -> list[Baseline]:
    """The same for rows of (sample and position, any)."""
    targets, wanted = (values.reshape(len(values) * positions, -1) for values in (known, judge.wanted))
    chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:_MOST_ROWS]
    local = Judge(judge.measure, wanted, targets[:1], judge.variance / positions)
    fitted = _learners(rows[chosen.to(rows.device)], targets[chosen.to(targets.device)], unseen, local)
    return [Baseline(one.name, one.scores.reshape(-1, positions).mean(1)) for one in fitted]


def _windows(x: Tensor) -> Tensor:
    """(samples, positions, window, features): each position with the ones before it, zeros before the first."""
    before = torch.zeros_like(x[:, :1]).expand(-1, _WINDOW - 1, *x.shape[2:])
    return torch.cat([before, x], dim=1).unfold(1, _WINDOW, 1).movedim(-1, 2)


@dataclass(frozen=True, eq=False)
class Kernel:
    """Inner products of the samples that are fitted, and how others are compared with them."""

    own: Tensor
    rows: Tensor  # the features of the fitted samples
    features: Callable[[Tensor], Tensor]

    def compare(self, others: Tensor) -> tuple[Tensor, Tensor]:
        """Inner products and squared distances of others and the fitted ones, (others, fitted)."""
        unseen, width = self.features(others), max(1, self.rows.shape[1])
        cross = (unseen @ self.rows.T).double() / width
        sizes = unseen.square().sum(1).double() / width
        return cross, sizes[:, None] - 2 * cross + self.own.diagonal()[None]


def sample_kernel(x: Tensor) -> Kernel:
    """Of standardised features, or of tokens: at how many positions two samples agree, and in how many counts."""
    features = _standard_features(x) if x.is_floating_point() else _token_features(x)
    rows = features(x)
    return Kernel((rows @ rows.T).double() / max(1, rows.shape[1]), rows, features)


def _standard_features(x: Tensor) -> Callable[[Tensor], Tensor]:
    """Numbers of mean zero and size one over the samples x; what does not vary is left out."""

    def flat(values: Tensor) -> Tensor:
        return values.detach().reshape(len(values), -1).double().cpu()

    deviation, mean = torch.std_mean(flat(x), 0, correction=0)
    kept = deviation > 1e-6 * mean.abs() + 1e-300
    return lambda values: (flat(values) - mean)[:, kept] / deviation[kept]


def _token_features(x: Tensor) -> Callable[[Tensor], Tensor]:
    """Indicators of (position, token) and counts of tokens; tokens are hashed where there are many."""
    values = torch.unique(x.cpu())
    positions = x[:1].numel()
    size = max(1, min(len(values), 8192 // max(1, positions)))
    table = torch.arange(len(values))
    if size < len(values):
        table = torch.randint(size, (len(values),), generator=torch.Generator().manual_seed(0))

    def features(tokens: Tensor) -> Tensor:
        rows = tokens.reshape(len(tokens), -1).cpu().contiguous()
        places = table[torch.searchsorted(values, rows).clamp_max(len(values) - 1)]
        # Whole numbers, so that single precision is exact.
        indicators = torch.zeros(len(rows), (positions + 1) * size)
        indicators.scatter_(1, places + size * torch.arange(positions), 1.0)
        counts = indicators[:, positions * size :]
        counts.scatter_add_(1, places, torch.ones(places.shape))
        return indicators

    return features


def _columns(judge: Judge, known: Tensor) -> Tensor:
    """Targets as numbers to regress: one column for each position and label that occurs; what is ignored has none."""
    if judge.measure.kind != "labels":
        return known.double().cpu()
    labels = torch.unique(known)
    hot: Tensor = known[..., None] == labels[labels >= 0]
    return hot.double().reshape(len(known), -1).cpu()


def _answers(judge: Judge, columns: Tensor, known: Tensor) -> Tensor:
    """The way back from columns to answers."""
    columns = columns.to(judge.wanted.device)
    if judge.measure.balanced:  # by how much likelier than usual each class is
        columns = columns / _columns(judge, known).mean(0).to(columns)
    if judge.measure.kind == "labels":
        labels = torch.unique(known)
        labels = labels[labels >= 0]
        if not len(labels):  # none of these targets counts
            return known.new_full((len(columns), known.shape[1]), -1)
        chosen: Tensor = labels[columns.reshape(len(columns), known.shape[1], -1).argmax(2)]
        return chosen
    if judge.measure.kind == "sides":
        low, high = known.min(), known.max()
        return torch.where(columns > (low + high) / 2, high, low)
    return columns


@dataclass(frozen=True, eq=False)
class Ridge:
    """Kernel ridge regression of centred columns, with the ridge that generalised cross-validation chooses."""

    values: Tensor
    vectors: Tensor  # of the kernel of the fitted samples
    ridge: float

    @staticmethod
    def of(kernel: Kernel, parts: Iterable[Tensor]) -> Ridge:
        """One ridge for all columns, which come in parts."""
        values, vectors = torch.linalg.eigh(kernel.own)
        values = values.clamp_min(0)
        energy = torch.zeros_like(values)  # of all columns, by direction
        for columns in parts:
            energy += (vectors.T @ (columns - columns.mean(0))).square().sum(1)
        best, chosen = np.inf, 0.0
        for ridge in float(values.mean().clamp_min(1e-300)) * _RIDGES:
            left = ridge / (values + ridge)  # what is not fitted, by direction
            error = float(left.square() @ energy) / max(float(left.mean()) ** 2, 1e-12)
            if error < best:
                best, chosen = error, float(ridge)
        return Ridge(values, vectors, chosen)

    def answers(self, cross: Tensor, columns: Tensor) -> Tensor:
        """For samples with these inner products with the fitted ones."""
        mean = columns.mean(0, keepdim=True)
        weights = (self.vectors.T @ (columns - mean)) / (self.values + self.ridge)[:, None]
        return cross @ (self.vectors @ weights) + mean

    def left_out(self, columns: Tensor) -> Tensor:
        """For every fitted sample, as if it had not been among them: its residual over 1 - its leverage."""
        left = self.ridge / (self.values + self.ridge)
        residuals = self.vectors @ (left[:, None] * (self.vectors.T @ (columns - columns.mean(0))))
        return columns - residuals / (self.vectors.square() @ left)[:, None].clamp_min(1e-12)


def readout_features(model: nn.Module, run: Callable[[], Any]) -> Tensor | None:
    """What the last layer with weights is given while ``run`` calls the model; None where there is no such layer."""
    seen: list[Tensor] = []

    def keep(module: nn.Module, given: tuple[Any, ...]) -> None:
        if given and isinstance(given[0], Tensor) and given[0].is_floating_point():
            seen[:] = [given[0].detach()]

    layers = [
        m for m in model.modules() if not list(m.children()) and any(p.ndim >= 2 for p in m.parameters())
    ]
    handles = [layer.register_forward_pre_hook(keep) for layer in layers]
    try:
        with torch.no_grad():
            run()
    finally:
        for handle in handles:
            handle.remove()
    return seen[0] if seen else None
