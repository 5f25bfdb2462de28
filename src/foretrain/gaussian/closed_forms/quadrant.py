"""Piecewise polynomials of two inputs: the orthant moments for n = 2, with the angle kept to its last digit.

The angle of two nearly parallel inputs is a small difference of the entries of K. Here it comes from the exact
determinant, so that a step feels inputs apart as long as K tells them apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.polynomial import polynomial as poly
from numpy.typing import NDArray

from foretrain.gaussian.covariance import difference_of_products

Array = NDArray[np.float64]
Pieces = tuple[Sequence[float], Sequence[float]]

_EPS = float(np.finfo(float).eps)


def quadrant_moment(pieces: Sequence[Pieces], K: Array) -> tuple[Array, Array]:
    """E[p_1(z_1) p_2(z_2)], each p polynomial on z < 0 and on z >= 0, for a stack (B, 2, 2)."""
    moments = _Moments(K)
    value, size = np.zeros(len(K)), np.zeros(len(K))
    parts = [_polynomial_and_step(piece) for piece in pieces]
    for first_step, first in enumerate(parts[0]):
        for second_step, second in enumerate(parts[1]):
            for i, a in enumerate(first):
                for j, b in enumerate(second):
                    if a and b:
                        term = a * b * moments.get((i, j), (first_step, second_step))
                        value += term
                        # What cancels inside a moment rounds like its natural size.
                        size += np.abs(term) + abs(a * b) * K[:, 0, 0] ** (i / 2) * K[:, 1, 1] ** (j / 2)
    return value, 8 * _EPS * size


def _polynomial_and_step(piece: Pieces) -> tuple[Array, Array]:
    """p = minus + (plus - minus) theta: coefficients of the polynomial and of what the step multiplies."""
    minus, plus = np.asarray(piece[0], dtype=float), np.asarray(piece[1], dtype=float)
    return minus, np.atleast_1d(poly.polysub(plus, minus))


class _Moments:
    """M(k; t) = E[z_1^k1 z_2^k2 theta(z_1)^t1 theta(z_2)^t2], by parts down to probabilities."""

    def __init__(self, K: Array) -> None:
        self._K = K
        a, b, c = K[:, 0, 0], K[:, 1, 1], K[:, 0, 1]
        self._determinant = np.maximum(difference_of_products(a, b, c, c), 0.0)
        self._found: dict[tuple[tuple[int, int], tuple[int, int]], Array] = {}

    def get(self, powers: tuple[int, int], steps: tuple[int, int]) -> Array:
        """The moment for every covariance of the stack."""
        if (powers, steps) not in self._found:
            self._found[powers, steps] = self._compute(powers, steps)
        return self._found[powers, steps]

    def _compute(self, powers: tuple[int, int], steps: tuple[int, int]) -> Array:
        if powers == (0, 0):
            return self._probability(steps)
        i = 0 if powers[0] else 1
        left = list(powers)
        left[i] -= 1
        total = np.zeros(len(self._K))
        for j in (0, 1):
            if left[j]:
                lower = list(left)
                lower[j] -= 1
                total += self._K[:, i, j] * left[j] * self.get((lower[0], lower[1]), steps)
            elif steps[j]:
                total += self._K[:, i, j] * self._on_edge(j, left[1 - j], steps[1 - j])
        return total

    def _probability(self, steps: tuple[int, int]) -> Array:
        if sum(steps) < 2:
            return np.full(len(self._K), 0.5 ** sum(steps))
        angle = np.arctan2(self._K[:, 0, 1], np.sqrt(self._determinant))
        return np.asarray(0.25 + angle / (2 * math.pi))

    def _on_edge(self, j: int, power: int, step: int) -> Array:
        """E[delta(z_j) z^power theta(z)^step] for z the other input, of variance det / K_jj given z_j = 0."""
        variance = self._K[:, j, j]
        absolute = 2 ** (power / 2) * math.gamma((power + 1) / 2) / math.sqrt(math.pi)
        share = absolute / 2 if step else absolute * (power % 2 == 0)
        return np.asarray(
            share * (self._determinant / variance) ** (power / 2) / np.sqrt(2 * math.pi * variance)
        )
