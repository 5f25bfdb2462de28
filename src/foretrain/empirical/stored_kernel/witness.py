"""What a model computes at a few samples, kept in a store: digests do not see into functions, numbers do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import hypot, inf, isfinite
from typing import Any

import torch
from torch import Tensor

from foretrain.empirical.models.batches import Batch
from foretrain.empirical.tangent_kernel.engine import Engine

_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
_SAMPLES = 24  # of each side
_TOGETHER = 8  # of them go through the model
_SMALL = 1e-3  # of the largest size: what is smaller may be rounding alone
_TINY = 1e-300
_COARSE = 3e-2  # of half precision
_ACCELERATED = 1e-2  # of devices that shorten single precision on their way


@dataclass(frozen=True)
class Witness:
    """Outputs of some samples, each weighed by fixed numbers and summed, and norms of gradients of groups of these.

    ``sizes``: what rounding of the outputs is measured by. None stands for a number that is not finite.
    """

    outputs: tuple[float | None, ...]
    sizes: tuple[float | None, ...]
    gradients: tuple[float | None, ...]
    tolerance: float

    def agrees(self, other: Witness) -> bool:
        """Whether both may be of one function, up to rounding on different machines."""
        return (
            _distance(self.outputs, other.outputs, self.sizes) <= self.tolerance
            and _distance(self.gradients, other.gradients, self.gradients) <= self.tolerance
        )

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> Witness:
        """As it was when the store was created."""
        outputs, sizes, gradients = (tuple(found[name]) for name in ("outputs", "sizes", "gradients"))
        return Witness(outputs, sizes, gradients, found["tolerance"])


def witness(tangents: Engine, first: Batch, second: Batch | None) -> Witness:
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
    return Witness(_finite(outputs), _finite(sizes), _finite(gradients), _tolerance(tangents))


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


def _finite(values: Sequence[float]) -> tuple[float | None, ...]:
    return tuple(value if isfinite(value) else None for value in values)


def _tolerance(tangents: Engine) -> float:
    """By the coarsest precision among the parameters."""
    values = [value for value in tangents.model.parameters.values() if value.is_floating_point()]
    found = max((_TOLERANCE.get(value.dtype, _COARSE) for value in values), default=_COARSE)
    cpu = all(value.device.type == "cpu" for value in values)
    return found if cpu or found <= _TOLERANCE[torch.float64] else max(found, _ACCELERATED)
