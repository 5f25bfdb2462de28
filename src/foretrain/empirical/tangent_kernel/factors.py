"""Contributions of parameters to the kernel, and their products tile by tile: rows are (sample, output), as columns.

``Grams``      weights used at one position per sample: (Gram of inputs) x (Gram of sensitivities), entry by entry
``Gradients``  per-sample gradients, one matrix product
``LateGradients``  the same, formed a few features at a time while they are multiplied: less memory where a
               sample has fewer positions than the weight has inputs
``Pairs``      weights used at several positions, without forming a gradient: sums over pairs of positions

With the trace, outputs are summed before anything is multiplied: they count as features, not as rows.
Only tiles above the diagonal are computed when both sides are the same samples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from foretrain.support.threads import one_thread_of_blas, one_thread_of_torch, over_cores

Tile = tuple[slice, slice]

_LATE_NUMBERS = 2**20  # of the gradients of all samples that are formed at a time, which stay near the core
_FEWEST_LATE = 2048  # of each gradient: shorter products are slow
_LONGEST_SUM = 65_536  # products that are summed at a time: longer sums lose digits in single precision
_GLANCE = 4  # samples that rule most layers out
_ROUNDING = 16
_PAIR_BYTES = 32_000_000  # largest intermediate array of a sum over pairs of positions
_LEAF_ROWS = 160  # a diagonal tile this small is computed whole
_PANEL_ROWS = 128
_SQUARE_ROWS = 4096  # of kernels of which every core has its own sum
_SQUARE_WORK = 2**26  # products, below which it does not pay to hand them out
_CACHED_ROWS = 768  # a tile of so many rows and columns stays in the cache while all layers add to it


@dataclass
class Factor(ABC):
    """What a chunk of samples brings to the kernel for some parameters."""

    @abstractmethod
    def accumulate(self, tile: Tensor, mine: slice, other: Factor, theirs: slice) -> None:
        """Add the products of my samples ``mine`` with the other chunk's ``theirs`` to a tile (rows, columns)."""

    @property
    @abstractmethod
    def samples_along(self) -> dict[str, int]:
        """My tensors that belong to samples, with the axis that counts them."""

    @property
    def bytes(self) -> int:
        """Memory that the factor holds."""
        return sum(value.nbytes for value in vars(self).values() if isinstance(value, Tensor))

    def joined(self, others: Sequence[Factor]) -> Factor:
        """The factor of my samples and those of other chunks after them."""
        values: dict[str, Any] = {
            name: torch.cat([getattr(one, name) for one in (self, *others)], axis)
            for name, axis in self.samples_along.items()
        }
        return replace(self, **values)

    def first_half(self) -> Factor:
        """That of the first half of my samples."""
        values: dict[str, Any] = {
            name: getattr(self, name).narrow(axis, 0, getattr(self, name).shape[axis] // 2)
            for name, axis in self.samples_along.items()
        }
        return replace(self, **values)

    def without_gradients(self, samples: int, of_mine: int) -> Factor:
        """That of so many other samples, where no gradient arrives; I have ``of_mine``."""
        values: dict[str, Any] = {}
        for name, axis in self.samples_along.items():
            shape = list(getattr(self, name).shape)
            shape[axis] = shape[axis] // of_mine * samples
            values[name] = getattr(self, name).new_zeros(shape)
        return replace(self, **values)


_INPUTS_AND_SENSITIVITIES = {"inputs": 1, "sensitivities": 1}
_ROWS_AND_SENSITIVITIES = {"inputs": 0, "sensitivities": 1}


@dataclass
class Grams(Factor):
    """inputs (groups, samples, p), sensitivities (groups, samples, rows per sample, q); the bias has input 1.

    ``outputs`` (groups, outputs, q), for the trace where every unit treats all samples alike: the sensitivity of an
    output is then outputs * sensitivities, and the sum over outputs a weight of each unit.
    """

    inputs: Tensor
    sensitivities: Tensor
    weight_rate: float
    bias_rate: float
    scale: float = 1.0  # the weight enters times this
    outputs: Tensor | None = field(default=None)

    @property
    def samples_along(self) -> dict[str, int]:
        """My tensors that belong to samples."""
        return _INPUTS_AND_SENSITIVITIES

    def accumulate(self, tile: Tensor, mine: slice, other: Factor, theirs: slice) -> None:
        """Add my products with the other chunk to a tile."""
        assert isinstance(other, Grams)
        if (self.outputs is None) != (other.outputs is None):
            self.spread().accumulate(tile, mine, other.spread(), theirs)
            return
        groups, _, rows, q = self.sensitivities.shape
        shape = (mine.stop - mine.start, rows, tile.shape[1])
        target = tile.view(shape)
        one = self.inputs.new_ones(1)
        for group in range(groups):
            left = self.sensitivities[group, mine].reshape(-1, q)
            right = other.sensitivities[group, theirs].reshape(-1, q)
            if self.outputs is not None and other.outputs is not None:
                left = left * (self.outputs[group] * other.outputs[group]).sum(0)
            activity = torch.addmm(
                one,
                self.inputs[group, mine],
                other.inputs[group, theirs].t(),
                beta=self.bias_rate,
                alpha=self.weight_rate * self.scale * other.scale,
            )
            spread = activity.repeat_interleave(rows, 1) if rows > 1 else activity
            target.addcmul_(torch.mm(left, right.t()).view(shape), spread[:, None, :])

    def joined(self, others: Sequence[Factor]) -> Factor:
        """The factor of my samples and those of other chunks after them."""
        return Factor.joined(self.spread(), [one.spread() for one in others if isinstance(one, Grams)])

    def spread(self) -> Grams:
        """With the sensitivities of all outputs as features."""
        if self.outputs is None:
            return self
        values = self.sensitivities * self.outputs[:, None]
        return replace(self, sensitivities=values.flatten(2)[:, :, None], outputs=None)


def separated(values: Tensor) -> tuple[Tensor, Tensor] | None:
    """Sensitivities (groups, samples, outputs, q) as (groups, samples, 1, q) times (groups, outputs, q).

    So it is where only functions of single units lie between a layer and a linear readout. None if it is not so, up
    to rounding, in every unit.
    """
    if values.shape[2] < 2 or _separated(values[:, :_GLANCE]) is None:
        return None
    return _separated(values)


def _separated(values: Tensor) -> tuple[Tensor, Tensor] | None:
    strongest = values.square().sum(2).argmax(1)  # (groups, q)
    index = strongest[:, None, None].expand(-1, 1, values.shape[2], -1)
    outputs = values.gather(1, index)[:, 0]
    length = outputs.norm(dim=1, keepdim=True)
    outputs = outputs / torch.where(length > 0, length, 1)
    own = torch.zeros_like(values[:, :, 0])
    for c in range(values.shape[2]):
        own.addcmul_(values[:, :, c], outputs[:, None, c])
    allowed = _ROUNDING * torch.finfo(values.dtype).eps * length
    for c in range(values.shape[2]):
        rest = torch.addcmul(values[:, :, c], own, outputs[:, None, c], value=-1)
        if bool((rest.abs() > allowed).any()):
            return None
    return own[:, :, None], outputs


@dataclass
class Gradients(Factor):
    """Per-sample gradients (samples * rows per sample, entries), with the roots of the rates inside."""

    gradients: Tensor
    rows: int

    @property
    def samples_along(self) -> dict[str, int]:
        """My tensors that belong to samples."""
        return {"gradients": 0}

    @property
    def entries(self) -> int:
        """Of the gradient of one row."""
        return self.gradients.shape[1]

    @property
    def stretches(self) -> list[slice]:
        """Entries that are multiplied at a time."""
        step = min(max(_LATE_NUMBERS // len(self.gradients), _FEWEST_LATE), _LONGEST_SUM)
        return [slice(start, start + step) for start in range(0, self.entries, step)]

    def blocks(self, stretches: Sequence[slice]) -> Iterator[Gradients]:
        """Some of the entries at a time."""
        return (Gradients(self.gradients[:, entries], self.rows) for entries in stretches)

    def accumulate(self, tile: Tensor, mine: slice, other: Factor, theirs: slice) -> None:
        """Add my products with the other chunk to a tile."""
        assert isinstance(other, Gradients)
        left = self.gradients[mine.start * self.rows : mine.stop * self.rows]
        right = other.gradients[theirs.start * self.rows : theirs.stop * self.rows]
        for start in range(0, left.shape[1], _LONGEST_SUM):
            stop = start + _LONGEST_SUM
            tile.addmm_(left[:, start:stop], right[:, start:stop].t())


@dataclass
class LateGradients(Factor):
    """inputs (groups, samples, T, p) or looked-up rows (samples, T); sensitivities (groups, samples, outputs, q, T).

    Gradients are not kept; those of a table have entries for the rows that are looked up.
    """

    inputs: Tensor
    sensitivities: Tensor
    rows: int
    root: float  # of the rate, times what the weight is multiplied by

    @property
    def samples_along(self) -> dict[str, int]:
        """My tensors that belong to samples."""
        return _INPUTS_AND_SENSITIVITIES if self.inputs.ndim > 2 else _ROWS_AND_SENSITIVITIES

    def shortened(self) -> LateGradients:
        """The same with fewer positions, where few of them matter.

        Before a mean over positions all have the same sensitivity: one position stands for the sum. Behind the last
        attention before one token is read, no gradient arrives at most of them: they are left out.
        """
        values = self.sensitivities
        if self.inputs.ndim == 2 or values.shape[-1] == 1:
            return self
        glance, first = values[0, 0, 0], values[..., :1]
        if torch.equal(glance, glance[:, :1].expand_as(glance)) and torch.equal(
            values, first.expand_as(values)
        ):
            return replace(self, inputs=self.inputs.sum(2, keepdim=True), sensitivities=first.clone())
        if bool(glance.any(0).all()):
            return self
        arrives = values.ne(0).flatten(0, 2).any(0).any(0)
        arrives[0] |= not bool(arrives.any())
        kept = arrives.nonzero().squeeze(1)
        if 2 * len(kept) > len(arrives):
            return self
        values = values.transpose(3, 4)[:, :, :, kept].transpose(3, 4)
        return replace(self, inputs=self.inputs[:, :, kept], sensitivities=values)

    @property
    def has_one_position(self) -> bool:
        """Whether a gradient is one input times one sensitivity."""
        return self.inputs.ndim > 2 and self.inputs.shape[2] == 1

    def as_grams(self) -> Grams:
        """The same contribution where every sample has one position."""
        groups, samples = self.sensitivities.shape[:2]
        values = self.sensitivities.reshape(groups, samples, self.rows, -1)
        return Grams(self.inputs[:, :, 0], values, 1.0, 0.0, self.root)

    def joined(self, others: Sequence[Factor]) -> Factor:
        """The factor of my samples and those of other chunks after them, which may be heard at other positions."""
        late = [one for one in (self, *others) if isinstance(one, LateGradients)]
        most = max(one.sensitivities.shape[-1] for one in late)
        first, *rest = (one._padded(most) for one in late)
        return Factor.joined(first, rest)

    def _padded(self, positions: int) -> LateGradients:
        missing = positions - self.sensitivities.shape[-1]
        if not missing:
            return self
        inputs, values = pad(self.inputs, (0, 0, 0, missing)), pad(self.sensitivities, (0, missing))
        return replace(self, inputs=inputs, sensitivities=values)

    @cached_property
    def table(self) -> Tensor | None:
        """The rows that are looked up, each once."""
        return torch.unique(self.inputs) if self.inputs.ndim == 2 else None

    @property
    def entries(self) -> int:
        """Of the gradient of one row."""
        groups, _, _, q, _ = self.sensitivities.shape
        return groups * q * (self.inputs.shape[-1] if self.table is None else len(self.table))

    @property
    def stretches(self) -> list[tuple[int, slice]]:
        """The groups and features whose gradients are formed at a time."""
        groups, samples, outputs, q, _ = self.sensitivities.shape
        entries = min(max(_LATE_NUMBERS // (samples * outputs), _FEWEST_LATE), _LONGEST_SUM)
        step = max(1, entries * groups * q // self.entries)
        return [(g, slice(start, min(start + step, q))) for g in range(groups) for start in range(0, q, step)]

    def blocks(
        self, stretches: Sequence[tuple[int, slice]], table: Tensor | None = None
    ) -> Iterator[Gradients]:
        """The gradients of all samples with respect to some features of the weight at a time, in one buffer.

        ``table``: all rows of a table that are looked up, if others than mine are.
        """
        if not stretches:
            return
        _, samples, outputs, _, positions = self.sensitivities.shape
        table = self.table if table is None else table
        place = None if table is None else torch.searchsorted(table, self.inputs)
        p = self.inputs.shape[-1] if table is None else len(table)
        most = max(features.stop - features.start for _, features in stretches)
        buffer = self.sensitivities.new_empty(samples * outputs * most * p)
        for group, features in stretches:
            part = self.sensitivities[group, :, :, features]
            part = part * self.root if self.root != 1 else part
            formed = buffer[: samples * outputs * part.shape[2] * p]
            if place is not None:
                index = place[:, None, :, None].expand(-1, outputs, -1, part.shape[2])
                rows = formed.view(samples, outputs, p, -1).zero_()
                rows.scatter_add_(2, index, part.transpose(2, 3))
            else:
                if part.stride(2) == 1:  # features last, and so they stay
                    left = part.permute(0, 3, 1, 2).reshape(samples, positions, -1).transpose(1, 2)
                else:
                    left = part.reshape(samples, -1, positions)
                torch.bmm(left, self.inputs[group], out=formed.view(samples, -1, p))
            yield Gradients(formed.view(samples * self.rows, -1), self.rows)

    def blocks_with(self, other: LateGradients) -> Iterator[tuple[Gradients, Gradients]]:
        """My blocks beside those of another chunk; with itself, each is formed once."""
        if other is self:
            return ((block, block) for block in self.blocks(self.stretches))
        table = None
        if self.table is not None and other.table is not None:
            table = torch.unique(torch.cat([self.table, other.table]))
        stretches = max(self, other, key=lambda one: one.sensitivities[0].numel()).stretches
        return zip(self.blocks(stretches, table), other.blocks(stretches, table))

    def accumulate(self, tile: Tensor, mine: slice, other: Factor, theirs: slice) -> None:
        """Add my products with the other chunk to a tile."""
        assert isinstance(other, LateGradients)
        for left, right in self.blocks_with(other):
            left.accumulate(tile, mine, right, theirs)


@dataclass
class Pairs(Factor):
    """inputs (groups, samples, p, T) or looked-up rows (samples, T); sensitivities (groups, samples, rows, q, T)."""

    inputs: Tensor
    sensitivities: Tensor
    weight_rate: float
    scale: float = 1.0  # the weight enters times this

    @property
    def samples_along(self) -> dict[str, int]:
        """My tensors that belong to samples."""
        return _INPUTS_AND_SENSITIVITIES if self.inputs.ndim > 2 else _ROWS_AND_SENSITIVITIES

    def accumulate(self, tile: Tensor, mine: slice, other: Factor, theirs: slice) -> None:
        """Add my products with the other chunk to a tile."""
        assert isinstance(other, Pairs)
        groups, _, rows, q, positions = self.sensitivities.shape
        size = positions * positions * max(1, q * rows // positions) * self.sensitivities.element_size()
        triangle = other is self and mine == theirs  # of which nobody looks at the lower half
        several = max(1, _PANEL_ROWS // positions) if triangle else max(1, mine.stop - mine.start)
        for first in range(mine.start, mine.stop, several):
            own = slice(first, min(first + several, mine.stop))
            down = rows_of(slice(own.start - mine.start, own.stop - mine.start), rows)
            # Samples of the other chunk a few at a time, with their columns in the tile.
            step = max(1, int(_PAIR_BYTES / max(size * (own.stop - own.start), 1)))
            for start in range(first if triangle else theirs.start, theirs.stop, step):
                part = slice(start, min(start + step, theirs.stop))
                across = rows_of(slice(part.start - theirs.start, part.stop - theirs.start), rows)
                for group in range(groups):
                    self._add(tile[down, across], group, own, other, part)

    def _add(self, tile: Tensor, group: int, mine: slice, other: Pairs, theirs: slice) -> None:
        left, right = self.sensitivities[group, mine], other.sensitivities[group, theirs]
        n, rows, q, mine_t = left.shape
        m, _, _, their_t = right.shape
        rate = self.weight_rate * self.scale * other.scale
        # What the inputs have in common, (n T, m T').
        if self.inputs.ndim == 2:
            equal = self.inputs[mine].reshape(-1, 1) == other.inputs[theirs].reshape(1, -1)
            activity = equal.to(self.sensitivities.dtype)
        else:
            a, b = self.inputs[group, mine].transpose(1, 2), other.inputs[group, theirs].transpose(1, 2)
            activity = a.reshape(-1, a.shape[2]) @ b.reshape(-1, b.shape[2]).t()
        if rows == 1:  # and the sensitivities: two products of matrices are all
            common = left.transpose(2, 3).reshape(-1, q) @ right.transpose(2, 3).reshape(-1, q).t()
            tile.add_(common.mul_(activity).view(n, mine_t, m, their_t).sum((1, 3)), alpha=rate)
            return
        # first over the positions of the other sample: (m; n T, T') (m; T', q), one output after the other
        activity = activity.view(n * mine_t, m, their_t).transpose(0, 1).contiguous()
        carried = left.new_empty(rows, m, n * mine_t, q)
        for into, values in zip(carried, right.transpose(0, 1)):
            torch.bmm(activity, values.transpose(1, 2), out=into)
        # then over my positions and the features: (n; rows, T q) (n; T q, rows m)
        columns = carried.view(rows * m, n, mine_t * q).permute(1, 2, 0)
        found = torch.bmm(left.transpose(2, 3).reshape(n, rows, mine_t * q), columns)
        tile.view(n, rows, m, rows).add_(found.view(n, rows, rows, m).transpose(2, 3), alpha=rate)


def add_products(kernel: Tensor, mine: Sequence[Factor], theirs: Sequence[Factor], rows: int) -> None:
    """Add all factors' products to a rectangle of the kernel (samples * rows, samples * rows)."""
    mine, theirs = _simplest(mine, theirs), _simplest(theirs, mine)
    whole = slice(0, len(kernel) // rows), slice(0, kernel.shape[1] // rows)
    _add_large(kernel, mine, theirs, rows, [whole])
    for _ in _finished(kernel, mine, theirs, rows, whole):
        pass


def add_symmetric_products(kernel: Tensor, factors: Sequence[Factor], rows: int) -> None:
    """The same for one chunk with itself: tiles above the diagonal, and their mirror images."""
    factors = _simplest(factors, factors)
    whole = min(max(len(kernel) // 8, _LEAF_ROWS), 2 * _LEAF_ROWS, _CACHED_ROWS)
    count, height = len(kernel) // rows, max(1, _PANEL_ROWS // rows)
    large = [factor for factor in factors if isinstance(factor, Gradients | LateGradients)]
    work = len(kernel) ** 2 * sum(factor.entries for factor in large)
    if kernel.device.type == "cpu" and len(kernel) <= _SQUARE_ROWS and work > _SQUARE_WORK:
        _add_squares(kernel, large)
    else:  # flat tiles that reach from the diagonal to the right: long products are fastest on these
        panels = [(slice(i, min(i + height, count)), slice(i, count)) for i in range(0, count, height)]
        _add_large(kernel, factors, factors, rows, panels)
    for tile in _upper(0, count, max(1, whole // rows)):
        for across, down in _finished(kernel, factors, factors, rows, tile):
            block = kernel[across, down]
            if across == down:
                block.copy_(block.triu() + block.triu(1).t())
            else:
                kernel[down, across] = block.t()


def _simplest(mine: Sequence[Factor], theirs: Sequence[Factor]) -> list[Factor]:
    """Gradients at one position, beside others at one position, as products of two Grams."""

    def simplest(one: Factor, other: Factor) -> Factor:
        if not isinstance(one, LateGradients) or not isinstance(other, LateGradients):
            return one
        return one.as_grams() if one.has_one_position and other.has_one_position else one

    return [simplest(left, right) for left, right in zip(mine, theirs)]


def _add_large(
    kernel: Tensor, mine: Sequence[Factor], theirs: Sequence[Factor], rows: int, tiles: Sequence[Tile]
) -> None:
    """Products of gradients run on tiles as large as they come."""
    for left, right in zip(mine, theirs):
        pairs: Iterable[tuple[Factor, Factor]] = ()
        if isinstance(left, Gradients):
            pairs = [(left, right)]
        elif isinstance(left, LateGradients) and isinstance(right, LateGradients):
            pairs = left.blocks_with(right)
        for block, other in pairs:
            for across, down in tiles:
                block.accumulate(kernel[rows_of(across, rows), rows_of(down, rows)], across, other, down)


def _add_squares(kernel: Tensor, factors: Sequence[Any]) -> None:
    """Products of gradients with themselves: every core forms and multiplies blocks of its own."""
    cores = torch.get_num_threads()

    def total(core: int) -> NDArray[Any]:
        found = np.zeros(kernel.shape, dtype=kernel.numpy().dtype)
        product = np.empty_like(found)
        for factor in factors:
            for block in factor.blocks(factor.stretches[core::cores]):
                rows = block.gradients.numpy()
                found += np.matmul(
                    rows, rows.T, out=product
                )  # numpy sees that it is symmetric, and does half
        return found

    with one_thread_of_torch(), one_thread_of_blas():
        for found in over_cores(total, range(cores)):
            kernel += torch.from_numpy(found)


def _finished(
    kernel: Tensor, mine: Sequence[Factor], theirs: Sequence[Factor], rows: int, tile: Tile
) -> Iterator[Tile]:
    """Fill a tile part by part with all that passes over it; gives every part while it is in the cache."""
    pairs = [
        (left, right) for left, right in zip(mine, theirs) if not isinstance(left, Gradients | LateGradients)
    ]
    for a in _cut(tile[0], rows):
        for b in _cut(tile[1], rows):
            part = rows_of(a, rows), rows_of(b, rows)
            for left, right in pairs:
                left.accumulate(kernel[part], a, right, b)
            yield part


def _upper(start: int, stop: int, leaf: int) -> list[Tile]:
    """Tiles that cover the upper triangle: halves recursively, so that most of it is in large rectangles."""
    if stop - start <= leaf:
        return [(slice(start, stop), slice(start, stop))]
    middle = start + (stop - start + 1) // 2
    return [
        (slice(start, middle), slice(middle, stop)),
        *_upper(start, middle, leaf),
        *_upper(middle, stop, leaf),
    ]


def _cut(samples: slice, rows: int) -> list[slice]:
    count = samples.stop - samples.start
    parts = max(1, -(-count * rows // _CACHED_ROWS))
    bounds = [samples.start + count * i // parts for i in range(parts + 1)]
    return [slice(a, b) for a, b in pairwise(bounds) if b > a]


def rows_of(samples: slice, rows: int) -> slice:
    """The rows of the kernel that belong to some samples."""
    return slice(samples.start * rows, samples.stop * rows)
