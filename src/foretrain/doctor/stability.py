"""The largest stable learning rate, and trainings at the rate that suits a network.

Descent on a quadratic loss is stable while rate x curvature stays below 2 (1 + m) for momentum m, and below
(2 + 2 m) / (1 + 2 m) for Nesterov's. The curvature is J^T H J, J the Jacobian of the outputs and H the second
derivative of the loss by them; with rates by parameter its eigenvalues are those of R^1/2 J^T H J R^1/2.

Batches smaller than the data have curvatures h of their own. Descent stays bounded in mean square while
rate <h^2> / <h> is below the same limit (for one direction: <(1 - rate h)^2> < 1), so this ratio over a few batches
stands in the place of the curvature.

The curvature changes while a network learns, and small initial weights let it grow at once. So the recommended rate
starts from half the largest stable one and is lowered where a short real training ends clearly better for it.
Trainings that weigh two networks, or two kinds of data, against each other are each at the rate that suits it.

Weights that are too large tell all inputs apart, however near they are: such networks learn the given samples by
heart, often faster than better ones, and know nothing of others. Only samples held out of the training show it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foretrain.compare.plateau.descent import Descent
from foretrain.compare.task import Task
from foretrain.doctor.setup import (
    STEP_PASSES,
    Case,
    Recipe,
    Setup,
    affordable_samples,
    once,
    suited_threads,
    work_of,
)
from foretrain.doctor.trials import Trial, best_of, descend, trial
from foretrain.empirical.kernel_operator.passes import differentiable_kernels
from foretrain.operators import Space, from_functions
from foretrain.operators.estimators.krylov import largest_eigenvalue
from foretrain.support.errors import NotSupportedError
from foretrain.support.progress import stop_if_late, track
from foretrain.support.seeds import Seed, torch_generator

_SHARE = 0.5  # of the largest stable rate: there one step takes the steepest direction to its minimum
_LOWER = (1.0, 0.3, 0.1, 0.03, 0.01, 1e-3, 1e-4)  # of it, tried from the largest on
_CUSTOMARY = 0.01  # tried where the loss has no curvature, so that nothing bounds the rate
_SAMPLES = 512  # that the curvature of all data is measured on
_BATCHES = 4  # that the curvature of small batches is measured on
_ACCURACY = 0.005  # of the top eigenvalue, relative
_MOST_PRODUCTS = 100
_PASSES = 200.0  # forwards, that some thirty products are worth
_WORK = 2e12  # multiplications: a minute or two of one core
LEARNED = 0.1  # of the loss of the best constant: a training that ends below has nothing to complain of
_CURVED_NUMBERS = 4_000_000  # results of layers for whose samples curvature is measured at a time
_ADAPTED = 20  # steps after which the curvature that Adam sees is measured: its averages have begun to settle
_WEIGHED_STEPS = 200
_WEIGHED_SAMPLES = 1024  # so few that they are learned by heart would hide an uneven scale
FEWEST_DIVIDED = 50  # samples: a fifth of fewer tells nothing
_DIVIDED = 320
_DIVIDED_STEPS = 120
_DIVIDED_WORK = 5e11  # multiplications
_LOOKS = 10  # steps between two looks at the samples held out


@dataclass(frozen=True)
class Edge:
    """Where descent becomes unstable: rate x curvature (``product``, at the rates that are used) reaches ``limit``.

    ``product`` is nan where the theory says nothing, and then ``reason`` says why.
    """

    product: float
    limit: float
    rate: float  # the largest rate that is used
    reason: str = ""
    products: int = 0  # matrix-vector products that it took
    samples: int = 0
    case: Case | None = field(default=None, repr=False, compare=False)

    @property
    def ratio(self) -> float:
        """How far above the edge the given rate is; below 1 it is stable."""
        return self.product / self.limit

    @property
    def largest_rate(self) -> float:
        """At which the steepest direction begins to grow."""
        return self.rate / self.ratio if self.product != 0 else float("inf")

    @property
    def start(self) -> float:
        """The rate that theory recommends: half the largest; without an edge, the given or the customary one."""
        if self.reason:
            return self.rate
        # Rounded to the digits that are known: trainings near divergence turn on the last bit of their rate.
        return float(f"{_SHARE * self.largest_rate:.3g}") if self.product > 0 else _CUSTOMARY

    @property
    def best(self) -> tuple[float, Trial]:
        """The recommended rate and a short training with it; the same for recipes that differ by a factor."""
        assert self.case is not None
        setup = self.case.setup
        key = ("best rate", _proportions(setup.recipe))
        if key not in setup.known:
            factors = [factor * self.start / self.rate for factor in _LOWER]
            place, found = best_of([setup.with_recipe(setup.recipe.scaled(f)) for f in factors])
            setup.known[key] = _LOWER[place] * self.start, found
        known: tuple[float, Trial] = setup.known[key]
        return known

    @property
    def recommended(self) -> float:
        """Half of the largest stable rate, or as much less as short trainings ask for."""
        return self.best[0]


def edge(case: Case) -> Edge:
    """Of descent with the rates that are used, by Lanczos with products of the Jacobian: no matrix is formed."""
    recipe = case.recipe
    if not recipe.is_descent:
        reason = (
            f"{recipe.kind.__name__} rescales every gradient by its own history, which a fresh optimizer does not "
            "have, so that no eigenvalue of the present network bounds its rate"
        )
        return Edge(np.nan, np.nan, recipe.rate, reason, case=case)
    key = ("edge", _proportions(recipe))
    if key not in case.setup.known:
        nesterov = bool(recipe.groups[0].options.get("nesterov", False))
        limit = Descent(recipe.rates, recipe.momentum, nesterov).largest_stable
        batches = list(_batches(case))
        tops, products = zip(*(_top(case, task) for task in batches))
        values = np.array(tops)
        product = float(np.sum(values**2) / np.sum(values)) if values.any() else 0.0
        samples = sum(len(task.x) for task in batches)
        case.setup.known[key] = Edge(product, limit, recipe.rate, "", sum(products), samples)
    found: Edge = case.setup.known[key]
    return replace(found, product=found.product * recipe.rate / found.rate, rate=recipe.rate, case=case)


def _proportions(recipe: Recipe) -> tuple[Any, ...]:
    """What recipes share that differ by one factor on all rates."""
    rates = tuple((name, float(f"{rate / recipe.rate:.6g}")) for name, rate in recipe.rates.items())
    nesterov = bool(recipe.groups[0].options.get("nesterov", False))
    return recipe.kind, recipe.is_descent, recipe.momentum, nesterov, rates


def as_given(setup: Setup) -> Trial:
    """A training at the rate that is used."""
    return trial(setup, _WEIGHED_STEPS, _WEIGHED_SAMPLES)


def at_its_best(setup: Setup) -> Trial:
    """A training at the recommended rate; other optimizers adapt by themselves."""
    if not setup.recipe.is_descent:
        return as_given(setup)
    factor = edge(Case(setup)).recommended / setup.recipe.rate
    return as_given(setup.with_recipe(setup.recipe.scaled(factor)))


def with_chosen_rate(setup: Setup) -> Setup:
    """With descent at the recommended rate, where the doctor chooses it; ratios of rates stay as they are."""
    if not (setup.recipe.chosen and setup.recipe.is_descent):
        return setup
    with suited_threads(setup):
        rate = edge(Case(setup)).recommended
    # Where no weight moves any output there is no edge, and any rate does as little.
    factor = rate / setup.recipe.rate if 0 < rate < math.inf else 1.0
    return setup.with_recipe(setup.recipe.scaled(factor))


def speed_up(given: Trial, better: Trial) -> float:
    """How many times fewer steps the better one needs for the same loss."""
    if not better.end < given.end:
        return 1.0
    return given.steps / max(1, better.steps_to(given.end))


def rate_code(factor: float) -> str:
    """Python that multiplies all learning rates."""
    return f'for group in optimizer.param_groups:\n    group["lr"] *= {factor:g}'


def _batches(case: Case) -> Iterator[Task]:
    """One sample of all data, or a few batches of the size that is trained with; less of large models."""
    size, total = case.setup.batch_size, len(case.task.x)
    if size is not None and size >= min(_SAMPLES, total):
        size = None
    most = affordable_samples(case.setup, _BATCHES * size if size else _SAMPLES, _PASSES, _WORK)
    if size is None or size > most:
        yield case.chosen(most)
        return
    order = torch.randperm(total, generator=torch_generator(case.setup.seed))
    for start in range(0, min(most // size, total // size) * size, size):
        yield case.task.taken(order[start : start + size])


@dataclass(frozen=True)
class AdaptiveEdge:
    """Rate x preconditioned curvature of Adam after some steps of a training, and the bound on it."""

    product: float
    limit: float
    steps: int


@once
def adaptive_edge(case: Case) -> AdaptiveEdge | None:
    """None for optimizers other than Adam and AdamW, and for layers of which torch has no second derivative.

    Adam moves by rate x m / (sqrt(v) + eps), m an average of gradients with weight b = beta_1 for the past. With v
    held, a direction of curvature h in units of sqrt(v) + eps is stable while rate x h < 2 (1 + b) / (1 - b) (Cohen
    et al. 2022, "Adaptive gradient methods at the edge of stability", section 2).
    """
    recipe = case.recipe
    if not issubclass(recipe.kind, torch.optim.Adam):
        return None
    model = copy.deepcopy(case.setup.model)
    optimizer = recipe.build(model.train())
    batches = list(_batches(case))
    with torch.random.fork_rng(devices=[]):
        for step in range(_ADAPTED):
            descend(optimizer, model, batches[step % len(batches)])
    rates, beta = dict[str, Tensor](), 0.9
    for group in optimizer.param_groups:
        beta, second = group["betas"]
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            if "exp_avg_sq" in state:
                size = (state["exp_avg_sq"] / (1 - second ** float(state["step"]))).sqrt() + group["eps"]
                rates[next(n for n, p in model.named_parameters() if p is parameter)] = group["lr"] / size
    try:
        # Second derivatives take several times the memory of a step.
        most = max(1, _CURVED_NUMBERS // work_of(case.setup).numbers)
        some = batches[0].taken(torch.arange(min(most, len(batches[0].x))))
        top, _ = _top(Case(case.setup.with_model(model.eval())), some, rates)
    except (NotSupportedError, NotImplementedError, RuntimeError):
        return None
    return AdaptiveEdge(top, 2 * (1 + beta) / (1 - beta), _ADAPTED)


def _top(case: Case, task: Task, given: Mapping[str, Tensor] | None = None) -> tuple[float, int]:
    """The top eigenvalue of R^1/2 J^T H J R^1/2, and the products that it took; R as used, or by entry as given."""
    rates: Mapping[str, Any] = case.recipe.rates if given is None else given
    with Tangent(case.model, task.x, rates) as tangent:
        kept = [rates[name] ** 0.5 for name in tangent.weights]
        roots = [root.flatten() if isinstance(root, Tensor) else root for root in kept]
        curved = loss_curvature(task, tangent.outputs)
        shapes = [p.shape for p in tangent.weights.values()]

        def product(vector: Tensor) -> Tensor:
            stop_if_late()
            parts = torch.split(vector, [shape.numel() for shape in shapes])
            changes = [
                (root * part).reshape(shape).to(tangent.outputs)
                for root, part, shape in zip(roots, parts, shapes)
            ]
            back = tangent.pull(curved(tangent.push(changes)))
            return torch.cat([root * part.flatten().to(vector) for root, part in zip(roots, back)])

        size = sum(shape.numel() for shape in shapes)
        start = torch.randn(size, generator=torch_generator(case.setup.seed), dtype=torch.float64)
        kind = torch.promote_types(tangent.outputs.dtype, torch.float32)
        operator = from_functions(
            Space.of(weight=size),
            None,
            lambda rows: product(rows[0])[None],
            dtype=kind,
            device=tangent.outputs.device,
            positive=True,
            best_block=1,
        )
        begin = start.to(operator.device, kind)
        return largest_eigenvalue(operator, begin, _ACCURACY, _MOST_PRODUCTS)


def loss_curvature(task: Task, outputs: Tensor) -> Callable[[Tensor], Tensor]:
    """Products with the second derivative of the loss by the outputs; zero for a loss that is straight."""
    with torch.enable_grad():
        points = outputs.detach().requires_grad_()
        (slope,) = torch.autograd.grad(task.loss(points, task.y), points, create_graph=True)

    def product(change: Tensor) -> Tensor:
        if not slope.requires_grad:
            return torch.zeros_like(change)
        (found,) = torch.autograd.grad(slope, points, change, retain_graph=True, allow_unused=True)
        return torch.zeros_like(change) if found is None else found

    return product


class Tangent:
    """Outputs of a model for ``x``, and their linear response to the parameters of these names.

    J t and J^T v are each one backward pass over a graph that is kept: J t is the gradient of <J^T u, t> by u, exact
    because J^T u is linear in u. It needs no forward-mode derivatives, so recurrent layers have it too.

    A context manager: inside, attention is written out, because its fused kernels have no second derivative.
    """

    def __init__(self, model: nn.Module, x: Tensor, names: Collection[str]) -> None:
        self.model, self.x = model, x
        self.weights = {name: p for name, p in model.named_parameters() if name in names}
        self._kernels = differentiable_kernels()

    def __enter__(self) -> Tangent:
        self._kernels.__enter__()
        with torch.enable_grad():
            self.outputs: Tensor = self.model(self.x)
            if not self.outputs.requires_grad:
                raise NotSupportedError(
                    "no trained parameter reaches the outputs: there is nothing to train."
                )
            self._probe = torch.zeros_like(self.outputs, requires_grad=True)
            pulled = torch.autograd.grad(
                self.outputs,
                list(self.weights.values()),
                self._probe,
                create_graph=True,
                allow_unused=True,
            )
        self._used = [place for place, part in enumerate(pulled) if part is not None and part.requires_grad]
        self._pulled = [pulled[place] for place in self._used]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kernels.__exit__(kind, error, trace)

    def push(self, changes: Sequence[Tensor]) -> Tensor:
        """J t: the change of the outputs when the parameters change by t."""
        chosen = [changes[place] for place in self._used]
        (found,) = torch.autograd.grad(self._pulled, self._probe, chosen, retain_graph=True)
        return found

    def pull(self, vector: Tensor) -> list[Tensor]:
        """J^T v, by parameter."""
        found = torch.autograd.grad(
            self.outputs, list(self.weights.values()), vector, retain_graph=True, allow_unused=True
        )
        return [torch.zeros_like(p) if g is None else g for p, g in zip(self.weights.values(), found)]


@dataclass(frozen=True)
class HeldOut:
    """``trained``: the loss on the samples of the training at its end; ``unseen``: the least on the others."""

    trained: float
    unseen: float
    samples: int  # held out


def divided(total: int, seed: Seed) -> tuple[Tensor, Tensor]:
    """Places of the samples to train on, and of a fifth that is held out."""
    order = torch.randperm(total, generator=torch_generator(seed))
    cut = total - total // 5
    return order[:cut].sort().values, order[cut:].sort().values


def held_out(setup: Setup) -> HeldOut:
    """A short training on four fifths of some samples: by descent at its best rate, or another optimizer as given."""
    case = Case(setup)
    wanted = affordable_samples(setup, _DIVIDED, STEP_PASSES * _DIVIDED_STEPS, _DIVIDED_WORK)
    task = case.chosen(max(FEWEST_DIVIDED, wanted))
    parts = divided(len(task.x), setup.seed)
    ours, theirs = (task.taken(places) for places in parts)
    recipe = setup.recipe
    if recipe.is_descent:
        recipe = recipe.scaled(edge(case).recommended / recipe.rate)
    model = copy.deepcopy(case.model)
    optimizer, least = recipe.build(model), theirs.value(model)
    for step in track(range(_DIVIDED_STEPS), "training without samples held out"):
        descend(optimizer, model, ours)
        if step % _LOOKS == _LOOKS - 1:
            least = min(least, theirs.value(model))  # what is no number is never less
    return HeldOut(ours.value(model), least, len(theirs.x))
