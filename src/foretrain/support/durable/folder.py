"""The folder of a piece of work: recognised by one file, refused if it is something else, locked by its writer."""

from __future__ import annotations

import errno
import os
import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from foretrain.support.errors import FileError, ForetrainWarning
from foretrain.support.user_warnings import warn_user

try:
    import fcntl
except ImportError:  # Windows: two processes are then not kept apart
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


@dataclass(frozen=True)
class WorkFolder:
    """Where a piece of work is kept, such as a "sweep"; ``choice`` is what a user gives to name another place."""

    path: Path
    mark: str  # the file that says what the work is; without it the folder holds none
    work: str
    choice: str = "folder"

    def holds_work(self) -> bool:
        """Whether there is work to go on with; refuses anything that is not its own. Nothing is touched."""
        if self.path.exists() and not self.path.is_dir():
            raise FileError(f"{self.path} is a file: choose another {self.choice}.")
        if (self.path / self.mark).exists():
            return True
        # A process that was killed before it could begin may have left some of these.
        own = (LOCK, f".{self.mark}.")
        if self.path.is_dir() and any(not entry.name.startswith(own) for entry in self.path.iterdir()):
            raise FileError(
                f"{self.path} holds other files and no {self.work}: choose another {self.choice}."
            )
        return False

    def lock(self) -> Lock:
        """Become the only writer; the folder is made if it is not there."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(
                f"{self.path} cannot be written ({error.strerror or error}): choose another {self.choice}."
            ) from error
        return Lock(self.path, self.work, self.choice)


class Lock:
    """The right to write in a folder, for one holder at a time in all processes.

    It ends with ``release``, with a ``with`` block, with the last reference to this object, or with the process,
    however that ends. A second one for the same folder is refused, also in the same process.
    """

    def __init__(self, folder: Path, work: str, choice: str = "folder") -> None:
        try:
            descriptor = _locked_file(folder / LOCK)
        except BlockingIOError:
            raise FileError(
                f"another writer is at work on the {work} in {folder}: wait for its end or close it, or choose "
                f"another {choice}."
            ) from None
        except OSError as error:
            why = "its lock is a link" if error.errno == errno.ELOOP else error.strerror or error
            raise FileError(
                f"{folder} cannot be written ({why}): change its permissions or choose another {choice}."
            ) from error
        self.release = weakref.finalize(self, _unlock, descriptor)
        self._descriptor = descriptor
        _held.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _forget(self) -> None:
        """In a forked process, which shares the lock and must neither give it back nor outlive its parent with it."""
        if self.release.detach() is not None:
            os.close(self._descriptor)


_held: weakref.WeakSet[Lock] = weakref.WeakSet()


def _forget_all() -> None:
    for lock in list(_held):
        lock._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def _locked_file(path: Path) -> int:
    """The descriptor of a file whose lock is ours; ``BlockingIOError`` if it is not to be had."""
    # Never through a link, and never emptied: what lies there may be of somebody else.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    try:
        try:
            if fcntl is not None:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            told = f"the file system of {path.parent} knows no locks: see to it that only one process writes there."
            warn_user(told, ForetrainWarning)
        # The lock of a folder that was replaced meanwhile is worth nothing.
        if not os.path.samestat(os.fstat(descriptor), os.stat(path)):
            raise BlockingIOError
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _unlock(descriptor: int) -> None:
    if fcntl is not None:
        with suppress(OSError):  # of a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # also for processes that were forked in other ways
    os.close(descriptor)
