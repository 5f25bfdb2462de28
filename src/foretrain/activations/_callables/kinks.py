"""Finds where a callable, or one of its first four derivatives, jumps.

Cells that resolve a callable shrink towards a kink. Around the smallest cells the two sides are extrapolated
towards each other: the difference D of the two series vanishes like J (z - c)^k / k! at a kink of order k, so
that c is a simple root of its (k-1)-th derivative.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrain.activations._activation import Array
from foretrain.activations._callables.cells import Cells
from foretrain.activations._callables.expansions import (
    chebyshev_polynomials,
    chebyshev_series,
    differentiate_series,
)
from foretrain.activations._callables.pointwise import Pointwise
from foretrain.support.errors import NotSupportedError

_EPSILON = float(np.finfo(np.float64).eps)
_ORDERS = 4
# Only cells narrower than this can have been made by a kink ...
_SUSPICIOUS = 0.3
# ... below this width both sides must be smooth for it to be one, and below this it is a jump of the value.
_SINGULAR, _ABRUPT = 1e-6, 1e-9
# Lengths of the windows on both sides that are continued towards a kink.
_WINDOWS = tuple(2.0**-k for k in range(11))


@dataclass(frozen=True)
class Candidate:
    """A kink of the given order, with the doubt about where it is."""

    location: float
    order: int
    doubt: float


def find_kinks(function: Pointwise, cells: Cells) -> tuple[float, ...]:
    """The locations of the kinks in the cells that resolve the callable, sorted, round numbers made exact."""
    if cells.noise.is_coarse:
        raise NotSupportedError(
            f"the values of the callable {function.name!r} carry noise of relative size "
            f"{cells.noise.relative:.0e}: let it compute in float64, or say where its kinks are with kinks=(...) "
            "and give derivatives=[...]."
        )
    if not cells.complete:
        raise NotSupportedError(
            f"the callable {function.name!r} is too noisy or varies too fast to look for its kinks: "
            "say where they are with kinks=(...), or kinks=() for none."
        )
    small = np.flatnonzero(cells.width < _SUSPICIOUS)
    if small.size == 0:
        return ()
    # Small cells across which something seems to jump, smallest first.
    lefts, rights = cells.left[small], cells.right[small]
    gaps = _gaps(function, lefts, rights)
    differences = [gaps.at(0.5 * (lefts + rights), order) for order in range(_ORDERS + 1)]
    jumps = np.any([~(np.abs(value) <= 10.0 * error) for value, error in differences], axis=0)
    unresolved = ~np.isfinite(differences[0][1]) & (rights - lefts <= _SINGULAR)
    kept = small[jumps | unresolved]
    found: list[float] = []
    for index in kept[np.argsort(cells.width[kept], kind="stable")]:
        left, right = float(cells.left[index]), float(cells.right[index])
        if any(max(left - place, place - right, 0.0) <= 4.0 * (right - left) + 1e-9 for place in found):
            continue
        candidate = _examine(function, left, right)
        if candidate is not None and not any(abs(candidate.location - place) < 1e-9 for place in found):
            found.append(_rounded(candidate))
    return tuple(sorted(found))


class Side:
    """The callable on one side of gaps where kinks may be, continued into them, gap by gap."""

    def __init__(self, function: Pointwise, end: Array, direction: float) -> None:
        """Expands the callable in windows of several lengths that start at ``end`` and lead away."""
        self.radius = np.tile(0.5 * np.array(_WINDOWS), end.size)
        self.centre = np.repeat(end, len(_WINDOWS)) + direction * self.radius
        self.series = chebyshev_series(function, self.centre, self.radius)

    def at(self, z: Array, order: int) -> tuple[Array, Array]:
        """The derivatives at z, one point per gap, by the best of the windows, and their errors."""
        x = (np.repeat(z, len(_WINDOWS)) - self.centre) / self.radius
        found = differentiate_series(self.series, chebyshev_polynomials, x, self.radius, order)
        values, errors = found.value.reshape(z.size, -1), found.error.reshape(z.size, -1)
        best = np.arange(z.size), np.argmin(errors, axis=1)
        return values[best], errors[best]


class Difference:
    """Right-hand minus left-hand continuation into gaps where kinks may be, gap by gap."""

    def __init__(self, function: Pointwise, left: Array, right: Array) -> None:
        self.left, self.right = left, right
        self._below, self._above = Side(function, left, -1.0), Side(function, right, 1.0)

    def at(self, z: Array, order: int) -> tuple[Array, Array]:
        """The difference of the derivatives at z, one point per gap, and its error."""
        below, below_error = self._below.at(z, order)
        above, above_error = self._above.at(z, order)
        return above - below, above_error + below_error

    def number(self, z: float, order: int) -> tuple[float, float]:
        """The same for a single gap."""
        value, error = self.at(np.array([z]), order)
        return float(value[0]), float(error[0])


def _gaps(function: Pointwise, left: Array, right: Array) -> Difference:
    """Gaps around cells, wide enough to hold a kink that hides in a neighbouring cell."""
    margin = 2.0 * (right - left)
    return Difference(function, left - margin, right + margin)


def _examine(function: Pointwise, left: float, right: float) -> Candidate | None:
    """The kink near a small cell, None if the callable is smooth there."""
    around = _gaps(function, np.array([left]), np.array([right]))
    middle, width = 0.5 * (left + right), right - left
    step, doubt = around.number(middle, 0)
    if not np.isfinite(doubt):
        raise NotSupportedError(
            f"the callable {function.name!r} is not piecewise smooth near z = {middle:.6g}: foretrain "
            "handles kinks where derivatives jump, not power-law singularities or crowds of kinks."
        )
    slope, _ = around.number(middle, 1)
    if width < _ABRUPT and abs(step) > 10.0 * doubt + 100.0 * width * abs(slope):
        # The first number at which the callable takes the value on the right of the jump, by bisection.
        left, right = float(around.left[0]), float(around.right[0])
        low, high = function(np.array([left, right]))
        while (middle := 0.5 * (left + right)) not in (left, right):
            value = function(np.array([middle]))[0]
            left, right = (left, middle) if abs(value - high) < abs(value - low) else (middle, right)
        return Candidate(right, 0, _EPSILON)
    for order in range(1, _ORDERS + 1):
        candidate = _kink_of_order(around, order, middle)
        if candidate is not None and _confirmed(function, candidate):
            return candidate
    return None


def _kink_of_order(around: Difference, order: int, start: float) -> Candidate | None:
    """Newton's method for the root of D^(order-1), accepted if the lower differences vanish there too."""
    place, reach = start, 2.0 * float(around.right[0] - around.left[0])
    for _ in range(4):
        value, doubt = around.number(place, order - 1)
        slope, slope_doubt = around.number(place, order)
        if not abs(slope) > 10.0 * slope_doubt:
            return None
        place -= value / slope
        if abs(place - start) > reach:
            return None
    lower = [around.number(place, k) for k in range(order)]
    if any(abs(value) > 10.0 * error for value, error in lower):
        return None
    return Candidate(place, order, doubt / abs(slope))


def _confirmed(function: Pointwise, candidate: Candidate) -> bool:
    """Whether the jump persists when the two sides are taken right up to the kink."""
    place = candidate.location
    here = np.array([place])
    jump, doubt = Difference(function, here, here).number(place, candidate.order)
    size = float(np.max(np.abs(function(place + np.array([-1.0, 0.0, 1.0])))))
    return abs(jump) > 20.0 * doubt + 1e-6 * size


def _rounded(candidate: Candidate) -> float:
    """The roundest number within the doubt about the location."""
    tolerance = 3.0 * candidate.doubt + 1e-12 * max(1.0, abs(candidate.location))
    for digits in range(7):
        if abs(round(candidate.location, digits) - candidate.location) <= tolerance:
            return round(candidate.location, digits) + 0.0
    return candidate.location
