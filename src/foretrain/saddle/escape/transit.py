"""The quadrature behind leading and corrected escape times.

In the first-order flow (24) the squares of all layers but the first grow together,
X_l^2 = X_l(0)^2 + G(X_1) with dG = 2 u (1 + kappa u^(q-1)) / (1 + q kappa u^(q-1)) du, so that

    K t = int dU / ((1 + q kappa U^(q-1)) prod_{l >= 2} sqrt(X_l(0)^2 + G(U))),

which at kappa = 0 is (10). The common gain w = U^2 - X_1(0)^2 is measured by V^2 = (smallest scale)^2 + w, and V by
y with V = c sinh y, c^2 = (second smallest)^2 - (smallest)^2: in y the integrand is smooth for any scales, also where
X_1 is not the smallest, and where one scale is zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from foretrain.gaussian.nodes import gauss_legendre
from foretrain.saddle.parameters import Array

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

    def in_units_of(self, scale: float) -> Correction:
        """The same correction for amplitudes divided by ``scale``."""
        return Correction(self.kappa * scale ** (self.q - 1), self.q)


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
        relative = _relative_time(scales / threshold, correction.in_units_of(threshold))
    return float(relative / K * threshold ** (2.0 - len(scales)))


def _relative_time(scales: Array, correction: Correction) -> float:
    """K t in units where the threshold is 1."""
    climb = Climb.of(scales)
    first = float(scales[0])
    end = climb.position((1 - first) * (1 + first))
    if correction.kappa == 0:
        # Panels as wide as the singularities at Im y = pi/2 and the decay of the integrand allow.
        start = climb.position(0.0)
        count = math.ceil((end - start) * max(1.0, len(scales) / 8))
        return _on_panels(np.linspace(start, end, count + 1), climb, scales, correction)
    edges = _graded_edges(climb, first, end, len(scales), correction)
    time = math.inf
    for _ in range(_HALVINGS):
        before, time = time, _on_panels(edges, climb, scales, correction)
        if abs(time - before) <= _TOLERANCE * time:
            break
        edges = np.sort(np.concatenate([edges, (edges[1:] + edges[:-1]) / 2]))
    return time


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


def _graded_edges(climb: Climb, first: float, end: float, layers: int, correction: Correction) -> Array:
    """Panels that narrow towards the two places on the real line where the first-order flow is singular.

    Ahead it is the stall. Behind the start it is where the smallest of the other amplitudes would vanish: if they
    grow faster than X_1, its square does so before V^2.
    """
    start, width = climb.position(0.0), min(1.0, 8.0 / layers, 3.0 / (correction.q - 1))
    ahead = math.inf
    if math.isfinite(correction.stall):
        ahead = climb.position((correction.stall - first) * (correction.stall + first))
    lag = 1 - 1 / float(correction.growth_ratio(np.array(first)))
    behind = (
        climb.position(-(climb.smallest**2) * (1 - max(lag, 0.0)))
        if climb.c
        else 0.5 * math.log(max(lag, 1e-3))
    )
    edges = [start]
    while edges[-1] < end:
        room = edges[-1] - behind if edges[-1] > behind else math.inf
        edges.append(edges[-1] + min(width, (ahead - edges[-1]) / 2, room))
    return np.array([*edges[:-1], end])


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
