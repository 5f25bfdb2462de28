"""A batch of samples as a model takes it: a tensor, a tuple or a dict of tensors, or everything a loader gives."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError


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

        return Batch(_mapped(cut, self.arguments), len(order), self.holders, self.axis, self.origin)

    def channels_last(self) -> Any:
        """The arguments with the channels of images side by side in memory; their values are the same."""
        holders = iter(self.holders)

        def arranged(value: Any) -> Any:
            if next(holders) and value.ndim == 4 and value.is_floating_point():
                return value.contiguous(memory_format=torch.channels_last)
            return value

        return _mapped(arranged, self.arguments)


def as_batch(x: Any, axis: int = 0, shared: Collection[str | int] = ()) -> Batch:
    """Check what the user gave; a loader is read to its end, and of its (input, target) pairs the input counts.

    ``shared``: names or positions of arguments that belong to all samples, whatever their sizes.
    """
    if isinstance(x, Batch):
        return x
    axis = whole_number("batch_axis", axis, least=0)
    if isinstance(x, torch.utils.data.DataLoader):
        return as_batch(_everything(x, axis), axis, shared)
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
    return Batch(_mapped(_usable, arguments), count, holders, axis, object())


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


def _usable(value: Any) -> Any:
    """Tensors made in inference mode cannot be kept for a backward pass; copies can."""
    if isinstance(value, Tensor) and value.is_inference():
        with torch.inference_mode(False):
            return value.clone()
    return value


def _everything(loader: Iterable[Any], axis: int) -> Any:
    """All batches of a loader in one."""
    # TensorDataset and most datasets give (input, target) or (input,) lists; dicts are taken whole.
    batches = [batch[0] if isinstance(batch, list | tuple) else batch for batch in loader]
    if not batches:
        raise InputError("the loader gives no batch: pass one that holds samples.")
    return _joined(batches, axis)


def _joined(parts: Sequence[Any], axis: int) -> Any:
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


def leaves(value: Any) -> list[Any]:
    """All that is inside tuples, lists and dicts, in their order."""
    if isinstance(value, Mapping):
        return [leaf for part in value.values() for leaf in leaves(part)]
    if isinstance(value, tuple | list):
        return [leaf for part in value for leaf in leaves(part)]
    return [value]


def _mapped(function: Any, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _mapped(function, part) for key, part in value.items()}
    if isinstance(value, tuple):
        parts = [_mapped(function, part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, list):
        return [_mapped(function, part) for part in value]
    return function(value)
