"""The folder of a recording: made anew, gone on with, or refused; one writer at a time."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import IO, Any

from foretrain.support.errors import FileError, InputError
from foretrain.support.frame_log import Log, create, frame
from foretrain.support.store import DATA
from foretrain.training.recorder.reading import LOG, Contents, read_log

try:
    import fcntl
except ImportError:  # Windows: two processes are then not kept apart
    fcntl = None  # type: ignore[assignment]

_LOCK = ".lock"
_open_here: set[Path] = set()


class Folder:
    """A folder with its log open, what the log already says, and the lock; ``close`` gives all of them back."""

    def __init__(
        self, folder: str | Path, header: dict[str, Any], *, resume: bool, until: int | None, overwrite: bool
    ) -> None:
        self.path = Path(folder).expanduser().absolute()
        if sum((resume or until is not None, overwrite)) > 1:
            raise InputError("resume and overwrite exclude each other: give one of them.")
        self._check(resume or until is not None, overwrite)
        self._made = False
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(self.path)
        except FileError:
            raise
        except OSError as error:
            raise FileError(
                f"{self.path} cannot be written ({error.strerror or error}): choose another folder."
            ) from error
        try:
            self.contents = self._prepared(header, until, overwrite)
            self.log = Log(self.path / LOG, self.contents.end)
        except BaseException:
            self._unlock()
            raise

    def close(self) -> None:
        """Let others have it."""
        self.log.close()
        self._unlock()

    def abandon(self) -> None:
        """Close it without a trace of a recording that did not begin."""
        self.log.close()
        if self._made:
            (self.path / LOG).unlink(missing_ok=True)
        self._unlock()

    def _check(self, resume: bool, overwrite: bool) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise FileError(f"{self.path} is a file: give the name of a folder.")
        if not self.path.is_dir() or not (inside := {entry.name for entry in self.path.iterdir()} - {_LOCK}):
            return
        if LOG not in inside:
            raise FileError(f"{self.path} holds other files and no recording: choose another folder.")
        if not (resume or overwrite):
            raise FileError(
                f"{self.path} already holds a recording: choose another folder, go on with `resume=True` (or "
                "resume_from=step), or start afresh with `overwrite=True`."
            )

    def _prepared(self, header: dict[str, Any], until: int | None, overwrite: bool) -> Contents:
        # What was written at the end of an earlier run would be stale as soon as there is a new record.
        shutil.rmtree(self.path / DATA, ignore_errors=True)
        if overwrite:
            (self.path / LOG).unlink(missing_ok=True)
        if not (self.path / LOG).exists():
            create(self.path / LOG, frame(header))
            self._made = True
            return read_log(self.path)
        contents = read_log(self.path, until)
        before, now = contents.header["observables"], header["observables"]
        if set(before) != set(now):
            raise InputError(
                f"{self.path} was recorded with {', '.join(before)}, not with {', '.join(now)}: ask for the same "
                "observables, or choose another folder."
            )
        return contents

    def _unlock(self) -> None:
        _open_here.discard(self.path)
        self._lock.close()


def _locked(path: Path) -> IO[bytes]:
    """A lock that ends with the process, however that ends; forked workers do not inherit it."""
    handle = open(path / _LOCK, "wb")  # noqa: SIM115  # kept open as long as the lock
    try:
        if path in _open_here:
            raise BlockingIOError
        if fcntl is not None:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        handle.close()
        raise FileError(
            f"{path} is being written by another Recorder: close that one or choose another folder."
        ) from None
    _open_here.add(path)
    return handle
