"""Which entries of a tensor belong to which sample, found by weighing the samples' outputs differently.

Two backward passes, the second with the outputs of sample n weighted by w_n: an entry whose gradient grows by
w_n belongs to sample n alone; one that grows by anything else is shared by samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

# Powers of two scale floating-point numbers exactly; this leaves room for sums in another order.
_CLOSE = 1e-3
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


def owners(pairs: Sequence[tuple[Tensor | None, Tensor | None]], samples: int) -> list[Owner]:
    """Who owns the entries of each tensor, from both passes; tensors of one shape are looked at together."""
    found: list[Owner | None] = [None] * len(pairs)
    alike: dict[tuple[torch.Size, torch.dtype], list[int]] = {}
    for number, (plain, weighted) in enumerate(pairs):
        if plain is not None and weighted is not None and plain.is_floating_point():
            alike.setdefault((plain.shape, plain.dtype), []).append(number)
    for numbers in alike.values():
        if len(numbers) >= _FEW:
            both = zip(*(pairs[number] for number in numbers))
            plain, weighted = (torch.stack(tensors).detach() for tensors in both)
            for number, axis in zip(numbers, _clear_first_axes(plain, weighted, samples)):
                found[number] = axis
    return [known or owner(*pair, samples) for known, pair in zip(found, pairs)]


def _clear_first_axes(plain: Tensor, weighted: Tensor, samples: int) -> list[Owner | None]:
    """For stacked tensors of one shape: that samples come first where it is plain to see, else None."""
    entries = plain[0].numel()
    if entries == 0 or entries % samples:
        return [None] * len(plain)
    first, second = (values.reshape(len(plain), samples, -1) for values in (plain, weighted))
    exact = (first * weights(samples, first)[:, None] == second).flatten(1).all(1)
    filled = torch.count_nonzero(first.flatten(1), dim=1) > 0.5 * entries
    axis = SampleAxis(1, entries // samples)
    return [axis if clear else None for clear in (exact & filled).tolist()]


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
    if len(first) % samples == 0:  # the common case: samples come first, and their gradients scale exactly
        rows = first.view(samples, -1) * weights(samples, first)[:, None]
        if torch.equal(rows, second.view(samples, -1)):
            return _first_axis(first, filled, samples)
    place = torch.nonzero(first.abs() > _SMALLEST).squeeze(1)
    if not len(place):
        return Silent()
    # The sample whose weight is nearest to the ratio of both gradients, if it is near enough.
    ratio = second[place].double() / first[place].double()
    is_power = samples <= _FEW
    number = torch.log2(ratio.clamp_min(_SMALLEST)) if is_power else (ratio - 1) * samples
    sample = number.round()
    near = (number - sample).abs() < (_CLOSE if is_power else _CLOSE_OF_MANY)
    if not bool((near & (sample >= 0) & (sample < samples)).all()):
        return Shared()
    return _axis(place, sample.long(), first.numel(), samples)


def _first_axis(gradient: Tensor, filled: int, samples: int) -> SampleAxis:
    """Samples come first. An axis further down would leave at least half of the entries of a sample empty."""
    after = len(gradient) // samples
    if filled > 0.5 * len(gradient):
        return SampleAxis(1, after)
    place = torch.nonzero(gradient).squeeze(1)
    fitting = _fitting(place, place.div(after, rounding_mode="floor"), len(gradient), samples)
    return SampleAxis(1, after, certain=len(fitting) == 1)


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
    each = total // samples
    small = [d for d in range(1, int(each**0.5) + 1) if each % d == 0]
    divisors = sorted({*small, *(each // d for d in small)}, reverse=True)
    lengths = torch.tensor(divisors, device=place.device)
    some = torch.linspace(0, len(place) - 1, min(len(place), _GLANCE), device=place.device).long()
    seen = place[some].div(lengths[:, None], rounding_mode="floor") % samples == sample[some]
    return [
        after
        for after in lengths[seen.all(1)].tolist()
        if bool((place.div(after, rounding_mode="floor") % samples == sample).all())
    ]
