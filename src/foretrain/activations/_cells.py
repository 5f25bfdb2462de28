"""Resolves a callable: cuts the real line into cells on each of which a short Chebyshev series is its equal.

Every cell that is not resolved is halved. Cells shrink where the callable varies quickly, and towards a kink,
there until the kink drowns in rounding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from foretrain.activations._activation import Array
from foretrain.activations._expansions import chebyshev_coefficients, chebyshev_points
from foretrain.activations._pointwise import PROBES, Pointwise

SEARCHED = 20.0
"""Callables are resolved between minus and plus this."""

_EPSILON = float(np.finfo(np.float64).eps)
_NODES, _TAIL = 24, 6
_CELLS, _MOST_CELLS = 32, 4096
_NARROWEST = 1e-13
# Values smaller than this have lost digits to underflow.
_UNDERFLOW = 1e-280
# The cells' edges are irrational so that no kink at a round number falls on one.
_LEFT_END, _RIGHT_END = -SEARCHED - np.sqrt(2.0) / 20.0, SEARCHED + np.pi / 30.0
_WIDEST = (_RIGHT_END - _LEFT_END) / _CELLS
# No singularity of a resolved cell lies within this many widths of it: 18 terms leave nothing above rounding.
_CLEARANCE = 1.6
# Halving brings a cell next to a kink, but no nearer than its own width, unless the callable asks for it.
_BESIDE_A_KINK = 0.7


def _between_nodes() -> Array:
    """The ends of [-1, 1], and two points between any two nodes, where narrow features could hide."""
    finer = np.cos(np.pi * (np.arange(3 * _NODES) + 0.5) / (3 * _NODES))
    return np.concatenate([[-1.0, 1.0], np.delete(finer, np.s_[1::3])])


_CHECKS = _between_nodes()
_SERIES_AT_CHECKS = np.polynomial.chebyshev.chebvander(_CHECKS, _NODES - 1).T


@dataclass(frozen=True)
class Noise:
    """Rounding: relative to the value, through the argument, and of intermediate results."""

    relative: float
    absolute: float

    def of(self, points: Array, samples: Array) -> Array:
        """The noise to expect in the samples of each cell."""
        by_argument = _EPSILON * _swing(points, samples)
        return np.asarray(self.relative * np.max(np.abs(samples), axis=1) + by_argument + self.absolute)


def _swing(points: Array, samples: Array) -> Array:
    """How much a relative change of the argument changes the value, cell by cell."""
    steepness = np.max(np.abs(np.diff(samples, axis=1) / np.diff(points, axis=1)), axis=1)
    return np.asarray(np.max(np.abs(points), axis=1) * steepness)


@dataclass(frozen=True)
class Cells:
    """Adjacent intervals, sorted; ``complete`` is False if there were too many to resolve them all."""

    left: Array
    right: Array
    noise: Noise
    complete: bool

    @property
    def width(self) -> Array:
        """The length of each."""
        return self.right - self.left

    def away_from(self, kinks: Iterable[float]) -> Cells:
        """The cells whose width is the callable's own doing, not that of a kink nearby."""
        places = np.array([np.inf, *kinks])[:, None]
        distance = np.min(np.maximum(np.maximum(self.left - places, places - self.right), 0.0), axis=0)
        own = self.width < _BESIDE_A_KINK * distance
        return replace(self, left=self.left[own], right=self.right[own])

    @property
    def shortest_length(self) -> float:
        """The distance that singularities must keep for the narrowest cell to be resolved, at most 1.25."""
        return float(np.min(_CLEARANCE * self.width, initial=_WIDEST))

    @property
    def narrow_edges(self) -> Array:
        """Ends and middles of the cells that had to be halved."""
        narrow = self.width < 0.9 * _WIDEST
        left, right = self.left[narrow], self.right[narrow]
        return np.unique(np.concatenate([left, 0.5 * (left + right), right]))


def resolve(function: Pointwise) -> Cells:
    """Cells on which the callable is a polynomial up to noise, or that are as narrow as they can be."""
    noise = _measure_noise(function)
    edges = np.linspace(_LEFT_END, _RIGHT_END, _CELLS + 1)
    left, right = edges[:-1], edges[1:]
    lefts: list[Array] = []
    rights: list[Array] = []
    while 0 < left.size <= _MOST_CELLS:
        done = _is_resolved(function, left, right, noise)
        done |= right - left < _NARROWEST * np.maximum(1.0, np.abs(left))
        lefts.append(left[done])
        rights.append(right[done])
        middle = 0.5 * (left + right)[~done]
        left, right = np.concatenate([left[~done], middle]), np.concatenate([middle, right[~done]])
    order = np.argsort(np.concatenate([*lefts, left]))
    return Cells(
        np.concatenate([*lefts, left])[order], np.concatenate([*rights, right])[order], noise, left.size == 0
    )


def _measure_noise(function: Pointwise) -> Noise:
    """From windows too small to show anything but noise; the median overlooks a kink in one of them."""
    centre = PROBES + 1e-2 * np.sqrt(3.0)
    points = chebyshev_points(centre, np.full(centre.size, 1e-4), _NODES)
    samples = function(points)
    size = np.max(np.abs(samples), axis=1)
    tail = np.max(np.abs(chebyshev_coefficients(samples)[:, -_TAIL:]), axis=1)
    shown = size > _UNDERFLOW
    relative = tail[shown] / (size + _swing(points, samples))[shown]
    typical = float(np.median(relative)) if shown.any() else 0.0
    return Noise(max(typical, _EPSILON), _EPSILON * function.size)


def _is_resolved(function: Pointwise, left: Array, right: Array, noise: Noise) -> NDArray[np.bool_]:
    centre, radius = 0.5 * (left + right), 0.5 * (right - left)
    points = chebyshev_points(centre, radius, _NODES)
    checks = centre[:, None] + radius[:, None] * _CHECKS
    values = function(np.concatenate([points, checks], axis=1))
    samples, checked = values[:, :_NODES], values[:, _NODES:]
    coefficients = chebyshev_coefficients(samples)
    tail = np.max(np.abs(coefficients[:, -_TAIL:]), axis=1)
    missed = np.max(np.abs(coefficients @ _SERIES_AT_CHECKS - checked), axis=1)
    expected = noise.of(points, samples)
    return np.asarray((tail <= 6.0 * expected) & (missed <= 30.0 * expected))
