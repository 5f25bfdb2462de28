"""Run a sweep, or read what is finished of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from foretrain.experiments.sweep.answers import ERROR, STATUS
from foretrain.experiments.sweep.driver import Driver
from foretrain.experiments.sweep.plan import Plan
from foretrain.experiments.sweep.presentation import sweep_answer
from foretrain.experiments.sweep.spec import Spec
from foretrain.support import engines
from foretrain.support.answers import Answer, Result
from foretrain.support.errors import FileError

if TYPE_CHECKING:
    import xarray

    from foretrain.experiments.sweep.evaluation import Outcome
    from foretrain.experiments.sweep.journal import Contents


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
    from foretrain.experiments.sweep import journal
    from foretrain.experiments.sweep.journal import Snapshots

    engines.check(engine, workers)
    plan = Plan.of(spec, store)
    driver = Driver(plan.spec, engine, workers)
    if plan.wanted(journal.read_log(plan.store) or journal.Contents(), retry_failed=retry_failed):
        driver.refuse_unsendable()
    snapshots = Snapshots(plan)
    with journal.opened(plan, extend=extend) as book:

        def write(outcome: Outcome) -> None:
            book.write(outcome)
            snapshots.refresh()

        try:
            driver.finish(plan.wanted(book.contents, retry_failed=retry_failed), write)
        finally:  # after an interruption too there are data to load
            contents, data = snapshots.write()
    return Sweep(plan, data, driver.written, _errors(data), _warnings(contents, plan))


def read(spec: str | Path, store: str | Path | None = None) -> xarray.Dataset:
    """What is finished of a sweep, also while it runs or after it was killed; the rest is nan."""
    from foretrain.experiments.sweep import journal

    plan = Plan.of(spec, store)
    contents = journal.read_log(plan.store)
    if contents is None:
        raise FileError(f"{plan.store} holds no sweep: run it first, or name its store.")
    journal.tell_damage(plan.store, contents)
    journal.has_grown(plan, contents, extend=True)
    return plan.dataset(contents)


def _errors(data: xarray.Dataset) -> dict[str, str]:
    if ERROR not in data:
        return {}
    axes = [data[dim].values.tolist() for dim in data[STATUS].dims]
    return {
        _where(dict(zip(map(str, data[STATUS].dims), (own[i] for own, i in zip(axes, place))))): str(
            data[ERROR].values[place]
        )
        for place in map(tuple, np.argwhere(data[ERROR].values != ""))
    }


def _warnings(contents: Contents, plan: Plan) -> dict[str, str]:
    """In the order of the points, whatever the order in which they were finished."""
    told = {key: contents.done[key].entry["warnings"] for key in plan.points if key in contents.done}
    return {_where(plan.points[key].coordinates): " ".join(said) for key, said in told.items() if said}


def _where(coordinates: Mapping[str, object]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in coordinates.items())
