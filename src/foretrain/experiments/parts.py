"""Parts of a long experiment: each is kept as soon as it is finished, so that an interruption costs one part.

>>> parts = Parts()                                         # nothing is kept
>>> trained = parts.get("gain 1.5", lambda: train(1.5))     # a labelled dataset, computed or read back
"""

from __future__ import annotations

import json
import re
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING

from foretrain._version import __version__
from foretrain.support.errors import FileError

if TYPE_CHECKING:
    import xarray

_SAYS, _LOCK = "experiment.json", ".lock"


class Parts:
    """Where the finished parts of one run of an experiment are kept.

    ``folder`` is made if it is not there; ``identity`` says what runs (name, scale, seed), and a folder that
    belongs to something else, or in which another process is at work, is refused. Without a folder every part is
    computed and nothing is kept.
    """

    def __init__(
        self, folder: str | Path | None = None, identity: Mapping[str, str | int] | None = None
    ) -> None:
        self._folder = None if folder is None else Path(folder).expanduser()
        self._lock: _Lock | None = None
        if self._folder is not None:
            _refuse_foreign(self._folder)
            self._lock = _lock_of(self._folder)  # first: of two that find a new folder one may claim it
            _claim(self._folder, {"version": __version__, **(identity or {})})

    def get(self, name: str, compute: Callable[[], xarray.Dataset]) -> xarray.Dataset:
        """The part of this name: read back if it was finished before, else computed now and kept."""
        if self._folder is None:
            return compute()
        import xarray

        from foretrain.support.store import load, save

        path = self._folder / f"{re.sub(r'[^A-Za-z0-9.+-]+', '_', name)}.zarr"
        if not path.exists():
            save(compute(), path)
        found = load(path)
        if not isinstance(found, xarray.Dataset):
            raise FileError(f"{path} holds no finished part of an experiment: remove it and run again.")
        return found

    def close(self) -> None:
        """Let other processes work in the folder; the end of this one does so too."""
        self._lock = None


def _refuse_foreign(folder: Path) -> None:
    """Raise if the folder holds files and none of them says that it is of a run."""
    if folder.exists() and not folder.is_dir():
        raise FileError(f"{folder} is not a folder: choose another place for the finished parts.")
    if folder.is_dir() and not (folder / _SAYS).exists():
        # A process that was killed before it could claim the folder may have left these.
        own = (_LOCK, f".{_SAYS}.")
        if any(not path.name.startswith(own) for path in folder.iterdir()):
            raise FileError(
                f"{folder} holds other files: choose a new or empty folder for the finished parts."
            )


def _claim(folder: Path, identity: Mapping[str, str | int]) -> None:
    """Mark a new folder as belonging to a run, or check that it belongs to this one."""
    from foretrain.support.atomic import new_file

    label = folder / _SAYS
    if not label.exists():
        with new_file(label) as path:
            path.write_text(json.dumps(dict(identity), default=int), encoding="utf-8")
        return
    try:
        there = dict(json.loads(label.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise FileError(f"{label} is damaged: remove the folder and run again.") from error
    if there != dict(identity):
        told = ", ".join(f"{key} {value}" for key, value in there.items())
        raise FileError(f"{folder} keeps parts of another run ({told}): choose another folder.")


class _Lock:
    """An open file whose lock makes this process the only one in its folder, as long as somebody refers to it."""

    def __init__(self, file: IO[str]) -> None:
        weakref.finalize(self, file.close)


_LOCKS: weakref.WeakValueDictionary[Path, _Lock] = weakref.WeakValueDictionary()  # of this process


def _lock_of(folder: Path) -> _Lock:
    from foretrain.support.processes import lock

    place = (folder / _LOCK).resolve()
    held = _LOCKS.get(place)
    if held is not None:
        return held
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = place.open("w", encoding="utf-8")
    except OSError as error:
        raise FileError(
            f"{folder} cannot be written to ({error.strerror}): choose another place for the finished parts."
        ) from error
    if not lock(file):
        file.close()
        raise FileError(f"another process is at work in {folder}: wait for it, or choose another folder.")
    return _LOCKS.setdefault(place, _Lock(file))
