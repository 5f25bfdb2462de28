"""Zarr's own files of a store: written when it is created, and again when some of them were lost."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from foretrain.empirical.stored_kernel.layout import Layout, attributes
from foretrain.support.atomic import new_folder
from foretrain.support.store import RECORDS, TILES, save

ARRAY = "kernel"
PARTS = (ARRAY, "layer", "parameter", "output_1", "output_2")  # arrays that a store may hold
RUNS = ".run"  # what only a run that goes on needs


def create(path: Path, layout: Layout, *, overwrite: bool = False) -> None:
    """A store without tiles, which appears complete."""
    with new_folder(path, overwrite=overwrite) as folder:
        _write(folder, layout, {})
        (folder / RECORDS).mkdir()


def is_whole(path: Path, layout: Layout) -> bool:
    """Whether all of these files are there, say the same as their consolidated copy, and fit the layout."""
    try:
        copies = _read(path / ".zmetadata")["metadata"]
        own = _same(copies[".zattrs"], attributes(path)) and ".zgroup" in copies
        alike = all(_same(_read(path / name), copy) for name, copy in copies.items())
        fitting = _same(_read(path / ARRAY / ".zarray"), _array(layout))
        labels = all((path / name / "0").stat().st_size > 0 for name in _coordinates(layout))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return own and alike and fitting and labels


def mend(path: Path, layout: Layout) -> None:
    """Write these files anew, all from the attributes of the group; tiles and records stay."""
    place = path / RUNS / "new"
    shutil.rmtree(place.parent, ignore_errors=True)
    place.mkdir(parents=True)
    _write(place, layout, attributes(path) or {})
    for file in sorted(found for found in place.rglob("*") if found.is_file()):
        target = path / file.relative_to(place)
        target.parent.mkdir(exist_ok=True)
        os.replace(file, target)
    shutil.rmtree(place.parent)


def _write(folder: Path, layout: Layout, known: dict[str, Any]) -> None:
    """``known``: attributes of the group that stay as they are."""
    import xarray as xr
    import zarr

    nothing = np.empty(layout.around((0, 0)), layout.dtype)
    inner = save(
        xr.DataArray(nothing, dims=layout.dims, coords=_coordinates(layout), name=ARRAY), folder / "new.zarr"
    )
    for part in inner.iterdir():
        part.rename(folder / part.name)
    inner.rmdir()
    (folder / ARRAY / ".zarray").write_text(json.dumps(_array(layout), indent=1), encoding="utf-8")
    all_attributes = _read(folder / ".zattrs") | {TILES: layout.to_json()} | known
    (folder / ".zattrs").write_text(json.dumps(all_attributes, indent=1), encoding="utf-8")
    zarr.consolidate_metadata(folder, zarr_format=2)


def _coordinates(layout: Layout) -> dict[str, Any]:
    found: dict[str, Any] = {} if layout.by is None else {layout.by: list(layout.labels or ())}
    if not layout.trace:
        found |= {name: list(layout.outputs) for name in ("output_1", "output_2")}
    return found


def _array(layout: Layout) -> dict[str, Any]:
    """Zarr's description of the array: one tile is one chunk, as it is in memory, and missing ones are nan."""
    return {
        "chunks": layout.around(layout.grid.sides),
        "compressor": None,
        "dimension_separator": ".",
        "dtype": layout.dtype,
        "fill_value": "NaN",
        "filters": None,
        "order": "C",
        "shape": layout.around(layout.grid.samples),
        "zarr_format": 2,
    }


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _same(first: Any, second: Any) -> bool:
    """As JSON, where tuples are lists."""
    return json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)
