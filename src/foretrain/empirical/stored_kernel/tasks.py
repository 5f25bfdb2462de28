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

from foretrain.empirical.models.arguments import Batch, layer_of
from foretrain.empirical.models.model import unchanged
from foretrain.empirical.stored_kernel.folder import Folder, Run, RunIsOverError, clear_errors
from foretrain.empirical.stored_kernel.grid import Grid, Strip, Tile, strips
from foretrain.empirical.stored_kernel.jobs import Job, received
from foretrain.empirical.stored_kernel.layout import is_stored_kernel
from foretrain.empirical.tangent_kernel.capture import Key
from foretrain.empirical.tangent_kernel.engine import Engine, Factors
from foretrain.empirical.tangent_kernel.factors import Factor, add_products, add_symmetric_products
from foretrain.empirical.tangent_kernel.planning import GraphChangedError
from foretrain.support.errors import FileError
from foretrain.support.processes import end_with

_FEWEST_COLUMNS = 2  # that must be left in a strip for a second worker to compute its rows too

# Models in the memory of this process, by the run they belong to: its own workers need no copy.
here: dict[str, Job] = {}


# One thread at a time looks at a model or runs it: that changes settings of the whole process.
_model_lock = threading.RLock()


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
                with unchanged(job.model):
                    Worker(run, job, name).take_all()
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
    """Takes parts, computes factors and tiles, and writes these."""

    def __init__(self, run: Run, job: Job, name: str) -> None:
        self._run, self._name = run, name
        self._layout, self._grid = run.folder.layout, run.folder.layout.grid
        with _model_lock:
            self._tangents, first, second = job.prepared()
        self._chunks = Chunks(self._tangents, self._grid, (first, second), job.room)
        self._strips = strips(self._grid, job.height)
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
        self._chunks.rows = strip.rows
        for column in columns:
            tiles = [tile for tile in strip.tiles(self._grid, column) if tile not in done]
            if tiles and self._run.claim(f"{strip.number}-{column}"):
                right = self._chunks.of(1, column)
                for tile in tiles:
                    self._finish(tile, right)

    def _finish(self, tile: Tile, right: Factors) -> None:
        on_diagonal = self._grid.on_diagonal(tile)
        left = right if on_diagonal else self._chunks.of(0, tile[0])
        self._run.require_going_on()
        layers: dict[str, float] = {}
        if on_diagonal:
            values, layers = self._on_diagonal(left, tile)
        else:
            values = self._beside(left, right, tile)
        images = [self._image(values, self._grid.shape(tile))]
        if self._grid.symmetric and not on_diagonal:
            images.append(self._image(values.mT, self._grid.shape(tile)[::-1]))
        # The sum of squares of the kernel, all contributions together.
        total = values[0] if len(values) == 1 else values.sum(0)
        squares = float(torch.linalg.vector_norm(total, dtype=torch.float64)) ** 2
        note: dict[str, Any] = {"crc": self._run.write(tile, images), "squares": squares}
        if on_diagonal:
            note |= {"diagonal": sum(layers.values()), "layers": layers}
        # All time since the last tile was finished: that of the model's passes, and the rest.
        now = time.perf_counter()
        samples, chunk_seconds = self._chunks.spent()
        note |= {"seconds": now - self._last - chunk_seconds, "chunk_seconds": chunk_seconds}
        self._last = now
        self._run.finish(tile, note | {"chunk_samples": samples, "worker": self._name})

    def _on_diagonal(self, factors: Factors, tile: Tile) -> tuple[Tensor, dict[str, float]]:
        """A tile (labels, rows, columns) and every layer's part of its trace, one label after the other."""
        rows = self._layout.width
        values = self._zeros(len(factors) if self._layout.labels is not None else 1, tile)
        layers: dict[str, float] = {}
        for number, (label, own) in enumerate(factors.items()):
            part = values[number] if self._layout.labels is not None else self._zeros(1, tile)[0]
            add_symmetric_products(part, list(own.values()), rows)
            layer = layer_of(label) if self._layout.by == "parameter" else label
            layers[layer] = layers.get(layer, 0.0) + float(part.diagonal().sum(dtype=torch.float64))
            if self._layout.labels is None:
                values[0] += part
        return values, layers

    def _beside(self, left: Factors, right: Factors, tile: Tile) -> Tensor:
        groups = list(zip(left.values(), right.values()))
        if self._layout.labels is None:  # all contributions in one sum
            merged: list[dict[Key, Factor]] = [
                {key: factor for own in side.values() for key, factor in own.items()}
                for side in (left, right)
            ]
            groups = [(merged[0], merged[1])]
        values = self._zeros(len(groups), tile)
        for part, (mine, theirs) in zip(values, groups):
            both = [key for key in mine if key in theirs]  # no gradient on one side means no product
            add_products(part, [mine[key] for key in both], [theirs[key] for key in both], self._layout.width)
        return values

    def _zeros(self, labels: int, tile: Tile) -> Tensor:
        first, second = (side * self._layout.width for side in self._grid.shape(tile))
        like = next(iter(self._tangents.parameters.values()))
        return like.new_zeros(labels, first, second, dtype=self._tangents.dtype)

    def _image(self, values: Tensor, samples: tuple[int, int]) -> NDArray[Any]:
        """(labels, rows, columns) as it lies on disk."""
        rows = self._layout.width
        apart = values.reshape(len(values), samples[0], rows, samples[1], rows).permute(0, 1, 3, 2, 4)
        array: NDArray[Any] = apart.contiguous().cpu().numpy().reshape(self._layout.around(samples))
        return array


class Chunks:
    """Factors of chunks: those of a strip's rows are kept while its columns pass, others as long as there is room."""

    def __init__(self, tangents: Engine, grid: Grid, sides: tuple[Batch, Batch | None], room: float) -> None:
        self._tangents, self._grid, self._room = tangents, grid, room
        self._sides = sides
        self._kept: dict[tuple[int, int], Factors] = {}
        self._bytes: dict[tuple[int, int], int] = {}
        self.rows = range(0)  # whose factors are used again and again
        self._samples, self._seconds = 0, 0.0

    def of(self, axis: int, number: int) -> Factors:
        """The factors of a chunk."""
        key = (0 if self._grid.symmetric else axis), number
        if key in self._kept:
            return self._kept[key]
        found = self._computed(*key)
        size = sum(factor.bytes for factors in found.values() for factor in factors.values())
        # Chunks that are no rows of the strip make room.
        others = [kept for kept in self._kept if kept[0] == 1 or kept[1] not in self.rows]
        while others and sum(self._bytes.values()) + size > self._room:
            oldest = others.pop(0)
            del self._kept[oldest], self._bytes[oldest]
        if sum(self._bytes.values()) + size <= self._room:
            self._kept[key], self._bytes[key] = found, size
        return found

    def spent(self) -> tuple[int, float]:
        """Samples that went through the model since this was asked the last time, and seconds for them."""
        found = self._samples, self._seconds
        self._samples, self._seconds = 0, 0.0
        return found

    def _computed(self, axis: int, number: int) -> Factors:
        start = time.perf_counter()
        batch, samples = self._sides[axis], self._grid.chunk(axis, number)
        assert batch is not None
        with _model_lock:
            # A list of samples is copied: memory that begins elsewhere could be summed in another order.
            found = self._tangents.chunk(batch.pick(list(samples)))
        self._samples += len(samples)
        self._seconds += time.perf_counter() - start
        return found
