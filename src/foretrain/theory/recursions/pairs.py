"""Unordered pairs of inputs: what metrics and their fluctuations are indexed by.

Copies, multiples of each other and zeros are described by one Gaussian variable. F_ab(K) = <s_a s_b> of such a
pair, s = sigma or a derivative of it, depends on one variance, and the metric can only move along that line. Its
derivatives along the line are finite where partial derivatives of kinked or discontinuous activations are not.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from foretrain.activations import Activation
from foretrain.gaussian import expectation, factor, z

Array = NDArray[np.float64]
Indices = NDArray[np.intp]


class Pairs:
    """The P = N(N+1)/2 unordered pairs (a, b), a <= b, of N inputs, row by row."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.first, self.second = np.triu_indices(size)

    def __len__(self) -> int:
        return len(self.first)

    @cached_property
    def number(self) -> Indices:
        """(N, N): the number of the pair (a, b) in either order."""
        table = np.empty((self.size, self.size), dtype=np.intp)
        table[self.first, self.second] = table[self.second, self.first] = np.arange(len(self))
        return table

    @property
    def first_twice(self) -> Indices:
        """For each pair (a, b) the number of (a, a)."""
        return self.number[self.first, self.first]

    @property
    def second_twice(self) -> Indices:
        """For each pair (a, b) the number of (b, b)."""
        return self.number[self.second, self.second]

    def vector(self, matrix: Array) -> Array:
        """The entries (P,) of a symmetric matrix (N, N)."""
        return np.asarray(matrix[self.first, self.second])

    def matrix(self, vector: Array) -> Array:
        """The symmetric matrix (N, N) with these entries (P,)."""
        return np.asarray(vector[self.number])

    def tensor(self, pair_matrix: Array) -> Array:
        """(N, N, N, N) from a matrix (P, P) on pairs."""
        return np.asarray(pair_matrix[self.number[:, :, None, None], self.number[None, None, :, :]])


_DEPENDENT = 1e-13  # of 1 - correlation^2: several layers of rounding
_TOLERANCE = 1e-13


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
        found = self._weighted(2) - self._variance * self._weighted(0)
        return np.where(self._variance > 0, found / (2 * self._safe**2), 0.0)

    def bend(self) -> Array:
        """d^2F/dK^2 of the pivot: <s_a s_b (z^4 - 6 K z^2 + 3 K^2)> / 4K^4."""
        K = self._variance
        found = self._weighted(4) - 6 * K * self._weighted(2) + 3 * K**2 * self._weighted(0)
        return np.where(K > 0, found / (4 * self._safe**4), 0.0)

    def _weighted(self, power: int) -> Array:
        """<s_a s_b z^power>, z that of the pivot."""
        s = self._factor
        weighted = z**power * s if power else s
        return np.asarray(expectation([weighted, s], self._covariance, tolerance=_TOLERANCE).value)
