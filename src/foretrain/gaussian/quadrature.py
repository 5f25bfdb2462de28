"""Which quadrature a product of factors gets, once closed forms and delta functions are out of the way."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrain.gaussian.closed_forms import closed_form
from foretrain.gaussian.factors import Factor
from foretrain.gaussian.rules.hermite import Table
from foretrain.gaussian.rules.lattice import first_steps, lattice_expectation
from foretrain.gaussian.rules.panels import Piecewise, line_expectation, line_values, nested_expectation

Array = NDArray[np.float64]

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


Rule = Callable[[list[Factor], Array, Array, Array, float], tuple[Array, Array]]


def are_smooth(factors: Sequence[Factor]) -> bool:
    """Whether every factor varies and has no kinks."""
    return not any(f.kinks or f.is_constant for f in factors)


def rule_for(factors: list[Factor]) -> Rule:
    """Quadrature by smoothness: ``rule(factors, lower, mean, scale, tolerance)`` gives values and errors."""
    return kinked_rule if any(f.kinks for f in factors) else smooth_rule


def smooth_rule(
    factors: list[Factor], lower: Array, mean: Array, scale: Array, tolerance: float
) -> tuple[Array, Array]:
    """Lattices over the independent variables; the last of three or four is integrated into a table first."""
    if lower.shape[2] >= 3 and lower.shape[2] == len(factors):
        return _each(_tabulated_lattice, factors, lower, mean, scale, tolerance)
    steps = _steps(factors, lower, tolerance)

    def integrand(x: Array, items: NDArray[np.intp]) -> Array:
        return _product_at(factors, lower[items], mean[items], x)

    doubtful = any(f.is_unproven for f in factors)
    return lattice_expectation(integrand, steps, scale, tolerance, verify=doubtful)


def _steps(factors: Sequence[Any], lower: Array, tolerance: float) -> Array:
    """First steps (B, r): in each variable as fine as the input that varies most with it needs."""
    strips = np.array([f.strip for f in factors])[None, :, None]
    return first_steps((strips / np.maximum(np.abs(lower), TINY)).min(axis=1), tolerance)


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
        integrand,
        steps,
        np.array([scale]),
        tolerance,
        verify=any(f.is_unproven for f in factors),
        most_radius=_TABLE_RADIUS,
    )
    return float(value[0]), float(error[0]) + doubt * scale


def kinked_rule(
    factors: list[Factor], lower: Array, mean: Array, scale: Array, tolerance: float
) -> tuple[Array, Array]:
    """Nested panels; the last variable of three or four inputs is integrated into a table first."""
    if lower.shape[2] >= 3 and lower.shape[2] == len(factors):
        return _each(_tabulated_panels, factors, lower, mean, scale, tolerance)
    return nested_expectation(factors, lower, mean, scale, tolerance)


def _tabulated_panels(
    factors: list[Factor], lower: Array, mean: Array, scale: float, tolerance: float
) -> tuple[float, float]:
    reduced, doubt = _smoothed_last(factors, lower, mean, tolerance)
    value, error = nested_expectation(
        reduced, lower[None, :, :-1], mean[None], np.array([scale]), tolerance, most_radius=_TABLE_RADIUS
    )
    return float(value[0]), float(error[0]) + doubt * scale


class SmoothedFactor:
    """``h(s) = E f(s + width x)`` on ``[-reach, reach]``: smooth, with the kinks of f smeared over the width.

    A piecewise polynomial table. Integrating the last variable of a product out into one turns an expectation over
    four inputs into one over three variables, and one over three inputs into one over two.

    ``error`` estimates how far the table is from h, as a share of the largest |h|.
    """

    def __init__(self, function: Piecewise, width: float, reach: float, tolerance: float) -> None:
        self.strip = math.hypot(function.strip, width)
        self.kinks = function.kinks
        self.blur = width
        self.reach = reach

        def values(points: Array) -> Array:
            return _smoothed_values(function, points, width, 0.05 * tolerance)

        self._table = Table(values, _cell_edges(function, width, reach), 0.1 * tolerance)
        self.error = self._table.error

    def __call__(self, s: Array) -> Array:
        """Values of h; s must lie within the table."""
        return self._table(s)


def _smoothed_values(function: Piecewise, points: Array, width: float, tolerance: float) -> Array:
    if function.kinks:
        return line_values(function, points, width, tolerance)
    count = len(points)
    steps = first_steps(np.full((count, 1), function.strip / width), tolerance)
    sizes = np.full(count, float(np.max(np.abs(function(points)), initial=1e-300)))

    def integrand(x: Array, items: NDArray[np.intp]) -> Array:
        return function(points[items, None] + width * x[:, 0])

    return lattice_expectation(integrand, steps, sizes, tolerance)[0]


def _cell_edges(function: Piecewise, width: float, reach: float) -> Array:
    """Equal cells for smooth functions; near a kink cells of half the width, then growing geometrically."""
    size = min(0.5, max(math.hypot(function.strip, width) / 6, reach / 2000))
    edges = np.linspace(-reach, reach, 2 * math.ceil(reach / size) + 1)
    if not function.kinks:
        return np.asarray(edges)
    near = width * np.arange(0, 8.5, 0.5)
    far = 8 * width * 2.0 ** np.arange(1, 1 + max(0, math.ceil(math.log2(1 / (8 * width)))))
    offsets = np.concatenate([near, far])
    edges = np.concatenate([edges, *(k + sign * offsets for k in function.kinks for sign in (-1, 1))])
    edges = np.unique(np.clip(edges, -reach, reach))
    return np.asarray(edges[np.concatenate([[True], np.diff(edges) > 1e-13 * reach])])
