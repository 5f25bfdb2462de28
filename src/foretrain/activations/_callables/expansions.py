"""Local expansions of a sampled function and their derivatives, with an estimate of the error.

Two kinds: Taylor series from samples on a circle in the complex plane (the Cauchy integral, spectrally
accurate where the function is analytic), and Chebyshev series from samples on a real interval. Each returns
coefficients and the size of their noise: rounding, plus whatever is left in the coefficients that should have
died out. The noise, carried through the derivative of the series, is the error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from foretrain.activations._activation import Array
from foretrain.activations._callables.pointwise import Pointwise

_CIRCLE_SAMPLES = 64
_INTERVAL_SAMPLES = 40
_HUGE = 1e250
"""Samples beyond this (or infinite, or nan) are not used: their derivatives would overflow."""
_RESOLVED = 1e-9
"""A series whose tail is larger than this fraction of it is not trusted at all."""


@dataclass(frozen=True)
class Series:
    """Coefficients (points, terms) of local series, and the noise in each point's coefficients."""

    coefficients: Array
    noise: Array


@dataclass(frozen=True)
class Derivative:
    """Derivatives at some points, their estimated errors, and the size the derivative has around each."""

    value: Array
    error: Array
    size: Array

    @classmethod
    def unknown(cls, points: int) -> Derivative:
        """Nothing known yet."""
        return cls(np.zeros(points), np.full(points, np.inf), np.zeros(points))

    def improve(self, indices: NDArray[np.intp], other: Derivative) -> None:
        """Takes over, at some of the points, what is better known."""
        better = other.error < self.error[indices]
        for mine, new in ((self.value, other.value), (self.error, other.error), (self.size, other.size)):
            mine[indices[better]] = new[better]


Sampler = Callable[[Pointwise, Array, Array], Series]
Basis = Callable[[Array, int, int], Array]


def taylor_series(function: Pointwise, centre: Array, radius: Array) -> Series:
    """Taylor coefficients in (z - centre)/radius, from samples on the circle."""
    # Half a step of angle keeps the samples off the real axis, where kinks are; the lower half of the circle
    # is the mirror image of the upper one, because the function is real on the real axis.
    angles = 2.0 * np.pi * (np.arange(_CIRCLE_SAMPLES // 2) + 0.5) / _CIRCLE_SAMPLES
    upper = function.complex_values(centre[:, None] + radius[:, None] * np.exp(1j * angles))
    keep = _CIRCLE_SAMPLES // 2
    if upper is None:
        return Series(np.zeros((centre.size, keep)), np.full(centre.size, np.inf))
    middle = function.unchecked(centre)
    with np.errstate(over="ignore", invalid="ignore"):
        broken = ~((np.abs(upper) < _HUGE).all(axis=1) & (np.abs(middle) < _HUGE))
    upper[broken], middle[broken] = 0.0, 0.0
    size = np.where(broken, np.inf, np.max(np.abs(upper), axis=1))
    samples = np.concatenate([upper, np.conj(upper[:, ::-1])], axis=1)
    phases = np.exp(-1j * np.pi * np.arange(_CIRCLE_SAMPLES) / _CIRCLE_SAMPLES)
    spectrum = np.real(fft.fft(samples, axis=1) * phases) / _CIRCLE_SAMPLES
    # The mean over the circle is the value at its centre; if not, the complex values are of another
    # function (an absolute value, a comparison) than the real ones.
    mismatch = np.abs(spectrum[:, 0] - middle)
    tail = np.maximum(np.max(np.abs(spectrum[:, keep:]), axis=1), mismatch)
    return Series(spectrum[:, :keep], _noise(tail, size, function.precision))


def chebyshev_series(function: Pointwise, centre: Array, radius: Array) -> Series:
    """Chebyshev coefficients in (z - centre)/radius, from samples on the interval."""
    samples = function.unchecked(chebyshev_points(centre, radius, _INTERVAL_SAMPLES))
    broken = ~(np.abs(samples) < _HUGE).all(axis=1)
    samples[broken] = 0.0
    size = np.where(broken, np.inf, np.max(np.abs(samples), axis=1))
    coefficients = chebyshev_coefficients(samples)
    tail = np.max(np.abs(coefficients[:, -_INTERVAL_SAMPLES // 5 :]), axis=1)
    return Series(coefficients, _noise(tail, size, function.precision))


def chebyshev_points(centre: Array, radius: Array, number: int) -> Array:
    """The roots of a Chebyshev polynomial on each interval (points, number); end points are left out."""
    nodes = np.cos(np.pi * (np.arange(number) + 0.5) / number)
    return centre[:, None] + radius[:, None] * nodes


def chebyshev_coefficients(samples: Array) -> Array:
    """The coefficients of the interpolant through samples at ``chebyshev_points``."""
    coefficients: Array = np.asarray(fft.dct(samples, type=2, axis=1)) / samples.shape[1]
    coefficients[:, 0] *= 0.5
    return coefficients


def _noise(tail: Array, size: Array, precision: float) -> Array:
    """Rounding or the unresolved rest, whichever is larger; infinite where the series is not resolved."""
    noise = np.maximum(tail, precision * size)
    resolved = np.maximum(_RESOLVED, 4.0 * precision) * size
    return np.where(np.isfinite(size) & (noise <= resolved), noise, np.inf)


def monomials(x: Array, terms: int, order: int) -> Array:
    """The derivatives of x^j, j < terms: (points, terms)."""
    shapes = np.zeros((x.size, terms))
    power = np.ones_like(x)
    for j in range(order, terms):
        shapes[:, j] = math.perm(j, order) * power
        power = power * x
    return shapes


def chebyshev_polynomials(x: Array, terms: int, order: int) -> Array:
    """The derivatives of T_j(x), j < terms, by differentiating the three-term recurrence."""
    table = np.zeros((terms, order + 1, x.size))
    table[0, 0], table[1, 0] = 1.0, x
    table[1, 1:2] = 1.0
    twice_x, twice_k = 2.0 * x, 2.0 * np.arange(1, order + 1)[:, None]
    for j in range(1, terms - 1):
        np.multiply(twice_x, table[j], out=table[j + 1])
        table[j + 1, 1:] += twice_k * table[j, :-1]
        table[j + 1] -= table[j - 1]
    return np.ascontiguousarray(table[:, order].T)


def differentiate_series(series: Series, basis: Basis, x: Array, radius: Array, order: int) -> Derivative:
    """The derivative of each series at x (in units of the radius); unknown where it is not resolved."""
    result = Derivative.unknown(x.size)
    resolved = np.flatnonzero(np.isfinite(series.noise))
    if resolved.size:
        part = Series(series.coefficients[resolved], series.noise[resolved])
        result.improve(resolved, _differentiate_resolved(part, basis, x[resolved], radius[resolved], order))
    return result


def _differentiate_resolved(series: Series, basis: Basis, x: Array, radius: Array, order: int) -> Derivative:
    terms = series.coefficients.shape[1]
    # Terms up to the last one that stands out of the noise.
    above = np.abs(series.coefficients) > 2.0 * series.noise[:, None]
    kept = np.flip(np.maximum.accumulate(np.flip(above, axis=1), axis=1), axis=1)
    # One term past the last significant one stands for the truncated rest.
    carried = np.maximum(np.sum(kept, axis=1) + 1, order + 1)[:, None] > np.arange(terms)
    coefficients = np.where(kept, series.coefficients, 0.0) / radius[:, None] ** order
    # A derivative that happens to vanish at x is compared with its size half a radius away.
    places = np.concatenate([x, np.clip(x - 0.5, -1.0, 1.0), np.clip(x + 0.5, -1.0, 1.0)])
    shapes = basis(places, terms, order).reshape(3, x.size, terms)
    values = np.sum(coefficients * shapes, axis=2)
    spread = np.sqrt(np.sum(np.where(carried, shapes[0], 0.0) ** 2, axis=1))
    error = 4.0 * series.noise * spread / radius**order
    return Derivative(values[0], error, np.max(np.abs(values), axis=0))
