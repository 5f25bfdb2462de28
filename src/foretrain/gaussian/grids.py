"""Many smooth products at once: grids of points along the independent variables, shared by all products.

The inputs are z = mean + L x with L lower triangular, so the first depends on one variable and the second on two.
The last two are integrated, for every value of the other variables, by a bilinear form between their values on one
axis, which holds their correlation: four inputs need three axes, three inputs two. Where that correlation is too
strong for an equidistant axis, each input has its own. All products of factors follow by contraction.

An axis has Gauss-Hermite points where the inputs vary little over a deviation, else equidistant points, which near
singularities harm less. Two successive rungs of this ladder tell the error of the first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrain.gaussian.factors import Factor, values_of
from foretrain.gaussian.nodes import gauss_hermite, hermite_polynomials
from foretrain.support.threads import over_cores

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

_GAUSS = (1, 4, 6, 8, 11, 15, 20)
_EQUIDISTANT = (28, 38, 52, 70, 94, 126, 170, 230, 310, 420, 570)
_COUNTS = np.array(_GAUSS + _EQUIDISTANT)
_MOST_POINTS = 40_000_000
_CHUNK = 60_000  # values of one factor held at a time
_LUCK = 0.1  # a change may be small by chance: no error is said to be below this share of the tolerance
_GAUSS_GAIN, _EQUIDISTANT_GAIN = 1.1, 1.25  # digits from one rung to the next; more in theory: a margin


class Axis(NamedTuple):
    """Points and weights under the standard normal; ``step`` is 0 for Gauss-Hermite points."""

    points: Array
    weights: Array
    step: float

    def half(self) -> Axis:
        """For what is even: the points from zero on, each standing for its mirror image too."""
        places = self.points > -1e-12
        return Axis(
            self.points[places], self.weights[places] * np.where(self.points > 1e-12, 2, 1)[places], 0.0
        )

    def pair_weights(self, correlation: Array) -> Array:
        """Weights (B, m, m) of two variables on this axis, for correlations in [0, 1]."""
        if not self.step:
            polynomials = hermite_polynomials(self.points, len(self.points)) * self.weights
            powers = correlation[:, None] ** np.arange(len(self.points))
            return np.asarray((polynomials.T * powers[:, None, :]) @ polynomials)
        one = correlation >= 1
        rest = np.where(one, 1.0, 1 - correlation**2)[:, None, None]
        x, y = self.points[:, None], self.points
        shifted = y - correlation[:, None, None] * x
        given = self.step * np.exp(-0.5 * shifted**2 / rest) / np.sqrt(2 * math.pi * rest)
        given[one] = np.eye(len(self.points))
        return np.asarray(self.weights[:, None] * given)


@lru_cache(maxsize=256)
def _axis(rung: int, tolerance: float) -> Axis:
    count = int(_COUNTS[rung])
    if rung < len(_GAUSS):
        return Axis(*gauss_hermite(count), 0.0)
    # To where the Gaussian is below the tolerance; farther from rung to rung, so that what is cut shows.
    radius = math.sqrt(2 * math.log(1 / tolerance)) + 1.5 + 0.15 * (rung - len(_GAUSS))
    points = np.linspace(-1, 1, count) * radius
    step = float(points[1] - points[0])
    return Axis(points, step * np.exp(-0.5 * points**2) / math.sqrt(2 * math.pi), step)


@lru_cache(maxsize=32)
def _reaches(tolerance: float) -> tuple[Array, Array]:
    """For every rung: the least distance of a singularity at which it should do, and its step."""
    digits = math.log(1 / tolerance) + 2
    gauss = digits / (2 * np.sqrt(_GAUSS)) / _GAUSS_GAIN
    rungs = range(len(_GAUSS), len(_COUNTS))
    steps = np.array([_axis(rung, tolerance).step for rung in rungs])
    needed = np.concatenate([gauss, steps * digits / (2 * math.pi) / _EQUIDISTANT_GAIN])
    needed[0] = np.inf
    return needed, np.concatenate([np.zeros(len(_GAUSS)), steps])


def grid_expectation(
    kinds: Sequence[Sequence[Factor]],
    which: Indices,
    lower: Array,
    mean: Array,
    scales: Array,
    tolerance: float,
) -> tuple[Array, Array]:
    """Expectations (B, P) of P products under each of B Gaussians, with error estimates.

    Parameters
    ----------
    kinds
        For each of n inputs, 1 to 4, the factors that may stand there.
    which
        (B, P, n): the factors of each product, as places in ``kinds``. Not products that vanish by symmetry.
    lower, mean
        z = mean + lower x for standard normal x: (B, n, r) lower triangular, (B, n).
    scales
        (B, P): the tolerance is relative to them. Where it is not reached within the allowed number of points, the
        error says so (infinite where even the first grid would have been too large).
    """
    value, error = np.zeros(scales.shape), np.full(scales.shape, np.inf)
    layouts = [_Layout(kinds, lower, mean, len(kinds) - 1, tolerance)]
    if len(kinds) > 1:
        layouts.append(_Layout(kinds, lower, mean, len(kinds) - 2, tolerance))
    cheapest = np.argmin([layout.points(layout.first_rungs) for layout in layouts], axis=0)
    for number, layout in enumerate(layouts):
        items = np.flatnonzero(cheapest == number)
        value[items], error[items] = _settled(layout, items, which[items], scales[items], tolerance)
    return value, error


def _settled(
    layout: _Layout, items: Indices, which: Indices, scales: Array, tolerance: float
) -> tuple[Array, Array]:
    """Values and errors of these items, rung by rung until two agree."""
    value, error = np.zeros(scales.shape), np.full(scales.shape, np.inf)
    rungs = layout.first_rungs[items]
    # The same rungs for all where their grids together are still small, to save calls.
    highest = np.broadcast_to(rungs.max(axis=0, initial=0), rungs.shape)
    if layout.points(highest).sum() <= _CHUNK:
        rungs = highest.copy()
    pending = np.flatnonzero(layout.points(rungs) <= _MOST_POINTS)
    value[pending] = layout.evaluate(items[pending], rungs[pending], which[pending])
    while True:
        finer = np.minimum(rungs + (rungs > 0), len(_COUNTS))
        pending = pending[layout.points(finer[pending]) <= _MOST_POINTS]
        if not pending.size:
            return value, error
        rungs[pending] = finer[pending]
        found = layout.evaluate(items[pending], rungs[pending], which[pending])
        error[pending] = layout.remaining(np.abs(found - value[pending]), rungs[pending], scales[pending])
        value[pending] = found
        pending = pending[(error[pending] > tolerance * scales[pending]).any(axis=1)]


class _Layout:
    """How inputs use the axes: ``outer`` of them have one each, what remains, one or a pair, shares the last one."""

    def __init__(
        self, kinds: Sequence[Sequence[Factor]], lower: Array, mean: Array, outer: int, tolerance: float
    ) -> None:
        self.kinds, self.mean, self.outer, self.tolerance = kinds, mean, outer, tolerance
        missing = len(kinds) - lower.shape[2]
        self.lower = np.concatenate([lower, np.zeros((*lower.shape[:2], missing))], axis=2)
        self.inner = np.diagonal(self.lower, axis1=1, axis2=2)[:, outer:].copy()
        self.correlation = np.ones(len(lower))
        if self.inner.shape[1] == 2:
            along, own = self.lower[:, -1, -2], self.lower[:, -1, -1]
            self.inner[:, 1] = np.copysign(np.hypot(along, own), along)
            self.correlation = np.abs(along) / np.where(self.inner[:, 1] != 0, np.abs(self.inner[:, 1]), 1.0)

    @cached_property
    def first_rungs(self) -> Indices:
        """(B, axes): the first rung of the ladder that should reach the tolerance (0 where nothing varies)."""
        strips = np.array([min(f.strip for f in options) for options in self.kinds])
        widths = [self.lower[:, :, axis] for axis in range(self.outer)]
        widths.append(np.zeros_like(self.mean))
        widths[-1][:, self.outer :] = self.inner
        needed, steps = _reaches(self.tolerance)
        found = []
        for width in widths:
            steepness = (np.abs(width) / strips).max(axis=1)
            far_enough = steepness[:, None] * needed[1:] <= 1
            found.append(np.where(width.any(axis=1), 1 + _first(far_enough), 0))
        # Two correlated variables on equidistant points: the step must resolve what they do not share.
        apart = np.where(self.correlation < 1, 1 - self.correlation, np.inf)
        fine = steps <= 2 * math.pi * np.sqrt(apart / math.log(1 / self.tolerance))[:, None]
        usable = fine & (np.arange(len(steps)) >= found[-1][:, None])
        found[-1] = np.where(found[-1] > 0, _first(usable), 0)
        return np.stack(found, axis=1)

    def points(self, rungs: Indices) -> Array:
        """How many points the grids of these rungs have (infinitely many where a rung does not exist)."""
        counts = np.append(_COUNTS, np.inf)[rungs]
        total = counts.prod(axis=1)
        return np.asarray(total + counts[:, -1] ** 2 if self.inner.shape[1] == 2 else total)

    def remaining(self, change: Array, rungs: Indices, scales: Array) -> Array:
        """Error after a change to these rungs: what changed, and where smoothness is known its power."""
        share = change / scales
        if not any(f.is_unproven for options in self.kinds for f in options):
            gauss = ((rungs > 0) & (rungs <= len(_GAUSS))).any(axis=1)
            power = np.where(gauss, _GAUSS_GAIN, _EQUIDISTANT_GAIN)[:, None]
            share = np.where(share < 1, np.minimum(share, 1.0) ** power, share)
        return np.asarray(scales * (3 * share + _LUCK * self.tolerance))

    def evaluate(self, items: Indices, rungs: Indices, which: Indices) -> Array:
        """The products (len(items), P), each item on the grid of its rungs."""
        result = np.empty(which.shape[:2])

        def one(task: tuple[Indices, list[Axis]]) -> None:
            part, axes = task
            is_pair = self.inner.shape[1] == 2
            weights = axes[-1].pair_weights(self.correlation[items[part]]) if is_pair else axes[-1].weights
            # Cut along the first axis into pieces that stay in the cache.
            first, *others = axes
            size = len(part) * math.prod(len(axis.points) for axis in axes)
            pieces = min(len(first.points), -(-size // _CHUNK)) if others else 1
            cuts = zip(
                np.array_split(first.points, pieces), np.array_split(first.weights, pieces), strict=True
            )
            slabs = [[Axis(*piece, 0.0), *others] for piece in cuts]
            total = np.sum([self._slab(items[part], slab, weights) for slab in slabs], axis=0)
            # Expectations (B, k_1, ..., k_n) for every choice of one factor at every input.
            table = total.T.reshape(len(part), *(len(options) for options in self.kinds))
            result[part] = table[(np.arange(len(part))[:, None], *np.moveaxis(which[part], 2, 0))]

        over_cores(one, list(self._tasks(rungs)), uses_blas=True)
        return result

    def _tasks(self, rungs: Indices) -> Iterator[tuple[Indices, list[Axis]]]:
        """Places of items on the same grid, as many as stay in the cache, and its axes."""
        sizes = self.points(rungs)
        # Nothing changes when all variables change sign (odd products, which vanish, aside).
        is_even = not self.mean.any() and all(f.parity for options in self.kinds for f in options)
        distinct, where = np.unique(rungs, axis=0, return_inverse=True)
        for number, row in enumerate(distinct):
            places = np.flatnonzero(where.ravel() == number)
            axes = [_axis(int(rung), self.tolerance) for rung in row]
            if self.outer and is_even:
                axes[0] = axes[0].half()
            together = max(1, _CHUNK // int(sizes[places[0]]))
            for part in np.array_split(places, -(-len(places) // together)):
                yield part, axes

    def _slab(self, items: Indices, axes: list[Axis], weights: Array) -> Array:
        """What the points of these axes contribute: (choices, B)."""
        points, outer = axes[-1].points, self.outer
        # The last inputs given the outer variables: (choices, B, m_1, ..).
        inner = []
        for i, width in enumerate(self.inner[items].T, start=outer):
            spread = np.multiply.outer(width, points).reshape(len(items), *(1,) * outer, -1)
            inner.append(values_of(self.kinds[i], self._at(items, i, axes[:outer])[..., None] + spread))
        if len(inner) == 1:
            total = inner[0] @ weights
        else:
            first, second = (v.reshape(*v.shape[:2], -1, v.shape[-1]) for v in inner)
            total = np.einsum("abqm,cbqm->acbq", first @ weights, second)
            total = total.reshape(-1, *inner[0].shape[1:-1])
        for i in range(outer - 1, -1, -1):
            values = values_of(self.kinds[i], self._at(items, i, axes[: i + 1])) * axes[i].weights
            total = np.einsum("kb...j,cb...j->kcb...", values, total)
            total = total.reshape(-1, *total.shape[2:])
        return np.asarray(total)

    def _at(self, items: Indices, i: int, axes: list[Axis]) -> Array:
        """mean + lower x of input i, over the variables of these axes: (B, m_1, ..)."""
        z = self.mean[items, i]
        for number, axis in enumerate(axes):
            along = np.multiply.outer(self.lower[items, i, number], axis.points)
            z = z[..., None] + along.reshape(len(items), *(1,) * number, -1)
        return np.asarray(z)


def _first(flags: NDArray[np.bool_]) -> Indices:
    """The place of the first True of every row, the number of columns if there is none."""
    return np.asarray(np.where(flags.any(axis=1), flags.argmax(axis=1), flags.shape[1]))
