"""A stack of Gaussians on which products of factors are integrated, each by the rule that suits it.

Closed forms come first, and delta functions are taken out exactly; what is left goes to grids or panels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrain.gaussian.closed_forms import Closed, closed_form
from foretrain.gaussian.covariance import Staircase, condition, staircase
from foretrain.gaussian.factors import Delta, Factor, values_of
from foretrain.gaussian.grids import grid_expectation
from foretrain.gaussian.orthant import piecewise_polynomial_moments
from foretrain.gaussian.panels import (
    Piecewise,
    Smoothed,
    Together,
    nested_expectation,
    panel_rule,
    regular_edges,
)
from foretrain.support.errors import NotSupportedError
from foretrain.support.user_warnings import warn_user

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

TINY = 1e-300
_TABLE_RADIUS = 12.0


class Products(tuple[tuple[Factor, ...], ...]):
    """Products of the same number of factors, one for each input; their hash is computed once."""

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return super().__hash__()


def sizes_of(factors: Sequence[Factor], variance: Array, mean: Array) -> Array:
    """sqrt(<f^2>) of every factor at variances and means of any one shape: (factors, ...).

    To a few digits, since it only sets the scale that errors of products are relative to.
    """
    distinct, where = np.unique(variance.ravel() + 1j * mean.ravel(), return_inverse=True)
    values, weights = _on_panels(factors, distinct.imag, np.sqrt(np.maximum(distinct.real, 0.0)), 12.0, 8)
    sizes = np.sqrt(np.einsum("fbm,fbm,bm->fb", values, values, weights))
    return np.asarray(sizes[:, where.ravel()].reshape(-1, *variance.shape))


def lines(factors: Sequence[Factor], mean: Array, deviation: Array, scale: Array) -> tuple[Array, Array]:
    """``E f(mean + deviation x)`` of many functions (F, B) of one input each to all digits, on the same points.

    The finer rule also reaches farther: the difference counts what the coarser one cuts off.
    """
    fine, coarse = (
        np.einsum("fbm,bm->fb", values, weights)
        for values, weights in (
            _on_panels(factors, mean, deviation, *rule) for rule in ((12.5, 16), (11.0, 13))
        )
    )
    return fine, np.abs(fine - coarse) + 4e-15 * np.maximum(np.abs(fine), scale)


def _on_panels(
    factors: Sequence[Factor], mean: Array, deviation: Array, radius: float, nodes: int
) -> tuple[Array, Array]:
    """Values (F, B, M) of factors at mean + deviation x on panels that end at kinks, and the weights (B, M)."""
    strip = min(f.strip for f in factors)
    base = regular_edges(strip / max(float(deviation.max(initial=0.0)), TINY), radius)
    kinks = np.array(sorted({location for f in factors for location in f.kinks}))
    with np.errstate(divide="ignore", invalid="ignore"):
        breaks = np.nan_to_num(np.clip((kinks - mean[:, None]) / deviation[:, None], -radius, radius))
    edges = np.concatenate([np.broadcast_to(base, (len(deviation), len(base))), breaks], axis=1)
    x, weights = panel_rule(np.sort(edges, axis=1), nodes)
    return values_of(factors, mean[:, None] + deviation[:, None] * x), weights


def integrate(
    kinds: Sequence[tuple[Factor, ...]],
    which: Indices,
    lower: Array,
    mean: Array,
    scale: Array,
    tolerance: float,
) -> tuple[Array, Array]:
    """Expectations and errors (P, B) of products at ``z = mean + lower x``, lower (B, n, r), x standard normal.

    Product p has factor ``which[p, i]`` of ``kinds[i]`` at input i. Nested panels over the independent variables, of
    which the last one of three or four inputs is integrated into tables first.
    """
    functions = [Together(options) for options in kinds]
    if lower.shape[2] < 3 or lower.shape[2] != len(kinds):
        return nested_expectation(functions, which, lower, mean, scale, tolerance)
    value, error = np.empty(scale.shape), np.empty(scale.shape)
    for b in range(len(lower)):
        before = float(np.sqrt((lower[b, -1, :-1] ** 2).sum()))
        reach = _TABLE_RADIUS * before + abs(float(mean[b, -1])) + 1e-6
        last = Smoothed(functions[-1], float(lower[b, -1, -1]), reach, tolerance)
        item, reduced = slice(b, b + 1), list[Piecewise]([*functions[:-1], last])
        value[:, item], error[:, item] = nested_expectation(
            reduced,
            which,
            lower[item, :, :-1],
            mean[item],
            scale[:, item],
            tolerance,
            most_radius=_TABLE_RADIUS,
        )
        error[:, b] += last.error * scale[:, b]
    return value, error


WIDEST = 1e4
"""The largest variance that quadrature takes on."""


class Sorted(NamedTuple):
    """Products seen together: what they consist of, and by which rules they go."""

    factors: tuple[Factor, ...]
    which: Indices  # (P, n), places in ``factors``
    kinds: list[tuple[Factor, ...]]  # the factors that occur at every input
    own: Indices  # (P, n), places in ``kinds``
    pointwise: Products  # the same without delta functions
    smooth: list[int]  # of these, those of factors without kinks
    kinked: list[int]  # those of factors that vary, some with kinks
    singular: list[int]  # those of both that had delta functions
    closed: list[int]  # those of both that have a closed form where the mean is zero
    pieces: list[int]  # of these, those of piecewise polynomials at more than two inputs
    odd: list[int]  # those of both that vanish by symmetry


@lru_cache(maxsize=256)
def sort(products: Products) -> Sorted:
    """The products, sorted; kept, since a flow asks for the same at every layer."""
    factors = dict.fromkeys(f for row in products for f in row)
    place = {f: k for k, f in enumerate(factors)}
    which = np.array([[place[f] for f in row] for row in products], dtype=np.intp)
    columns = [np.unique(column, return_inverse=True) for column in which.T]
    known = list(factors)
    plain = [k for k, row in enumerate(products) if not any(f.is_infinite for f in row)]
    smooth = [k for k in plain if not any(f.kinks for f in products[k])]
    kinked = [k for k in plain if k not in smooth and not any(f.is_constant for f in products[k])]
    inputs = len(products[0])
    pointwise = Products(tuple(f.pointwise() if f.is_singular else f for f in row) for row in products)
    return Sorted(
        factors=tuple(known),
        which=which,
        kinds=[tuple(known[k] for k in kept) for kept, _ in columns],
        own=np.stack([places for _, places in columns], axis=1),
        pointwise=pointwise,
        smooth=smooth,
        kinked=kinked,
        singular=[k for k in kinked if any(f.is_singular for f in products[k])],
        closed=[k for k in plain if closed_form(pointwise[k], np.eye(inputs)[None], np.zeros((1, inputs)))],
        pieces=[
            k for k in plain if inputs > 2 and all(f.pieces and not f.is_polynomial for f in pointwise[k])
        ],
        odd=[k for k in plain if np.prod([f.parity for f in products[k]]) == -1],
    )


class Stack:
    """A stack of Gaussians (K (B, n, n), mean (B, n)) on which products of factors are integrated."""

    def __init__(
        self, K: Array, mean: Array, tolerance: float, sizes: Mapping[Factor, Array] | None = None
    ) -> None:
        self.K, self.mean, self.tolerance = K, mean, tolerance
        self.rules: set[str] = set()
        self._sizes: dict[Factor, Array] = {
            **(sizes or {})
        }  # :func:`sizes_of` factors at every input, if known
        self._scales: dict[Products, Array] = {}

    def totals(self, products: Products) -> tuple[Array, Array]:
        """The expectations (P, B) of several products, delta functions apart on the same points."""
        value, error = np.zeros((2, len(products), len(self.K)))
        moving = (self._variance > TINY).all(axis=1)
        if moving.any() and not moving.all():
            for items in (np.flatnonzero(moving), np.flatnonzero(~moving)):
                part = self._part(items, np.arange(self.K.shape[1]))
                value[:, items], error[:, items] = part.totals(products)
                self.rules |= part.rules
            return value, error
        kinds = sort(products)
        together = {*kinds.smooth, *kinds.kinked} if moving.all() else set()
        for k in {*range(len(products))} - together:
            value[k], error[k] = self.total(list(products[k]))
        if not self.mean.any():
            together -= {*kinds.odd}
        rows = [k for k in kinds.pieces if k in together] if not self.mean.any() else []
        if rows:
            pieces = [[f.pieces for f in kinds.pointwise[k] if f.pieces is not None] for k in rows]
            value[rows], error[rows] = piecewise_polynomial_moments(pieces, self.K)
            self.rules.add("closed form")
            together -= {*rows}
        for k in together & {*kinds.closed}:
            known = self._known(kinds.pointwise[k])
            if known is not None:
                value[k], error[k] = known
                together.remove(k)
        for group in (kinds.smooth, kinds.kinked):
            rows = [k for k in group if k in together]
            if rows:
                value[rows], error[rows] = self._quadrature(Products(kinds.pointwise[k] for k in rows))
        for k in kinds.singular if moving.all() else ():
            more, doubt = self._singular(products[k])
            value[k], error[k] = value[k] + more, error[k] + doubt
        return value, error

    def total(self, factors: list[Factor]) -> tuple[Array, Array]:
        """The expectation including delta functions: pointwise part and singular part of each factor in turn."""
        if any(f.is_infinite for f in factors):
            if len(factors) > 1:
                raise NotSupportedError(
                    f"{factors} holds the square of a delta function, whose expectation is infinite."
                )
            return np.full(len(self.K), np.inf), np.zeros(len(self.K))
        value, error = self.regular([f.pointwise() if f.is_singular else f for f in factors])
        more, doubt = self._singular(factors)
        return value + more, error + doubt

    def _singular(self, factors: Sequence[Factor]) -> tuple[Array, Array]:
        """What the delta functions of each factor in turn contribute, those of the factors before it taken out."""
        value, error = np.zeros(len(self.K)), np.zeros(len(self.K))
        left = list(factors)
        for i, f in enumerate(factors):
            for delta in f.deltas:
                more, doubt = self._with_delta(left, i, delta)
                value, error = value + more, error + doubt
            left[i] = f.pointwise() if f.is_singular else f
        return value, error

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
        fixed = (self._variance <= TINY) | np.array([f.is_constant for f in factors])
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
            value, error = part._quadrature(Products([tuple(factors)]))
            known = Closed(value[0], error[0])
        self.rules |= part.rules
        return known

    def _part(self, items: Indices, rows: Indices) -> Stack:
        """Some of the Gaussians, for some of their inputs."""
        return Stack(self.K[np.ix_(items, rows, rows)], self.mean[np.ix_(items, rows)], self.tolerance)

    def _known(self, factors: Sequence[Factor]) -> Closed | None:
        """What needs no quadrature: zero by symmetry, or a closed form."""
        if not self.mean.any() and np.prod([f.parity for f in factors]) == -1:
            return Closed(np.zeros(len(self.K)), np.zeros(len(self.K)))
        closed = closed_form(factors, self.K, self.mean)
        if closed is not None:
            self.rules.add("closed form")
        return closed

    def _quadrature(self, products: Products) -> tuple[Array, Array]:
        """Values and errors (P, B) of products that are all smooth, or all kinked.

        Those of smooth factors on shared grids; those with kinks, and what grids miss, on shared panels.
        """
        if self._variance.max(initial=0.0) > WIDEST:
            raise too_wide(products[0])
        scale = self.scales(products)
        value, error = np.zeros_like(scale), np.where(scale > 0, np.inf, 0.0)
        kinked = any(f.kinks for f in sort(products).factors)
        if kinked and self.K.shape[1] == 1 and len(products) > 1:
            factors = [f for (f,) in products]
            value, error = lines(factors, self.mean[:, 0], np.sqrt(self._variance[:, 0]), scale)
            self.rules.add("panels")
        elif not kinked:
            alive = np.flatnonzero((scale > 0).all(axis=0))
            value[:, alive], error[:, alive] = self._on_grids(products, alive, scale[:, alive])
        missed = error > self.tolerance * scale
        rows = np.flatnonzero(missed.any(axis=1))
        fewer = [k for k in rows if any(f.is_constant for f in products[k])]
        for k in fewer:
            items = np.flatnonzero(missed[k])
            part = self._part(items, np.arange(self.K.shape[1]))
            value[k, items], error[k, items] = part.regular([*products[k]])
        rows = np.setdiff1d(rows, fewer)
        if rows.size:
            places = np.ix_(rows, np.flatnonzero(missed[rows].any(axis=0)))
            some = Products(products[k] for k in rows)
            value[places], error[places] = self._directly(some, places[1][0], scale[places])
        return value, error

    def _on_grids(self, products: Products, items: Indices, scale: Array) -> tuple[Array, Array]:
        """Products of smooth factors, on grids that they share."""
        known, order = sort(products), self._staircase.order[items]
        found = grid_expectation(
            known.factors,
            known.which[:, order].transpose(1, 0, 2),
            self._staircase.factor[items],
            np.take_along_axis(self.mean[items], order, axis=1),
            scale.T,
            self.tolerance,
        )
        value, error = (each.T for each in found)
        if (error <= self.tolerance * scale).any():
            self.rules.add("grids")
        return value, error

    def _directly(self, products: Products, items: Indices, scale: Array) -> tuple[Array, Array]:
        """Products with kinks, or one that is smooth, by the rule for their factors."""
        value, error = np.zeros_like(scale), np.zeros_like(scale)
        kinds, own = sort(products).kinds, sort(products).own
        order, rank = self._staircase.order[items], self._staircase.rank[items]
        self.rules.add("panels")
        for row, places in _groups(np.concatenate([order, rank[:, None]], axis=1)):
            inputs, chosen = row[:-1], items[places]
            value[:, places], error[:, places] = integrate(
                [kinds[i] for i in inputs],
                own[:, inputs],
                self._staircase.factor[chosen][:, :, : row[-1]],
                self.mean[chosen][:, inputs],
                scale[:, places],
                self.tolerance,
            )
        return value, error

    @cached_property
    def _staircase(self) -> Staircase:
        return staircase(self.K)

    def warn_if_short(
        self, products: Products, value: Array, error: Array, tolerance: float | None = None
    ) -> None:
        """Warn where quadrature (values and errors (P, B)) missed the tolerance."""
        if not self.rules - {"closed form"}:
            return
        # A delta function has no square to set a scale by; there the value itself does, or one.
        square = self.scales(products)
        scale = np.maximum(np.where(square > 0, square, 1.0), np.abs(value))
        with np.errstate(invalid="ignore"):
            relative = np.where(np.isfinite(value) & np.isfinite(error), error / scale, 0.0).max(axis=1)
        for k in np.flatnonzero(relative > 1.5 * (tolerance or self.tolerance)):
            warn_user(
                f"the expectation of {[*products[k]]} reached only a relative error of {relative[k]:.1e}; "
                "the estimate is returned with it."
            )

    def scales(self, products: Products) -> Array:
        """sqrt(prod <f_i^2>) of every product (P, B), to which errors are relative."""
        if products not in self._scales:
            known = sort(products)
            missing = [f for f in known.factors if f not in self._sizes]
            if missing:
                self._sizes |= zip(missing, sizes_of(missing, self._variance, self.mean), strict=True)
            sizes = np.stack([self._sizes[f] for f in known.factors])
            parts = [sizes[column, :, i] for i, column in enumerate(known.which.T)]
            self._scales[products] = np.prod(parts, axis=0)
        return self._scales[products]

    @cached_property
    def _variance(self) -> Array:
        """(B, n)."""
        return np.diagonal(self.K, axis1=1, axis2=2)


def too_wide(factors: Sequence[Factor]) -> NotSupportedError:
    """The refusal of a variance that no rule resolves."""
    return NotSupportedError(
        f"{[*factors]} has no closed form, and no rule resolves variances above {WIDEST:g}: rescale the inputs."
    )


def _groups(rows: NDArray[Any]) -> Iterator[tuple[NDArray[Any], Indices]]:
    """Equal rows, and where they are."""
    for row in np.unique(rows, axis=0):
        yield row, np.flatnonzero((rows == row).all(axis=1))
