"""What simple learners make of the same samples: a constant, a linear model, nearest neighbours, a readout.

All of them see samples through a kernel between samples: the linear one is ridge regression in it, the neighbours
are the nearest in its distance. So inputs of any size cost the same, and tokens (equal or not, position by position)
are treated as features are. Ridges are chosen by generalised cross-validation (Golub, Heath & Wahba 1979).

Answers are scored in units that every learner shares, whatever the loss is: the share of right labels, or the share
of the targets' variance that is explained; with one number for each sample, so that differences have error bars.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Array = NDArray[np.float64]

_MOST_TARGETS = 4096  # numbers to predict for a sample
_MOST_ROWS = 1024  # samples that a baseline is fitted to: a matrix of their size is taken apart
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
        count, places = outputs.shape[self.axis], outputs.movedim(self.axis, -1).shape[:-1]
        labels = self.targets(y, outputs).clamp_min(0).reshape(places)
        return nn.functional.one_hot(labels, count).movedim(-1, self.axis).to(outputs)


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
        fitted += _learners(sample_kernel(x, unseen), known, judge)
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
    places = torch.randperm(len(features), generator=torch.Generator().manual_seed(0))[:_MOST_ROWS]
    kernel, some = sample_kernel(features[places.to(features.device)], unseen), known[places.to(known.device)]
    return Baseline(name, judge.scores(_answers(judge, _ridge(kernel, _columns(judge, some)), some)))


def fit_learners(features: Tensor, known: Tensor, unseen: Tensor, judge: Judge) -> list[Baseline]:
    """A linear model and nearest neighbours of (samples, features)."""
    places = torch.randperm(len(features), generator=torch.Generator().manual_seed(0))[:_MOST_ROWS]
    kernel = sample_kernel(features[places.to(features.device)], unseen)
    return _learners(kernel, known[places.to(known.device)], judge)


def _learners(kernel: Kernel, known: Tensor, judge: Judge) -> list[Baseline]:
    columns, count = _columns(judge, known), min(_NEIGHBOURS, max(1, len(known) - 1))
    own_judge = Judge.of(judge.measure, known, known)
    constant = own_judge.scores(own_judge.usual.expand_as(known))
    distances = kernel.own.diagonal()[:, None] - 2 * kernel.own + kernel.own.diagonal()[None]
    nearest = kernel.distances().topk(count, dim=1, largest=False).indices
    own_nearest = distances.fill_diagonal_(torch.inf).topk(count, dim=1, largest=False).indices
    answers = {
        "a linear model": (_ridge(kernel, columns), _ridge_left_out(kernel, columns)),
        "nearest neighbours": (columns[nearest].mean(1), columns[own_nearest].mean(1)),
    }
    return [
        Baseline(
            name,
            judge.scores(_answers(judge, unseen, known)),
            own_judge.scores(_answers(own_judge, left_out, known)) - constant,
        )
        for name, (unseen, left_out) in answers.items()
    ]


def _by_position(
    rows: Tensor, unseen: Tensor, known: Tensor, judge: Judge, positions: int, seed: int
) -> list[Baseline]:
    """The same for rows of (sample and position, any)."""
    targets, wanted = (values.reshape(len(values) * positions, -1) for values in (known, judge.wanted))
    chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:_MOST_ROWS]
    kernel = sample_kernel(rows[chosen.to(rows.device)], unseen)
    local = Judge(judge.measure, wanted, targets[:1], judge.variance / positions)
    return [
        Baseline(one.name, one.scores.reshape(-1, positions).mean(1))
        for one in _learners(kernel, targets[chosen.to(targets.device)], local)
    ]


def _windows(x: Tensor) -> Tensor:
    """(samples, positions, window, features): each position with the ones before it, zeros before the first."""
    before = torch.zeros_like(x[:, :1]).expand(-1, _WINDOW - 1, *x.shape[2:])
    return torch.cat([before, x], dim=1).unfold(1, _WINDOW, 1).movedim(-1, 2)


@dataclass(frozen=True, eq=False)
class Kernel:
    """Inner products of samples: of those that are fitted with each other, and of others with them."""

    own: Tensor
    cross: Tensor  # (others, fitted)
    sizes: Tensor  # of the others with themselves

    def distances(self) -> Tensor:
        """Squared, (others, fitted)."""
        return self.sizes[:, None] - 2 * self.cross + self.own.diagonal()[None]


def sample_kernel(x: Tensor, others: Tensor) -> Kernel:
    """Of standardised features, or of tokens: at how many positions two samples agree, and in how many counts."""
    if x.is_floating_point():
        rows, unseen = (values.detach().reshape(len(values), -1).double().cpu() for values in (x, others))
        mean, deviation = rows.mean(0), rows.std(0, correction=0)
        kept = deviation > 1e-6 * mean.abs() + 1e-300
        rows, unseen = ((values - mean)[:, kept] / deviation[kept] for values in (rows, unseen))
    else:
        rows, unseen = _token_features(x.reshape(len(x), -1), others.reshape(len(others), -1))
    width = max(1, rows.shape[1])
    return Kernel(rows @ rows.T / width, unseen @ rows.T / width, unseen.square().sum(1) / width)


def _token_features(x: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Indicators of (position, token) and counts of tokens; tokens are hashed where there are many."""
    values = torch.unique(x.cpu())
    size = max(1, min(len(values), 8192 // max(1, x.shape[1])))
    generator = torch.Generator().manual_seed(0)
    table = torch.randint(size, (len(values),), generator=generator) if size < len(values) else None

    def features(tokens: Tensor) -> Tensor:
        places = torch.searchsorted(values, tokens.cpu().contiguous()).clamp_max(len(values) - 1)
        hot = nn.functional.one_hot(places if table is None else table[places], size).double()
        return torch.cat([hot.flatten(1), hot.sum(1)], dim=1)

    return features(x), features(others)


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
        chosen: Tensor = labels[labels >= 0][columns.reshape(len(columns), known.shape[1], -1).argmax(2)]
        return chosen
    if judge.measure.kind == "sides":
        low, high = known.min(), known.max()
        return torch.where(columns > (low + high) / 2, high, low)
    return columns


def _ridge(kernel: Kernel, columns: Tensor) -> Tensor:
    """Kernel ridge regression of centred columns, with the ridge that generalised cross-validation chooses."""
    mean, (values, vectors, ridge) = columns.mean(0, keepdim=True), _fitted(kernel, columns)
    weights = (vectors.T @ (columns - mean)) / (values + ridge)[:, None]
    return kernel.cross @ (vectors @ weights) + mean


def _ridge_left_out(kernel: Kernel, columns: Tensor) -> Tensor:
    """The same for every fitted sample, as if it had not been among them: its residual over 1 - its leverage."""
    mean, (values, vectors, ridge) = columns.mean(0, keepdim=True), _fitted(kernel, columns)
    left = ridge / (values + ridge)
    residuals = vectors @ (left[:, None] * (vectors.T @ (columns - mean)))
    return columns - residuals / (vectors.square() @ left)[:, None].clamp_min(1e-12)


def _fitted(kernel: Kernel, columns: Tensor) -> tuple[Tensor, Tensor, float]:
    values, vectors = torch.linalg.eigh(kernel.own)
    values = values.clamp_min(0)
    turned = vectors.T @ (columns - columns.mean(0, keepdim=True))
    best, chosen = np.inf, 0.0
    for ridge in float(values.mean().clamp_min(1e-300)) * _RIDGES:
        left = ridge / (values + ridge)  # what is not fitted, by direction
        error = float((left[:, None] * turned).square().sum()) / max(float(left.mean()) ** 2, 1e-12)
        if error < best:
            best, chosen = error, float(ridge)
    return values, vectors, chosen


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
