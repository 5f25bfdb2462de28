"""Smooth integrands: the trapezoidal rule on a body-centred lattice.

For functions analytic in a strip the trapezoidal rule under a Gaussian converges exponentially, error
~ exp(-2 pi d / h) with d the distance of the nearest singularity (Trefethen & Weideman, SIAM Review 2014),
and it keeps doing so at large variance, where Gauss-Hermite rules stall. Two copies of the cubic lattice,
half a cell apart, have aliasing errors of opposite sign: their difference measures the error and their mean
(the body-centred lattice) cancels its leading part.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Integrand = Callable[[Array, NDArray[np.intp]], Array]
"""Values at points x (Q, r) for the batch items listed: ``integrand(x, items) -> (len(items), Q)``."""

LARGEST_STEP = 0.7
_LADDER = 2.0**0.25
_SHIFT = 0.125  # off the symmetric positions, where odd errors would cancel unseen
_MAX_POINTS = {1: 200_000, 2: 4_000_000, 3: 20_000_000, 4: 60_000_000}
_CHUNK = 1_500_000
_RIND = 0.4


def quantised(step: Array) -> Array:
    """The largest steps of a geometric ladder that are not above ``step`` (so that lattices are reused)."""
    rungs = np.ceil(np.log(LARGEST_STEP / np.minimum(step, LARGEST_STEP)) / math.log(_LADDER) - 1e-9)
    return np.asarray(LARGEST_STEP / _LADDER**rungs)


@lru_cache(maxsize=64)
def lattice(dimension: int, step: float, radius: float, shift: float) -> tuple[Array, Array, int]:
    """Points (Q, r) of the shifted cubic lattice in the ball, their Gaussian weights, how many lie in the rind.

    The rind, where what the ball leaves out would begin, comes first.
    """
    reach = math.ceil(radius / step) + 1
    line = step * (np.arange(-reach, reach + 1) + shift)
    square = line**2
    total = square
    for _ in range(dimension - 1):
        total = total[..., None] + square
    rind = np.nonzero((total <= radius**2) & (total > (radius - _RIND) ** 2))
    inside = np.nonzero(total <= (radius - _RIND) ** 2)
    both = tuple(np.concatenate(pair) for pair in zip(rind, inside))
    points = np.stack([line[axis] for axis in both], axis=1)
    weights = np.exp(-0.5 * total[both]) * (step / math.sqrt(2 * math.pi)) ** dimension
    points.setflags(write=False)
    weights.setflags(write=False)
    return points, weights, len(rind[0])


def first_radius(tolerance: float) -> float:
    """Where the Gaussian has fallen well below the tolerance."""
    return math.ceil(4 * (math.sqrt(2 * math.log(1 / tolerance)) + 1.4)) / 4


def first_step(distance: Array, dimension: int, tolerance: float) -> Array:
    """Steps that should do when the nearest singularity lies at ``distance`` in units of the deviation."""
    gain = 2.0 if dimension == 1 else 1.25
    digits = math.log(1 / tolerance) + 2 + np.minimum(distance, 2.0) ** 2 / 2
    return quantised(gain * 2 * math.pi * distance / digits)


def lattice_expectation(
    integrand: Integrand,
    steps: Array,
    scales: Array,
    dimension: int,
    tolerance: float,
    most_radius: float = 38.0,
) -> tuple[Array, Array]:
    """Expectations of a batch under standard normals in ``dimension`` variables, with error estimates.

    Parameters
    ----------
    integrand
        Gives the integrand of chosen batch items at lattice points.
    steps
        First step of each item, from :func:`first_step`.
    scales
        Size of each item; the tolerance is relative to it.
    most_radius
        The ball grows up to this if what lies outside matters; beyond 38 the density is no float64.
    """
    value = np.zeros(len(steps))
    error = np.full(len(steps), np.inf)
    step = steps.copy()
    radius = np.full(len(steps), first_radius(tolerance))
    pending = np.arange(len(steps))
    while pending.size:
        still = []
        for h, r in np.unique(np.stack([step[pending], radius[pending]], axis=1), axis=0):
            items = pending[(step[pending] == h) & (radius[pending] == r)]
            size, aliasing, cut = _evaluate(integrand, items, dimension, float(h), float(r), scales[items])
            value[items], error[items] = size, aliasing + cut
            goal = tolerance * scales[items]
            short = items[(cut > 0.3 * goal) & (r < most_radius)]
            radius[short] = min(r + 1.5, most_radius)
            coarse = items[aliasing > 0.7 * goal]
            step[coarse] = quantised(np.asarray(h * (0.5 if dimension == 1 else 0.72)))
            still.append(np.union1d(short, coarse))
        pending = np.concatenate(still)
        volume = _ball_volume(dimension) * (radius[pending] / step[pending]) ** dimension
        pending = pending[2 * volume < _MAX_POINTS[dimension]]
    return value, error


def _ball_volume(dimension: int) -> float:
    return float(math.pi ** (dimension / 2) / math.gamma(dimension / 2 + 1))


def _evaluate(
    integrand: Integrand, items: NDArray[np.intp], dimension: int, step: float, radius: float, scales: Array
) -> tuple[Array, Array, Array]:
    """Mean of both lattices, estimate of its aliasing error, estimate of what lies outside the ball."""
    sums = np.zeros((2, len(items)))
    cut = np.zeros(len(items))
    for copy, shift in enumerate((_SHIFT, _SHIFT + 0.5)):
        points, weights, rind = lattice(dimension, step, radius, shift)
        width = max(1, _CHUNK // max(1, min(len(points), _CHUNK)))
        for start in range(0, len(items), width):
            part = slice(start, start + width)
            for begin in range(0, len(points), _CHUNK):
                span = slice(begin, begin + _CHUNK)
                terms = integrand(points[span], items[part])
                sums[copy, part] += np.einsum("bq,q->b", terms, weights[span])
                edge = slice(0, max(0, rind - begin))
                cut[part] += np.einsum("bq,q->b", np.abs(terms[:, edge]), weights[span][edge])
    # The mean's error is of higher order than the difference: exponent 2 in one dimension (half the step),
    # sqrt(2) in more (nearest reciprocal vectors of the body-centred lattice); a margin is kept on both.
    single = np.abs(sums[0] - sums[1]) / 2 / scales
    aliasing = 3 * scales * np.minimum(single, single ** (1.6 if dimension == 1 else 1.25))
    return sums.mean(axis=0), aliasing + 1e-15 * scales, cut
