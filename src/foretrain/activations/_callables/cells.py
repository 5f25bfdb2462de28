"""Resolves a callable: cuts the real line into cells on each of which a short Chebyshev series is its equal.

Every cell that is not resolved is halved. Cells shrink where the callable varies quickly, and towards a kink,
there until the kink drowns in rounding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from foretrain.activations._activation import Array
from foretrain.activations._callables.expansions import chebyshev_coefficients, chebyshev_points
from foretrain.activations._callables.pointwise import PROBES, Pointwise

SEARCHED = 20.0
"""Callables are resolved between minus and plus this."""

_EPSILON = float(np.finfo(np.float64).eps)
_NODES, _TAIL = 24, 6
_CELLS, _MOST_CELLS = 32, 4096
_NARROWEST = 1e-13
# A callable with more relative noise than this computes in single precision.
_COARSE = 1e-11
# Values smaller than this have lost digits to underflow.
_UNDERFLOW = 1e-300
# The cells' edges are irrational so that no kink at a round number falls on one.
_LEFT_END, _RIGHT_END = -SEARCHED - np.sqrt(2.0) / 20.0, SEARCHED + np.pi / 30.0
_WIDEST = (_RIGHT_END - _LEFT_END) / _CELLS
# No singularity of a resolved cell lies within this many widths of it: 18 terms leave nothing above rounding.
_CLEARANCE = 1.6
# Halving brings a cell next to a kink, but no nearer than its own width, unless the callable asks for it.
_BESIDE_A_KINK = 0.7


# The ends of [-1, 1], and two points between any two nodes, where narrow features could hide.
_FINER = np.cos(np.pi * (np.arange(3 * _NODES) + 0.5) / (3 * _NODES))
_CHECKS = np.concatenate([[-1.0, 1.0], np.delete(_FINER, np.s_[1::3])])
_SERIES_AT_CHECKS = np.polynomial.chebyshev.chebvander(_CHECKS, _NODES - 1).T


@dataclass(frozen=True)
class Noise:
    """Rounding: relative to the value, through the argument, and of intermediate results."""

    relative: float
    absolute: float

    @property
    def is_coarse(self) -> bool:
        """Whether it is more than rounding in double precision leaves."""
        return self.relative > _COARSE

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

    @property
    def samples(self) -> Array:
        """The points of each cell, (cells, points), that say what the callable is in it."""
        return chebyshev_points(0.5 * (self.left + self.right), 0.5 * self.width, _NODES)

    def features(self, kinks: Iterable[float]) -> Features:
        """The cells that had to be halved because of the callable itself, not because of a kink nearby."""
        places = np.array([np.inf, *kinks])[:, None]
        distance = np.min(np.maximum(np.maximum(self.left - places, places - self.right), 0.0), axis=0)
        own = self.width < np.minimum(_BESIDE_A_KINK * distance, 0.9 * _WIDEST)
        return Features(self.left[own], self.right[own])


@dataclass(frozen=True)
class Features:
    """Intervals, sorted, on which a callable varies quickly: each is about as wide as what happens in it."""

    left: Array
    right: Array

    @property
    def shortest_length(self) -> float:
        """The distance that singularities must keep for the narrowest cell to be resolved, at most 1.25."""
        return float(np.min(_CLEARANCE * (self.right - self.left), initial=_WIDEST))

    @property
    def middles(self) -> Array:
        """The middle of each interval."""
        return 0.5 * (self.left + self.right)

    @property
    def edges(self) -> Array:
        """Ends and middles of the intervals."""
        return np.unique(np.concatenate([self.left, self.middles, self.right]))

    def largest_window(self, z: Array) -> Array:
        """How far from z a function may be sampled before features in the window could hide between samples.

        That is twice the width of an interval beyond its nearer end, whichever interval demands most.
        """
        if self.left.size == 0:
            return np.full(z.shape, np.inf)
        margin = 2.0 * (self.right - self.left)
        begun, ended = np.searchsorted(self.left, z), np.searchsorted(self.right, z)
        from_left = np.minimum.accumulate(np.append(np.inf, margin - self.right))[ended] + z
        from_right = np.minimum.accumulate(np.append(np.inf, (margin + self.left)[::-1]))[::-1][begun] - z
        inside = np.where(begun > ended, margin[np.minimum(ended, margin.size - 1)], np.inf)
        return np.asarray(np.minimum(np.minimum(from_left, from_right), inside))


def resolve(function: Pointwise) -> Cells:
    """Cells on which the callable is a polynomial up to noise, or that are as narrow as they can be."""
    # Noise is what windows too small for anything else show; the median overlooks a kink in one of them.
    centre = PROBES + 1e-2 * np.sqrt(3.0)
    points = chebyshev_points(centre, np.full(centre.size, 1e-4), _NODES)
    samples = function(points)
    size = np.max(np.abs(samples), axis=1)
    tail = np.max(np.abs(chebyshev_coefficients(samples)[:, -_TAIL:]), axis=1)
    shown = size > _UNDERFLOW
    relative = tail[shown] / (size + _swing(points, samples))[shown]
    typical = float(np.median(relative)) if shown.any() else 0.0
    noise = Noise(max(typical, _EPSILON), max(_EPSILON * function.size, _UNDERFLOW))
    edges = np.linspace(_LEFT_END, _RIGHT_END, _CELLS + 1)
    left, right = edges[:-1], edges[1:]
    lefts: list[Array] = []
    rights: list[Array] = []
    while 0 < left.size <= _MOST_CELLS:
        centre, radius = 0.5 * (left + right), 0.5 * (right - left)
        points = chebyshev_points(centre, radius, _NODES)
        checks = centre[:, None] + radius[:, None] * _CHECKS
        values = function(np.concatenate([points, checks], axis=1))
        samples, checked = values[:, :_NODES], values[:, _NODES:]
        coefficients = chebyshev_coefficients(samples)
        tail = np.max(np.abs(coefficients[:, -_TAIL:]), axis=1)
        missed = np.max(np.abs(coefficients @ _SERIES_AT_CHECKS - checked), axis=1)
        expected = noise.of(points, samples)
        done = (tail <= 6.0 * expected) & (missed <= 30.0 * expected)
        done |= right - left < _NARROWEST * np.maximum(1.0, np.abs(left))
        lefts.append(left[done])
        rights.append(right[done])
        middle = 0.5 * (left + right)[~done]
        left, right = np.concatenate([left[~done], middle]), np.concatenate([middle, right[~done]])
    order = np.argsort(np.concatenate([*lefts, left]))
    return Cells(
        np.concatenate([*lefts, left])[order], np.concatenate([*rights, right])[order], noise, left.size == 0
    )
