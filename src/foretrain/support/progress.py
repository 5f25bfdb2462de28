"""Progress bars on a terminal: they appear after two seconds, and nowhere else than on a terminal.

>>> from foretrain.support.progress import Progress, track
>>> for layer in track(range(3), "layers"):
...     with Progress("draws", total=10) as bar:
...         bar.advance(10)
"""

from __future__ import annotations

import atexit
import math
import multiprocessing
import sys
import threading
from collections.abc import Iterable, Iterator, Sized
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from foretrain.support.deadline import Deadline, duration_text, running_deadline, stop_if_late

if TYPE_CHECKING:
    import rich.progress

T = TypeVar("T")

_PATIENCE = 2.0  # seconds before a bar is worth a line on the screen


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
