"""What is trained and how, and the copy of it that is measured."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from foretrain.compare.task import Task
from foretrain.doctor.setup.intake import without_choice
from foretrain.doctor.setup.recipe import Recipe
from foretrain.support.seeds import Seed, torch_generator

_CALIBRATION = 1024  # samples that set the statistics of batch normalisation
_NORMALISERS = nn.modules.batchnorm._BatchNorm
Found = TypeVar("Found")


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
        return replace(self, model=model, known={})

    def rescaled(self, factors: Mapping[str, float]) -> Setup:
        """With some parameters multiplied, by name."""

        def multiply(model: nn.Module) -> None:
            for name, factor in factors.items():
                model.get_parameter(name).mul_(factor)

        return self.with_weights(multiply)

    def with_inputs(self, x: Tensor) -> Setup:
        """With other inputs, of the same shape."""
        return replace(self, task=replace(self.task, x=x), known={})

    def with_targets(self, y: Tensor) -> Setup:
        """With other targets, of the same shape."""
        return replace(self, task=replace(self.task, y=y), known={})

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
