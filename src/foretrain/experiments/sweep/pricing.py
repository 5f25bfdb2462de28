"""What a sweep will cost, before it is run."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from foretrain.experiments.sweep.evaluation import Outcome, Task, evaluate
from foretrain.experiments.sweep.plan import Plan
from foretrain.experiments.sweep.points import Point
from foretrain.support import engines

_PROBES = 3
_PROBE_SECONDS = 20.0


@dataclass(frozen=True)
class Price:
    """What is left of a sweep and what it will take, from points that are finished or were tried."""

    count: int
    done: int
    failed: int
    left: int
    seconds_per_point: tuple[float, ...]  # of the points that were tried
    measured: str  # which points those were
    workers: int
    bytes_per_worker: float
    errors: tuple[str, ...]

    @property
    def seconds(self) -> float:
        """Expected for what is left, on all workers."""
        mean = float(np.mean(self.seconds_per_point)) if self.seconds_per_point else 0.0
        return mean * self.left / max(1, min(self.workers, self.left))


def price(
    spec: str | Path,
    store: str | Path | None = None,
    *,
    engine: object = None,
    workers: int | None = None,
    retry_failed: bool = False,
) -> Price:
    """How many points are left, and how long they take: from finished ones, else from a few that are tried now."""
    from foretrain.experiments.sweep import journal

    plan = Plan.of(spec, store)
    contents = journal.read_log(plan.store) or journal.Contents()
    if contents.identity:
        journal.has_grown(plan, contents, extend=True)
    left = plan.wanted(contents, retry_failed=retry_failed)
    tried = [] if contents.done or not left else _tried(plan, left)
    seconds = contents.seconds or [outcome.seconds for outcome in tried]
    return Price(
        plan.spec.count,
        len(contents.done),
        len(contents.failed),
        len(left),
        tuple(seconds),
        f"{len(contents.done)} finished points" if contents.done else f"{len(tried)} points tried now",
        engines.capacity(engine, workers),
        _peak_bytes(),
        tuple(outcome.error for outcome in tried if outcome.entry is None),
    )


def _tried(plan: Plan, left: Sequence[Point]) -> list[Outcome]:
    """A few points from both ends and the middle, as long as that does not take too long; the first one warms up."""
    places = sorted({0, len(left) // 2, len(left) - 1})[:_PROBES]
    deadline = time.monotonic() + _PROBE_SECONDS
    function, found = plan.spec.target.function, []
    for place in [places[0], *places]:
        found.append(evaluate(Task(left[place].key, function, left[place].arguments)))
        if time.monotonic() > deadline:
            break
    return found[1:] or found


def _peak_bytes() -> float:
    """The most memory that this process has had, which a worker will need too."""
    try:
        import resource
    except ImportError:  # Windows
        import psutil

        return float(psutil.Process().memory_info().rss)
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
