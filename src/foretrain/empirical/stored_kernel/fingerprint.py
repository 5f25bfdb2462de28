"""What a stored kernel is the kernel of: digests of model, parameters, data and options, each on its own."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from foretrain.empirical.tangent_kernel.batches import Batch
from foretrain.empirical.tangent_kernel.engine import Engine
from foretrain.support.errors import FileError

FORMAT = 1
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_BLOCK = 1 << 24  # bytes of a tensor that are hashed at a time

_SAID = {
    "model": "the model is another one",
    "parameters": "parameters or buffers have other values",
    "data": "the inputs are others",
    "options": "outputs=, output=, parameters=, rates=, by= or the training mode are others",
    "versions": "torch or the format of stores has another version",
}


def fingerprint(tangents: Engine, first: Batch, second: Batch | None, by: str | None) -> dict[str, str]:
    """Digests that stay the same as long as the kernel does."""
    model = tangents.model
    options = [
        f"{list(tangents.outputs)} {tangents.job.trace} {by} {first.axis} {tangents.dtype}",
        f"{_name(model.output) if callable(model.output) else repr(model.output)}",
        *(f"{name} {tangents.rates[name]!r}" for name in tangents.parameters),
        *_modes(model.function),
    ]
    return {
        "model": _digest([_name(model.function), _description(model.function)]),
        "parameters": _digest(_state(model.function, model.given_parameters)),
        "data": _digest([*_of_batch(first), *(["itself"] if second is None else _of_batch(second))]),
        "options": _digest(options),
        "versions": _digest([str(FORMAT), torch.__version__]),
    }


def refuse_other(found: Mapping[str, str], wanted: Mapping[str, str], where: object) -> None:
    """Two kernels do not go into one store."""
    changed = [said for key, said in _SAID.items() if found.get(key) != wanted[key]]
    if changed:
        raise FileError(
            f"{where} holds tiles of another kernel ({'; '.join(changed)}): choose another store=, "
            "or pass overwrite=True to replace it."
        )


def short_description(model: Any) -> str:
    """A model in a few words."""
    if not isinstance(model, nn.Module):
        return _name(model)
    count = sum(value.numel() for value in model.parameters())
    return f"{type(model).__name__} with {count:,} parameters"


def _name(thing: Any) -> str:
    """Where a class or function is defined; what is made of others is named after them."""
    if isinstance(thing, partial):
        return f"partial {_name(thing.func)} {thing.args} {thing.keywords}"
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{named.__module__}.{named.__qualname__}"


def _description(model: Any) -> str:
    return _ADDRESS.sub("", repr(model)) if isinstance(model, nn.Module) else ""


def _modes(model: Any) -> Iterator[str]:
    if isinstance(model, nn.Module):
        yield from (f"{name} {module.training}" for name, module in model.named_modules())


def _state(model: Any, given: Any) -> Iterator[str | Tensor]:
    if isinstance(model, nn.Module):
        for name, value in [*model.named_parameters(), *model.named_buffers()]:
            yield name
            yield value
    yield from leaves(given)


def _of_batch(batch: Batch) -> Iterator[str | Tensor]:
    yield f"{batch.count} {batch.axis} {batch.holders}"
    yield from leaves(batch.arguments)


def leaves(value: Any) -> Iterator[str | Tensor]:
    """Tensors in nested mappings and sequences, with the text of all else."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield str(key)
            yield from leaves(part)
    elif isinstance(value, tuple | list):
        yield f"{len(value)} parts"
        for part in value:
            yield from leaves(part)
    else:
        yield _ADDRESS.sub("", repr(value))


def _digest(parts: Iterable[str | Tensor]) -> str:
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, Tensor):
            found.update(f"{part.dtype} {tuple(part.shape)} {part.requires_grad}".encode())
            for block in _blocks(part):
                found.update(block)
        else:
            found.update(f"{len(part)} {part}".encode())
    return found.hexdigest()


def _blocks(value: Tensor) -> Iterator[memoryview]:
    """The bytes of a tensor a few at a time: a copy of the whole could be too large."""
    flat = value.detach()
    rows = 1 if flat.ndim == 0 or not flat.numel() else max(1, _BLOCK // max(1, flat[0].nbytes))
    for part in torch.split(flat, rows) if flat.ndim else [flat]:
        yield part.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
