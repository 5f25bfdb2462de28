"""Derivatives of a callable of which only values are known, with the error that comes with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import mpmath
import numpy as np
from numpy.typing import NDArray

from foretrain.activations._activation import Array
from foretrain.activations._callables.cells import Features
from foretrain.activations._callables.expansions import (
    Basis,
    Derivative,
    Sampler,
    chebyshev_coefficients,
    chebyshev_points,
    chebyshev_polynomials,
    chebyshev_series,
    differentiate_series,
    monomials,
    taylor_series,
)
from foretrain.activations._callables.pointwise import Pointwise, probes_away_from
from foretrain.support.errors import NotSupportedError

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


HIGHEST_ORDER = 6
"""The highest derivative that is taken numerically."""

_BEST = 1e-13
"""A radius this good ends the search for a better one."""
_GOAL = 1e-11
"""A method this good ends the search for a better one."""
_TOLERANCE = 1e-6
"""A derivative worse than this is refused."""
_LARGEST_RADIUS, _RADII = 4.0, 11
"""Windows are at most this large, and halved to try so many of them."""
_CHUNK = 4096
_MANY = 256
"""Beyond this number of points the derivatives come from a table."""
_DIGITS = 25
_FEATURES_TRIED = 16


@dataclass(frozen=True)
class Query:
    """Points, the ends of the kink-free piece whose derivative is wanted at each, and how far to look."""

    z: Array
    lower: Array
    upper: Array
    window: Array

    def some(self, indices: NDArray[np.integer[Any]]) -> Query:
        """The points with these indices."""
        return Query(self.z[indices], self.lower[indices], self.upper[indices], self.window[indices])


Method = Callable[[Pointwise, Query, int, float], Derivative]


def _by_series(
    sampler: Sampler, basis: Basis, function: Pointwise, query: Query, order: int, scale: float
) -> Derivative:
    """The best of several radii, point by point; the window never leaves the piece."""
    best = Derivative.unknown(query.z.size)
    pending = np.arange(query.z.size)
    largest = np.minimum(np.minimum(_LARGEST_RADIUS, query.window), 0.5 * (query.upper - query.lower))
    for halvings in range(_RADII):
        part = query.some(pending)
        radius = largest[pending] * 0.5**halvings
        centre = np.clip(part.z, part.lower + radius, part.upper - radius)
        series = sampler(function, centre, radius)
        new = differentiate_series(series, basis, (part.z - centre) / radius, radius, order)
        # Smaller windows only amplify rounding once a window resolves the function.
        worse = np.isfinite(new.error) & (new.error > 2.0 * best.error[pending])
        best.improve(pending, new)
        pending = pending[~worse & (best.error[pending] > _BEST * (best.size[pending] + scale))]
        if pending.size == 0:
            break
    return best


def complex_contour(function: Pointwise, query: Query, order: int, scale: float) -> Derivative:
    """Cauchy's integral on a circle: spectrally accurate where the callable is analytic."""
    return _by_series(taylor_series, monomials, function, query, order, scale)


def chebyshev_interpolation(function: Pointwise, query: Query, order: int, scale: float) -> Derivative:
    """The derivative of a Chebyshev interpolant on the real line."""
    return _by_series(chebyshev_series, chebyshev_polynomials, function, query, order, scale)


def multiprecision(function: Pointwise, query: Query, order: int, scale: float) -> Derivative:
    """One-sided differences in many digits, for a callable that computes with mpmath numbers.

    Two steps that differ by a factor of a thousand must agree, which they do not at a singularity.
    """
    found = Derivative.unknown(query.z.size)
    with mpmath.workdps(_DIGITS):
        steps = mpmath.ldexp(1, -90), mpmath.ldexp(1, -80)
        for index, (z, upper) in enumerate(zip(query.z, query.upper)):
            side = -1 if z >= upper else 1
            try:
                fine, coarse = (
                    mpmath.diff(function.function, mpmath.mpf(float(z)), order, direction=side, h=step)
                    for step in steps
                )
                found.value[index], gap = float(fine), float(abs(fine - coarse))
            except Exception:  # a user's function may fail in any way on numbers it was not written for
                continue
            found.size[index] = abs(found.value[index])
            found.error[index] = gap + 1e-15 * (found.size[index] + scale)
    return found


METHOD_NAMES: dict[Method, str] = {
    complex_contour: "complex contour",
    chebyshev_interpolation: "Chebyshev interpolation",
    multiprecision: "mpmath",
}


@dataclass(frozen=True, eq=False)
class NumericalRule:
    """Derivatives by the first method that is accurate enough, point by point; many points from a table."""

    function: Pointwise
    breakpoints: tuple[float, ...]
    methods: tuple[Method, ...]
    scale: float
    features: Features

    def __call__(self, z: Array, order: int) -> Array:
        """The right-hand derivative; refused where it cannot be had to about 1e-6."""
        if order == 0:
            return self.function(z).astype(z.dtype)
        query = self.right_of(z.astype(np.float64).ravel())
        direct = np.ones(query.z.size, dtype=np.bool_)
        value = np.zeros(query.z.size)
        if query.z.size > _MANY:
            table = _table(self, order)
            direct = ~table.covers(query.z)
            value[~direct] = table(query.z[~direct])
        query = query.some(np.flatnonzero(direct))
        found = self.estimate(query, order)
        poor = found.error > _TOLERANCE * (found.size + self.scale)
        if poor.any():
            raise NotSupportedError(
                f"derivative {order} of the callable {self.function.name!r} cannot be computed to 1e-6 "
                f"from its values at z = {query.z[poor][0]:g}: give derivatives=[...]."
            )
        value[direct] = found.value
        return value.reshape(z.shape).astype(z.dtype)

    def right_of(self, z: Array) -> Query:
        """The pieces that each point belongs to, a kink belonging to the piece on its right."""
        edges = np.array([-np.inf, *self.breakpoints, np.inf])
        index = np.searchsorted(edges, z, side="right")
        upper = edges[np.minimum(index, edges.size - 1)]
        return Query(z, edges[index - 1], upper, self.features.largest_window(z))

    def trials(self) -> Query:
        """Points to try methods on; where the callable is flat they all agree, so some are in its features."""
        middles = self.features.middles[:: 1 + self.features.middles.size // _FEATURES_TRIED]
        return self.right_of(np.concatenate([probes_away_from(self.breakpoints), middles]))

    def estimate(self, query: Query, order: int) -> Derivative:
        """Derivatives and their estimated errors, in chunks."""
        best = Derivative.unknown(query.z.size)
        for start in range(0, query.z.size, _CHUNK):
            indices = np.arange(start, min(start + _CHUNK, query.z.size))
            # Of order 0 the limit from one side is meant, which the value at the point itself need not be.
            for method in self.methods if order else (chebyshev_interpolation,):
                goal = _GOAL * (best.size[indices] + self.scale)
                pending = indices[best.error[indices] > goal]
                if pending.size == 0:
                    break
                new = method(self.function, query.some(pending), order, self.scale)
                gap, known = np.abs(new.value - best.value[pending]), best.error[pending]
                # Two methods that contradict each other: neither is to be believed closer than the gap.
                contradicts = np.isfinite(known) & (gap > 3.0 * (new.error + known))
                best.improve(pending, replace(new, error=np.where(contradicts, gap, new.error)))
        return best

    def jumps(self, order: int) -> tuple[Array, Array]:
        """The derivative on the right of each kink minus the one on its left, and the doubt about it.

        A doubt that is too large makes the jump nan, a jump that is not larger than its doubt is 0.
        """
        places = np.array(self.breakpoints)
        edges = np.array([-np.inf, *places, np.inf])
        window = self.features.largest_window(places)
        below = self.estimate(Query(places, edges[:-2], places, window), order)
        above = self.estimate(Query(places, places, edges[2:], window), order)
        jump, doubt = above.value - below.value, above.error + below.error
        unknown = doubt > _TOLERANCE * (np.maximum(above.size, below.size) + self.scale)
        return np.where(unknown, np.nan, np.where(np.abs(jump) <= 10.0 * doubt, 0.0, jump)), doubt


@lru_cache(maxsize=64)
def _table(rule: NumericalRule, order: int) -> Table:
    edges = np.concatenate([rule.breakpoints, rule.features.edges])
    return tabulate(lambda z: rule.estimate(rule.right_of(z), order), edges, rule.scale, _TOLERANCE)


def numerical_rule(function: Pointwise, breakpoints: tuple[float, ...], features: Features) -> NumericalRule:
    """Finds out which methods work for this callable, by trying them on a few points."""
    scale = function.size or 1.0
    trusted = NumericalRule(function, breakpoints, (chebyshev_interpolation,), scale, features)
    query = trusted.trials()
    contour = _agrees(complex_contour, trusted, query)
    digits = _agrees(multiprecision, trusted, query)
    if digits and not function.takes_arrays:
        methods: tuple[Method, ...] = (multiprecision, chebyshev_interpolation)
    else:
        methods = (
            *((complex_contour,) if contour else ()),
            chebyshev_interpolation,
            *((multiprecision,) if digits else ()),
        )
    return replace(trusted, methods=methods)


def _agrees(method: Method, trusted: NumericalRule, query: Query) -> bool:
    """Whether a method reproduces the first two derivatives that the trusted one finds."""
    for order in (1, 2):
        found = method(trusted.function, query, order, trusted.scale)
        finite = np.isfinite(found.error)
        if np.count_nonzero(finite) < 0.5 * finite.size:
            return False
        expected = trusted.estimate(query, order)
        gap = np.abs(found.value - expected.value)
        close = gap <= 1e-6 * (expected.size + trusted.scale) + expected.error
        if not close[finite].all():
            return False
    return True
