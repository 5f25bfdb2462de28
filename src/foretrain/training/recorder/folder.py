"""The folder of a recording: what it holds is read first, and the first frame that is written changes it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from foretrain.support.atomic import new_file
from foretrain.support.durable import Lock, Log, WorkFolder, frame
from foretrain.support.errors import FileError, InputError
from foretrain.support.store import DATA
from foretrain.training.recorder.reading import LOG, Contents, read_log


class Folder:
    """A recording that is begun or gone on with by the first ``append``; until then nothing is touched.

    ``contents`` is what stays of an earlier recording: up to the step ``until``, or nothing if it is overwritten.
    """

    def __init__(
        self, folder: str | Path, header: dict[str, Any], *, resume: bool, until: int | None, overwrite: bool
    ) -> None:
        self.path = Path(folder).expanduser().absolute()
        resume = resume or until is not None
        if resume and overwrite:
            raise InputError("resume and overwrite exclude each other: give one of them.")
        self._place = WorkFolder(self.path, LOG, "recording")
        self._header = header
        self.contents = Contents(header)
        self._log: Log | None = None
        self._lock: Lock | None = None
        if not self._holds_recording(allowed=resume or overwrite):
            return
        self._lock = self._place.lock()
        try:
            if resume:
                self.contents = read_log(self.path, until)
                self._refuse_to_go_on()
        except BaseException:
            self._lock.release()
            raise

    @property
    def is_taken(self) -> bool:
        """Whether an earlier recording is gone on with or replaced, before the first frame is written."""
        return self._lock is not None and self._log is None

    def append(self, data: bytes) -> None:
        """Write frames and wait until they are on disk; the first ones begin the recording."""
        if self._log is not None:
            self._log.append(data)
            return
        if self._lock is None:
            self._lock = self._place.lock()
            self._holds_recording(allowed=False)  # another one may have been faster
        path, end = self.path / LOG, self.contents.end
        if end and not self.contents.forgotten:
            self._log = Log(path, end)
            self._log.append(data)
        else:
            whole = (path.read_bytes()[:end] if end else frame(self._header)) + data
            with new_file(path, overwrite=True) as successor:
                successor.write_bytes(whole)
            self._log = Log(path, len(whole))
        # What an earlier run wrote at its end is stale now that the new record is there, and not before.
        shutil.rmtree(self.path / DATA, ignore_errors=True)

    def close(self) -> None:
        """Let others have it."""
        if self._log is not None:
            self._log.close()
        if self._lock is not None:
            self._lock.release()

    def _holds_recording(self, *, allowed: bool) -> bool:
        found = self._place.holds_work()
        if found and not allowed:
            raise FileError(
                f"{self.path} already holds a recording: choose another folder, go on with `resume=True` (or "
                "resume_from=step), or start afresh with `overwrite=True`."
            )
        return found

    def _refuse_to_go_on(self) -> None:
        if self.contents.damaged and (self.path / DATA).exists():
            raise FileError(
                f"{self.path / LOG} is damaged, and {DATA} beside it may hold what is lost there: move {DATA} away, "
                "which `ft.load` reads, before you go on."
            )
        before, now = self.contents.header["observables"], self._header["observables"]
        if set(before) != set(now):
            raise InputError(
                f"{self.path} was recorded with {', '.join(before)}, not with {', '.join(now)}: ask for the same "
                "observables, or choose another folder."
            )
