"""At which steps a record is due."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import index
from typing import Any, TypeAlias

from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError, unknown_name

ScheduleLike: TypeAlias = str | Iterable[int] | Callable[[int], bool] | None

_PER_DECADE = 10


@dataclass(frozen=True)
class Schedule:
    """Whether a step is due, and the schedule in words."""

    due: Callable[[int], bool]
    text: str


def make_schedule(every: int | None, schedule: ScheduleLike, per_decade: int | None) -> Schedule:
    """From what the user says: every k steps, "log" (also if nothing is said), steps, or a function."""
    if every is not None and schedule is not None:
        raise InputError("`every=` and `schedule=` both say when to record: give one of them.")
    if per_decade is not None and not (schedule == "log" or (every is None and schedule is None)):
        raise InputError("`per_decade=` belongs to `schedule='log'`: leave it out.")
    if every is not None:
        return _regular(whole_number("every", every))
    if schedule is None or isinstance(schedule, str):
        if schedule not in (None, "log"):
            raise unknown_name("schedule", str(schedule), ["log"])
        return _logarithmic(_PER_DECADE if per_decade is None else whole_number("per_decade", per_decade))
    if callable(schedule):
        schedule(0)  # an error shows now rather than in the middle of a training
        return Schedule(schedule, "a function of the step")
    return _listed(schedule)


def _regular(every: int) -> Schedule:
    return Schedule(lambda step: step % every == 0, "every step" if every == 1 else f"every {every} steps")


def _logarithmic(per_decade: int) -> Schedule:
    """Steps 0 and round(10^(i / per_decade)), i = 0, 1, ..."""

    def due(step: int) -> bool:
        if step < 1:
            return step == 0
        nearest = round(per_decade * math.log10(step))
        return any(round(10 ** (i / per_decade)) == step for i in (nearest - 1, nearest, nearest + 1))

    return Schedule(due, f"log, {per_decade} steps per decade")


def _listed(steps: Iterable[int]) -> Schedule:
    try:
        wanted = frozenset(index(step) for step in steps)
    except TypeError:
        wanted = frozenset({-1})
    if not wanted or min(wanted) < 0:
        raise InputError("`schedule=` holds something that is no step: give whole numbers from 0 on.")
    return Schedule(lambda step: step in wanted, f"{len(wanted)} chosen steps up to {max(wanted)}")


def whole(value: Any) -> int | None:
    """A whole number, also one of numpy or torch; None if it is none."""
    try:
        return None if isinstance(value, bool) else index(value)
    except TypeError:
        return None
