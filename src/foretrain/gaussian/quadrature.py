"""A stack of Gaussians on which products of factors are integrated, each by the rule that suits it.

Closed forms come first, and delta functions are taken out exactly; what is left goes to grids, lattices or panels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrain.gaussian.closed_forms import Closed, closed_form
from foretrain.gaussian.covariance import Staircase, condition, staircase
from foretrain.gaussian.factors import Delta, Factor
from foretrain.gaussian.grids import grid_expectation
from foretrain.gaussian.lattice import first_steps, lattice_expectation
from foretrain.gaussian.panels import Piecewise, SmoothedFactor, line_expectation, nested_expectation
from foretrain.support.errors import NotSupportedError
from foretrain.support.user_warnings import warn_user

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

TINY = 1e-300
_TABLE_RADIUS = 12.0


def sizes_of(f: Factor, variance: Array, mean: Array, tolerance: float) -> Array:
    """sqrt(<f^2>) at variances and means of any one shape: errors of products are relative to theirs."""
    pairs = np.stack([variance.ravel(), mean.ravel()], axis=1)
    distinct, where = np.unique(pairs, axis=0, return_inverse=True)
    spreads, centres = distinct.T
    # <f^2> to a few digits: it only sets the scale.
    loose, squared, moving = max(tolerance, 1e-6), f * f, spreads > TINY
    square = squared.mean_value(centres)
    if moving.any() and not f.is_constant:
        square[moving] = line(squared, centres[moving], np.sqrt(spreads[moving]), loose)[0]
    return np.asarray(np.sqrt(np.maximum(square, 0.0))[where.ravel()].reshape(variance.shape))


def line(f: Factor, mean: Array, deviation: Array, tolerance: float) -> tuple[Array, Array]:
    """``E f(mean + deviation x)`` of one input for vectors of means and positive deviations."""
    closed = closed_form([f], (deviation**2)[:, None, None], mean[:, None])
    if closed is not None:
        return closed.value, closed.error
    if f.kinks:
        return line_expectation(f, mean, deviation, _sizes(f, mean, deviation), tolerance)

    def integrand(x: Array, items: NDArray[np.intp]) -> Array:
        return np.asarray(f(mean[items, None] + deviation[items, None] * x[:, 0]))

    steps = first_steps((f.strip / deviation)[:, None], tolerance)
    sizes = _sizes(f, mean, deviation)
    return lattice_expectation(integrand, steps, sizes, tolerance, verify=f.is_unproven)


def _sizes(f: Factor, mean: Array, deviation: Array) -> Array:
    """The size of f within about a deviation: enough to be relative to."""
    points = mean[:, None] + deviation[:, None] * np.array([-1.0, 0.3, 1.0])
    return np.asarray(np.maximum(np.abs(f(points)).max(axis=1), TINY))


def are_smooth(factors: Sequence[Factor]) -> bool:
    """Whether every factor varies and has no kinks."""
    return not any(f.kinks or f.is_constant for f in factors)


def integrate(
    factors: list[Factor], lower: Array, mean: Array, scale: Array, tolerance: float
) -> tuple[Array, Array]:
    """Expectations and errors (B,) of a product at ``z = mean + lower x``, lower (B, n, r), x standard normal.

    Lattices over the independent variables, or nested panels where there are kinks. The last variable of three or
    four inputs is integrated into a table first.
    """
    rule = nested_expectation if any(f.kinks for f in factors) else _on_lattice
    if lower.shape[2] < 3 or lower.shape[2] != len(factors):
        return rule(factors, lower, mean, scale, tolerance)
    value, error = np.empty(len(lower)), np.empty(len(lower))
    for b in range(len(lower)):
        before = float(np.sqrt((lower[b, -1, :-1] ** 2).sum()))
        reach = _TABLE_RADIUS * before + abs(float(mean[b, -1])) + 1e-6
        last = SmoothedFactor(factors[-1], float(lower[b, -1, -1]), reach, tolerance)
        item, reduced = slice(b, b + 1), list[Piecewise]([*factors[:-1], last])
        value[item], error[item] = rule(
            reduced, lower[item, :, :-1], mean[item], scale[item], tolerance, most_radius=_TABLE_RADIUS
        )
        error[b] += last.error * scale[b]
    return value, error


def _on_lattice(
    factors: Sequence[Piecewise],
    lower: Array,
    mean: Array,
    scale: Array,
    tolerance: float,
    most_radius: float = 38.0,
) -> tuple[Array, Array]:
    # In each variable as fine as the input that varies most with it needs.
    strips = np.array([f.strip for f in factors])[None, :, None]
    steps = first_steps((strips / np.maximum(np.abs(lower), TINY)).min(axis=1), tolerance)

    def integrand(x: Array, items: Indices) -> Array:
        """The product of the factors at every item and point: (B, Q)."""
        result: Array | None = None
        for i, f in enumerate(factors):
            row, centre = lower[items, i, :], mean[items, i, None]
            used = np.flatnonzero(row.any(axis=0))
            inputs = row[:, used] @ x[:, used].T
            values = f(inputs + centre if centre.any() else inputs)
            result = values if result is None else np.multiply(result, values, out=result)
        assert result is not None
        return result

    doubtful = any(f.is_unproven for f in factors)
    return lattice_expectation(integrand, steps, scale, tolerance, verify=doubtful, most_radius=most_radius)


WIDEST = 1e4
"""The largest variance that quadrature takes on."""


class Stack:
    """A stack of Gaussians (K (B, n, n), mean (B, n)) on which products of factors are integrated."""

    def __init__(self, K: Array, mean: Array, tolerance: float) -> None:
        self.K, self.mean, self.tolerance = K, mean, tolerance
        self.rules: set[str] = set()
        self._sizes: dict[Factor, Array] = {}

    def totals(self, products: list[list[Factor]]) -> tuple[Array, Array]:
        """The expectations (P, B) of several products, those of smooth factors on the same points."""
        value, error = np.empty((2, len(products), len(self.K)))
        moving = (np.diagonal(self.K, axis1=1, axis2=2) > TINY).all(axis=1)
        if moving.any() and not moving.all():
            for items in (np.flatnonzero(moving), np.flatnonzero(~moving)):
                part = self._part(items, np.arange(self.K.shape[1]))
                value[:, items], error[:, items] = part.totals(products)
                self.rules |= part.rules
            return value, error
        left = []
        for k, factors in enumerate(products):
            if not moving.all() or not are_smooth(factors):
                value[k], error[k] = self.total(factors)
            elif (known := self._known(factors)) is not None:
                value[k], error[k] = known
            else:
                left.append(k)
        if left:
            value[left], error[left] = self._quadrature([products[k] for k in left])
        return value, error

    def total(self, factors: list[Factor]) -> tuple[Array, Array]:
        """The expectation including delta functions: pointwise part and singular part of each factor in turn."""
        if any(f.is_infinite for f in factors):
            if len(factors) > 1:
                raise NotSupportedError(
                    f"{factors} holds the square of a delta function, whose expectation is infinite."
                )
            return np.full(len(self.K), np.inf), np.zeros(len(self.K))
        for i, f in enumerate(factors):
            if f.deltas:
                value, error = self.total([*factors[:i], f.pointwise(), *factors[i + 1 :]])
                for delta in f.deltas:
                    more, doubt = self._with_delta(factors, i, delta)
                    value, error = value + more, error + doubt
                return value, error
        return self.regular(factors)

    def _with_delta(self, factors: list[Factor], i: int, delta: Delta) -> tuple[Array, Array]:
        """Expectation with factor i replaced by ``delta``; derivatives of delta go by parts to all the rest.

        With c the location, E[delta^(k) R G] = -E[delta^(k-1) (R' - R (z-m)/K_ii) G]
        - sum_j K_ij/K_ii E[delta^(k-1) R d_j G], and (z-m) delta^(k) = (c-m) delta^(k) - k delta^(k-1).
        """
        if delta.order == 0:
            return self._given(factors, i, delta)
        variance = np.where(self.K[:, i, i] > 0, self.K[:, i, i], np.nan)
        lower = replace(delta, order=delta.order - 1)
        parts: list[tuple[Any, list[Factor], Delta]] = [
            (-1.0, factors, replace(lower, rest=slope)) for slope in delta.rest.derivative()
        ]
        parts.append(((delta.location - self.mean[:, i]) / variance, factors, lower))
        if lower.order:
            parts.append((-lower.order / variance, factors, replace(lower, order=lower.order - 1)))
        for j in (j for j in range(len(factors)) if j != i):
            for slope in factors[j].derivative():
                changed = [*factors[:j], slope, *factors[j + 1 :]]
                parts.append((-self.K[:, i, j] / variance, changed, lower))
        value, error = np.zeros(len(self.K)), np.zeros(len(self.K))
        for weight, remaining, part in parts:
            more, doubt = self._with_delta(remaining, i, part)
            value += weight * more
            error += np.abs(weight) * doubt
        return value, error

    def _given(self, factors: list[Factor], i: int, delta: Delta) -> tuple[Array, Array]:
        """``E[delta(z_i - c) ...]``: the density of z_i at c times the expectation given z_i = c."""
        variance, offset = self.K[:, i, i], delta.location - self.mean[:, i]
        with np.errstate(divide="ignore", invalid="ignore"):
            density = np.exp(-0.5 * offset**2 / variance) / np.sqrt(2 * np.pi * variance)
            density = np.where(variance > 0, density, np.where(offset == 0, np.inf, 0.0))
            slope = np.where(variance[:, None] > 0, self.K[:, :, i] / variance[:, None], 0.0)
        weight = delta.weight * float(delta.rest.mean_value(np.array([delta.location]))[0])
        others = [j for j in range(len(factors)) if j != i]
        if weight == 0 or not others:
            value = weight * density if weight else np.zeros(len(self.K))
            return value, 4e-16 * np.abs(value)
        shifted = (self.mean + slope * offset[:, None])[:, others]
        given = Stack(condition(self.K, i), shifted, self.tolerance)
        value, error = given.total([factors[j] for j in others])
        self.rules |= given.rules
        with np.errstate(invalid="ignore"):
            value, error = weight * density * value, abs(weight) * density * error
        # An infinite density at a point where the rest vanishes contributes nothing.
        return np.where(np.isnan(value), 0.0, value), np.where(np.isnan(error), 0.0, error)

    def regular(self, factors: list[Factor]) -> tuple[Array, Array]:
        """The expectation of the pointwise product (no delta functions)."""
        value, error = np.zeros(len(self.K)), np.zeros(len(self.K))
        fixed = (np.diagonal(self.K, axis1=1, axis2=2) <= TINY) | np.array([f.is_constant for f in factors])
        for pattern, items in _groups(fixed):
            weight = np.ones(len(items))
            for i in np.flatnonzero(pattern):
                weight = weight * factors[i].mean_value(self.mean[items, i])
            moving = np.flatnonzero(~pattern)
            inner = self._moving([factors[i] for i in moving], items, moving) if moving.size else None
            value[items] = weight if inner is None else weight * inner.value
            error[items] = 0.0 if inner is None else np.abs(weight) * inner.error
        return value, error

    def _moving(self, factors: list[Factor], items: Indices, rows: Indices) -> Closed:
        whole = len(items) == len(self.K) and len(rows) == self.K.shape[1]
        part = self if whole else self._part(items, rows)
        known = part._known(factors)
        if known is None:
            value, error = part._quadrature([factors])
            known = Closed(value[0], error[0])
        self.rules |= part.rules
        return known

    def _part(self, items: Indices, rows: Indices) -> Stack:
        """Some of the Gaussians, for some of their inputs."""
        return Stack(self.K[np.ix_(items, rows, rows)], self.mean[np.ix_(items, rows)], self.tolerance)

    def _known(self, factors: list[Factor]) -> Closed | None:
        """What needs no quadrature: zero by symmetry, or a closed form."""
        if not self.mean.any() and np.prod([f.parity for f in factors]) == -1:
            return Closed(np.zeros(len(self.K)), np.zeros(len(self.K)))
        closed = closed_form(factors, self.K, self.mean)
        if closed is not None:
            self.rules.add("closed form")
        return closed

    def _quadrature(self, products: list[list[Factor]]) -> tuple[Array, Array]:
        """Values and errors (P, B): smooth ones on shared grids, the rest, and what those miss, one by one."""
        if np.diagonal(self.K, axis1=1, axis2=2).max(initial=0.0) > WIDEST:
            raise too_wide(products[0])
        scale = np.stack([self.scale(factors) for factors in products])
        value, error = np.zeros_like(scale), np.where(scale > 0, np.inf, 0.0)
        if are_smooth(products[0]) and (len(products) > 1 or self.K.shape[1] > 2):
            alive = np.flatnonzero((scale > 0).all(axis=0))
            value[:, alive], error[:, alive] = self._on_grids(products, alive, scale[:, alive])
        for k, factors in enumerate(products):
            missed = np.flatnonzero(error[k] > self.tolerance * scale[k])
            value[k, missed], error[k, missed] = self._one_by_one(factors, missed, scale[k, missed])
        return value, error

    def _on_grids(self, products: list[list[Factor]], items: Indices, scale: Array) -> tuple[Array, Array]:
        """Products of smooth factors: items whose inputs have the same factors in pivoted order share grids."""
        kinds = [tuple(dict.fromkeys(column)) for column in zip(*products, strict=True)]
        which = np.array([[kinds[i].index(f) for i, f in enumerate(factors)] for factors in products])
        value, error = np.empty_like(scale), np.empty_like(scale)
        order = self._staircase.order[items]
        of_kind = np.array([kinds.index(options) for options in kinds])[order]
        for row, places in _groups(of_kind):
            chosen = items[places]
            value[:, places], error[:, places] = (
                found.T
                for found in grid_expectation(
                    [kinds[i] for i in row],
                    which[:, order[places]].transpose(1, 0, 2),
                    self._staircase.factor[chosen],
                    np.take_along_axis(self.mean[chosen], order[places], axis=1),
                    scale[:, places].T,
                    self.tolerance,
                )
            )
        if (error <= self.tolerance * scale).any():
            self.rules.add("grids")
        return value, error

    def _one_by_one(self, factors: list[Factor], items: Indices, scale: Array) -> tuple[Array, Array]:
        """One product, by the rule for its factors."""
        value, error = np.zeros(len(items)), np.zeros(len(items))
        order, rank = self._staircase.order[items], self._staircase.rank[items]
        for row, places in _groups(np.concatenate([order, rank[:, None]], axis=1)):
            permuted = [factors[i] for i in row[:-1]]
            lower = self._staircase.factor[items[places]][:, :, : row[-1]]
            centre = self.mean[items[places]][:, row[:-1]]
            self.rules.add("panels" if any(f.kinks for f in permuted) else "lattice")
            value[places], error[places] = integrate(permuted, lower, centre, scale[places], self.tolerance)
        return value, error

    @cached_property
    def _staircase(self) -> Staircase:
        return staircase(self.K)

    def warn_if_short(self, factors: list[Factor], value: Array, error: Array) -> None:
        """Warn where quadrature missed the tolerance."""
        finite = np.isfinite(value) & np.isfinite(error)
        if not self.rules - {"closed form"} or not finite.any():
            return
        # A delta function has no square to set a scale by; there the value itself does, or one.
        square = self.scale(factors)
        scale = np.maximum(np.where(square > 0, square, 1.0), np.abs(value))
        relative = float((error / scale)[finite].max())
        if relative > 1.5 * self.tolerance:
            warn_user(
                f"the expectation of {factors} reached only a relative error of {relative:.1e}; "
                "the estimate is returned with it."
            )

    def scale(self, factors: list[Factor]) -> Array:
        """sqrt(prod <f_i^2>), to which errors are relative."""
        return np.asarray(np.prod([self._size(f)[:, i] for i, f in enumerate(factors)], axis=0))

    def _size(self, f: Factor) -> Array:
        """sqrt(<f^2>) at every input (B, n)."""
        if f not in self._sizes:
            variance = np.diagonal(self.K, axis1=1, axis2=2)
            self._sizes[f] = sizes_of(f, variance, self.mean, self.tolerance)
        return self._sizes[f]


def too_wide(factors: list[Factor]) -> NotSupportedError:
    """The refusal of a variance that no rule resolves."""
    return NotSupportedError(
        f"{factors} has no closed form, and no rule resolves variances above {WIDEST:g}: rescale the inputs."
    )


def _groups(rows: NDArray[Any]) -> Iterator[tuple[NDArray[Any], Indices]]:
    """Equal rows, and where they are."""
    for row in np.unique(rows, axis=0):
        yield row, np.flatnonzero((rows == row).all(axis=1))
