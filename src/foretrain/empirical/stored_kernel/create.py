"""A store is created, or mended: where it goes, room on its disk, and Zarr's own files, all before the first tile."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from stat import S_IMODE
from typing import Any

import numpy as np

from foretrain.empirical.stored_kernel.folder import Folder
from foretrain.empirical.stored_kernel.grid import stored_bytes
from foretrain.empirical.stored_kernel.layout import (
    ARRAY,
    QUANTITY,
    RUNS,
    Layout,
    attributes,
    is_stored_kernel,
)
from foretrain.support.atomic import new_folder, restore
from foretrain.support.errors import FileError, ForetrainError, InputError
from foretrain.support.memory import human_bytes
from foretrain.support.store import RECORDS, TILES, save

_FREE_SHARE = 0.98  # of the free disk
_PARTS = (ARRAY, "layer", "parameter", QUANTITY, "output_1", "output_2")  # arrays that a store may hold


def local_folder(store: str | Path) -> Path:
    """The folder that was named, without links: what is renamed into its place must be on the same disk."""
    if not isinstance(store, str | os.PathLike) or not str(store) or "\0" in str(store):
        raise InputError(f"`store=`{store!r} names no folder: give a path, such as `store='kernel.zarr'`.")
    if "://" in str(store):
        raise InputError(
            f"`store=`{str(store)!r} is a remote address: give a folder that this machine can write to."
        )
    try:
        path = Path(store).expanduser().absolute()
        path = path.resolve() if path.is_symlink() else path
        restore(path)
        # An empty folder may be used; the one that this process is in would be lost to it.
        free = path.is_dir() and not any(path.iterdir()) and not path.samefile(os.curdir)
        taken = path.exists() and not is_stored_kernel(path) and not free
    except (OSError, ValueError, RuntimeError) as error:  # names that the system does not take
        reason = getattr(error, "strerror", None) or error
        raise FileError(f"`store=`{str(store)!r} cannot be used ({reason}): choose another name.") from error
    if taken:
        other = path.is_dir() and not any(path.glob(".z*"))  # and no Zarr group
        inside = f", such as {path / 'kernel.zarr'}" if other else ""
        raise FileError(f"{path} exists and is no stored kernel: choose another `store=`{inside}.")
    return path


def create_in_place(path: Path, layout: Layout) -> None:
    """A store without tiles appears complete: in the place of an older one, of an empty folder, or of nothing."""
    require_disk(path, layout, 0)
    try:
        if is_stored_kernel(path):
            with Folder(path).lock():
                _create(path, layout, overwrite=True)
        elif path.exists():
            mode = S_IMODE(path.stat().st_mode)
            try:
                path.rmdir()
            except OSError as error:  # another run has filled it meanwhile, or it may not be removed
                raise FileError(
                    f"{path} cannot be replaced ({error.strerror or error}): choose a folder inside it as `store=`, "
                    f"such as {path / 'kernel.zarr'}."
                ) from error
            _create(path, layout)
            path.chmod(mode)
        else:
            _create(path, layout)
    except ForetrainError:
        raise
    except OSError as error:
        raise FileError(
            f"{path} could not be written ({error.strerror or error}): choose another `store=`."
        ) from error


def _create(path: Path, layout: Layout, *, overwrite: bool = False) -> None:
    with new_folder(path, overwrite=overwrite) as folder:
        _write(folder, layout, {})
        (folder / RECORDS).mkdir()


def refuse_to_lose_files(path: Path) -> None:
    """Only what a store consists of is replaced; hidden files are the system's."""
    names = sorted(file.name for file in path.iterdir() if not file.name.startswith("."))
    foreign = [name for name in names if name not in _PARTS]
    if foreign:
        raise FileError(
            f"{path} also holds {', '.join(foreign[:3])}, which would be lost with the store: move that "
            "somewhere else, or choose another `store=`."
        )


def require_disk(path: Path, layout: Layout, finished: int) -> None:
    """Refuse what will not fit before hours are spent on it."""
    grid = layout.grid
    needed = stored_bytes(grid, layout.entry_bytes) * (1 - finished / len(grid.tiles))
    existing = next(folder for folder in [path, *path.parents] if folder.exists())
    free = shutil.disk_usage(existing).free
    if needed > _FREE_SHARE * free:
        fewer = "`outputs='trace'|--trace`, a model in float32 or " if layout.is_sum else ""
        raise FileError(
            f"the kernel of {grid.samples[0]} x {grid.samples[1]} samples needs {human_bytes(needed)} of "
            f"disk, but {existing} has {human_bytes(free)} free: make room, choose another `store=`, or ask "
            f"for {fewer}fewer samples."
        )


def is_whole(path: Path, layout: Layout) -> bool:
    """Whether all of these files are there, say the same as their consolidated copy, and fit the layout."""
    try:
        copies = _read(path / ".zmetadata")["metadata"]
        own = _same(copies[".zattrs"], attributes(path)) and ".zgroup" in copies
        alike = all(_same(_read(path / name), copy) for name, copy in copies.items())
        fitting = _same(_read(path / ARRAY / ".zarray"), _array(layout))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return own and alike and fitting and _labels_are_whole(path, layout)


def _labels_are_whole(path: Path, layout: Layout) -> bool:
    """Whether the labels of the axes can be read and are those of the layout."""
    import zarr

    try:
        group = zarr.open_group(path, mode="r")
        found = {name: np.asarray(group[name]).tolist() for name in _coordinates(layout)}
    except Exception:  # decoders have errors of their own for what is no such file
        return False
    return found == _coordinates(layout)


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
