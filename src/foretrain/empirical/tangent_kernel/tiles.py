"""The kernel in tiles: only those above the diagonal are computed when both sides are the same samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from torch import Tensor

from foretrain.empirical.tangent_kernel.factors import Factor, Gradients, LateGradients

Tile = tuple[slice, slice]

_LEAF_ROWS = 160  # a diagonal tile this small is computed whole
_PANEL_ROWS = 128
_CACHED_ROWS = 768  # a tile of so many rows and columns stays in the cache while all layers add to it


def add_products(kernel: Tensor, mine: Sequence[Factor], theirs: Sequence[Factor], rows: int) -> None:
    """Add all factors' products to a rectangle of the kernel (samples * rows, samples * rows)."""
    whole = slice(0, len(kernel) // rows), slice(0, kernel.shape[1] // rows)
    _add_large(kernel, mine, theirs, rows, [whole])
    for _ in _finished(kernel, mine, theirs, rows, whole):
        pass


def add_symmetric_products(kernel: Tensor, factors: Sequence[Factor], rows: int) -> None:
    """The same for one chunk with itself: tiles above the diagonal, and their mirror images."""
    whole = min(max(len(kernel) // 8, _LEAF_ROWS), 2 * _LEAF_ROWS, _CACHED_ROWS)
    tiles = _upper(0, len(kernel) // rows, max(1, whole // rows))
    _add_large(kernel, factors, factors, rows, _panels(len(kernel) // rows, max(1, _PANEL_ROWS // rows)))
    for tile in tiles:
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
    for left, right in _gradients(mine, theirs):
        for across, down in tiles:
            left.accumulate(kernel[_rows(across, rows), _rows(down, rows)], across, right, down)


def _gradients(mine: Sequence[Factor], theirs: Sequence[Factor]) -> Iterator[tuple[Gradients, Gradients]]:
    for left, right in zip(mine, theirs):
        if isinstance(left, Gradients) and isinstance(right, Gradients):
            yield left, right
        elif isinstance(left, LateGradients) and isinstance(right, LateGradients):
            blocks = ((block, block) for block in left.blocks())
            yield from blocks if left is right else zip(left.blocks(), right.blocks())


def _finished(
    kernel: Tensor, mine: Sequence[Factor], theirs: Sequence[Factor], rows: int, tile: Tile
) -> Iterator[Tile]:
    """Fill a tile part by part with all that passes over it; gives every part while it is in the cache."""
    pairs = [
        (left, right) for left, right in zip(mine, theirs) if not isinstance(left, Gradients | LateGradients)
    ]
    for a in _cut(tile[0], rows):
        for b in _cut(tile[1], rows):
            part = _rows(a, rows), _rows(b, rows)
            for left, right in pairs:
                left.accumulate(kernel[part], a, right, b)
            yield part


def _panels(count: int, height: int) -> list[Tile]:
    """Flat tiles that reach from the diagonal to the right: long products are fastest on these."""
    return [(slice(i, min(i + height, count)), slice(i, count)) for i in range(0, count, height)]


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


def _rows(samples: slice, rows: int) -> slice:
    return slice(samples.start * rows, samples.stop * rows)
