"""What a sweep will cost, before it is run."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from foretrain.experiments.sweep.evaluation import LoneWorker, Outcome, Task, refuse_unsendable
from foretrain.experiments.sweep.spec import Plan, Point
from foretrain.support import engines
from foretrain.support.answers import Answer, Part, Result, labelled, picked
from foretrain.support.memory import available_bytes, human_bytes

_PROBES = 3
_PROBE_SECONDS = 60.0  # for all of them
_MOST_SECONDS = 24  # of points, in what machines are told
_WARM = 2.0  # seconds from which on what a process does once does not matter


@dataclass(frozen=True, repr=False)
class Price(Result):
    """What is left of a sweep and what it will take, from points that are finished or were tried."""

    count: int
    done: int
    failed: int
    left: int
    seconds_per_point: tuple[float, ...]  # of the points that were tried
    measured: str  # which points those were
    workers: int
    bytes_per_worker: float  # 0 if no point was finished
    errors: tuple[str, ...]
    at_least: bool = False  # no point was finished in the time that trials may take

    @property
    def seconds(self) -> float:
        """Expected for what is left, on all workers."""
        mean = float(np.mean(self.seconds_per_point)) if self.seconds_per_point else 0.0
        return mean * self.left / max(1, min(self.workers, self.left))

    def answer(self) -> Answer:
        """What is left, and the time and the memory it will take."""
        seconds, used = self.seconds_per_point, min(self.workers, max(self.left, 1))
        needed, room = self.bytes_per_worker * used, available_bytes()
        parts: list[Part] = []
        if self.left and self.at_least:
            parts.append(
                f"Time: more than {_duration(self.seconds)} on {used} workers; the point that was tried was not "
                f"finished after {seconds[0]:.0f} s."
            )
        elif self.left and seconds:
            parts.append(
                f"Time: about {_duration(self.seconds)} on {used} workers; {min(seconds):.3g} to {max(seconds):.3g} "
                f"s for a point, from {self.measured}."
            )
        if needed:
            parts.append(
                f"Memory: about {human_bytes(self.bytes_per_worker)} for each of {used} workers, "
                f"{human_bytes(needed)} in all; {human_bytes(room)} are available"
                f"{'' if needed <= room else ', so use fewer --workers'}."
            )
        parts += [f"A point that was tried fails: {error}" for error in dict.fromkeys(self.errors)]
        record = {
            "points": self.count,
            **picked(self, "done failed left workers seconds at_least bytes_per_worker errors"),
            "seconds_per_point": seconds[:_MOST_SECONDS],
        }
        statement = f"{self.count} points: {self.done} done, {self.failed} failed, {self.left} to compute."
        data = labelled({"seconds": ("point", seconds)}, picked(self, "count done failed left workers"))
        return Answer(statement, parts, data, record)


def price(
    spec: str | Path,
    store: str | Path | None = None,
    *,
    engine: object = None,
    workers: int | None = None,
    retry_failed: bool = False,
) -> Price:
    """How many points are left, and how long they take: from finished ones, else from a few that are tried now.

    They are tried in a process of their own, for a minute at most, and nothing of them is kept.
    """
    from foretrain.experiments.sweep import journal

    plan = Plan.of(spec, store)
    workers = engines.capacity(engine, workers)
    contents = journal.read_log(plan.store) or journal.Contents()
    journal.tell_damage(plan.store, contents)
    if contents.identity:
        journal.has_grown(plan, contents, extend=True)
    left = plan.wanted(contents, retry_failed=retry_failed)
    tried = [] if contents.done or not left else _tried(plan, left)
    finished = [outcome for outcome in tried if outcome is not None]
    seconds = contents.seconds or [outcome.seconds for outcome in finished]
    at_least = bool(tried) and not finished
    return Price(
        plan.spec.count,
        len(contents.done),
        len(contents.failed),
        len(left),
        (_PROBE_SECONDS,) if at_least else tuple(seconds),
        f"{len(contents.done)} finished points" if contents.done else f"{len(tried)} points tried now",
        workers,
        max([contents.peak, *(outcome.peak for outcome in finished)]),
        tuple(outcome.error for outcome in finished if outcome.entry is None),
        at_least,
    )


def _duration(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds:.2g} seconds"


def _tried(plan: Plan, left: Sequence[Point]) -> list[Outcome | None]:
    """A few points from both ends and the middle, as long as that does not take too long; None for a longer one."""
    target = plan.spec.target
    refuse_unsendable(target.function, target.name)
    places = sorted({0, len(left) // 2, len(left) - 1})[:_PROBES]
    deadline = time.monotonic() + _PROBE_SECONDS
    found: list[Outcome | None] = []
    with LoneWorker() as worker:
        for place in places:
            task = Task(left[place].key, target.function, left[place].arguments, os.getpid())
            outcome = worker.outcome(task, deadline - time.monotonic())
            if place == places[0] and outcome is not None and outcome.seconds < _WARM:
                outcome = worker.outcome(task, deadline - time.monotonic())
            found.append(outcome)
            if outcome is None:
                break
    return found
