"""Exact entropies of the neurons of a layer for one input: a Gaussian mixture over the law of the metric.

Given the metric G the neurons of a layer are independent and Gaussian (4.69). Only the shape of its law matters for
information, so that laws are kept as points of log G with weights: a quadrature where the law is known, or draws of
networks.

The density of m neurons depends on the radius alone. With t = log |z| it is E[phi(t - log(G)/2)], phi the law of
log chi_m, and S_m = h(t) + log(sphere) + m E[t]: one smooth integral, for which the trapezoid rule is exact to
rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special
from scipy.interpolate import CubicSpline
from scipy.special import digamma, gammaln

from foretrain.support.answers import Result
from foretrain.support.arguments import Array
from foretrain.support.errors import InputError
from foretrain.support.seeds import Seed
from foretrain.theory.architecture import MLP
from foretrain.theory.arguments import one_input
from foretrain.theory.ensembles import sample_metric
from foretrain.theory.information.entropies import neurons
from foretrain.theory.linear.law import log_chi_square_moment

_TINY = 1e-18  # what the transform of a density may leave out
_TILTS = (0.0, 3.0)
_REACH = 12.0  # standard deviations of log G that are kept on either side
_LARGEST_SPREAD = 60.0  # beyond it the mean is carried by draws that no quadrature in double precision sees


@dataclass(frozen=True, eq=False, repr=False)
class MetricLaw(Result):
    """Points of log G with weights that add up to one; ``draws`` is 0 where the law is known and not sampled."""

    also = ("mean", "relative_variance")
    log_metric: Array
    weights: Array
    draws: int
    name: str

    @property
    def mean(self) -> float:
        """E[G]."""
        return float(self.weights @ np.exp(self.log_metric))

    @property
    def relative_variance(self) -> float:
        """X = Var[G] / E[G]^2, of which the series are made."""
        G = np.exp(self.log_metric)
        mean = self.weights @ G
        return float(self.weights @ (G / mean - 1) ** 2)


def log_normal_law(log_variance: float) -> MetricLaw:
    """log G ~ N(-y/2, y): deep scale-invariant networks as n and L grow, where y = nu L / n; X = e^y - 1.

    A product of many independent factors near one, whatever the slopes; skip connections change nu only.
    """
    if not (math.isfinite(log_variance) and 0 <= log_variance <= _LARGEST_SPREAD):
        raise InputError(
            f"the variance of log G is {log_variance!r}: give nu L / n, from 0 to {_LARGEST_SPREAD:g}."
        )
    name = f"log-normal, variance {log_variance:g}"
    if log_variance == 0:
        return MetricLaw(np.zeros(1), np.ones(1), 0, name)
    deviation = math.sqrt(log_variance)
    # The mean is carried by points at log G = +y/2, so the grid must reach beyond them.
    half = _REACH + deviation
    points = np.linspace(-half, half, 2 * math.ceil(half / min(0.25, 0.1 / deviation)) + 1)
    weights = np.exp(-(points**2) / 2)
    return MetricLaw(deviation * points - log_variance / 2, weights / weights.sum(), 0, name)


def linear_law(widths: Sequence[int]) -> MetricLaw:
    """The product of chi^2_n / n over hidden layers: linear networks, exact at any width (one layer: X = 2/n).

    The density of log G from its characteristic function, a product of Gamma functions.
    """
    hidden = list(widths)
    if not hidden or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in hidden):
        raise InputError(f"the widths are {widths!r}: give positive whole numbers, one per hidden layer.")
    half = np.array(hidden) / 2
    mean = float((special.digamma(half) - np.log(half)).sum())
    deviation = math.sqrt(float(special.polygamma(1, half).sum()))
    # Small G are as rare as G^(n/2) for the narrowest layer, a tail that is longer than that of a normal law.
    low = mean - max(_REACH * deviation, 40 / half.min())
    high = mean + (_REACH + deviation) * deviation
    cut = max(_cut(hidden, tilt, deviation) for tilt in _TILTS)
    frequencies = math.pi / (high - low) * np.arange(math.ceil(cut * (high - low) / math.pi))
    points = np.linspace(low, high, 2 * len(frequencies) + 1)
    # Rounding errors of a transform are of one size everywhere; weighed with G^3 they fall. Switch where both agree.
    switch = math.log(abs(_transform(hidden, _TILTS[1], np.zeros(1))[0])) / _TILTS[1]
    sides = (points < switch, points >= switch)
    density = np.concatenate(
        [_density(hidden, tilt, points[side], frequencies) for tilt, side in zip(_TILTS, sides)]
    )
    return MetricLaw(points, density / density.sum(), 0, f"linear, {len(hidden)} hidden layers")


def _transform(widths: Sequence[int], tilt: float, frequencies: Array) -> NDArray[np.complex128]:
    """E[G^(tilt + i s)]."""
    return np.asarray(np.exp(sum(log_chi_square_moment(n, tilt + 1j * frequencies) for n in widths)))


def _density(widths: Sequence[int], tilt: float, points: Array, frequencies: Array) -> Array:
    """The density of log G, up to a constant: e^(-tilt y) int ds e^(-i s y) E[G^(tilt + i s)]."""
    values = _transform(widths, tilt, frequencies) * np.where(frequencies == 0, 0.5, 1.0)
    waves = np.exp(-1j * points[:, None] * frequencies)
    return np.asarray(np.clip((waves @ values).real, 0.0, None) * np.exp(-tilt * points))


def _cut(widths: Sequence[int], tilt: float, deviation: float) -> float:
    """The frequency from which on the transform is nothing."""
    cut = 1 / deviation
    size = abs(_transform(widths, tilt, np.zeros(1))[0])
    while abs(_transform(widths, tilt, np.array([cut]))[0]) > _TINY * size:
        cut *= 1.25
    return cut


def sampled_law(
    mlp: MLP, x: ArrayLike, draws: int = 20_000, *, layer: int | None = None, seed: Seed = 0
) -> MetricLaw:
    """The metric of a layer (the output by default) of random networks, for one input x.

    In a layer with a skip connection neurons are not Gaussian given the metric, so that only those without one, such
    as the output, are taken.
    """
    vector, number = one_input(x), mlp.check_layer(layer)
    if mlp.gamma[number - 1]:
        raise InputError(
            f"layer {number} has a skip connection, by which neurons know their past: take the output, {mlp.depth}."
        )
    G = sample_metric(mlp, vector[None], draws, layers=[number], seed=seed).values.ravel()
    dead = int((G <= 0).sum())
    if dead:
        raise InputError(
            f"{dead} of {draws} networks give no signal at all at layer {number}, so that outputs have no density: "
            "widen the network, make it shallower, or give biases a variance."
        )
    return MetricLaw(
        np.log(G), np.full(len(G), 1 / len(G)), len(G), f"{mlp.activation.label}, layer {number}"
    )


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
    step = min(_STEP, 0.5 / math.sqrt(m))
    low = float(half.min()) - _DIGITS / m + min(0.0, math.log(m) / 2)
    high = float(half.max()) + math.log(m + 2 * math.sqrt(m * _DIGITS) + 2 * _DIGITS) / 2
    t = low + step * np.arange(math.ceil((high - low) / step) + 1, dtype=np.float64)
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
