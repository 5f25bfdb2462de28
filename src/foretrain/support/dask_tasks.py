"""Tasks on a Dask cluster by its own client.

joblib's backend for Dask never hands over that a task has killed its workers, and waits for ever; nor does it notice
that all workers are gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from itertools import islice
from typing import Any, TypeAlias

from foretrain.support.errors import EngineError

Call: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]  # as joblib.delayed makes them

_AHEAD = 64  # tasks that a cluster is given at least, so that it may grow
_AHEAD_PER_THREAD = 4
_POLL_SECONDS = 0.005
_LOOK_SECONDS = 5.0  # between looks at the workers
_ABSENT_SECONDS = 60.0  # without any worker, after which nobody waits for them


def called(call: Call) -> Any:
    """What the call returns."""
    function, arguments, options = call
    return function(*arguments, **options)


def in_order(client: Any, calls: Iterable[Call]) -> Iterator[Any]:
    """Results in the order of the calls."""
    early: dict[int, Any] = {}
    expected = 0
    for number, result in _numbered(client, calls):
        early[number] = result
        while expected in early:
            yield early.pop(expected)
            expected += 1


def as_they_finish(client: Any, calls: Iterable[Call]) -> Iterator[Any]:
    """Results in whatever order."""
    return (result for _, result in _numbered(client, calls))


def _numbered(client: Any, calls: Iterable[Call]) -> Iterator[tuple[int, Any]]:
    """Results with the numbers of their calls; the cluster holds a few tasks for each thread at a time."""
    running = import_module("distributed").as_completed(loop=client.loop, with_results=True)
    waiting, at_work = enumerate(calls), dict[str, tuple[int, Any]]()

    def hand_over(count: int) -> None:
        for number, call in islice(waiting, count):
            future = client.submit(called, call, pure=False)
            at_work[future.key] = number, future
            running.add(future)

    try:
        hand_over(max(_AHEAD, _AHEAD_PER_THREAD * sum(client.nthreads().values())))
        while not running.is_empty():
            _wait_for_one(client, running)
            future, result = next(running)
            number, _ = at_work.pop(future.key)
            future.release()  # or the cluster would keep all results to the end
            hand_over(1)
            yield number, result
    finally:
        if client.status == "running":
            client.cancel([future for _, future in at_work.values()])


def _wait_for_one(client: Any, running: Any) -> None:
    seen = looked = time.monotonic()
    while not running.has_ready():
        time.sleep(_POLL_SECONDS)
        now = time.monotonic()
        if now - looked < _LOOK_SECONDS:
            continue
        looked = now
        if client.nthreads():
            seen = now
        elif now - seen > _ABSENT_SECONDS:
            raise EngineError("the Dask cluster has lost all its workers: start some and run this again.")
