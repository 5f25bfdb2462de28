"""Nearly parallel pairs of functions with a kink at zero: the kink in closed form, the smooth rest by its series.

With S the polynomial times a step that has the first jumps of f, the rest f - S is smoother and its Hermite
coefficients fall faster. In <f g> = <S S'> + sum_k (a_k b_k - s_k s'_k) rho^k the first term is a closed form, and
every term of the sum holds a coefficient of a rest: it converges also at rho = 1. What is left out is bounded by
Cauchy and Schwarz.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from foretrain.activations import activation
from foretrain.gaussian.closed_forms import quadrant_moment
from foretrain.gaussian.factors import Factor, Term
from foretrain.gaussian.rules import hermite
from foretrain.support.errors import NotSupportedError

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

_ORDERS = (2, 4, 6, 8)
_TERMS = 1024
_CHUNK = 8192


def split_pairs(
    f: Factor, g: Factor, variance: Array, i: Indices, j: Indices, covariance: Array, tolerance: float
) -> tuple[Array, Array] | None:
    """``<f(z_i) g(z_j)>`` for listed pairs, with error estimates, or None if no split reaches the tolerance.

    ``variance`` (N,) of all inputs; ``covariance`` of each pair.
    """
    if any(h.kinks not in ((), (0.0,)) for h in (f, g)):
        return None
    deviation = np.sqrt(variance)
    rho = np.clip(covariance / (deviation[i] * deviation[j]), -1.0, 1.0)
    far = float(np.abs(rho).max())
    for order in _ORDERS:
        try:
            a, b = (_split(h, order, deviation, tolerance) for h in (f, g))
        except NotSupportedError:  # so many derivatives are not to be had
            return None
        bound = a.bound(b, far)
        enough = np.flatnonzero(bound <= tolerance)
        if enough.size:
            value = _kinks(a, b, variance, i, j, covariance) + _rest(a, b, i, j, rho, int(enough[0]))
            return value, 2 * tolerance * a.norm[i] * b.norm[j]
    return None


@dataclass(frozen=True)
class _Split:
    kink: Factor  # S
    whole: Array  # (terms, N): coefficients of f
    step: Array  # (terms, N): coefficients of S
    norm: Array  # sqrt(<f^2>)
    step_tail: (
        Array  # (terms + 1,): sqrt of what S has beyond n terms, relative to the norm, largest of all inputs
    )
    rest_tail: Array  # the same for f - S
    size: float  # largest sqrt(<S^2>) relative to the norm

    def bound(self, other: _Split, rho: float) -> Array:
        """Bound of the error after n terms, relative to the norms, with the rounding of what cancels."""
        cross = self.step_tail * other.rest_tail + self.rest_tail * (other.step_tail + other.rest_tail)
        return np.asarray(rho ** np.arange(len(cross)) * cross + 4e-16 * self.size * other.size)


def _split(f: Factor, order: int, deviation: Array, tolerance: float) -> _Split:
    kink = Factor((Term(activation("perceptron")),), _jumps(f, order)) if f.kinks else Factor((), (0.0,))
    whole, step, squares = hermite.joint_coefficients(f, kink, deviation, _TERMS, tolerance)
    norm = np.sqrt(squares[0])
    safe = np.where(norm > 0, norm, 1.0)
    size = float((np.sqrt(squares[1]) / safe).max())
    return _Split(kink, whole, step, norm, _tail(step / safe), _tail((whole - step) / safe), max(size, 1.0))


def _tail(coefficients: Array) -> Array:
    """sqrt(sum_{k >= n} c_k^2) for n = 0..terms, largest over the inputs: (terms + 1,).

    What lies beyond the last term falls like a power of k, at least as k^-2: no more than the number of terms times
    the last squares.
    """
    beyond = 4 * len(coefficients) * (coefficients[-64:] ** 2).max(axis=0)
    squares = np.concatenate([coefficients**2, beyond[None]])
    return np.asarray(np.sqrt(np.cumsum(squares[::-1], axis=0)[::-1].max(axis=1)))


@lru_cache(maxsize=64)
def _jumps(f: Factor, order: int) -> tuple[float, ...]:
    """Coefficients J_k / k! of the polynomial that S has for z > 0: J_k the jump of the k-th derivative at 0."""
    sides = np.array([np.nextafter(0.0, -1.0), 0.0])
    parts: list[Factor] = [f]
    found = []
    for k in range(order + 1):
        low, high = sum((np.asarray(part(sides)) for part in parts), start=np.zeros(2))
        found.append(float(high - low) / math.factorial(k))
        parts = [slope for part in parts for slope in part.derivative()]
    return tuple(found)


def _kinks(a: _Split, b: _Split, variance: Array, i: Indices, j: Indices, covariance: Array) -> Array:
    """<S S'> of the pairs."""
    K = np.empty((len(i), 2, 2))
    K[:, 0, 0], K[:, 1, 1] = variance[i], variance[j]
    K[:, 0, 1] = K[:, 1, 0] = covariance
    pieces = [h.kink.pieces for h in (a, b) if h.kink.pieces is not None]
    return quadrant_moment(pieces, K)[0]


def _rest(a: _Split, b: _Split, i: Indices, j: Indices, rho: Array, terms: int) -> Array:
    """sum_k (a_k b_k - s_k s'_k) rho^k of the pairs, by Horner's rule."""
    total = np.zeros(len(rho))
    for start in range(0, len(rho), _CHUNK):
        part = slice(start, start + _CHUNK)
        for k in range(terms - 1, -1, -1):
            total[part] *= rho[part]
            total[part] += a.whole[k, i[part]] * b.whole[k, j[part]] - a.step[k, i[part]] * b.step[k, j[part]]
    return total
