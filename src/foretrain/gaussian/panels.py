"""Integrands with kinks: nested Gauss-Legendre panels that end at the kinks.

A product of functions of ``z_i = mean_i + (A x)_i`` with A lower triangular is integrated variable by variable.
In the variable where z_i is completed, the kinks of factor i are panel ends; in earlier variables the same kink
is felt smeared over the deviation that is still to come, and panels shrink geometrically towards it, so that
nearly parallel inputs cost a few panels and no digits.

At every input stand several functions, and all products of one at each follow from the same points. Functions
averaged over a variable of their own are kept as tables of polynomials (:class:`Smoothed`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import combinations, product
from typing import Protocol

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

from foretrain.gaussian.factors import Factor, values_of
from foretrain.gaussian.nodes import legendre_panels

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

_CHUNK = 200_000  # points at a time: what is computed there stays in the cache
_RIND = 1.5
_MORE_NODES = 6
_MOST_POINTS = 40_000_000
_NEAR = 0.35  # a smeared kink wider than this is resolved by ordinary panels


class Piecewise(Protocol):
    """What the rules need to know of functions of one input: values, kinks, and how smooth they are elsewhere."""

    @property
    def kinks(self) -> tuple[float, ...]:
        """Where one of them, or a derivative, jumps."""

    @property
    def strip(self) -> float:
        """Length over which they are analytic between their kinks."""

    @property
    def blur(self) -> float:
        """Width over which their kinks are smeared already."""

    @property
    def reach(self) -> float:
        """They may be called between minus and plus this."""

    def __call__(self, z: Array, /) -> Array:
        """Values (functions, ...)."""


@dataclass(frozen=True)
class Together:
    """Factors of the same input."""

    factors: tuple[Factor, ...]
    blur: float = 0.0
    reach: float = math.inf

    @cached_property
    def kinks(self) -> tuple[float, ...]:
        """Where one of them jumps."""
        return tuple(sorted({location for f in self.factors for location in f.kinks}))

    @cached_property
    def strip(self) -> float:
        """Length over which all are analytic."""
        return min(f.strip for f in self.factors)

    def __call__(self, z: Array) -> Array:
        """Values (factors, ...)."""
        return values_of(self.factors, z)


def nodes_for(tolerance: float) -> int:
    """Nodes per panel: the error falls by 4.24^2 with each when a panel is as wide as the singularity is far."""
    return math.ceil(math.log(1 / tolerance) / (2 * math.log(4.24))) + 2


def regular_edges(distance: float, radius: float, most: int = 4000) -> Array:
    """Equal panels on [-radius, radius], as wide as the distance of the nearest singularity allows."""
    width = min(1.5, distance)
    return np.linspace(-radius, radius, 2 * math.ceil(min(radius / width, most / 2)) + 1)


def panel_rule(edges: Array, nodes: int) -> tuple[Array, Array]:
    """Gauss-Legendre points (P, M) between sorted edges (P, E), weighted with the standard normal density."""
    x, weights = legendre_panels(edges, nodes)
    return x, weights * np.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)


def nested_radius(tolerance: float) -> float:
    """Where panels end at first: the Gaussian has fallen well below the tolerance."""
    return math.sqrt(2 * math.log(1 / tolerance)) + 0.5


def nested_expectation(
    functions: Sequence[Piecewise],
    which: Indices,
    lower: Array,
    mean: Array,
    scale: Array,
    tolerance: float,
    whole: Callable[[Array], Array] | None = None,
    most_radius: float = 38.0,
) -> tuple[Array, Array]:
    """Expectations (P, B) of products for a stack, functions at ``z = mean + lower x``, with error estimates.

    Parameters
    ----------
    which
        (P, n): the function of each product at every input.
    lower
        (B, n, r), each row ending at the variable that completes its input; no row is zero.
    mean
        (B, n).
    scale
        (P, B), to which the tolerance is relative.
    whole
        A further factor that needs all inputs at once: values (...) at z (..., n).
    most_radius
        Panels reach out to this if what lies outside matters.
    """
    value, error = np.zeros(scale.shape), np.zeros(scale.shape)
    # Items whose entries have the same binary exponents: one panel layout serves a group.
    exponents = np.frexp(lower)[1] * (lower != 0)
    groups: dict[bytes, list[int]] = {}
    for i, row in enumerate(exponents):
        groups.setdefault(row.tobytes(), []).append(i)
    for group in map(np.array, groups.values()):
        rule = partial(_Nested, tuple(functions), lower[group], whole=whole)
        last, few, safe = np.inf, nodes_for(tolerance), np.where(scale[:, group] > 0, scale[:, group], 1.0)
        radius = min(_first_radius(functions, lower[group], mean[group], tolerance), most_radius - _RIND)
        while True:
            # The finer rule also reaches farther: the difference counts what the coarser one cuts off.
            coarse = rule(radius, few).products(which, mean[group])
            fine = rule(radius + _RIND, few + 3).products(which, mean[group])
            miss = np.abs(fine - coarse)
            worst = float((miss / safe).max())
            if worst <= tolerance or worst > last / 4 or radius + 2 * _RIND > most_radius:
                break
            last, radius, few = worst, radius + _RIND, few + _MORE_NODES
        if worst > tolerance:  # not as smooth as presumed: what is left may exceed the last change
            miss = 3 * miss
        value[:, group] = fine
        error[:, group] = miss + 1e-15 * np.maximum(np.abs(fine), scale[:, group])
    return value, error


def _first_radius(functions: Sequence[Piecewise], lower: Array, mean: Array, tolerance: float) -> float:
    """Where the product of the functions, all at their largest, has died under the Gaussian."""
    x = np.linspace(-38.0, 38.0, 153)
    envelope = np.exp(-0.5 * x**2)
    for i, function in enumerate(functions):
        deviation = np.sqrt((lower[:, i] ** 2).sum(axis=1).max() + function.blur**2)
        centre = mean[:, i, None] if mean[:, i].any() else np.zeros((1, 1))
        reach = np.clip(centre + deviation * x, -function.reach, function.reach)
        with np.errstate(over="ignore", invalid="ignore"):
            size = np.nan_to_num(np.abs(function(reach)).max(axis=(0, 1)), posinf=1e300)
            envelope = np.minimum(envelope * np.maximum(size, size[::-1]), 1e300)
    inside = np.abs(x[envelope > 1e-3 * tolerance * envelope.max()])
    return max(nested_radius(tolerance), float(inside.max(initial=0.0)) - 1.0)


@dataclass(frozen=True)
class _Nested:
    """The rule for one group of items: ``integrate`` does variables ``level ..`` for points so far."""

    functions: tuple[Piecewise, ...]
    lower: Array
    radius: float
    nodes: int
    whole: Callable[[Array], Array] | None = None

    def products(self, which: Indices, mean: Array) -> Array:
        """The products (P, B) that have these functions (P, n) at the inputs."""
        table = self.integrate(np.arange(len(mean)), mean, 0)
        order = [i for level in range(self.lower.shape[2]) for i in self._completed(level)]
        counts = [len(self.functions[i](np.zeros(1))) for i in order]
        return table[:, np.ravel_multi_index(tuple(which[:, i] for i in order), counts)].T

    def integrate(self, item: Indices, partial: Array, level: int) -> Array:
        """Conditional expectations (P, choices) given partial sums (P, n) of the items (P,).

        Choices are those of one function at each input that is completed from here on, in that order.
        """
        edges = self._edges(item, partial, level)
        step = max(1, _CHUNK // (edges.shape[1] * self.nodes))
        parts = [slice(start, start + step) for start in range(0, len(item), step)]
        return np.concatenate([self._sum(item[p], partial[p], edges[p], level) for p in parts])

    def _sum(self, item: Indices, partial: Array, edges: Array, level: int) -> Array:
        x, weights = panel_rule(edges, self.nodes)
        slopes = self.lower[item, :, level]
        sums = partial[:, None, :] + slopes[:, None, :] * x[:, :, None]
        completed = [self.functions[i](sums[:, :, i]) for i in self._completed(level)]
        rest = weights[None]
        if level + 1 < self.lower.shape[2]:
            points = sums.reshape(-1, sums.shape[2])
            deeper = self.integrate(np.repeat(item, x.shape[1]), points, level + 1)
            rest = deeper.reshape(*x.shape, -1).transpose(2, 0, 1)
        elif self.whole is not None:
            rest = self.whole(sums)[None]
        elif completed:
            rest = completed.pop()
        left = weights[None]
        for values in completed:
            left = (left[:, None] * values).reshape(-1, *x.shape)
        # Both are (choices, P, M), to be summed over the points of each P.
        return np.asarray(left.transpose(1, 0, 2) @ rest.transpose(1, 2, 0)).reshape(len(x), -1)

    def _completed(self, level: int) -> list[int]:
        """Inputs that depend on this variable and on none after it."""
        touches = np.any(self.lower != 0, axis=0)
        ends = touches[:, level] & ~touches[:, level + 1 :].any(axis=1)
        return [int(i) for i in np.flatnonzero(ends)]

    def _edges(self, item: NDArray[np.intp], partial: Array, level: int) -> Array:
        """Sorted panel ends (P, E): equal panels, kinks, and geometric grading towards smeared kinks."""
        distance, breaks = math.inf, []
        for i, function in enumerate(self.functions):
            slope = float(np.abs(self.lower[:, i, level]).max())
            if slope == 0:
                continue
            later = float(np.sqrt((self.lower[:, i, level + 1 :] ** 2).sum(axis=1)).max())
            rest = math.hypot(later, function.blur)
            distance = min(distance, math.hypot(function.strip, rest) / slope)
            if rest / slope >= _NEAR:
                continue
            offsets = np.zeros(1)
            if rest > 0:  # panels end at geometric distances from a smeared kink, up to ordinary panels
                distances = 1.5 / 2.0 ** np.arange(math.ceil(math.log2(1.5 / max(rest / slope, 1e-13))) + 1)
                offsets = np.concatenate([-distances, [0.0], distances[::-1]])
            for location in function.kinks:
                centre = (location - partial[:, i]) / self.lower[item, i, level]
                breaks.append(np.clip(centre[:, None] + offsets, -self.radius, self.radius))
        # Where kinks of two inputs, both completed by the next variable, meet, this variable has a kink.
        last = self._completed(level + 1) if level + 2 == self.lower.shape[2] else []
        for i, j in combinations([i for i in last if self.functions[i].blur == 0], 2):
            (here_i, next_i), (here_j, next_j) = (self.lower[item, k, level:].T for k in (i, j))
            across = here_i * next_j - here_j * next_i
            safe = np.where(across == 0, np.inf, across)
            for a, b in product(self.functions[i].kinks, self.functions[j].kinks):
                meeting = ((a - partial[:, i]) * next_j - (b - partial[:, j]) * next_i) / safe
                breaks.append(np.clip(meeting[:, None], -self.radius, self.radius))
        # Panels for each variable that keep the whole rule within its budget of points.
        most = int(_MOST_POINTS ** (1 / self.lower.shape[2]) / self.nodes)
        base = regular_edges(distance, self.radius, most)
        columns = [np.broadcast_to(base, (len(item), len(base))), *breaks]
        return np.sort(np.concatenate(columns, axis=1), axis=1)


_DEGREE = 7
_CHEBYSHEV_NODES = np.cos(np.pi * (np.arange(_DEGREE + 1) + 0.5) / (_DEGREE + 1))
_FROM_VALUES = np.linalg.inv(chebyshev.chebvander(_CHEBYSHEV_NODES, _DEGREE))
_TO_MONOMIALS = np.stack(
    [
        np.pad(chebyshev.cheb2poly(row[: k + 1]), (0, _DEGREE - k))
        for k, row in enumerate(np.eye(_DEGREE + 1))
    ],
    axis=1,
)
_HALVINGS = 4
_MOST_CELLS = 20_000


class Table:
    """Polynomials of degree 7 between given edges, halved until their last coefficients are below the tolerance.

    The function may have several values: (..., points) at points. ``error`` is the size of those coefficients as a
    share of the largest value.
    """

    def __init__(self, function: Callable[[Array], Array], edges: Array, tolerance: float) -> None:
        for halvings in range(_HALVINGS):
            half = np.diff(edges) / 2
            points = ((edges[1:] + edges[:-1]) / 2 + half * _CHEBYSHEV_NODES[:, None]).ravel()
            values = np.asarray(function(points))
            coefficients = _FROM_VALUES @ values.reshape(*values.shape[:-1], _DEGREE + 1, -1)
            size = np.abs(coefficients).max(axis=(-2, -1))
            last = np.abs(coefficients[..., -2:, :]).max(axis=(-2, -1))
            self.error = float((last / np.where(size > 0, size, 1.0)).max())
            if self.error <= tolerance or 2 * len(edges) > _MOST_CELLS or halvings == _HALVINGS - 1:
                break
            edges = np.sort(np.concatenate([edges, (edges[1:] + edges[:-1]) / 2]))
        self._edges = edges
        self._centres = (edges[1:] + edges[:-1]) / 2
        self._scales = 2 / np.diff(edges)
        # (degrees, ..., cells)
        self._monomials = np.ascontiguousarray(np.moveaxis(_TO_MONOMIALS @ coefficients, -2, 0))
        spacing = np.diff(edges)
        self._spacing = float(spacing[0]) if np.ptp(spacing) < 1e-9 * spacing[0] else None

    def __call__(self, s: Array) -> Array:
        """Values (..., *points); s must lie between the outermost edges."""
        if self._spacing is not None:
            cell = ((s - self._edges[0]) / self._spacing).astype(np.intp)
        else:
            cell = np.searchsorted(self._edges, s, side="right") - 1
        cell = np.clip(cell, 0, len(self._centres) - 1)
        t = (s - self._centres[cell]) * self._scales[cell]
        value = self._monomials[_DEGREE].take(cell, axis=-1)
        for k in range(_DEGREE - 1, -1, -1):
            value *= t
            value += self._monomials[k].take(cell, axis=-1)
        return np.asarray(value)


class Smoothed:
    """``h(s) = E f(s + width x)`` on ``[-reach, reach]``: smooth, with the kinks of f smeared over the width.

    A piecewise polynomial table. Integrating the last variable of a product out into one turns an expectation over
    four inputs into one over three variables, and one over three inputs into one over two.

    ``error`` estimates how far the table is from h, as a share of the largest |h|.
    """

    def __init__(self, functions: Piecewise, width: float, reach: float, tolerance: float) -> None:
        self.strip = math.hypot(functions.strip, width)
        self.kinks = functions.kinks
        self.blur = width
        self.reach = reach

        # Equal cells for smooth functions; near a kink cells of half the width, then growing geometrically.
        size = min(0.5, max(self.strip / 6, reach / 2000))
        edges = np.linspace(-reach, reach, 2 * math.ceil(reach / size) + 1)
        if functions.kinks:
            near = width * np.arange(0, 8.5, 0.5)
            far = 8 * width * 2.0 ** np.arange(1, 1 + max(0, math.ceil(math.log2(1 / (8 * width)))))
            offsets = np.concatenate([near, far])
            edges = np.concatenate(
                [edges, *(k + sign * offsets for k in functions.kinks for sign in (-1, 1))]
            )
            edges = np.unique(np.clip(edges, -reach, reach))
            edges = edges[np.concatenate([[True], np.diff(edges) > 1e-13 * reach])]
        self._table = Table(
            partial(_smoothed_values, functions, width, 0.05 * tolerance), edges, 0.1 * tolerance
        )
        self.error = self._table.error

    def __call__(self, s: Array) -> Array:
        """Values of h (functions, ...); s must lie within the table."""
        return self._table(s)


def _smoothed_values(functions: Piecewise, width: float, tolerance: float, points: Array) -> Array:
    """E f(point + width x) for many points and one width: (functions, points). One layout, no estimate."""
    radius = nested_radius(tolerance) + _RIND
    rule = _Nested((functions,), np.array([[[width]]]), radius, nodes_for(tolerance))
    return rule.integrate(np.zeros(len(points), dtype=np.intp), points[:, None], 0).T
