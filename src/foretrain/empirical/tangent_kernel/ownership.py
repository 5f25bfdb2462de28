"""Which entries of a tensor belong to which sample, found by weighing the samples' outputs differently.

Two backward passes, the second with the outputs of sample n weighted by w_n: an entry whose gradient grows by
w_n belongs to sample n alone; one that grows by anything else is shared by samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

_CLOSE = (
    1e-3  # powers of two scale floating-point numbers exactly; this leaves room for sums in another order
)
_CLOSE_OF_MANY = 0.1  # of the distance between the weights of neighbouring samples
_FEW = 8
_SMALLEST = 1e-30  # below it gradients in single precision round to nothing


@dataclass(frozen=True)
class SampleAxis:
    """A tensor's entries in memory order are (before, samples, after)."""

    before: int
    after: int

    def split(self, tensor: Tensor, samples: int) -> Tensor:
        """As (before, samples, after)."""
        return tensor.reshape(self.before, samples, self.after)


@dataclass(frozen=True)
class Shared:
    """Several samples meet here: the tensor comes from parameters alone, or the model mixes samples."""


@dataclass(frozen=True)
class Silent:
    """No gradient arrives, so that nothing is known."""


Owner = SampleAxis | Shared | Silent


def weights(samples: int, like: Tensor) -> Tensor:
    """A weight for each sample: 1, 2, 4, ..., which scale floating-point numbers exactly; 1 to 2 for many samples."""
    numbers = torch.arange(samples, device=like.device, dtype=like.dtype)
    return 2.0**numbers if samples <= _FEW else 1 + numbers / samples


def owner(plain: Tensor | None, weighted: Tensor | None, samples: int) -> Owner:
    """Who owns the entries of a tensor, from its gradients in both passes."""
    if plain is None or weighted is None:
        return Silent()
    if plain.is_complex():
        plain, weighted = torch.view_as_real(plain), torch.view_as_real(weighted)
    first, second = plain.detach().reshape(-1), weighted.detach().reshape(-1)
    if not bool(first.any()):
        return Silent()
    if len(first) % samples == 0 and _is_first_axis(first.view(samples, -1), second.view(samples, -1)):
        return SampleAxis(1, len(first) // samples)
    place = torch.nonzero(first.abs() > _SMALLEST).squeeze(1)
    if not len(place):
        return Silent()
    sample, belongs = _decoded(second[place].double() / first[place].double(), samples)
    if not bool(belongs.all()):
        return Shared()
    return _axis(place, sample, first.numel(), samples)


def _is_first_axis(first: Tensor, second: Tensor) -> bool:
    """The common case: samples come first, and their gradients scale exactly."""
    return torch.equal(first * weights(len(first), first)[:, None], second)


def _decoded(ratio: Tensor, samples: int) -> tuple[Tensor, Tensor]:
    """The sample whose weight is nearest to a ratio, and whether it is near enough."""
    if samples <= _FEW:
        place = torch.log2(ratio.clamp_min(_SMALLEST))
    else:
        place = (ratio - 1) * samples
    sample = place.round()
    near = _CLOSE if samples <= _FEW else _CLOSE_OF_MANY
    return sample.long(), ((place - sample).abs() < near) & (sample >= 0) & (sample < samples)


def _axis(place: Tensor, sample: Tensor, total: int, samples: int) -> Owner:
    """The axis that puts every entry with its sample.

    Where few entries have gradients, several axes may fit. With a gradient of every sample in one stretch of
    memory, the longest one does: a longer one would put neighbouring samples together.
    """
    if total % samples:
        return Shared()
    for after in _divisors_downward(total // samples):
        if bool((place.div(after, rounding_mode="floor") % samples == sample).all()):
            return SampleAxis(total // samples // after, after)
    return Shared()


def _divisors_downward(number: int) -> Iterator[int]:
    yield number  # samples come first in most tensors: the others are rarely needed
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    yield from sorted({*small, *(number // d for d in small)} - {number}, reverse=True)
