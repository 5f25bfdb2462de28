"""Run a sweep, read it, or say what it will cost."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foretrain.experiments.sweep.evaluation import Outcome, Task, evaluate
from foretrain.experiments.sweep.points import Point, axes_of, points
from foretrain.experiments.sweep.spec import Spec, read_spec
from foretrain.support import engines
from foretrain.support.errors import EngineError, FileError
from foretrain.support.progress import track
from foretrain.support.store import DATA, save

if TYPE_CHECKING:
    import xarray

    from foretrain.experiments.sweep.journal import Contents, Journal

_PATIENCE = 3  # rounds in which workers die and no point is finished
_BATCH = 8  # points for each worker at a time, of engines that hand results over at the end
_PROBES = 3
_PROBE_SECONDS = 20.0


@dataclass(frozen=True)
class Sweep:
    """What a run of a sweep leaves: its labelled data, and how many points are finished, failed and missing."""

    spec: Spec
    store: Path
    data: xarray.Dataset
    computed: int  # in this run
    done: int
    errors: Mapping[str, str]  # of failed points, by their coordinates
    warnings: Mapping[str, str]  # that came with finished points, by theirs

    @property
    def missing(self) -> int:
        """Points that are neither finished nor failed."""
        return self.spec.count - self.done - len(self.errors)

    def __repr__(self) -> str:
        return (
            f"Sweep of {self.spec.target.name} over {_told(self.spec)}: {self.done} of {self.spec.count} points "
            f"done, {len(self.errors)} failed; {self.store}"
        )


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
    the same call goes on after any interruption; ``ft.load(store)`` reads the data once a run is through. A point's
    numbers depend on its parameters alone, not on engine, order or interruptions. Failed points stay failed, with
    their error, until ``retry_failed``; ``extend`` allows a file whose axes have grown since the store was begun.

    Examples
    --------
    >>> from foretrain.experiments.sweep import sweep
    >>> sweep("phases.toml", workers=2).data["correlation"].plot()  # doctest: +SKIP
    """
    from foretrain.experiments.sweep import journal

    engines.check(engine, workers)
    plan, path = read_spec(spec), store_of(spec, store)
    by_key = {point.key: point for point in points(plan)}
    with journal.opened(path, plan, by_key, extend=extend) as book:
        driver = _Driver(plan, book, engine, workers)
        try:
            driver.finish(_wanted(by_key, book.contents, retry_failed))
        finally:  # after an interruption too there are data to load
            contents = journal.read_log(path)
            assert contents is not None
            data = _dataset(contents, plan, by_key)
            save(data, path / DATA, overwrite=True)
    told = _errors(contents, by_key), _warnings(contents, by_key)
    return Sweep(plan, path, data, driver.written, len(contents.done), *told)


def read(spec: str | Path, store: str | Path | None = None) -> xarray.Dataset:
    """What is finished of a sweep, also while it runs or after it was killed; the rest is nan."""
    from foretrain.experiments.sweep import journal

    plan, path = read_spec(spec), store_of(spec, store)
    contents = journal.read_log(path)
    if contents is None:
        raise FileError(f"{path} holds no sweep: run it first, or name its store.")
    by_key = {point.key: point for point in points(plan)}
    journal.difference(path, contents, plan, by_key, extend=True)
    return _dataset(contents, plan, by_key)


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

    plan, path = read_spec(spec), store_of(spec, store)
    by_key = {point.key: point for point in points(plan)}
    contents = journal.read_log(path) or journal.Contents()
    if contents.identity:
        journal.difference(path, contents, plan, by_key, extend=True)
    left = _wanted(by_key, contents, retry_failed)
    tried = [] if contents.done or not left else _tried(plan, left)
    seconds = contents.seconds or [outcome.seconds for outcome in tried]
    return Price(
        plan.count,
        len(contents.done),
        len(contents.failed),
        len(left),
        tuple(seconds),
        f"{len(contents.done)} finished points" if contents.done else f"{len(tried)} points tried now",
        engines.capacity(engine, workers),
        _peak_bytes(),
        tuple(outcome.error for outcome in tried if outcome.entry is None),
    )


def store_of(spec: str | Path, store: str | Path | None) -> Path:
    """The folder of a sweep: beside its file, unless it is named."""
    chosen = Path(spec).with_suffix(".sweep") if store is None else Path(store)
    return chosen.expanduser().absolute()


class _Driver:
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
                if failures == _PATIENCE:
                    raise error
                left = self._after_death(left, error)

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

    def _after_death(self, left: dict[str, Point], error: EngineError) -> dict[str, Point]:
        """Those that were at work come last; one that is left alone would run in this process, and end it too."""
        if len(left) == 1 and self._local:
            (key,) = left
            self._write(Outcome(key, 0.0, error=f"its worker died: {error}"))
            return {}
        at_work = list(left)[: engines.capacity(self._engine, self._workers)]
        return {key: left[key] for key in [*(key for key in left if key not in at_work), *at_work]}


def _wanted(by_key: Mapping[str, Point], contents: Contents, retry_failed: bool) -> list[Point]:
    over = contents.done.keys() | (set() if retry_failed else contents.failed.keys())
    return [point for key, point in by_key.items() if key not in over]


def _dataset(contents: Contents, plan: Spec, by_key: Mapping[str, Point]) -> xarray.Dataset:
    from foretrain.experiments.sweep.labelling import as_dataset

    return as_dataset(contents, axes_of(plan), by_key.values(), plan)


def _errors(contents: Contents, by_key: Mapping[str, Point]) -> dict[str, str]:
    return {_where(by_key[key]): contents.failed[key]["error"] for key in by_key if key in contents.failed}


def _warnings(contents: Contents, by_key: Mapping[str, Point]) -> dict[str, str]:
    told = {key: frame.entry["warnings"] for key, frame in contents.done.items() if key in by_key}
    return {_where(by_key[key]): " ".join(said) for key, said in told.items() if said}


def _where(point: Point) -> str:
    return ", ".join(f"{name} = {value}" for name, value in point.coordinates.items())


def _tried(plan: Spec, left: Sequence[Point]) -> list[Outcome]:
    """A few points from both ends and the middle, as long as that does not take too long; the first one warms up."""
    places = sorted({0, len(left) // 2, len(left) - 1})[:_PROBES]
    deadline = time.monotonic() + _PROBE_SECONDS
    target, found = plan.target, []
    for place in [places[0], *places]:
        arguments: dict[str, Any] = left[place].arguments
        found.append(evaluate(Task(left[place].key, target.function, arguments)))
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
    import sys

    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def _told(spec: Spec) -> str:
    return " × ".join(f"{name} ({len(values)})" for name, values in axes_of(spec).items())
