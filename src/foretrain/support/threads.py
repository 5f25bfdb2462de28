"""Threads for work that numpy and torch do outside the interpreter lock: one pool, one core each.

Threads of torch wait for each other by spinning. Where another process needs one of the cores, every wait lasts until
that process gives it back, and a call may take twenty times as long as on one thread. So torch gets as many threads
as there are cores that nobody else is using (``on_free_cores``).
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from threadpoolctl import ThreadpoolController

from foretrain.support.progress import Progress

T = TypeVar("T")
R = TypeVar("R")

_NAME = "foretrain core"  # of the threads: they wait for nobody, so that work inside work cannot lock up
PARTS_AT_ONCE = 8  # between two looks at the progress bar
WAIT_POLICY = "OMP_WAIT_POLICY"  # "passive": threads sleep while they wait; read once, when torch is loaded
_LOOKS = 3  # at the load; their median counts, since some tasks run for a moment only
_LOOK_SECONDS = 0.2  # for which a look at the load counts
_LOAD, _OWN_TASKS = Path("/proc/loadavg"), Path("/proc/self/task")


def core_count() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_count() -> int:
    """Threads that this process may use: as many as it has cores, or fewer if OMP_NUM_THREADS says so."""
    stated = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return min(core_count(), int(stated)) if stated.isdecimal() and int(stated) else core_count()


def busy_neighbours() -> int:
    """Tasks of other processes that run or wait for a core at this moment; 0 where the system does not say."""
    try:
        running = int(_LOAD.read_text().split()[3].partition("/")[0])
        if running < 2:  # this thread alone
            return 0
        states = (
            own.joinpath("stat").read_text().rpartition(")")[2].split()[0] for own in _OWN_TASKS.iterdir()
        )
        return max(0, running - sum(state == "R" for state in states))
    except (OSError, ValueError, IndexError):
        return 0


class _FreeCores:
    """How many cores are free, looked at again when some time has passed."""

    def __init__(self) -> None:
        self._count, self._until = 1, 0.0

    def __call__(self) -> int:
        if time.monotonic() >= self._until:
            busy = sorted(busy_neighbours() for _ in range(_LOOKS))[_LOOKS // 2]
            machine = os.cpu_count() or 1
            self._count = max(1, min(core_count(), machine - busy))
            self._until = time.monotonic() + _LOOK_SECONDS
        return self._count


free_cores = _FreeCores()
_threads_before = threading.local()  # of torch in this thread, while something runs on free cores


@contextmanager
def on_free_cores() -> Iterator[None]:
    """Let torch inside have no more threads than cores are free; afterwards it has as many as before.

    Entered again inside, it looks again at what is free: long work does so between its parts. One thread that was
    asked for stays one.
    """
    torch = sys.modules["torch"]
    most = getattr(_threads_before, "count", None)
    if most is not None:
        torch.set_num_threads(min(most, free_cores()))
        yield
        return
    most = torch.get_num_threads()
    if most == 1:
        yield
        return
    _threads_before.count = most
    try:
        if (count := min(most, free_cores())) < most:
            torch.set_num_threads(count)
        yield
    finally:
        _threads_before.count = None
        torch.set_num_threads(most)


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_count(), thread_name_prefix=_NAME)


@lru_cache(maxsize=1)
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()


def over_cores(function: Callable[[T], R], parts: Sequence[T], *, uses_blas: bool = False) -> list[R]:
    """``[function(p) for p in parts]`` on all cores; inside one of its threads, on the core of that thread.

    With ``uses_blas``, matrix products inside keep to the core of their thread.
    """
    if len(parts) < 2 or threading.current_thread().name.startswith(_NAME):
        return [function(part) for part in parts]
    if not uses_blas:
        return list(_pool().map(function, parts))
    with _libraries().limit(limits=1, user_api="blas"):
        return list(_pool().map(function, parts))


@contextmanager
def one_thread_of_blas() -> Iterator[None]:
    """Let matrix products of numpy inside have one thread, where they are so small that others would only wait."""
    with _libraries().limit(limits=1, user_api="blas"):
        yield


@contextmanager
def one_thread_of_torch() -> Iterator[None]:
    """Let torch inside have one thread, for work that is handed out to all cores."""
    torch = sys.modules["torch"]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def torch_over_cores(
    function: Callable[[T], R], parts: Sequence[T], description: str, *, uses_blas: bool = False
) -> list[R]:
    """``over_cores`` for work of torch that may take long: one thread of torch each, and a progress bar."""
    found: list[R] = []
    with one_thread_of_torch(), Progress(description, total=len(parts)) as bar:
        for first in range(0, len(parts), PARTS_AT_ONCE):
            some = parts[first : first + PARTS_AT_ONCE]
            found += over_cores(function, some, uses_blas=uses_blas)
            bar.advance(len(some))
    return found


def forget_threads() -> None:
    """A forked child has none of its parent's threads: let it start its own."""
    _pool.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget_threads)
