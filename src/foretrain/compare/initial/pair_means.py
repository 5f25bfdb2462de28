"""<σ_a σ_b> for long lists of covariances of two inputs, to nearly full precision.

Closed forms, and lists with a variance of zero, go to :func:`foretrain.gaussian.expectation`. Of other activations
the Hermite coefficients c_k(v) = <σ(√v x) He_k(x)> / √k! are interpolated in log v between Chebyshev points, and
<σ_a σ_b> is Σ_k c_k(v_a) c_k(v_b) ρ^k (Mehler): a few matrix products for any number of pairs. Pairs so nearly
parallel that the series would be too long are interpolated in two scales and an angle.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.polynomial import chebyshev

from foretrain.activations import Activation
from foretrain.gaussian import expectation, factor
from foretrain.gaussian.interpolation import interpolated_pairs
from foretrain.gaussian.mehler import MOST_TERMS, Series, series, terms_needed
from foretrain.theory.architecture import FloatArray

_TOLERANCE = 1e-13
_FIRST_DEGREE, _LAST_DEGREE = 32, 256
_MOST_CORRELATED = 1 - 1e-12
_TOGETHER = 4096


def single_means(activation: Activation, variance: FloatArray) -> FloatArray:
    """<σ²> at many variances (any shape)."""
    square = factor(activation) * factor(activation)
    if activation.closed_form is not None or not variance.all():
        return np.asarray(expectation([square], variance.reshape(-1, 1, 1)).value).reshape(variance.shape)

    def means(nodes: FloatArray) -> FloatArray:
        return np.asarray(expectation([square], nodes[:, None, None], tolerance=_TOLERANCE).value)[None]

    table = _Interpolation.of(variance, means)
    return np.asarray(table(variance.ravel())[0].reshape(variance.shape))


def pair_means(
    activation: Activation, first: FloatArray, second: FloatArray, cross: FloatArray
) -> FloatArray:
    """<σ_a σ_b> for covariances [[first, cross], [cross, second]], vectors of equal length."""
    if activation.closed_form is not None or not (first.all() and second.all()):
        covariance = np.stack([first, cross, cross, second], axis=-1).reshape(-1, 2, 2)
        return np.asarray(expectation([activation, activation], covariance).value)
    rho = np.clip(cross / np.sqrt(first * second), -1.0, 1.0)
    both = np.concatenate([first, second])
    terms = _terms(activation, float(both.max()), float(np.abs(rho).max()))
    if terms is None:
        f = factor(activation)
        return interpolated_pairs(f, f, first, second, cross, 1e-11)[0]
    table = _Interpolation.of(both, lambda nodes: _coefficients(activation, nodes, terms).coefficients)
    found = np.empty_like(rho)
    for start in range(0, len(rho), _TOGETHER):
        part = slice(start, start + _TOGETHER)
        found[part] = _horner(table(first[part]) * table(second[part]), rho[part])
    return found


def _coefficients(activation: Activation, variance: FloatArray, terms: int) -> Series:
    return series(factor(activation), np.sqrt(variance), terms, _TOLERANCE)


def _terms(activation: Activation, widest: float, correlation: float) -> int | None:
    """Terms of the series that the widest variance and the largest correlation need, None if too many."""
    terms = 32
    while terms <= MOST_TERMS:
        found = _coefficients(activation, np.array([widest]), terms)
        needed = terms_needed(found, found, min(correlation, _MOST_CORRELATED), 10 * _TOLERANCE)
        if needed is not None:
            return max(needed, 1)
        terms *= 2
    return None


def _horner(products: FloatArray, rho: FloatArray) -> FloatArray:
    total: FloatArray = products[-1].copy()
    for row in products[-2::-1]:
        total *= rho
        total += row
    return total


class _Interpolation:
    """Smooth functions of the variance as Chebyshev series in its logarithm, over the range asked for."""

    def __init__(self, low: float, high: float, coefficients: FloatArray) -> None:
        self._low, self._high, self._coefficients = low, high, coefficients

    @classmethod
    def of(cls, variance: FloatArray, function: Callable[[FloatArray], FloatArray]) -> _Interpolation:
        """Doubles the degree until the last coefficients vanish beside the largest."""
        low, high = np.log(float(variance.min())), np.log(float(variance.max()))
        high = max(high, low + 1e-9)
        degree = _FIRST_DEGREE
        while True:
            nodes = chebyshev.chebpts1(degree + 1)
            values = function(np.exp(low + (nodes + 1) * (high - low) / 2))
            fitted = values @ np.linalg.inv(chebyshev.chebvander(nodes, degree)).T
            rest = np.abs(fitted[:, -4:]).max()
            if rest <= _TOLERANCE * np.abs(values).max() or 2 * degree > _LAST_DEGREE:
                return cls(float(low), float(high), fitted)
            degree *= 2

    def __call__(self, variance: FloatArray) -> FloatArray:
        """(functions, variances)."""
        x = 2 * (np.log(variance) - self._low) / (self._high - self._low) - 1
        return np.asarray(
            self._coefficients @ chebyshev.chebvander(np.clip(x, -1, 1), self._coefficients.shape[1] - 1).T
        )
