"""A worker's side: it takes parts of the work as long as there are any, and writes the tiles of each.

A worker keeps the factors of one strip's rows while columns pass by. Which worker computes a tile makes no difference
to its bits: chunks, threads and the order of sums are always the same.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from foretrain.empirical.stored_kernel.contents import Job, Tiles
from foretrain.empirical.stored_kernel.folder import Folder, Run, RunIsOverError, clear_errors
from foretrain.empirical.stored_kernel.grid import Strip, Tile, strips
from foretrain.empirical.stored_kernel.jobs import received
from foretrain.empirical.stored_kernel.layout import is_stored_kernel
from foretrain.empirical.tangent_kernel.planning import GraphChangedError
from foretrain.support.errors import FileError
from foretrain.support.processes import end_with

_FEWEST_COLUMNS = 2  # that must be left in a strip for a second worker to compute its rows too

# Models in the memory of this process, by the run they belong to: its own workers need no copy.
here: dict[str, Job] = {}


@dataclass(frozen=True)
class Task:
    """What a worker is sent: where the store is, and which run it works for."""

    path: Path
    token: str
    digest: str | None  # None: the job is in the memory of this process
    parent: int | None  # the process that started this one for the run
    number: int  # so that no two tasks are the same


@dataclass(frozen=True)
class Outcome:
    """How a worker's task ended: all parts taken, stopped from outside, or at a graph unlike the others."""

    worker: str
    stopped: bool = False
    graph_changed: bool = False


def work(task: Task) -> Outcome:
    """Compute parts of the kernel until none is left."""
    if task.parent is not None:
        end_with(task.parent)
    run = Run(Folder(task.path), task.token)
    name = f"{socket.gethostname()}-{os.getpid()}-{threading.get_ident()}"
    if not is_stored_kernel(task.path):
        raise FileError(
            f"a worker on {socket.gethostname()} does not see {task.path}: "
            "put the store on a file system that all workers share."
        )
    if not run.goes_on:
        return Outcome(name, stopped=True)
    try:
        with clear_errors(task.path), threads(run.folder.layout.threads):
            try:
                job = here[task.token] if task.digest is None else received(run, task.digest)
                with job.tiles(run.folder.layout) as tiles:
                    Worker(run, tiles, job.height, name).take_all()
            except FileNotFoundError:
                run.require_going_on()  # the files of a run vanish when it is stopped
                raise
    except RunIsOverError:
        return Outcome(name, stopped=True)
    except GraphChangedError:
        run.stop()
        return Outcome(name, graph_changed=True)
    return Outcome(name)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """The same number of threads everywhere: sums over several depend on how many there are."""
    before = torch.get_num_threads()
    # For the calling thread alone: workers of one process do not disturb each other.
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Worker:
    """Takes parts, and writes the tiles of each."""

    def __init__(self, run: Run, tiles: Tiles, height: int, name: str) -> None:
        self._run, self._tiles, self._name = run, tiles, name
        self._layout, self._grid = run.folder.layout, run.folder.layout.grid
        self._strips = strips(self._grid, height)
        self._last = time.perf_counter()

    def take_all(self) -> None:
        """Strips of its own first, then what others have not come to."""
        done = self._run.folder.recorded()
        for strip in self._strips:
            if self._left(strip, done, 1) and self._run.claim(f"strip-{strip.number}"):
                self._take(strip, strip.columns, done)
        while True:
            done = self._run.folder.recorded()
            left = {strip.number: len(self._left(strip, done, _FEWEST_COLUMNS)) for strip in self._strips}
            longest = max(self._strips, key=lambda strip: left[strip.number])
            if not left[longest.number]:
                return
            self._take(longest, reversed(longest.columns), done)

    def _left(self, strip: Strip, done: set[Tile], fewest: int) -> list[int]:
        """Columns of a strip that nobody has taken, if there are enough of them."""
        self._run.require_going_on()
        taken = {entry.name for entry in os.scandir(self._run.claims)}
        found = [
            column
            for column in strip.columns
            if f"{strip.number}-{column}" not in taken
            and not done.issuperset(strip.tiles(self._grid, column))
        ]
        return found if len(found) >= fewest else []

    def _take(self, strip: Strip, columns: Iterable[int], done: set[Tile]) -> None:
        for column in columns:
            tiles = [tile for tile in strip.tiles(self._grid, column) if tile not in done]
            if tiles and self._run.claim(f"{strip.number}-{column}"):
                common = self._tiles.column(column, strip.rows)
                for tile in tiles:
                    self._run.require_going_on()
                    self._finish(tile, *self._tiles.tile(tile, common))

    def _finish(self, tile: Tile, values: Tensor, note: dict[str, Any]) -> None:
        images = [self._image(values, self._grid.shape(tile))]
        if self._grid.symmetric and not self._grid.on_diagonal(tile):
            images.append(self._image(values.mT, self._grid.shape(tile)[::-1]))
        note["crc"] = self._run.write(tile, images)
        # All time since the last tile was finished: that of the model's passes, and the rest.
        now = time.perf_counter()
        samples, chunk_seconds = self._tiles.spent()
        note |= {"seconds": now - self._last - chunk_seconds, "chunk_seconds": chunk_seconds}
        self._last = now
        self._run.finish(tile, note | {"chunk_samples": samples, "worker": self._name})

    def _image(self, values: Tensor, samples: tuple[int, int]) -> NDArray[Any]:
        """(labels, rows, columns) as it lies on disk."""
        rows = self._layout.width
        apart = values.reshape(len(values), samples[0], rows, samples[1], rows).permute(0, 1, 3, 2, 4)
        array: NDArray[Any] = apart.contiguous().cpu().numpy().reshape(self._layout.around(samples))
        return array
