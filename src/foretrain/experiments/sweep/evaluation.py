"""One point computed, in whatever process: on one thread, so that its bits do not depend on the engine.

A point can have a worker process of its own: when that dies, it is known at which point."""

from __future__ import annotations

import inspect
import os
import re
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from pickle import PicklingError
from typing import Any, Self

from foretrain.experiments.sweep.answers import labelled, packed
from foretrain.support.errors import ForetrainError, InputError
from foretrain.support.processes import DeadWorkerError, WorkerProcess, end_with

_HERE = Path(__file__).parent
_THREADS = "OMP_NUM_THREADS"
_LONGEST = 500  # characters of an error or a warning: the store gives all points room for the longest
_MOST_WARNINGS = 5  # of one point
_PEAK = re.compile(r"^VmHWM:\s*(?P<size>\d+) kB$", re.MULTILINE)


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
    peak: int = 0  # bytes, the most that its process has had


def evaluate(task: Task) -> Outcome:
    """Whatever a point raises, a call of ``exit`` included, is an outcome too: the others go on."""
    if task.parent is not None:
        end_with(task.parent)
    # Workers share the standard output of the process that started them, which is for its answer alone.
    elsewhere = task.parent is not None and task.parent != os.getpid()
    start = time.perf_counter()
    try:
        with _one_thread(), _heard() as told, redirect_stdout(sys.stderr) if elsewhere else nullcontext():
            found = labelled(task.function(**task.arguments), task.arguments)
        entry, body = packed(found)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return Outcome(task.key, time.perf_counter() - start, error=_words(error, task.function))
    mattering = [item.message for item in told if issubclass(item.category, UserWarning | RuntimeWarning)]
    heard = dict.fromkeys(_cut(str(message)) for message in mattering)
    seconds = time.perf_counter() - start
    return Outcome(task.key, seconds, entry, body, "", tuple(heard)[:_MOST_WARNINGS], _peak_bytes())


def _words(error: BaseException, function: Callable[..., Any]) -> str:
    """In one line; what nobody raised on purpose says where in the function's own file it happened."""
    try:
        said = _cut(str(error)) or "an error without words"
    except Exception:  # some errors cannot be told
        said = "an error without words"
    if isinstance(error, ForetrainError):
        return said
    # The last line in the function's file, else in the package but not in what calls every point, else anywhere.
    frames, code = (
        traceback.extract_tb(error.__traceback__),
        getattr(inspect.unwrap(function), "__code__", None),
    )
    own = [frame for frame in frames if code is not None and frame.filename == code.co_filename]
    inside = [frame for frame in frames if Path(frame.filename).is_relative_to(_HERE.parents[1])]
    package = [frame for frame in inside if not Path(frame.filename).is_relative_to(_HERE)]
    place = (own or package or frames)[-1]
    return f"{type(error).__name__}: {said} ({os.path.basename(place.filename)}, line {place.lineno})"


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


@contextmanager
def _heard() -> Iterator[list[warnings.WarningMessage]]:
    """Warnings, for the log; where other threads are at work they go where they always go."""
    if threading.current_thread() is not threading.main_thread():
        yield []
        return
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        yield told


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

    before = os.environ.get(_THREADS)
    os.environ[_THREADS] = "1"
    try:
        with _pools(len(sys.modules)).limit(limits=1):
            yield
    finally:
        os.environ.pop(_THREADS, None)
        if before is not None:
            os.environ[_THREADS] = before


@lru_cache(maxsize=1)
def _pools(modules: int) -> Any:
    """Libraries with threads of their own; looking for them takes time, and is done when modules were imported."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def _peak_bytes() -> int:
    """The most memory that this process has had; the system's usual count begins with that of the parent."""
    try:
        found = _PEAK.search(Path("/proc/self/status").read_text())
    except OSError:
        found = None
    if found is not None:
        return 1024 * int(found["size"])
    import psutil

    return int(psutil.Process().memory_info().rss)


_process = _Process()


class LoneWorker:
    """A process that computes one point after another, and is replaced when it dies; used in a ``with`` block."""

    def __init__(self) -> None:
        self._process: WorkerProcess | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def outcome(self, task: Task, patience: float | None = None) -> Outcome | None:
        """Of a point; None if it takes longer than so many seconds, and then it is ended."""
        self._process = self._process or WorkerProcess()
        start = time.perf_counter()
        try:
            self._process.ask(evaluate, task)
            if not self._process.connection.poll(patience):
                self._stop()
                return None
            found: Outcome = self._process.answer()
        except DeadWorkerError as error:
            self._stop()
            code = error.code or 0
            told = f"{signal.Signals(-code).name}({code})" if code < 0 else f"EXIT({code})"
            died = f"its worker process died ({told}): it was killed, crashed, or ran out of memory."
            return Outcome(task.key, time.perf_counter() - start, error=died)
        return found

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.end()


def refuse_unsendable(function: Callable[..., Any], name: str) -> None:
    """Workers get a user's function by value, with all that it refers to."""
    try:
        import_module("cloudpickle").dumps(function)
    except (PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{name} cannot be sent to other processes ({error}): make inside the function what cannot be copied, or "
            "use one worker, which is this process."
        ) from error
