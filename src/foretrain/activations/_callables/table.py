"""Chebyshev tables, so that a numerical derivative at many points costs little more than a polynomial."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretrain.activations._activation import Array
from foretrain.activations._callables.expansions import Derivative, chebyshev_coefficients, chebyshev_points

_REACH = 40.0
_CELLS = 160
_NODES = 24
_TAIL = 4
_FAITHFUL = 1e-13


@dataclass(frozen=True)
class Table:
    """A function on adjacent cells, each with its Chebyshev series; not every cell is usable."""

    edges: Array
    coefficients: Array
    usable: NDArray[np.bool_]

    def covers(self, z: Array) -> NDArray[np.bool_]:
        """Where the table may be used."""
        cell = self._cell(z)
        inside = (z >= self.edges[0]) & (z < self.edges[-1])
        return np.asarray(inside & self.usable[cell])

    def __call__(self, z: Array) -> Array:
        """The interpolated values, by Clenshaw's recurrence."""
        cell = self._cell(z)
        left, right = self.edges[cell], self.edges[cell + 1]
        x = (2.0 * z - left - right) / (right - left)
        later, last = np.zeros_like(x), np.zeros_like(x)
        for column in self.coefficients.T[:0:-1]:
            later, last = last, 2.0 * x * last - later + column[cell]
        return np.asarray(x * last - later + self.coefficients[cell, 0])

    def _cell(self, z: Array) -> NDArray[np.intp]:
        return np.clip(np.searchsorted(self.edges, z, side="right") - 1, 0, self.usable.size - 1)


def tabulate(
    evaluate: Callable[[Array], Derivative], extra_edges: Array, scale: float, tolerance: float
) -> Table:
    """A table of a derivative; regular cells that also end at the extra edges.

    Those where the derivative is not smooth enough are unusable.
    """
    inner = extra_edges[np.abs(extra_edges) < _REACH]
    edges = np.unique(np.concatenate([np.linspace(-_REACH, _REACH, _CELLS + 1), inner]))
    centre, radius = 0.5 * (edges[1:] + edges[:-1]), 0.5 * np.diff(edges)
    points = chebyshev_points(centre, radius, _NODES)
    found = evaluate(points.ravel())
    size = np.max(found.size.reshape(points.shape), axis=1) + scale
    error = np.max(found.error.reshape(points.shape), axis=1)
    coefficients = chebyshev_coefficients(found.value.reshape(points.shape))
    tail = np.max(np.abs(coefficients[:, -_TAIL:]), axis=1)
    usable = (error <= tolerance * size) & (tail <= np.maximum(_FAITHFUL * size, error))
    return Table(edges, coefficients, usable)
