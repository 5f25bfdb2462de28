"""Tasks in processes of their own, some at a time.

Every task gets a new process, so that the memory it used ends with it, and one that is killed costs nothing but
itself. A pool would keep its processes: joblib's ends a worker that has grown by 300 MB, and says so in a warning
that sounds like trouble. An interruption ends all processes, and so does the end of the one that started them.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import ModuleType
from typing import TypeVar, cast

from foretrain.support.processes import end_with
from foretrain.support.threads import core_count

T = TypeVar("T")
R = TypeVar("R")

_SPAWN = get_context("spawn")  # a fork would share torch's threads and caches
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_PATIENCE = 5.0  # seconds that a process may take to stop
_KILLED = -9  # the code of a process that the system ended


def run_apart(
    function: Callable[[T], R], tasks: Sequence[T], workers: int, lost: Callable[[T, str], R]
) -> Iterator[R]:
    """Yield ``function(task)`` as they finish, at most ``workers`` at a time.

    For a task whose process ends without an answer ``lost`` makes one from the task and what happened, in words.
    """
    waiting = deque(tasks)
    running: dict[Connection, tuple[SpawnProcess, T]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                task = waiting.popleft()
                connection, process = _start(function, task, workers)
                running[connection] = process, task
            for ready in cast("list[Connection]", wait(list(running))):
                process, task = running.pop(ready)
                yield _received(ready, process, task, lost)
    finally:
        _end([process for process, _ in running.values()])


def _end(processes: Sequence[SpawnProcess]) -> None:
    """Ask them to stop and clean up; those that do not are killed."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(_PATIENCE)
        if process.is_alive():
            process.kill()
            process.join()


def _start(function: Callable[[T], R], task: T, workers: int) -> tuple[Connection, SpawnProcess]:
    ours, theirs = _SPAWN.Pipe(duplex=False)
    process = _SPAWN.Process(target=_work, args=(theirs, function, task, os.getpid()))
    with _share_of_the_cores(workers), _without_the_script():
        process.start()
    theirs.close()  # so that the end of the process is the end of the pipe
    return ours, process


def _received(connection: Connection, process: SpawnProcess, task: T, lost: Callable[[T, str], R]) -> R:
    try:
        answer: R = connection.recv()
    except EOFError:
        process.join()
        return lost(task, _ending(process.exitcode))
    finally:
        connection.close()
    process.join()
    return answer


def _ending(code: int | None) -> str:
    """Why a process gave no answer."""
    if code == _KILLED:
        return "its process was killed, most likely for lack of memory"
    if code is not None and code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended with code {code} and without an answer"


def _work(connection: Connection, function: Callable[[T], R], task: T, parent: int) -> None:
    """What a process does; its parent, which sees Ctrl-C too, ends it, and standard output is the parent's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # in an orderly way
    sys.stdout = sys.stderr
    end_with(parent)
    connection.send(function(task))
    connection.close()


@contextmanager
def _share_of_the_cores(workers: int) -> Iterator[None]:
    """Processes that start now take as many threads as they have cores; what the user has set stays."""
    added = {name: str(max(1, core_count() // workers)) for name in _THREADS if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


@contextmanager
def _without_the_script() -> Iterator[None]:
    """Processes that start now do not run the user's script again, which need not ask whether it is the main one."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script
