"""Processes of one machine: a worker ends with its parent, imports nothing from where it happens to start, and one
that must not harm others has a process of its own.

A pool would keep its processes: joblib's ends a worker that has grown by 300 MB, and says so in a warning that sounds
like trouble. It also does not say at which task a worker died.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from types import ModuleType
from typing import Any, TypeVar, cast

from foretrain.support.threads import WAIT_POLICY, core_count

T = TypeVar("T")
R = TypeVar("R")

_SPAWN = get_context("spawn")  # a fork would share torch's threads and caches
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_SAFE_PATH, _OURS = "PYTHONSAFEPATH", "foretrain"  # Python asks only whether it is set
_PATIENCE = 5.0  # seconds that a process may take to stop
_WATCH_SECONDS = 0.5
_watched: set[int] = set()  # processes with which this one ends
_starting = threading.Lock()
_starters = 0  # blocks in which processes are started


def end_with(parent: int) -> None:
    """A process that a run started does not outlive it, since a kill leaves no time to tell it.

    On Windows a worker ends when it has been idle for a while.
    """
    if os.getpid() == parent or parent in _watched:
        return
    _watched.add(parent)
    # It was for this process alone: those that a task starts are the user's.
    if os.environ.get(_SAFE_PATH) == _OURS:
        del os.environ[_SAFE_PATH]
    if os.name != "nt":
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_WATCH_SECONDS)
    os._exit(1)


def begin_worker(parent: int) -> None:
    """What a worker process does first: it ends with its parent, and its threads of torch sleep while they wait."""
    os.environ.setdefault(WAIT_POLICY, "passive")
    end_with(parent)


@contextmanager
def safe_path() -> Iterator[None]:
    """Processes that start in this block do not look into the working directory when they import ``json``.

    Otherwise a file of that name beside the user's data would be run. What a user's file needs from beside it comes
    with the function; where the working directory is on the path of this process, it is on theirs once they have
    started.
    """
    global _starters
    with _starting:
        _starters += 1
        os.environ.setdefault(_SAFE_PATH, _OURS)
    try:
        yield
    finally:
        with _starting:
            _starters -= 1
            if not _starters and os.environ.get(_SAFE_PATH) == _OURS:
                del os.environ[_SAFE_PATH]


class DeadWorkerError(Exception):
    """A process ended without an answer; ``code`` is its exit code."""

    def __init__(self, code: int | None) -> None:
        self.code = code
        if code == -9:
            told = "its process was killed, most likely for lack of memory"
        elif code is not None and code < 0:
            told = f"its process was ended by {signal.Signals(-code).name}"
        else:
            told = f"its process ended with code {code} and without an answer"
        super().__init__(told)


class WorkerProcess:
    """A process that answers one call after another; ``end`` it in any case.

    ``share``: as one of so many it takes its share of the cores.
    """

    def __init__(self, share: int = 1) -> None:
        self.connection, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_serve, args=(theirs, os.getpid()))
        with _share_of_the_cores(share), _without_the_script(), safe_path():
            self._process.start()
        theirs.close()  # so that the end of the process is the end of the pipe

    def ask(self, function: Callable[[T], Any], task: T) -> None:
        """Hand a call over; its function may be any that cloudpickle takes."""
        self.connection.send_bytes(import_module("cloudpickle").dumps((function, task)))

    def answer(self) -> Any:
        """Wait for what the call returns."""
        try:
            return self.connection.recv()
        except (EOFError, ConnectionResetError):
            self._process.join()
            raise DeadWorkerError(self._process.exitcode) from None

    def end(self, *, at_work: bool = True) -> None:
        """Ask it to stop and clean up, and kill it if it does not; one that is not at work ends by itself."""
        self.connection.close()
        if at_work:
            self._process.terminate()
        self._process.join(_PATIENCE)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def run_apart(
    function: Callable[[T], R], tasks: Sequence[T], workers: int, lost: Callable[[T, str], R]
) -> Iterator[R]:
    """Yield ``function(task)`` as they finish, each in a new process, at most ``workers`` at a time.

    The memory that a task used ends with its process, and one that is killed costs nothing but itself: ``lost`` makes
    an answer from the task and what happened, in words. An interruption ends all processes.
    """
    waiting = deque(tasks)
    running: dict[Connection, tuple[WorkerProcess, T]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                worker, task = WorkerProcess(workers), waiting.popleft()
                running[worker.connection] = worker, task
                worker.ask(function, task)
            for ready in cast("list[Connection]", wait(list(running))):
                worker, task = running.pop(ready)
                try:
                    answer: R = worker.answer()
                except DeadWorkerError as error:
                    answer = lost(task, str(error))
                worker.end(at_work=False)
                yield answer
    finally:
        for worker, _ in running.values():
            worker.end()


def _serve(connection: Connection, parent: int) -> None:
    """What a process does; its parent, which sees Ctrl-C too, ends it, and standard output is the parent's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # in an orderly way
    sys.stdout = sys.stderr
    end_with(parent)
    while True:
        try:
            function, task = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        connection.send(function(task))


@contextmanager
def _share_of_the_cores(workers: int) -> Iterator[None]:
    """Processes that start now take as many threads as they have cores; what the user has set stays."""
    wanted = dict.fromkeys(_THREADS, str(max(1, core_count() // workers))) | {WAIT_POLICY: "passive"}
    added = {name: value for name, value in wanted.items() if name not in os.environ}
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
