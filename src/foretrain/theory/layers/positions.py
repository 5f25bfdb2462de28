"""Pairs of positions (p, q) at which a kernel is needed, axis by axis, and the linear maps between them.

A kernel of N inputs at P positions has N^2 P^2 entries, most of which a network never reads: a head that
flattens asks for p = q only. Which pairs are needed is found backwards from the head; what follows works on
lists of pairs. A list over several axes is the product of one list for each axis, as windows, taps and paddings
are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray

from foretrain.support.arrays import beside, namespace, zeros

Array = NDArray[np.float64]
Indices = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Axis:
    """Pairs of positions along one axis of ``size`` positions: sorted keys p * size + q."""

    keys: Indices
    size: int

    @staticmethod
    def diagonal(size: int) -> Axis:
        """The pairs p = q."""
        return Axis(np.arange(size) * (size + 1), size)

    @staticmethod
    def full(size: int) -> Axis:
        """All pairs."""
        return Axis(np.arange(size * size), size)

    @staticmethod
    def of(p: Indices, q: Indices, size: int) -> Axis:
        """The distinct ones of these pairs."""
        return Axis(np.unique(p * size + q), size)

    @cached_property
    def p(self) -> Indices:
        """Positions of the first input."""
        return self.keys // max(self.size, 1)

    @cached_property
    def q(self) -> Indices:
        """Positions of the second input."""
        return self.keys % max(self.size, 1)

    def is_full(self) -> bool:
        """Whether the list holds all pairs."""
        return len(self) == self.size**2

    def is_diagonal(self) -> bool:
        """Whether the list holds the pairs p = q and no others."""
        return len(self) == self.size and len(self.same) == self.size

    @cached_property
    def same(self) -> Indices:
        """Where the list holds pairs p = q."""
        return np.flatnonzero(self.p == self.q)

    def __len__(self) -> int:
        return len(self.keys)

    def __or__(self, other: Axis) -> Axis:
        return self if self.covers(other) else Axis(np.union1d(self.keys, other.keys), self.size)

    def covers(self, other: Axis) -> bool:
        """Whether every pair of the other list is in this one."""
        if self is other or self.is_full():
            return True
        return len(self) >= len(other) and bool(np.isin(other.keys, self.keys).all())

    def places(self, p: Indices, q: Indices) -> Indices:
        """Where these pairs stand in the list; each must be in it."""
        return np.searchsorted(self.keys, p * self.size + q)


Pairs = tuple[Axis, ...]


def diagonal(positions: Sequence[int]) -> Pairs:
    """Every position with itself."""
    return tuple(Axis.diagonal(size) for size in positions)


def full(positions: Sequence[int]) -> Pairs:
    """Every position with every other."""
    return tuple(Axis.full(size) for size in positions)


def joined(first: Pairs | None, second: Pairs) -> Pairs:
    """The pairs of both, as a product of lists."""
    return second if first is None else tuple(a | b for a, b in zip(first, second, strict=True))


def shape_of(pairs: Pairs) -> tuple[int, ...]:
    """Lengths of the lists."""
    return tuple(len(axis) for axis in pairs)


def flat_positions(pairs: Pairs) -> tuple[Indices, Indices]:
    """First and second position of each pair as single numbers, in the order of the arrays."""
    if not pairs:
        return np.zeros(1, dtype=np.intp), np.zeros(1, dtype=np.intp)
    sizes, grid = [axis.size for axis in pairs], np.indices(shape_of(pairs)).reshape(len(pairs), -1)
    p, q = (
        np.ravel_multi_index([getattr(axis, side)[n] for axis, n in zip(pairs, grid)], sizes) for side in "pq"
    )
    return np.asarray(p), np.asarray(q)


def split_shape(pairs: Pairs) -> tuple[int, ...]:
    """Lengths of the lists, a full one as (first positions, second positions)."""
    return tuple(n for axis in pairs for n in ((axis.size, axis.size) if axis.is_full() else (len(axis),)))


@dataclass(frozen=True, eq=False)
class Taps:
    """Along one axis: ``source[t, p]`` is the input position that output position p reads by tap t, or -1 for none.

    Different taps have independent weights, so a pair of outputs reads pairs of inputs by the same tap.
    """

    source: Indices  # (taps, outputs)
    size: int  # input positions

    def reads(self, wanted: Axis) -> Axis:
        """Pairs of inputs that these pairs of outputs read."""
        p, q = self.source[:, wanted.p], self.source[:, wanted.q]
        inside = (p >= 0) & (q >= 0)
        return Axis.of(p[inside], q[inside], self.size)

    def step(self, wanted: Axis, given: Axis, blocks: int) -> PairStep:
        """The sum over taps, from the list of inputs to that of outputs."""
        runs = self._runs()
        for is_whole, axes in ((Axis.is_full, 2), (Axis.is_diagonal, 1)):
            if runs is not None and is_whole(wanted) and is_whole(given):
                shapes = (given.size,) * axes, (wanted.size,) * axes
                return TapSum(blocks, *shapes, runs, partial(self._matrix, wanted, given))
        return PairMatrix(self._matrix(wanted, given), blocks)

    def _matrix(self, wanted: Axis, given: Axis) -> Any:
        """The sum over taps as a sparse matrix from the list of inputs to that of outputs."""
        p, q = self.source[:, wanted.p], self.source[:, wanted.q]
        tap, row = np.nonzero((p >= 0) & (q >= 0))
        column = given.places(p[tap, row], q[tap, row])
        return sparse.csr_array((np.ones(len(row)), (row, column)), shape=(len(wanted), len(given)))

    def _runs(self) -> tuple[tuple[slice, slice], ...] | None:
        """For each tap the outputs that read by it, and the inputs they read; None where they are no plain slices."""
        runs = []
        for source in self.source:
            (outputs,) = np.nonzero(source >= 0)
            inputs, apart = source[outputs], np.diff(source[outputs])
            if not len(outputs):
                continue
            stride = int(apart[0]) if len(apart) else 1
            if stride < 1 or (np.diff(outputs) != 1).any() or (apart != stride).any():
                return None
            into = slice(int(outputs[0]), int(outputs[-1]) + 1)
            runs.append((into, slice(int(inputs[0]), int(inputs[-1]) + 1, stride)))
        return tuple(runs)


@dataclass(frozen=True, eq=False)
class Weights:
    """Along one axis: a fixed matrix from input to output positions (pooling, slicing, resizing)."""

    matrix_of_positions: Any  # sparse (outputs, inputs)

    @staticmethod
    def of(matrix: Any) -> Weights:
        """From a dense or sparse matrix."""
        kept = sparse.csr_array(matrix)
        kept.eliminate_zeros()
        kept.sort_indices()
        return Weights(kept)

    @property
    def size(self) -> int:
        """Input positions."""
        return int(self.matrix_of_positions.shape[1])

    @property
    def only_picks(self) -> bool:
        """Whether every output position is one of the input positions."""
        matrix = self.matrix_of_positions
        return bool((np.diff(matrix.indptr) == 1).all() and (matrix.data == 1).all())

    def _products(self, wanted: Axis) -> tuple[Indices, Indices, Indices, Array]:
        """For each wanted pair (its number) all input pairs (i, j) and their weights A_pi A_qj."""
        matrix = self.matrix_of_positions
        start, count = matrix.indptr[:-1].astype(np.intp), np.diff(matrix.indptr).astype(np.intp)
        of_p, of_q = count[wanted.p], count[wanted.q]
        number = np.repeat(np.arange(len(wanted)), of_p * of_q)
        inside = np.arange(len(number)) - np.repeat(np.cumsum(of_p * of_q) - of_p * of_q, of_p * of_q)
        first = start[wanted.p[number]] + inside // of_q[number]
        second = start[wanted.q[number]] + inside % of_q[number]
        weight = matrix.data[first] * matrix.data[second]
        return number, matrix.indices[first].astype(np.intp), matrix.indices[second].astype(np.intp), weight

    def reads(self, wanted: Axis) -> Axis:
        """Pairs of inputs that these pairs of outputs read."""
        _, i, j, _ = self._products(wanted)
        return Axis.of(i, j, self.size)

    def step(self, wanted: Axis, given: Axis, blocks: int) -> PairStep:
        """The map on both sides, A x A, from the list of inputs to that of outputs."""
        number, i, j, weight = self._products(wanted)
        shape = (len(wanted), len(given))
        return PairMatrix(sparse.csr_array((weight, (number, given.places(i, j))), shape=shape), blocks)


AxisMap = Taps | Weights


class Rows(NamedTuple):
    """A sparse matrix in stretches of rows that read alike: each row one column further on than the row before.

    ``stretches``: first row, number of rows, first entry and number of entries of a row (stretches, 4).
    """

    stretches: NDArray[np.uint64]
    columns: NDArray[np.uint64]
    weights: Array
    inner: np.uint64  # columns of the matrix
    outer: np.uint64  # its rows

    @staticmethod
    def of(matrix: Any) -> Rows:
        """Of a sparse matrix."""
        matrix = sparse.csr_array(matrix)
        matrix.sort_indices()
        counts, number = np.diff(matrix.indptr), np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
        # An entry goes on in the next row if that has as many entries, and the same weight one column further on.
        alike = counts[:-1] == counts[1:]
        (entry,) = np.nonzero(np.append(alike, False)[number])
        further = entry + counts[number[entry]]
        goes_on = (matrix.indices[further] == matrix.indices[entry] + 1) & (
            matrix.data[further] == matrix.data[entry]
        )
        alike[number[entry[~goes_on]]] = False
        first = np.flatnonzero(np.append(True, ~alike))
        lengths = np.diff(np.append(first, matrix.shape[0]))
        stretches = np.stack([first, lengths, matrix.indptr[first], counts[first]], axis=1)
        inner, outer = (np.uint64(n) for n in matrix.shape[::-1])
        return Rows(stretches.astype(np.uint64), matrix.indices.astype(np.uint64), matrix.data, inner, outer)


@dataclass(frozen=True, eq=False)
class PairMatrix:
    """A sparse matrix from one list of pairs to another, for arrays of numpy or of torch."""

    matrix: Any
    blocks: int  # entries of the axes before the list

    @cached_property
    def rows(self) -> Rows:
        """The matrix for compiled loops."""
        return Rows.of(self.matrix)

    @cached_property
    def _whole(self) -> Any:
        matrix = self.matrix
        return (
            matrix if self.blocks == 1 else sparse.kron(sparse.eye_array(self.blocks), matrix, format="csr")
        )

    def __call__(self, values: Any) -> Any:
        """The product with an array whose leading axes it reads; a new one, the other axes flat."""
        flat, whole = values.reshape(self._whole.shape[1], -1), self._whole
        if isinstance(values, np.ndarray):
            return whole @ flat
        listed = whole.tocoo()
        places, entries = (beside(part, values) for part in (np.stack(listed.coords), listed.data))
        sparse_tensor = namespace(values).sparse_coo_tensor
        return sparse_tensor(places, entries, whole.shape, is_coalesced=True, check_invariants=False) @ flat


@dataclass(frozen=True, eq=False)
class TapSum:
    """The sum over taps between lists of all pairs, or of equal ones, by slices of the array."""

    blocks: int  # entries of the axes before the list
    given: tuple[int, ...]  # first and second positions of the inputs, or their one position
    wanted: tuple[int, ...]
    runs: tuple[tuple[slice, slice], ...]
    matrix: Callable[[], Any]

    @cached_property
    def rows(self) -> Rows:
        """The sum as a matrix for compiled loops."""
        return Rows.of(self.matrix())

    def __call__(self, values: Any) -> Any:
        """The sum for an array whose leading axes it reads; a new one, the other axes flat."""
        values, axes = values.reshape(self.blocks, *self.given, -1), len(self.given)
        runs = [[(slice(None), *(side,) * axes) for side in run] for run in self.runs]
        whole = next((k for k, (into, _) in enumerate(self.runs) if into == slice(0, self.wanted[0])), None)
        if whole is None:
            total = zeros((self.blocks, *self.wanted, values.shape[-1]), values)
        else:
            total = 1 * values[runs.pop(whole)[1]]
        for into, source in runs:
            total[into] += values[source]
        return total


PairStep = PairMatrix | TapSum


def taken(values: Any, where: Indices, axis: int) -> Any:
    """Entries along an axis by their numbers."""
    if isinstance(values, np.ndarray):
        return np.take(values, where, axis=axis)
    return values.index_select(axis, beside(where, values))


def selected(values: Array, given: Pairs, wanted: Pairs) -> Array:
    """The entries of some of the pairs."""
    for number, (have, want) in enumerate(zip(given, wanted, strict=True)):
        if have is not want and len(have) != len(want):
            values = taken(values, have.places(want.p, want.q), number)
    return values


def split_points(values: Any, pairs: Pairs, side: str) -> Any:
    """What points hold at one side of each pair, to be broadcast with arrays of :func:`split_shape`."""
    shape = list[int]()
    for number, axis in enumerate(pairs):
        if axis.is_full():
            shape += [axis.size, 1] if side == "p" else [1, axis.size]
        else:
            values = values if axis.is_diagonal() else taken(values, getattr(axis, side), number)
            shape.append(len(axis))
    return values.reshape(*shape, *values.shape[len(pairs) :])


def at_points(values: Array, pairs: Pairs, side: str) -> Array:
    """What points (positions..., inputs) hold, at the first ("p") or second ("q") position of each pair."""
    for number, axis in enumerate(pairs):
        if not axis.is_diagonal():
            values = taken(values, getattr(axis, side), number)
    return values


def on_diagonal(values: Array, pairs: Pairs) -> Array:
    """The entries with p = q of an array over pairs, as points; the lists must hold them all."""
    for number, axis in enumerate(pairs):
        values = taken(values, axis.same, number)
    return values
