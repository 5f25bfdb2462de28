"""Follows a field with adaptive steps until what is watched has passed its thresholds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.integrate import LSODA
from scipy.optimize import brentq

from foretrain.saddle.integration import smallest_scale
from foretrain.saddle.parameters import Array
from foretrain.support.errors import NotSupportedError

RELATIVE_TOLERANCE = 1e-10
_MOST_STEPS = 100_000

Watch = Callable[[Array], Array]


@dataclass(frozen=True, eq=False)
class BlockPath:
    """The steps of the integrator; ``crossings`` are the times at which each watched number rose to its level."""

    times: Array
    states: Array
    crossings: Array  # nan where the flow ended before
    pieces: list[Any] = field(default_factory=list, repr=False)

    def at(self, times: Array) -> Array:
        """The states at times, between the steps too."""
        if len(self.times) == 1:
            return np.tile(self.states[0], (len(times), 1))
        place = np.clip(np.searchsorted(self.times[1:], times), 0, len(self.pieces) - 1)
        return np.array([self.pieces[k](time) for k, time in zip(place, times)])


def follow(
    rates: Callable[[Array], Array],
    start: Array,
    until: float,
    *,
    watch: Watch,
    levels: Array,
    tolerance: float = RELATIVE_TOLERANCE,
) -> BlockPath:
    """The flow from time 0 until every watched number has risen to its level, or until a time."""
    before = watch(start)
    crossings = np.where(before >= levels, 0.0, math.nan)
    if until == 0:  # the integrator cannot make a step of no length
        return BlockPath(np.zeros(1), start[None], crossings)
    absolute = 0.01 * tolerance * smallest_scale(start)
    solver = LSODA(lambda _, x: rates(x), 0.0, start, until, rtol=tolerance, atol=absolute)
    times, states, pieces = [0.0], [start], []
    while times[-1] < until and np.isnan(crossings).any():
        message = solver.step()  # None while all is well
        if message is not None or len(times) > _MOST_STEPS or not np.isfinite(solver.y).all():
            raise NotSupportedError(f"the flow could not be followed beyond {solver.t:g} ({message}).")
        piece, after = solver.dense_output(), watch(solver.y)
        for mode in np.flatnonzero(np.isnan(crossings) & (after >= levels)):
            crossings[mode] = _crossing(piece, watch, int(mode), float(levels[mode]), times[-1], solver.t)
        times.append(float(solver.t))
        states.append(solver.y.copy())
        pieces.append(piece)
    return BlockPath(np.array(times), np.array(states), crossings, pieces)


def _crossing(piece: Any, watch: Watch, mode: int, level: float, begin: float, end: float) -> float:
    """Where a watched number is at its level inside one step."""

    def gap(time: float) -> float:
        return float(watch(piece(time))[mode] - level)

    if gap(begin) >= 0:  # the interpolant may be above the level by rounding
        return begin
    return float(brentq(gap, begin, end, xtol=1e-14 * end, rtol=1e-14))
