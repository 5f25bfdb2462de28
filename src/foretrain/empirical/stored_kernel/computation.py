"""A kernel computed into a store: created or found, checked, and worked on until no tile is missing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from foretrain.empirical.stored_kernel import tasks
from foretrain.empirical.stored_kernel.contents import Aside, Contents, Job
from foretrain.empirical.stored_kernel.create import (
    create_in_place,
    is_whole,
    local_folder,
    mend,
    refuse_to_lose_files,
    require_disk,
)
from foretrain.empirical.stored_kernel.estimate import Estimate, Watch, samples_to_run
from foretrain.empirical.stored_kernel.folder import Folder, Run, clear_errors
from foretrain.empirical.stored_kernel.grid import Grid, Needs, Tile, strip_height, strips, tile_sides
from foretrain.empirical.stored_kernel.jobs import refuse_unsendable, send
from foretrain.empirical.stored_kernel.layout import Layout, is_stored_kernel
from foretrain.empirical.stored_kernel.tasks import Outcome, Task, work
from foretrain.empirical.stored_kernel.workers import Stored, Workers
from foretrain.support import engines
from foretrain.support.atomic import replace_folder
from foretrain.support.errors import EngineError, FileError, ForetrainWarning
from foretrain.support.store import RECORDS
from foretrain.support.user_warnings import warn_user

if TYPE_CHECKING:
    from foretrain.empirical.stored_kernel.reading import StoredKernel

_PATIENCE = 3  # times in a row that workers may die without finishing a tile


def compute(contents: Contents, options: Stored) -> StoredKernel:
    """Compute all tiles that the store does not have yet, and open it.

    Everything that can be refused is refused first, and an older store is mended only then. Where it is to be
    replaced, its successor is computed beside it, and takes its place when no tile is missing.
    """
    from foretrain.empirical.stored_kernel.reading import StoredKernel

    path, workers = local_folder(options.folder), Workers(options)
    digests, needs = contents.digests(), contents.needs()
    place, layout = path, None
    if options.overwrite and is_stored_kernel(path):
        refuse_to_lose_files(path)
        place = path.with_name(f".{path.name}.successor")
    if is_stored_kernel(place):
        try:
            layout = Folder(place).layout
            _refuse_another(place, layout, contents, digests, options)
        except FileError:
            if place == path:
                raise
            layout = None  # a successor of an earlier call, of another kernel
        if layout is not None and place == path and _is_finished(Folder(path)):
            return StoredKernel(path)
    is_new = layout is None
    layout = layout or _layout(contents, digests, needs, workers, options)
    run = _Computation(contents, layout, needs, workers)
    with ExitStack() as held:
        if place != path:
            held.enter_context(Folder(path).lock())
        if is_new:
            create_in_place(place, layout)
        folder = Folder(place)
        with folder.lock(), clear_errors(place):
            _mend(folder)
            finished = len(folder.recorded())
            if finished < len(layout.grid.tiles):
                require_disk(place, layout, finished)
                run.finish(folder)
            if place != path:
                replace_folder(place, path)
    return StoredKernel(path)


def _layout(
    contents: Contents, digests: Mapping[str, str], needs: Needs, workers: Workers, options: Stored
) -> Layout:
    """What is fixed when a store is created."""
    samples, side, count = contents.samples, options.side, options.threads or 1
    workers.require_processes()
    chosen = min(side or 0, samples[0]), min(side or 0, samples[1])
    sides = chosen if side is not None else tile_sides(samples, needs, workers.room)
    with tasks.threads(count):
        values = contents.sample_values()
    return Layout(
        grid=Grid(samples, sides, contents.symmetric),
        threads=count,
        fingerprint=digests,
        sample_values=values,
        **contents.facts(),
    )


def _refuse_another(
    path: Path, layout: Layout, contents: Contents, digests: Mapping[str, str], options: Stored
) -> None:
    """Refuse to go on with a store that was made for something else."""
    changes = [contents.said[key] for key in digests if layout.fingerprint.get(key) != digests[key]]
    with tasks.threads(layout.threads):
        if not (changes or layout.sample_values.agrees(contents.sample_values())):
            changes = [contents.said["function"]]
    if changes:
        raise FileError(
            f"{path} holds tiles of another kernel ({'; '.join(changes)}): choose another `store=`, or pass "
            "`overwrite=True` to replace it."
        )
    side, grid = options.side, layout.grid
    if side is not None and grid.sides != tuple(min(side, count) for count in grid.samples):
        raise FileError(
            f"{path} has tiles of {grid.sides[0]} x {grid.sides[1]} samples, which stays so: "
            "leave `batch_size=` out, or pass `overwrite=True`."
        )
    if options.threads is not None and options.threads != layout.threads:
        raise FileError(
            f"{path} is computed with {layout.threads} threads per worker, which stays so: "
            "leave `threads=` out, or pass `overwrite=True`."
        )


def _is_finished(folder: Folder) -> bool:
    """Whether all is there and whole; then nothing stays of a run that was killed at its end, such as its model."""
    tiles = folder.layout.grid.tiles
    has_all = len(folder.recorded()) == len(tiles) and is_whole(folder.path, folder.layout)
    if not has_all or folder.damaged(tiles):
        return False
    folder.remove_old_runs()
    return True


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


class _Computation:
    """Sends tasks out in rounds until no tile is missing; what cannot be done is refused when it is made."""

    def __init__(self, contents: Contents, layout: Layout, needs: Needs, workers: Workers) -> None:
        self._contents, self._layout, self._workers = contents, layout, workers
        self._grid = grid = layout.grid
        workers.require_processes()
        workers.require_room(layout, needs)
        self._height = strip_height(grid, needs, workers.room, workers.count)
        self._kept = workers.room - needs.working(max(grid.sides))
        if not self._is_here(self._task_count(set(grid.tiles))):
            refuse_unsendable(self._job({}))

    def finish(self, folder: Folder) -> None:
        """Rounds: one is enough unless workers die or the model's graph depends on the samples."""
        failures, everything = 0, set(self._grid.tiles)
        while missing := everything - folder.recorded():
            error, outcomes = self._round(folder, missing)
            if any(outcome.graph_changed for outcome in outcomes):
                self._set_aside(folder)
                continue
            if error is None and all(outcome.stopped for outcome in outcomes):
                raise FileError(
                    f"workers do not see the run in {folder.path}: put the store on a file system that "
                    "all workers share, and do not touch its folder."
                )
            failures = 0 if len(everything - folder.recorded()) < len(missing) else failures + 1
            if failures == _PATIENCE:
                raise error or EngineError(
                    f"workers ended {_PATIENCE} times without a tile: use fewer workers or a smaller `memory=`."
                )

    def _round(self, folder: Folder, missing: set[Tile]) -> tuple[EngineError | None, list[Outcome]]:
        """All tasks handed out once; an error if workers died."""
        workers = self._workers
        samples = samples_to_run(self._grid, strips(self._grid, self._height), missing, workers.count)
        estimate = Estimate(self._grid, missing, samples, workers.count)
        outcomes: list[Outcome] = []
        with _begun(folder) as run:
            jobs = list(self._tasks(run, self._task_count(missing)))
            try:
                with Watch(folder, estimate):
                    outcomes.extend(
                        engines.run(work, jobs, engine=workers.engine, workers=workers.limit, ordered=False)
                    )
            except EngineError as error:
                return error, outcomes
        return None, outcomes

    def _task_count(self, missing: set[Tile]) -> int:
        cut = strips(self._grid, self._height)
        parts = sum(any(tile in missing for tile in s.tiles(self._grid, c)) for s in cut for c in s.columns)
        return self._workers.tasks(parts)

    def _is_here(self, count: int) -> bool:
        """Whether so many tasks are done in the memory of this process."""
        return self._workers.in_this_process or (self._workers.is_local and count == 1)

    def _tasks(self, run: Run, count: int) -> Iterator[Task]:
        job, here = self._job(run.folder.aside()), self._is_here(count)
        if here:
            tasks.here[run.token] = job
        digest = None if here else send(job, run)
        parent = os.getpid() if self._workers.is_local and not here else None
        for number in range(count):
            yield Task(run.folder.path, run.token, digest, parent, number)

    def _job(self, aside: Aside) -> Job:
        return self._contents.job(self._layout, self._height, self._kept, aside)

    def _set_aside(self, folder: Folder) -> None:
        with tasks.threads(self._layout.threads):
            aside = self._contents.put_aside(folder.aside(), self._layout)
        with _begun(folder) as run:
            run.set_aside(aside["unreadable"], aside["by_gradient"])


@contextmanager
def _begun(folder: Folder) -> Iterator[Run]:
    run = folder.begin()
    try:
        yield run
    finally:
        tasks.here.pop(run.token, None)
        run.stop()
