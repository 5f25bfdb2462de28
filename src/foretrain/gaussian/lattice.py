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
from collections.abc import Callable, Iterator
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
_CACHED = 300_000
_EXPONENT = 1.6


class Lattice(NamedTuple):
    """One rectangular copy inside a ball; the rind, where what the ball leaves out would begin, comes first."""

    points: Array  # (Q, r)
    weights: Array  # (Q, 1 + probes): Gaussian weights, then the same with the signs of each probe
    rind: int


def lattice(steps: tuple[float, ...], radius: float, shift: float) -> Lattice:
    """The lattice with one step for each variable, shifted by a part of the cell, inside the ball."""
    small = point_count(np.array([steps]), np.array([radius]))[0] < _CACHED
    return _kept(steps, radius, shift) if small else _build(steps, radius, shift)


@lru_cache(maxsize=64)
def _kept(steps: tuple[float, ...], radius: float, shift: float) -> Lattice:
    return _build(steps, radius, shift)


def _build(steps: tuple[float, ...], radius: float, shift: float) -> Lattice:
    reach = [math.ceil(radius / step) + 1 for step in steps]
    lines = [step * (np.arange(-n, n + 1, dtype=np.float64) + shift) for step, n in zip(steps, reach)]
    total = lines[0] ** 2
    for line in lines[1:]:
        total = total[..., None] + line**2
    rind = np.nonzero((total <= radius**2) & (total > (radius - _RIND) ** 2))
    inside = np.nonzero(total <= (radius - _RIND) ** 2)
    index = np.stack([np.concatenate(pair) for pair in zip(rind, inside)], axis=1)
    volume = math.prod(steps) / math.sqrt(2 * math.pi) ** len(steps)
    plain = np.exp(-0.5 * total[tuple(index.T)]) * volume
    weights = np.stack([plain * sign for sign in _signs(index)], axis=1)
    points = np.stack([line[column] for line, column in zip(lines, index.T)], axis=1)
    points.setflags(write=False)
    weights.setflags(write=False)
    return Lattice(points, weights, len(rind[0]))


def point_count(steps: Array, radius: Array) -> Array:
    """Points of one copy: volume of the ball over volume of a cell."""
    dimension = steps.shape[1]
    ball = math.pi ** (dimension / 2) / math.gamma(dimension / 2 + 1)
    return np.asarray(ball * radius**dimension / steps.prod(axis=1))


def _signs(index: NDArray[np.intp]) -> list[Array]:
    """exp(i pi (n_a + n_b + ..)) for no coordinate, and for every even number of them."""
    dimension = index.shape[1]
    chosen = [c for size in range(0, dimension + 1, 2) for c in combinations(range(dimension), size)]
    return [1.0 - 2.0 * (index[:, list(c)].sum(axis=1) % 2) for c in chosen]


def first_steps(distance: Array, tolerance: float) -> Array:
    """Steps (B, r) that should do when, along each variable, the nearest singularity lies at ``distance``."""
    gain = 2.0 if distance.shape[-1] == 1 else 1.25
    digits = math.log(1 / tolerance) + 2 + np.minimum(distance, 2.0) ** 2 / 2
    step = gain * 2 * math.pi * distance / digits
    # The largest steps of a geometric ladder that are not above these, so that lattices are reused.
    rungs = np.ceil(np.log(LARGEST_STEP / np.minimum(step, LARGEST_STEP)) / math.log(_LADDER) - 1e-9)
    return np.asarray(LARGEST_STEP / _LADDER**rungs)


def lattice_expectation(
    integrand: Integrand,
    steps: Array,
    scales: Array,
    tolerance: float,
    *,
    verify: bool = False,
    most_radius: float = 38.0,
) -> tuple[Array, Array]:
    """Expectations of a batch under standard normals, with error estimates.

    Parameters
    ----------
    integrand
        Gives the integrand of chosen batch items at lattice points.
    steps
        (B, r): first step of each item in each variable, from :func:`first_steps`.
    scales
        Size of each item; the tolerance is relative to it.
    verify
        Whether to refine once more in the end and count the change: for integrands whose smoothness nobody
        vouches for, since the estimates presume that convergence is exponential.
    most_radius
        The ball grows up to this if what lies outside matters; beyond 38 the density is no float64.
    """
    count, dimension = steps.shape
    finer = 0.5 if dimension == 1 else 0.72
    # The ball ends at first where the Gaussian has fallen well below the tolerance.
    first_radius = math.ceil(4 * (math.sqrt(2 * math.log(1 / tolerance)) + 1.4)) / 4
    radius = np.full(count, min(first_radius, most_radius))
    crowd = (2 * point_count(steps, radius) / _MAX_POINTS[dimension]) ** (1 / dimension)
    step = steps * np.maximum(crowd, 1.0)[:, None]
    value, error = np.zeros(count), np.full(count, np.inf)
    pending = np.arange(count)
    while pending.size:
        aliasing, cut = np.empty(count), np.empty(count)
        for group, h, r in _groups(pending, step, radius):
            value[group], aliasing[group], cut[group] = _evaluate(integrand, group, h, r, scales[group])
        error[pending] = aliasing[pending] + cut[pending]
        goal = tolerance * scales[pending]
        short = pending[(cut[pending] > 0.3 * goal) & (radius[pending] < most_radius)]
        coarse = pending[aliasing[pending] > 0.7 * goal]
        radius[short] = np.minimum(radius[short] + 1.5, most_radius)
        step[coarse] *= finer
        pending = np.union1d(short, coarse)
        pending = pending[2 * point_count(step[pending], radius[pending]) < _MAX_POINTS[dimension]]
    if verify:
        for group, h, r in _groups(np.arange(count), step * finer, radius):
            again, _, _ = _evaluate(integrand, group, h, r, scales[group])
            error[group] = np.maximum(error[group], 3 * np.abs(again - value[group]))
            value[group] = again
    return value, error


def _groups(
    items: NDArray[np.intp], step: Array, radius: Array
) -> Iterator[tuple[NDArray[np.intp], tuple[float, ...], float]]:
    """Items that share a lattice."""
    layout = np.concatenate([step[items], radius[items, None]], axis=1)
    distinct, where = np.unique(layout, axis=0, return_inverse=True)
    for number, row in enumerate(distinct):
        yield items[where.ravel() == number], tuple(float(h) for h in row[:-1]), float(row[-1])


def _evaluate(
    integrand: Integrand, items: NDArray[np.intp], steps: tuple[float, ...], radius: float, scales: Array
) -> tuple[Array, Array, Array]:
    """Mean of both copies, estimate of its aliasing error, estimate of what lies outside the ball."""
    copies = [lattice(steps, radius, shift) for shift in (_SHIFT, _SHIFT + 0.5)]
    sums = np.zeros((2, len(items), copies[0].weights.shape[1]))
    cut = np.zeros(len(items))
    for copy, (points, weights, rind) in enumerate(copies):
        width = max(1, _CHUNK // max(1, min(len(points), _CHUNK)))
        for start in range(0, len(items), width):
            part = slice(start, start + width)
            for begin in range(0, len(points), _CHUNK):
                span = slice(begin, begin + _CHUNK)
                terms = integrand(points[span], items[part])
                sums[copy, part] += terms @ weights[span]
                edge = slice(0, max(0, rind - begin))
                cut[part] += np.abs(terms[:, edge]) @ weights[span][edge, 0]
    # Error of the mean, from the probes at half of each alias: nearly their squares, with a margin on both.
    probes = np.abs(sums[:, :, 1:]).sum(axis=0) / 2
    half = np.maximum(np.abs(sums[0, :, 0] - sums[1, :, 0]) / 2, probes.max(axis=1, initial=0.0)) / scales
    small = np.minimum(half, 1.0) ** _EXPONENT
    return sums[:, :, 0].mean(axis=0), scales * (6 * np.where(half < 1, small, half) + 1e-15), cut
