"""What this machine can do, measured in the same run: GEMM flops, bytes moved, elementwise evaluations.

The arithmetic limit of a job is the sum of its parts at these rates (`Rates.seconds`). Rates are the best
of several tries, because a limit must not be beaten by chance.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
import numpy.typing as npt
import torch

TRIES = 5
GEMM_SIZE = 1536
BLOCK = 16384
MAX_BANDWIDTH_BYTES = 2**30


@dataclass(frozen=True)
class Work:
    """What a job must do whatever the algorithm's overheads, symmetry counted.

    `flops` are done by matrix products, `moved` counts bytes read and written once, `evaluations`
    counts numpy's elementwise functions by name.
    """

    dtype: str
    flops: float = 0.0
    moved: float = 0.0
    evaluations: Mapping[str, float] = field(default_factory=dict)


def load() -> float:
    """Processes that wanted a core in the last minute, on average; nan where the system does not say."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")


def cores() -> int:
    """Cores this process may use; the peers' processes inherit them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Rates:
    """Rates per second, each measured when first asked for."""

    def __init__(self) -> None:
        self.measured: dict[str, float] = {}
        self._threads = cores()

    def seconds(self, work: Work) -> float:
        """The arithmetic limit of a job."""
        total = work.flops / self.gemm(work.dtype) if work.flops else 0.0
        total += work.moved / self.bandwidth(work.moved) if work.moved else 0.0
        return total + sum(
            count / self.elementwise(name, work.dtype) for name, count in work.evaluations.items()
        )

    def gemm(self, dtype: str) -> float:
        """Flops per second of a matrix product."""
        return self._once(f"gemm {dtype} [flop/s]", lambda: _gemm_rate(np.dtype(dtype)))

    def bandwidth(self, moved: float) -> float:
        """Bytes per second on a working set of that size, read and write counted.

        Kernels of a few thousand inputs live in the last-level cache, so one rate for main memory
        would be a limit that is easily beaten.
        """
        size = min(MAX_BANDWIDTH_BYTES, 2 ** max(20, round(np.log2(moved))))
        return self._once(f"copy of {size // 2**20} MiB [byte/s]", lambda: self._copy_rate(size))

    def elementwise(self, name: str, dtype: str) -> float:
        """Evaluations per second of a numpy function on cached blocks, all cores at once."""
        return self._once(f"{name} {dtype} [1/s]", lambda: self._elementwise_rate(name, np.dtype(dtype)))

    def _once(self, key: str, measure: Callable[[], float]) -> float:
        if key not in self.measured:
            self.measured[key] = measure()
        return self.measured[key]

    def _copy_rate(self, size: int) -> float:
        source = np.ones(size // 16)
        target = np.zeros_like(source)
        halves = list(zip(np.array_split(source, self._threads), np.array_split(target, self._threads)))
        repeats = max(1, 2**27 // size)

        def copy(thread: int) -> None:
            for _ in range(repeats):
                np.copyto(halves[thread][1], halves[thread][0])

        return size * repeats / self._best_in_parallel(copy)

    def _elementwise_rate(self, name: str, dtype: np.dtype[np.floating]) -> float:
        function = getattr(np, name)
        values: npt.NDArray[np.floating] = np.random.default_rng(0).uniform(0.01, 0.99, BLOCK).astype(dtype)
        results = [np.empty_like(values) for _ in range(self._threads)]
        repeats = 200

        def evaluate(thread: int) -> None:
            for _ in range(repeats):
                function(values, out=results[thread])

        return self._threads * repeats * BLOCK / self._best_in_parallel(evaluate)

    def _best_in_parallel(self, task: Callable[[int], None]) -> float:
        with ThreadPoolExecutor(self._threads) as pool:
            return _best(lambda: list(pool.map(task, range(self._threads))))


def _gemm_rate(dtype: np.dtype[np.floating]) -> float:
    """Of numpy's or of torch's product, whichever is faster: their libraries differ."""
    left = np.random.default_rng(0).standard_normal((GEMM_SIZE, GEMM_SIZE)).astype(dtype)
    arrays = left, left.T.copy(), np.empty_like(left)
    tensors = [torch.from_numpy(array) for array in arrays]
    by_numpy = _best(lambda: np.matmul(arrays[0], arrays[1], out=arrays[2]))
    by_torch = _best(lambda: torch.matmul(tensors[0], tensors[1], out=tensors[2]))
    return 2.0 * GEMM_SIZE**3 / min(by_numpy, by_torch)


def _best(call: Callable[[], object]) -> float:
    call()
    seconds = []
    for _ in range(TRIES):
        start = perf_counter()
        call()
        seconds.append(perf_counter() - start)
    return min(seconds)
