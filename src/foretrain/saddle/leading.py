"""Leading-order escape times: the quadrature (10), also behind the corrected ones, and its closed forms.

In the first-order flow (24) the squares of all layers but the first grow together,
X_l^2 = X_l(0)^2 + G(X_1) with dG = 2 u (1 + kappa u^(q-1)) / (1 + q kappa u^(q-1)) du, so that

    K t = int dU / ((1 + q kappa U^(q-1)) prod_{l >= 2} sqrt(X_l(0)^2 + G(U))),

which at kappa = 0 is (10). The common gain w = U^2 - X_1(0)^2 is measured by V^2 = (smallest scale)^2 + w, and V by
y with V = c sinh y, c^2 = (second smallest)^2 - (smallest)^2: in y the integrand is smooth for any scales, also where
X_1 is not the smallest, and where one scale is zero.

Closed forms: balanced layers (11), the critical-depth law (12), shells (36).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from foretrain.gaussian.nodes import gauss_legendre
from foretrain.saddle.parameters import Array, bottleneck_scales, check_scales, check_threshold
from foretrain.support.answers import Result
from foretrain.support.arguments import positive, whole_number
from foretrain.support.errors import InputError

_NODES = 16
_HALVINGS, _TOLERANCE = 8, 1e-11
_CLOSE = 1e-6  # smallest scales that differ relatively less count as equal in the choice of the variable


@dataclass(frozen=True)
class Correction:
    """The factors 1 + q_l kappa X_1^(q-1) of (24); kappa = 0 is the leading order."""

    kappa: float = 0.0
    q: int = 2

    @property
    def stall(self) -> float:
        """X_1 at which its own growth stops in the first-order flow; infinite for kappa >= 0."""
        if self.kappa >= 0:
            return math.inf
        return float((-1 / (self.q * self.kappa)) ** (1 / (self.q - 1)))

    def first(self, amplitude: Array) -> Array:
        """1 + q kappa X_1^(q-1), the factor of the first layer."""
        return 1 + self.q * self.kappa * amplitude ** (self.q - 1)

    def growth_ratio(self, amplitude: Array) -> Array:
        """d(X_l^2) / d(X_1^2), l >= 2."""
        return (1 + self.kappa * amplitude ** (self.q - 1)) / self.first(amplitude)


LEADING = Correction()


@dataclass(frozen=True)
class Climb:
    """The variable y of the smallest amplitude V: V = c sinh y, or V = smallest e^y where c is negligible."""

    smallest: float
    c: float

    @classmethod
    def of(cls, scales: Array) -> Climb:
        """From the two smallest scales, which are not both zero."""
        low, second = np.sort(scales)[:2]
        c = math.sqrt((second - low) * (second + low))
        return cls(float(low), c if c > _CLOSE * low else 0.0)

    def position(self, gain: float) -> float:
        """y where the squares have grown by ``gain``."""
        height = math.sqrt(self.smallest**2 + gain)
        return math.asinh(height / self.c) if self.c else math.log(height / self.smallest)

    def amplitude(self, y: Array) -> Array:
        """V."""
        return self.c * np.sinh(y) if self.c else self.smallest * np.exp(y)

    def slope(self, y: Array) -> Array:
        """dV/dy."""
        return self.c * np.cosh(y) if self.c else self.smallest * np.exp(y)

    def gain(self, start: Array, end: Array) -> Array:
        """By how much the squares grow from one y to another, without cancellation."""
        if self.c:
            return np.asarray(self.c**2 * np.sinh(end - start) * np.sinh(end + start))
        return np.asarray(self.amplitude(start) ** 2 * np.expm1(2 * (end - start)))


def transit_time(K: float, scales: Array, threshold: float, correction: Correction = LEADING) -> float:
    """Time until X_1 reaches the threshold; 0 if it has, infinite if the first-order flow never takes it there."""
    if scales[0] >= threshold:
        return 0.0
    if np.count_nonzero(scales) < len(scales) - 1 or threshold >= correction.stall:
        return math.inf
    with np.errstate(over="ignore"):  # beyond the largest number the time is infinite
        # From here on in units where the threshold is 1; ``time`` is K t.
        scales = scales / threshold
        correction = Correction(correction.kappa * threshold ** (correction.q - 1), correction.q)
        climb, first = Climb.of(scales), float(scales[0])
        end = climb.position((1 - first) * (1 + first))
        if correction.kappa == 0:
            # Panels as wide as the singularities at Im y = pi/2 and the decay of the integrand allow.
            start = climb.position(0.0)
            count = math.ceil((end - start) * max(1.0, len(scales) / 8))
            time = _on_panels(np.linspace(start, end, count + 1), climb, scales, correction)
        else:
            # Panels narrow towards the two places on the real line where the first-order flow is singular.
            start, width = climb.position(0.0), min(1.0, 8.0 / len(scales), 3.0 / (correction.q - 1))
            ahead = math.inf
            if math.isfinite(correction.stall):
                ahead = climb.position((correction.stall - first) * (correction.stall + first))
            lag = 1 - 1 / float(correction.growth_ratio(np.array(first)))
            behind = (
                climb.position(-(climb.smallest**2) * (1 - max(lag, 0.0)))
                if climb.c
                else 0.5 * math.log(max(lag, 1e-3))
            )
            ends = [start]
            while ends[-1] < end:
                room = ends[-1] - behind if ends[-1] > behind else math.inf
                ends.append(ends[-1] + min(width, (ahead - ends[-1]) / 2, room))
            edges, time = np.array([*ends[:-1], end]), math.inf
            for _ in range(_HALVINGS):
                before, time = time, _on_panels(edges, climb, scales, correction)
                if abs(time - before) <= _TOLERANCE * time:
                    break
                edges = np.sort(np.concatenate([edges, (edges[1:] + edges[:-1]) / 2]))
    return float(time / K * threshold ** (2.0 - len(scales)))


def _on_panels(edges: Array, climb: Climb, scales: Array, correction: Correction) -> float:
    """The integral over y by Gauss-Legendre panels."""
    first = float(scales[0])
    nodes, weights = gauss_legendre(_NODES)
    widths = np.diff(edges)
    y = edges[:-1, None] + widths[:, None] * nodes
    gain = climb.gain(edges[0], y)
    U = np.sqrt(first**2 + gain)
    others = gain if correction.kappa == 0 else _other_gain(climb, y, edges, first, correction)
    value = climb.slope(y) * climb.amplitude(y) / (U * correction.first(U))
    for scale in np.sort(scales[1:]):
        value = value / np.sqrt(scale**2 + others)
    return float((value @ weights) @ widths)


def _other_gain(climb: Climb, y: Array, edges: Array, first: float, correction: Correction) -> Array:
    """G at the nodes: whole panels before, and the part of the own panel, each by the same rule."""
    nodes, weights = gauss_legendre(_NODES)
    left = np.sqrt(first**2 + climb.gain(edges[0], edges))

    def partial(upper: Array) -> Array:
        """int 2 u ratio(u) du from the left ends of the panels to y = upper (panels, points)."""
        gain = climb.gain(edges[:-1, None], upper)
        begin = left[:-1, None]
        step = gain / (np.sqrt(begin**2 + gain) + begin)
        u = begin[..., None] + step[..., None] * nodes
        return np.asarray(step * ((2 * u * correction.growth_ratio(u)) @ weights))

    whole = np.cumsum(partial(edges[1:, None])[:, 0])
    before = np.concatenate([[0.0], whole[:-1]])
    return np.asarray(before[:, None] + partial(y))


def leading_time(K: float, scales: ArrayLike, threshold: float = 1.0) -> float:
    """int dU / (K sqrt(prod_{l>=2} (U^2 + D_l))) from X_1(0) to the threshold (10), in the unit of 1/K.

    D_l = X_l(0)^2 - X_1(0)^2 may have any sign. One scale may be zero; with two the time is infinite.

    >>> round(leading_time(0.5, [0.1, 0.1, 0.1]), 10)
    18.0
    """
    checked = check_scales(scales)
    return transit_time(positive("K", K), checked, check_threshold(threshold, checked))


def balanced_time(K: float, epsilon: float, depth: int, threshold: float = 1.0) -> float:
    """All layers at epsilon (11): log(X*/eps) / K for L = 2, (eps^-(L-2) - X*^-(L-2)) / ((L-2) K) for L >= 3."""
    rate, layers = positive("K", K), whole_number("depth", depth, 2)
    start, end = positive("epsilon", epsilon), positive("threshold", threshold)
    if start >= end:
        return 0.0
    return _power_integral(start, end, layers - 1) / rate


def critical_depth_time(
    K: float,
    epsilon: float,
    bottleneck: int,
    depth: int,
    others: ArrayLike = 1.0,
    threshold: float = 1.0,
) -> float:
    """The law (12) as epsilon -> 0 with r = ``bottleneck`` layers at epsilon and the rest at ``others``.

    r = 2: log(1/eps) / (K prod s_i); r >= 3: eps^-(r-2) / ((r-2) K prod s_i). For r = 1 the time stays finite and
    is the quadrature (10) at epsilon = 0, the only case in which the threshold matters.
    """
    rate = positive("K", K)
    scales = bottleneck_scales(epsilon, bottleneck, depth, others)
    if bottleneck == 1:
        return leading_time(rate, np.concatenate([[0.0], scales[1:]]), threshold)
    strength = rate * float(np.prod(scales[bottleneck:]))
    if strength == 0.0:
        raise InputError(
            "a layer outside the bottleneck has scale 0: the law needs all of them of order one."
        )
    if bottleneck == 2:
        return math.log(1 / epsilon) / strength
    return float(epsilon) ** (2 - bottleneck) / ((bottleneck - 2) * strength)


@dataclass(frozen=True, repr=False)
class ShellTime(Result):
    """The sum over shells (36): ``terms[j-1]`` is the time between s_j and s_{j+1}, in the unit of 1/K.

    It is never too short, since every amplitude is replaced by the larger of its start and the smallest amplitude.
    ``relative_error`` is its excess over the quadrature (10), measured. ``eta`` is the largest ratio s_j / s_{j+1}:
    the paper's bound L eta^2 on the error does not hold, as each scale passed leaves a constant beside log(1/eta).
    """

    time: float
    terms: tuple[float, ...]
    eta: float
    relative_error: float

    def __float__(self) -> float:
        return self.time


def shell_time(K: float, scales: ArrayLike, threshold: float = 1.0) -> ShellTime:
    """Widely separated scales (36): sum_j int_{s_j^2}^{s_{j+1}^2} Y^(-j/2) dY / (2 K prod_{i>j} s_i).

    The scales are sorted, s_{L+1} is the threshold, and it is on the smallest layer, not on X_1.
    """
    rate, end = positive("K", K), positive("threshold", threshold)
    ordered = np.sort(check_scales(scales))
    if ordered[0] >= end:
        return ShellTime(0.0, (), 0.0, 0.0)
    if ordered[-1] > end:
        raise InputError(
            f"the largest scale {ordered[-1]:g} is above the threshold {end:g}: shells need scales below it."
        )
    if ordered[1] == 0.0:
        return ShellTime(math.inf, (), 1.0, 0.0)
    ends = np.append(ordered, end)
    terms = tuple(
        _power_integral(float(ends[j - 1]), float(ends[j]), j - 1) / (rate * float(np.prod(ordered[j:])))
        for j in range(1, len(ordered) + 1)
    )
    eta = float((ends[:-1] / ends[1:]).max())
    return ShellTime(sum(terms), terms, eta, sum(terms) / leading_time(rate, ordered, end) - 1)


def _power_integral(start: float, end: float, power: int) -> float:
    """int V^-power dV from start to end; over the squares Y it is int Y^(-(power+1)/2) dY / 2."""
    if start == end:
        return 0.0
    if power == 1:
        return math.log(end / start)
    return float(start ** (1.0 - power) - end ** (1.0 - power)) / (power - 1)
