"""Entropy and information of random networks: discrete, Gaussian, to next order in 1/n, and exact (appendix A).

From tables of probabilities

``surprisal``, ``entropy``, ``cross_entropy``, ``divergence``, ``mutual_information``,
``conditional_information``, ``tripartite_information``  in nats (A.1)-(A.24)

Infinite width

``gaussian_entropy``         of m neurons (A.26)
``gaussian_information``     between groups of inputs, one neuron (A.28); ``similarity_information`` (A.29)
``input_information``        the same at every layer of a network, before training
``trained_input_information``  after training, from the posterior covariance

Finite width, as a series in X = V / (n G^2), the relative variance of the metric

``entropy_series``, ``information_series``, ``tripartite_series``  (A.52)-(A.75)
``leading_information``      several inputs, leading order
``relative_variance``        X of a network, layer by layer; ``layer_information`` what follows from it

Exactly, because neurons are Gaussian given the metric

``linear_law``, ``log_normal_law``, ``sampled_law``  the law of the metric
``mixture_entropy``, ``mixture_information``, ``mixture_tripartite``  with standard errors where it is sampled

Depth over width

``aspect_ratio``             nu, r*, what the series and the exact law say there, and where the series breaks down

Given the metric G the neurons of a layer are independent and Gaussian (4.69). Only the shape of its law matters for
information, so that laws are kept as points of log G with weights: a quadrature where the law is known, or draws of
networks. The density of m neurons depends on the radius alone. With t = log |z| it is E[phi(t - log(G)/2)], phi the
law of log chi_m, and S_m = h(t) + log(sphere) + m E[t]: one smooth integral, for which the trapezoid rule is exact to
rounding.

In the series G and V are the exact mean and variance of the metric: at next order a V / (n K^2) of leading order is
not enough. Every formula needs m X << 1, and the information turns over and becomes negative where that fails, which
no true information does.

In deep critical networks X = nu r + c (nu r)^2 + ..., r = L/n. The printed (A.71) has c = 0 inside a series of third
order; with the true c its coefficient 20 + 3 m_1 + 3 m_2 becomes 20 - 12 c + 3 m_1 + 3 m_2. Scale-invariant networks
multiply the metric by independent factors, X = e^(nu r) - 1 and c = 1/2. At K* = 0 the metric, in units of its mean
at infinite width and as n and L grow, follows dg/ds = g - g^2 with noise of variance 2 r per unit of s = log l; the
moments of that process give X = (2/3) r + (2/15) r^2, hence c = 3/10. Skip connections rescale r in either class.

The maximum belongs to the truncated series. The exact information grows with r without one; at r* it is about twice
the printed value in scale-invariant networks. So r* is the scale nu r (m_1 + m_2) ~ 1 at which perturbation theory
ends, and 3/2 r* the depth at which the series is negative.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special
from scipy.interpolate import CubicSpline
from scipy.special import digamma, entr, gammaln, rel_entr

from foretrain.activations import activation as find_activation
from foretrain.support.answers import Result, labelled
from foretrain.support.arguments import Array, real_array
from foretrain.support.errors import InputError
from foretrain.support.seeds import Seed
from foretrain.theory.architecture import MLP
from foretrain.theory.arguments import one_input
from foretrain.theory.asymptotics import exact_fluctuation
from foretrain.theory.criticality import criticality
from foretrain.theory.ensembles import sample_metric
from foretrain.theory.flow import flow
from foretrain.theory.linear import log_chi_square_moment
from foretrain.theory.residual_networks import fluctuation_rate

if TYPE_CHECKING:
    import xarray as xr


_ROUNDING = 1e-9


def surprisal(p: ArrayLike) -> Array:
    """-log p of every outcome, infinite where it cannot happen (A.4)."""
    with np.errstate(divide="ignore"):
        return np.asarray(-np.log(_table(p)))


def entropy(p: ArrayLike) -> float:
    """S = -sum p log p of all variables together, between 0 and the log of the number of outcomes (A.1).

    Examples
    --------
    >>> round(entropy([0.5, 0.5]), 6)
    0.693147
    """
    return float(entr(_table(p)).sum())


def cross_entropy(p: ArrayLike, q: ArrayLike) -> float:
    """S[p, q] = -sum p log q: the entropy of p and the divergence from q to it; infinite where q rules p out."""
    return entropy(p) + divergence(p, q)


def divergence(p: ArrayLike, q: ArrayLike) -> float:
    """KL[p || q] = sum p log(p / q), never negative (A.12)."""
    first, second = _table(p), _table(q)
    if first.shape != second.shape:
        raise InputError(f"p has shape {first.shape} and q {second.shape}: give tables of the same outcomes.")
    return max(0.0, float(rel_entr(first, second).sum()))


def mutual_information(
    joint: ArrayLike, first: int | Iterable[int] = 0, second: int | Iterable[int] = 1
) -> float:
    """I = S_x + S_y - S_xy = KL[p_xy || p_x p_y] (A.14), (A.15).

    ``first`` and ``second`` are axes of the table, or groups of them; other axes are summed over.

    Examples
    --------
    >>> round(mutual_information(np.diag([0.25] * 4)), 6)
    1.386294
    """
    table = _table(joint)
    groups = [_axes(first, table), _axes(second, table)]
    if set(groups[0]) & set(groups[1]):
        raise InputError(f"axes {groups[0]} and {groups[1]} overlap: give two separate groups.")
    return max(0.0, sum(_entropy_of(table, g) for g in groups) - _entropy_of(table, groups[0] + groups[1]))


def conditional_information(joint: ArrayLike) -> float:
    """I(x, y | z) of a table with three axes, never negative."""
    table = _three(joint)
    return max(
        0.0,
        _entropy_of(table, (0, 2))
        + _entropy_of(table, (1, 2))
        - _entropy_of(table, (0, 1, 2))
        - _entropy_of(table, (2,)),
    )


def tripartite_information(joint: ArrayLike) -> float:
    """I_3 = I(x, y) - I(x, y | z) of a table with three axes (A.24).

    Positive where the variables repeat each other (copies), negative where two tell about the third only together
    (the exclusive or of two fair bits: -log 2).
    """
    table = _three(joint)
    ones = sum(_entropy_of(table, (axis,)) for axis in range(3))
    pairs = sum(_entropy_of(table, pair) for pair in ((0, 1), (0, 2), (1, 2)))
    return ones - pairs + _entropy_of(table, (0, 1, 2))


def _entropy_of(table: Array, axes: tuple[int, ...]) -> float:
    others = tuple(axis for axis in range(table.ndim) if axis not in axes)
    return float(entr(table.sum(axis=others)).sum())


def _axes(given: int | Iterable[int], table: Array) -> tuple[int, ...]:
    axes = (given,) if isinstance(given, int) else tuple(given)
    if not axes or any(not -table.ndim <= axis < table.ndim for axis in axes):
        raise InputError(f"axes {axes} do not name variables of a table with {table.ndim} axes.")
    return tuple(axis % table.ndim for axis in axes)


def _three(joint: ArrayLike) -> Array:
    table = _table(joint)
    if table.ndim != 3:
        raise InputError(f"the table has {table.ndim} axes: give one for each of three variables.")
    return table


def _table(p: ArrayLike) -> Array:
    table = np.asarray(p, dtype=np.float64)
    if not table.size or not np.isfinite(table).all() or (table < 0).any():
        raise InputError("the table holds negative or infinite numbers, or none: give probabilities.")
    if abs(table.sum() - 1) > _ROUNDING:
        raise InputError(f"the probabilities add up to {table.sum():.6g}: divide them by their sum.")
    return table


_DEPENDENT = 1e-14  # of the largest variance of a group: what is below is rounding
_BELOW_ZERO = 1e-8  # below zero, as integrals leave it
_NO_COVARIANCE = "the kernel is not positive definite: give a covariance matrix."


def neurons(m: object) -> float:
    """A number of neurons; halves of an odd layer are allowed, as (A.73) has them."""
    if isinstance(m, bool) or not isinstance(m, Real) or not 0 < float(m) < math.inf:
        raise InputError(f"the number of neurons is {m!r}: give a positive number.")
    return float(m)


def gaussian_entropy(K: ArrayLike, m: float = 1) -> float:
    """(m/2) log |2 pi e K| of m independent neurons, K a variance or a covariance over inputs (A.26)."""
    kernel = _kernel(K)
    return neurons(m) / 2 * (len(kernel) * math.log(2 * math.pi * math.e) + _log_determinant(kernel))


def gaussian_information(
    K: ArrayLike, first: Sequence[int] = (0,), second: Sequence[int] = (1,), m: float = 1
) -> float:
    """Information between a neuron's values on two groups of inputs, (1/2) log |K_1| |K_2| / |K_12| (A.28).

    m independent neurons have m times as much. Infinite where one group determines something of the other.

    Examples
    --------
    >>> round(gaussian_information([[1.0, 0.6], [0.6, 1.0]]), 6)  # -log(1 - 0.36) / 2
    0.223144
    """
    kernel = _kernel(K)
    groups = [list(first), list(second)]
    chosen = groups[0] + groups[1]
    if not all(groups) or len(set(chosen)) < len(chosen) or not set(chosen) <= set(range(len(kernel))):
        raise InputError(f"inputs {groups[0]} and {groups[1]} are not two separate groups of {len(kernel)}.")
    bases = [_independent(kernel, group) for group in groups]
    parts = [_log_determinant(basis.T @ kernel @ basis) for basis in (*bases, np.hstack(bases))]
    return neurons(m) / 2 * max(0.0, parts[0] + parts[1] - parts[2])


def _independent(kernel: Array, group: Sequence[int]) -> Array:
    """Columns that pick the group's inputs, or as many combinations of them as are not determined by others."""
    picked = np.eye(len(kernel))[:, list(group)]
    values, vectors = np.linalg.eigh(picked.T @ kernel @ picked)
    if values[0] < -_BELOW_ZERO * np.abs(values).max():
        raise InputError(_NO_COVARIANCE)
    known = values > _DEPENDENT * values[-1]
    return np.asarray(picked if known.all() else picked @ vectors[:, known])


def similarity_information(rho: ArrayLike) -> Array:
    """(1/2) log (1 + rho)^2 / (4 rho) at equal norms, rho = K_[2] / K_[0] (A.29).

    Infinite for inputs that have merged (rho = 0), zero for uncorrelated ones (rho = 1).
    """
    ratio = real_array("rho", rho)
    if (ratio < 0).any():
        raise InputError("rho = K_[2] / K_[0] is a ratio of variances: give numbers from 0 on.")
    with np.errstate(divide="ignore"):
        return np.asarray(np.log1p(ratio) - np.log(4 * ratio) / 2)[()]


def input_information(mlp: MLP, X: ArrayLike) -> xr.DataArray:
    """Information between a neuron's values on two inputs at every layer, before training (A.28).

    Inputs that have merged to the accuracy of integrals have about 11 nats, or infinitely many.
    """
    kernels = flow(mlp, _pair(mlp, X), ["K"])["K"]
    values = [gaussian_information(kernel) for kernel in kernels.values]
    found = kernels[:, 0, 0].copy(data=values).rename("information")
    return found.assign_attrs(meaning="mutual information of a neuron's values on two inputs, in nats")


def trained_input_information(
    mlp: MLP, X_train: ArrayLike, X: ArrayLike, noise: float = 0.0, m: float = 1
) -> float:
    """The same at the output after Bayesian learning, from the posterior covariance (6.57); targets play no part."""
    from foretrain.theory.prediction.bayes import bayes_prediction

    pair = _pair(mlp, X)
    targets = np.zeros((len(mlp.check_inputs(X_train)), mlp.n_out))
    covariance = bayes_prediction(mlp, X_train, targets, pair, noise=noise).covariance
    assert covariance is not None
    return gaussian_information(covariance.values, m=m)


def _pair(mlp: MLP, X: ArrayLike) -> Array:
    inputs = mlp.check_inputs(X)
    if len(inputs) != 2:
        raise InputError(f"X has {len(inputs)} rows: give the two inputs that are compared.")
    return inputs


def _kernel(K: ArrayLike) -> Array:
    kernel = np.atleast_2d(real_array("the kernel", K))
    size = len(kernel)
    if kernel.shape != (size, size) or not np.allclose(kernel, kernel.T, rtol=1e-10, atol=0):
        raise InputError(f"the kernel has shape {kernel.shape}: give a variance, or a symmetric matrix.")
    return kernel


def _log_determinant(kernel: Array) -> float:
    sign, size = np.linalg.slogdet(kernel)
    if sign < 0 or (np.diagonal(kernel) <= 0).any():
        raise InputError(_NO_COVARIANCE)
    return float(size)


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
    # E[phi] and E[phi^2] over the law, block by block.
    first, second = np.zeros(len(t)), np.zeros(len(t))
    rows = max(1, _BLOCK // len(t))
    for start in range(0, len(half), rows):
        block = _log_chi_density(t - half[start : start + rows, None], m)
        own = weights[start : start + rows]
        first += own @ block
        second += own @ block**2
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
    surprise = -step * _log_chi_density(t - knots[:, None], m) @ log_first + m * knots
    return value + excess / (2 * draws), np.asarray(CubicSpline(knots, surprise)(half))


def _log_chi_density(u: Array, m: float) -> Array:
    """The density of log chi_m: 2^(1 - m/2) / Gamma(m/2) e^(m u - e^(2u)/2)."""
    constant = (1 - m / 2) * math.log(2) - float(gammaln(m / 2))
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(np.exp(constant + m * u - np.exp(2 * u) / 2))


# Of the entries of V as integrals give them, and of the sum of their squares.
_ACCURACY, _DOUBTFUL = 1e-10, 0.01
_ALIKE = (
    "K is singular to the accuracy of its integrals, since inputs repeat or nearly depend on each other: leave out "
    "those that do."
)


def entropy_series(m: float, X: ArrayLike, G: float = 1.0, order: int = 3) -> Array:
    """(m/2) log 2 pi e G - (m^2 + 2m)/16 X^2 + (m^3 + 10 m^2 + 16 m)/48 X^3, up to X^order (A.52), (A.66).

    Examples
    --------
    >>> entropy_series(2, 0.05).round(10)
    np.float64(2.8368353997)
    """
    m, size = neurons(m), _variance(X)
    if not (math.isfinite(G) and G > 0):
        raise InputError(f"G is {G!r}: give the mean of the metric, a positive number.")
    next_order = (m**3 + 10 * m**2 + 16 * m) / 48 * _cubic(order)
    base = m / 2 * math.log(2 * math.pi * math.e * G)
    return np.asarray(base - (m**2 + 2 * m) / 16 * size**2 + next_order * size**3)[()]


def information_series(m_1: float, m_2: float, X: ArrayLike, order: int = 3) -> Array:
    """m_1 m_2 / 8 X^2 - m_1 m_2 (20 + 3 m_1 + 3 m_2) / 48 X^3, up to X^order (A.53), (A.67)."""
    m_1, m_2, size = neurons(m_1), neurons(m_2), _variance(X)
    next_order = m_1 * m_2 * (20 + 3 * m_1 + 3 * m_2) / 48 * _cubic(order)
    return np.asarray(m_1 * m_2 / 8 * size**2 - next_order * size**3)[()]


def tripartite_series(m_1: float, m_2: float, m_3: float, X: ArrayLike) -> Array:
    """m_1 m_2 m_3 / 8 X^3 > 0: neurons of a layer are redundant, never synergistic, at leading order (A.75)."""
    return np.asarray(neurons(m_1) * neurons(m_2) * neurons(m_3) / 8 * _variance(X) ** 3)[()]


def leading_information(K: ArrayLike, V: ArrayLike, n: float, m_1: float = 1, m_2: float = 1) -> float:
    """m_1 m_2 / (8 n^2) V_(ab)(cd) V^(ab)(cd), indices raised with K^-1: several inputs, leading order (derived).

    One input gives (A.53).
    """
    kernel = np.atleast_2d(real_array("K", K))
    size = len(kernel)
    if kernel.shape != (size, size) or np.size(V) != size**4:
        raise InputError(f"K has shape {kernel.shape} and V {np.shape(V)}: give (N, N) and (N, N, N, N).")
    vertex = real_array("V", V).reshape((size,) * 4)
    values, vectors = np.linalg.eigh(kernel)
    if not values[0] > 0:
        raise InputError(_ALIKE)
    root = vectors / np.sqrt(values)
    whitened = np.einsum("abcd,ai,bj,ck,dl->ijkl", vertex, root, root, root, root, optimize=True)
    if _ACCURACY * np.abs(vertex).max() / values[0] ** 2 > _DOUBTFUL * np.linalg.norm(whitened):
        raise InputError(_ALIKE)
    return neurons(m_1) * neurons(m_2) / 8 * float((whitened**2).sum()) / neurons(n) ** 2


def _cubic(order: int) -> float:
    if order not in (2, 3):
        raise InputError(f"order is {order!r}: 2 for the leading term in X, 3 for the next one as well.")
    return float(order == 3)


def _variance(X: ArrayLike) -> Array:
    size = real_array("X", X)
    if (size < 0).any():
        raise InputError("X = V / (n G^2) is a relative variance: give numbers from 0 on.")
    return size


_PRINTED = 20.0
_COMPLETE = {"scale-invariant": 14.0, "K*=0": 16.4}


def turning_point(m_1: float, m_2: float, coefficient: float = _PRINTED) -> float:
    """X, or nu r, of the maximum: 4 / (20 + 3 m_1 + 3 m_2), or with another coefficient for the 20 (A.72)."""
    return 4 / (coefficient + 3 * neurons(m_1) + 3 * neurons(m_2))


def next_coefficient(universality_class: str) -> float:
    """What stands for the 20 of (A.71) once the second order of X in nu r is there: 14 scale-invariant, 16.4 K*=0."""
    if universality_class not in _COMPLETE:
        raise InputError(
            f"the second order of X is not known for the class {universality_class!r}, only for "
            f"{' and '.join(_COMPLETE)}."
        )
    return _COMPLETE[universality_class]


def printed_information(m_1: float, m_2: float, spread: ArrayLike) -> Array:
    """(A.71) as printed: the series in X at X = nu r, the ``spread``; negative beyond 3/2 r*, where it is invalid."""
    return information_series(m_1, m_2, spread)


def complete_information(m_1: float, m_2: float, spread: ArrayLike, universality_class: str) -> Array:
    """The same with all terms of third order in nu r."""
    y = np.asarray(spread, dtype=np.float64)
    missing = (_PRINTED - next_coefficient(universality_class)) / 48
    return np.asarray(printed_information(m_1, m_2, y) + m_1 * m_2 * missing * y**3)[()]


@dataclass(frozen=True, repr=False)
class AspectRatio(Result):
    """Depth over width r at which the truncated information of m_1 and m_2 output neurons peaks.

    ``printed`` is (A.72), (B.36) with the printed nu; ``complete`` has the whole nu and all terms of third order.
    ``information`` is the printed series at its maximum (A.74), ``exact_information`` the true one at the same nu r,
    known for scale-invariant networks (None otherwise). Beyond ``breakdown``, 3/2 r*, the series is negative.
    """

    activation: str
    universality_class: str
    gamma: float
    m_1: float
    m_2: float
    nu_printed: float
    nu: float
    printed: float
    complete: float
    breakdown: float
    information: float
    exact_information: float | None


def aspect_ratio(activation: Any, m_1: float, m_2: float, gamma: float = 0.0) -> AspectRatio:
    """r*, printed and complete, of critical networks, for two groups of outputs (halves in (A.73)).

    Half-stable activations and those without criticality are refused: there nu depends on the inputs or is not known.

    Examples
    --------
    >>> found = aspect_ratio("relu", 5, 5)
    >>> round(found.printed, 10), round(found.complete, 10)
    (0.016, 0.0181818182)
    """
    act = find_activation(activation)
    printed, nu = (fluctuation_rate(act, gamma, method) for method in ("book", "complete"))
    kind = criticality(act).universality_class
    turn = turning_point(m_1, m_2)
    exact = mixture_information(log_normal_law(turn), m_1, m_2).value if kind == "scale-invariant" else None
    return AspectRatio(
        act.label,
        kind,
        float(gamma),
        neurons(m_1),
        neurons(m_2),
        printed,
        nu,
        turn / printed,
        turning_point(m_1, m_2, next_coefficient(kind)) / nu,
        1.5 * turn / printed,
        float(printed_information(m_1, m_2, turn)),
        exact,
    )


def relative_variance(mlp: MLP, x: ArrayLike) -> xr.DataArray:
    """X of one input by layer: exact in width for scale-invariant networks without biases, else V / (n K^2).

    The attribute ``order`` says which: "exact" or "leading".

    Examples
    --------
    >>> relative_variance(MLP("relu", depth=3, width=10, C_W=2.0), [1.0]).values
    array([0.  , 0.5 , 1.25])
    """
    found = flow(mlp, one_input(x)[None], ["K", "V"])
    K, V = (found[name].squeeze([d for d in found[name].dims if d != "layer"]) for name in ("K", "V"))
    if not (K.values > 0).all():
        raise InputError("the input gives no signal at some layer, so that there is no entropy to speak of.")
    if mlp.activation.slopes is not None and not any(mlp.C_b) and not mlp.is_residual:
        values, order = exact_fluctuation(mlp), "exact"
    else:
        values, order = V.values / (np.array([1, *mlp.hidden_widths]) * K.values**2), "leading"
    return (
        K.copy(data=values)
        .rename("relative_variance")
        .assign_attrs(meaning="variance of the metric over its mean squared", order=order)
    )


def layer_information(mlp: MLP, x: ArrayLike, m_1: float = 1, m_2: float = 1) -> xr.Dataset:
    """Entropy of m_1 + m_2 neurons and information between both groups at every layer, by the series (A.66), (A.67).

    Both have the dimension ``order``: "leading" (X^2) and "next" (X^3 as well). ``standing`` says what the
    information is worth: "rising", "past its maximum" from the turning point X = 4 / (20 + 3 m_1 + 3 m_2) on, or
    "negative", which no information is: there :func:`mixture_information` is the one to ask. The entropy takes the
    mean ``metric`` K + G1/n, of order 1/n, or K itself with skip connections, where G1 is not known.
    """
    X = relative_variance(mlp, x)
    # The mean of the metric by layer, as far as it is known.
    found = flow(mlp, one_input(x)[None], ["K"] if mlp.is_residual else ["K", "G1"])
    metric = found["K"].values.ravel()
    if not mlp.is_residual:
        metric = metric + found["G1"].values.ravel() / [1, *mlp.hidden_widths]
    turn, m = turning_point(m_1, m_2), neurons(m_1) + neurons(m_2)
    parts = np.searchsorted([turn, 1.5 * turn], X.values, side="right")
    orders = {"leading": 2, "next": 3}
    # Far beyond the expansion K + G1/n may be negative, and there is no entropy.
    with np.errstate(invalid="ignore"):
        size = m / 2 * np.log(metric)
    entropy = [size + entropy_series(m, X.values, order=k) for k in orders.values()]
    information = [information_series(m_1, m_2, X.values, k) for k in orders.values()]
    return labelled(
        {
            "relative_variance": X,
            "metric": ("layer", metric),
            "entropy": ("order layer", entropy),
            "information": ("order layer", information),
            "standing": ("layer", np.array(["rising", "past its maximum", "negative"])[parts]),
        },
        {"m_1": float(m_1), "m_2": float(m_2), "turning_point": turn, "network": repr(mlp)},
        order=list(orders),
        layer=X["layer"],
    )


def network_information(
    mlp: MLP, X: ArrayLike, m_1: float = 1, m_2: float = 1, layer: int | None = None
) -> float:
    """Information between two groups of neurons of a layer on several inputs at once, leading order 1/n^2."""
    number = mlp.check_layer(layer)
    if number == 1:
        return 0.0
    found = flow(mlp, X, ["K", "V"])
    K, V = (found[name].sel(layer=number).values for name in ("K", "V"))
    return leading_information(K, V, mlp.hidden_widths[number - 2], m_1, m_2)
