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
from itertools import pairwise

import torch
from torch import Tensor

Tile = tuple[slice, slice]

_LATE_ENTRIES = 4096  # of a gradient that are formed at a time
_LONGEST_SUM = 65_536  # products that are summed at a time: longer sums lose digits in single precision
_GLANCE = 4  # samples that rule most layers out
_ROUNDING = 16
_PAIR_BYTES = 32_000_000  # largest intermediate array of a sum over pairs of positions
_LEAF_ROWS = 160  # a diagonal tile this small is computed whole
_PANEL_ROWS = 128
_CACHED_ROWS = 768  # a tile of so many rows and columns stays in the cache while all layers add to it


class Factor(ABC):
    """What a chunk of samples brings to the kernel for some parameters."""

    @abstractmethod
    def accumulate(self, tile: Tensor, mine: slice, other: Factor, theirs: slice) -> None:
        """Add the products of my samples ``mine`` with the other chunk's ``theirs`` to a tile (rows, columns)."""

    @property
    def bytes(self) -> int:
        """Memory that the factor holds."""
        return sum(value.nbytes for value in vars(self).values() if isinstance(value, Tensor))


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
    """inputs (groups, samples, T, p), sensitivities (groups, samples, outputs, q, T); gradients are not kept."""

    inputs: Tensor
    sensitivities: Tensor
    rows: int
    root: float  # of the rate, times what the weight is multiplied by

    def blocks(self) -> Iterator[Gradients]:
        """The gradients of all samples with respect to a few rows of the weight at a time, in one buffer."""
        groups, samples, outputs, q, positions = self.sensitivities.shape
        p = self.inputs.shape[-1]
        step = max(1, _LATE_ENTRIES // p)
        buffer = self.inputs.new_empty(samples * outputs * min(step, q) * p)
        for group in range(groups):
            for start in range(0, q, step):
                part = self.sensitivities[group, :, :, start : start + step]
                left = part.reshape(samples, -1, positions)
                if self.root != 1:
                    left = left * self.root
                formed = buffer[: samples * left.shape[1] * p].view(samples, left.shape[1], p)
                torch.bmm(left, self.inputs[group], out=formed)
                yield Gradients(formed.view(samples * self.rows, -1), self.rows)

    def blocks_with(self, other: LateGradients) -> Iterator[tuple[Gradients, Gradients]]:
        """My blocks beside those of another chunk; with itself, each is formed once."""
        if other is self:
            return ((block, block) for block in self.blocks())
        return zip(self.blocks(), other.blocks())

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

    def accumulate(self, tile: Tensor, mine: slice, other: Factor, theirs: slice) -> None:
        """Add my products with the other chunk to a tile."""
        assert isinstance(other, Pairs)
        groups, _, rows, q, positions = self.sensitivities.shape
        size = positions * positions * max(1, q * rows // positions) * self.sensitivities.element_size()
        # Samples of the other chunk a few at a time, with their columns in the tile.
        step = max(1, int(_PAIR_BYTES / max(size * (mine.stop - mine.start), 1)))
        for group in range(groups):
            for start in range(theirs.start, theirs.stop, step):
                part = slice(start, min(start + step, theirs.stop))
                columns = rows_of(slice(part.start - theirs.start, part.stop - theirs.start), rows)
                self._add(tile[:, columns], group, mine, other, part)

    def _add(self, tile: Tensor, group: int, mine: slice, other: Pairs, theirs: slice) -> None:
        left, right = self.sensitivities[group, mine], other.sensitivities[group, theirs]
        n, rows, q, mine_t = left.shape
        m, _, _, their_t = right.shape
        # What the inputs have in common, (n, T, m, T').
        if self.inputs.ndim == 2:
            equal = self.inputs[mine][:, :, None, None] == other.inputs[theirs][None, None]
            activity = equal.to(self.sensitivities.dtype)
        else:
            a, b = self.inputs[group, mine].transpose(1, 2), other.inputs[group, theirs].transpose(1, 2)
            product = a.reshape(-1, a.shape[2]) @ b.reshape(-1, b.shape[2]).t()
            activity = product.view(n, mine_t, m, their_t)
        # first over the positions of the other sample: (m; n T, T') (m; T', rows q)
        carried = torch.bmm(
            activity.permute(2, 0, 1, 3).reshape(m, n * mine_t, their_t),
            right.reshape(m, rows * q, their_t).transpose(1, 2),
        ).view(m, n, mine_t, rows, q)
        # then over my positions and the features: (n; rows, q T) (n; q T, m rows)
        found = torch.bmm(
            left.reshape(n, rows, q * mine_t),
            carried.permute(1, 4, 2, 0, 3).reshape(n, q * mine_t, m * rows),
        )
        tile.view(n, rows, m * rows).add_(found, alpha=self.weight_rate * self.scale * other.scale)


def add_products(kernel: Tensor, mine: Sequence[Factor], theirs: Sequence[Factor], rows: int) -> None:
    """Add all factors' products to a rectangle of the kernel (samples * rows, samples * rows)."""
    whole = slice(0, len(kernel) // rows), slice(0, kernel.shape[1] // rows)
    _add_large(kernel, mine, theirs, rows, [whole])
    for _ in _finished(kernel, mine, theirs, rows, whole):
        pass


def add_symmetric_products(kernel: Tensor, factors: Sequence[Factor], rows: int) -> None:
    """The same for one chunk with itself: tiles above the diagonal, and their mirror images."""
    whole = min(max(len(kernel) // 8, _LEAF_ROWS), 2 * _LEAF_ROWS, _CACHED_ROWS)
    count, height = len(kernel) // rows, max(1, _PANEL_ROWS // rows)
    # Flat tiles that reach from the diagonal to the right: long products are fastest on these.
    panels = [(slice(i, min(i + height, count)), slice(i, count)) for i in range(0, count, height)]
    _add_large(kernel, factors, factors, rows, panels)
    for tile in _upper(0, count, max(1, whole // rows)):
        for across, down in _finished(kernel, factors, factors, rows, tile):
            block = kernel[across, down]
            if across == down:
                block.copy_(block.triu() + block.triu(1).t())
            else:
                kernel[down, across] = block.t()


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
