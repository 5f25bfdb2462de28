"""A kernel computed into a store: created or found, checked, and worked on until no tile is missing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from foretrain.empirical.models.batches import Batch
from foretrain.empirical.stored_kernel import tasks
from foretrain.empirical.stored_kernel.crew import Crew
from foretrain.empirical.stored_kernel.estimate import Estimate, Watch, samples_to_run
from foretrain.empirical.stored_kernel.fingerprint import (
    fingerprint,
    refuse_other,
    refuse_other_function,
    short_description,
)
from foretrain.empirical.stored_kernel.folder import Folder, Run, clear_errors
from foretrain.empirical.stored_kernel.grid import (
    Grid,
    Needs,
    Tile,
    strip_height,
    strips,
    tile_sides,
)
from foretrain.empirical.stored_kernel.jobs import Job, send
from foretrain.empirical.stored_kernel.layout import Layout, is_stored_kernel
from foretrain.empirical.stored_kernel.place import create_in_place, local_folder, require_disk
from foretrain.empirical.stored_kernel.skeleton import is_whole, mend
from foretrain.empirical.stored_kernel.tasks import Outcome, Task, work
from foretrain.empirical.stored_kernel.witness import Witness, witness
from foretrain.empirical.tangent_kernel.engine import Engine
from foretrain.empirical.tangent_kernel.planning import GraphChangedError
from foretrain.support import engines
from foretrain.support.errors import (
    EngineError,
    FileError,
    ForetrainWarning,
    NotSupportedError,
)
from foretrain.support.store import RECORDS
from foretrain.support.user_warnings import warn_user

if TYPE_CHECKING:
    from foretrain.empirical.stored_kernel.reading import StoredKernel

Prepared = tuple[Engine, Batch, Batch | None]

_PATIENCE = 3  # times in a row that workers may die without finishing a tile
_TRIAL_SAMPLES = 8


def run(
    prepared: Prepared,
    store: str | Path,
    *,
    by: str | None = None,
    engine: object = None,
    workers: int | None = None,
    side: int | None = None,
    threads: int | None = None,
    memory: float | str | None = None,
    overwrite: bool = False,
) -> StoredKernel:
    """Compute all tiles that the store does not have yet, and open it.

    ``prepared`` is what ``tangent_kernel.entry.prepare`` gives with the same ``by``. ``side`` (samples along a tile)
    and ``threads`` (of each worker, 1 by default) stay as they are when the store is created. ``memory``: bytes that
    each worker may take, or text such as "1GB".
    """
    from foretrain.empirical.stored_kernel.reading import StoredKernel

    path = local_folder(store)
    crew = Crew(engine, workers, memory)
    tangents, first, second = prepared
    print_of = fingerprint(tangents, first, second, by)
    needs = _needs(tangents, first)
    if overwrite or not is_stored_kernel(path):
        create_in_place(path, _layout(prepared, by, print_of, needs, crew, side, threads))
    else:
        _refuse_another(Folder(path), prepared, print_of, side, threads)
    folder = Folder(path)
    tiles = folder.layout.grid.tiles
    has_all = len(folder.recorded()) == len(tiles) and is_whole(path, folder.layout)
    if not has_all or folder.damaged(tiles):
        with folder.locked(), clear_errors(path):
            _mend(folder)
            if len(folder.recorded()) < len(tiles):
                require_disk(path, folder.layout, len(folder.recorded()))
                _Driver(folder, prepared, by, needs, crew).finish()
    return StoredKernel(path)


def _needs(tangents: Engine, first: Batch) -> Needs:
    """Bytes per sample as a small chunk shows them, and per pair of samples."""
    few = first.pick([k % first.count for k in range(_TRIAL_SAMPLES)])
    factors = tangents.until_settled(lambda: tangents.chunk(few))
    held = sum(factor.bytes for own in factors.values() for factor in own.values()) / _TRIAL_SAMPLES
    width = 1 if tangents.job.trace else len(tangents.outputs)
    entry = len(set(tangents.labels.values())) * width**2 * tangents.dtype.itemsize
    passes = tangents.memory.passes + max(0.0, tangents.memory.factors - held)
    return Needs(held, passes, entry)


def _layout(
    prepared: Prepared,
    by: str | None,
    print_of: dict[str, str],
    needs: Needs,
    crew: Crew,
    side: int | None,
    threads: int | None,
) -> Layout:
    tangents, _, second = prepared
    crew.require_processes()
    samples = tangents.job.rows, tangents.job.columns
    sides = (
        tile_sides(samples, needs, crew.room)
        if side is None
        else (min(side, samples[0]), min(side, samples[1]))
    )
    grid = Grid(samples, sides, second is None)
    crew.require_room(grid, needs)
    return Layout(
        grid,
        tuple(tangents.outputs),
        tangents.job.trace,
        by,
        tuple(dict.fromkeys(tangents.labels.values())) if by is not None else None,
        {torch.float32: "<f4", torch.float64: "<f8"}[tangents.dtype],
        threads or 1,
        print_of,
        short_description(tangents.model.function),
        {name: str(route) for name, route in tangents.routes.items()},
        _witness(prepared, threads or 1),
    )


def _witness(prepared: Prepared, threads: int) -> Witness:
    with tasks.threads(threads):
        return witness(*prepared)


def _refuse_another(
    folder: Folder, prepared: Prepared, print_of: dict[str, str], side: int | None, threads: int | None
) -> None:
    """Refuse to go on with a store that was made for something else."""
    layout = folder.layout
    refuse_other(layout, print_of, folder.path)
    if side is not None and layout.grid.sides != tuple(min(side, count) for count in layout.grid.samples):
        raise FileError(
            f"{folder.path} has tiles of {layout.grid.sides[0]} x {layout.grid.sides[1]} samples, which stays so: "
            "leave `batch_size=` out, or pass `overwrite=True`."
        )
    if threads is not None and threads != layout.threads:
        raise FileError(
            f"{folder.path} is computed with {layout.threads} threads per worker, which stays so: "
            "leave `threads=` out, or pass `overwrite=True`."
        )
    refuse_other_function(layout, _witness(prepared, layout.threads), folder.path)


def _mend(folder: Folder) -> None:
    """Let everything that was damaged or lost be computed again, and say so."""
    if not is_whole(folder.path, folder.layout):
        mend(folder.path, folder.layout)
    if not (folder.path / RECORDS).is_dir():
        (folder.path / RECORDS).mkdir()
        warn_user(
            f"{folder.path} has lost its folder {RECORDS} with the records of all tiles, which are computed again.",
            ForetrainWarning,
        )
    damaged = folder.damaged(sorted(folder.recorded()))
    if damaged:
        folder.forget(damaged)
        named = ", ".join(f"{i}-{j}" for i, j in damaged[:5]) + (", ..." if len(damaged) > 5 else "")
        warn_user(
            f"{len(damaged)} tiles of {folder.path} do not have their checksums ({named}) and are computed again.",
            ForetrainWarning,
        )


class _Driver:
    """Sends tasks out in rounds until no tile is missing."""

    def __init__(self, folder: Folder, prepared: Prepared, by: str | None, needs: Needs, crew: Crew) -> None:
        self._folder, self._prepared, self._by = folder, prepared, by
        self._needs, self._crew = needs, crew
        grid = folder.layout.grid
        crew.require_processes()
        crew.require_room(grid, needs)
        self._grid, self._all = grid, set(grid.tiles)
        self._height = strip_height(grid, needs, crew.room, crew.count)
        self._kept = crew.room - needs.working(max(grid.sides))

    def finish(self) -> None:
        """Rounds: one is enough unless workers die or the model's graph depends on the samples."""
        failures = 0
        while missing := self._all - self._folder.recorded():
            error, outcomes = self._round(missing)
            if any(outcome.graph_changed for outcome in outcomes):
                self._set_aside()
                continue
            if error is None and all(outcome.stopped for outcome in outcomes):
                raise FileError(
                    f"workers do not see the run in {self._folder.path}: put the store on a file system that "
                    "all workers share, and do not touch its folder."
                )
            failures = 0 if len(self._all - self._folder.recorded()) < len(missing) else failures + 1
            if failures == _PATIENCE:
                raise error or EngineError(
                    f"workers ended {_PATIENCE} times without a tile: use fewer workers or a smaller `memory=`."
                )

    def _round(self, missing: set[Tile]) -> tuple[EngineError | None, list[Outcome]]:
        """All tasks handed out once; an error if workers died."""
        cut = strips(self._grid, self._height)
        parts = sum(any(tile in missing for tile in s.tiles(self._grid, c)) for s in cut for c in s.columns)
        samples = samples_to_run(self._grid, cut, missing, self._crew.count)
        estimate = Estimate(self._grid, missing, samples, self._crew.count)
        outcomes: list[Outcome] = []
        with _begun(self._folder) as run:
            jobs = list(self._tasks(run, self._crew.tasks(parts)))
            crew = self._crew
            try:
                with Watch(self._folder, estimate):
                    outcomes.extend(
                        engines.run(work, jobs, engine=crew.engine, workers=crew.workers, ordered=False)
                    )
            except EngineError as error:
                return error, outcomes
        return None, outcomes

    def _tasks(self, run: Run, count: int) -> Iterator[Task]:
        here = self._crew.in_this_process or (self._crew.is_local and count == 1)
        if here:
            tasks.here[run.token] = self._job()
        digest = None if here else send(self._job(), run)
        parent = os.getpid() if self._crew.is_local and not here else None
        for number in range(count):
            yield Task(self._folder.path, run.token, digest, parent, number)

    def _job(self) -> Job:
        tangents, first, second = self._prepared
        job = Job.of(tangents, (first, second), self._by, self._height, self._kept)
        return replace(job, aside=self._folder.aside())

    def _set_aside(self) -> None:
        """Find, chunk by chunk in their order, how parameters must be treated for all chunks to go together."""
        before = {key: set(names) for key, names in self._folder.aside().items()}
        aside = {key: set(names) for key, names in before.items()}
        everything = set(self._prepared[0].parameters)
        while aside["unreadable"] != everything and (change := self._first_change(aside)) is not None:
            new = change.unreadable - aside["unreadable"] | change.by_gradient - aside["by_gradient"]
            aside["unreadable"] |= change.unreadable if new else everything
            aside["by_gradient"] |= change.by_gradient
        # What a worker met does not show here: all parameters go the way that suits any graph.
        if aside == before:
            aside["unreadable"] = everything
        if aside == before:
            raise NotSupportedError(
                "the model's graph changes from one pass to the next: make it depend on its inputs alone."
            )
        with _begun(self._folder) as run:
            run.set_aside(aside["unreadable"], aside["by_gradient"])

    def _first_change(self, aside: Mapping[str, Iterable[str]]) -> GraphChangedError | None:
        job = replace(self._job(), aside={key: sorted(names) for key, names in aside.items()})
        with tasks.threads(self._folder.layout.threads):
            try:
                tangents, *sides = job.prepared()
                for axis, batch in enumerate(side for side in sides if side is not None):
                    for number in range(self._grid.count(axis)):
                        tangents.chunk(batch.pick(list(self._grid.chunk(axis, number))))
            except GraphChangedError as change:
                return change
        return None


@contextmanager
def _begun(folder: Folder) -> Iterator[Run]:
    run = folder.begin()
    try:
        yield run
    finally:
        tasks.here.pop(run.token, None)
        run.stop()
