"""One factor smoothed by a Gaussian, h(s) = E f(s + width x), as a piecewise polynomial table.

Integrating the last variable of a product out into such a table turns an expectation over four inputs into one
over three variables, and one over three inputs into one over two.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from foretrain.gaussian.rules.hermite import Table
from foretrain.gaussian.rules.lattice import first_steps, lattice_expectation
from foretrain.gaussian.rules.panels import Piecewise, line_values

Array = NDArray[np.float64]


class SmoothedFactor:
    """``h(s) = E f(s + width x)`` on ``[-reach, reach]``: smooth, with the kinks of f smeared over the width.

    ``error`` estimates how far the table is from h, as a share of the largest |h|.
    """

    def __init__(self, function: Piecewise, width: float, reach: float, tolerance: float) -> None:
        self.strip = math.hypot(function.strip, width)
        self.kinks = function.kinks
        self.blur = width
        self.reach = reach

        def values(points: Array) -> Array:
            return _smoothed_values(function, points, width, 0.05 * tolerance)

        self._table = Table(values, _cell_edges(function, width, reach), 0.1 * tolerance)
        self.error = self._table.error

    def __call__(self, s: Array) -> Array:
        """Values of h; s must lie within the table."""
        return self._table(s)


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
