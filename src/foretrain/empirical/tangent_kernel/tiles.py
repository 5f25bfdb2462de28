"""The kernel in tiles: only those above the diagonal are computed when both sides are the same samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from torch import Tensor

from foretrain.empirical.tangent_kernel.factors import Factor, Gradients

Tile = tuple[slice, slice]

_LEAF_ROWS = 160  # a diagonal tile this small is computed whole
_CACHED_ROWS = 768  # a tile of so many rows and columns stays in the cache while all layers add to it


def add_products(kernel: Tensor, mine: Sequence[Factor], theirs: Sequence[Factor], rows: int) -> None:
    """Add all factors' products to a rectangle of the kernel (samples * rows, samples * rows)."""
    n, m = len(kernel) // rows, kernel.shape[1] // rows
    for _ in _added(kernel, mine, theirs, rows, (slice(0, n), slice(0, m))):
        pass


def add_symmetric_products(kernel: Tensor, factors: Sequence[Factor], rows: int) -> None:
    """The same for one chunk with itself: tiles above the diagonal, and their mirror images."""
    for tile in _upper(0, len(kernel) // rows, max(1, min(_LEAF_ROWS, _CACHED_ROWS) // rows)):
        for across, down in _added(kernel, factors, factors, rows, tile):
            block = kernel[across, down]
            if across == down:
                block.copy_(block.triu() + block.triu(1).t())
            else:
                kernel[down, across] = block.t()


def _added(
    kernel: Tensor, mine: Sequence[Factor], theirs: Sequence[Factor], rows: int, tile: Tile
) -> Iterator[Tile]:
    """Fill a tile and give the rows and columns of its finished parts, while they are in the cache.

    Large products run on the tile as it is; those that pass over it run on parts that fit the cache.
    """
    across, down = tile
    pairs = list(zip(mine, theirs))
    for left, right in pairs:
        if isinstance(left, Gradients):
            left.accumulate(kernel[_rows(across, rows), _rows(down, rows)], across, right, down)
    for a in _cut(across, rows):
        for b in _cut(down, rows):
            part = _rows(a, rows), _rows(b, rows)
            for left, right in pairs:
                if not isinstance(left, Gradients):
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


def _rows(samples: slice, rows: int) -> slice:
    return slice(samples.start * rows, samples.stop * rows)
