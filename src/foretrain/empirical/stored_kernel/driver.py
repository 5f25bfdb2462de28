"""A kernel computed into a store: created or found, checked, and worked on until no tile is missing."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from foretrain.empirical.stored_kernel import tasks
from foretrain.empirical.stored_kernel.estimate import Estimate, Watch, samples_to_run
from foretrain.empirical.stored_kernel.fingerprint import fingerprint, refuse_other, short_description
from foretrain.empirical.stored_kernel.folder import (
    Folder,
    Layout,
    Run,
    clear_errors,
    create,
    is_stored_kernel,
)
from foretrain.empirical.stored_kernel.grid import (
    Grid,
    Needs,
    Tile,
    stored_bytes,
    strip_height,
    strips,
    tile_sides,
)
from foretrain.empirical.stored_kernel.jobs import Job, send
from foretrain.empirical.stored_kernel.tasks import Outcome, Task, work
from foretrain.empirical.tangent_kernel.batches import Batch
from foretrain.empirical.tangent_kernel.engine import Engine, Factors
from foretrain.empirical.tangent_kernel.planning import GraphChangedError
from foretrain.support import engines
from foretrain.support.atomic import restore
from foretrain.support.errors import EngineError, FileError, InputError, NotSupportedError
from foretrain.support.memory import available_bytes, human_bytes, parse_bytes, require_memory

if TYPE_CHECKING:
    from foretrain.empirical.stored_kernel.reading import StoredKernel

Prepared = tuple[Engine, Batch, Batch | None]

_MEMORY_SHARE = 0.8  # of what is available, for all workers
_PROCESS_BYTES = 3.5e8  # of a worker process before it does anything: interpreter and libraries
_MOST_ROOM = 4e9  # bytes per worker; more would not be faster
_CLUSTER_ROOM = 1e9  # bytes per worker of a cluster, whose machines are not known
_TASKS_PER_WORKER = 4  # of a cluster; each takes all the work it can get
_PATIENCE = 3  # times in a row that workers may die without finishing a tile
_TRIAL_SAMPLES = 8
_FREE_SHARE = 0.98  # of the free disk


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

    path = _local(store)
    crew = _Crew(engine, workers, memory)
    tangents, first, second = prepared
    print_of = fingerprint(tangents, first, second, by)
    needs = _needs(tangents, first)
    if overwrite or not path.exists():
        _create(path, _layout(prepared, by, print_of, needs, crew, side, threads), overwrite=overwrite)
    folder = Folder(path)
    refuse_other(folder.layout.fingerprint, print_of, path)
    _refuse_other_cut(folder, side, threads)
    if not _is_finished(folder):
        with folder.locked(), clear_errors(path):
            _forget_damaged(folder)
            _require_disk(path, folder.layout, len(folder.recorded()))
            _Driver(folder, prepared, by, needs, crew).finish()
    return StoredKernel(path)


def _local(store: str | Path) -> Path:
    if "://" in str(store):
        raise InputError(
            f"store={str(store)!r} is a remote address: give a folder that this machine can write to."
        )
    path = Path(store).expanduser().absolute()
    restore(path)
    if path.exists() and not is_stored_kernel(path):
        raise FileError(f"{path} exists and is no stored kernel: choose another store=.")
    return path


def _is_finished(folder: Folder) -> bool:
    """All tiles recorded; where files are not as a run left them, their checksums decide."""
    tiles = folder.layout.grid.tiles
    return len(folder.recorded()) == len(tiles) and not folder.damaged(folder.touched(tiles))


class _Crew:
    """Where the work is done, by how many, and with how much memory each."""

    def __init__(self, engine: object, workers: int | None, memory: float | str | None) -> None:
        self.engine, self.workers = engine, workers
        self.is_local = engine is None or engine in ("local", "threads")
        self.count = max(1, engines.capacity(engine, workers))
        self._memory = parse_bytes(memory, "memory=") if isinstance(memory, str) else memory

    @property
    def in_this_process(self) -> bool:
        """Whether workers share the memory of this process."""
        return self.engine == "threads" or (self.is_local and self.count == 1)

    @property
    def room(self) -> float:
        """Bytes that each worker may fill."""
        own = 0.0 if self.in_this_process else _PROCESS_BYTES
        if self._memory is not None:
            return max(0.0, self._memory - own)
        if not self.is_local:
            return _CLUSTER_ROOM
        return max(0.0, min(_MOST_ROOM, _MEMORY_SHARE * available_bytes() / self.count - own))

    def tasks(self, parts: int) -> int:
        """How many tasks are handed out: one for each worker, and more for those that join a cluster later."""
        return max(1, min(parts, self.count * (1 if self.is_local else _TASKS_PER_WORKER)))


def _needs(tangents: Engine, first: Batch) -> Needs:
    """Bytes per sample as a small chunk shows them, and per pair of samples."""
    few = first.pick([k % first.count for k in range(_TRIAL_SAMPLES)])
    factors = _factors(tangents, few)
    held = sum(factor.bytes for own in factors.values() for factor in own.values()) / _TRIAL_SAMPLES
    width = 1 if tangents.job.trace else len(tangents.outputs)
    entry = len(set(tangents.labels.values())) * width**2 * tangents.dtype.itemsize
    passes = tangents.memory.passes + max(0.0, tangents.memory.factors - held)
    return Needs(held, passes, entry)


def _factors(tangents: Engine, batch: Batch) -> Factors:
    while True:
        try:
            return tangents.chunk(batch)
        except GraphChangedError as change:
            tangents.look_again(change)


def _layout(
    prepared: Prepared,
    by: str | None,
    print_of: dict[str, str],
    needs: Needs,
    crew: _Crew,
    side: int | None,
    threads: int | None,
) -> Layout:
    tangents, _, second = prepared
    samples = tangents.job.rows, tangents.job.columns
    sides = (
        tile_sides(samples, needs, crew.room)
        if side is None
        else (min(side, samples[0]), min(side, samples[1]))
    )
    grid = Grid(samples, sides, second is None)
    _require_room(grid, needs, crew)
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
    )


def _require_room(grid: Grid, needs: Needs, crew: _Crew) -> None:
    side = max(grid.sides)
    require_memory(
        needs.working(side) + needs.factors * side,
        f"a worker with tiles of {grid.sides[0]} x {grid.sides[1]} samples",
        "use fewer workers, or a new store with a smaller batch_size=, outputs='trace' or a list of fewer outputs",
        share=1.0,
        available=int(crew.room),
    )


def _create(path: Path, layout: Layout, *, overwrite: bool) -> None:
    _require_disk(path, layout, 0)
    if overwrite and path.exists():
        with Folder(path).locked():
            create(path, layout, overwrite=True)
    else:
        create(path, layout)


def _require_disk(path: Path, layout: Layout, finished: int) -> None:
    """Refuse what will not fit before hours are spent on it."""
    grid = layout.grid
    needed = stored_bytes(grid, layout.entry_bytes) * (1 - finished / len(grid.tiles))
    existing = next(folder for folder in [path, *path.parents] if folder.exists())
    free = shutil.disk_usage(existing).free
    if needed > _FREE_SHARE * free:
        raise FileError(
            f"the kernel of {grid.samples[0]} x {grid.samples[1]} samples needs {human_bytes(needed)} of disk, but "
            f"{existing} has {human_bytes(free)} free: make room, choose another store=, or ask for outputs='trace', "
            "fewer samples or a model in float32."
        )


def _refuse_other_cut(folder: Folder, side: int | None, threads: int | None) -> None:
    layout = folder.layout
    if side is not None and layout.grid.sides != tuple(min(side, count) for count in layout.grid.samples):
        raise FileError(
            f"{folder.path} has tiles of {layout.grid.sides[0]} x {layout.grid.sides[1]} samples, which stays so: "
            "leave batch_size= out, or pass overwrite=True."
        )
    if threads is not None and threads != layout.threads:
        raise FileError(
            f"{folder.path} is computed with {layout.threads} threads per worker, which stays so: "
            "leave threads= out, or pass overwrite=True."
        )


def _forget_damaged(folder: Folder) -> None:
    damaged = folder.damaged(sorted(folder.recorded()))
    if damaged:
        folder.forget(damaged)
        named = ", ".join(f"{i}-{j}" for i, j in damaged[:5]) + (", ..." if len(damaged) > 5 else "")
        warnings.warn(
            f"{len(damaged)} tiles of {folder.path} do not have their checksums ({named}) and are computed again.",
            stacklevel=3,
        )


class _Driver:
    """Sends tasks out in rounds until no tile is missing."""

    def __init__(self, folder: Folder, prepared: Prepared, by: str | None, needs: Needs, crew: _Crew) -> None:
        self._folder, self._prepared, self._by = folder, prepared, by
        self._needs, self._crew = needs, crew
        grid = folder.layout.grid
        _require_room(grid, needs, crew)
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
                    f"workers ended {_PATIENCE} times without a tile: use fewer workers or a smaller memory=."
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
            try:
                with Watch(self._folder, estimate):
                    outcomes.extend(self._results(jobs))
            except EngineError as error:
                return error, outcomes
        return None, outcomes

    def _results(self, jobs: list[Task]) -> Iterable[Outcome]:
        return engines.run(work, jobs, engine=self._crew.engine, workers=self._crew.workers, ordered=False)

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
        if (
            aside == before
        ):  # what a worker met does not show here: all parameters go the way that suits any graph
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
