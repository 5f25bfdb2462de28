"""Hands points to an engine and writes what comes back, until none is missing."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, TypeAlias

from foretrain.experiments.sweep.evaluation import Outcome, Task, evaluate
from foretrain.experiments.sweep.isolation import LoneWorker, refuse_unsendable
from foretrain.experiments.sweep.points import Point
from foretrain.support import engines
from foretrain.support.engines import WorkerDiedError
from foretrain.support.errors import EngineError
from foretrain.support.progress import track

if TYPE_CHECKING:
    from foretrain.experiments.sweep.spec import Spec

Outcomes: TypeAlias = Generator[Outcome, None, None]

_PATIENCE = 3  # rounds in which a cluster is away and no point is finished
_BATCH = 8  # points for each worker at a time, of engines that hand results over at the end


class Driver:
    """Hands points out until none is missing; ``write`` keeps what became of one."""

    def __init__(
        self, spec: Spec, write: Callable[[Outcome], None], engine: object, workers: int | None
    ) -> None:
        self._spec, self._keep = spec, write
        self._engine, self._workers = engine, workers
        self._local = engine is None or engine == "local"
        self.written = 0  # points, finished or failed

    def finish(self, wanted: Sequence[Point]) -> None:
        """One round is enough unless workers die."""
        left, idle = {point.key: point for point in wanted}, 0
        if left and self._engine != "threads" and not self._is_here:
            refuse_unsendable(self._spec.target.function, self._spec.target.name)
        while left:
            before = len(left)
            try:
                self._write_all(self._outcomes(list(left.values())), left)
            except EngineError as error:
                idle = 0 if len(left) < before else idle + 1
                left = self._after_death(left, error, idle)

    @property
    def _is_here(self) -> bool:
        """Whether points are computed in this very process."""
        return self._local and self._workers == 1

    def _write_all(self, outcomes: Outcomes, left: dict[str, Point]) -> None:
        with closing(outcomes):
            for outcome in track(outcomes, "points", total=len(left)):
                self._keep(outcome)
                self.written += 1
                del left[outcome.key]

    def _outcomes(self, wanted: Sequence[Point]) -> Outcomes:
        if self._local and not self._is_here and (len(wanted) == 1 or self._capacity() == 1):
            yield from self._one_by_one(wanted)
            return
        for batch in self._batches(wanted):
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

    def _after_death(self, left: dict[str, Point], error: EngineError, idle: int) -> dict[str, Point]:
        """Those that were at work come last; when they are all that is left, it is found out which one kills."""
        if not isinstance(error, WorkerDiedError):  # the engine itself is gone, perhaps not for long
            if idle == _PATIENCE or not self.written:
                raise error
            return left
        if idle:
            alone = self._one_by_one if self._local else self._one_by_one_on_cluster
            self._write_all(alone(list(left.values())), left)
        at_work = list(left)[: self._capacity()] if left else []
        return {key: left[key] for key in [*(key for key in left if key not in at_work), *at_work]}

    def _one_by_one(self, points: Sequence[Point]) -> Outcomes:
        """In a process of their own; if it dies, the point has failed."""
        with LoneWorker() as worker:
            for point in points:
                outcome = worker.outcome(self._task(point))
                assert outcome is not None  # there is no limit of time
                yield outcome

    def _one_by_one_on_cluster(self, points: Sequence[Point]) -> Outcomes:
        for point in points:
            try:
                yield from self._outcomes([point])
            except WorkerDiedError as error:
                yield Outcome(point.key, 0.0, error=f"its worker died: {error}")
