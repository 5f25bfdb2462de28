"""Hands points to an engine and writes what comes back, until none is missing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from foretrain.experiments.sweep.evaluation import Outcome, Task, evaluate
from foretrain.experiments.sweep.points import Point
from foretrain.support import engines
from foretrain.support.errors import EngineError
from foretrain.support.progress import track

if TYPE_CHECKING:
    from foretrain.experiments.sweep.journal import Journal
    from foretrain.experiments.sweep.spec import Spec

_PATIENCE = 3  # rounds in which workers die and no point is finished
_BATCH = 8  # points for each worker at a time, of engines that hand results over at the end


class Driver:
    """Hands points out until none is missing."""

    def __init__(self, spec: Spec, journal: Journal, engine: object, workers: int | None) -> None:
        self._spec, self._journal = spec, journal
        self._engine, self._workers = engine, workers
        self._local = engine is None or engine == "local"
        self.written = 0  # points, finished or failed

    def finish(self, wanted: Sequence[Point]) -> None:
        """One round is enough unless workers die."""
        left, failures = {point.key: point for point in wanted}, 0
        while left:
            before, error = len(left), None
            try:
                for outcome in track(self._outcomes(list(left.values())), "points", total=len(left)):
                    self._write(outcome)
                    del left[outcome.key]
            except EngineError as broken:
                error = broken
            failures = 0 if len(left) < before else failures + 1
            if error is not None and left:
                left = self._after_death(left, error, last=failures == _PATIENCE)

    def _write(self, outcome: Outcome) -> None:
        self._journal.write(outcome)
        self.written += 1

    def _outcomes(self, wanted: Sequence[Point]) -> Iterator[Outcome]:
        for batch in self._batches(wanted):
            results = engines.run(
                evaluate, map(self._task, batch), engine=self._engine, workers=self._workers, ordered=False
            )
            with closing(results):
                yield from results

    def _batches(self, wanted: Sequence[Point]) -> Iterator[Sequence[Point]]:
        """Ray hands over all results at the end: it gets a few points at a time, so that little can be lost."""
        whole = not (isinstance(self._engine, str) and self._engine.startswith("ray://"))
        size = len(wanted) if whole else _BATCH * engines.capacity(self._engine, self._workers)
        for start in range(0, len(wanted), size):
            yield wanted[start : start + size]

    def _task(self, point: Point) -> Task:
        target = self._spec.target
        parent = os.getpid() if self._local else None
        return Task(point.key, target.function, point.arguments, parent)

    def _after_death(self, left: dict[str, Point], error: EngineError, *, last: bool) -> dict[str, Point]:
        """Those that were at work come last; one that is left alone has failed.

        On this machine it would run in this very process, and end it too.
        """
        if len(left) == 1 and (self._local or last):
            (key,) = left
            self._write(Outcome(key, 0.0, error=f"its worker died: {error}"))
            return {}
        if last:
            raise error
        at_work = list(left)[: engines.capacity(self._engine, self._workers)]
        return {key: left[key] for key in [*(key for key in left if key not in at_work), *at_work]}
