"""The numbers of order 1/n that theory and trained networks share, each times the width of the last hidden layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any

import numpy as np

from foretrain.compare.judging.entries import Entry
from foretrain.theory.architecture import FloatArray

TRAINED = {
    "ntk_variance": "n times the mean of z^F, where a kernel that stays leads, by what is of second order in it",
    "interaction": "n times the mean of z(T) - z^F: what the change of the kernel does to trained outputs",
    "mean": "n times the mean of z(T), less that at infinite width",
    "ntk_change": "n times the mean change of the tangent kernel by training",
}
POSTERIOR = {
    "log_evidence": "n times the log density of the targets, less that at infinite width",
    "mean": "n times the posterior mean, less that at infinite width",
    "covariance": "n times the covariance of an output given the metric, less that at infinite width",
    "wiring": "n times the covariance of means of two outputs over metrics",
}


@dataclass(frozen=True, order=True)
class FiniteEntry(Entry):
    """One number; inputs are numbers of test inputs, in a change of the kernel of training and test inputs."""

    outputs: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """For example ``interaction of output 0 at 2`` or ``ntk_change at 0 1``."""
        of = f" of output{'s' * (len(self.outputs) > 1)} {' '.join(map(str, self.outputs))}"
        at = f" at {' '.join(map(str, self.inputs))}"
        return f"{self.observable}{of * bool(self.outputs)}{at * bool(self.inputs)}"


Entries = list[FiniteEntry]


def trained_entries(depth: int, training: int, tests: int, outputs: int) -> Entries:
    """Every output on every test, and the change of the tangent kernel of every pair (output, sample) once."""
    single = [
        FiniteEntry(name, depth, (test,), (output,))
        for name in ("ntk_variance", "interaction", "mean")
        for test in range(tests)
        for output in range(outputs)
    ]
    return single + _pairs("ntk_change", depth, training + tests, outputs)


def posterior_entries(depth: int, tests: int, outputs: int) -> Entries:
    """The evidence, every mean, and covariances of every pair once."""
    means = [
        FiniteEntry("mean", depth, (test,), (output,)) for test in range(tests) for output in range(outputs)
    ]
    given = [
        FiniteEntry("covariance", depth, pair) for pair in combinations_with_replacement(range(tests), 2)
    ]
    return [FiniteEntry("log_evidence", depth, ()), *means, *given, *_pairs("wiring", depth, tests, outputs)]


def _pairs(name: str, depth: int, inputs: int, outputs: int) -> Entries:
    """What is symmetric under a joint exchange of inputs a, b and outputs i, j."""
    legs = [(a, i) for a in range(inputs) for i in range(outputs)]
    return [
        FiniteEntry(name, depth, (a, b), (i, j)) for (a, i), (b, j) in combinations_with_replacement(legs, 2)
    ]


def values_at(entries: Entries, arrays: Mapping[str, FloatArray]) -> FloatArray:
    """(…, entries) from arrays (…, inputs of the entry, outputs of the entry)."""
    places: list[tuple[Any, ...]] = [(..., *entry.inputs, *entry.outputs) for entry in entries]
    return np.stack([arrays[e.observable][place] for e, place in zip(entries, places)], axis=-1)
