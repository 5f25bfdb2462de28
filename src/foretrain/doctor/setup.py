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
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from foretrain.compare.task import Task
from foretrain.doctor.intake import first_line, without_choice
from foretrain.doctor.step_task import StepTask
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.seeds import Seed, torch_generator
from foretrain.support.threads import on_free_cores

_CALIBRATION = 1024  # samples that set the statistics of batch normalisation
_COURSE = "foretrain_course"  # an attribute of optimizers that are built here
_SCHEDULED = 2048  # steps over which a schedule is read: more than any training here makes
_NORMALISERS = nn.modules.batchnorm._BatchNorm
Found = TypeVar("Found")
STEP_PASSES = 3  # passes forwards that one step of training is worth
_FEWEST = 16  # samples
_WORTH = 1e8  # multiplications of one layer in a step, from which on threads pay: milliseconds of one core
_COUNTED = 8  # samples of a step of batches whose work is counted
_STEP_SAMPLES = 128  # in a step, where all data are taken
_NUMBERS = 1e7  # that layers return in a pass: 40 MB, which every training may need
SPEED = 1e10  # multiplications in a second
_PASS_SECONDS = 1.0  # that one pass of all samples looked at may take, counted
_FEWEST_SEEN = 64
_FEWEST_AT_ONCE = 4
ONLY_STEPS = "only steps"  # known of a model that fails on more samples than a step has


@dataclass(frozen=True)
class Group:
    """Parameters that share options."""

    names: tuple[str, ...]
    options: Mapping[str, Any]
    schedule: tuple[float, ...] = ()  # factors of the rate in the first steps, of which the last one stays

    @property
    def rate(self) -> float:
        """The learning rate, where there is a schedule its largest one."""
        return float(self.options["lr"])

    def rate_at(self, step: int) -> float:
        """The learning rate in a step, from 0 on."""
        return self.rate * (self.schedule[min(step, len(self.schedule) - 1)] if self.schedule else 1.0)


@dataclass(frozen=True)
class Recipe:
    """How a model is trained. ``chosen``: by the doctor, because no optimizer was given."""

    kind: type[torch.optim.Optimizer]
    groups: tuple[Group, ...]
    chosen: bool = False
    clip_norm: float | None = None  # the largest norm of all gradients together
    clip_value: float | None = None  # the largest entry of a gradient
    accumulate: int = 1  # micro-batches in a step
    autocast: torch.dtype | None = None  # the precision of the passes

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
        clipped = self.clip_norm is not None or self.clip_value is not None
        return self.kind is torch.optim.SGD and plain and not clipped

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
        optimizer = make(groups, **({"lr": self.rate} if "lr" in self.groups[0].options else {}))
        vars(optimizer)[_COURSE] = Course(self)
        return optimizer

    def scaled(self, factors: float | Mapping[str, float]) -> Recipe:
        """With all rates multiplied by one factor, or the rates of named parameters by their own."""
        groups = list[Group]()
        for group in self.groups:
            by_factor: dict[float, list[str]] = {}
            for name in group.names:
                factor = factors.get(name, 1.0) if isinstance(factors, Mapping) else factors
                by_factor.setdefault(factor, []).append(name)
            groups += [
                replace(group, names=tuple(names), options={**group.options, "lr": group.rate * factor})
                for factor, names in by_factor.items()
            ]
        return replace(self, groups=tuple(groups))

    def __str__(self) -> str:
        rates = sorted({group.rate for group in self.groups})
        told = f"{rates[0]:.3g}" if len(rates) == 1 else f"{rates[0]:.3g} to {rates[-1]:.3g}"
        momentum = f", momentum {self.momentum:g}" if self.momentum else ""
        extras = [
            f"gradients clipped at norm {self.clip_norm:g}" if self.clip_norm is not None else "",
            f"gradients clipped at {self.clip_value:g}" if self.clip_value is not None else "",
            f"{self.accumulate} micro-batches in a step" if self.accumulate > 1 else "",
            f"autocast to {str(self.autocast).removeprefix('torch.')}" if self.autocast is not None else "",
            "rates on a schedule" if any(group.schedule for group in self.groups) else "",
        ]
        return ", ".join([f"{self.kind.__name__} with rate {told}{momentum}", *filter(None, extras)])


@dataclass
class Course:
    """What an optimizer that was built from a recipe carries along, for :func:`foretrain.doctor.trials.descend`."""

    recipe: Recipe
    steps: int = 0  # made so far


def course_of(optimizer: torch.optim.Optimizer) -> Course | None:
    """Of an optimizer that was built from a recipe; None for others."""
    course: Course | None = vars(optimizer).get(_COURSE)
    return course


def descent(model: nn.Module, rate: float, *, chosen: bool = False) -> Recipe:
    """Plain gradient descent of all trained parameters at one rate."""
    names = tuple(name for name, parameter in model.named_parameters() if parameter.requires_grad)
    if not names:
        raise NotSupportedError("the model has no parameter with requires_grad: there is nothing to train.")
    return Recipe(torch.optim.SGD, (Group(names, {"lr": rate}),), chosen)


Schedule = torch.optim.lr_scheduler.LRScheduler | Callable[[int], float]


def recipe_of(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: Schedule | None = None,
    every: int = 1,
) -> Recipe:
    """What a torch optimizer does, by the names of the model's parameters; its scheduler steps ``every`` so often."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = []
    for given, rates in zip(optimizer.param_groups, scheduled_rates(optimizer, scheduler, every)):
        known = tuple(names[id(p)] for p in given["params"] if id(p) in names and p.requires_grad)
        if len(known) < len([p for p in given["params"] if p.requires_grad]):
            raise InputError(
                "the optimizer trains parameters that are not the model's: make it from model.parameters()."
            )
        options = {key: value for key, value in given.items() if key not in ("params", "initial_lr")}
        for key, value in options.items():
            if isinstance(value, torch.Tensor) and value.numel() == 1:
                options[key] = value.item()
        rate = options["lr"] = max(rates) if rates else options.get("lr")
        if not isinstance(rate, int | float | np.number) or not 0 <= rate < math.inf:
            raise InputError(
                f"the optimizer's learning rate is {rate!r}: give one that is finite and not negative."
            )
        if known:
            factors = tuple(value / rate for value in rates) if rate else ()
            groups.append(Group(known, options, factors))
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise NotSupportedError(
            "SparseAdam takes sparse gradients only, which cannot be measured: give torch.optim.Adam in its place."
        )
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


def scheduled_rates(
    optimizer: torch.optim.Optimizer, scheduler: Schedule | None, every: int = 1
) -> list[list[float]]:
    """The learning rates of each group in the steps to come, read off a copy; nothing where they stay as they are.

    One that waits for the loss to stop falling does not act in a short training, and counts as none. Where momentum
    is moved too, as OneCycleLR does, only the rates follow.
    """
    groups = optimizer.param_groups
    if scheduler is None or isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        return [[] for _ in groups]
    # The copy moves an optimizer of its own, with the same options and a single weight in each group.
    weights = [nn.Parameter(torch.zeros(1)) for _ in groups]
    options = [{key: copy.copy(value) for key, value in group.items() if key != "params"} for group in groups]
    mover = torch.optim.SGD([{"params": [w], **o} for w, o in zip(weights, options)], lr=1.0)
    mover.defaults = dict(optimizer.defaults)
    if isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler):
        if scheduler.optimizer is not optimizer:
            raise InputError("the scheduler is that of another optimizer: make it of the one that is given.")
        follower = copy.deepcopy(scheduler, {id(optimizer): mover})
    elif callable(scheduler):
        for group in mover.param_groups:
            group.pop("initial_lr", None)
        try:
            follower = torch.optim.lr_scheduler.LambdaLR(mover, lambda step: float(scheduler(step)))
        except (TypeError, ValueError) as error:
            raise InputError(
                f"the scheduler gives no factor for step 0 ({first_line(error)}): let it return a number at every "
                "step."
            ) from error
    else:
        raise InputError(
            f"scheduler is a {type(scheduler).__name__}: give a torch scheduler, or a function from the number of a "
            "step to the factor of the rate."
        )
    rates = list[list[float]]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # there is no step of the optimizer before these
        for step in range(_SCHEDULED):
            if step and step % every == 0:
                try:
                    follower.step()
                except ValueError:  # one that has come to its end, after which the last rate stays
                    break
            rates.append([float(group["lr"]) for group in mover.param_groups])
    last = max([0, *(step for step in range(1, len(rates)) if rates[step] != rates[step - 1])])
    return [list(column) for column in zip(*rates[: last + 1])]


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
    in_order: bool = False  # True: samples are not shuffled between epochs
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
        return {
            key: self.known[key]
            for key in ("bench", "constant loss", "calls", "held out", ONLY_STEPS)
            if key in self.known
        }

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

    def shuffled(self) -> Setup:
        """With samples in a new order in every epoch."""
        return replace(self, in_order=False, known=self._known_of_data())

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
        known = self.setup.known
        if unseen and "statistics" not in known:
            for module, _ in unseen:
                module.train()
                module.momentum = None  # the mean over all parts
            with torch.no_grad():
                for part in in_parts(self.setup, self.pool(seen_in_a_pass(self.setup, _CALIBRATION))):
                    part.loss_of(model)
            for module, momentum in unseen:
                module.momentum = momentum
            known["statistics"] = {name: value.clone() for name, value in model.named_buffers()}
        elif unseen:
            for name, value in model.named_buffers():
                value.copy_(known["statistics"][name])
        return model.eval()

    @cached_property
    def raw_model(self) -> nn.Module:
        """The same without the choice of one tensor among what it returns, for functions that take modules apart."""
        return without_choice(self.model)

    def chosen(self, samples: int) -> Task:
        """So many samples for one pass, or as many as a pass of them needs no more memory than a step of training."""
        return self.pool(self.at_once(samples))

    def at_once(self, samples: int) -> int:
        """So many samples, or as many of them as one pass may have, but some in any case."""
        return min(samples, max(_FEWEST_AT_ONCE, samples_at_once(self.setup)))

    def pool(self, samples: int) -> Task:
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
    """Multiplications of one sample's way forwards: in one call of the largest layer, and of all layers together.

    ``numbers``: how many all layers return on this way, which a step keeps.
    """

    largest: int
    total: int
    numbers: int = 0


def work_of(setup: Setup) -> Work:
    """Measured once."""
    if "work" not in setup.known:
        # Steps of batches may compare samples with each other, so they get more than one.
        few = _COUNTED if isinstance(setup.task, StepTask) else 1
        task = setup.task.taken(torch.arange(min(few, len(setup.task.x))))
        run = task.loss_of if isinstance(task, StepTask) else None
        start = time.monotonic()
        setup.known["work"] = count_work(setup.model, task.x, run)
        setup.known["pass seconds"] = time.monotonic() - start
    found: Work = setup.known["work"]
    return found


def count_work(model: nn.Module, x: Any, run: Callable[[nn.Module], Any] | None = None) -> Work:
    """By running it on x, or as ``run`` does; the largest call of a recurrent layer is one step in time."""
    calls, total, numbers = [0], [0], [0]

    def count(module: nn.Module, given: Any, result: Any) -> None:
        values = result[0] if isinstance(result, tuple) and result else result
        if isinstance(values, Tensor) and not list(module.children()):
            numbers.append(values.numel())
        weights = [weight for weight in module.parameters(recurse=False) if weight.ndim >= 2]
        if isinstance(module, nn.RNNBase):
            calls.append(len(x) * max(weight.numel() for weight in weights))
            values = given[0] if given else None
            # Samples times steps in time of what a recurrent layer is given.
            rows = values.numel() // values.shape[-1] if isinstance(values, Tensor) else len(x)
            total.append(rows * sum(weight.numel() for weight in weights))
        elif isinstance(result, Tensor) and not isinstance(module, nn.Embedding | nn.EmbeddingBag):
            own = [result.numel() * weight[0].numel() for weight in weights]
            calls.extend(own)
            total.extend(own)

    at_rest = copy.deepcopy(model).eval()
    for module in at_rest.modules():
        module.register_forward_hook(count)
    with torch.no_grad():
        (run or (lambda model: model(x)))(at_rest)
    return Work(max(calls) // len(x), sum(total) // len(x), sum(numbers) // len(x))


def samples_at_once(setup: Setup) -> int:
    """Samples whose pass needs no more memory than a step of the training, or hardly any."""
    step = setup.batch_size or len(setup.task.x)
    if setup.known.get(ONLY_STEPS):
        return step
    return max(step, int(_NUMBERS / max(1, work_of(setup).numbers)))


def in_parts(setup: Setup, task: Task) -> Iterator[Task]:
    """A task in parts of as many samples as are passed at once."""
    places = torch.split(torch.arange(len(task.x)), samples_at_once(setup))
    return (task.taken(part) for part in places) if len(places) > 1 else iter([task])


def seen_in_a_pass(setup: Setup, most: int) -> int:
    """Samples that are looked at where all of them would be best: fewer of a model whose passes take long."""
    return min(most, max(_FEWEST_SEEN, int(_PASS_SECONDS * SPEED / max(1, work_of(setup).total))))


def affordable_samples(setup: Setup, wanted: int, passes: float, work: float) -> int:
    """As many of the wanted samples as so many passes forwards of all of them may take, but some in any case."""
    each = max(1.0, passes * work_of(setup).total)
    return min(wanted, max(_FEWEST, int(work / each)))


@contextmanager
def suited_threads(setup: Setup) -> Iterator[None]:
    """One thread for torch and numpy inside, unless a layer is large enough to be shared; afterwards as before."""
    samples = min(setup.batch_size or _STEP_SAMPLES, len(setup.task.x))
    if samples * work_of(setup).largest >= _WORTH:
        with on_free_cores():
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
