"""Products of a stored kernel with many columns at once: tiles are read ahead while the last ones are multiplied."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from foretrain.support.errors import InputError
from foretrain.support.memory import available_bytes, require_memory
from foretrain.support.progress import Progress

if TYPE_CHECKING:
    from foretrain.empirical.stored_kernel.grid import Tile
    from foretrain.empirical.stored_kernel.reading import StoredKernel

Array: TypeAlias = NDArray[np.float64]

_READERS = 2  # threads
_AHEAD = 3  # pieces that are read or wait while one is multiplied
_PIECE_BYTES = 1.6e7  # large for matrix products, small beside the memory
_SHARE = 0.05  # of the available memory, for one piece


@dataclass(frozen=True)
class Piece:
    """Some rows of a tile as a matrix, with its place; ``mirrored`` if the kernel also holds the transposed one."""

    values: Array
    rows: slice
    columns: slice
    mirrored: bool


def multiply(kernel: StoredKernel, columns: Any, *, transposed: bool = False) -> Array:
    """K V or K^T V; each tile of a symmetric kernel is read once for both its places."""
    transposed = transposed and not kernel.symmetric
    rows, entries = kernel.matrix_shape[::-1] if transposed else kernel.matrix_shape
    given = np.asarray(columns, dtype=np.float64)
    if given.ndim not in (1, 2) or len(given) != entries:
        raise InputError(
            f"the columns have shape {given.shape}, but they must be ({entries}, many) or one vector ({entries},)."
        )
    beside = np.ascontiguousarray(given.reshape(entries, -1))
    many = beside.shape[1]
    require_memory(
        2 * 8.0 * rows * many, f"a product with {many} columns of {rows} entries", "pass fewer columns"
    )
    found = np.zeros((rows, many))
    for piece in pieces(kernel):
        if not transposed:
            found[piece.rows] += piece.values @ beside[piece.columns]
        if transposed or piece.mirrored:
            found[piece.columns] += piece.values.T @ beside[piece.rows]
    if not np.isfinite(found).all():
        raise InputError(
            "the kernel or the columns have entries that are not finite: mend the model or its inputs first."
        )
    return found[:, 0] if given.ndim == 1 else found


def measured_norms(kernel: StoredKernel) -> tuple[float, float]:
    """Trace and sum of squares, by one reading."""
    trace = squares = 0.0
    for piece in pieces(kernel):
        squares += (1 + piece.mirrored) * float(np.vdot(piece.values, piece.values))
        if not piece.mirrored:
            trace += float(np.trace(piece.values, offset=piece.rows.start - piece.columns.start))
    return trace, squares


def read_tile(kernel: StoredKernel, tile: Tile) -> Array:
    """One tile as a matrix."""
    height, columns = kernel.grid.shape(tile)
    require_memory(
        height * (kernel.files.row_bytes + 8 * kernel.files.side[1] * kernel.width**2),
        f"tile {tile}",
        "read parts of .to_xarray() instead",
    )
    kernel.require_intact(*tile)
    buffer = _Buffer(kernel, height)
    return buffer.fill(tile, slice(0, height), columns).copy()


def pieces(kernel: StoredKernel) -> Iterator[Piece]:
    """The kernel in parts that fit the memory; a piece's values are overwritten when the next ones are asked for."""
    kernel.require_finished("a product")
    row = kernel.files.row_bytes + 8 * kernel.files.side[1] * kernel.width**2
    room = min(_PIECE_BYTES, _SHARE * available_bytes())
    height = int(max(1, min(room / row, kernel.files.side[0])))  # rows of samples in a piece
    jobs: list[tuple[Tile, slice]] = []
    for tile in kernel.grid.tiles:
        rows = kernel.grid.shape(tile)[0]
        jobs += [(tile, slice(start, min(start + height, rows))) for start in range(0, rows, height)]
    buffers = [_Buffer(kernel, height) for _ in range(min(_AHEAD + 1, len(jobs)))]
    with Progress("reading tiles", total=len(jobs)) as bar, ThreadPoolExecutor(_READERS) as pool:
        waiting: deque[Future[Piece]] = deque()
        for number, job in enumerate(jobs):
            waiting.append(pool.submit(buffers[number % len(buffers)].piece, *job))
            if len(waiting) > _AHEAD:
                yield waiting.popleft().result()
                bar.advance()
        while waiting:
            yield waiting.popleft().result()
            bar.advance()


class _Buffer:
    """Memory for one piece: as it is on disk, and as a matrix in double precision."""

    def __init__(self, kernel: StoredKernel, height: int) -> None:
        self._kernel = kernel
        self._raw = np.empty(height * kernel.files.row_bytes, np.uint8)
        self._matrix = np.empty(height * kernel.width * kernel.files.side[1] * kernel.width)

    def piece(self, tile: Tile, rows: slice) -> Piece:
        kernel, (i, j) = self._kernel, tile
        if rows.start == 0:  # pieces come in their order, so that none is used before its tile was checked
            kernel.require_intact(i, j)
        start, columns = kernel.grid.chunk(0, i).start, kernel.grid.chunk(1, j)
        return Piece(
            self.fill(tile, rows, len(columns)),
            slice((start + rows.start) * kernel.width, (start + rows.stop) * kernel.width),
            slice(columns.start * kernel.width, columns.stop * kernel.width),
            mirrored=kernel.symmetric and i != j,
        )

    def fill(self, tile: Tile, rows: slice, columns: int) -> Array:
        """Rows of a tile as a matrix over (sample, output), summed over contributions."""
        width, count = self._kernel.width, rows.stop - rows.start
        matrix = self._matrix[: count * width * columns * width].reshape(count, width, columns, width)
        target = torch.from_numpy(matrix).permute(0, 2, 1, 3)
        for number, label in enumerate(self._kernel.contributions):
            found = self._kernel.files.read(tile, label, rows, self._raw)[:, :columns]
            # torch permutes and converts at the speed of the memory, numpy at a third of it.
            source = torch.from_numpy(found.astype(found.dtype.newbyteorder("="), copy=False))
            target.copy_(source) if number == 0 else target.add_(source)
        return matrix.reshape(count * width, columns * width)
