"""Inputs of a model that takes several tensors, in the place of the one tensor that others take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foretrain.empirical.models.arguments import Batch, as_batch, leaves, mapped
from foretrain.support.errors import NotSupportedError


@dataclass(frozen=True, eq=False)
class Bundle(Batch):
    """A dict (arguments by name) or tuple (by position) of tensors, samples along the first axis.

    What has another length there belongs to all samples. ``unusable``: why a model cannot be called with it, if so.
    """

    unusable: str = ""

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, samples: slice | Sequence[int] | Tensor) -> Bundle:
        if isinstance(samples, int):
            raise NotSupportedError(f"the inputs are several tensors ({self}), and this needs a single one.")
        part = self.pick(samples.tolist() if isinstance(samples, Tensor) else samples)
        return replace(self, arguments=part.arguments, count=part.count)

    @property
    def device(self) -> torch.device:
        """Where the first tensor is."""
        return next(value.device for value in leaves(self.arguments) if isinstance(value, Tensor))

    @property
    def numbers(self) -> int:
        """How many belong to one sample, in all tensors together."""
        sizes = [value.numel() for value, holds in zip(leaves(self.arguments), self.holders) if holds]
        return int(sum(sizes)) // max(1, self.count)

    def changed(self, function: Callable[[Tensor], Tensor]) -> Bundle:
        """With the function's result in the place of every tensor."""
        change = mapped(lambda value: function(value) if isinstance(value, Tensor) else value, self.arguments)
        return replace(self, arguments=change)

    def to(self, place: torch.device | str) -> Bundle:
        """On another device."""
        return self.changed(lambda value: value.to(place))

    def __str__(self) -> str:
        entries = self.arguments.items() if isinstance(self.arguments, Mapping) else enumerate(self.arguments)
        return ", ".join(
            f"{name} {tuple(value.shape)}" for name, value in entries if isinstance(value, Tensor)
        )

    def __getattr__(self, name: str) -> Any:
        # What is written for one tensor says so, wherever it is; Python's own questions get Python's answer.
        if not name.startswith("_") and hasattr(Tensor, name):
            raise NotSupportedError(f"the inputs are several tensors ({self}), and this needs a single one.")
        raise AttributeError(name)

    @classmethod
    def __torch_function__(cls, *_: Any) -> Any:
        raise NotSupportedError("the inputs are several tensors, and this needs a single one.")


def bundle(values: Any) -> Bundle:
    """Of tensors or arrays in dicts and tuples, which may be inside of each other."""
    tensors = mapped(lambda value: torch.as_tensor(value) if isinstance(value, np.ndarray) else value, values)
    return Bundle(
        **vars(
            as_batch(mapped(lambda value: value.detach() if isinstance(value, Tensor) else value, tensors))
        )
    )


def change_tensors(values: Tensor | Bundle, function: Callable[[Tensor], Tensor]) -> Tensor | Bundle:
    """The function's result for one tensor, or for every tensor of several."""
    return values.changed(function) if isinstance(values, Bundle) else function(values)


def shape_text(values: Tensor | Bundle) -> str:
    """Shapes as they are told to people."""
    return str(values) if isinstance(values, Bundle) else str(tuple(values.shape))


class Unpacking:
    """A forward pre-hook by which a model that takes several tensors can be called with a bundle of them."""

    def __call__(self, module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The arguments that the model is called with instead; None leaves them as they are."""
        if len(given) != 1 or not isinstance(given[0], Bundle):
            return None
        if given[0].unusable:
            raise NotSupportedError(given[0].unusable)
        arguments = given[0].arguments
        if isinstance(arguments, Mapping):
            return (), {**arguments, **named}
        return (tuple(arguments) if isinstance(arguments, tuple | list) else (arguments,)), named


def unpack_bundles(model: nn.Module) -> None:
    """Let this model be called with a bundle, from now on."""
    if not takes_bundles(model):
        model.register_forward_pre_hook(Unpacking(), with_kwargs=True)


def takes_bundles(model: nn.Module) -> bool:
    """Whether it can be called with one."""
    return any(isinstance(hook, Unpacking) for hook in model._forward_pre_hooks.values())
