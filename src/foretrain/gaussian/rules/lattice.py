"""Smooth integrands: the trapezoidal rule on a body-centred lattice.

For functions analytic in a strip the trapezoidal rule under a Gaussian converges exponentially, error
~ exp(-2 pi d / h) with d the distance of the nearest singularity (Trefethen & Weideman, SIAM Review 2014),
and it keeps doing so at large variance, where Gauss-Hermite rules stall. Two copies of the cubic lattice, half
a cell apart, make the body-centred lattice. Its aliases are the reciprocal vectors of even coordinate sum, in
units of 2 pi / h: (2, 0, ..), (1, 1, 0, ..). What the integrand carries at half of each of these is measured by
the same points with signs, and since its spectrum falls exponentially, the square of that is what is aliased.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Integrand = Callable[[Array, NDArray[np.intp]], Array]
"""Values at points x (Q, r) for the batch items listed: ``integrand(x, items) -> (len(items), Q)``."""

LARGEST_STEP = 0.7
_LADDER = 2.0**0.25
_SHIFT = 0.125  # off the symmetric positions, where odd errors would cancel unseen
_MAX_POINTS = {1: 200_000, 2: 4_000_000, 3: 6_000_000, 4: 30_000_000}
_CHUNK = 1_500_000
_RIND = 0.4
_EXPONENT = 1.6


def quantised(step: Array) -> Array:
    """The largest steps of a geometric ladder that are not above ``step`` (so that lattices are reused)."""
    rungs = np.ceil(np.log(LARGEST_STEP / np.minimum(step, LARGEST_STEP)) / math.log(_LADDER) - 1e-9)
    return np.asarray(LARGEST_STEP / _LADDER**rungs)


class Lattice(NamedTuple):
    """One cubic copy inside a ball; the rind, where what the ball leaves out would begin, comes first."""

    points: Array  # (Q, r)
    weights: Array  # (Q, 1 + probes): Gaussian weights, then the same with the signs of each probe
    rind: int


@lru_cache(maxsize=64)
def lattice(dimension: int, step: float, radius: float, shift: float) -> Lattice:
    """The cubic lattice of this step, shifted by a part of the cell, inside the ball."""
    reach = math.ceil(radius / step) + 1
    line = step * (np.arange(-reach, reach + 1, dtype=np.float64) + shift)
    total = line**2
    for _ in range(dimension - 1):
        total = total[..., None] + line**2
    rind = np.nonzero((total <= radius**2) & (total > (radius - _RIND) ** 2))
    inside = np.nonzero(total <= (radius - _RIND) ** 2)
    index = np.stack([np.concatenate(pair) for pair in zip(rind, inside)], axis=1)
    plain = np.exp(-0.5 * total[tuple(index.T)]) * (step / math.sqrt(2 * math.pi)) ** dimension
    weights = np.stack([plain * sign for sign in _signs(index)], axis=1)
    points = line[index]
    points.setflags(write=False)
    weights.setflags(write=False)
    return Lattice(points, weights, len(rind[0]))


def _signs(index: NDArray[np.intp]) -> list[Array]:
    """exp(i pi (n_a + n_b + ..)) for no coordinate, and for every even number of them."""
    dimension = index.shape[1]
    chosen = [c for size in range(0, dimension + 1, 2) for c in combinations(range(dimension), size)]
    return [1.0 - 2.0 * (index[:, list(c)].sum(axis=1) % 2) for c in chosen]


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
    sums = np.zeros((2, len(items), lattice(dimension, step, radius, _SHIFT).weights.shape[1]))
    cut = np.zeros(len(items))
    for copy, shift in enumerate((_SHIFT, _SHIFT + 0.5)):
        points, weights, rind = lattice(dimension, step, radius, shift)
        width = max(1, _CHUNK // max(1, min(len(points), _CHUNK)))
        for start in range(0, len(items), width):
            part = slice(start, start + width)
            for begin in range(0, len(points), _CHUNK):
                span = slice(begin, begin + _CHUNK)
                terms = integrand(points[span], items[part])
                sums[copy, part] += terms @ weights[span]
                edge = slice(0, max(0, rind - begin))
                cut[part] += np.abs(terms[:, edge]) @ weights[span][edge, 0]
    return sums[:, :, 0].mean(axis=0), _aliasing(sums, scales), cut


def _aliasing(sums: Array, scales: Array) -> Array:
    """Error of the mean, from the probes at half of each alias: nearly their squares, with a margin on both."""
    probes = np.abs(sums[:, :, 1:]).sum(axis=0) / 2
    half = np.maximum(np.abs(sums[0, :, 0] - sums[1, :, 0]) / 2, probes.max(axis=1, initial=0.0)) / scales
    small = np.minimum(half, 1.0) ** _EXPONENT
    return np.asarray(scales * (6 * np.where(half < 1, small, half) + 1e-15))
