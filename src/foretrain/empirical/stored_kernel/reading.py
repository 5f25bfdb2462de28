"""``StoredKernel``: a kernel in tiles on disk, opened without being loaded.

The store is a Zarr group of format 2 that ``xarray.open_zarr`` reads on its own. Here its chunks are read
directly: they are uncompressed, and one chunk is one tile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foretrain.empirical.any_kernel import MORE, WrittenKernel, kernel_figure
from foretrain.empirical.stored_kernel.folder import Folder
from foretrain.empirical.stored_kernel.grid import Grid, Tile
from foretrain.empirical.stored_kernel.layout import TileFiles, files_of
from foretrain.empirical.stored_kernel.products import measured_norms, multiply, pieces, read_tile
from foretrain.support.answers import Answer, Part
from foretrain.support.errors import InputError
from foretrain.support.memory import human_bytes, require_memory
from foretrain.support.store import load

if TYPE_CHECKING:
    import xarray as xr

_DRAWN_BYTES = 2e7  # of a kernel that is read whole for a picture


class StoredKernel(WrittenKernel):
    """A kernel on disk: (N, N2, C, C), or (N, N2) for a trace, with labels first if contributions are apart.

    Analyses read the tiles as a stream and never hold the whole kernel; each says how many times it reads it.
    Of a kernel whose contributions are apart they take the sum; ``kernel["label"]`` is one of them. Several kernels
    in one store, as ``infinite_width`` writes them, have no sum: ``kernel["ntk"]`` is one of them.
    """

    streamed = True
    most_together = 2**31  # one reading takes any number of columns

    def __init__(self, path: str | Path, label: str | None = None, summed: bool = False) -> None:
        """``summed``: over contributions that are apart on disk."""
        self.path, self.label, self.summed = Path(path).expanduser(), label, summed
        self._folder = Folder(self.path)
        layout = self._layout = self._folder.layout
        if label is not None and label not in (layout.labels or ()):
            there = layout.labels or "none: compute it with by='layer' or by='parameter'"
            raise KeyError(f"{label!r} is no label of this kernel; labels: {there}")
        if summed:
            self._require_one_kernel()
        self.by = None if summed or label is not None else layout.by
        self.labels = None if self.by is None else layout.labels
        self.grid: Grid = layout.grid  # how the kernel is cut into tiles
        self.routes = layout.routes
        super().__init__(
            self.grid.samples,
            layout.outputs,
            traced=layout.trace,
            symmetric=self.grid.symmetric,
            dtype=torch.float64,
            best_block=64,
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return self.files.shape if self.by is not None else self.files.shape[int(self.files.labelled) :]

    @property
    def entry_type(self) -> str:
        """The name of the dtype of the numbers on disk; products are in double precision."""
        return str(self.files.dtype)

    @property
    def precision(self) -> float:
        """The relative rounding of the numbers on disk."""
        return float(np.finfo(self.files.dtype).eps)

    @property
    def nbytes(self) -> int:
        """Of all entries."""
        return prod(self.shape) * self.files.dtype.itemsize

    @property
    def contributions(self) -> Sequence[int]:
        """Which entries of the first axis on disk the matrix is the sum of."""
        self._require_one_kernel()
        known = self._layout.labels or ("",)
        return range(len(known)) if self.label is None else (known.index(self.label),)

    @property
    def finished(self) -> float:
        """The share of tiles that are there."""
        return 1 - self.missing / len(self.grid.tiles)

    @property
    def missing(self) -> int:
        """How many tiles are not there yet."""
        return len(self.grid.tiles) - len(self._folder.recorded())

    def require_intact(self, i: int, j: int) -> None:
        """Refuse a tile whose file has not the checksum of its record; one that has is not asked again."""
        self._folder.require_intact((i, j))

    def total(self) -> StoredKernel:
        """The kernel summed over layers or parameters, as a kernel that is read when it is used."""
        return StoredKernel(self.path, self.label, summed=True)

    def tile(self, i: int, j: int) -> NDArray[Any]:
        """One tile as a matrix (rows * outputs, columns * outputs), contributions summed, in double precision."""
        rows, columns = self.grid.count(0), self.grid.count(1)
        if not (0 <= i < rows and 0 <= j < columns):
            raise InputError(f"there is no tile ({i}, {j}): the kernel has {rows} x {columns} tiles.")
        return read_tile(self, (i, j))

    def matmat(self, columns: Any) -> Any:
        """K V for an array V (N2*C, many) or (N2*C,), in one reading; tensors are blocks, as for any operator."""
        return super().matmat(columns) if isinstance(columns, Tensor) else multiply(self, columns)

    def rmatmat(self, columns: Any) -> Any:
        """K^T V for an array V (N*C, many) or (N*C,), in one reading; tensors are blocks, as for any operator."""
        if isinstance(columns, Tensor):
            return super().rmatmat(columns)
        return multiply(self, columns, transposed=True)

    def __matmul__(self, other: Any) -> Any:
        return self.matmat(other) if isinstance(other, np.ndarray) else super().__matmul__(other)

    def multiply(self, columns: NDArray[np.float64]) -> NDArray[np.float64]:
        """K V in double precision, in one reading."""
        return multiply(self, columns)

    def dense(self) -> Tensor:
        """The matrix in double precision, contributions summed, in one reading."""
        rows, columns = self.matrix_shape
        require_memory(
            8.0 * rows * columns, f"a kernel of {rows} x {columns} entries", "use products with it"
        )
        matrix = np.empty((rows, columns))
        for piece in pieces(self):
            matrix[piece.rows, piece.columns] = piece.values
            if piece.mirrored:
                matrix[piece.columns, piece.rows] = piece.values.T
        return torch.from_numpy(matrix)

    def _apply(self, flat: Tensor) -> Tensor:
        return torch.from_numpy(multiply(self, flat.numpy().T).T)

    def _apply_adjoint(self, flat: Tensor) -> Tensor:
        return torch.from_numpy(multiply(self, flat.numpy().T, transposed=True).T)

    def __getitem__(self, key: str) -> StoredKernel:
        return StoredKernel(self.path, key, self.summed)

    def to_xarray(self) -> xr.DataArray:
        """A labelled array that reads what is asked of it: in lazy chunks, one per tile, if dask is installed."""
        self.require_finished("a labelled array")
        found = cast("xr.DataArray", load(self.path))
        if self.label is not None:
            return found.isel({found.dims[0]: self.contributions[0]})
        return found.sum(self._layout.by) if self.summed and self._layout.by is not None else found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise InputError("a stored kernel cannot be an array without being copied from disk.")
        require_memory(
            2.0 * self.nbytes,
            f"the stored kernel of {self.samples[0]} x {self.samples[1]} samples",
            "use .to_xarray(), .tile(i, j) or products with it, which read it in parts",
        )
        self.require_finished("an array")
        for tile in self._folder.damaged(self.grid.tiles):
            raise self._folder.damage(tile)
        return np.asarray(self.to_xarray().values, dtype=dtype)

    @cached_property
    def records(self) -> Mapping[Tile, Mapping[str, Any]]:
        """What was noted of each tile when it was finished."""
        self.require_finished("a record of all tiles")
        return {tile: self._folder.record(tile) for tile in self.grid.tiles}

    @cached_property
    def norms(self) -> tuple[float, float]:
        """Trace and sum of squares of the matrix: from the records, or of one contribution by one reading."""
        self.require_symmetric("trace")
        self._require_one_kernel()
        if self.label is not None and self._layout.is_sum:
            return measured_norms(self)
        squares = [(1 if i == j else 2) * self._noted((i, j), "squares") for i, j in self.records]
        return sum(self._noted((i, i), "diagonal") for i in range(self.grid.count(0))), sum(squares)

    def _noted(self, tile: Tile, what: str) -> float:
        """A number in a tile's record, where several kernels have one each."""
        found = self.records[tile][what]
        return float(found if self._layout.is_sum else found[self.label])

    def _require_one_kernel(self) -> None:
        """Refuse sums over kernels that lie beside each other in the store."""
        if self.label is None and not self._layout.is_sum:
            names = ", ".join(self._layout.labels or ())
            raise InputError(
                f"{self.path} holds several kernels ({names}), which have no sum: take one, such as kernel['ntk']."
            )

    def exact_norms(self) -> tuple[float, float]:
        """Trace and sum of squares of the matrix."""
        return self.norms

    @property
    def seconds(self) -> float:
        """That the tiles took, of all workers together."""
        return sum(float(record["seconds"]) for record in self.records.values())

    @property
    def layer_shares(self) -> dict[str, float]:
        """Each layer's share of the trace, from the records."""
        self.require_symmetric("layer's share of the trace")
        total: dict[str, float] = {}
        for i in range(self.grid.count(0)):
            for layer, part in (self.records[i, i].get("layers") or {}).items():
                total[layer] = total.get(layer, 0.0) + float(part)
        whole = self.norms[0]
        return {layer: part / whole for layer, part in total.items()} if whole > 0 else {}

    def require_finished(self, what: str) -> None:
        """Refuse a store of which tiles are missing."""
        missing = self.missing
        if missing:
            raise InputError(
                f"{what} needs the whole kernel, but {missing} of the {len(self.grid.tiles)} tiles of {self.path} "
                f"are missing: run the same {self._layout.call} again, which goes on where it ended."
            )

    def answer(self) -> Answer:
        """What is on disk and how far it is; of a large kernel no tile is read."""
        sizes = ", ".join(f"{name} {size}" for name, size in zip(self.dims, self.shape))
        part = "" if self.label is None else f" of {self.label!r}"
        state = "finished" if not self.missing else f"{self.finished:.1%} finished, {self.missing} missing"
        parts: list[Part] = [
            f"{len(self.grid.tiles)} tiles of up to {self.files.side[0]} x {self.files.side[1]} samples"
            f"{', upper triangle' if self.symmetric else ''}: {state}; model {self._layout.model}",
        ]
        one = self._layout.is_sum or self.label is not None
        if one:
            parts.append("K @ V and .tile(i, j) read tiles; .to_xarray() is lazy.")
        if self.symmetric and one:
            parts.append(MORE)
        if one and not self.missing and self.nbytes <= _DRAWN_BYTES:
            parts.append(lambda: kernel_figure(np.asarray(self.total()), None))
        where = f"({sizes}; {self.entry_type}; {human_bytes(self.nbytes)}) at {self.path}"
        return Answer(f"StoredKernel{part} {where}", parts, self.to_xarray)

    @cached_property
    def files(self) -> TileFiles:
        """How the entries lie in files."""
        return files_of(self.path, self._layout)
