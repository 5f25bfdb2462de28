"""Pairs of inputs, what metrics are indexed by, and the one recursion of their covariances: V, D and A.

With F_ab(K) = <s_a s_b>, row (a, b) of the response M = dF/dK has entries at aa, ab and bb only. A set of pairs that
has aa and bb for every ab is closed: V flows on it by itself, and so do D and A with the tangent kernel of some of
its pairs. Full tensors, chosen quadruples, blocks inside every pair of inputs, residual networks and Bayesian
predictions differ in their sets and in how they find covariances, not in the step (:class:`JointCovariance`).

Copies, multiples of each other and zeros are described by one Gaussian variable. F_ab of such a pair, s = sigma or a
derivative of it, depends on one variance, and the metric can only move along that line. Its derivatives along the
line are finite where partial derivatives of kinked or discontinuous activations are not (:class:`Line`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrain.activations import Activation
from foretrain.gaussian import factor, z
from foretrain.gaussian.expectation import expectations

if TYPE_CHECKING:
    from foretrain.theory.recursions.expectations import PairExpectations, Step

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

_DEPENDENT = 1e-13  # of 1 - correlation^2: several layers of rounding
_TOLERANCE = 1e-13
_NONE = slice(0, 0)
_CACHED_SETS = 2048  # of a stack that are multiplied at a time: what is made on the way stays in the cache


class Pairs:
    """The P = N(N+1)/2 unordered pairs (a, b), a <= b, of N inputs, row by row, or other closed sets of pairs.

    ``first`` and ``second`` (..., P) are the inputs of every pair; axes in front are a stack of sets.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.first, self.second = np.triu_indices(size)

    @classmethod
    def closure(cls, size: int, first: Indices, second: Indices) -> Pairs:
        """Some pairs of ``size`` inputs, in order, with aa and bb for every ab."""
        both = np.stack([np.minimum(first, second).ravel(), np.maximum(first, second).ravel()], axis=1)
        alone = np.unique(both)
        found = cls(size)
        both = np.unique(np.concatenate([both, np.stack([alone, alone], axis=1)]), axis=0)
        found.first, found.second = both.astype(np.intp).T
        return found

    @classmethod
    def inside(cls, size: int, a: Indices, b: Indices) -> Pairs:
        """A stack (Q, 3) of sets aa, ab, bb, one for every pair (a, b)."""
        found = cls(size)
        found.first, found.second = np.stack([a, a, b], axis=1), np.stack([a, b, b], axis=1)
        return found

    def __len__(self) -> int:
        return self.first.shape[-1]

    @cached_property
    def number(self) -> Indices:
        """(N, N): the number of the pair (a, b) in either order, -1 for pairs that are not in the set."""
        table = np.full((self.size, self.size), -1, dtype=np.intp)
        table[self.first, self.second] = table[self.second, self.first] = np.arange(len(self))
        return table

    @cached_property
    def first_twice(self) -> Indices:
        """For each pair (a, b) the number of (a, a)."""
        return self.number[self.first, self.first] if self.first.ndim == 1 else np.array([0, 0, 2])

    @cached_property
    def second_twice(self) -> Indices:
        """For each pair (a, b) the number of (b, b)."""
        return self.number[self.second, self.second] if self.first.ndim == 1 else np.array([0, 2, 2])

    def vector(self, matrix: Array) -> Array:
        """The entries (..., P) of a symmetric matrix (N, N)."""
        return np.asarray(matrix[self.first, self.second])

    def matrix(self, vector: Array) -> Array:
        """The symmetric matrix (N, N) with these entries (P,)."""
        return np.asarray(vector[self.number])

    def tensor(self, pair_matrix: Array) -> Array:
        """(N, N, N, N) from a matrix (P, P) on pairs."""
        return np.asarray(pair_matrix[self.number[:, :, None, None], self.number[None, None, :, :]])


def quadruples_between(rows: Pairs, columns: Pairs) -> Indices:
    """The four inputs of every pair of pairs: (..., rows, columns, 4)."""
    a, b = rows.first[..., :, None], rows.second[..., :, None]
    c, d = columns.first[..., None, :], columns.second[..., None, :]
    return np.stack(np.broadcast_arrays(a, b, c, d), axis=-1)


def are_tied(K: Array, a: Indices, b: Indices, within: float = _DEPENDENT) -> NDArray[np.bool_]:
    """Whether z_b is a multiple of z_a (or the other way round), for every pair; ``within``: 1 - correlation^2."""
    product = K[a, a] * K[b, b]
    return np.asarray((a == b) | (product - K[a, b] ** 2 <= within * product))


class Line:
    """Tied pairs (a, b) seen along the variance of the wider of the two, the pivot; s = sigma^(order)."""

    def __init__(self, activation: Activation, K: Array, a: Indices, b: Indices, order: int = 0) -> None:
        self._factor = factor(activation, order).pointwise()
        self.pivot_is_first = K[a, a] >= K[b, b]
        pivot, other = np.where(self.pivot_is_first, a, b), np.where(self.pivot_is_first, b, a)
        self._variance = K[pivot, pivot]
        safe = np.where(self._variance > 0, self._variance, 1.0)
        ratio = K[pivot, other] / safe
        self._covariance = self._variance[:, None, None] * np.stack(
            [np.stack([np.ones_like(ratio), ratio], -1), np.stack([ratio, ratio**2], -1)], -2
        )
        self._safe = safe

    def slope(self) -> Array:
        """dF/dK of the pivot: <s_a s_b (z^2 - K)> / 2K^2 (5.53), zero where the pivot is zero."""
        plain, squared = self._weighted(0, 2)
        found = squared - self._variance * plain
        return np.where(self._variance > 0, found / (2 * self._safe**2), 0.0)

    def bend(self) -> Array:
        """d^2F/dK^2 of the pivot: <s_a s_b (z^4 - 6 K z^2 + 3 K^2)> / 4K^4."""
        K, (plain, squared, fourth) = self._variance, self._weighted(0, 2, 4)
        found = fourth - 6 * K * squared + 3 * K**2 * plain
        return np.where(K > 0, found / (4 * self._safe**4), 0.0)

    def _weighted(self, *powers: int) -> Array:
        """<s_a s_b z^power> for each of the powers, z that of the pivot: (powers, pairs)."""
        s = self._factor
        weighted = [z**power * s if power else s for power in powers]
        found = np.empty((len(powers), len(self._variance)))
        one = self._covariance[:, 1, 1] == self._covariance[:, 0, 0]
        one &= self._covariance[:, 0, 1] == self._covariance[:, 0, 0]
        found[:, one] = expectations([(f * s,) for f in weighted], self._covariance[one, :1, :1], _TOLERANCE)
        found[:, ~one] = expectations([(f, s) for f in weighted], self._covariance[~one], _TOLERANCE)
        return found


class Response(NamedTuple):
    """dF/dK of ``chosen`` pairs of a closed set: entries at aa, ab and bb (they add up where a = b)."""

    pairs: Pairs
    first: Array
    cross: Array
    second: Array
    chosen: slice = slice(None)

    def __matmul__(self, v: Array) -> Array:
        """M v for vectors (P,) or matrices (..., P, Q)."""
        if v.ndim == self.first.ndim:
            return np.asarray((self @ v[..., None])[..., 0])
        first, second = self.pairs.first_twice[self.chosen], self.pairs.second_twice[self.chosen]
        moved = np.empty((*self.first.shape, v.shape[-1]))
        stack = [slice(i, i + _CACHED_SETS) for i in range(0, len(moved), _CACHED_SETS)]
        for part in stack if self.first.ndim > 1 else [...]:
            new, old = moved[part], v[part]
            np.multiply(self.first[part][..., None], old.take(first, axis=-2), out=new)
            new += self.cross[part][..., None] * old[..., self.chosen, :]
            new += self.second[part][..., None] * old.take(second, axis=-2)
        return moved

    def pull_back(self, forms: Array) -> Array:
        """M^T v for stacks (..., P) of vectors."""
        result = self.cross * forms
        for row, v in zip(result.reshape(-1, len(self.cross)), forms.reshape(-1, len(self.cross))):
            np.add.at(row, self.pairs.first_twice, self.first * v)
            np.add.at(row, self.pairs.second_twice, self.second * v)
        return np.asarray(result)


class Side:
    """One side of a joint covariance: C_W s s on a closed set of pairs, then Omega on its pairs ``tangents``.

    Omega = lambda_W s s + C_W Theta s' s' (8.74). Fluctuations of the old layer, of z z and of the tangent kernel,
    become R J with R = [[gamma^2 + C_W M, 0], [M_Omega, C_W <s' s'>]]; the activations' own are W Cov W^T, where W
    makes these two of s s and s' s'.
    """

    def __init__(self, layer: PairExpectations, step: Step, pairs: Pairs, tangents: slice = _NONE) -> None:
        self.layer, self.step, self.pairs, self.tangents = layer, step, pairs, tangents

    @cached_property
    def _chosen(self) -> tuple[Indices, Indices]:
        return self.pairs.first[..., self.tangents], self.pairs.second[..., self.tangents]

    @cached_property
    def _weight(self) -> Array:
        """C_W Theta of the pairs with a tangent kernel."""
        return np.asarray(self.step.C_W * self.layer.Theta[self._chosen])

    @cached_property
    def _growth(self) -> Array:
        """C_W <s' s'> of the same pairs."""
        return np.asarray(self.step.C_W * self.layer.of(1, 1)[self._chosen])

    @cached_property
    def _omega(self) -> Response:
        """M_Omega = dOmega/dK."""
        return Response(self.pairs, *self.layer.tangent_rows(*self._chosen, self.step), self.tangents)

    def weigh(self, moments: Array) -> Array:
        """W on rows (..., P + tangents, Q)."""
        values, slopes = moments[..., : len(self.pairs), :], moments[..., len(self.pairs) :, :]
        weighed = self.step.C_W * values
        if self.tangents == _NONE:
            return np.asarray(weighed)
        Omega = self.step.lambda_W * values[..., self.tangents, :] + self._weight[..., None] * slopes
        return np.concatenate([weighed, Omega], axis=-2)

    def __matmul__(self, old: Array) -> Array:
        """R on rows (..., P + tangents, Q)."""
        values, tangents = old[..., : len(self.pairs), :], old[..., len(self.pairs) :, :]
        moved = self.layer.response_on(self.pairs) @ values
        moved *= self.step.C_W
        if self.step.gamma:
            moved += self.step.gamma**2 * values
        if self.tangents == _NONE:
            return np.asarray(moved)
        return np.concatenate([moved, self._omega @ values + self._growth[..., None] * tangents], axis=-2)

    def tie(self, matrix: Array) -> Array:
        """Rows aa, ab and bb of one input are one: kept apart, their rounding would grow by chi_perp^2 a layer."""
        if self.pairs.first.ndim > 1:
            alone = self.pairs.first[:, 0] == self.pairs.second[:, 2]
            matrix[alone, :3] = matrix[alone, :1]
        return matrix

    def weigh_back(self, forms: Array) -> dict[int, Array]:
        """W^T on forms (Q, P + tangents), all pairs: forms on s s and on s' s', by the order of the derivative."""
        values, tangents = forms[:, : len(self.pairs)], forms[:, len(self.pairs) :]
        if self.tangents == _NONE:
            return {0: self.step.C_W * values}
        return {0: self.step.C_W * values + self.step.lambda_W * tangents, 1: self._weight * tangents}

    def pull_back(self, forms: Array) -> Array:
        """R^T on forms (..., P + tangents), all pairs."""
        values, tangents = forms[..., : len(self.pairs)], forms[..., len(self.pairs) :]
        moved = self.step.C_W * self.layer.response_on(self.pairs).pull_back(values)
        if self.tangents == _NONE:
            return np.asarray(moved)
        return np.concatenate([moved + self._omega.pull_back(tangents), self._growth * tangents], axis=-1)


class JointCovariance:
    """V, D and A between two closed sets of pairs, J = [[V, D], [D^T, A]], as far as ``names`` need it.

    J' = W Cov W^T + (n_l / n_{l-1}) R J R^T (4.119), (8.77), (8.97), zero at layer 1, with W and R of :class:`Side`.
    D and A have the tangent kernels of the pairs ``tangents`` of each set.
    """

    def __init__(
        self, left: Pairs, right: Pairs, names: Collection[str] = "V", tangents: slice = _NONE
    ) -> None:
        self.pairs = left, right
        self._tangents = (
            tangents if "A" in names else _NONE,
            tangents if {"D", "A"} & {*names} else _NONE,
        )
        shape = [len(p) + len(range(len(p))[t]) for p, t in zip(self.pairs, self._tangents, strict=True)]
        self.values = np.zeros((*left.first.shape[:-1], *shape))

    def now(self) -> dict[str, Array]:
        """The blocks that are carried along."""
        rows, columns = (len(pairs) for pairs in self.pairs)
        blocks = {
            "V": self.values[..., :rows, :columns],
            "D": self.values[..., :rows, columns:],
            "A": self.values[..., rows:, columns:],
        }
        return {name: block for name, block in blocks.items() if block.size}

    def step(self, layer: PairExpectations, step: Step, covariance: Callable[[int, int], Array]) -> None:
        """The next layer; ``covariance(i, j)`` is Cov(s s, t t) of derivatives of these orders of sigma.

        Its rows and columns are all pairs of a set for order 0, and those with a tangent kernel for order 1.
        """
        left, right = (Side(layer, step, p, t) for p, t in zip(self.pairs, self._tangents, strict=True))
        if self.pairs[0] is self.pairs[1] and self._tangents[0] == self._tangents[1]:
            right = left  # what one has found the other need not
        orders = [(0,) if tangents == _NONE else (0, 1) for tangents in self._tangents]
        moments = _joined([_joined([covariance(i, j) for j in orders[1]], -1) for i in orders[0]], -2)
        fresh = _on_both_sides(left.weigh, right.weigh, moments)
        if self.values.any():  # the response is not asked for before something fluctuates
            moved = _on_both_sides(left.__matmul__, right.__matmul__, self.values)
            moved *= step.ratio
            fresh += moved
        self.values = _on_both_sides(left.tie, right.tie, fresh)


def _joined(parts: Sequence[Array], axis: int) -> Array:
    """Parts side by side; one alone is not copied."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis)


def _on_both_sides(left: Callable[[Array], Array], right: Callable[[Array], Array], matrix: Array) -> Array:
    """Two maps of rows, the second one applied to the columns."""
    return np.swapaxes(right(np.swapaxes(left(matrix), -1, -2)), -1, -2)


def sandwich(left: Response, matrix: Array, right: Response) -> Array:
    """M X M^T between two closed sets."""
    return _on_both_sides(left.__matmul__, right.__matmul__, matrix)
