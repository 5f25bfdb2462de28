"""All that is fixed when a store of tiles is created, and how the entries of its array lie in files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrain.empirical.stored_kernel.grid import Grid
from foretrain.empirical.stored_kernel.identity import FORMAT, SampleValues
from foretrain.support.errors import FileError, InputError
from foretrain.support.store import TILES

ARRAY = "kernel"
RUNS = ".run"  # what only a run that goes on needs
QUANTITY = "quantity"  # the axis of several kernels in one store, which are not contributions to a sum


@dataclass(frozen=True)
class Layout:
    """All that is fixed when a store is created."""

    grid: Grid
    outputs: tuple[int, ...]
    trace: bool
    by: str | None
    labels: tuple[str, ...] | None
    dtype: str
    threads: int
    fingerprint: Mapping[str, str]
    model: str
    routes: Mapping[str, str]
    sample_values: SampleValues

    @property
    def is_sum(self) -> bool:
        """Whether labels are contributions to one kernel, as those of layers are."""
        return self.by != QUANTITY

    @property
    def call(self) -> str:
        """What the user ran to get the store."""
        return "`ntk(..., store=)|command`" if self.is_sum else "`infinite_width(..., store=)`"

    @property
    def width(self) -> int:
        """Rows of the matrix for each sample."""
        return 1 if self.trace else len(self.outputs)

    @property
    def entry_bytes(self) -> int:
        """Bytes of one pair of samples."""
        return len(self.labels or ("",)) * self.width**2 * np.dtype(self.dtype).itemsize

    def around(self, sizes: tuple[int, int]) -> tuple[int, ...]:
        """The shape of an array with so many samples along both sides: labels first, outputs last."""
        first = () if self.labels is None else (len(self.labels),)
        return (*first, *sizes, *(() if self.trace else (len(self.outputs),) * 2))

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the axes."""
        first = () if self.by is None else (self.by,)
        return (*first, "input_1", "input_2", *(() if self.trace else ("output_1", "output_2")))

    def to_json(self) -> dict[str, Any]:
        """As it is kept in the store."""
        grid, own = self.grid, asdict(self)
        del own["grid"]
        return {
            "format": FORMAT,
            "symmetric": grid.symmetric,
            "samples": grid.samples,
            "bounds_1": grid.bounds(0),
            "bounds_2": grid.bounds(1),
            "witness": own.pop("sample_values"),
            **own,
        }

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> Layout:
        """As it was when the store was created."""
        sides = found["bounds_1"][1], found["bounds_2"][1]
        grid = Grid(tuple(found["samples"]), sides, found["symmetric"])
        names = [item.name for item in fields(Layout) if item.name not in ("grid", "sample_values")]
        own: dict[str, Any] = {
            name: tuple(found[name]) if isinstance(found[name], list) else found[name] for name in names
        }
        return Layout(grid, sample_values=SampleValues.from_json(found["witness"]), **own)


def attributes(path: Path) -> dict[str, Any] | None:
    """Those of the group, or their copy in the consolidated metadata; None where no store of tiles is."""
    for name, inside in ((".zattrs", ()), (".zmetadata", ("metadata", ".zattrs"))):
        try:
            found = json.loads((path / name).read_text(encoding="utf-8"))
            for key in inside:
                found = found[key]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if isinstance(found, dict) and isinstance(found.get(TILES), dict):
            return found
    return None


def is_stored_kernel(path: Path) -> bool:
    """Whether a folder was created as a store of tiles."""
    return attributes(path) is not None


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
    call: str  # by which the store was made

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
                f"{path} is damaged or lost (tile {tile[0]}-{tile[1]}): run the same {self.call} "
                "again, which computes what is missing."
            )
        return buffer.view(self.dtype).reshape(count, self.side[1], self.width, self.width)

    @property
    def _has_outputs(self) -> bool:
        return len(self.shape) - self.labelled == 4


def files_of(path: Path, layout: Layout) -> TileFiles:
    """How the entries of a store lie in files, as Zarr's own description says it."""
    folder = path / ARRAY
    try:
        said = json.loads((folder / ".zarray").read_text(encoding="utf-8"))
        if said.get("compressor") is not None or said.get("filters") or said["order"] != "C":
            raise FileError(
                f"{path} was written anew with other settings: use the store that {layout.call} wrote."
            )
        return TileFiles(
            folder,
            tuple(said["shape"]),
            tuple(said["chunks"]),
            np.dtype(said["dtype"]),
            said.get("dimension_separator", "."),
            layout.by is not None,
            layout.call,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, FileError | InputError):
            raise
        raise FileError(
            f"{path} is damaged ({type(error).__name__}: {error}): run the same {layout.call} "
            "again, which mends it."
        ) from error
