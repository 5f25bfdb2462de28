"""Threads for work that numpy and torch do outside the interpreter lock: one pool, one core each."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

from threadpoolctl import ThreadpoolController

from foretrain.support.progress import Progress

T = TypeVar("T")
R = TypeVar("R")

_NAME = "foretrain core"  # of the threads: they wait for nobody, so that work inside work cannot lock up
PARTS_AT_ONCE = 8  # between two looks at the progress bar


def core_count() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_count() -> int:
    """Threads that this process may use: as many as it has cores, or fewer if OMP_NUM_THREADS says so."""
    stated = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return min(core_count(), int(stated)) if stated.isdecimal() and int(stated) else core_count()


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


def torch_over_cores(
    function: Callable[[T], R], parts: Sequence[T], description: str, *, uses_blas: bool = False
) -> list[R]:
    """``over_cores`` for work of torch that may take long: one thread of torch each, and a progress bar."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found: list[R] = []
    try:
        with Progress(description, total=len(parts)) as bar:
            for first in range(0, len(parts), PARTS_AT_ONCE):
                some = parts[first : first + PARTS_AT_ONCE]
                found += over_cores(function, some, uses_blas=uses_blas)
                bar.advance(len(some))
    finally:
        torch.set_num_threads(threads)
    return found


def forget_threads() -> None:
    """A forked child has none of its parent's threads: let it start its own."""
    _pool.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget_threads)
