"""Which entries of a tensor belong to which sample, found by weighing the samples' outputs differently.

Two backward passes, the second with the outputs of sample n weighted by w_n: an entry whose gradient grows by
w_n belongs to sample n alone; one that grows by anything else is shared by samples.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

_CLOSE = (
    1e-3  # powers of two scale floating-point numbers exactly; this leaves room for sums in another order
)
_CLOSE_OF_MANY = 0.1  # of the distance between the weights of neighbouring samples
_FEW = 8
_GLANCE = 64  # places that rule out most axes
_SMALLEST = 1e-30  # below it gradients in single precision round to nothing


@dataclass(frozen=True)
class SampleAxis:
    """A tensor's entries in memory order are (before, samples, after)."""

    before: int
    after: int
    certain: bool = field(default=True, compare=False)  # no other axis puts all entries with their samples

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
    return _weights(samples, like.dtype, like.device)


@lru_cache(maxsize=64)
def _weights(samples: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    numbers = torch.arange(samples, device=device, dtype=dtype)
    return 2.0**numbers if samples <= _FEW else 1 + numbers / samples


def owner(plain: Tensor | None, weighted: Tensor | None, samples: int) -> Owner:
    """Who owns the entries of a tensor, from its gradients in both passes."""
    if plain is None or weighted is None:
        return Silent()
    if plain.is_complex():
        plain, weighted = torch.view_as_real(plain), torch.view_as_real(weighted)
    first, second = plain.detach().reshape(-1), weighted.detach().reshape(-1)
    filled = int(torch.count_nonzero(first))
    if not filled:
        return Silent()
    if len(first) % samples == 0 and _is_first_axis(first.view(samples, -1), second.view(samples, -1)):
        return _first_axis(first, filled, samples)
    place = torch.nonzero(first.abs() > _SMALLEST).squeeze(1)
    if not len(place):
        return Silent()
    sample, belongs = _decoded(second[place].double() / first[place].double(), samples)
    if not bool(belongs.all()):
        return Shared()
    return _axis(place, sample, first.numel(), samples)


def _first_axis(gradient: Tensor, filled: int, samples: int) -> SampleAxis:
    """Samples come first. An axis further down would leave at least half of the entries of a sample empty."""
    after = len(gradient) // samples
    if filled > 0.5 * len(gradient):
        return SampleAxis(1, after)
    place = torch.nonzero(gradient).squeeze(1)
    fitting = _fitting(place, place.div(after, rounding_mode="floor"), len(gradient), samples)
    return SampleAxis(1, after, certain=len(fitting) == 1)


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
    fitting = _fitting(place, sample, total, samples) if total % samples == 0 else []
    if not fitting:
        return Shared()
    after = fitting[0]
    return SampleAxis(total // samples // after, after, certain=len(fitting) == 1)


def _fitting(place: Tensor, sample: Tensor, total: int, samples: int) -> list[int]:
    """Lengths after the sample axis, longest first, that put all places with their samples."""
    found = _divisors_downward(total // samples)
    some = torch.linspace(0, len(place) - 1, min(len(place), _GLANCE), device=place.device).long()
    for chosen in (some, slice(None)):
        where, whose = place[chosen], sample[chosen]
        found = [
            after
            for after in found
            if bool((where.div(after, rounding_mode="floor") % samples == whose).all())
        ]
    return found


def _divisors_downward(number: int) -> list[int]:
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)}, reverse=True)
