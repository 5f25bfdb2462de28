"""One factor smoothed by a Gaussian, h(s) = E f(s + width x), as a piecewise polynomial table.

Integrating the last variable of a product out into such a table turns an expectation over four inputs into one
over three variables, and one over three inputs into one over two.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

from foretrain.gaussian.rules.lattice import first_steps, lattice_expectation
from foretrain.gaussian.rules.panels import Piecewise, line_values

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


class SmoothedFactor:
    """``h(s) = E f(s + width x)`` on ``[-reach, reach]``: smooth, with the kinks of f smeared over the width.

    ``error`` estimates how far the table is from h, as a share of the largest |h|.
    """

    def __init__(self, function: Piecewise, width: float, reach: float, tolerance: float) -> None:
        self.strip = math.hypot(function.strip, width)
        self.kinks = function.kinks
        self.blur = width
        self.reach = reach
        edges = _cell_edges(function, width, reach)
        for _ in range(4):
            chebyshev_coefficients = self._tabulate(function, width, edges, tolerance)
            self.error = _trailing(chebyshev_coefficients)
            if self.error <= 0.1 * tolerance or len(edges) > 20_000:
                break
            edges = np.sort(np.concatenate([edges, (edges[1:] + edges[:-1]) / 2]))
        self._edges = edges
        self._centres = (edges[1:] + edges[:-1]) / 2
        self._scales = 2 / np.diff(edges)
        self._monomials = np.ascontiguousarray(_TO_MONOMIALS @ chebyshev_coefficients)
        spacing = np.diff(edges)
        self._spacing = float(spacing[0]) if np.ptp(spacing) < 1e-9 * spacing[0] else None

    def __call__(self, s: Array) -> Array:
        """Values of h; s must lie within the table."""
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

    @staticmethod
    def _tabulate(function: Piecewise, width: float, edges: Array, tolerance: float) -> Array:
        half = np.diff(edges) / 2
        points = ((edges[1:] + edges[:-1]) / 2 + half * _NODES[:, None]).ravel()
        values = _smoothed_values(function, points, width, 0.05 * tolerance)
        return np.asarray(_FROM_VALUES @ values.reshape(_DEGREE + 1, -1))


def _smoothed_values(function: Piecewise, points: Array, width: float, tolerance: float) -> Array:
    if function.kinks:
        return line_values(function, points, width, tolerance)
    count = len(points)
    steps = first_steps(np.full((count, 1), function.strip / width), tolerance)
    sizes = np.full(count, float(np.max(np.abs(function(points)), initial=1e-300)))

    def integrand(x: Array, items: NDArray[np.intp]) -> Array:
        return function(points[items, None] + width * x[:, 0])

    return lattice_expectation(integrand, steps, sizes, tolerance)[0]


def _cell_edges(function: Piecewise, width: float, reach: float) -> Array:
    """Equal cells for smooth functions; near a kink cells of half the width, then growing geometrically."""
    size = min(0.5, max(math.hypot(function.strip, width) / 6, reach / 2000))
    edges = np.linspace(-reach, reach, 2 * math.ceil(reach / size) + 1)
    if not function.kinks:
        return np.asarray(edges)
    near = width * np.arange(0, 8.5, 0.5)
    far = 8 * width * 2.0 ** np.arange(1, 1 + max(0, math.ceil(math.log2(1 / (8 * width)))))
    offsets = np.concatenate([near, far])
    edges = np.concatenate([edges, *(k + sign * offsets for k in function.kinks for sign in (-1, 1))])
    edges = np.unique(np.clip(edges, -reach, reach))
    return np.asarray(edges[np.concatenate([[True], np.diff(edges) > 1e-13 * reach])])


def _trailing(coefficients: Array) -> float:
    size = float(np.abs(coefficients).max()) or 1.0
    return float(np.abs(coefficients[-2:]).max()) / size
