"""Exact entropies of m neurons of a layer for one input: a Gaussian mixture over the law of the metric.

The density depends on the radius alone. With t = log |z| it is E[phi(t - log(G)/2)], phi the law of log chi_m, and
S_m = h(t) + log(sphere) + m E[t]: one smooth integral, for which the trapezoid rule is exact to rounding.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline
from scipy.special import digamma, gammaln

from foretrain.theory.information.laws import MetricLaw
from foretrain.theory.information.series import neurons

Array = NDArray[np.float64]

_STEP = 0.06
_DIGITS = 40.0  # e^-40 is below rounding
_BLOCK = 2**21  # numbers at a time
_KNOTS = 257


class Estimate(NamedTuple):
    """A number with its standard error, 0 where the law was not sampled."""

    value: float
    standard_error: float


def mixture_entropy(law: MetricLaw, m: float) -> Estimate:
    """S of m neurons, in nats, exact in width: for the Gaussian (one point of the law) it is (A.26)."""
    return _combination(law, {neurons(m): 1.0})


def mixture_information(law: MetricLaw, m_1: float, m_2: float) -> Estimate:
    """I = S_m1 + S_m2 - S_(m1+m2): what one group of neurons tells about another, exact in width.

    It grows with the spread of log G alone, and never turns over as its series (A.67) does.

    Examples
    --------
    >>> from foretrain.theory.information import log_normal_law
    >>> round(mixture_information(log_normal_law(2 / 13), 1, 1).value, 6)
    0.002027
    """
    m_1, m_2 = neurons(m_1), neurons(m_2)
    return _combination(law, _sum([(m_1, 1.0), (m_2, 1.0), (m_1 + m_2, -1.0)]))


def mixture_tripartite(law: MetricLaw, m_1: float, m_2: float, m_3: float) -> Estimate:
    """I_3 of three groups of neurons, exact in width (A.24)."""
    a, b, c = neurons(m_1), neurons(m_2), neurons(m_3)
    terms = [(a, 1.0), (b, 1.0), (c, 1.0), (a + b, -1.0), (a + c, -1.0), (b + c, -1.0), (a + b + c, 1.0)]
    return _combination(law, _sum(terms))


def _sum(terms: list[tuple[float, float]]) -> dict[float, float]:
    total: dict[float, float] = {}
    for m, coefficient in terms:
        total[m] = total.get(m, 0.0) + coefficient
    return total


def _combination(law: MetricLaw, coefficients: dict[float, float]) -> Estimate:
    """A sum of entropies. Its error from what each draw adds to first order, its bias from the second order."""
    half = law.log_metric / 2
    value, influence = 0.0, np.zeros_like(half)
    for m, coefficient in coefficients.items():
        entropy, own = _entropy(half, law.weights, m, law.draws)
        value += coefficient * entropy
        influence += coefficient * own
    if not law.draws:
        return Estimate(value, 0.0)
    return Estimate(value, float(influence.std(ddof=1)) / math.sqrt(law.draws))


def _entropy(half: Array, weights: Array, m: float, draws: int) -> tuple[float, Array]:
    """The entropy, and -<log p> over the neurons of one network, for every network."""
    t, step = _grid(half, m)
    first, second = _averages(half, weights, m, t)
    log_first = np.log(np.where(first > 0, first, 1.0))
    sphere = math.log(2) + m / 2 * math.log(math.pi) - float(gammaln(m / 2))
    mean = float(weights @ half) + (float(digamma(m / 2)) + math.log(2)) / 2
    value = -step * float(first @ log_first) + sphere + m * mean
    if not draws:
        return value, np.zeros_like(half)
    # A mixture over few draws is narrower than the law: minus half of the variance of the density over itself.
    excess = step * float((second[first > 0] / first[first > 0]).sum()) - 1
    # -int phi(t - y) log p: a smooth function of y = log(G)/2, through knots.
    knots = half[:1] + np.array([0, 1e-9])
    if np.ptp(half) > 0:
        knots = np.linspace(half.min(), half.max(), _KNOTS)
    surprise = -step * _kernel(t - knots[:, None], m) @ log_first + m * knots
    return value + excess / (2 * draws), np.asarray(CubicSpline(knots, surprise)(half))


def _grid(half: Array, m: float) -> tuple[Array, float]:
    step = min(_STEP, 0.5 / math.sqrt(m))
    low = float(half.min()) - _DIGITS / m + min(0.0, math.log(m) / 2)
    high = float(half.max()) + math.log(m + 2 * math.sqrt(m * _DIGITS) + 2 * _DIGITS) / 2
    count = math.ceil((high - low) / step) + 1
    return np.asarray(low + step * np.arange(count, dtype=np.float64)), step


def _averages(half: Array, weights: Array, m: float, t: Array) -> tuple[Array, Array]:
    """E[phi] and E[phi^2] over the law, block by block."""
    first, second = np.zeros(len(t)), np.zeros(len(t))
    rows = max(1, _BLOCK // len(t))
    for start in range(0, len(half), rows):
        block = _kernel(t - half[start : start + rows, None], m)
        own = weights[start : start + rows]
        first += own @ block
        second += own @ block**2
    return first, second


def _kernel(u: Array, m: float) -> Array:
    """The density of log chi_m: 2^(1 - m/2) / Gamma(m/2) e^(m u - e^(2u)/2)."""
    constant = (1 - m / 2) * math.log(2) - float(gammaln(m / 2))
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(np.exp(constant + m * u - np.exp(2 * u) / 2))
