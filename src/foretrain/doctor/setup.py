"""What is trained and how, the copy of it that is measured, and what a pass of it costs.

An optimizer is kept as a recipe: its class, groups and options by parameter name, so that copies are trained alike.

Work is counted in multiplications of layers and not timed, so that the same model is looked at in the same way on
every machine, and treated networks in the same way as the given one. A core makes about 10^10 multiplications in a
second. Layers of a few hundred units are done before a second thread has begun, and on a machine with other work
threads then wait for each other: a step of a small network takes up to fifty times longer with two threads than with
one.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from foretrain.compare.task import Task
from foretrain.doctor.intake import without_choice
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.seeds import Seed, torch_generator

_CALIBRATION = 1024  # samples that set the statistics of batch normalisation
_NORMALISERS = nn.modules.batchnorm._BatchNorm
Found = TypeVar("Found")
STEP_PASSES = 3  # passes forwards that one step of training is worth
_FEWEST = 16  # samples
_WORTH = 1e8  # multiplications of one layer in a step, from which on threads pay: milliseconds of one core
_STEP_SAMPLES = 128  # in a step, where all data are taken


@dataclass(frozen=True)
class Group:
    """Parameters that share options."""

    names: tuple[str, ...]
    options: Mapping[str, Any]

    @property
    def rate(self) -> float:
        """The learning rate."""
        return float(self.options["lr"])


@dataclass(frozen=True)
class Recipe:
    """How a model is trained. ``chosen``: by the doctor, because no optimizer was given."""

    kind: type[torch.optim.Optimizer]
    groups: tuple[Group, ...]
    chosen: bool = False

    @property
    def rate(self) -> float:
        """The largest learning rate of all groups."""
        return max(group.rate for group in self.groups)

    @property
    def rates(self) -> dict[str, float]:
        """By parameter name."""
        return {name: group.rate for group in self.groups for name in group.names}

    @property
    def momentum(self) -> float:
        """Of the first group; 0 where the optimizer knows none."""
        return float(self.groups[0].options.get("momentum", 0.0))

    @property
    def is_descent(self) -> bool:
        """Whether it is gradient descent (with or without momentum), of which the kernels speak exactly."""
        plain = all(
            not group.options.get("weight_decay")
            and not group.options.get("dampening")
            and not group.options.get("maximize")
            and float(group.options.get("momentum", 0.0)) == self.momentum
            for group in self.groups
        )
        return self.kind is torch.optim.SGD and plain

    @property
    def is_adaptive(self) -> bool:
        """Whether gradients are divided by their size, so that all parameters move by about their rates."""
        return not issubclass(self.kind, torch.optim.SGD)

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer for a model with these parameter names."""
        groups = [
            {**group.options, "params": [model.get_parameter(name) for name in group.names]}
            for group in self.groups
        ]
        make: Callable[..., torch.optim.Optimizer] = self.kind
        return make(groups, **({"lr": self.rate} if "lr" in self.groups[0].options else {}))

    def scaled(self, factors: float | Mapping[str, float]) -> Recipe:
        """With all rates multiplied by one factor, or the rates of named parameters by their own."""
        groups = list[Group]()
        for group in self.groups:
            by_factor: dict[float, list[str]] = {}
            for name in group.names:
                factor = factors.get(name, 1.0) if isinstance(factors, Mapping) else factors
                by_factor.setdefault(factor, []).append(name)
            groups += [
                Group(tuple(names), {**group.options, "lr": group.rate * factor})
                for factor, names in by_factor.items()
            ]
        return replace(self, groups=tuple(groups))

    def __str__(self) -> str:
        rates = sorted({group.rate for group in self.groups})
        told = f"{rates[0]:.3g}" if len(rates) == 1 else f"{rates[0]:.3g} to {rates[-1]:.3g}"
        momentum = f", momentum {self.momentum:g}" if self.momentum else ""
        return f"{self.kind.__name__} with rate {told}{momentum}"


def descent(model: nn.Module, rate: float, *, chosen: bool = False) -> Recipe:
    """Plain gradient descent of all trained parameters at one rate."""
    names = tuple(name for name, parameter in model.named_parameters() if parameter.requires_grad)
    if not names:
        raise NotSupportedError("the model has no parameter with requires_grad: there is nothing to train.")
    return Recipe(torch.optim.SGD, (Group(names, {"lr": rate}),), chosen)


def recipe_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> Recipe:
    """What a torch optimizer does, by the names of the model's parameters."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = []
    for given in optimizer.param_groups:
        known = tuple(names[id(p)] for p in given["params"] if id(p) in names and p.requires_grad)
        if len(known) < len([p for p in given["params"] if p.requires_grad]):
            raise InputError(
                "the optimizer trains parameters that are not the model's: make it from model.parameters()."
            )
        options = {key: value for key, value in given.items() if key != "params"}
        for key, value in options.items():
            if isinstance(value, torch.Tensor) and value.numel() == 1:
                options[key] = value.item()
        rate = options.get("lr")
        if not isinstance(rate, int | float | np.number) or not 0 <= rate < math.inf:
            raise InputError(
                f"the optimizer's learning rate is {rate!r}: give one that is finite and not negative."
            )
        if known:
            groups.append(Group(known, options))
    if not groups:
        raise InputError(
            "the optimizer trains none of the model's parameters: make it from model.parameters()."
        )
    if not any(group.rate for group in groups):
        raise InputError(
            "the optimizer's learning rate is 0, so that nothing is learned: give the rate that training will use "
            "(as after a warm-up)."
        )
    return Recipe(type(optimizer), tuple(groups))


@dataclass(frozen=True, eq=False)
class Setup:
    """A model, its data, its loss and its optimizer. Treatments map one to another; none is ever changed in place."""

    model: nn.Module
    task: Task  # x, y, loss and loss_name, as tensors that the model takes
    recipe: Recipe
    batch_size: int | None = None  # None: all data in every step
    seed: Seed = 0
    fresh: bool = True  # False: training has begun, so weights must not be drawn anew
    notes: tuple[str, ...] = ()  # what was left out of the data
    known: dict[Any, Any] = field(default_factory=dict, repr=False)  # measured; the same for other rates
    training_seconds: float = 2.5  # about how long one short training may take, counted and not timed

    @property
    def trained_parameters(self) -> int:
        """How many numbers descent changes."""
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)

    def with_weights(self, change: Callable[[nn.Module], Any]) -> Setup:
        """With a copy of the model that ``change`` has worked on."""
        changed = copy.deepcopy(self.model)
        with torch.no_grad():
            change(changed)
        return self.with_model(changed)

    def with_model(self, model: nn.Module) -> Setup:
        """With another model of the same kind."""
        return replace(self, model=model, known=self._known_of_data())

    def _known_of_data(self) -> dict[Any, Any]:
        """What is measured of samples and targets, which other weights and scales of inputs leave as it is."""
        return {key: self.known[key] for key in ("bench", "constant loss", "calls") if key in self.known}

    def rescaled(self, factors: Mapping[str, float]) -> Setup:
        """With some parameters multiplied, by name."""

        def multiply(model: nn.Module) -> None:
            for name, factor in factors.items():
                model.get_parameter(name).mul_(factor)

        return self.with_weights(multiply)

    def with_inputs(self, x: Tensor) -> Setup:
        """With other inputs, of the same shape."""
        return replace(self, task=replace(self.task, x=x), known=self._known_of_data())

    def with_targets(self, y: Tensor) -> Setup:
        """With other targets, of the same shape."""
        return replace(self, task=replace(self.task, y=y), known={})

    def with_loss(self, loss: Callable[[Any, Any], Tensor]) -> Setup:
        """With another loss of the same outputs and targets."""
        return replace(self, task=replace(self.task, loss=loss), known=self._known_of_data())

    def with_recipe(self, recipe: Recipe) -> Setup:
        """With another optimizer."""
        return replace(self, recipe=recipe)


@dataclass(frozen=True, eq=False)
class Case:
    """A setup as the checks see it: the model at rest, and few enough samples for exact kernels.

    ``model`` is a copy in evaluation mode: dropout is off, and batch normalisation uses fixed statistics, taken from
    the data where the model has never seen any.
    """

    setup: Setup

    @property
    def task(self) -> Task:
        """All data, and the loss."""
        return self.setup.task

    @property
    def recipe(self) -> Recipe:
        """How it is trained."""
        return self.setup.recipe

    @cached_property
    def model(self) -> nn.Module:
        """The measured copy."""
        model = copy.deepcopy(self.setup.model).eval()
        normalisers = [module for module in model.modules() if isinstance(module, _NORMALISERS)]
        counts = [getattr(module, "num_batches_tracked", None) for module in normalisers]
        unseen = [
            (module, module.momentum)
            for module, count in zip(normalisers, counts)
            if count is not None and int(count) == 0
        ]
        if unseen:
            for module, _ in unseen:
                module.train()
                module.momentum = 1.0
            with torch.no_grad():
                model(self.chosen(_CALIBRATION).x)
            for module, momentum in unseen:
                module.momentum = momentum
        return model.eval()

    @cached_property
    def raw_model(self) -> nn.Module:
        """The same without the choice of one tensor among what it returns, for functions that take modules apart."""
        return without_choice(self.model)

    def chosen(self, samples: int) -> Task:
        """So many samples, drawn by the seed (all of them, in their order, where there are no more)."""
        total = len(self.task.x)
        if samples >= total:
            return self.task
        order = torch.randperm(total, generator=torch_generator(self.setup.seed))[:samples].sort().values
        return self.task.taken(order)

    @cached_property
    def outputs_per_sample(self) -> int:
        """Numbers that the model returns for one sample."""
        with torch.no_grad():
            return int(self.model(self.task.x[:1]).numel())

    def kernel_sample(self, entries: int = 2048) -> Task:
        """As many samples as an exact kernel over samples and outputs of about this size allows."""
        return self.chosen(max(2, min(256, entries // max(1, self.outputs_per_sample))))


def once(measure: Callable[[Case], Found]) -> Callable[[Case], Found]:
    """A measurement that several checks ask for is made once for each case, and forgotten with it."""
    key = f"measured {measure.__module__}.{measure.__qualname__}"

    @wraps(measure)
    def remembered(case: Case) -> Found:
        kept = vars(case)
        if key not in kept:
            kept[key] = measure(case)
        found: Found = kept[key]
        return found

    return remembered


@dataclass(frozen=True)
class Work:
    """Multiplications of one sample's way forwards: in one call of the largest layer, and of all layers together."""

    largest: int
    total: int


def work_of(setup: Setup) -> Work:
    """Measured on one sample, once."""
    if "work" not in setup.known:
        setup.known["work"] = count_work(setup.model, setup.task.x[:1])
    found: Work = setup.known["work"]
    return found


def count_work(model: nn.Module, x: Tensor) -> Work:
    """By running it; the largest call of a recurrent layer is one step in time."""
    calls, total = [0], [0]

    def count(module: nn.Module, given: Any, result: Any) -> None:
        weights = [weight for weight in module.parameters(recurse=False) if weight.ndim >= 2]
        if isinstance(module, nn.RNNBase):
            calls.append(len(x) * max(weight.numel() for weight in weights))
            values = given[0] if given else x
            # Samples times steps in time of what a recurrent layer is given.
            rows = values.numel() // values.shape[-1] if isinstance(values, Tensor) else len(x)
            total.append(rows * sum(weight.numel() for weight in weights))
        elif isinstance(result, Tensor) and not isinstance(module, nn.Embedding):
            own = [result.numel() * weight[0].numel() for weight in weights]
            calls.extend(own)
            total.extend(own)

    at_rest = copy.deepcopy(model).eval()
    for module in at_rest.modules():
        module.register_forward_hook(count)
    with torch.no_grad():
        at_rest(x)
    return Work(max(calls), sum(total))


def affordable_samples(setup: Setup, wanted: int, passes: float, work: float) -> int:
    """As many of the wanted samples as so many passes forwards of all of them may take, but some in any case."""
    each = max(1.0, passes * work_of(setup).total)
    return min(wanted, max(_FEWEST, int(work / each)))


@contextmanager
def suited_threads(setup: Setup) -> Iterator[None]:
    """One thread for torch and numpy inside, unless a layer is large enough to be shared; afterwards as before."""
    samples = min(setup.batch_size or _STEP_SAMPLES, len(setup.task.x))
    if samples * work_of(setup).largest >= _WORTH:
        yield
        return
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)
