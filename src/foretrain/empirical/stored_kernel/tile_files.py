"""The array of a store as files: read directly, because they are uncompressed and one chunk is one tile."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrain.empirical.stored_kernel.layout import ARRAY
from foretrain.support.errors import FileError, InputError


@dataclass(frozen=True)
class TileFiles:
    """The array of a store as files: which holds what, and at which byte.

    Axes are ([label,] input_1, input_2[, output_1, output_2]); all files have the size of a whole chunk.
    """

    folder: Path
    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    dtype: np.dtype[Any]
    separator: str
    labelled: bool

    @property
    def side(self) -> tuple[int, int]:
        """Samples of a whole tile along both sides."""
        first = int(self.labelled)
        return self.chunk[first], self.chunk[first + 1]

    @property
    def width(self) -> int:
        """Outputs; 1 of a trace."""
        return self.shape[-1] if self._has_outputs else 1

    @property
    def row_bytes(self) -> int:
        """One sample's row of a tile."""
        return self.side[1] * self.width**2 * self.dtype.itemsize

    def read(self, tile: tuple[int, int], label: int, rows: slice, into: NDArray[np.uint8]) -> NDArray[Any]:
        """Rows of a tile as (rows, columns of a whole tile, outputs, outputs), in the buffer given."""
        whole, part = divmod(label, self.chunk[0]) if self.labelled else (0, 0)
        key = (*((whole,) if self.labelled else ()), *tile, *((0, 0) if self._has_outputs else ()))
        path = self.folder / self.separator.join(map(str, key))
        count = rows.stop - rows.start
        buffer = into[: count * self.row_bytes]
        try:
            with path.open("rb", buffering=0) as file:
                file.seek((part * self.side[0] + rows.start) * self.row_bytes)
                found = file.readinto(buffer.data)
        except FileNotFoundError:
            found = 0
        if found != len(buffer):
            raise FileError(
                f"{path} is damaged or lost (tile {tile[0]}-{tile[1]}): run the same `ntk(..., "
                "store=)|command` again, which computes what is missing."
            )
        return buffer.view(self.dtype).reshape(count, self.side[1], self.width, self.width)

    @property
    def _has_outputs(self) -> bool:
        return len(self.shape) - self.labelled == 4


def files_of(path: Path, *, labelled: bool) -> TileFiles:
    """How the entries of a store lie in files, as Zarr's own description says it."""
    folder = path / ARRAY
    try:
        said = json.loads((folder / ".zarray").read_text(encoding="utf-8"))
        if said.get("compressor") is not None or said.get("filters") or said["order"] != "C":
            raise FileError(
                f"{path} was written anew with other settings: use the store that ntk(..., `store=`) wrote."
            )
        return TileFiles(
            folder,
            tuple(said["shape"]),
            tuple(said["chunks"]),
            np.dtype(said["dtype"]),
            said.get("dimension_separator", "."),
            labelled,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, FileError | InputError):
            raise
        raise FileError(
            f"{path} is damaged ({type(error).__name__}: {error}): run the same `ntk(..., store=)|command` "
            "again, which mends it."
        ) from error
