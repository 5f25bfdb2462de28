"""What is trained and how, and the copy of it that is measured."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from foretrain.compare.task import Task
from foretrain.doctor.setup.output_choice import without_choice
from foretrain.doctor.setup.recipe import Recipe
from foretrain.support.seeds import Seed, torch_generator

_CALIBRATION = 1024  # samples that set the statistics of batch normalisation
_NORMALISERS = nn.modules.batchnorm._BatchNorm


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
        model = copy.deepcopy(self.setup.model)
        unseen = [m for m in model.modules() if isinstance(m, _NORMALISERS) and _has_seen_nothing(m)]
        if unseen:
            _calibrate(model, unseen, self.chosen(_CALIBRATION).x)
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


def _has_seen_nothing(module: nn.Module) -> bool:
    counted = getattr(module, "num_batches_tracked", None)
    return counted is not None and int(counted) == 0


def _calibrate(model: nn.Module, normalisers: Sequence[_NORMALISERS], x: Tensor) -> None:
    model.eval()
    momenta = [module.momentum for module in normalisers]
    for module in normalisers:
        module.train()
        module.momentum = 1.0
    with torch.no_grad():
        model(x)
    for module, momentum in zip(normalisers, momenta):
        module.momentum = momentum
