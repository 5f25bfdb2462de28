"""One point computed, in whatever process: on one thread, so that its bits do not depend on the engine."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from foretrain.experiments.sweep.answers import labelled, packed
from foretrain.support.errors import ForetrainError
from foretrain.support.processes import end_with

_THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class Task:
    """All that a worker must know of a point."""

    key: str
    function: Callable[..., Any]
    arguments: dict[str, Any]
    parent: int | None = None  # the process to end with, on this machine


@dataclass(frozen=True)
class Outcome:
    """What became of a point: an entry for the log with the bytes behind it, or why there is none."""

    key: str
    seconds: float
    entry: dict[str, Any] | None = None
    body: bytes = b""
    error: str = ""
    warnings: tuple[str, ...] = ()


def evaluate(task: Task) -> Outcome:
    """Whatever a point raises is an outcome too: the others go on."""
    if task.parent is not None:
        end_with(task.parent)
    start = time.perf_counter()
    try:
        with _one_thread(), _heard() as told:
            found = labelled(task.function(**task.arguments), task.arguments)
        entry, body = packed(found)
    except Exception as error:
        return Outcome(task.key, time.perf_counter() - start, error=_words(error))
    heard = tuple(dict.fromkeys(" ".join(str(item.message).split()) for item in told if _matters(item)))
    return Outcome(task.key, time.perf_counter() - start, entry, body, warnings=heard)


def _words(error: Exception) -> str:
    """In one line; what nobody raised on purpose says where it happened."""
    said = " ".join(str(error).split())
    if isinstance(error, ForetrainError):
        return said
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {said} ({os.path.basename(last.filename)}, line {last.lineno})"


@contextmanager
def _heard() -> Iterator[list[warnings.WarningMessage]]:
    """Warnings, for the log; where other threads are at work they go where they always go."""
    if threading.current_thread() is not threading.main_thread():
        yield []
        return
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        yield told


def _matters(item: warnings.WarningMessage) -> bool:
    return issubclass(item.category, UserWarning | RuntimeWarning)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums over several threads depend on how many there are; torch counts them for each calling thread."""
    torch: Any = sys.modules.get("torch")
    loaded = hasattr(torch, "set_num_threads")
    before = torch.get_num_threads() if loaded else None
    with _process:
        if loaded:
            torch.set_num_threads(1)
        try:
            yield
        finally:
            if loaded:
                torch.set_num_threads(before)


class _Process:
    """numpy's threads are those of the process: the first point at work limits them, the last one gives them back.

    torch, where a point is the first to import it, reads the environment.
    """

    def __init__(self) -> None:
        self._lock, self._users, self._limit = threading.Lock(), 0, ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                self._limit.enter_context(_limited())
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._limit.close()


@contextmanager
def _limited() -> Iterator[None]:
    import scipy.linalg  # noqa: F401  # brings a BLAS of its own, which must be there to be limited
    from threadpoolctl import threadpool_limits

    before = os.environ.get(_THREADS)
    os.environ[_THREADS] = "1"
    try:
        with threadpool_limits(1):
            yield
    finally:
        del os.environ[_THREADS]
        if before is not None:
            os.environ[_THREADS] = before


_process = _Process()
