"""Files and folders that appear under their name complete or not at all.

The new content is written next to its destination, under a hidden name that says which process writes it, and
then renamed. What a killed process left behind is removed by the next writer to the same destination.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from foretrain.support.errors import FileError

_PARTIAL, _REPLACED = "partial", "replaced"


@contextmanager
def new_folder(destination: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A folder to fill; when the block ends well it gets its name, otherwise nothing remains of it."""
    with _neighbour(destination, overwrite=overwrite) as partial:
        partial.mkdir()
        yield partial
        for path in partial.rglob("*"):
            _flush(path)
        _flush(partial)
        if overwrite and destination.exists():
            replace_folder(partial, destination)
        else:
            partial.rename(destination)


@contextmanager
def new_file(destination: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A path to write a file to; the file gets its name when the block ends well."""
    if destination.is_dir():
        raise FileError(f"{destination} is a folder: choose the name of a file.")
    with _neighbour(destination, overwrite=overwrite) as partial:
        yield partial
        _flush(partial)
        os.replace(partial, destination)


def refuse_existing(destination: Path, *, overwrite: bool = False) -> None:
    """Raise if the destination is taken; long jobs ask before they start."""
    restore(destination)
    if destination.exists() and not overwrite:
        raise FileError(f"{destination} already exists: choose another path or allow overwriting.")


def restore(destination: Path) -> None:
    """Put back a folder that was being replaced when the process died between the two renames."""
    if destination.exists():
        return
    for leftover in _leftovers(destination, _REPLACED):
        leftover.rename(destination)
        return


@contextmanager
def _neighbour(destination: Path, *, overwrite: bool) -> Iterator[Path]:
    """A hidden path in the destination's folder; whatever is there when the block ends is removed."""
    refuse_existing(destination, overwrite=overwrite)
    path = _hidden(destination, _PARTIAL)
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        for leftover in [*_leftovers(destination, _PARTIAL), *_leftovers(destination, _REPLACED)]:
            _remove(leftover)
        yield path
        _flush(destination.parent)
    except FileError:
        raise
    except OSError as error:
        refuse_existing(destination, overwrite=overwrite)  # another process was faster
        raise FileError(
            f"{destination} could not be written ({error.strerror or error}): "
            "make room or choose another path."
        ) from error
    finally:
        _remove(path)


def _hidden(destination: Path, state: str) -> Path:
    """A name no pattern for results matches: it starts with a dot and does not keep the suffix."""
    process = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    return destination.with_name(f".{destination.name}.{state}-{process}")


def _leftovers(destination: Path, state: str) -> list[Path]:
    """Hidden paths of this destination whose process, on this machine, is no longer alive."""
    import psutil

    start, host = re.escape(f".{destination.name}.{state}-"), re.escape(socket.gethostname())
    pattern = re.compile(rf"{start}{host}-(?P<process>\d+)-[0-9a-f]{{8}}")
    if not destination.parent.is_dir():
        return []
    found = [(path, pattern.fullmatch(path.name)) for path in destination.parent.iterdir()]
    return [path for path, match in found if match and not psutil.pid_exists(int(match["process"]))]


def replace_folder(partial: Path, destination: Path) -> None:
    """Let a whole folder take the place of another one beside it; whenever this is killed, one of them is found."""
    replaced = _hidden(destination, _REPLACED)
    destination.rename(replaced)
    try:
        partial.rename(destination)
    except OSError:
        replaced.rename(destination)
        raise
    _remove(replaced)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    elif path.parent.is_dir():  # under something that is no folder there is nothing to remove
        path.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Ask the system to put a file or folder on disk before it is renamed."""
    if os.name == "nt" and path.is_dir():  # folders cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
