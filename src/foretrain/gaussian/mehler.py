"""All pairs of N inputs by Mehler's series.

<f(z_1) g(z_2)> = sum_k a_k(K_11) b_k(K_22) rho^k with a_k(K) = <f(sqrt(K) x) He_k(x)> / sqrt(k!). The
coefficients belong to single inputs, N of them, not to pairs. Parseval gives the tail exactly: what is left out
after n terms is at most |rho|^n sqrt(tail_f tail_g), with tail_f = <f^2> - sum_{k<n} a_k^2.

Nearly parallel pairs of functions with a kink at zero have the kink in closed form and the smooth rest by its series:
with S the polynomial times a step that has the first jumps of f, the rest f - S is smoother and its coefficients fall
faster. In <f g> = <S S'> + sum_k (a_k b_k - s_k s'_k) rho^k every term of the sum holds a coefficient of a rest: it
converges also at rho = 1. What is left out is bounded by Cauchy and Schwarz.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

from foretrain.activations import activation
from foretrain.gaussian.closed_forms import quadrant_moment
from foretrain.gaussian.covariance import stack_pairs
from foretrain.gaussian.factors import Factor, Term
from foretrain.gaussian.nodes import hermite_polynomials
from foretrain.gaussian.panels import Table, nodes_for, panel_rule, regular_edges
from foretrain.support.errors import NotSupportedError

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

_NODES = nodes_for(1e-13)
_RADII = (12.5, 18.0, 25.0, 36.0)
_EDGE = 1e-15
_TABULATED = 50_000
FIRST_TERMS, MOST_TERMS = 64, 1024
_MOST_PRODUCTS = 24
# Times per pair in units of one elementwise sweep: a term of Horner's rule; a matrix product and its Clenshaw step.
_HORNER_TERM, _PRODUCT, _PRODUCT_TERM = 3.2, 5.0, 0.16
_ORDERS = (2, 4, 6, 8)
_DEVIATIONS = (24, 48, 96, 192)  # from which those of others are interpolated,
_SAVING = 4  # if these are so many times more,
_SMOOTH = 1e-14  # and the last quarter of the Chebyshev coefficients is no larger
_TERMS = 1024
_CHUNK = 8192


@dataclass(frozen=True)
class Series:
    """Hermite coefficients of one factor at N deviations."""

    coefficients: Array  # (terms, N)
    norm: Array  # sqrt(<f^2>), (N,)
    tail: Array  # (terms + 1,), largest over the inputs of sqrt(1 - sum_{k<n} a_k^2 / <f^2>)
    step: int  # 2 if every second coefficient vanishes by parity, else 1
    first: int  # first coefficient that parity allows


@lru_cache(maxsize=32)
def hermite_rows(points: bytes, terms: int) -> Array:
    """He_k(x) / sqrt(k!) for k < terms at the given points: (terms, Q)."""
    return hermite_polynomials(np.frombuffer(points), terms)


def series(f: Factor, deviation: Array, terms: int, tolerance: float) -> Series:
    """The first ``terms`` Hermite coefficients of ``f(deviation x)`` for each deviation (N,)."""
    widest = float(deviation.max(initial=0.0))
    radius = _radius(f, widest)
    if any(location != 0 for location in f.kinks):
        coefficients, square = _per_row(f, deviation, terms, radius)
    else:
        x, w = _common_rule(f, widest, terms, radius, tolerance)
        rows = hermite_rows(x.tobytes(), terms) * w

        def compute(some: Array) -> tuple[Array, Array]:
            values = _values(f, some[:, None] * x)
            return rows @ values.T, values**2 @ w

        coefficients, square = _smooth_in_deviation(compute, deviation) or compute(deviation)
    still = np.flatnonzero(deviation == 0)
    if still.size and f.kinks:
        coefficients[0, still] = f.mean_value(np.zeros(1))[0]
        square[still] = (f * f).mean_value(np.zeros(1))[0]
    norm = np.sqrt(square)
    safe = np.where(square > 0, square, 1.0)
    left = 1 - np.cumsum(coefficients**2, axis=0) / safe
    # Below the rounding of the sum nothing can be said of the tail: it may be that large.
    left = np.where(square > 0, np.maximum(left, 4e-16 * math.sqrt(terms)), 0.0)
    tail = np.concatenate([[1.0], np.sqrt(left.max(axis=1, initial=0.0))])
    step, first = {1: (2, 0), -1: (2, 1), 0: (1, 0)}[f.parity]
    return Series(coefficients, norm, tail, step, first)


def _smooth_in_deviation(
    compute: Callable[[Array], tuple[Array, Array]], deviation: Array
) -> tuple[Array, Array] | None:
    """Coefficients and <f^2> of many inputs, interpolated from those of few deviations; None where that saves little.

    Both are analytic in log(deviation). Coefficients are taken relative to sqrt(<f^2>), and that by its logarithm.
    """
    positive = deviation > 0
    if np.count_nonzero(positive) < _SAVING * _DEVIATIONS[0]:
        return None
    log = np.log(deviation[positive])
    centre, half = (log.max() + log.min()) / 2, max((log.max() - log.min()) / 2, 1e-3)
    for count in _DEVIATIONS:
        if np.count_nonzero(positive) < _SAVING * count:
            return None
        angles = (2 * np.arange(count) + 1) * (math.pi / (2 * count))
        found, square = compute(np.exp(centre + half * np.cos(angles)))
        if not (square > 0).all():
            return None
        both = np.concatenate([found / np.sqrt(square), np.log(square)[None]])
        series = both @ np.cos(np.outer(angles, np.arange(count))) * (2 / count)
        series[:, 0] /= 2
        if np.abs(series[:, -count // 4 :]).max() <= _SMOOTH:
            break
    else:
        return None
    at = series @ chebyshev.chebvander((log - centre) / half, count - 1).T
    coefficients, squares = np.zeros((len(found), len(deviation))), np.zeros(len(deviation))
    squares[positive] = np.exp(at[-1])
    coefficients[:, positive] = at[:-1] * np.sqrt(squares[positive])
    if not positive.all():
        coefficients[:, ~positive], squares[~positive] = compute(deviation[~positive])
    return coefficients, squares


def _values(f: Factor, z: Array) -> Array:
    """f at many points; a user's smooth function, which may be slow, from a table where that is cheaper."""
    if f.kinks or not f.is_unproven or z.size < _TABULATED:
        return np.asarray(f(z), dtype=np.float64)
    reach = float(np.abs(z).max()) * (1 + 1e-12)
    edges = np.linspace(-reach, reach, 2 * math.ceil(min(8 * reach / f.strip, 4000)) + 1)
    table = Table(lambda s: np.asarray(f(s), dtype=np.float64), edges, 1e-14)
    return table(z) if table.error <= 1e-13 else np.asarray(f(z), dtype=np.float64)


def _radius(f: Factor, deviation: float) -> float:
    """How far out to go: He_k / sqrt(k!) grows like exp(x^2/4), so f exp(-x^2/4) must have died there."""
    x = np.linspace(-_RADII[-1], _RADII[-1], 289)
    with np.errstate(over="ignore", invalid="ignore"):
        size = np.abs(f(deviation * x)) * np.exp(-(x**2) / 4)
    largest = np.nanmax(size)
    for radius in _RADII[:-1]:
        if np.nanmax(size[np.abs(x) >= radius]) <= _EDGE * largest:
            return radius
    return _RADII[-1]


def _common_rule(
    f: Factor, deviation: float, terms: int, radius: float, tolerance: float
) -> tuple[Array, Array]:
    """Points and weights for all inputs: a fine trapezoid, or panels from 0 where the kink is."""
    if f.kinks:
        edges = _panel_edges(f, deviation, terms, radius)
        rows, weights = panel_rule(edges[None], _NODES)
        return rows[0], weights[0]
    # The error is exp(-2 pi d / step) with d the distance of the nearest singularity.
    distance = f.strip / max(deviation, 1e-300)
    own = min(2 * math.pi * distance / (math.log(1e3 / tolerance) + 2 + min(distance, 2.0) ** 2 / 2), 0.35)
    step = 1 / (1 / own + math.sqrt(terms) / (2 * math.pi))
    reach = math.ceil(radius / step)
    x = step * (np.arange(-reach, reach + 1, dtype=np.float64) + 0.125)
    return x, step * np.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)


def _panel_edges(f: Factor, deviation: float, terms: int, radius: float) -> Array:
    distance = min(f.strip / max(deviation, 1e-300), 10 / math.sqrt(terms))
    return np.union1d(regular_edges(distance, radius), [0.0])


def _per_row(f: Factor, deviation: Array, terms: int, radius: float) -> tuple[Array, Array]:
    """Kinks away from zero lie at different x for each deviation, so every input has points of its own."""
    base = _panel_edges(f, float(deviation.max(initial=0.0)), terms, radius)
    coefficients, square = np.empty((terms, len(deviation))), np.empty(len(deviation))
    width = max(1, 30_000_000 // (terms * len(base) * _NODES))
    for start in range(0, len(deviation), width):
        part = slice(start, start + width)
        own = deviation[part, None]
        with np.errstate(divide="ignore"):
            breaks = np.clip(np.array(f.kinks) / own, -radius, radius)
        edges = np.sort(np.concatenate([np.tile(base, (len(own), 1)), np.nan_to_num(breaks)], axis=1), axis=1)
        x, w = panel_rule(edges, _NODES)
        values = np.asarray(f(own * x), dtype=float)
        coefficients[:, part] = np.einsum("knq,nq->kn", hermite_polynomials(x, terms), values * w)
        square[part] = (values**2 * w).sum(axis=1)
    return coefficients, square


def terms_needed(f: Series, g: Series, rho: float, tolerance: float) -> int | None:
    """Number of terms that bring the Parseval bound below the tolerance at |rho|, or None if there are too few."""
    terms = len(f.coefficients)
    bound = rho ** np.arange(terms + 1) * f.tail * g.tail
    enough = np.flatnonzero(bound <= tolerance)
    return int(enough[0]) if enough.size else None


def largest_correlation(f: Series, g: Series, tolerance: float) -> float:
    """The largest |rho| at which all terms at hand reach the tolerance."""
    terms = len(f.coefficients)
    floor = float(f.tail[-1] * g.tail[-1])
    return 1.0 if floor <= tolerance else float((tolerance / floor) ** (1 / terms))


def sum_tile(
    f: Series,
    g: Series,
    rows: slice,
    columns: slice,
    rho: NDArray[Any],
    tolerance: float,
    out: NDArray[Any],
    *,
    compiled: bool = False,
) -> None:
    """The series for a tile of pairs: Horner's rule, or matrix products where correlations are alike.

    ``compiled``: Horner's rule in one pass by numba.
    """
    low, high = float(rho.min()), float(rho.max())
    terms = terms_needed(f, g, max(abs(low), abs(high)), tolerance) or len(f.coefficients)
    same = (f.step, f.first) == (g.step, g.first)
    stride, first = (f.step, f.first) if same else (1, 0)
    k = np.arange(first, max(terms, first + 1), stride)
    a, b = (c.astype(rho.dtype, copy=False) for c in (f.coefficients[k, rows], g.coefficients[k, columns]))
    if compiled:
        from foretrain.gaussian import fused_pairs

        out[...] = fused_pairs.horner(a, b, rho * rho if stride == 2 else rho)
        if first:
            out *= rho
        return
    size = _largest(f, k, rows) * _largest(g, k, columns)
    weights = _interval_weights(k, size, low, high, tolerance)
    if weights is not None and len(weights) * (_PRODUCT + _PRODUCT_TERM * len(k)) < _HORNER_TERM * len(k):
        _by_products(a, b, weights.astype(rho.dtype), low, high, rho, out)
    else:
        _by_horner(a, b, rho, stride, first, out)


def sum_list(f: Series, g: Series, i: Indices, j: Indices, rho: Array) -> Array:
    """The series, all terms at hand, for listed pairs."""
    total = np.zeros(len(rho))
    for start in range(0, len(rho), _CHUNK):
        part = slice(start, start + _CHUNK)
        for row, column in zip(f.coefficients[::-1], g.coefficients[::-1]):
            total[part] *= rho[part]
            total[part] += row[i[part]] * column[j[part]]
    return total


def _largest(f: Series, k: NDArray[np.intp], inputs: slice) -> Array:
    """Largest coefficients among the inputs, relative to the norms to which the tolerance is."""
    norm = np.where(f.norm[inputs] > 0, f.norm[inputs], 1.0)
    return np.asarray((np.abs(f.coefficients[k, inputs]) / norm).max(axis=1))


def _by_horner(
    a: NDArray[Any], b: NDArray[Any], rho: NDArray[Any], stride: int, first: int, out: NDArray[Any]
) -> None:
    """sum_k a_k b_k rho^k by Horner's rule, in rho^2 where parity skips every other term."""
    power = rho * rho if stride == 2 else rho
    # Sub-tiles small enough that what Horner's rule sweeps again and again stays in the nearest cache.
    height = max(1, 16_384 // max(1, rho.shape[1]))
    for start in range(0, len(rho), height):
        part = slice(start, start + height)
        total, scratch = np.zeros_like(rho[part]), np.empty_like(rho[part])
        for row, column in zip(a[::-1, part, None], b[::-1, None, :]):
            total *= power[part]
            np.multiply(row, column, out=scratch)
            total += scratch
        if first:
            total *= rho[part]
        out[part] = total


def _interval_weights(
    k: NDArray[np.intp], size: Array, low: float, high: float, tolerance: float
) -> Array | None:
    """Chebyshev coefficients (m, terms) of rho^k on [low, high], as few as bring the remainder below tolerance.

    The remainder of interpolating sum_k c_k rho^k in m points is at most
    2 max|d^m| ((high - low)/4)^m / m!, and the m-th derivative at most sum_k |c_k| k!/(k-m)! r^(k-m).
    """
    reach, quarter = max(abs(low), abs(high)), (high - low) / 4
    bound = 2 * size * reach**k
    for m in range(1, _MOST_PRODUCTS + 1):
        with np.errstate(invalid="ignore"):
            bound = bound * np.maximum(k - m + 1, 0) * quarter / (m * reach)
        if bound.sum() <= 0.1 * tolerance:
            nodes = chebyshev.chebpts1(m)
            powers = ((low + high) / 2 + (high - low) / 2 * nodes)[:, None] ** k
            return np.asarray(np.linalg.solve(chebyshev.chebvander(nodes, m - 1), powers))
    return None


def _by_products(
    a: NDArray[Any],
    b: NDArray[Any],
    weights: NDArray[Any],
    low: float,
    high: float,
    rho: NDArray[Any],
    out: NDArray[Any],
) -> None:
    """Chebyshev coefficients of the tile as matrix products, summed by Clenshaw's recurrence."""
    t = rho - (low + high) / 2
    t *= 4 / (high - low) if high > low else 0.0  # twice Chebyshev's variable, as Clenshaw uses it
    later, latest, scratch = np.zeros_like(rho), np.zeros_like(rho), np.empty_like(rho)
    for weight in weights[:0:-1]:
        np.multiply(t, later, out=scratch)
        scratch -= latest
        np.matmul((a * weight[:, None]).T, b, out=latest)
        latest += scratch
        later, latest = latest, later
    np.matmul((a * weights[0][:, None]).T, b, out=out)
    later *= t
    later *= 0.5
    out += later
    out -= latest


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
    widest = float(deviation.max(initial=0.0))
    x, w = _common_rule(f, widest, _TERMS, max(_radius(f, widest), _radius(kink, widest)), tolerance)
    rows = hermite_rows(x.tobytes(), _TERMS) * w
    of_f, of_kink = (_values(h, deviation[:, None] * x) for h in (f, kink))
    whole, step = rows @ of_f.T, rows @ of_kink.T
    norm = np.sqrt((of_f**2) @ w)
    safe = np.where(norm > 0, norm, 1.0)
    size = float((np.sqrt((of_kink**2) @ w) / safe).max())
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
    pieces = [h.kink.pieces for h in (a, b) if h.kink.pieces is not None]
    return quadrant_moment(pieces, stack_pairs(variance[i], variance[j], covariance))[0]


def _rest(a: _Split, b: _Split, i: Indices, j: Indices, rho: Array, terms: int) -> Array:
    """sum_k (a_k b_k - s_k s'_k) rho^k of the pairs, by Horner's rule."""
    total = np.zeros(len(rho))
    for start in range(0, len(rho), _CHUNK):
        part = slice(start, start + _CHUNK)
        for k in range(terms - 1, -1, -1):
            total[part] *= rho[part]
            total[part] += a.whole[k, i[part]] * b.whole[k, j[part]] - a.step[k, i[part]] * b.step[k, j[part]]
    return total
