"""What a stored kernel is the kernel of.

Digests of model, parameters, data and options, each on its own, say what changed where it shows from outside. What a
function computes shows in its numbers: outputs and gradients at a few samples are kept in the store and compared.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import hypot, inf, isfinite
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from foretrain.empirical.models.arguments import Batch
from foretrain.empirical.tangent_kernel.engine import Engine
from foretrain.support.errors import FileError

if TYPE_CHECKING:
    from foretrain.empirical.stored_kernel.layout import Layout

FORMAT = 2  # of stores
# What differs from one process to the next: addresses, and the module under which a file is run or imported.
_PASSING = re.compile(r" at 0x[0-9a-fA-F]+|(?<=<)(?:\w+\.)+|(?<=<class ')(?:\w+\.)+")
_BLOCK = 1 << 24  # bytes of a tensor that are hashed at a time

SAID = {
    "model": "the model is another one",
    "parameters": "parameters or buffers have other values",
    "data": "the inputs are others",
    "options": "`outputs=, output=, parameters=, rates=, by=|--outputs, --trace, --by, --dtype` or the "
    "training mode are others",
    "versions": "torch or the format of stores has another version",
    "function": "the model computes other outputs or gradients than the one the store was made with",
}

_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
_SAMPLES = 24  # of each side
_TOGETHER = 8  # of them go through the model
_SMALL = 1e-3  # of the largest size: what is smaller may be rounding alone
_TINY = 1e-300
_COARSE = 3e-2  # of half precision
_ACCELERATED = 1e-2  # of devices that shorten single precision on their way


def fingerprint(tangents: Engine, first: Batch, second: Batch | None, by: str | None) -> dict[str, str]:
    """Digests that stay the same as long as the kernel does."""
    model = tangents.model
    options = [
        f"{list(tangents.outputs)} {tangents.job.trace} {by} {first.axis} {tangents.dtype}",
        f"{_name(model.output) if callable(model.output) else _text(model.output)}",
        *(f"{name} {tangents.rates[name]!r}" for name in tangents.parameters),
    ]
    description, state = "", list[str | Tensor]()
    if isinstance(model.function, nn.Module):
        options += [f"{name} {module.training}" for name, module in model.function.named_modules()]
        description = _text(model.function)
        for name, value in [*model.function.named_parameters(), *model.function.named_buffers()]:
            state += [name, value]
    data: list[str | Tensor] = []
    for batch in (first, second):
        data += ["itself"] if batch is None else [f"{batch.count} {batch.axis} {batch.holders}"]
        data += [] if batch is None else leaves(batch.arguments)
    return {
        "model": digest([_name(model.function), description]),
        "parameters": digest([*state, *leaves(model.given_parameters)]),
        "data": digest(data),
        "options": digest(options),
        "versions": digest([str(FORMAT), torch.__version__]),
    }


def refuse_other(found: Layout, digests: Mapping[str, str], said: Mapping[str, str], where: object) -> None:
    """Two kernels do not go into one store."""
    _refuse([said[key] for key in digests if found.fingerprint.get(key) != digests[key]], where)


def refuse_other_function(found: Layout, now: SampleValues, said: Mapping[str, str], where: object) -> None:
    """Nor two functions that have the same name and parameters."""
    if not found.sample_values.agrees(now):
        _refuse([said["function"]], where)


def _refuse(changes: Sequence[str], where: object) -> None:
    if changes:
        raise FileError(
            f"{where} holds tiles of another kernel ({'; '.join(changes)}): choose another `store=`, or pass "
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


def digest(parts: Iterable[str | Tensor]) -> str:
    """Of texts and of the bytes of tensors, in their order."""
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


@dataclass(frozen=True)
class SampleValues:
    """Outputs of some samples, each weighed by fixed numbers and summed, and norms of gradients of groups of these.

    ``sizes``: what rounding of the outputs is measured by. None stands for a number that is not finite.
    """

    outputs: tuple[float | None, ...]
    sizes: tuple[float | None, ...]
    gradients: tuple[float | None, ...]
    tolerance: float

    def agrees(self, other: SampleValues) -> bool:
        """Whether both may be of one function, up to rounding on different machines."""
        return (
            _distance(self.outputs, other.outputs, self.sizes) <= self.tolerance
            and _distance(self.gradients, other.gradients, self.gradients) <= self.tolerance
        )

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> SampleValues:
        """As it was when the store was created."""
        outputs, sizes, gradients = (tuple(found[name]) for name in ("outputs", "sizes", "gradients"))
        return SampleValues(outputs, sizes, gradients, found["tolerance"])


def sample_values(tangents: Engine, first: Batch, second: Batch | None) -> SampleValues:
    """Of samples spread over both sides of the kernel."""
    outputs: list[float] = []
    sizes: list[float] = []
    gradients: list[float] = []
    for side in [first] if second is None else [first, second]:
        # Of few samples, some are taken more than once.
        chosen = [(side.count - 1) * k // (_SAMPLES - 1) for k in range(_SAMPLES)]
        for start in range(0, _SAMPLES, _TOGETHER):
            values, norms, gradient = _measured(tangents, side.pick(chosen[start : start + _TOGETHER]))
            outputs += values
            sizes += norms
            gradients.append(gradient)
    # By the coarsest precision among the parameters.
    real = [value for value in tangents.model.parameters.values() if value.is_floating_point()]
    tolerance = max((_TOLERANCE.get(value.dtype, _COARSE) for value in real), default=_COARSE)
    if tolerance > _TOLERANCE[torch.float64] and any(value.device.type != "cpu" for value in real):
        tolerance = max(tolerance, _ACCELERATED)
    return SampleValues(finite(outputs), finite(sizes), finite(gradients), tolerance)


def finite(values: Sequence[float]) -> tuple[float | None, ...]:
    """Numbers as JSON has them: None for those that are not finite."""
    return tuple(value if isfinite(value) else None for value in values)


def _measured(tangents: Engine, group: Batch) -> tuple[list[float], list[float], float]:
    """Outputs weighed and summed, their sizes, and the norm of the gradient of all.

    Rounding changes an output by about its gradient times the parameters, also where the output itself is zero.
    """
    parameters = list(tangents.parameters.values())
    outputs = tangents.model(group)[:, list(tangents.outputs)].double()
    weights = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weighed = (outputs * weights.to(outputs.device)).sum(1)
    gradient = 0.0
    if weighed.requires_grad:
        found = torch.autograd.grad(weighed.sum(), parameters, allow_unused=True)
        gradient = _norm([own for own in found if own is not None])
    rounding = gradient * _norm(parameters)
    sizes = [_norm([own]) + rounding for own in outputs]
    return [float(value) for value in weighed.detach()], sizes, gradient


def _norm(tensors: Iterable[Tensor]) -> float:
    """Of all entries together."""
    parts = [tensor.coalesce().values() if tensor.is_sparse else tensor for tensor in tensors]
    return hypot(*(float(torch.linalg.vector_norm(part.detach(), dtype=torch.float64)) for part in parts))


def _distance(
    first: Sequence[float | None], second: Sequence[float | None], sizes: Sequence[float | None]
) -> float:
    """The largest difference in units of its size; infinite where only one of two numbers is finite."""
    if len(first) != len(second) or any((a is None) != (b is None) for a, b in zip(first, second)):
        return inf
    least = _SMALL * max((size for size in sizes if size is not None), default=0.0)
    return max(
        (
            abs(a - b) / max(size or 0.0, least, _TINY)
            for a, b, size in zip(first, second, sizes)
            if a is not None and b is not None
        ),
        default=0.0,
    )
