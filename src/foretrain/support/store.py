"""The labelled store: xarray in, a Zarr folder out, and back; readable with ``xarray.open_zarr`` alone.

A store appears under its name complete or not at all. Zarr format 2 with consolidated metadata is what xarray
reads without warnings for every type of label, text included.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from foretrain._version import __version__
from foretrain.support.atomic import new_folder, restore
from foretrain.support.errors import FileError, ForetrainError, InputError
from foretrain.support.memory import available_bytes

if TYPE_CHECKING:
    import xarray

# Attributes of the stored group by which what was saved is recognised.
_VERSION = "foretrain_version"
_KIND = "foretrain_kind"
_NAME = "foretrain_name"
_COORDINATES = "foretrain_coordinates"
_METADATA = "foretrain_metadata"
_MARKS = (_VERSION, _KIND, _NAME, _COORDINATES, _METADATA)
_VALUE = "value"  # what the only variable of a stored DataArray is called when it has no usable name
# Attribute of a store that is written tile by tile: how it is cut, and what it holds.
TILES = "foretrain_tiles"
RECORDS = ".tiles"  # its folder with a record of every tile that is finished
DATA = "data.zarr"  # where the folder of an answer on the command line holds its store
_EAGER_SHARE = 0.25  # of the available memory; larger stores stay on disk until they are used


class Labelled(Protocol):
    """A result that can be turned into a labelled dataset."""

    def to_dataset(self) -> xarray.Dataset:
        """All that it holds."""


def save(
    data: xarray.Dataset | xarray.DataArray | Labelled,
    path: str | Path,
    *,
    overwrite: bool = False,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Write labelled arrays to a folder, atomically, and return its path; by custom it ends in ``.zarr``.

    Results such as a flow or a comparison are written as the dataset that their ``to_dataset`` gives.

    ``metadata`` (anything JSON can hold) and the version of foretrain are stored beside the data;
    ``describe`` gives them back.
    """
    destination = _local(path)
    dataset = _marked(data, metadata)
    if overwrite and destination.exists() and not _is_store(destination):
        raise FileError(
            f"{destination} exists and is not a store, so it is not overwritten: choose another path."
        )
    with new_folder(destination, overwrite=overwrite) as folder:
        try:
            # Empty chunks are written too, so that a chunk that is missing later is known to be lost.
            dataset.to_zarr(folder, mode="w", zarr_format=2, consolidated=True, write_empty_chunks=True)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise InputError(
                f"these data cannot be stored as they are ({error}): convert that part first."
            ) from error
    return destination


def load(path: str | Path) -> xarray.Dataset | xarray.DataArray:
    """Read what ``save`` or ``--save`` wrote, as it was; also reads any other Zarr group, as a Dataset.

    What fits easily in memory is read now, anything larger when it is used. A kernel that was stored tile by tile
    always stays on disk: it comes in lazy chunks if dask is installed, else it is read where it is indexed. Its tiles
    must be there in full; their checksums are not looked at, as they are by ``ntk(..., store=)`` and its products.
    """
    source = _found(path)
    with _refusing_damage(source):
        dataset = _opened(source)
        if TILES in dataset.attrs:
            return _tiled(source, dataset)
        if _VERSION in dataset.attrs:
            _check_complete(source)
        if dataset.nbytes < _EAGER_SHARE * available_bytes():
            dataset = dataset.load()
        return _unmarked(dataset)


def describe(path: str | Path) -> dict[str, Any]:
    """What ``save`` recorded beside the data: ``{"version": …, "kind": …, "metadata": {…}}``."""
    source = _found(path)
    with _refusing_damage(source):
        attributes = _opened(source).attrs
        if _VERSION not in attributes:
            raise FileError(
                f"{source} was not written by foretrain.save, so it holds no record of that kind."
            )
        return {
            "version": attributes[_VERSION],
            "kind": attributes[_KIND],
            "metadata": json.loads(attributes[_METADATA]),
        }


def _local(path: str | Path) -> Path:
    if "://" in str(path):
        raise InputError(f"{path} is a remote address: save to a folder of this machine and copy that.")
    return Path(path).expanduser()


def _found(path: str | Path) -> Path:
    source = _local(path)
    restore(source)
    restore(source / DATA)
    if not source.exists():
        raise FileError(f"{source} does not exist: check the `path`.")
    if _is_store(source):
        return source
    if _is_store(source / DATA):
        return source / DATA
    if any(source.glob("*.log")):
        raise FileError(
            f"{source} is not finished, it holds a log only: run what writes it again, which goes on."
        )
    raise FileError(f"{source} is not a Zarr store: give the folder that foretrain.save or --save wrote.")


def _is_store(path: Path) -> bool:
    return path.is_dir() and any((path / name).is_file() for name in (".zgroup", ".zmetadata", "zarr.json"))


def _opened(source: Path, chunks: dict[str, int] | None = None) -> xarray.Dataset:
    """Read where it is indexed, or in lazy chunks ({}: those of the store), which need dask."""
    import xarray

    # Said explicitly, because xarray warns when it has to find out.
    consolidated = (source / ".zmetadata").is_file()
    dataset: xarray.Dataset = xarray.open_zarr(source, chunks=chunks, consolidated=consolidated)
    return dataset


def _tiled(source: Path, dataset: xarray.Dataset) -> xarray.Dataset | xarray.DataArray:
    tiles = dataset.attrs[TILES]
    rows, columns = (len(tiles[bounds]) - 1 for bounds in ("bounds_1", "bounds_2"))
    there = {record.stem for record in (source / RECORDS).glob("*.json")}
    # Of a symmetric store the tiles (i, j) with i <= j have records.
    wanted = ((i, j) for i in range(rows) for j in range(i if tiles["symmetric"] else 0, columns))
    missing = sum(f"{i}-{j}" not in there for i, j in wanted)
    if missing:
        raise FileError(
            f"{source} is not finished ({missing} tiles are missing): run what writes it again, which goes on where "
            "it ended."
        )
    for name in dataset.data_vars:
        _refuse_short_tiles(source, source / str(name), dataset[name])
    return _unmarked(_opened(source, {}) if find_spec("dask") else dataset)


def _refuse_short_tiles(source: Path, folder: Path, array: xarray.DataArray) -> None:
    """Chunks without compression have a known size; Zarr reads lost ones as empty values and stumbles over others."""
    chunks = array.encoding["chunks"]
    needed = prod(chunks) * array.dtype.itemsize
    expected = prod(-(-size // chunk) for size, chunk in zip(array.shape, chunks))
    there = os.scandir(folder) if folder.is_dir() else ()
    files = [entry for entry in there if not entry.name.startswith(".")]
    wrong = expected - sum(entry.stat().st_size == needed for entry in files)
    if wrong and array.encoding.get("compressors") in (None, ()):
        raise FileError(
            f"{source} is damaged ({wrong} of its tiles are lost or incomplete): run what writes it again, which "
            "computes them anew."
        )


def _marked(
    data: xarray.Dataset | xarray.DataArray | Labelled, metadata: Mapping[str, Any] | None
) -> xarray.Dataset:
    """The data as a Dataset that says what it was, ready to be written."""
    import xarray

    if isinstance(data, xarray.DataArray):
        name, kind = data.name, "DataArray"
        usable = isinstance(name, str) and name not in data.coords and name not in data.dims
        dataset = data.to_dataset(name=name if usable else _VALUE)
        dataset.attrs = {}
    elif isinstance(data, xarray.Dataset):
        name, kind, dataset = None, "Dataset", data.copy()
    elif hasattr(data, "to_dataset"):
        return _marked(data.to_dataset(), metadata)
    else:
        raise InputError(
            f"`data` is a {type(data).__name__}, but only an xarray Dataset or DataArray, or a result with "
            "to_dataset(), can be stored: label it first."
        )
    for label in [*dataset.variables, *dataset.dims]:
        if not isinstance(label, str) or not label or set(label) & {"/", "\\"} or label.startswith("."):
            raise InputError(
                f"{label!r} cannot name a stored array or dimension: "
                "use text without '/' and '\\\\' that does not start with '.'."
            )
    # The conventions by which xarray marks coordinates on disk have no room for names with spaces.
    spaced = [name for name in dataset.coords if " " in str(name) and name not in dataset.dims]
    dataset = dataset.reset_coords(spaced).drop_encoding()
    # Copies of all attributes are put in place of the originals, which belong to the user.
    holders: list[tuple[str, Any]] = [("the dataset", dataset)]
    holders += [(repr(key), variable) for key, variable in dataset.variables.items()]
    for where, holder in holders:
        holder.attrs = {
            key: json_safe(value, f"attribute {key!r} of {where}") for key, value in holder.attrs.items()
        }
    stored = json_safe(dict(metadata or {}), "metadata")
    marks = {
        _VERSION: __version__,
        _KIND: kind,
        _NAME: json_safe(name, "the name"),
        _COORDINATES: spaced,
        _METADATA: json.dumps(stored),
    }
    dataset.attrs = dataset.attrs | marks
    return dataset


def _unmarked(dataset: xarray.Dataset) -> xarray.Dataset | xarray.DataArray:
    marks = {mark: dataset.attrs.pop(mark, None) for mark in _MARKS}
    dataset = dataset.set_coords(marks[_COORDINATES] or [])
    if marks[_KIND] != "DataArray":
        return dataset
    (variable,) = dataset.data_vars
    return dataset[variable].rename(marks[_NAME])


def json_safe(value: Any, what: str) -> Any:
    """The value with numpy's types replaced by Python's, or an error that names what JSON cannot hold."""
    if isinstance(value, np.generic | np.ndarray):
        return json_safe(value.tolist(), what)
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise InputError(f"{what} has keys that are not text: turn them into text before saving.")
        return {key: json_safe(item, f"{what} at {key!r}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(item, what) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InputError(
        f"{what} is a {type(value).__name__}, which a store cannot hold: "
        "turn it into a number, text or a list."
    )


def _check_complete(source: Path) -> None:
    """Zarr reads a lost chunk as empty values; here it is an error."""
    import zarr

    for name, array in zarr.open_group(source, mode="r").arrays():
        if array.nchunks_initialized != array.nchunks:
            raise FileError(
                f"{source} is damaged (array {name!r} has lost parts of its data): "
                "restore it or compute it again."
            )


@contextmanager
def _refusing_damage(source: Path) -> Iterator[None]:
    try:
        yield
    except (ForetrainError, MemoryError):
        raise
    # Damage shows as whatever the JSON parser, the codecs, zarr or xarray stumble over.
    except Exception as error:
        raise FileError(
            f"{source} is damaged or not readable ({type(error).__name__}: {error}): "
            "restore it or compute it again."
        ) from error
