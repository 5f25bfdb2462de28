"""Chunks and tiles put together into the whole kernel, within the memory there is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foretrain.empirical.models.batches import Batch
from foretrain.empirical.tangent_kernel.engine import Engine, Factors
from foretrain.empirical.tangent_kernel.factors import Factor
from foretrain.empirical.tangent_kernel.tiles import add_products, add_symmetric_products
from foretrain.support.memory import available_bytes, require_memory
from foretrain.support.progress import Progress

_SHARE = 0.5  # of the available memory that chunks may take
_LIBRARIES = 30e6  # bytes that matrix products and convolutions keep for themselves
_LARGEST_WORKING = 2e9  # bytes; more would not be faster


@dataclass(frozen=True)
class Samples:
    """Both sides of a kernel (``second`` None: the same samples), and how many go through the model together."""

    first: Batch
    second: Batch | None
    size: int | None


def assemble(engine: Engine, samples: Samples) -> tuple[Tensor, float]:
    """The kernel (labels, N, N2, C, C) or (labels, N, N2), and the bytes of working memory that it took at most."""
    rows = 1 if engine.job.trace else len(engine.outputs)
    n, m = engine.job.rows, engine.job.columns
    labels = list(dict.fromkeys(engine.labels.values()))
    like = next(iter(engine.parameters.values()))
    result_bytes = len(labels) * n * m * rows * rows * engine.dtype.itemsize
    available = available_bytes()
    size = _chunk_size(engine, samples, result_bytes, available)
    flat = _zeros((len(labels), n * rows, m * rows), engine.dtype, like.device)
    store = _Store(engine, size, _SHARE * (available - result_bytes))
    target = dict(zip(labels, flat))
    if samples.second is None:
        _fill_symmetric(target, store, samples.first, rows)
    else:
        _fill(target, store, samples.first, samples.second, rows)
    values = flat.view(len(labels), n, rows, m, rows).permute(0, 1, 3, 2, 4)
    return (values.reshape(len(labels), n, m) if engine.job.trace else values), store.most_bytes


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """On the CPU from numpy, whose zeros cost nothing before they are written to."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(shape, dtype={torch.float32: "f4", torch.float64: "f8"}[dtype]))


def _chunk_size(engine: Engine, samples: Samples, result_bytes: float, available: int) -> int:
    """Samples per chunk: as the user said, or as many as fit beside the result, two chunks at a time."""
    per_sample = engine.memory.factors + engine.memory.passes
    count = max(engine.job.rows, engine.job.columns)
    least = 4 * per_sample
    what = f"the kernel of {engine.job.rows} x {engine.job.columns} samples with {engine.job.outputs} outputs"
    fewer = "fewer samples, `outputs='trace'|--trace` or a list of fewer outputs"
    require_memory(result_bytes, f"the result, {what},", f"ask for {fewer}", available=available)
    require_memory(
        result_bytes + least,
        f"{what} with two samples at a time",
        f"ask for `fewer parameters with parameters=, for |`{fewer}`, or use ntk_operator(...)|`",
        available=available,
    )
    if samples.size is not None:
        require_memory(
            result_bytes + 2 * min(samples.size, count) * per_sample,
            f"a chunk of {samples.size} samples",
            "pass a smaller `batch_size=` or 'auto'",
            available=available,
        )
        return samples.size
    room = min(_SHARE * (available - result_bytes), _LARGEST_WORKING)
    return max(2, min(count, int(room / (2 * per_sample + 1))))


class _Store:
    """Factors of chunks: kept as long as they fit, computed anew otherwise."""

    def __init__(self, engine: Engine, size: int, room: float) -> None:
        self._engine, self._size, self._room = engine, size, room
        self._kept: dict[tuple[int, int], Factors] = {}
        self._sizes: dict[tuple[int, int], float] = {}
        self.most_bytes = _LIBRARIES

    def chunks(self, batch: Batch) -> list[slice]:
        """The batch in equal parts."""
        parts = -(-batch.count // self._size)
        bounds = [batch.count * i // parts for i in range(parts + 1)]
        return [slice(a, b) for a, b in pairwise(bounds)]

    def factors(self, batch: Batch, part: slice) -> Factors:
        """The factors of a part of the batch."""
        key = (id(batch), part.start)
        if key in self._kept:
            return self._kept[key]
        found = self._engine.chunk(batch.pick(part))
        samples = part.stop - part.start
        size = self._engine.memory.factors * samples
        held = sum(self._sizes.values())
        running = _LIBRARIES + held + size + self._engine.memory.passes * samples
        self.most_bytes = max(self.most_bytes, running)
        if held + 2 * size < self._room:
            self._kept[key] = found
            self._sizes[key] = size
        return found


def _fill_symmetric(target: Mapping[str, Tensor], store: _Store, batch: Batch, rows: int) -> None:
    parts = store.chunks(batch)
    with Progress("NTK", total=len(parts) * (len(parts) + 1) / 2) as bar:
        for i, mine in enumerate(parts):
            left = store.factors(batch, mine)
            for label, kernel in target.items():
                block = kernel[_rows(mine, rows), _rows(mine, rows)]
                add_symmetric_products(block, list(left[label].values()), rows)
            bar.advance()
            for theirs in parts[i + 1 :]:
                right = store.factors(batch, theirs)
                for label, kernel in target.items():
                    block = kernel[_rows(mine, rows), _rows(theirs, rows)]
                    _add_common(block, left[label], right[label], rows)
                    kernel[_rows(theirs, rows), _rows(mine, rows)] = block.t()
                bar.advance()


def _fill(target: Mapping[str, Tensor], store: _Store, first: Batch, second: Batch, rows: int) -> None:
    mine_parts, their_parts = store.chunks(first), store.chunks(second)
    with Progress("NTK", total=len(mine_parts) * len(their_parts)) as bar:
        for mine in mine_parts:
            left = store.factors(first, mine)
            for theirs in their_parts:
                right = store.factors(second, theirs)
                for label, kernel in target.items():
                    block = kernel[_rows(mine, rows), _rows(theirs, rows)]
                    _add_common(block, left[label], right[label], rows)
                bar.advance()


def _add_common(block: Tensor, left: Mapping[Any, Factor], right: Mapping[Any, Factor], rows: int) -> None:
    """Parameters that contribute to both sides; where no gradient arrives on one, the product is zero."""
    shared = [key for key in left if key in right]
    add_products(block, [left[key] for key in shared], [right[key] for key in shared], rows)


def _rows(samples: slice, rows: int) -> slice:
    return slice(samples.start * rows, samples.stop * rows)
