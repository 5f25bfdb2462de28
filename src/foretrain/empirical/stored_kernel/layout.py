"""All that is fixed when a store of tiles is created, as it is kept in the attributes of its Zarr group."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from foretrain.empirical.stored_kernel.grid import Grid
from foretrain.empirical.stored_kernel.identity import FORMAT, SampleValues
from foretrain.support.store import TILES

ARRAY = "kernel"
RUNS = ".run"  # what only a run that goes on needs


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
