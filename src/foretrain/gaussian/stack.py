"""A stack of Gaussians on which products of factors are integrated, delta functions taken out exactly first."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrain.gaussian.closed import Closed, closed_form
from foretrain.gaussian.covariance import condition, staircase
from foretrain.gaussian.factors import Delta, Factor
from foretrain.gaussian.quadrature import TINY, kinked_rule, rule_for, scale_of
from foretrain.support.errors import AccuracyWarning, NotSupportedError

Array = NDArray[np.float64]

WIDEST = 1e4
"""The largest variance that quadrature takes on."""


class Stack:
    """A stack of Gaussians (K (B, n, n), mean (B, n)) on which products of factors are integrated."""

    def __init__(self, K: Array, mean: Array, tolerance: float) -> None:
        self.K, self.mean, self.tolerance = K, mean, tolerance
        self.rules: set[str] = set()

    def total(self, factors: list[Factor]) -> tuple[Array, Array]:
        """The expectation including delta functions: pointwise part and singular part of each factor in turn."""
        if any(f.is_infinite for f in factors):
            return self._infinite(factors)
        for i, f in enumerate(factors):
            if f.deltas:
                value, error = self.total([*factors[:i], f.pointwise(), *factors[i + 1 :]])
                for delta in f.deltas:
                    more, doubt = self._with_delta(factors, i, delta)
                    value, error = value + more, error + doubt
                return value, error
        return self.regular(factors)

    def _infinite(self, factors: list[Factor]) -> tuple[Array, Array]:
        if len(factors) > 1:
            raise NotSupportedError(
                f"{factors} holds the square of a delta function, whose expectation is infinite."
            )
        return np.full(len(self.K), np.inf), np.zeros(len(self.K))

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

    def _moving(self, factors: list[Factor], items: NDArray[np.intp], rows: NDArray[np.intp]) -> Closed:
        K = self.K[np.ix_(items, rows, rows)]
        mean = self.mean[np.ix_(items, rows)]
        if not mean.any() and np.prod([f.parity for f in factors]) == -1:
            return Closed(np.zeros(len(K)), np.zeros(len(K)))
        closed = closed_form(factors, K, mean)
        if closed is not None:
            self.rules.add("closed form")
            return closed
        if np.diagonal(K, axis1=1, axis2=2).max(initial=0.0) > WIDEST:
            raise too_wide(factors)
        scale = scale_of(factors, K, mean, self.tolerance)
        value, error = np.zeros(len(K)), np.zeros(len(K))
        alive = np.flatnonzero(scale > 0)
        steps = staircase(K[alive])
        for (order, rank), members in _orders(steps.order, steps.rank):
            chosen = alive[members]
            lower = steps.factor[members][:, :, :rank]
            permuted = [factors[i] for i in order]
            centre = mean[chosen][:, list(order)]
            rule = rule_for(permuted)
            self.rules.add("panels" if rule is kinked_rule else "lattice")
            value[chosen], error[chosen] = rule(permuted, lower, centre, scale[chosen], self.tolerance)
        return Closed(value, error)

    def warn_if_short(self, factors: list[Factor], value: Array, error: Array) -> None:
        """Warn where quadrature missed the tolerance."""
        finite = np.isfinite(value) & np.isfinite(error)
        if not self.rules - {"closed form"} or not finite.any():
            return
        # A delta function has no square to set a scale by; there the value itself does, or one.
        square = self.scale(factors)
        scale = np.maximum(np.where(square > 0, square, 1.0), np.abs(value))
        if (error > 1.5 * self.tolerance * scale)[finite].any():
            warnings.warn(
                f"the expectation of {factors} reached only an error of {error[finite].max():.1e}; "
                "the estimate is returned with it.",
                AccuracyWarning,
                stacklevel=4,
            )

    def scale(self, factors: list[Factor]) -> Array:
        """sqrt(prod <f_i^2>), to which errors are relative."""
        return scale_of(factors, self.K, self.mean, self.tolerance)


def too_wide(factors: list[Factor]) -> NotSupportedError:
    """The refusal of a variance that no rule resolves."""
    return NotSupportedError(
        f"{factors} has no closed form, and no rule resolves variances above {WIDEST:g}: rescale the inputs."
    )


def _groups(patterns: NDArray[np.bool_]) -> Iterator[tuple[NDArray[np.bool_], NDArray[np.intp]]]:
    for pattern in np.unique(patterns, axis=0):
        yield pattern, np.flatnonzero((patterns == pattern).all(axis=1))


def _orders(
    order: NDArray[np.intp], rank: NDArray[np.intp]
) -> Iterator[tuple[tuple[tuple[int, ...], int], NDArray[np.intp]]]:
    both = np.concatenate([order, rank[:, None]], axis=1)
    for row in np.unique(both, axis=0):
        yield (tuple(int(i) for i in row[:-1]), int(row[-1])), np.flatnonzero((both == row).all(axis=1))
