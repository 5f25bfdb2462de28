"""Means over independent draws, and standard errors of any function of them.

Draws are split into equal batches. Leaving out one batch at a time (the jackknife) gives the standard error
of a nonlinear function of the means and removes its bias of order 1 / draws. Batches are independent, so
the standard error itself is known to about 1 / √(2 batches).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from foretrain.theory.architecture import FloatArray

BATCHES = 200


class BatchSums:
    """Running sums of per-draw statistics, one row per batch of consecutive draws."""

    def __init__(self, draws: int, shape: tuple[int, ...], batches: int = BATCHES) -> None:
        self._draws = draws
        self._seen = 0
        self._sums = np.zeros((min(batches, draws), *shape))
        self._counts = np.zeros(len(self._sums))

    def add(self, statistics: FloatArray) -> None:
        """Add the next draws, stacked along the first axis."""
        labels = (np.arange(self._seen, self._seen + len(statistics)) * len(self._sums)) // self._draws
        starts = np.flatnonzero(np.diff(labels, prepend=-1))
        self._sums[labels[starts]] += np.add.reduceat(statistics, starts, axis=0)
        self._counts += np.bincount(labels, minlength=len(self._counts))
        self._seen += len(statistics)

    def estimate(self, function: Callable[[FloatArray], FloatArray]) -> tuple[FloatArray, FloatArray]:
        """Value and standard error of ``function(means)``, which must act on any leading batch axis."""
        batches = len(self._sums)
        weights = self._counts.reshape(-1, *[1] * (self._sums.ndim - 1))
        total, count = self._sums.sum(axis=0), self._counts.sum()
        everything = function((total / count)[None])[0]
        without_one = function((total - self._sums) / (count - weights))
        value: FloatArray = batches * everything - (batches - 1) * without_one.mean(axis=0)
        error: FloatArray = np.sqrt((batches - 1) * without_one.var(axis=0))
        return value, error
