"""The tangent kernel of infinitely wide MLPs as the kernel of a classifier, on three small tables of scikit-learn.

The protocol is that of Arora et al. (2020) for UCI data. Samples are centred and scaled to variance one. The kernel
is Theta of a relu MLP with C_W = 2 and without biases: 1 to 5 layers of weights, of which the first 0, 1, 2 ... stay
as they are, since their rates are zero. With each kernel and each C = 0.01, 0.1 ... 10,000 a support vector machine
sees one half of the samples; the other half chooses the best of them, the first of equals. The one chosen is scored
by a cross-validation of four folds over all samples.

Where this departs: halves and folds are drawn here, with equal shares of the classes, and all is repeated with other
ones; our kernels are of order one, so that C counts in other units; and as the samples that choose come back in test
folds, all is chosen once more within the training samples of each fold. Beside it, chosen in the same way, stand
regression on the same kernels (with a ridge), one layer alone, which is a linear machine, an RBF kernel (width and
C), and nearest neighbours (how many).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import xarray

from foretrain.experiments.judgements import agreeing
from foretrain.experiments.parts import Parts
from foretrain.experiments.registry import Result, Row, plans
from foretrain.experiments.small_data.accuracies import (
    KernelRegression,
    Labels,
    difference_row,
    over_folds,
    scikit_learn,
)
from foretrain.support.answers import Axis, Figure, labelled, names_axis
from foretrain.support.progress import track
from foretrain.support.seeds import generator, spawn, with_seeds
from foretrain.support.threads import over_cores
from foretrain.theory.architecture import MLP, FloatArray

_FOLDS = 4
_COSTS = [10.0**power for power in range(-2, 5)]  # C of machines, and one over ridges
_GAMMAS = [10.0**power for power in range(-4, 3)]  # of exp(-γ |x - x'|² / features)
_NEIGHBOURS = [1, 2, 3, 5, 7, 10, 15, 20]
_OURS = "NTK, SVM"
_WAYS = ("by halves of all samples", "within training folds")  # in which settings are chosen


@dataclass(frozen=True)
class Plan:
    """Tables of scikit-learn, layers of the deepest network, and how often the whole protocol is repeated."""

    tables: tuple[str, ...]
    layers: int
    repeats: int


_TABLES = ("wine", "iris", "breast_cancer")
PLANS = plans(quick=Plan(_TABLES, 5, 2), paper=Plan(_TABLES, 5, 25))


def small_data_kernels(plan: Plan, seed: int, parts: Parts) -> Result:
    """Accuracies of the tangent kernel of MLPs beside other classifiers on small tables, with standard errors."""
    tasks = with_seeds(plan.tables, seed)
    measured = [parts.get(table, partial(_measure, table, plan, own)) for table, own in tasks]
    data = xarray.concat(measured, xarray.Variable("table", list(plan.tables)), join="exact")
    rows: list[Row] = []
    for table in plan.tables:
        own = data.sel(table=table)
        rows += [_accuracy_row(own, table, name) for name in own.classifier.values]
        accuracy = own.accuracy.transpose("way", "classifier", ...).values
        for name, other in zip(own.classifier.values[1:], accuracy[0, 1:], strict=True):
            difference = over_folds(accuracy[0, 0] - other, _FOLDS)
            rows.append(difference_row(f"{table}: {_OURS} minus {name}", difference, "not below 0"))
        gain = over_folds(accuracy[0, 0] - accuracy[1, 0], _FOLDS)
        rows.append(difference_row(f"{table}: {_OURS}, what choosing with test folds adds", gain, "0"))
    ours = [row for row in rows if row.quantity.endswith(f": {_OURS}")]
    means = ", ".join(f"{row.here:.3f} ± {row.standard_error:.3f}" for row in ours)
    words = Counter(row.note.partition(",")[0] for row in rows if " minus " in row.quantity)
    verdict = (
        f"{_OURS} has an accuracy of {means} on {', '.join(plan.tables)}; of its {words.total()} "
        f"differences to others {', '.join(f'{count} are {word}' for word, count in words.most_common())} by three "
        f"standard errors; {agreeing(rows)} claims hold."
    )
    return Result(verdict, tuple(rows), data, _draw)


def tangent_kernel(x: FloatArray, layers: int, fixed: int) -> FloatArray:
    """Theta of a relu MLP with so many layers of weights, the first of which are fixed: their rates are zero."""
    from foretrain.theory.prediction import kernels

    rates = [0.0] * fixed + [2.0] * (layers - fixed)
    # Theta is that of infinite width whatever the width is.
    mlp = MLP("relu", layers, width=1, C_W=2.0, C_b=0.0, lambda_b=0.0, lambda_W=rates)
    return kernels.tangent_kernel(mlp, x)


class Candidate(NamedTuple):
    """A classifier with all its settings, and the matrix of pairs of samples that it takes in place of inputs."""

    settings: str
    pairs: FloatArray
    estimator: Any

    def score(self, labels: Labels, seen: Labels, asked: Labels) -> float:
        """Share of the samples asked that it gets right after it has seen others."""
        self.estimator.fit(self.pairs[np.ix_(seen, seen)], labels[seen])
        return float(np.mean(self.estimator.predict(self.pairs[np.ix_(asked, seen)]) == labels[asked]))


def classifiers(x: FloatArray, layers: int) -> dict[str, list[Candidate]]:
    """All that is chosen from, by the name of the classifier; ours come first."""
    machine, neighbours = scikit_learn("svm").SVC, scikit_learn("neighbors").KNeighborsClassifier
    squares = scikit_learn("metrics").pairwise_distances(x, metric="sqeuclidean") / x.shape[1]
    networks = [(depth, fixed) for depth in range(1, layers + 1) for fixed in range(depth)]
    tangent = {f"layers {one[0]}, fixed {one[1]}": tangent_kernel(x, *one) for one in networks}
    radial = {f"γ {gamma:g}": np.exp(-gamma * squares) for gamma in _GAMMAS}

    def machines(kernels: dict[str, FloatArray]) -> list[Candidate]:
        return [
            Candidate(f"{name}, C {cost:g}", kernel, machine(C=cost, kernel="precomputed"))
            for name, kernel in kernels.items()
            for cost in _COSTS
        ]

    ours = machines(tangent)
    regressions = [
        Candidate(f"{name}, ridge {1 / cost:g}", kernel, KernelRegression(1 / cost))
        for name, kernel in tangent.items()
        for cost in _COSTS
    ]
    nearest = [Candidate(str(k), squares, neighbours(k, metric="precomputed")) for k in _NEIGHBOURS]
    return {
        _OURS: ours,
        "NTK, regression": regressions,
        "one layer, SVM": ours[: len(_COSTS)],
        "RBF, SVM": machines(radial),
        "nearest neighbours": nearest,
    }


def dealt(labels: Labels, count: int, source: np.random.Generator) -> list[Labels]:
    """Positions of the samples in random parts of equal size, with equal shares of each class."""
    order = source.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    return [order[first::count] for first in range(count)]


def _measure(table: str, plan: Plan, seed: np.random.SeedSequence) -> xarray.Dataset:
    """Accuracies of all classifiers on every test fold, chosen in both ways, and of each network on the half."""
    x, y = getattr(scikit_learn("datasets"), f"load_{table}")(return_X_y=True)
    known = classifiers((x - x.mean(axis=0)) / x.std(axis=0), plan.layers)
    accuracy = np.empty((len(_WAYS), len(known), plan.repeats, _FOLDS))
    validation = np.empty((plan.repeats, len(known[_OURS]) // len(_COSTS)))
    settings = []
    for repeat, own in enumerate(track(spawn(seed, plan.repeats), table)):
        source = generator(own)
        halves, folds = dealt(y, 2, source), dealt(y, _FOLDS, source)
        rest = [np.setdiff1d(np.arange(len(y)), asked) for asked in folds]
        inner = [[seen[part] for part in dealt(y[seen], 2, source)] for seen in rest]
        for number, candidates in enumerate(known.values()):
            # All candidates on halves of all samples, and on halves of the training samples of each fold.
            tried = [partial(Candidate.score, labels=y, seen=one, asked=two) for one, two in (halves, *inner)]
            scores = np.array([over_cores(score, candidates, uses_blas=True) for score in tried])
            first, *others = scores.argmax(axis=1)
            settings.append(candidates[first].settings)
            for fold, way in product(range(_FOLDS), range(len(_WAYS))):
                chosen = candidates[(first, others[fold])[way]]
                accuracy[way, number, repeat, fold] = chosen.score(y, rest[fold], folds[fold])
            if not number:
                validation[repeat] = scores[0].reshape(-1, len(_COSTS)).max(axis=1)
    best = np.full((plan.layers, plan.layers), np.nan)
    best[np.tril_indices(plan.layers)] = validation.mean(axis=0)
    return labelled(
        {
            "accuracy": ("way classifier repeat fold", accuracy, "share of a test fold that is right"),
            "settings": ("repeat classifier", np.reshape(settings, (plan.repeats, -1)), f"chosen {_WAYS[0]}"),
            "validation": ("layers fixed", best, "share of the half that chooses, best C, mean of repeats"),
            "largest_class": float(np.bincount(y).max() / len(y)),
        },
        way=list(_WAYS),
        classifier=list(known),
        layers=np.arange(1, plan.layers + 1),
        fixed=np.arange(plan.layers),
    )


def _accuracy_row(own: xarray.Dataset, table: str, name: str) -> Row:
    """The accuracy of one classifier by the protocol, and in the note that without test folds that choose."""
    found, other = (over_folds(values, _FOLDS) for values in own.accuracy.sel(classifier=name).values)
    often, times = Counter(own.settings.sel(classifier=name).values.tolist()).most_common(1)[0]
    note = f"{other.mean:.3f} if chosen {_WAYS[1]}; {times} of {own.sizes['repeat']} times: {often}"
    return Row(f"{table}: {name}", f"largest class {float(own.largest_class):.3f}", *found, note=note)


def _draw(data: xarray.Dataset) -> Figure:
    """Accuracies with their errors, and how well each of our networks validates."""
    figure = Figure("The tangent kernel of MLPs beside other classifiers", columns=2, size=(12, 8.5))
    tables, names = data.table.values, data.classifier.values
    heading = "four folds: means ± standard error"
    panel = figure.panel(heading, names_axis(tables), "accuracy", legend="below", legend_columns=3)
    for number, name in enumerate(names):
        scored = data.accuracy.sel(way=_WAYS[0], classifier=name).values
        means, errors = zip(*(over_folds(values, _FOLDS) for values in scored), strict=True)
        aside = 0.15 * (number - (len(names) - 1) / 2)
        panel.curve(np.arange(len(tables)) + aside, means, "o", name, error=errors, size=6)
    for table, values in zip(tables, data.validation.values, strict=True):
        heading, y = f"{table}: accuracy on the half that chooses", Axis("layers of weights", whole=True)
        panel = figure.panel(heading, Axis("first layers that are fixed", whole=True), y)
        texts = [["" if np.isnan(one) else f"{one:.3f}" for one in row] for row in values]
        # The colours begin far below, so that numbers can be read on all of them.
        panel.heat_map(values, data.fixed, data.layers, texts=texts, low=0.8, high=1.0)
    return figure
