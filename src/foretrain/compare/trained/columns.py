"""The numbers that trained networks and theory share, and what is averaged over networks to measure them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import TypeAlias

import numpy as np

from foretrain.compare.judging.entries import BatchValues, Entry
from foretrain.compare.trained.goal import Law, moments
from foretrain.theory.architecture import FloatArray

OBSERVABLES = {
    "mean": "mean over networks of an output on a test input",
    "covariance": "covariance over networks of an output on two test inputs, averaged over outputs",
    "between": "covariance of two different outputs, averaged over pairs of outputs",
}
MOST_PAIRS = 6  # test inputs up to which all their pairs are compared; variances alone beyond


@dataclass(frozen=True, order=True)
class TrainedEntry(Entry):
    """One number that theory and trained networks share; inputs are numbers of test inputs."""

    output: int | None = None

    @property
    def label(self) -> str:
        """For example ``mean of output 1 at 0`` or ``covariance at 0 3``."""
        where = " ".join(map(str, self.inputs))
        of = "" if self.output is None else f" of output {self.output}"
        return f"{self.observable}{of} at {where}"


Entries: TypeAlias = list[TrainedEntry]


def entries_of(law: Law, depth: int) -> Entries:
    """Every mean, and the covariance of pairs of test inputs or, if they are many, of each alone."""
    tests, outputs = law.mean.shape
    everywhere = combinations_with_replacement(range(tests), 2)
    pairs = list(everywhere) if tests <= MOST_PAIRS else [(b, b) for b in range(tests)]
    found = [TrainedEntry("mean", depth, (b,), i) for b in range(tests) for i in range(outputs)]
    names = ("covariance", "between") if outputs > 1 else ("covariance",)
    return found + [TrainedEntry(name, depth, pair) for name in names for pair in pairs]


def values_of(law: Law, entries: Entries) -> FloatArray:
    """What the theory says."""
    parts = (
        law.mean.reshape(-1),
        *(
            _at(each, name, entries)
            for each, name in ((law.covariance, "covariance"), (law.between, "between"))
        ),
    )
    return np.concatenate(parts)


@dataclass(frozen=True, eq=False)
class Columns:
    """For each pair of mirrored networks, or each batch: outputs (pairs, tests, outputs) and products by entry."""

    shift: FloatArray
    own: FloatArray  # (pairs, entries of one output)
    between: FloatArray  # (pairs, entries of two outputs)

    @classmethod
    def of(cls, e: FloatArray, entries: Entries) -> Columns:
        """Of networks (networks, tests, outputs), mirrored ones next to each other; e is less the predicted mean."""
        return cls.with_moments(e, *moments(e), entries)

    @classmethod
    def with_moments(cls, e: FloatArray, own: FloatArray, between: FloatArray, entries: Entries) -> Columns:
        """The same with products (networks, tests, tests) given."""
        columns = (e, _at(own, "covariance", entries), _at(between, "between", entries))
        return cls(*((column[::2] + column[1::2]) / 2 for column in columns))

    @classmethod
    def joined(cls, parts: list[Columns]) -> Columns:
        """Of more networks."""
        return cls(*(np.concatenate(column) for column in zip(*(part._all for part in parts))))

    @property
    def _all(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        return self.shift, self.own, self.between

    def each(self, function: Callable[[FloatArray], FloatArray]) -> Columns:
        """Columns changed one by one."""
        return Columns(*map(function, self._all))

    def plus(self, other: Columns, factor: float = 1.0) -> Columns:
        """Sums of two sets of columns of equal length."""
        return Columns(*(mine + factor * theirs for mine, theirs in zip(self._all, other._all)))

    def by_batch(self, batches: int) -> Columns:
        """Means over batches of pairs."""
        size = len(self.shift) // batches
        return self.each(lambda values: values.reshape(batches, size, *values.shape[1:]).mean(axis=1))


def pseudo_values(law: Law, batches: Columns, entries: Entries) -> BatchValues:
    """Of the entries, by the jackknife."""
    return BatchValues.jackknife(lambda means: _estimates(law, Columns(**means), entries), vars(batches))


def _estimates(law: Law, columns: Columns, entries: Entries) -> FloatArray:
    """Means, and products less products of means: (rows, entries)."""
    own, between = moments(columns.shift)
    parts = (
        (law.mean + columns.shift).reshape(len(columns.shift), -1),
        columns.own - _at(own, "covariance", entries),
        columns.between - _at(between, "between", entries),
    )
    return np.concatenate(parts, axis=1)


def _at(matrices: FloatArray, name: str, entries: Entries) -> FloatArray:
    """(…, entries of that name) from (…, tests, tests)."""
    places = np.array([entry.inputs for entry in entries if entry.observable == name]).reshape(-1, 2)
    return np.asarray(matrices[..., places[:, 0].astype(int), places[:, 1].astype(int)])
