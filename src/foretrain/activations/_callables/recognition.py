"""What can be read off a callable's values: polynomial pieces, parity, homogeneity."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial

from foretrain.activations._activation import Array, Parity
from foretrain.activations._callables.cells import SEARCHED
from foretrain.activations._callables.expansions import chebyshev_series
from foretrain.activations._callables.pointwise import PROBES, Pointwise
from foretrain.activations._formulas import differentiate, horner

_HIGHEST_DEGREE = 8
_HIGHEST_HOMOGENEITY = 32.0
_EXACT = 1e-12
_FAR = np.array([50.0, 217.0, 1000.0])


@dataclass(frozen=True)
class PolynomialRule:
    """A callable that is a polynomial between its breakpoints; ascending coefficients, piece by piece."""

    function: Pointwise
    breakpoints: tuple[float, ...]
    polynomials: tuple[tuple[float, ...], ...]

    def __call__(self, z: Array, order: int) -> Array:
        """The value is the callable's own, the derivatives are those of the pieces."""
        if order == 0:
            return self.function(z).astype(z.dtype)
        return self.polynomial(z, order).astype(z.dtype)

    def polynomial(self, z: Array, order: int) -> Array:
        """The derivative of the piece that z belongs to."""
        derivatives = [differentiate(coefficients, order) for coefficients in self.polynomials]
        table = np.zeros((len(derivatives), max(map(len, derivatives))))
        for row, coefficients in zip(table, derivatives):
            row[: len(coefficients)] = coefficients
        piece = np.searchsorted(np.array(self.breakpoints), z, side="right")
        result = table[piece, -1]
        for power in range(table.shape[1] - 2, -1, -1):
            result = result * z + table[piece, power]
        return np.asarray(result)

    def jumps(self, order: int) -> tuple[Array, Array]:
        """The differences of neighbouring pieces at the breakpoints, about which there is no doubt."""
        derivatives = [differentiate(coefficients, order) for coefficients in self.polynomials]
        sides = zip(self.breakpoints, pairwise(derivatives))
        jumps = [horner(right, np.array(c)) - horner(left, np.array(c)) for c, (left, right) in sides]
        return np.array(jumps, dtype=np.float64), np.zeros(len(jumps))


def recognise_polynomials(
    function: Pointwise, breakpoints: tuple[float, ...], telling: Array
) -> PolynomialRule | None:
    """The polynomial pieces of a callable, None if it is not made of polynomials of low degree.

    ``telling`` are points to check besides regular ones: they lie dense where the callable varies quickly.
    """
    reach = max(SEARCHED, *(abs(place) + 4.0 for place in (*breakpoints, 0.0)))
    edges = (-reach, *breakpoints, reach)
    fits = [_fit(function, lower, upper) for lower, upper in pairwise(edges)]
    polynomials = tuple(fit for fit in fits if fit is not None)
    if len(polynomials) < len(fits):
        return None
    rule = PolynomialRule(function, breakpoints, polynomials)
    points = np.concatenate([-_FAR, np.linspace(-SEARCHED, SEARCHED, 999), telling, _FAR])
    values = function(points)
    close = np.abs(rule.polynomial(points, 0) - values) <= 1e-11 * (np.abs(values) + np.abs(points) + 1.0)
    # At a jump itself the value is the callable's own affair.
    return rule if close[~np.isin(points, np.array(breakpoints))].all() else None


def _fit(function: Pointwise, lower: float, upper: float) -> tuple[float, ...] | None:
    """The polynomial on one piece, from the part of it that is nearest to 0."""
    radius = min(2.0, 0.5 * (upper - lower))
    centre = min(max(0.0, lower + radius), upper - radius)
    series = chebyshev_series(function, np.array([centre]), np.array([radius]))
    coefficients, noise = series.coefficients[0], float(series.noise[0])
    significant = np.flatnonzero(np.abs(coefficients) > 4.0 * noise)
    terms = int(significant[-1]) + 1 if significant.size else 1
    if not math.isfinite(noise) or terms > _HIGHEST_DEGREE + 1:
        return None
    local = Chebyshev(coefficients[:terms], domain=[centre - radius, centre + radius])
    ascending = [float(c) for c in local.convert(kind=Polynomial).coef]
    scale = max(map(abs, ascending))
    # A fraction with a small denominator where there is one within rounding.
    fractions = [float(Fraction(c).limit_denominator(1000)) for c in ascending]
    simple = [near if abs(near - c) <= _EXACT * scale else c for near, c in zip(fractions, ascending)]
    while len(simple) > 1 and simple[-1] == 0.0:
        simple.pop()
    return tuple(simple)


def recognise_parity(function: Pointwise) -> Parity | None:
    """Odd or even, judged by values on both sides of 0."""
    points = np.abs(PROBES[PROBES != 0.0])
    above, below = function(points), function(-points)
    tolerance = _EXACT * (np.abs(above) + 1e-2 * np.max(np.abs(above)))
    if np.all(np.abs(above - below) <= tolerance):
        return "even"
    return "odd" if np.all(np.abs(above + below) <= tolerance) else None


def recognise_degree(function: Pointwise) -> float | None:
    """The degree d of sigma(lambda z) = lambda^d sigma(z) for lambda > 0, None if there is none."""
    points = PROBES[(PROBES != 0.0) & (np.abs(PROBES) < 5.0)]
    values = function(points)
    largest = int(np.argmax(np.abs(values)))
    single, doubled = float(values[largest]), float(function(2.0 * points[largest : largest + 1])[0])
    if single == 0.0 or doubled / single <= 0.0:
        return None
    degree = math.log2(doubled / single)
    # A negative degree would mean a pole at 0; nobody's activation has a higher one than this.
    if not 0.0 <= degree <= _HIGHEST_HOMOGENEITY:
        return None
    if abs(degree - round(degree)) < 1e-9:
        degree = float(round(degree))
    for factor in (1e-9, 0.3, 2.0, 3.7, 211.0):
        expected = factor**degree * values
        if not np.all(np.abs(function(factor * points) - expected) <= 1e-9 * np.abs(expected)):
            return None
    return degree
