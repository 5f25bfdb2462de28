"""Chunks and tiles put together into the whole kernel, within the memory there is."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from foretrain.empirical.models.batches import Batch
from foretrain.empirical.tangent_kernel.engine import Engine, Factors
from foretrain.empirical.tangent_kernel.factors import add_products, add_symmetric_products, rows_of
from foretrain.support.memory import available_bytes, require_memory
from foretrain.support.progress import Progress

_SHARE = 0.5  # of the available memory that chunks may take
_LIBRARIES = 30e6  # bytes that matrix products and convolutions keep for themselves
_LARGEST_WORKING = 2e9  # bytes; more would not be faster


def assemble(
    engine: Engine, first: Batch, second: Batch | None, batch_size: int | None
) -> tuple[Tensor, float]:
    """The kernel (labels, N, N2, C, C) or (labels, N, N2), and the bytes of working memory that it took at most.

    ``second`` None means the same samples; ``batch_size`` how many go through the model together, None for what fits.
    """
    rows = 1 if engine.job.trace else len(engine.outputs)
    n, m = engine.job.rows, engine.job.columns
    labels = list(dict.fromkeys(engine.labels.values()))
    like = next(iter(engine.parameters.values()))
    result_bytes = len(labels) * n * m * rows * rows * engine.dtype.itemsize
    available = available_bytes()
    size = _chunk_size(engine, batch_size, result_bytes, available)
    shape = (len(labels), n * rows, m * rows)
    if like.device.type == "cpu":  # numpy's zeros cost nothing before they are written to
        kind = {torch.float32: "f4", torch.float64: "f8"}[engine.dtype]
        flat = torch.from_numpy(np.zeros(shape, dtype=kind))
    else:
        flat = torch.zeros(shape, dtype=engine.dtype, device=like.device)
    store = _Store(engine, size, _SHARE * (available - result_bytes))
    _fill(dict(zip(labels, flat)), store, first, second, rows)
    values = flat.view(len(labels), n, rows, m, rows).permute(0, 1, 3, 2, 4)
    return (values.reshape(len(labels), n, m) if engine.job.trace else values), store.most_bytes


def _chunk_size(engine: Engine, batch_size: int | None, result_bytes: float, available: int) -> int:
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
    if batch_size is not None:
        require_memory(
            result_bytes + 2 * min(batch_size, count) * per_sample,
            f"a chunk of {batch_size} samples",
            "pass a smaller `batch_size=` or 'auto'",
            available=available,
        )
        return batch_size
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


def _fill(target: Mapping[str, Tensor], store: _Store, first: Batch, second: Batch | None, rows: int) -> None:
    """All chunks with all; of a kernel of samples with themselves, those on and above the diagonal."""
    columns = first if second is None else second
    mine_parts, their_parts = store.chunks(first), store.chunks(columns)
    count = len(mine_parts)
    with Progress(
        "NTK", total=count * (count + 1) / 2 if second is None else count * len(their_parts)
    ) as bar:
        for i, mine in enumerate(mine_parts):
            left = store.factors(first, mine)
            for theirs in their_parts[i:] if second is None else their_parts:
                on_diagonal = second is None and theirs == mine
                right = left if on_diagonal else store.factors(columns, theirs)
                across, down = rows_of(mine, rows), rows_of(theirs, rows)
                for label, kernel in target.items():
                    block = kernel[across, down]
                    if on_diagonal:
                        add_symmetric_products(block, list(left[label].values()), rows)
                        continue
                    # Where no gradient arrives on one side, the product is zero.
                    shared = [key for key in left[label] if key in right[label]]
                    add_products(
                        block,
                        [left[label][key] for key in shared],
                        [right[label][key] for key in shared],
                        rows,
                    )
                    if second is None:
                        kernel[down, across] = block.t()
                bar.advance()
