"""Parts of a long experiment: each is kept as soon as it is finished, so that an interruption costs one part.

>>> parts = Parts()                                         # nothing is kept
>>> trained = parts.get("gain 1.5", lambda: train(1.5))     # a labelled dataset, computed or read back
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from foretrain._version import __version__
from foretrain.support.durable.folder import Lock, WorkFolder
from foretrain.support.errors import FileError

if TYPE_CHECKING:
    import xarray

_IDENTITY = "experiment.json"


class Parts:
    """Where the finished parts of one run of an experiment are kept.

    ``folder`` is made if it is not there; ``identity`` says what runs (name, scale, seed), and a folder that
    belongs to something else, or in which another run is at work, is refused. Without a folder every part is
    computed and nothing is kept.
    """

    def __init__(
        self, folder: str | Path | None = None, identity: Mapping[str, str | int] | None = None
    ) -> None:
        self._folder = None if folder is None else Path(folder).expanduser()
        self._lock: Lock | None = None
        if self._folder is None:
            return
        place = WorkFolder(self._folder, _IDENTITY, "run of an experiment")
        wanted = {"version": __version__, **(identity or {})}
        if place.holds_work():
            _refuse_another_run(self._folder, wanted)
        self._lock = place.lock()
        # Of two that find a new folder the one with the lock claims it.
        if place.holds_work():
            _refuse_another_run(self._folder, wanted)
        else:
            from foretrain.support.atomic import new_file

            with new_file(self._folder / _IDENTITY) as path:
                path.write_text(json.dumps(wanted, default=int), encoding="utf-8")

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
        """Let others work in the folder; the end of this process does so too."""
        if self._lock is not None:
            self._lock.release()


def _refuse_another_run(folder: Path, wanted: Mapping[str, str | int]) -> None:
    path = folder / _IDENTITY
    try:
        there = dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise FileError(f"{path} is damaged: remove the folder and run again.") from error
    if there != wanted:
        told = ", ".join(f"{key} {value}" for key, value in there.items())
        raise FileError(f"{folder} keeps parts of another run ({told}): choose another folder.")
