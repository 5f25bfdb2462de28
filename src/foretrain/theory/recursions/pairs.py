"""Unordered pairs of inputs: what metrics and their fluctuations are indexed by."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

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
