"""The tangent kernel of infinitely wide convolutional networks on few handwritten digits, beside trained networks.

Arora et al. (2020) set such kernels beside a trained network on few images. Here the images are the digits of
scikit-learn, centred and scaled, and the network is small: two convolutions of 3 x 3, the second at every other
position, relu after both, and a linear head on all 4 x 4 positions (flatten) or on their mean; He-normal weights, no
biases. Kernel regression without a ridge is what infinitely wide networks answer after gradient descent, in the
mean over initialisations. Networks of finite width are trained by Adam with the cross-entropy, at rates that suit
them, and judged one by one and together, by the mean of their outputs. Width and C of the RBF machine are chosen by
cross-validation on the training images.

Training sets have equal shares of the digits, and no image in common as far as there are enough. Errors count both
what is drawn: training sets, with the networks on them, and test images, which are the same for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray
from numpy.typing import NDArray

from foretrain.experiments.judgements import Sampled, agreeing, claim_row, rows_of
from foretrain.experiments.networks import descend
from foretrain.experiments.parts import Parts
from foretrain.experiments.registry import Result, Row, plans
from foretrain.experiments.small_data.accuracies import (
    KernelRegression,
    Labels,
    difference_row,
    over_sets_and_tests,
    scikit_learn,
)
from foretrain.support.answers import BLUE, INK, ORANGE, Figure, labelled, log
from foretrain.support.loading import handwritten_digits
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, generator, spawn, torch_generator, with_seeds
from foretrain.support.threads import torch_over_cores
from foretrain.theory.architecture import FloatArray

if TYPE_CHECKING:
    import torch
    from torch import nn

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
class Plan:
    """Sizes of training sets, from 20 on, how many of each, images in all, those for tests, networks on each set."""

    sizes: tuple[int, ...]
    sets: int
    images: int
    tests: int
    networks: int  # of each head
    width: int
    steps: int


PLANS = plans(
    quick=Plan((20, 40, 80), 4, 500, 180, networks=2, width=32, steps=150),
    paper=Plan((20, 40, 80, 160, 320, 640), 4, 1797, 517, networks=4, width=32, steps=600),
)


class Task(NamedTuple):
    """Images (image, 1, 8, 8) and what they show, the training sets (set, image) of every size, and the tests."""

    x: FloatArray
    labels: Labels
    sets: list[Labels]
    asked: Labels

    @classmethod
    def drawn(cls, plan: Plan, source: np.random.Generator) -> Task:
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


def convolutional_kernel_digits(plan: Plan, seed: int, parts: Parts) -> Result:
    """Accuracies of convolutional kernels, trained networks and an RBF machine over sizes of training sets."""
    drawing, training = spawn(seed, 2)
    task = Task.drawn(plan, generator(drawing))
    Theta = parts.get("kernels", partial(_kernels, task))
    hits = {"RBF machine": parts.get("machines", partial(_machines, task)).hits.values}

    def train(part: tuple[tuple[str, Labels], Seed]) -> xarray.Dataset:
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
    return Result(verdict, (*rows, *rows_of("all sizes", judged)), data, _draw)


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


def _kernels(task: Task) -> xarray.Dataset:
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


def _machines(task: Task) -> xarray.Dataset:
    """Which of the images asked RBF machines get right."""
    search, machine = scikit_learn("model_selection").GridSearchCV, scikit_learn("svm").SVC()
    flat, hits = task.x.reshape(len(task.x), -1), []
    for seen in track([one for sets in task.sets for one in sets], "RBF machines"):
        chosen = search(machine, _CHOSEN_FROM, cv=min(4, len(seen) // 10)).fit(flat[seen], task.labels[seen])
        hits.append(chosen.predict(flat[task.asked]) == task.labels[task.asked])
    return labelled({"hits": ("images set test", np.reshape(hits, (len(task.sets), -1, len(task.asked))))})


def _networks(plan: Plan, task: Task, head: str, sets: Labels, seed: Seed) -> xarray.Dataset:
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


def _difference(data: xarray.Dataset, first: str, second: str) -> Sampled:
    """How much more of the images asked one classifier gets right than another, on the same sets."""
    one, other = (data.hits.sel(classifier=name).values for name in (first, second))
    return over_sets_and_tests(one - other)


def _draw(data: xarray.Dataset) -> Figure:
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
