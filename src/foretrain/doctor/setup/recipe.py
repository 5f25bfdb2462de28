"""An optimizer as a recipe: its class, groups and options by parameter name, so that copies can be trained alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from foretrain.support.errors import InputError, NotSupportedError


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
