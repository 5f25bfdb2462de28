"""Tangent kernels of infinitely wide networks as kernels of classifiers on few samples, beside other classifiers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from foretrain.experiments.judgements import Sampled, agreeing, claim_row, rows_of
from foretrain.experiments.networks import descend
from foretrain.experiments.parts import Parts
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import BLUE, INK, ORANGE, Axis, Figure, labelled, log, names_axis
from foretrain.support.errors import NotSupportedError
from foretrain.support.loading import handwritten_digits
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, generator, spawn, torch_generator, with_seeds
from foretrain.support.threads import over_cores, torch_over_cores
from foretrain.theory.architecture import MLP, FloatArray

if TYPE_CHECKING:
    import torch
    from torch import nn

PLANS: dict[str, Any] = {}

Labels = NDArray[np.int64]

_ALLOWED = 3.0  # standard errors: a smaller difference is not told apart from none


def scikit_learn(room: str) -> Any:
    """A module of scikit-learn, which is no requirement of the package."""
    try:
        return import_module(f"sklearn.{room}")
    except ImportError as error:
        raise NotSupportedError(
            "this experiment needs data and classifiers of scikit-learn: install it with "
            "`pip install scikit-learn`."
        ) from error


@dataclass
class KernelRegression:
    """Ridge regression on one target per class, with kernels in place of inputs; the largest output wins."""

    ridge: float = 0.0
    weights: FloatArray = field(init=False, repr=False)

    def fit(self, kernel: FloatArray, labels: Labels) -> KernelRegression:
        """Weights of the samples seen, from the kernel among them."""
        from scipy.linalg import solve

        classes = int(labels.max()) + 1
        regular = kernel + self.ridge * np.eye(len(kernel))
        self.weights = solve(regular, np.eye(classes)[labels] - 1 / classes, assume_a="pos")
        return self

    def predict(self, kernel: FloatArray) -> Labels:
        """Classes of the samples asked, from the kernel between them and those seen."""
        return np.asarray((kernel @ self.weights).argmax(axis=1))


def over_folds(values: FloatArray, folds: int) -> Sampled:
    """Mean of what each fold gave, in one or several cross-validations of the same samples.

    Folds share samples: their scatter is widened by the ratio of test to training samples (Nadeau & Bengio 2003).
    """
    widened = 1 / values.size + 1 / (folds - 1)
    return Sampled(float(values.mean()), float(np.sqrt(widened * values.var(ddof=1))))


def over_sets_and_tests(values: FloatArray) -> Sampled:
    """Mean over training sets and test samples, (set, sample), both of which are drawn.

    The variances of both means add; what they share counts twice, so that the error is rather too large.
    """
    variances = [values.mean(axis=1 - axis).var(ddof=1) / values.shape[axis] for axis in (0, 1)]
    return Sampled(float(values.mean()), float(np.sqrt(sum(variances))))


def difference_row(title: str, difference: Sampled, claim: str) -> Row:
    """A difference of accuracies: the note says whether error bars hide it, and how large those they hide can be.

    The claim that it is "above 0" is then neither right nor wrong; "not below 0" is right. Others are not tested.
    """
    reach = _ALLOWED * difference.error
    sign = int(difference.mean > reach) - int(difference.mean < -reach)
    agrees = {"above 0": None if sign == 0 else sign > 0, "not below 0": sign >= 0}.get(claim)
    word = ("not told apart", "higher", "lower")[sign]
    return Row(
        title, claim, *difference, agrees, f"{word}, where differences up to {reach:.2g} cannot be seen"
    )


_FOLDS = 4
_COSTS = [10.0**power for power in range(-2, 5)]  # C of machines, and one over ridges
_GAMMAS = [10.0**power for power in range(-4, 3)]  # of exp(-γ |x - x'|² / features)
_NEIGHBOURS = [1, 2, 3, 5, 7, 10, 15, 20]
_OURS = "NTK, SVM"
_WAYS = ("by halves of all samples", "within training folds")  # in which settings are chosen


@dataclass(frozen=True)
class TablePlan:
    """Tables of scikit-learn, layers of the deepest network, and how often the whole protocol is repeated."""

    tables: tuple[str, ...]
    layers: int
    repeats: int


_TABLES = ("wine", "iris", "breast_cancer")
PLANS["small_data_kernels"] = plans(quick=TablePlan(_TABLES, 5, 2), paper=TablePlan(_TABLES, 5, 25))


def small_data_kernels(plan: TablePlan, seed: int, parts: Parts) -> Result:
    """The tangent kernel of infinitely wide MLPs as the kernel of a classifier, on three small tables.

    The protocol is that of Arora et al. (2020) for UCI data. Samples are centred and scaled to variance one. The
    kernel is Theta of a relu MLP with C_W = 2 and without biases: 1 to 5 layers of weights, of which the first 0, 1,
    2 ... stay as they are, since their rates are zero. With each kernel and each C = 0.01, 0.1 ... 10,000 a support
    vector machine sees one half of the samples; the other half chooses the best of them, the first of equals. The
    one chosen is scored by a cross-validation of four folds over all samples.

    Where this departs: halves and folds are drawn here, with equal shares of the classes, and all is repeated with
    other ones; our kernels are of order one, so that C counts in other units; and as the samples that choose come
    back in test folds, all is chosen once more within the training samples of each fold. Beside it, chosen in the
    same way, stand regression on the same kernels (with a ridge), one layer alone, which is a linear machine, an RBF
    kernel (width and C), and nearest neighbours (how many).
    """
    tasks = with_seeds(plan.tables, seed)
    measured = [parts.get(table, partial(_measure, table, plan, own)) for table, own in tasks]
    data = xr.concat(measured, xr.Variable("table", list(plan.tables)), join="exact")
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
    return Result(verdict, tuple(rows), data, _table_draw)


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


def _measure(table: str, plan: TablePlan, seed: np.random.SeedSequence) -> xr.Dataset:
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


def _accuracy_row(own: xr.Dataset, table: str, name: str) -> Row:
    """The accuracy of one classifier by the protocol, and in the note that without test folds that choose."""
    found, other = (over_folds(values, _FOLDS) for values in own.accuracy.sel(classifier=name).values)
    often, times = Counter(own.settings.sel(classifier=name).values.tolist()).most_common(1)[0]
    note = f"{other.mean:.3f} if chosen {_WAYS[1]}; {times} of {own.sizes['repeat']} times: {often}"
    return Row(f"{table}: {name}", f"largest class {float(own.largest_class):.3f}", *found, note=note)


def _table_draw(data: xr.Dataset) -> Figure:
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


_HEADS = {"flatten": BLUE, "mean": ORANGE}
_STYLES = {"kernel": "o-", "network": "s--", "networks together": "^:", "RBF machine": "D-"}
# Rates of Adam: the best of 0.001, 0.003 and 0.01 for networks on other draws of the digits.
_RATES = {"flatten": 0.003, "mean": 0.01}
_BATCH = 32
_CHOSEN_FROM = {"gamma": [2.0**power / 64 for power in range(-4, 2)], "C": [1.0, 10.0, 100.0]}
_PAIRS = {  # with what is claimed of the first minus the second
    ("kernel, flatten", "network, flatten"): "above 0",
    ("kernel, flatten", "networks together, flatten"): "not below 0",
    ("kernel, mean", "network, mean"): "above 0",
    ("kernel, flatten", "kernel, mean"): "above 0",
    ("kernel, flatten", "RBF machine"): "not below 0",
}


@dataclass(frozen=True)
class DigitsPlan:
    """Sizes of training sets, from 20 on, how many of each, images in all, those for tests, networks on each set."""

    sizes: tuple[int, ...]
    sets: int
    images: int
    tests: int
    networks: int  # of each head
    width: int
    steps: int


PLANS["convolutional_kernel_digits"] = plans(
    quick=DigitsPlan((20, 40, 80), 4, 500, 180, networks=2, width=32, steps=150),
    paper=DigitsPlan((20, 40, 80, 160, 320, 640), 4, 1797, 517, networks=4, width=32, steps=600),
)


class Task(NamedTuple):
    """Images (image, 1, 8, 8) and what they show, the training sets (set, image) of every size, and the tests."""

    x: FloatArray
    labels: Labels
    sets: list[Labels]
    asked: Labels

    @classmethod
    def drawn(cls, plan: DigitsPlan, source: np.random.Generator) -> Task:
        """Every ten images in a row show all digits; sets are runs of them that begin as far apart as possible."""
        images, labels = handwritten_digits()
        x = images - images.mean(axis=0)
        x = (x / np.sqrt(np.mean(x**2))).reshape(-1, 1, 8, 8)
        order = source.permutation(len(labels))
        same_before = np.tril(labels[order][:, None] == labels[order]).sum(axis=1)
        order = order[np.lexsort((labels[order], same_before))][: plan.images]
        pool, asked = np.split(np.arange(plan.images), [plan.images - plan.tests])
        apart = len(pool) // plan.sets // 10 * 10
        runs = np.array([np.roll(pool, -apart * number) for number in range(plan.sets)])
        return cls(x[order], labels[order], [runs[:, :size] for size in plan.sizes], asked)


def convolutional_kernel_digits(plan: DigitsPlan, seed: int, parts: Parts) -> Result:
    """The tangent kernel of infinitely wide convolutional networks on few digits, beside trained networks.

    Arora et al. (2020) set such kernels beside a trained network on few images. Here the images are the digits of
    scikit-learn, centred and scaled, and the network is small: two convolutions of 3 x 3, the second at every other
    position, relu after both, and a linear head on all 4 x 4 positions (flatten) or on their mean; He-normal
    weights, no biases. Kernel regression without a ridge is what infinitely wide networks answer after gradient
    descent, in the mean over initialisations. Networks of finite width are trained by Adam with the cross-entropy,
    at rates that suit them, and judged one by one and together, by the mean of their outputs. Width and C of the RBF
    machine are chosen by cross-validation on the training images.

    Training sets have equal shares of the digits, and no image in common as far as there are enough. Errors count
    both what is drawn: training sets, with the networks on them, and test images, which are the same for all.
    """
    drawing, training = spawn(seed, 2)
    task = Task.drawn(plan, generator(drawing))
    Theta = parts.get("kernels", partial(_kernels, task))
    hits = {"RBF machine": parts.get("machines", partial(_machines, task)).hits.values}

    def train(part: tuple[tuple[str, Labels], Seed]) -> xr.Dataset:
        """Keep what networks of one head and size answer."""
        (head, sets), own = part
        return parts.get(f"networks {head} {sets.shape[1]}", partial(_networks, plan, task, head, sets, own))

    found = torch_over_cores(train, with_seeds(product(_HEADS, task.sets), training), "networks")
    trained = dict(zip(product(_HEADS, plan.sizes), found, strict=True))
    for head in _HEADS:
        exact = [[_regression(Theta[head].values, task, seen) for seen in sets] for sets in task.sets]
        hits[f"kernel, {head}"] = np.array(exact)
        for kind in ("network", "networks together"):
            hits[f"{kind}, {head}"] = np.stack([trained[head, size][kind].values for size in plan.sizes])
    data = labelled(
        {"hits": ("classifier images set test", np.stack([*hits.values()]), "share of right answers")},
        {"width": plan.width, "networks": plan.networks},
        classifier=list(hits),
        images=list(plan.sizes),
    )
    rows = [
        Row(f"{size} images: {name}", "", *over_sets_and_tests(values[place]))
        for place, size in enumerate(plan.sizes)
        for name, values in hits.items()
    ]
    for (head, size), one in trained.items():
        title = f"{size} images: networks, {head}, on their training images"
        rows.append(claim_row(title, "above 0.95", one.fitted, one.fitted > 0.95))
    whole = data.mean("images")
    judged = [
        difference_row(f"{first} minus {second}", _difference(whole, first, second), claim)
        for (first, second), claim in _PAIRS.items()
    ]
    words = [row.note.partition(",")[0] for row in judged]
    said = (f"{one.quantity} {one.here:+.3f} ± {one.standard_error:.3f}" for one in judged)
    verdict = (
        f"Accuracy on digits, mean over training sets of {', '.join(map(str, plan.sizes))} images: "
        f"{'; '.join(f'{one} ({word})' for one, word in zip(said, words))}; {agreeing(judged)} claims hold."
    )
    return Result(verdict, (*rows, *rows_of("all sizes", judged)), data, _digits_draw)


def network(width: int, head: str, source: torch.Generator) -> nn.Sequential:
    """The convolutional network with a head, its weights drawn by the law of He."""
    from torch import nn

    positions, before = (1, [nn.AdaptiveAvgPool2d(1)]) if head == "mean" else (16, [])
    first = nn.Conv2d(1, width, 3, padding=1, bias=False)
    second = nn.Conv2d(width, width, 3, stride=2, padding=1, bias=False)
    last = nn.Linear(positions * width, 10, bias=False)
    for layer in (first, second):
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=source)
    nn.init.kaiming_normal_(last.weight, nonlinearity="linear", generator=source)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), *before, nn.Flatten(), last)


def _kernels(task: Task) -> xr.Dataset:
    """Theta of all pairs of images for each head, at infinite width."""
    from foretrain.compare.infinite_width import infinite_width

    found: dict[str, Any] = {}
    for head in track(list(_HEADS), "kernels"):
        model = network(8, head, torch_generator(0)).double()
        laws = {"*": (2.0, 0.0), str(len(model) - 1): (1.0, 0.0)}  # C_W and C_b of these weights
        found[head] = ("image other", infinite_width(model, task.x, init=laws).ntk.values)
    return labelled(found)


def _regression(Theta: FloatArray, task: Task, seen: Labels) -> NDArray[np.bool_]:
    """Which of the images asked are right at infinite width, after gradient descent to the end (10.40)."""
    trained = KernelRegression().fit(Theta[np.ix_(seen, seen)], task.labels[seen])
    return np.asarray(trained.predict(Theta[np.ix_(task.asked, seen)]) == task.labels[task.asked])


def _machines(task: Task) -> xr.Dataset:
    """Which of the images asked RBF machines get right."""
    search, machine = scikit_learn("model_selection").GridSearchCV, scikit_learn("svm").SVC()
    flat, hits = task.x.reshape(len(task.x), -1), []
    for seen in track([one for sets in task.sets for one in sets], "RBF machines"):
        chosen = search(machine, _CHOSEN_FROM, cv=min(4, len(seen) // 10)).fit(flat[seen], task.labels[seen])
        hits.append(chosen.predict(flat[task.asked]) == task.labels[task.asked])
    return labelled({"hits": ("images set test", np.reshape(hits, (len(task.sets), -1, len(task.asked))))})


def _networks(plan: DigitsPlan, task: Task, head: str, sets: Labels, seed: Seed) -> xr.Dataset:
    """Train networks side by side, some on each set; which of the images asked they get right: (set, test)."""
    import torch
    from torch.func import functional_call, stack_module_state, vmap

    source = torch_generator(seed)
    models = [network(plan.width, head, source) for _ in range(plan.sets * plan.networks)]
    weights, _ = stack_module_state(models)
    outputs = vmap(partial(functional_call, models[0]))
    images, digits = torch.tensor(task.x, dtype=torch.float32), torch.tensor(task.labels)
    own = torch.tensor(sets.repeat(plan.networks, axis=0))  # (network, image)

    def loss() -> Any:
        """On a random batch for each network; a weight feels that of its own alone, and Adam forgets its size."""
        batch = own.gather(1, torch.randint(own.shape[1], (len(own), _BATCH), generator=source))
        answers = outputs(weights, images[batch])
        return torch.nn.functional.cross_entropy(answers.flatten(0, 1), digits[batch].flatten())

    descend(torch.optim.Adam(weights.values(), _RATES[head]), loss, plan.steps)
    right = digits[task.asked]
    with torch.no_grad():
        answers = outputs(weights, images[task.asked].expand(len(own), -1, -1, -1, -1))
        fitted = outputs(weights, images[own]).argmax(-1) == digits[own]
    by_set = answers.unflatten(0, (plan.sets, plan.networks))
    single = (by_set.argmax(-1) == right).double().mean(1)
    together = by_set.mean(1).argmax(-1) == right
    return labelled(
        {
            "network": ("set test", single.numpy()),
            "networks together": ("set test", together.double().numpy()),
            "fitted": float(fitted.double().mean()),
        }
    )


def _difference(data: xr.Dataset, first: str, second: str) -> Sampled:
    """How much more of the images asked one classifier gets right than another, on the same sets."""
    one, other = (data.hits.sel(classifier=name).values for name in (first, second))
    return over_sets_and_tests(one - other)


def _digits_draw(data: xr.Dataset) -> Figure:
    """Accuracies over the sizes of training sets, and differences of pairs of classifiers."""
    figure = Figure("Convolutional kernels and trained networks on few digits", columns=2, size=(14, 6.2))
    sizes = data.images.values
    x = log("training images", ticks=sizes.tolist())
    panel = figure.panel("means ± standard error", x, "accuracy", legend="below", legend_columns=2)
    for name in data.classifier.values:
        kind, _, head = str(name).partition(", ")
        hits = data.hits.sel(classifier=name).values
        means, errors = zip(*(over_sets_and_tests(values) for values in hits), strict=True)
        panel.curve(sizes, means, _STYLES[kind], str(name), _HEADS.get(head, INK), error=errors)
    panel = figure.panel("differences ± standard error", x, "accuracy", legend="below")
    panel.level(y=0)
    for number, pair in enumerate(_PAIRS):
        means, errors = zip(*(_difference(data.sel(images=size), *pair) for size in sizes), strict=True)
        panel.curve(sizes * 1.02**number, means, "o-", " minus ".join(pair), error=errors)
    return figure
