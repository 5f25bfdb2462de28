"""Moments of preactivations with neuron structure, read off a chunk of draws in two ways.

A moment is written as one tuple of inputs per neuron: ((0, 1), (2, 2)) is E[z_{i;0} z_{i;1} z_{j;2} z_{j;2}]
with i ≠ j. Neurons are exchangeable, so only this pattern matters.

Draws are split into equal batches. Leaving out one at a time (the jackknife) gives the standard error of a
nonlinear function of the means and removes its bias of order 1 / draws; it is known to about 1 / √(2 batches).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from math import factorial, perm, prod
from typing import Protocol

import numpy as np

from foretrain.gaussian.wick import set_partitions
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


Moment = tuple[tuple[int, ...], ...]


def canonical(blocks: Sequence[Sequence[int]]) -> Moment:
    """The moment of these blocks of inputs, in the order that makes equal moments equal."""
    return tuple(sorted(tuple(sorted(block)) for block in blocks if block))


def sign_weight(parts: int) -> int:
    """(-1)^(k-1) (k-1)!: weight of a partition into k parts in a cumulant, and of k indices made equal."""
    return factorial(parts - 1) * (1 if parts % 2 else -1)


class MomentReader(Protocol):
    """Something that gives the per-draw statistic whose mean is a moment."""

    def read(self, moment: Moment) -> FloatArray:
        """One number per draw."""
        ...


class NeuronAverages:
    """Averages over all tuples of distinct neurons of the layer, from preactivations (draws, n, inputs)."""

    def __init__(self, preactivations: FloatArray) -> None:
        self._by_input = np.ascontiguousarray(np.moveaxis(preactivations, -1, 0))
        self._sums: dict[tuple[int, ...], FloatArray] = {}

    def read(self, moment: Moment) -> FloatArray:
        """Mean over distinct neurons, by inclusion and exclusion; nan if the layer has too few of them."""
        draws, neurons = self._by_input.shape[1:]
        if neurons < len(moment):
            return np.full(draws, np.nan)
        total = np.zeros(draws)
        for partition in set_partitions(len(moment)):
            weight = prod(sign_weight(len(part)) for part in partition)
            merged = [tuple(sorted(chain(*(moment[block] for block in part)))) for part in partition]
            total += weight * np.prod([self._sum(inputs) for inputs in merged], axis=0)
        return total / perm(neurons, len(moment))

    def _sum(self, inputs: tuple[int, ...]) -> FloatArray:
        """Σ_i of the product of neuron i's preactivations on these inputs."""
        if inputs not in self._sums:
            product = self._by_input[inputs[0]]
            for index in inputs[1:]:
                product = product * self._by_input[index]
            self._sums[inputs] = product.sum(axis=-1)
        return self._sums[inputs]


class MetricContractions:
    """The same moments from Ĝ (draws, inputs, inputs): the average over the layer's own weights is exact.

    Given Ĝ the neurons are independent Gaussians (4.71), so a moment is a product of one Wick sum per neuron.
    """

    def __init__(self, metric: FloatArray) -> None:
        self._metric = np.ascontiguousarray(np.moveaxis(metric, 0, -1))
        self._sums: dict[tuple[int, ...], FloatArray] = {}

    def read(self, moment: Moment) -> FloatArray:
        """Product over neurons of their Wick sums."""
        result: FloatArray = np.prod([self._wick(inputs) for inputs in moment], axis=0)
        return result

    def _wick(self, inputs: tuple[int, ...]) -> FloatArray:
        """Sum over pairings of the inputs of products of Ĝ (1.45)."""
        if not inputs:
            return np.ones(self._metric.shape[-1])
        if len(inputs) % 2:
            return np.zeros(self._metric.shape[-1])
        if inputs not in self._sums:
            first, rest = inputs[0], inputs[1:]
            self._sums[inputs] = np.sum(
                [
                    self._metric[first, other] * self._wick(rest[:index] + rest[index + 1 :])
                    for index, other in enumerate(rest)
                ],
                axis=0,
            )
        return self._sums[inputs]
