"""How long work may take. Loops ask between their steps, so it is stopped without threads or signals.

Whatever reports its progress can be stopped: bars ask at every step.

>>> from foretrain.support.deadline import Deadline, OutOfTimeError, within
>>> from foretrain.support.progress import track
>>> try:
...     with within(Deadline(0.0)):
...         list(track(range(3), "steps"))
... except OutOfTimeError:
...     print("stopped")
stopped
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from foretrain.support.errors import InputError

_PATIENCE = 3.0  # times as long as the same work would take on an idle machine
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(?P<number>\d+(\.\d*)?|\.\d+)\s*(?P<unit>[a-z]*)", re.IGNORECASE)


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
    return lambda: max(time.thread_time() - worked, (time.monotonic() - passed) / _PATIENCE)


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
