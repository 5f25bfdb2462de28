"""Hands points to an engine and writes what comes back, until none is missing."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, TypeAlias

from foretrain.experiments.sweep.evaluation import LoneWorker, Outcome, Task, evaluate, refuse_unsendable
from foretrain.experiments.sweep.plan import Point
from foretrain.support import engines
from foretrain.support.engines import WorkerDiedError
from foretrain.support.errors import EngineError
from foretrain.support.progress import track

if TYPE_CHECKING:
    from foretrain.experiments.sweep.spec import Spec

Outcomes: TypeAlias = Generator[Outcome, None, None]

_PATIENCE = 6  # rounds in which a cluster is away and no point is finished
_AT_WORK = 8  # points of a cluster, roughly
_BATCH = 8  # points for each worker at a time, of engines that hand results over at the end


class Driver:
    """Hands points out until none is missing."""

    def __init__(self, spec: Spec, engine: object, workers: int | None) -> None:
        self._spec, self._engine, self._workers = spec, engine, workers
        self._local = engine is None or engine == "local"
        self._keep: Callable[[Outcome], None]
        self._answers = False  # whether the engine has been there in this run
        self.written = 0  # points, finished or failed

    def refuse_unsendable(self) -> None:
        """Refuse a function that cannot reach the processes that shall compute it."""
        if self._engine != "threads" and not self._is_here:
            refuse_unsendable(self._spec.target.function, self._spec.target.name)

    def finish(self, wanted: Sequence[Point], keep: Callable[[Outcome], None]) -> None:
        """One round is enough unless workers die; when only killers seem to be left, each point is computed alone."""
        self._keep = keep
        left, away, alone = {point.key: point for point in wanted}, 0, False
        while left:
            before = len(left)
            try:
                self._write_all(self._outcomes(list(left.values()), alone=alone), left)
            except WorkerDiedError as error:
                self._answers, away = True, 0
                if alone:
                    self._write(Outcome(next(iter(left)), 0.0, error=f"its worker died: {error}"), left)
                alone = alone or len(left) == before
                left = left if alone else self._at_work_last(left)
            except EngineError:  # perhaps a cluster is away for a while
                away = 0 if len(left) < before else away + 1
                if away == _PATIENCE or not self._answers:
                    raise

    @property
    def _is_here(self) -> bool:
        """Whether points are computed in this very process."""
        return self._local and self._workers == 1

    def _write_all(self, outcomes: Outcomes, left: dict[str, Point]) -> None:
        with closing(outcomes):
            for outcome in track(outcomes, "points", total=len(left)):
                self._write(outcome, left)

    def _write(self, outcome: Outcome, left: dict[str, Point]) -> None:
        self._keep(outcome)
        self._answers = True
        self.written += 1
        del left[outcome.key]

    def _outcomes(self, wanted: Sequence[Point], *, alone: bool) -> Outcomes:
        if self._local and not self._is_here and (alone or len(wanted) == 1 or self._capacity() == 1):
            yield from self._in_one_process(wanted)
            return
        for batch in [[point] for point in wanted] if alone else self._batches(wanted):
            results = engines.run(
                evaluate, map(self._task, batch), engine=self._engine, workers=self._workers, ordered=False
            )
            with closing(results):
                yield from results

    def _batches(self, wanted: Sequence[Point]) -> Iterator[Sequence[Point]]:
        """Ray hands over all results at the end: it gets a few points at a time, so that little can be lost."""
        whole = not (isinstance(self._engine, str) and self._engine.startswith("ray://"))
        size = len(wanted) if whole else _BATCH * self._capacity()
        for start in range(0, len(wanted), size):
            yield wanted[start : start + size]

    def _task(self, point: Point) -> Task:
        target = self._spec.target
        parent = os.getpid() if self._local else None
        return Task(point.key, target.function, point.arguments, parent)

    def _capacity(self) -> int:
        return engines.capacity(self._engine, self._workers)

    def _at_work_last(self, left: dict[str, Point]) -> dict[str, Point]:
        """The first ones were at work when a worker died."""
        order = list(left)
        count = self._capacity() if self._local else _AT_WORK  # a cluster may just be away
        return {key: left[key] for key in [*order[count:], *order[:count]]}

    def _in_one_process(self, points: Sequence[Point]) -> Outcomes:
        """One by one; if it dies, the point has failed."""
        with LoneWorker() as worker:
            for point in points:
                outcome = worker.outcome(self._task(point))
                assert outcome is not None  # there is no limit of time
                yield outcome
