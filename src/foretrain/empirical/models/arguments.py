"""What is given with a model: a batch of samples as it takes them, and the parameters that count, each with its rate.

A batch is a tensor, a tuple or a dict of tensors, or everything that a loader gives.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import torch
from torch import Tensor, nn

from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError, NotSupportedError

Chosen = str | Iterable[str | Tensor] | Callable[[str, Tensor], bool] | None
Rates = float | Mapping[str, float] | Sequence[Mapping[str, Any]] | Callable[[str, Tensor], float] | None


@dataclass(frozen=True)
class Batch:
    """Arguments of a model; of its tensors some hold one sample per entry along ``axis``, others belong to all.

    ``holders``: which ones, in the order of the arguments, decided once for the whole batch.
    """

    arguments: Any
    count: int
    holders: tuple[bool, ...]
    axis: int = 0
    origin: object = (
        None  # the same for all parts of one batch: they have all arguments but the samples in common
    )

    def pick(self, samples: slice | Sequence[int]) -> Batch:
        """The same arguments for some of the samples, in the order given."""
        order = list(range(self.count))[samples] if isinstance(samples, slice) else list(samples)
        index = torch.tensor(order)
        holders = iter(self.holders)

        def cut(value: Any) -> Any:
            if not next(holders):
                return value
            if isinstance(samples, slice):
                part = value[(slice(None),) * self.axis + (samples,)]
                # Products are built differently on strided parts.
                return part.contiguous() if self.axis else part
            return value.index_select(self.axis, index.to(value.device))

        return Batch(mapped(cut, self.arguments), len(order), self.holders, self.axis, self.origin)

    def equals(self, other: Batch) -> bool:
        """Whether all tensors that hold samples are the same."""
        pairs = zip(leaves(self.arguments), leaves(other.arguments), self.holders)
        return all(torch.equal(mine, its) for mine, its, holds in pairs if holds)

    def channels_last(self) -> Any:
        """The arguments with the channels of images side by side in memory; their values are the same."""
        holders = iter(self.holders)

        def arranged(value: Any) -> Any:
            if next(holders) and value.ndim == 4 and value.is_floating_point():
                return value.contiguous(memory_format=torch.channels_last)
            return value

        return mapped(arranged, self.arguments)


def as_batch(x: Any, axis: int = 0, shared: Collection[str | int] = ()) -> Batch:
    """Check what the user gave; a loader is read to its end, and of its (input, target) pairs the input counts.

    ``shared``: names or positions of arguments that belong to all samples, whatever their sizes.
    """
    if isinstance(x, Batch):
        return x
    axis = whole_number("batch_axis", axis, least=0)
    if isinstance(x, torch.utils.data.DataLoader):
        # TensorDataset and most datasets give (input, target) or (input,) lists; dicts are taken whole.
        parts = [part[0] if isinstance(part, list | tuple) else part for part in x]
        if not parts:
            raise InputError("the loader gives no batch: pass one that holds samples.")
        return as_batch(_joined(parts, axis), axis, shared)
    if not isinstance(x, Tensor | tuple | list | Mapping):
        raise InputError(
            f"`x` must be a tensor, a tuple or dict of tensors, or a DataLoader, not {type(x).__name__}: "
            "convert arrays with torch.as_tensor(...)."
        )
    arguments = tuple(x) if isinstance(x, list) else x
    common = _are_shared(arguments, shared)
    lengths = [
        v.shape[axis]
        for v, of_all in zip(leaves(arguments), common)
        if isinstance(v, Tensor) and v.ndim > axis and not of_all
    ]
    if not lengths:
        raise InputError("`x` holds no tensor with samples along its first axis: pass at least one.")
    if not lengths[0]:
        raise InputError("`x` holds no sample: pass at least one.")
    for value in leaves(arguments):
        real = isinstance(value, Tensor) and value.is_floating_point()
        # Minus infinity is what masks are made of.
        if real and bool((torch.isnan(value) | torch.isposinf(value)).any()):
            raise InputError("`x` has entries that are nan or infinite: remove or replace them first.")
    count = lengths[0]
    holders = tuple(
        isinstance(value, Tensor) and value.ndim > axis and value.shape[axis] == count and not of_all
        for value, of_all in zip(leaves(arguments), common)
    )

    def usable(value: Any) -> Any:
        # Tensors made in inference mode cannot be kept for a backward pass; copies can.
        if isinstance(value, Tensor) and value.is_inference():
            with torch.inference_mode(False):
                return value.clone()
        return value

    return Batch(mapped(usable, arguments), count, holders, axis, object())


def _are_shared(arguments: Any, shared: Collection[str | int]) -> list[bool]:
    """For every tensor or other leaf of the arguments, whether it belongs to all samples by the user's word."""
    if isinstance(arguments, Mapping):
        parts: list[tuple[Any, Any]] = list(arguments.items())
    elif isinstance(arguments, tuple):
        parts = list(enumerate(arguments))
    else:
        parts = [(0, arguments)]
    known = {key for key, _ in parts}
    for key in shared:
        if key not in known:
            names = ", ".join(repr(name) for name in known)
            raise InputError(f"`shared=` names the argument {key!r}, which x does not have: it has {names}.")
    return [key in shared for key, part in parts for _ in leaves(part)]


def _joined(parts: Sequence[Any], axis: int) -> Any:
    """All batches of a loader in one."""
    first = parts[0]
    if isinstance(first, Tensor):
        try:
            return torch.cat(list(parts), axis)
        except RuntimeError:
            sizes = ", ".join(str(tuple(part.shape)) for part in parts[:3])
            raise InputError(
                f"the loader's batches do not fit together ({sizes}, ...): pad their samples to one size."
            ) from None
    if isinstance(first, Mapping):
        return {key: _joined([part[key] for part in parts], axis) for key in first}
    if isinstance(first, tuple | list):
        return tuple(_joined([part[i] for part in parts], axis) for i in range(len(first)))
    return first


def numbers_below(count: int, given: Iterable[Any]) -> list[int]:
    """Numbers of samples or outputs, those below zero counted from the end; nothing if one of them is none."""
    try:
        numbers = [-count - 1 if isinstance(number, bool) else index(number) for number in given]
    except TypeError:
        return []
    return [number % count for number in numbers] if all(-count <= n < count for n in numbers) else []


def leaves(value: Any) -> list[Any]:
    """All that is inside tuples, lists and dicts, in their order."""
    if isinstance(value, Mapping):
        return [leaf for part in value.values() for leaf in leaves(part)]
    if isinstance(value, tuple | list):
        return [leaf for part in value for leaf in leaves(part)]
    return [value]


def mapped(function: Any, value: Any) -> Any:
    """The same tuples, lists and dicts with the function's result in the place of every leaf."""
    if isinstance(value, Mapping):
        return {key: mapped(function, part) for key, part in value.items()}
    if isinstance(value, tuple):
        parts = [mapped(function, part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, list):
        return [mapped(function, part) for part in value]
    return function(value)


def trainable(model: Any, parameters: Any) -> dict[str, Tensor]:
    """All parameters with requires_grad by name; a tied one has the first of its names."""
    if isinstance(model, nn.Module):
        named: Iterable[tuple[str, Tensor]] = model.named_parameters()
    else:
        named = _flat(parameters)
    found = {name: value for name, value in named if value.requires_grad}
    computed = [name for name, value in found.items() if not value.is_leaf]
    for name, value in found.items():
        if value.is_complex():
            raise NotSupportedError(
                f"the parameter {name!r} is complex: keep its real and imaginary parts as two real parameters."
            )
    if computed:
        raise InputError(
            f"the parameter {computed[0]!r} is computed from other tensors: pass leaf tensors, for example "
            "value.detach().requires_grad_()."
        )
    if not found:
        raise InputError(
            "the model has no parameter with requires_grad: unfreeze some`, or pass a functional model's "
            "parameters= as leaf tensors that require grad|`."
        )
    return found


def _flat(parameters: Any, prefix: str = "") -> list[tuple[str, Tensor]]:
    """Parameters of a functional model: a tensor, or nested dicts and lists of tensors."""
    if isinstance(parameters, Tensor):
        return [(prefix or "parameters", parameters)]
    if isinstance(parameters, Mapping):
        items: Iterable[tuple[Any, Any]] = parameters.items()
    elif isinstance(parameters, Sequence) and not isinstance(parameters, str):
        items = enumerate(parameters)
    else:
        return []
    return [pair for key, part in items for pair in _flat(part, f"{prefix}.{key}" if prefix else str(key))]


def chosen(all_parameters: Mapping[str, Tensor], choice: Chosen) -> dict[str, Tensor]:
    """The subset that ``choice`` names: patterns such as "encoder.*", tensors, or a function (name, tensor)."""
    if choice is None:
        return dict(all_parameters)
    if isinstance(choice, nn.Module | Tensor):
        choice = list(choice.parameters()) if isinstance(choice, nn.Module) else [choice]
    if callable(choice):
        kept = {name: value for name, value in all_parameters.items() if choice(name, value)}
    else:
        wanted: list[Any] = [choice] if isinstance(choice, str) else list(choice)
        kept = {}
        for item in wanted:
            named = isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], Tensor)
            kept |= _matching(all_parameters, item[1] if named else item)  # what named_parameters() gives
    if not kept:
        raise InputError("`parameters=` leaves no parameter: name at least one that requires grad.")
    return {name: value for name, value in all_parameters.items() if name in kept}


def _matching(
    all_parameters: Mapping[str, Tensor], item: str | Tensor, argument: str = "parameters"
) -> dict[str, Tensor]:
    if isinstance(item, Tensor):
        found = {name: value for name, value in all_parameters.items() if value is item}
        if not found:
            raise InputError(
                f"`{argument}=` holds a tensor that is no parameter of the model, or one without requires_grad."
            )
        return found
    if not isinstance(item, str):
        raise InputError(
            f"`{argument}=` holds a {type(item).__name__}: give names, patterns such as 'encoder.*', or parameters."
        )
    found = {
        name: value
        for name, value in all_parameters.items()
        if fnmatch.fnmatchcase(name, item) or name.startswith(f"{item}.")
    }
    if not found:
        known = ", ".join(list(all_parameters)[:8]) + (", ..." if len(all_parameters) > 8 else "")
        raise InputError(f"no parameter matches {item!r} in `{argument}`: the model has {known}.")
    return found


def rate_of_each(parameters: Mapping[str, Tensor], rates: Rates) -> dict[str, float]:
    """The weight of every parameter in the kernel; 1 where nothing is said.

    ``rates``: one number, a mapping of patterns, an optimizer or its ``param_groups`` (their ``lr``), or a function.
    """
    if rates is None:
        return dict.fromkeys(parameters, 1.0)
    rates = getattr(rates, "param_groups", rates)
    if callable(rates):
        found = {name: float(rates(name, value)) for name, value in parameters.items()}
    elif isinstance(rates, Mapping):
        found = dict.fromkeys(parameters, 1.0)
        for pattern, rate in rates.items():
            found |= dict.fromkeys(_matching(parameters, pattern, "rates"), float(rate))
    elif isinstance(rates, Sequence):
        by_id: dict[int, float] = {}
        for group in rates:
            if not isinstance(group, Mapping) or "params" not in group or "lr" not in group:
                raise InputError(
                    "`rates=` as a list must be an optimizer's param_groups, dicts with 'params' and 'lr'."
                )
            members = [group["params"]] if isinstance(group["params"], Tensor) else group["params"]
            by_id |= {id(member): float(group["lr"]) for member in members}
        missing = [name for name, value in parameters.items() if id(value) not in by_id]
        if missing:
            raise InputError(
                f"no group of `rates=` holds {missing[0]!r}: add it, or leave it out with `parameters=`."
            )
        found = {name: by_id[id(value)] for name, value in parameters.items()}
    elif isinstance(rates, int | float):
        found = dict.fromkeys(parameters, float(rates))
    else:
        raise InputError(
            f"`rates=` is a {type(rates).__name__}: give a number, {{pattern: rate}}, an optimizer, or a function."
        )
    bad = [name for name, rate in found.items() if not (rate >= 0 and math.isfinite(rate))]
    if bad:
        raise InputError(
            f"the rate of {bad[0]!r} is {found[bad[0]]}: rates must be finite and not negative, "
            "because the kernel needs their square roots."
        )
    return found


def layer_of(name: str) -> str:
    """The module that owns a parameter: its name without the last part."""
    return name.rpartition(".")[0] or name
