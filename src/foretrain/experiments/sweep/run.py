"""Run a sweep, or read what is finished of it: points are handed to an engine until none is missing."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from foretrain.experiments.sweep import journal
from foretrain.experiments.sweep.answers import ERROR, STATUS
from foretrain.experiments.sweep.evaluation import LoneWorker, Outcome, Task, evaluate, refuse_unsendable
from foretrain.experiments.sweep.presentation import sweep_answer
from foretrain.experiments.sweep.spec import Plan, Point, Spec
from foretrain.support import engines
from foretrain.support.answers import Answer, Result
from foretrain.support.engines import WorkerDiedError
from foretrain.support.errors import EngineError, FileError
from foretrain.support.progress import track

if TYPE_CHECKING:
    import xarray

Outcomes: TypeAlias = Generator[Outcome, None, None]

_PATIENCE = 6  # rounds in which a cluster is away and no point is finished
_AT_WORK = 8  # points of a cluster, roughly
_BATCH = 8  # points for each worker at a time, of engines that hand results over at the end


@dataclass(frozen=True, repr=False)
class Sweep(Result):
    """What a run of a sweep leaves: its labelled data, and how many points are finished, failed and missing."""

    plan: Plan
    data: xarray.Dataset
    computed: int  # in this run
    errors: Mapping[str, str]  # of failed points, by their coordinates
    warnings: Mapping[str, str]  # that came with finished points, by theirs

    @property
    def spec(self) -> Spec:
        """What was asked for."""
        return self.plan.spec

    @property
    def store(self) -> Path:
        """Where it is kept."""
        return self.plan.store

    @property
    def done(self) -> int:
        """Finished points."""
        return int((self.data[STATUS] == "done").sum())

    @property
    def missing(self) -> int:
        """Points that are neither finished nor failed."""
        return self.spec.count - self.done - len(self.errors)

    def answer(self, quantity: str | None = None) -> Answer:
        """Points, failures, warnings and the picture of all quantities, or of one."""
        return sweep_answer(self, quantity)


def sweep(
    spec: str | Path,
    store: str | Path | None = None,
    *,
    engine: object = None,
    workers: int | None = None,
    retry_failed: bool = False,
    extend: bool = False,
) -> Sweep:
    """Compute what is missing of the sweep that a file describes, and give back everything.

    ``store`` is a folder, by default called like the file. A point is kept there as soon as it is finished, so that
    the same call goes on after any interruption; ``ft.load(store)`` reads the data, brought up to date while it runs
    and when it ends. A point's numbers depend on its parameters alone, not on engine, order or interruptions.
    Failed points stay failed, with their error, until ``retry_failed``; ``extend`` allows axes that have grown, or
    another code of your own function, since the store was begun.

    Examples
    --------
    >>> from foretrain.experiments.sweep import sweep
    >>> sweep("phases.toml", workers=2).data["correlation"].plot()  # doctest: +SKIP
    """
    engines.check(engine, workers)
    plan = Plan.of(spec, store)
    driver = Driver(plan.spec, engine, workers)
    if plan.wanted(journal.read_log(plan.store) or journal.Contents(), retry_failed=retry_failed):
        driver.refuse_unsendable()
    with journal.opened(plan, extend=extend) as book:
        try:
            driver.finish(plan.wanted(book.contents, retry_failed=retry_failed), book.write)
        finally:  # after an interruption too there are data to load
            contents, data = book.write_data()
    errors = {}
    if ERROR in data:
        axes = {str(dim): data[dim].values.tolist() for dim in data[STATUS].dims}
        for place in map(tuple, np.argwhere(data[ERROR].values != "")):
            where = {name: values[i] for (name, values), i in zip(axes.items(), place)}
            errors[_where(where)] = str(data[ERROR].values[place])
    # In the order of the points, whatever the order in which they were finished.
    told = {key: contents.done[key].entry["warnings"] for key in plan.points if key in contents.done}
    warnings = {_where(plan.points[key].coordinates): " ".join(said) for key, said in told.items() if said}
    return Sweep(plan, data, driver.written, errors, warnings)


def read(spec: str | Path, store: str | Path | None = None) -> xarray.Dataset:
    """What is finished of a sweep, also while it runs or after it was killed; the rest is nan."""
    plan = Plan.of(spec, store)
    contents = journal.read_log(plan.store)
    if contents is None:
        raise FileError(f"{plan.store} holds no sweep: run it first, or name its store.")
    journal.tell_damage(plan.store, contents)
    journal.has_grown(plan, contents, extend=True)
    return plan.dataset(contents)


def _where(coordinates: Mapping[str, object]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in coordinates.items())


class Driver:
    """Hands points to an engine until none is missing."""

    def __init__(self, spec: Spec, engine: object, workers: int | None) -> None:
        self._target, self._engine, self._workers = spec.target, engine, workers
        self._local = engine is None or engine == "local"
        self._is_here = self._local and workers == 1  # points are computed in this very process
        self._answers = False  # whether the engine has been there in this run
        self.written = 0  # points, finished or failed

    def refuse_unsendable(self) -> None:
        """Refuse a function that cannot reach the processes that shall compute it."""
        if self._engine != "threads" and not self._is_here:
            refuse_unsendable(self._target.function, self._target.name)

    def finish(self, wanted: Sequence[Point], keep: Callable[[Outcome], None]) -> None:
        """One round is enough unless workers die; when only killers seem to be left, each point is computed alone."""
        left, away, alone = {point.key: point for point in wanted}, 0, False

        def write(outcome: Outcome) -> None:
            keep(outcome)
            self._answers = True
            self.written += 1
            del left[outcome.key]

        while left:
            before = len(left)
            try:
                with closing(self._outcomes(list(left.values()), alone=alone)) as outcomes:
                    for outcome in track(outcomes, "points", total=before):
                        write(outcome)
            except WorkerDiedError as error:
                self._answers, away = True, 0
                if alone:
                    write(Outcome(next(iter(left)), 0.0, error=f"its worker died: {error}"))
                alone = alone or len(left) == before
                if not alone:  # the first ones were at work when it died, or a cluster is just away
                    order, count = list(left), self._capacity() if self._local else _AT_WORK
                    left = {key: left[key] for key in [*order[count:], *order[:count]]}
            except EngineError:  # perhaps a cluster is away for a while
                away = 0 if len(left) < before else away + 1
                if away == _PATIENCE or not self._answers:
                    raise

    def _outcomes(self, wanted: Sequence[Point], *, alone: bool) -> Outcomes:
        parent = os.getpid() if self._local else None
        tasks = [Task(point.key, self._target.function, point.arguments, parent) for point in wanted]
        if self._local and not self._is_here and (alone or len(wanted) == 1 or self._capacity() == 1):
            with LoneWorker() as worker:  # if it dies, the point has failed
                for task in tasks:
                    outcome = worker.outcome(task)
                    assert outcome is not None  # there is no limit of time
                    yield outcome
            return
        # Ray hands over all results at the end: it gets a few points at a time, so that little can be lost.
        ray = isinstance(self._engine, str) and self._engine.startswith("ray://")
        size = 1 if alone else _BATCH * self._capacity() if ray else len(tasks)
        for start in range(0, len(tasks), size):
            batch = tasks[start : start + size]
            results = engines.run(evaluate, batch, engine=self._engine, workers=self._workers, ordered=False)
            with closing(results):
                yield from results

    def _capacity(self) -> int:
        return engines.capacity(self._engine, self._workers)
