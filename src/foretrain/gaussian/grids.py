"""Many smooth products at once: grids of points along the independent variables, shared by all products.

The inputs are split into two sets of at most two, each of which depends on a plane. With coordinates of both planes
turned so that each of the one is correlated with only one of the other (canonical correlations), the density of all
variables is a product of densities of pairs. Values of two factors on the grid of one plane are therefore carried
over to the other plane by one matrix for each coordinate, and summed with the values of the other factors there: four
inputs cost points of a plane, not of a space of four dimensions. All products of factors follow from the same values.

An axis has Gauss-Hermite points where the inputs vary little over a deviation, else equidistant points, which near
singularities harm less. Two successive rungs of this ladder tell the error of the first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from foretrain.gaussian.factors import Factor, values_of
from foretrain.gaussian.nodes import gauss_hermite, gauss_legendre, hermite_polynomials
from foretrain.support.threads import over_cores

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

_GAUSS = (1, 4, 6, 8, 11, 15, 20)
_EQUIDISTANT = (28, 38, 52, 70, 94, 126, 170, 230, 310, 420, 570, 770, 1050, 1400, 1900, 2600, 3500)
_COUNTS = np.array(_GAUSS + _EQUIDISTANT)
_CHUNK = 200_000  # values of products on the points of one plane held at a time
_MOST_POINTS = 400_000  # of one plane
_WORTH_THREADS = 1_000_000  # points
_ALIKE = 2.0  # as many times the points are worth having the same grid for all
_RESOLVED = 2.7  # steps in a deviation from which a Gaussian is resolved to all digits
_LUCK = 0.1  # a change may be small by chance: no error is said to be below this share of the tolerance
_GAUSS_GAIN, _EQUIDISTANT_GAIN = 1.1, 1.25  # digits from one rung to the next; more in theory: a margin


@dataclass(frozen=True, eq=False)
class Axis:
    """Points and weights under the standard normal; ``step`` is 0 for Gauss-Hermite points."""

    points: Array
    weights: Array
    step: float

    def pair_weights(self, correlation: Array) -> Array:
        """Weights (B, m, m) of two variables on this axis, for correlations in [0, 1]."""
        if not self.step:
            powers = correlation[:, None] ** np.arange(len(self.points))
            return np.asarray((self._polynomials.T * powers[:, None, :]) @ self._polynomials)
        weights = np.empty((len(correlation), len(self.points), len(self.points)))
        with np.errstate(divide="ignore"):
            spread = np.sqrt((1 - correlation**2) / correlation) / self.step
        wide = spread >= _RESOLVED
        weights[wide] = self._conditional(correlation[wide])
        weights[~wide] = self._band_limited(correlation[~wide], spread[~wide])
        return weights

    def _conditional(self, correlation: Array) -> Array:
        """The density of one variable times that of the other given it."""
        rest = (1 - correlation**2)[:, None, None]
        shifted = self.points - correlation[:, None, None] * self.points[:, None]
        given = np.exp(-0.5 * shifted**2 / rest) * (self.step / np.sqrt(2 * math.pi * rest))
        return np.asarray(self.weights[:, None] * given)

    def _band_limited(self, correlation: Array, spread: Array) -> Array:
        """The same where the points do not resolve what two variables do not share.

        The density is exp(-x^2 / 2(1+c)) exp(-y^2 / 2(1+c)) times a Gaussian of x - y, ``spread`` steps wide. Between
        functions that the points resolve, it acts as its part of frequencies below pi / step does.
        """
        frequencies, waves, between = self._waves
        kernel = np.exp(-0.5 * np.multiply.outer(spread, frequencies) ** 2) @ waves
        envelope = np.exp(-0.5 * self.points**2 / (1 + correlation)[:, None])
        envelope *= np.sqrt(self.step / np.sqrt(2 * math.pi * correlation))[:, None]
        return np.asarray(envelope[:, :, None] * kernel[:, between] * envelope[:, None, :])

    @cached_property
    def _polynomials(self) -> Array:
        """Orthonormal polynomials at the points, times the weights."""
        return hermite_polynomials(self.points, len(self.points)) * self.weights

    @cached_property
    def _waves(self) -> tuple[Array, Array, Indices]:
        """Frequencies, weighted waves at distances in steps, and how many steps lie between two points."""
        count = len(self.points)
        nodes, weights = gauss_legendre(count + 20)
        places = np.arange(count)
        waves = weights[:, None] * np.cos(np.multiply.outer(math.pi * nodes, places))
        return math.pi * nodes, waves, np.abs(places[:, None] - places)


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


def ladder(tolerance: float) -> Iterator[Axis]:
    """The axes from the coarsest on."""
    return (_axis(rung, tolerance) for rung in range(1, len(_COUNTS)))


@lru_cache(maxsize=64)
def _needed(tolerance: float, poles: int) -> Array:
    """For every rung the least distance of poles of this order at which the next one should reach the tolerance.

    Taylor coefficients are then k^(p-1) / (p-1)! times those of a geometric series, and Fourier transforms as many
    times an exponential.
    """
    more, most = poles - 1, math.lgamma(poles)
    digits = math.log(1 / tolerance) + math.log(3) + 1
    points = np.array(_GAUSS)
    left_out = digits / _GAUSS_GAIN + more * np.log(2 * points) - most
    gauss = np.exp((left_out + special.gammaln(points + 1)) / (2 * points))
    gauss[0] = np.inf
    phase = digits
    for _ in range(30):
        phase = digits / _EQUIDISTANT_GAIN + more * math.log(phase) - most
    steps = np.array([_axis(rung, tolerance).step for rung in range(len(_GAUSS), len(_COUNTS))])
    return np.concatenate([gauss, steps * phase / (2 * math.pi)])


def grid_expectation(
    factors: Sequence[Factor],
    which: Indices,
    lower: Array,
    mean: Array,
    scales: Array,
    tolerance: float,
) -> tuple[Array, Array]:
    """Expectations (B, P) of P products under each of B Gaussians, with error estimates.

    Parameters
    ----------
    factors
        Those that products consist of.
    which
        (B, P, n), n from 1 to 4: the factors of each product. Not products that vanish by symmetry.
    lower, mean
        z = mean + lower x for standard normal x: (B, n, n) lower triangular, (B, n).
    scales
        (B, P): the tolerance is relative to them. Where it is not reached within the allowed number of points, the
        error says so (infinite where even the first grid would have been too large).
    """
    planes = _Planes(factors, which, lower, mean, tolerance)
    value, error = np.zeros(scales.shape), np.full(scales.shape, np.inf)
    rungs = planes.first_rungs.copy()
    pending = np.flatnonzero(np.isfinite(planes.points(rungs)))
    # The same rungs for all where that costs little, to save calls.
    highest = np.broadcast_to(rungs[pending].max(axis=0, initial=0), (len(pending), rungs.shape[1]))
    if planes.points(highest).sum() <= _ALIKE * planes.points(rungs[pending]).sum():
        rungs[pending] = highest
    value[pending] = planes.evaluate(pending, rungs[pending])
    while True:
        finer = np.minimum(rungs + (rungs > 0), len(_COUNTS))
        pending = pending[np.isfinite(planes.points(finer[pending]))]
        if not pending.size:
            return value, error
        rungs[pending] = finer[pending]
        found = planes.evaluate(pending, rungs[pending])
        error[pending] = planes.remaining(np.abs(found - value[pending]), rungs[pending], scales[pending])
        value[pending] = found
        pending = pending[(error[pending] > tolerance * scales[pending]).any(axis=1)]


class _Planes:
    """Two sets of inputs, each a function of its own one or two variables, correlated one with one."""

    def __init__(
        self,
        factors: Sequence[Factor],
        which: Indices,
        lower: Array,
        mean: Array,
        tolerance: float,
    ) -> None:
        self.factors, self.mean, self.tolerance = factors, mean, tolerance
        inputs = which.shape[2]
        left = (inputs + 1) // 2
        self.sides = [range(left), range(left, inputs)]
        # The pairs of factors (or single ones) that occur on each side, and those of every product (B, P).
        self.choices: list[Indices] = []
        self.places: list[Indices] = []
        for side in self.sides:
            powers = len(factors) ** np.arange(len(side))
            codes = which[:, :, list(side)] @ powers
            distinct, where = np.unique(codes, return_inverse=True)
            self.choices.append(distinct[:, None] // powers % len(factors))
            self.places.append(where.reshape(codes.shape))
        # The right side is R y, y orthonormal combinations of all variables, of which the left has the first.
        y, R = np.linalg.qr(lower[:, left:, :].swapaxes(1, 2))
        turn, correlation, back = np.linalg.svd(y[:, :left])
        self.correlation = np.minimum(correlation, 1.0)
        self.maps = [lower[:, :left, :left] @ turn, (back @ R).swapaxes(1, 2)]

    @cached_property
    def is_even(self) -> bool:
        """Whether nothing but signs changes when all variables change sign; of what was measured only, none knows."""
        return not self.mean.any() and all(f.parity and not f.is_unproven for f in self.factors)

    @cached_property
    def first_rungs(self) -> Indices:
        """(B, axes): the first rung of the ladder that should reach the tolerance (0 where nothing varies)."""
        strip = min(f.strip for f in self.factors)
        varies = np.zeros((len(self.mean), len(self.sides[0])), dtype=bool)
        steepness = np.zeros(varies.shape)
        for widths in self.maps:
            own = slice(widths.shape[2])
            varies[:, own] |= widths.any(axis=1)
            largest = np.abs(widths).max(axis=1, initial=0.0) / strip
            steepness[:, own] = np.maximum(steepness[:, own], largest)
        poles = max(f.poles for f in self.factors)
        far_enough = steepness[:, :, None] * _needed(self.tolerance, poles)[1:] <= 1
        first = np.where(far_enough.any(axis=2), far_enough.argmax(axis=2), far_enough.shape[2])
        return np.asarray(np.where(varies, 1 + first, 0))

    def points(self, rungs: Indices) -> Array:
        """How many points the grids of these rungs have (infinitely many if that is too many)."""
        points = np.append(_COUNTS, np.inf)[rungs].prod(axis=1)
        return np.asarray(np.where(points > _MOST_POINTS, np.inf, points))

    def remaining(self, change: Array, rungs: Indices, scales: Array) -> Array:
        """Error after a change to these rungs: what changed, and where smoothness is known its power."""
        share = change / scales
        if not any(f.is_unproven for f in self.factors):
            gauss = ((rungs > 0) & (rungs <= len(_GAUSS))).any(axis=1)
            power = np.where(gauss, _GAUSS_GAIN, _EQUIDISTANT_GAIN)[:, None]
            share = np.where(share < 1, np.minimum(share, 1.0) ** power, share)
        return np.asarray(scales * (3 * share + _LUCK * self.tolerance))

    def evaluate(self, items: Indices, rungs: Indices) -> Array:
        """The products (len(items), P), each item on the grid of its rungs."""
        left, right = self.places
        result = np.empty((len(items), left.shape[1]))

        def one(task: tuple[Indices, list[Axis]]) -> None:
            part, axes = task
            chosen = items[part]
            table = self._table(chosen, axes)
            result[part] = table[np.arange(len(part))[:, None], left[chosen], right[chosen]]

        tasks = list(self._tasks(rungs))
        if self.points(rungs).sum() < _WORTH_THREADS:
            for task in tasks:
                one(task)
        else:
            over_cores(one, tasks, uses_blas=True)
        return result

    def _tasks(self, rungs: Indices) -> Iterator[tuple[Indices, list[Axis]]]:
        """Places of items on the same grid, as many as stay in the cache, and its axes."""
        choices = max(len(c) for c in self.choices)
        alike = (rungs == rungs[:1]).all()
        for row in rungs[:1] if alike else np.unique(rungs, axis=0):
            places = np.flatnonzero((rungs == row).all(axis=1))
            together = max(1, _CHUNK // max(choices * int(_COUNTS[row].prod()), int(_COUNTS[row].max()) ** 2))
            for part in np.array_split(places, -(-len(places) // together)):
                yield part, [_axis(int(rung), self.tolerance) for rung in row]

    def _table(self, items: Indices, axes: list[Axis]) -> Array:
        """Expectations (B, left, right) of the chosen products on the left times those on the right."""
        # 1. Products on the grid of each plane (B, m_1, choices, m_2), half of it where the rest follows.
        x = axes[0].points
        first = np.flatnonzero(x > -1e-12) if self.is_even else np.arange(len(x))
        left, right = self._products(items, [x[first], *(axis.points for axis in axes[1:])])
        # 2. Along the second variable to the other plane, or to its mean if that has none.
        pairs = self.maps[1].shape[2]
        if len(axes) > 1:
            weights = (
                axes[1].pair_weights(self.correlation[items, 1]) if pairs > 1 else axes[1].weights[:, None]
            )
            left = (left.reshape(len(items), -1, left.shape[3]) @ weights).reshape(*left.shape[:3], -1)
        # 3. Along the first.
        weights = axes[0].pair_weights(self.correlation[items, 0]) if pairs else axes[0].weights[None, None]
        sign = self._signs[:, None] if self.is_even else None
        left = _along_first(weights, left, first, x, sign)
        # 4. The mean with the products there.
        left = left.transpose(0, 2, 1, 3).reshape(len(items), left.shape[2], -1)
        return np.asarray(left @ right.transpose(0, 1, 3, 2).reshape(len(items), -1, right.shape[2]))

    @cached_property
    def _signs(self) -> Array:
        """What the products of the left side are multiplied by when its variables change sign."""
        parities = np.array([f.parity for f in self.factors], dtype=float)
        return np.asarray(parities[self.choices[0]].prod(axis=1))

    def _products(self, items: Indices, points: list[Array]) -> list[Array]:
        """Products (B, m_1, choices, m_2) of the chosen factors of each side on the points of its plane."""
        inputs = []
        for side, widths in zip(self.sides, self.maps, strict=True):
            for row, i in enumerate(side):
                along = [np.multiply.outer(width, x) for width, x in zip(widths[items, row].T, points)]
                z = self.mean[items, i, None, None] + along[0][:, :, None]
                inputs.append(z + along[1][:, None, :] if len(along) > 1 else z)
        values = values_of(self.factors, np.concatenate([z.ravel() for z in inputs]))
        cuts = np.cumsum([z.size for z in inputs])[:-1]
        parts = np.split(values, cuts, axis=1)
        of_input = [part.reshape(-1, *z.shape) for part, z in zip(parts, inputs, strict=True)]
        sides = []
        for side, chosen in zip(self.sides, self.choices, strict=True):
            if not side:
                sides.append(np.ones((len(items), 1, 1, 1)))
                continue
            shape = inputs[side[0]].shape
            product = np.empty((shape[0], shape[1], len(chosen), shape[2]))
            for place, row in enumerate(chosen):
                if len(row) == 1:
                    product[:, :, place] = of_input[side[0]][row[0]]
                else:
                    np.multiply(
                        of_input[side[0]][row[0]], of_input[side[1]][row[1]], out=product[:, :, place]
                    )
            sides.append(product)
        return sides


def _along_first(weights: Array, values: Array, kept: Indices, points: Array, sign: Array | None) -> Array:
    """Weights (.., m', m) on values (B, kept, choices, ..), of which the others, if any, are mirror images.

    What is then even is left at the points that are kept, each standing for its mirror image too.
    """
    shape = (*values.shape[:1], -1, *values.shape[2:])

    def apply(some: Array, to: Array) -> Array:
        return np.asarray((some @ to.reshape(*to.shape[:2], -1)).reshape(shape))

    if sign is None:
        return apply(weights, values)
    twice = np.where(points[kept] > 1e-12, 2.0, 1.0)
    if weights.shape[1] == 1:  # what is odd vanishes, and is not asked for
        return apply(weights[:, :, kept] * twice, values)
    direct, crossed = weights[:, kept[:, None], kept], weights[:, kept[:, None], len(points) - 1 - kept]
    direct, crossed = direct * twice[:, None], crossed * (twice[:, None] * (twice - 1))
    return apply(direct, values) + apply(crossed, values[..., ::-1] * sign)
