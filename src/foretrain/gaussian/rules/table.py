"""A function of one variable as a piecewise polynomial: what is evaluated millions of times is tabulated once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

Array = NDArray[np.float64]

_DEGREE = 7
_NODES = np.cos(np.pi * (np.arange(_DEGREE + 1) + 0.5) / (_DEGREE + 1))
_FROM_VALUES = np.linalg.inv(chebyshev.chebvander(_NODES, _DEGREE))
_TO_MONOMIALS = np.stack(
    [
        np.pad(chebyshev.cheb2poly(row[: k + 1]), (0, _DEGREE - k))
        for k, row in enumerate(np.eye(_DEGREE + 1))
    ],
    axis=1,
)
_HALVINGS = 4
_MOST_CELLS = 20_000


class Table:
    """Polynomials of degree 7 between given edges, halved until their last coefficients are below the tolerance.

    ``error`` is the size of those coefficients as a share of the largest value.
    """

    def __init__(self, function: Callable[[Array], Array], edges: Array, tolerance: float) -> None:
        for halvings in range(_HALVINGS):
            half = np.diff(edges) / 2
            points = ((edges[1:] + edges[:-1]) / 2 + half * _NODES[:, None]).ravel()
            coefficients = _FROM_VALUES @ np.asarray(function(points)).reshape(_DEGREE + 1, -1)
            size = float(np.abs(coefficients).max()) or 1.0
            self.error = float(np.abs(coefficients[-2:]).max()) / size
            if self.error <= tolerance or 2 * len(edges) > _MOST_CELLS or halvings == _HALVINGS - 1:
                break
            edges = np.sort(np.concatenate([edges, (edges[1:] + edges[:-1]) / 2]))
        self._edges = edges
        self._centres = (edges[1:] + edges[:-1]) / 2
        self._scales = 2 / np.diff(edges)
        self._monomials = np.ascontiguousarray(_TO_MONOMIALS @ coefficients)
        spacing = np.diff(edges)
        self._spacing = float(spacing[0]) if np.ptp(spacing) < 1e-9 * spacing[0] else None

    def __call__(self, s: Array) -> Array:
        """Values; s must lie between the outermost edges."""
        cell = self._cell(s)
        t = (s - self._centres[cell]) * self._scales[cell]
        value = self._monomials[_DEGREE][cell]
        for k in range(_DEGREE - 1, -1, -1):
            value *= t
            value += self._monomials[k][cell]
        return np.asarray(value)

    def _cell(self, s: Array) -> NDArray[np.intp]:
        last = len(self._centres) - 1
        if self._spacing is not None:
            return np.asarray(np.clip(((s - self._edges[0]) / self._spacing).astype(np.intp), 0, last))
        return np.asarray(np.clip(np.searchsorted(self._edges, s, side="right") - 1, 0, last))
