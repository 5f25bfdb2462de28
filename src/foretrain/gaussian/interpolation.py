"""Many nearly parallel pairs: the two-input expectation as a smooth function of two scales and an angle.

With theta the angle between two inputs, <f g> is smooth in (log K_11, log K_22, theta), kinks or not, down to
theta = 0. A Chebyshev grid of exact values in the range that the pairs span is refined until fresh pairs,
chosen among those asked for, agree.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

from foretrain.gaussian.covariance import difference_of_products, stack_pairs
from foretrain.gaussian.factors import Factor
from foretrain.gaussian.panels import Smoothed, Together, nested_expectation
from foretrain.gaussian.quadrature import Stack, lines
from foretrain.support.user_warnings import warn_user

Array = NDArray[np.float64]

_CHECKS = 64
_REACH = 12.0
_MOST_EXACT = 60_000


def interpolated_pairs(
    f: Factor, g: Factor, k11: Array, k22: Array, k12: Array, tolerance: float
) -> tuple[Array, Array]:
    """``<f(z_1) g(z_2)>`` for long vectors of pairs, with error estimates."""
    coordinates = _coordinates(k11, k22, k12)
    box = [(float(c.min()), float(c.max())) for c in coordinates]
    checks = np.random.default_rng(0).choice(len(k11), size=min(_CHECKS, len(k11)), replace=False)
    K = stack_pairs(k11[checks], k22[checks], k12[checks])
    exact, doubt = Stack(K, np.zeros((len(K), 2)), tolerance).total([f, g])
    norms = _Norms(f, g, box)
    unit = norms(coordinates, checks)
    degrees = [min(8, 2 + math.ceil(3 * (high - low))) for low, high in box[:2]]
    degrees.append(min(16, 6 + math.ceil(10 * (box[2][1] - box[2][0]))))
    while True:
        grid = _Grid(f, g, box, degrees, norms, tolerance)
        miss = np.abs(grid(coordinates, checks) * unit - exact) / unit
        reached = 3 * float(miss.max()) + float((doubt / unit).max())
        if reached <= 2 * tolerance or grid.size * 2 > _MOST_EXACT:
            break
        # The axis whose last coefficients are largest is refined.
        last = [np.abs(np.take(grid.coefficients, [-2, -1], axis=axis)).max() for axis in range(3)]
        axis = int(np.argmax(last))
        degrees[axis] = int(degrees[axis] * 1.5) + 1
    if reached > 10 * tolerance:
        warn_user(f"interpolated expectations of pairs reached a relative error of {reached:.1e} only.")
    scale = norms(coordinates, slice(None))
    return grid(coordinates, slice(None)) * scale, reached * scale


def _coordinates(k11: Array, k22: Array, k12: Array) -> tuple[Array, Array, Array]:
    determinant = np.maximum(difference_of_products(k11, k22, k12, k12), 0.0)
    return np.log(k11), np.log(k22), np.arctan2(np.sqrt(determinant), k12)


class _Norms:
    """sqrt(<f^2><g^2>) along the two scales: dividing by it leaves a function of order one."""

    def __init__(self, f: Factor, g: Factor, box: list[tuple[float, float]]) -> None:
        self._curves = [self._curve(h, *edge) for h, edge in zip((f, g), box)]
        self._box = box

    @staticmethod
    def _curve(f: Factor, low: float, high: float) -> Array:
        degree = 16
        x = chebyshev.chebpts1(degree + 1)
        deviation = np.exp(0.5 * _from_unit(x, low, high))
        (square,), _ = lines([f * f], np.zeros(len(x)), deviation, np.zeros((1, len(x))))
        return np.asarray(chebyshev.chebfit(x, 0.5 * np.log(square), degree))

    def __call__(self, coordinates: tuple[Array, ...], chosen: Any) -> Array:
        logs = [
            chebyshev.chebval(_to_unit(c[chosen], *edge), curve)
            for c, edge, curve in zip(coordinates, self._box, self._curves)
        ]
        return np.asarray(np.exp(logs[0] + logs[1]))


class _Grid:
    """A tensor Chebyshev interpolant of the normalised expectation."""

    def __init__(
        self,
        f: Factor,
        g: Factor,
        box: list[tuple[float, float]],
        degrees: list[int],
        norms: _Norms,
        tolerance: float,
    ) -> None:
        self.box = box
        points = [chebyshev.chebpts1(d + 1) for d in degrees]
        axes = [_from_unit(p, *b) for p, b in zip(points, box)]
        mesh = np.meshgrid(*axes, indexing="ij")
        log1, log2 = mesh[0].ravel(), mesh[1].ravel()
        unit = norms((log1, log2), slice(None)).reshape(mesh[0].shape)
        value = _on_grid(f, g, axes[0], axes[1], axes[2], unit[:, :, 0], 0.1 * tolerance)
        values = value / unit
        for axis, p in enumerate(points):
            transform = np.linalg.inv(chebyshev.chebvander(p, len(p) - 1))
            values = np.moveaxis(np.tensordot(transform, values, axes=(1, axis)), 0, axis)
        self.coefficients = values
        self.size = values.size

    def __call__(self, coordinates: tuple[Array, ...], chosen: Any) -> Array:
        """Values at the chosen pairs: contract both scales by matrix products, then the angle."""
        u, v, t = (_to_unit(c[chosen], *b) for c, b in zip(coordinates, self.box))
        result = np.empty(len(t))
        for start in range(0, len(t), 65_536):
            part = slice(start, start + 65_536)
            rows = chebyshev.chebvander(u[part], self.coefficients.shape[0] - 1)
            columns = chebyshev.chebvander(v[part], self.coefficients.shape[1] - 1)
            angles = chebyshev.chebvander(t[part], self.coefficients.shape[2] - 1)
            inner = (rows @ self.coefficients.reshape(rows.shape[1], -1)).reshape(
                len(rows), columns.shape[1], -1
            )
            result[part] = np.einsum("pjk,pj,pk->p", inner, columns, angles, optimize=True)
        return result


def _on_grid(
    f: Factor, g: Factor, log1: Array, log2: Array, theta: Array, unit: Array, tolerance: float
) -> Array:
    """Exact values on the grid from the angles themselves: no digits of a small angle are lost in forming K.

    The second input averaged over its own variable is one table for each (K_22, theta), shared by all K_11.
    """
    d1, d2 = np.exp(0.5 * log1), np.exp(0.5 * log2)
    value = np.empty((len(d1), len(d2), len(theta)))
    for j, k in np.ndindex(len(d2), len(theta)):
        along, across = d2[j] * np.cos(theta[k]), d2[j] * np.sin(theta[k])
        reach = _REACH * abs(along) + 1e-6
        table = Smoothed(Together((g,)), float(across), float(reach), tolerance)
        lower = np.stack([d1, np.full(len(d1), along)], axis=1)[:, :, None]
        (value[:, j, k],), _ = nested_expectation(
            [Together((f,)), table],
            np.zeros((1, 2), np.intp),
            lower,
            np.zeros((len(d1), 2)),
            unit[None, :, j],
            tolerance,
            most_radius=_REACH,
        )
    return value


def _from_unit(x: Array, low: float, high: float) -> Array:
    return (low + high) / 2 + (high - low) / 2 * x


def _to_unit(c: Array, low: float, high: float) -> Array:
    return (c - (low + high) / 2) * (2 / (high - low)) if high > low else np.zeros_like(c)
