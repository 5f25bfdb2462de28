"""How a stored kernel is cut: tiles are files, strips of tiles share the rows that a worker keeps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

Tile = tuple[int, int]

_LARGEST_TILE = 32e6  # bytes; larger files are not read or written faster
# Chunks along a side, so that there are tiles for several workers and little is lost when one dies.
_FEWEST_CHUNKS = 8
_SMALLEST_SIDE = 64  # samples that are not cut further for that
_CHUNK_SHARE = 0.15  # of a worker's memory, for one chunk on its way through the model
_TILE_SHARE = 0.25  # of it, for the tile, its mirror image and what their products hold
TILE_COPIES = 4


@dataclass(frozen=True)
class Needs:
    """Bytes that a worker needs: per sample for what it keeps and while it goes through the model, and per entry."""

    factors: float
    passes: float
    entry: float  # of one pair of samples: all labels and outputs
    fixed: float = 0.0  # however small the tile
    side: int = 1024  # samples along a tile from which on work on more together is not faster

    def working(self, side: int) -> float:
        """Bytes beside the factors that are kept: one chunk on its way, and a tile with its copies."""
        return self.fixed + side * (self.factors + self.passes) + TILE_COPIES * side**2 * self.entry


@dataclass(frozen=True)
class Grid:
    """Equal tiles but for the last ones; of a symmetric kernel only those on and above the diagonal are computed."""

    samples: tuple[int, int]
    sides: tuple[int, int]
    symmetric: bool

    def bounds(self, axis: int) -> list[int]:
        """Where chunks of samples begin, and where the last one ends."""
        return [*range(0, self.samples[axis], self.sides[axis]), self.samples[axis]]

    def count(self, axis: int) -> int:
        """Chunks along an axis."""
        return -(-self.samples[axis] // self.sides[axis])

    def chunk(self, axis: int, number: int) -> range:
        """The samples of a chunk."""
        start = number * self.sides[axis]
        return range(start, min(start + self.sides[axis], self.samples[axis]))

    def shape(self, tile: Tile) -> tuple[int, int]:
        """Samples of a tile along both sides."""
        return len(self.chunk(0, tile[0])), len(self.chunk(1, tile[1]))

    def on_diagonal(self, tile: Tile) -> bool:
        """Whether a tile holds the kernel of some samples with themselves."""
        return self.symmetric and tile[0] == tile[1]

    def first_column(self, row: int) -> int:
        """The first tile of a row that is computed."""
        return row if self.symmetric else 0

    @cached_property
    def tiles(self) -> list[Tile]:
        """All tiles that are computed."""
        return [(i, j) for i in range(self.count(0)) for j in range(self.first_column(i), self.count(1))]


@dataclass(frozen=True)
class Strip:
    """Rows of tiles whose factors a worker keeps while columns pass; a column of a strip is one part of the work."""

    number: int
    rows: range
    columns: range

    def tiles(self, grid: Grid, column: int) -> list[Tile]:
        """The tiles of one part."""
        return [(i, column) for i in self.rows if column >= grid.first_column(i)]


def strips(grid: Grid, height: int) -> list[Strip]:
    """Strips of at most so many rows of tiles, as equal as they can be."""
    count = -(-grid.count(0) // max(1, height))
    bounds = [grid.count(0) * k // count for k in range(count + 1)]
    return [
        Strip(k, range(bounds[k], bounds[k + 1]), range(grid.first_column(bounds[k]), grid.count(1)))
        for k in range(count)
    ]


def tile_sides(samples: tuple[int, int], needs: Needs, room: float) -> tuple[int, int]:
    """Samples along both sides of a tile, such that a worker has room to keep the factors of several chunks."""
    room = max(0.0, room - needs.fixed)
    by_chunk = _CHUNK_SHARE * room / (needs.factors + needs.passes)
    by_tile = min(_LARGEST_TILE / needs.entry, _TILE_SHARE * room / (TILE_COPIES * needs.entry)) ** 0.5
    most = max(1, int(min(by_chunk, by_tile, needs.side)))
    first, second = (_side(count, most) for count in samples)
    return first, second


def _side(count: int, most: int) -> int:
    few = max(-(-count // _FEWEST_CHUNKS), _SMALLEST_SIDE)
    chunks = -(-count // min(most, few))
    return -(-count // chunks)


def strip_height(grid: Grid, needs: Needs, room: float, workers: int) -> int:
    """Rows of tiles in a strip: as many as fit, but at least one strip for every worker.

    With strips of M samples, N^2 / 2M samples pass through the model as columns, and each once as a row.
    """
    side = max(grid.sides)
    fitting = int((room - needs.working(side)) / (side * needs.factors))
    return max(1, min(fitting, -(-grid.count(0) // workers)))


def stored_bytes(grid: Grid, entry: float) -> float:
    """What the whole kernel takes on disk, the rest of the last tiles included."""
    return prod(grid.count(axis) * grid.sides[axis] for axis in (0, 1)) * entry
