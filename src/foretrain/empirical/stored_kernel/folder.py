"""The folder of a stored kernel: a Zarr group whose chunks are tiles, with a record of every tile that is finished.

A tile's files are written under a run's own folder and renamed, its record comes last. So a tile is there whole or
not at all, and what a run that is over still tries to write has nowhere to go.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import uuid
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrain.empirical.stored_kernel.grid import Grid, Tile
from foretrain.support.atomic import new_folder, restore
from foretrain.support.errors import FileError, ForetrainError
from foretrain.support.progress import track
from foretrain.support.store import RECORDS, TILES, save

ARRAY = "kernel"
_RUNS = ".run"  # what only a run that goes on needs
_LOCK = ".lock"
_ASIDE = (
    ".aside.json"  # parameters that all workers must treat in another way, because some samples ask for it
)
_READERS = 2  # threads that verify checksums
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


class RunIsOverError(Exception):
    """The run that a worker belongs to was stopped, or another one took its place."""


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
        grid = self.grid
        return {
            "format": 1,
            "symmetric": grid.symmetric,
            "samples": list(grid.samples),
            "bounds_1": grid.bounds(0),
            "bounds_2": grid.bounds(1),
            "outputs": list(self.outputs),
            "trace": self.trace,
            "labels": None if self.labels is None else list(self.labels),
            "by": self.by,
            "dtype": self.dtype,
            "threads": self.threads,
            "fingerprint": dict(self.fingerprint),
            "model": self.model,
            "routes": dict(self.routes),
        }

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> Layout:
        """As it was when the store was created."""
        sides = found["bounds_1"][1], found["bounds_2"][1]
        return Layout(
            Grid(tuple(found["samples"]), sides, found["symmetric"]),
            tuple(found["outputs"]),
            found["trace"],
            found["by"],
            None if found["labels"] is None else tuple(found["labels"]),
            found["dtype"],
            found["threads"],
            found["fingerprint"],
            found["model"],
            found["routes"],
        )


def create(path: Path, layout: Layout, *, overwrite: bool = False) -> None:
    """A store without tiles, which appears complete."""
    import xarray as xr
    import zarr

    coordinates: dict[str, Any] = {} if layout.by is None else {layout.by: list(layout.labels or ())}
    if not layout.trace:
        coordinates |= {name: list(layout.outputs) for name in ("output_1", "output_2")}
    nothing = np.empty(layout.around((0, 0)), layout.dtype)
    with new_folder(path, overwrite=overwrite) as folder:
        inner = save(
            xr.DataArray(nothing, dims=layout.dims, coords=coordinates, name=ARRAY), folder / "new.zarr"
        )
        for part in inner.iterdir():
            part.rename(folder / part.name)
        inner.rmdir()
        (folder / ARRAY / ".zarray").write_text(json.dumps(_array(layout), indent=1), encoding="utf-8")
        attributes = json.loads((folder / ".zattrs").read_text(encoding="utf-8"))
        attributes[TILES] = layout.to_json()
        (folder / ".zattrs").write_text(json.dumps(attributes, indent=1), encoding="utf-8")
        zarr.consolidate_metadata(folder, zarr_format=2)
        (folder / RECORDS).mkdir()


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


def is_stored_kernel(path: Path) -> bool:
    """Whether a folder was created by ``create``."""
    try:
        return TILES in json.loads((path / ".zattrs").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False


@contextmanager
def clear_errors(path: Path) -> Iterator[None]:
    """What the system says of a disk, in one sentence with a way out; what is finished stays valid."""
    try:
        yield
    except ForetrainError:
        raise
    except OSError as error:
        if error.errno in _FULL:
            said = "the disk is full: make room and run the same again, which goes on where it ended"
        elif error.errno in _FORBIDDEN:
            said = "writing there is not allowed: change the permissions or choose another store="
        elif not path.is_dir():
            said = "the folder was removed while it was written: run the same again to start anew"
        else:
            said = (
                f"{error.strerror or error}: mend that and run the same again, which goes on where it ended"
            )
        raise FileError(f"tiles of {path} could not be written, {said}.") from error


@dataclass(frozen=True)
class Folder:
    """An existing store."""

    path: Path

    @cached_property
    def layout(self) -> Layout:
        """What was fixed when it was created."""
        restore(self.path)
        try:
            attributes = json.loads((self.path / ".zattrs").read_text(encoding="utf-8"))
            return Layout.from_json(attributes[TILES])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FileError(
                f"{self.path} is no stored kernel, or a damaged one ({type(error).__name__}: {error}): "
                "choose another store=."
            ) from error

    def recorded(self) -> set[Tile]:
        """Tiles that have a record."""
        wanted = set(self.layout.grid.tiles)
        found = {_tile(name) for name in os.listdir(self.path / RECORDS)}
        return {tile for tile in found if tile in wanted}

    def record_path(self, tile: Tile) -> Path:
        """The file whose presence says that a tile is finished."""
        return self.path / RECORDS / f"{tile[0]}-{tile[1]}.json"

    def record(self, tile: Tile) -> dict[str, Any]:
        """What was noted of a tile when it was finished."""
        found: dict[str, Any] = json.loads(self.record_path(tile).read_text(encoding="utf-8"))
        return found

    def forget(self, tiles: Iterable[Tile]) -> None:
        """Let tiles be computed again."""
        for tile in tiles:
            self.record_path(tile).unlink(missing_ok=True)

    def damaged(self, tiles: Collection[Tile]) -> list[Tile]:
        """Tiles whose files do not have the checksums of their records."""
        with ThreadPoolExecutor(_READERS) as pool:
            intact = pool.map(self._is_intact, tiles)
            checked = track(zip(tiles, intact), "checksums", total=len(tiles))
            return [tile for tile, whole in checked if not whole]

    def touched(self, tiles: Iterable[Tile]) -> list[Tile]:
        """Tiles whose files are not as a run left them: missing, of another size, or newer than their record."""
        return [tile for tile in tiles if not self._is_untouched(tile)]

    def files(self, tile: Tile) -> list[Path]:
        """The file of a tile, and that of its mirror image."""
        mirror = self.layout.grid.symmetric and tile[0] != tile[1]
        return [self.file(tile), *([self.file((tile[1], tile[0]))] if mirror else [])]

    def file(self, tile: Tile) -> Path:
        """The file of one chunk."""
        layout = self.layout
        first = () if layout.labels is None else (0,)
        last = () if layout.trace else (0, 0)
        return self.path / ARRAY / ".".join(map(str, (*first, *tile, *last)))

    @property
    def file_bytes(self) -> int:
        """The size of every file with a tile."""
        sides = self.layout.grid.sides
        return sides[0] * sides[1] * self.layout.entry_bytes

    def aside(self) -> dict[str, list[str]]:
        """Parameters that all workers treat in another way than a few samples suggest."""
        try:
            found: dict[str, list[str]] = json.loads((self.path / _ASIDE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {"unreadable": [], "by_gradient": []}
        return found

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Only one run writes to a store; the system takes the lock back however a run ends."""
        with clear_errors(self.path), (self.path / _LOCK).open("ab") as file:
            _lock(file.fileno(), self.path)
            yield

    def begin(self) -> Run:
        """A run of its own; whatever an earlier one left is removed."""
        shutil.rmtree(self.path / _RUNS, ignore_errors=True)
        run = Run(self, uuid.uuid4().hex)
        run.claims.mkdir(parents=True)
        return run

    def _is_intact(self, tile: Tile) -> bool:
        try:
            return bool([_checksum(file) for file in self.files(tile)] == self.record(tile)["crc"])
        except (OSError, ValueError, KeyError):
            return False

    def _is_untouched(self, tile: Tile) -> bool:
        try:
            written = self.record_path(tile).stat().st_mtime_ns
            found = [file.stat() for file in self.files(tile)]
            readable = "crc" in self.record(tile)
        except (OSError, ValueError):
            return False
        return readable and all(
            file.st_size == self.file_bytes and file.st_mtime_ns <= written for file in found
        )


@dataclass(frozen=True)
class Run:
    """The files of a run that goes on, under a name that no other run has."""

    folder: Folder
    token: str

    @property
    def place(self) -> Path:
        """Where files are written before they are renamed."""
        return self.folder.path / _RUNS / self.token

    @property
    def claims(self) -> Path:
        """Names of parts of the work that a worker has taken."""
        return self.place / "claims"

    @property
    def goes_on(self) -> bool:
        """Whether workers shall continue."""
        return self.claims.is_dir()

    def require_going_on(self) -> None:
        """Workers ask before every tile."""
        if not self.goes_on:
            raise self._ended()

    def stop(self) -> None:
        """Let all workers stop before their next tile."""
        shutil.rmtree(self.place, ignore_errors=True)
        with_nothing = self.folder.path / _RUNS
        if with_nothing.is_dir() and not any(with_nothing.iterdir()):
            with_nothing.rmdir()

    def claim(self, name: str) -> bool:
        """Whether this worker is the first to take a part of the work."""
        try:
            os.close(os.open(self.claims / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        except FileNotFoundError:
            raise self._ended() from None
        return True

    def write(self, tile: Tile, images: Sequence[NDArray[Any]]) -> list[int]:
        """Files of a tile and its mirror image; gives their checksums, for the record that makes them count."""
        layout = self.folder.layout
        checksums = []
        for path, image in zip(self.folder.files(tile), images, strict=True):
            content = _padded(image, layout.around(layout.grid.sides)).reshape(-1).view(np.uint8).data
            self._replace(path, content)
            checksums.append(zlib.crc32(content))
        return checksums

    def finish(self, tile: Tile, record: Mapping[str, Any]) -> None:
        """From now on the tile is there."""
        self._replace(self.folder.record_path(tile), json.dumps(record).encode())

    def set_aside(self, unreadable: Iterable[str], by_gradient: Iterable[str]) -> None:
        """Tell all workers how to treat parameters; tiles that were found otherwise are computed again."""
        self.folder.forget(self.folder.recorded())
        said = {"unreadable": sorted(unreadable), "by_gradient": sorted(by_gradient)}
        self._replace(self.folder.path / _ASIDE, json.dumps(said).encode())

    def _replace(self, destination: Path, content: bytes | memoryview) -> None:
        partial = self.place / uuid.uuid4().hex
        try:
            with partial.open("wb", buffering=0) as file:
                _write_all(file.fileno(), content)
                os.fsync(file.fileno())
            os.replace(partial, destination)
        except FileNotFoundError:
            raise self._ended() from None
        except OSError:
            partial.unlink(missing_ok=True)
            raise

    def _ended(self) -> Exception:
        """Why the folder of the run is not there."""
        if is_stored_kernel(self.folder.path):
            return RunIsOverError()
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.folder.path))


def _write_all(descriptor: int, content: bytes | memoryview) -> None:
    """A system may write less than it was given."""
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]


def _padded(image: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """All chunks of a Zarr array have the same size."""
    if image.shape == shape:
        return np.ascontiguousarray(image)
    whole = np.full(shape, np.nan, image.dtype)
    whole[tuple(slice(0, size) for size in image.shape)] = image
    return whole


def _checksum(path: Path) -> int:
    found = 0
    with path.open("rb", buffering=0) as file:
        while block := file.read(1 << 22):
            found = zlib.crc32(block, found)
    return found


def _tile(name: str) -> Tile | None:
    """The tile whose record has that name."""
    first, _, second = name.removesuffix(".json").partition("-")
    return (
        (int(first), int(second)) if name.endswith(".json") and first.isdigit() and second.isdigit() else None
    )


def _lock(descriptor: int, path: Path) -> None:
    """Where the file system knows no locks, two runs at once still end in valid tiles: the later one goes on."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FileError(
            f"another run is writing to {path} right now: wait for it to end, or choose another store=."
        ) from None
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL):
            raise
