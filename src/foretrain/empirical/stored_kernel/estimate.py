"""How long a run will still take, from the tiles that are finished: edges are smaller, diagonals cost about half."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from math import prod
from threading import Event, Thread
from types import TracebackType
from typing import Any, Self

from foretrain.empirical.stored_kernel.folder import Folder
from foretrain.empirical.stored_kernel.grid import Grid, Strip, Tile
from foretrain.support.progress import Progress

_DIAGONAL = 0.6  # of the cost per pair of samples, as long as none or only some were measured
_POLL_SECONDS = 0.5
_POLL_SHARE = 0.02  # of the time, at most, goes into looking for new tiles


class Estimate:
    """Work as pairs of samples and as samples that go through the model; each at the rate measured so far.

    ``tiles`` are still to do when the run begins; ``samples`` will go through the model in all.
    """

    def __init__(self, grid: Grid, tiles: Iterable[Tile], samples: float, workers: int) -> None:
        self._grid, self._samples_left, self._workers = grid, samples, workers
        self._left, self._seen = set(tiles), set[str]()
        # Pairs still to do, pairs done and seconds for them: on the diagonal (True) and beside it.
        self._pairs_left, self._pairs, self._seconds = ({True: 0.0, False: 0.0} for _ in range(3))
        self._samples = self._sample_seconds = 0.0
        for tile in self._left:
            self._pairs_left[grid.on_diagonal(tile)] += prod(grid.shape(tile))

    def add(self, tile: Tile, record: Mapping[str, Any]) -> None:
        """A tile is finished."""
        if tile not in self._left:
            return
        self._left.remove(tile)
        kind, size = self._grid.on_diagonal(tile), prod(self._grid.shape(tile))
        self._pairs[kind] += size
        self._pairs_left[kind] -= size
        self._seconds[kind] += record["seconds"]
        self._samples += record["chunk_samples"]
        self._samples_left -= record["chunk_samples"]
        self._sample_seconds += record["chunk_seconds"]
        self._seen.add(record["worker"])

    def remaining(self) -> float | None:
        """Seconds that all workers together still need; None before the first tile."""
        found = {kind: self._seconds[kind] / pairs for kind, pairs in self._pairs.items() if pairs}
        if not found:
            return None
        # Seconds per pair of samples, on the diagonal and beside it.
        beside = found.get(False, found.get(True, 0.0) / _DIAGONAL)
        rates = {False: beside, True: found.get(True, beside * _DIAGONAL)}
        tiles = sum(rates[kind] * pairs for kind, pairs in self._pairs_left.items())
        per_sample = self._sample_seconds / self._samples if self._samples else 0.0
        chunks = per_sample * max(0.0, self._samples_left) if self._left else 0.0
        return (tiles + chunks) / max(self._workers, len(self._seen))


def samples_to_run(grid: Grid, cut: Iterable[Strip], missing: set[Tile], workers: int) -> float:
    """Samples that go through the model: rows and columns of every strip, and rows again for those who help."""
    total, height = 0.0, 0.0
    for strip in cut:
        tiles = [tile for column in strip.columns for tile in strip.tiles(grid, column) if tile in missing]
        rows, columns = {i for i, _ in tiles}, {j for _, j in tiles}
        if grid.symmetric:
            columns -= rows
        height = sum(len(grid.chunk(0, i)) for i in rows)
        total += height + sum(len(grid.chunk(1, j)) for j in columns)
    return total + (workers - 1) * height


class Watch:
    """A bar that follows the records of a store while workers write them."""

    def __init__(self, folder: Folder, estimate: Estimate) -> None:
        self._folder, self._estimate = folder, estimate
        self._known = folder.recorded()
        self._start = time.monotonic()
        self._bar = Progress("kernel tiles", total=1.0)
        self._shown = 0.0
        self._over = Event()
        self._thread = Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Self:
        self._bar.__enter__()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self._bar.__exit__(kind, error, trace)

    def _follow(self) -> None:
        pause = _POLL_SECONDS
        while not self._over.wait(pause):
            start = time.monotonic()
            try:
                self._look()
            except (OSError, ValueError):  # a folder that vanishes is the workers' business
                continue
            pause = max(_POLL_SECONDS, (time.monotonic() - start) / _POLL_SHARE)

    def _look(self) -> None:
        new = self._folder.recorded() - self._known
        for tile in new:
            self._estimate.add(tile, self._folder.record(tile))
        self._known |= new
        remaining = self._estimate.remaining()
        if remaining is not None:
            spent = time.monotonic() - self._start
            share = spent / (spent + remaining)  # so that the bar's own time to go is the estimate
            self._bar.advance(share - self._shown)
            self._shown = share
