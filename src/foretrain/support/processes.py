"""What processes of one piece of work owe each other: a worker ends with its parent, a folder has one writer."""

from __future__ import annotations

import os
import threading
import time
from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows: two processes are then not kept apart
    fcntl = None  # type: ignore[assignment]

_WATCH_SECONDS = 0.5
_watched: set[int] = set()  # processes with which this one ends


def end_with(parent: int) -> None:
    """A process that a run started does not outlive it, since a kill leaves no time to tell it.

    On Windows a worker ends when it has been idle for a while.
    """
    if os.name != "nt" and parent not in _watched and os.getpid() != parent:
        _watched.add(parent)
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_WATCH_SECONDS)
    os._exit(1)


def lock(file: IO[Any]) -> bool:
    """Whether the lock of an open file is ours now; the system takes it back however the process ends."""
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
