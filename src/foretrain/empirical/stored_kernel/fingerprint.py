"""What a stored kernel is the kernel of: digests of model, parameters, data and options, each on its own.

Digests say what changed where it shows from outside. What a function computes shows in its numbers: see ``witness``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from foretrain.empirical.models.batches import Batch
from foretrain.empirical.stored_kernel.layout import FORMAT, Layout
from foretrain.empirical.stored_kernel.witness import Witness
from foretrain.empirical.tangent_kernel.engine import Engine
from foretrain.support.errors import FileError

# What differs from one process to the next: addresses, and the module under which a file is run or imported.
_PASSING = re.compile(r" at 0x[0-9a-fA-F]+|(?<=<)(?:\w+\.)+|(?<=<class ')(?:\w+\.)+")
_BLOCK = 1 << 24  # bytes of a tensor that are hashed at a time

_SAID = {
    "model": "the model is another one",
    "parameters": "parameters or buffers have other values",
    "data": "the inputs are others",
    "options": "`outputs=, output=, parameters=, rates=, by=|--outputs, --trace, --by, --dtype` or the "
    "training mode are others",
    "versions": "torch or the format of stores has another version",
}


def fingerprint(tangents: Engine, first: Batch, second: Batch | None, by: str | None) -> dict[str, str]:
    """Digests that stay the same as long as the kernel does."""
    model = tangents.model
    options = [
        f"{list(tangents.outputs)} {tangents.job.trace} {by} {first.axis} {tangents.dtype}",
        f"{_name(model.output) if callable(model.output) else _text(model.output)}",
        *(f"{name} {tangents.rates[name]!r}" for name in tangents.parameters),
    ]
    description = ""
    if isinstance(model.function, nn.Module):
        options += [f"{name} {module.training}" for name, module in model.function.named_modules()]
        description = _text(model.function)
    return {
        "model": _digest([_name(model.function), description]),
        "parameters": _digest(_state(model.function, model.given_parameters)),
        "data": _digest([*_of_batch(first), *(["itself"] if second is None else _of_batch(second))]),
        "options": _digest(options),
        "versions": _digest([str(FORMAT), torch.__version__]),
    }


def refuse_other(found: Layout, wanted: Mapping[str, str], where: object) -> None:
    """Two kernels do not go into one store."""
    changed = [said for key, said in _SAID.items() if found.fingerprint.get(key) != wanted[key]]
    if changed:
        raise _another_kernel(where, "; ".join(changed))


def refuse_other_function(found: Layout, now: Witness, where: object) -> None:
    """Nor two functions that have the same name and parameters."""
    if not found.witness.agrees(now):
        raise _another_kernel(
            where, "the model computes other outputs or gradients than the one the store was made with"
        )


def _another_kernel(where: object, why: str) -> FileError:
    return FileError(
        f"{where} holds tiles of another kernel ({why}): choose another `store=`, or pass "
        "`overwrite=True` to replace it."
    )


def short_description(model: Any) -> str:
    """A model in a few words."""
    if not isinstance(model, nn.Module):
        return _name(model)
    count = sum(value.numel() for value in model.parameters())
    return f"{type(model).__name__} with {count:,} parameters"


def _name(thing: Any) -> str:
    """What a class or function is called; what is made of others is named after them."""
    if isinstance(thing, partial):
        return f"partial {_name(thing.func)} {_text(thing.args)} {_text(thing.keywords)}"
    found: str = (thing if hasattr(thing, "__qualname__") else type(thing)).__qualname__
    return found


def _text(thing: Any) -> str:
    return _PASSING.sub("", repr(thing))


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
        yield _text(value)


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
