"""Hermite's cubic: when a quantity passes a level inside a step."""

from __future__ import annotations

import numpy as np

from foretrain.training.gradient_flow.states import Clock


def hermite(ends: tuple[Clock, Clock], rates: tuple[Clock, Clock], length: Clock, at: Clock) -> Clock:
    """The cubic with the given values and rates at both ends of a step of this length, at a fraction of it."""
    return (
        (1 + 2 * at) * (1 - at) ** 2 * ends[0]
        + at * (1 - at) ** 2 * length * rates[0]
        + at**2 * (3 - 2 * at) * ends[1]
        + at**2 * (at - 1) * length * rates[1]
    )


def crossing(ends: tuple[Clock, Clock], rates: tuple[Clock, Clock], length: Clock, level: float) -> Clock:
    """The fraction of the step at which a quantity passes a level that lies between its ends, by bisection."""
    low, high = np.zeros(len(length)), np.ones(len(length))
    rising = ends[1] > ends[0]
    for _ in range(50):
        middle = 0.5 * (low + high)
        before = (hermite(ends, rates, length, middle) < level) == rising
        low, high = np.where(before, middle, low), np.where(before, high, middle)
    return 0.5 * (low + high)
