"""Which entries of a tensor belong to which sample, found by weighing the samples' outputs differently.

Two backward passes, the second with the outputs of sample n weighted by 2^n: an entry whose gradient grows by
2^n belongs to sample n alone; one that grows by anything else is shared by samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

_CLOSE = (
    1e-3  # powers of two scale floating-point numbers exactly; this leaves room for sums in another order
)
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
    """1, 2, 4, ...: one power of two for each sample."""
    return 2.0 ** torch.arange(samples, device=like.device, dtype=like.dtype)


def owner(plain: Tensor | None, weighted: Tensor | None, samples: int) -> Owner:
    """Who owns the entries of a tensor, from its gradients in both passes."""
    if plain is None or weighted is None:
        return Silent()
    first, second = plain.detach().reshape(-1).double(), weighted.detach().reshape(-1).double()
    place = torch.nonzero(first.abs() > _SMALLEST).squeeze(1)
    if not len(place):
        return Silent()
    power = torch.log2((second[place] / first[place]).clamp_min(_SMALLEST))
    sample = power.round()
    belongs = ((power - sample).abs() < _CLOSE) & (sample >= 0) & (sample < samples)
    if not bool(belongs.all()):
        return Shared()
    return _axis(place, sample.long(), first.numel(), samples)


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
