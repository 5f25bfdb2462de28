"""How far work is and how long it may take: bars on a terminal after two seconds, and a deadline that loops ask.

Whatever reports its progress can be stopped, without threads or signals: bars ask at every step.

>>> from foretrain.support.progress import Deadline, OutOfTimeError, Progress, track, within
>>> for layer in track(range(3), "layers"):
...     with Progress("draws", total=10) as bar:
...         bar.advance(10)
>>> try:
...     with within(Deadline(0.0)):
...         list(track(range(3), "steps"))
... except OutOfTimeError:
...     print("stopped")
stopped
"""

from __future__ import annotations

import atexit
import math
import multiprocessing
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from foretrain.support.errors import InputError

if TYPE_CHECKING:
    import rich.progress

T = TypeVar("T")

_PATIENCE = 2.0  # seconds before a bar is worth a line on the screen
_NEIGHBOURS = 3.0  # times as long as the same work would take on an idle machine
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(?P<number>\d+(\.\d*)?|\.\d+)\s*(?P<unit>[a-z]*)", re.IGNORECASE)


def track(iterable: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Iterate and show how far the iteration is; the total is the length where there is one."""
    if total is None and isinstance(iterable, Sized):
        total = len(iterable)
    with Progress(description, total=total) as bar:
        for item in iterable:
            yield item
            bar.advance()


class Progress:
    """One bar, advanced by hand; bars may be nested, and then share the screen.

    Where a deadline holds, the bar shows it in the place of a forecast, and the work stops at the end of the step in
    which it passes.
    """

    def __init__(self, description: str, total: float | None = None) -> None:
        self._description = description
        self._deadline = running_deadline()
        self._total = total
        self._done = 0.0
        self._line: rich.progress.TaskID | None = None
        self._timer: threading.Timer | None = None

    def __enter__(self) -> Self:
        if on_terminal() and in_main_process():
            self._timer = threading.Timer(_PATIENCE, self._appear)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is None:
            return
        self._timer.cancel()
        with _screen.lock:
            self._timer = None
            if self._line is not None:
                _screen.remove(self._line)
                self._line = None

    def advance(self, steps: float = 1) -> None:
        """Report that so many more steps are done."""
        self._done += steps
        if self._line is not None:
            _screen.update(self._line, completed=self._done)
        stop_if_late()

    def describe(self, description: str) -> None:
        """Change what the bar says."""
        self._description = description
        if self._line is not None:
            _screen.update(self._line, description=description)

    def _appear(self) -> None:
        with _screen.lock:
            if self._timer is not None:  # the job may have ended while this thread waited for the lock
                self._line = _screen.add(self._description, self._total, self._done, self._deadline)


def clear() -> None:
    """Take all bars off the screen, so that a message can be printed after an interruption."""
    _screen.stop()


def on_terminal() -> bool:
    """Whether somebody sees what is written to stderr."""
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # stderr is missing (a windowed program) or closed
        return False


def in_main_process() -> bool:
    """Worker processes share the terminal of the main one, and would draw over its bars."""
    return multiprocessing.current_process().name == "MainProcess"


class _Screen:
    """The one live display that all bars of the process share."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._display: rich.progress.Progress | None = None

    def add(
        self, description: str, total: float | None, done: float, deadline: Deadline | None
    ) -> rich.progress.TaskID:
        if self._display is None:
            import rich.progress
            from rich.console import Console

            self._display = rich.progress.Progress(
                rich.progress.TextColumn("{task.description}", markup=False),
                rich.progress.BarColumn(),
                rich.progress.TaskProgressColumn(),
                _time_column(),
                console=Console(stderr=True),
                transient=True,
            )
            self._display.start()
            atexit.register(self.stop)  # gives the cursor back even if a bar is never closed
        return self._display.add_task(description, total=total, completed=int(done), deadline=deadline)

    def update(self, line: rich.progress.TaskID, **changes: Any) -> None:
        with self.lock:
            if self._display is not None and line in self._display.task_ids:
                self._display.update(line, **changes)

    def remove(self, line: rich.progress.TaskID) -> None:
        if self._display is not None and line in self._display.task_ids:
            self._display.remove_task(line)
            if not self._display.task_ids:
                self.stop()

    def stop(self) -> None:
        with self.lock:
            if self._display is not None:
                self._display.stop()
                self._display = None
                atexit.unregister(self.stop)


def _time_column() -> rich.progress.ProgressColumn:
    """How much of its time the work has spent ("12 s of 30 s"), or how long it will still take."""
    import rich.progress
    from rich.text import Text

    class Time(rich.progress.TimeRemainingColumn):
        def render(self, task: rich.progress.Task) -> Text:
            deadline: Deadline | None = task.fields["deadline"]
            if deadline is None or math.isinf(deadline.seconds):
                return super().render(task)
            return Text(f"{duration_text(deadline.spent)} of {duration_text(deadline.seconds)}")

    return Time()


_screen = _Screen()


class OutOfTimeError(Exception):
    """The time of some work is over.

    It is no ForetrainError: who does without a part that is refused must not take it for a refusal.
    """


@dataclass(frozen=True)
class Deadline:
    """So many seconds of the ``clock``, from when this was made or from ``start`` on."""

    seconds: float
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    start: float = math.nan  # now, unless it is given

    def __post_init__(self) -> None:
        if math.isnan(self.start):
            object.__setattr__(self, "start", self.clock())

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return self.clock() - self.start

    @property
    def left(self) -> float:
        """Seconds until it has passed, 0 afterwards."""
        return max(0.0, self.seconds - self.spent)


def patient_clock() -> Callable[[], float]:
    """A clock of the seconds that this thread works from now on, and at least of a third of those that pass.

    On an idle machine it is that on the wall. On a busy one, what neighbours take does not count, up to a bound.
    """
    worked, passed = time.thread_time(), time.monotonic()
    return lambda: max(time.thread_time() - worked, (time.monotonic() - passed) / _NEIGHBOURS)


_running: ContextVar[Deadline | None] = ContextVar("deadline", default=None)


@contextmanager
def within(deadline: Deadline | None) -> Iterator[None]:
    """Inside, work stops once the deadline has passed; None lets it come to its end, whatever holds outside."""
    token = _running.set(deadline)
    try:
        yield
    finally:
        _running.reset(token)


def running_deadline() -> Deadline | None:
    """The deadline that holds here, if any."""
    return _running.get()


def stop_if_late() -> None:
    """Raise OutOfTimeError if the deadline that holds here has passed."""
    deadline = _running.get()
    if deadline is not None and not deadline.left > 0:
        raise OutOfTimeError(f"the {deadline.seconds:.3g} s that this work may take are over.")


def parse_duration(text: str, origin: str) -> float:
    """Seconds that a duration such as ``90``, ``60s`` or ``2m`` stands for."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or match["unit"].lower() not in _UNITS:
        raise InputError(f"{origin} is {text!r}, which is no duration: write it like 60s, 2m or 90.")
    return float(match["number"]) * _UNITS[match["unit"].lower()]


def duration_text(seconds: float) -> str:
    """For people: "0.3 s", "45 s", "2 min", "3 h"."""
    if seconds < 9.5:
        return f"{seconds:.1g} s" if seconds else "0 s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.2g} min" if minutes < 99.5 else f"{minutes / 60:.2g} h"
