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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrain.empirical.stored_kernel.grid import Tile
from foretrain.empirical.stored_kernel.identity import FORMAT
from foretrain.empirical.stored_kernel.layout import ARRAY, RUNS, Layout, attributes, is_stored_kernel
from foretrain.support.atomic import restore
from foretrain.support.durable import Lock
from foretrain.support.durable.log import write_all
from foretrain.support.errors import FileError, ForetrainError
from foretrain.support.progress import track
from foretrain.support.store import RECORDS, TILES

# Parameters that all workers must treat in another way, because some samples ask for it.
_ASIDE = ".aside.json"
_READERS = 2  # threads that verify checksums
_NOTED = {"crc", "squares", "seconds"}  # in every record
_NOTED_ON_DIAGONAL = {"diagonal", "layers"}
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


# Files that this process found intact, by all that would change with their content: they are read once for that.
_intact: set[int] = set()


class RunIsOverError(Exception):
    """The run that a worker belongs to was stopped, or another one took its place."""


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
        if not self.path.exists():
            raise FileError(f"{self.path} does not exist: check the path.")
        found = (attributes(self.path) or {}).get(TILES)
        if found is None:
            raise FileError(f"{self.path} is no stored kernel: give a folder that was written with `store=`.")
        if found.get("format") != FORMAT:
            raise FileError(
                f"{self.path} is a store in format {found.get('format')!r}, but this version of foretrain has format "
                f"{FORMAT}: choose another `store=`, or pass `overwrite=True` to replace it."
            )
        try:
            return Layout.from_json(found)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise FileError(
                f"{self.path} is a damaged store ({type(error).__name__}: {error}): choose another `store=`, or pass "
                "`overwrite=True` to replace it."
            ) from error

    def recorded(self) -> set[Tile]:
        """Tiles that have a record."""
        try:
            names = os.listdir(self.path / RECORDS)
        except FileNotFoundError:
            return set()
        return {self._by_record[name] for name in names if name in self._by_record}

    @cached_property
    def _by_record(self) -> dict[str, Tile]:
        return {self.record_path(tile).name: tile for tile in self.layout.grid.tiles}

    def record_path(self, tile: Tile) -> Path:
        """The file whose presence says that a tile is finished."""
        return self.path / RECORDS / f"{tile[0]}-{tile[1]}.json"

    def record(self, tile: Tile) -> dict[str, Any]:
        """What was noted of a tile when it was finished."""
        needed = _NOTED | (_NOTED_ON_DIAGONAL if self.layout.grid.on_diagonal(tile) else set())
        try:
            found = json.loads(self.record_path(tile).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise self.damage(tile) from error
        if not isinstance(found, dict) or not needed <= found.keys():
            raise self.damage(tile)
        return found

    def damage(self, tile: Tile) -> FileError:
        """What to say of a tile that cannot be used."""
        return FileError(
            f"tile {tile[0]}-{tile[1]} of {self.path} is damaged or lost: run the same "
            f"{self.layout.call} again, which computes it anew."
        )

    def require_intact(self, place: Tile) -> None:
        """Refuse the file at a place of the grid unless it has its checksum; this process reads it once for that."""
        mirrored = self.layout.grid.symmetric and place[0] > place[1]
        tile = (place[1], place[0]) if mirrored else place
        try:
            intact = _has_checksum(self.file(place), self.record(tile)["crc"][int(mirrored)])
        except (OSError, TypeError, LookupError) as error:
            raise self.damage(tile) from error
        if not intact:
            raise self.damage(tile)

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

    def files(self, tile: Tile) -> list[Path]:
        """The file of a tile, and that of its mirror image."""
        places = [tile, tile[::-1]] if self.layout.grid.symmetric and tile[0] != tile[1] else [tile]
        return [self.file(place) for place in places]

    def file(self, tile: Tile) -> Path:
        """The file of one chunk."""
        layout = self.layout
        first = () if layout.labels is None else (0,)
        last = () if layout.trace else (0, 0)
        return self.path / ARRAY / ".".join(map(str, (*first, *tile, *last)))

    def aside(self) -> dict[str, list[str]]:
        """Parameters that all workers treat in another way than a few samples suggest."""
        try:
            found: dict[str, list[str]] = json.loads((self.path / _ASIDE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {"unreadable": [], "by_gradient": []}
        return found

    def lock(self) -> Lock:
        """Only one run writes to a store."""
        return Lock(self.path, "kernel", "`store=`")

    def remove_old_runs(self) -> None:
        """What runs that were killed left of model and data; nothing if another run is at work."""
        if (self.path / RUNS).exists():
            with suppress(FileError), self.lock():
                shutil.rmtree(self.path / RUNS, ignore_errors=True)

    def begin(self) -> Run:
        """A run of its own; whatever an earlier one left is removed."""
        shutil.rmtree(self.path / RUNS, ignore_errors=True)
        run = Run(self, uuid.uuid4().hex)
        run.claims.mkdir(parents=True)
        return run

    def _is_intact(self, tile: Tile) -> bool:
        try:
            files, checksums = self.files(tile), self.record(tile)["crc"]
            return len(files) == len(checksums) and all(map(_has_checksum, files, checksums))
        except (OSError, TypeError):
            return False


@dataclass(frozen=True)
class Run:
    """The files of a run that goes on, under a name that no other run has."""

    folder: Folder
    token: str

    @property
    def place(self) -> Path:
        """Where files are written before they are renamed."""
        return self.folder.path / RUNS / self.token

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
        with suppress(OSError):  # another run has files there, or it is gone
            (self.folder.path / RUNS).rmdir()

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
            whole = np.ascontiguousarray(image)
            if image.shape != layout.around(
                layout.grid.sides
            ):  # all chunks of a Zarr array have the same size
                whole = np.full(layout.around(layout.grid.sides), np.nan, image.dtype)
                whole[tuple(slice(0, size) for size in image.shape)] = image
            content = whole.reshape(-1).view(np.uint8).data
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
                write_all(file.fileno(), content)
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


def _has_checksum(path: Path, expected: int) -> bool:
    found = path.stat()
    mark = hash((found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, expected))
    if mark not in _intact:
        checksum = 0
        with path.open("rb", buffering=0) as file:
            while block := file.read(1 << 22):
                checksum = zlib.crc32(block, checksum)
        if checksum != expected:
            return False
        _intact.add(mark)
    return True
