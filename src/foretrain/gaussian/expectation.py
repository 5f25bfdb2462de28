"""Expectations of products under a Gaussian: the entry point that chooses the rule.

``expectation([f_1, ..., f_n], K)`` is <f_1(z_1) ... f_n(z_n)>_K (1.68), each f_i any product of activations,
their derivatives and polynomials of z_i. Closed forms come first; smooth products go to lattices, kinked ones
to panels; delta functions of kinked activations are taken out exactly before any rule sees them. K may be
singular: null directions are dropped and nothing is ever inverted.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.gaussian.closed import Closed, closed_form
from foretrain.gaussian.covariance import check_covariance, condition, staircase
from foretrain.gaussian.factors import Delta, Factor, as_factor
from foretrain.gaussian.result import Expectation
from foretrain.gaussian.rules.lattice import first_step, lattice_expectation
from foretrain.gaussian.rules.panels import line_expectation, nested_expectation
from foretrain.gaussian.rules.smoothing import SmoothedFactor
from foretrain.support.errors import AccuracyWarning, InputError, NotSupportedError

Array = NDArray[np.float64]

MOST_INPUTS = 4
_TABLE_RADIUS = 12.0
_TINY = 1e-300


def default_tolerance(inputs: int) -> float:
    """Accuracy relative to sqrt(prod <f_i^2>): 1e-10 for one and two inputs, 1e-8 for three and four."""
    return 1e-10 if inputs <= 2 else 1e-8


def expectation(
    factors: Sequence[Any],
    K: ArrayLike,
    *,
    mean: ArrayLike | None = None,
    tolerance: float | None = None,
) -> Expectation:
    """``<f_1(z_1) ... f_n(z_n)>`` for z normal with covariance K (1 to 4 inputs), with an error estimate.

    Parameters
    ----------
    factors
        One per input: a name, an activation, any callable, ``(activation, derivative order)``, a
        ``numpy.polynomial.Polynomial``, or products of these built with :func:`factor` and :data:`z`.
    K
        Covariance (n, n), or a stack of them (..., n, n). May be singular.
    mean
        Mean of z, zero by default; shape (n,) or (..., n).
    tolerance
        Wanted accuracy relative to sqrt(prod <f_i^2>). Loosen it for speed. A result that misses it comes
        with an :class:`AccuracyWarning`; ``error`` is always an estimate of what was reached.

    Examples
    --------
    >>> expectation(["tanh", "tanh"], [[1, 0.5], [0.5, 1]])
    Expectation(0.186324413194 ± ..., by lattice)
    """
    parts = [as_factor(f) for f in factors]
    if not 1 <= len(parts) <= MOST_INPUTS:
        raise InputError(
            f"a product of {len(parts)} inputs was asked for, but 1 to {MOST_INPUTS} are offered; "
            "for more, use expectation_of, which samples."
        )
    K = check_covariance(K, inputs=len(parts))
    tolerance = check_tolerance(tolerance, default_tolerance(len(parts)))
    shape = K.shape[:-2]
    centre = np.zeros(K.shape[:-1]) if mean is None else _check_mean(mean, K.shape[:-1])
    stack = Stack(K.reshape(-1, len(parts), len(parts)), centre.reshape(-1, len(parts)), tolerance)
    value, error = stack.total(parts)
    _warn_if_short(stack, parts, error, tolerance)
    rule = (
        "closed form" if stack.rules == {"closed form"} else " and ".join(sorted(stack.rules)) or "symmetry"
    )
    return Expectation(value.reshape(shape), error.reshape(shape), rule)


def check_tolerance(tolerance: float | None, default: float) -> float:
    """The tolerance asked for, or the default."""
    if tolerance is None:
        return default
    if not 1e-14 <= tolerance <= 0.1:
        raise InputError(f"the tolerance must lie between 1e-14 and 0.1, but is {tolerance!r}.")
    return float(tolerance)


def _check_mean(mean: ArrayLike, shape: tuple[int, ...]) -> Array:
    try:
        centre = np.broadcast_to(np.asarray(mean, dtype=float), shape)
    except ValueError:
        raise InputError(f"the mean has shape {np.shape(mean)}, but the covariance needs {shape}.") from None
    if not np.isfinite(centre).all():
        raise InputError("the mean has entries that are not finite.")
    return centre.copy()


def _warn_if_short(stack: Stack, parts: list[Factor], error: Array, tolerance: float) -> None:
    finite = np.isfinite(error)
    if not stack.rules - {"closed form"} or not finite.any():
        return
    short = error[finite] - 1.5 * tolerance * stack.scale(parts)[finite]
    if (short > 0).any():
        warnings.warn(
            f"the expectation of {parts} reached only an error of {error[finite].max():.1e}; "
            "the estimate is returned with it.",
            AccuracyWarning,
            stacklevel=3,
        )


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
        fixed = (np.diagonal(self.K, axis1=1, axis2=2) <= _TINY) | np.array([f.is_constant for f in factors])
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
        scale = _scale(factors, K, mean, self.tolerance)
        value, error = np.zeros(len(K)), np.zeros(len(K))
        alive = np.flatnonzero(scale > 0)
        steps = staircase(K[alive])
        for (order, rank), members in _orders(steps.order, steps.rank):
            chosen = alive[members]
            lower = steps.factor[members][:, :, :rank]
            permuted = [factors[i] for i in order]
            centre = mean[chosen][:, list(order)]
            rule = rule_for(permuted)
            self.rules.add("panels" if rule is _kinked_rule else "lattice")
            value[chosen], error[chosen] = rule(permuted, lower, centre, scale[chosen], self.tolerance)
        return Closed(value, error)

    def scale(self, factors: list[Factor]) -> Array:
        """sqrt(prod <f_i^2>), to which errors are relative."""
        return _scale(factors, self.K, self.mean, self.tolerance)


def _groups(patterns: NDArray[np.bool_]) -> Iterator[tuple[NDArray[np.bool_], NDArray[np.intp]]]:
    for pattern in np.unique(patterns, axis=0):
        yield pattern, np.flatnonzero((patterns == pattern).all(axis=1))


def _orders(
    order: NDArray[np.intp], rank: NDArray[np.intp]
) -> Iterator[tuple[tuple[tuple[int, ...], int], NDArray[np.intp]]]:
    both = np.concatenate([order, rank[:, None]], axis=1)
    for row in np.unique(both, axis=0):
        yield (tuple(int(i) for i in row[:-1]), int(row[-1])), np.flatnonzero((both == row).all(axis=1))


def _scale(factors: list[Factor], K: Array, mean: Array, tolerance: float) -> Array:
    scale = np.ones(len(K))
    for i, f in enumerate(factors):
        pairs = np.stack([K[:, i, i], mean[:, i]], axis=1)
        distinct, where = np.unique(pairs, axis=0, return_inverse=True)
        square = _second_moment(f, distinct[:, 0], distinct[:, 1], tolerance)
        scale *= np.sqrt(square)[where.ravel()]
    return scale


def _second_moment(f: Factor, variance: Array, mean: Array, tolerance: float) -> Array:
    """<f^2> to a few digits: it only sets the scale."""
    loose = max(tolerance, 1e-6)
    squared = f * f
    moving = variance > _TINY
    value = squared.mean_value(mean)
    if moving.any() and not f.is_constant:
        value[moving] = line(squared, mean[moving], np.sqrt(variance[moving]), loose)[0]
    return np.maximum(value, 0.0)


def line(f: Factor, mean: Array, deviation: Array, tolerance: float) -> tuple[Array, Array]:
    """``E f(mean + deviation x)`` of one input for vectors of means and positive deviations."""
    closed = closed_form([f], (deviation**2)[:, None, None], mean[:, None])
    if closed is not None:
        return closed.value, closed.error
    if f.kinks:
        return line_expectation(f, mean, deviation, tolerance)

    def integrand(x: Array, items: NDArray[np.intp]) -> Array:
        return np.asarray(f(mean[items, None] + deviation[items, None] * x[:, 0]))

    sizes = np.maximum(
        np.abs(f(mean[:, None] + deviation[:, None] * np.array([-1.0, 0.3, 1.0]))).max(axis=1), _TINY
    )
    steps = first_step(f.strip / deviation, 1, tolerance)
    return lattice_expectation(integrand, steps, sizes, 1, tolerance)


Rule = Callable[[list[Factor], Array, Array, Array, float], tuple[Array, Array]]


def rule_for(factors: list[Factor]) -> Rule:
    """Quadrature by smoothness: ``rule(factors, lower, mean, scale, tolerance)`` gives values and errors."""
    return _kinked_rule if any(f.kinks for f in factors) else _smooth_rule


def _smooth_rule(
    factors: list[Factor], lower: Array, mean: Array, scale: Array, tolerance: float
) -> tuple[Array, Array]:
    """Lattices over the independent variables; the last of three or four is integrated into a table first."""
    if lower.shape[2] >= 3 and lower.shape[2] == len(factors):
        return _each(_tabulated_lattice, factors, lower, mean, scale, tolerance)
    steps = _steps(factors, lower, tolerance)

    def integrand(x: Array, items: NDArray[np.intp]) -> Array:
        return _product_at(factors, lower[items], mean[items], x)

    return lattice_expectation(integrand, steps, scale, lower.shape[2], tolerance)


def _steps(factors: Sequence[Any], lower: Array, tolerance: float) -> Array:
    deviation = np.maximum(np.sqrt((lower**2).sum(axis=2)), _TINY)
    distance = (np.array([f.strip for f in factors]) / deviation).min(axis=1)
    return first_step(distance, lower.shape[2], tolerance)


def _product_at(factors: Sequence[Callable[[Array], Array]], lower: Array, mean: Array, x: Array) -> Array:
    """Product of the factors at z = mean + lower x for every item and point: (B, Q)."""
    result: Array | None = None
    for i, f in enumerate(factors):
        row = lower[:, i, :]
        used = np.flatnonzero(row.any(axis=0))
        inputs = row[:, used] @ x[:, used].T
        values = f(inputs + mean[:, i, None] if mean[:, i].any() else inputs)
        result = values if result is None else np.multiply(result, values, out=result)
    assert result is not None
    return result


def _each(
    rule: Callable[..., tuple[float, float]],
    factors: list[Factor],
    lower: Array,
    mean: Array,
    scale: Array,
    tolerance: float,
) -> tuple[Array, Array]:
    found = [rule(factors, lower[b], mean[b], scale[b], tolerance) for b in range(len(lower))]
    return np.array([v for v, _ in found]), np.array([e for _, e in found])


def _smoothed_last(
    factors: list[Factor], lower: Array, mean: Array, tolerance: float
) -> tuple[list[Any], float]:
    """The factors with the last one averaged over its own last variable."""
    before = float(np.sqrt((lower[-1, :-1] ** 2).sum()))
    reach = _TABLE_RADIUS * before + abs(float(mean[-1])) + 1e-6
    last = SmoothedFactor(factors[-1], float(lower[-1, -1]), reach, tolerance)
    return [*factors[:-1], last], last.error


def _tabulated_lattice(
    factors: list[Factor], lower: Array, mean: Array, scale: float, tolerance: float
) -> tuple[float, float]:
    reduced, doubt = _smoothed_last(factors, lower, mean, tolerance)
    rest = lower[None, :, :-1]
    steps = _steps(reduced, rest, tolerance)

    def integrand(x: Array, items: NDArray[np.intp]) -> Array:
        return _product_at(reduced, rest[items], mean[None][items], x)

    value, error = lattice_expectation(
        integrand, steps, np.array([scale]), rest.shape[2], tolerance, most_radius=_TABLE_RADIUS
    )
    return float(value[0]), float(error[0]) + doubt * scale


def _kinked_rule(
    factors: list[Factor], lower: Array, mean: Array, scale: Array, tolerance: float
) -> tuple[Array, Array]:
    """Nested panels; the last variable of three or four inputs is integrated into a table first."""
    if lower.shape[2] >= 3 and lower.shape[2] == len(factors):
        return _each(_tabulated_panels, factors, lower, mean, scale, tolerance)
    return nested_expectation(factors, lower, mean, tolerance)


def _tabulated_panels(
    factors: list[Factor], lower: Array, mean: Array, scale: float, tolerance: float
) -> tuple[float, float]:
    reduced, doubt = _smoothed_last(factors, lower, mean, tolerance)
    value, error = nested_expectation(reduced, lower[None, :, :-1], mean[None], tolerance)
    return float(value[0]), float(error[0]) + doubt * scale
