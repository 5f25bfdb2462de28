"""Effective ranks as functions of a measure of singular values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Array: TypeAlias = NDArray[np.float64]

_TIE = 1e-5  # of the number of modes: a share that is missed by less counts as reached
_MANY_STEPS = 50.0  # errors, in modes, beyond which a step to a whole number is none


@dataclass(frozen=True)
class Measure:
    """Values with counts, those resolved one by one first, by falling value."""

    values: Array
    counts: Array
    resolved: int

    def total(self, power: int) -> float:
        """Sum of count value^power."""
        return float(self.counts @ self.values**power)


class RankFunction(Protocol):
    """A function of a measure of singular values; 0 if all of them vanish."""

    def smooth(self, measure: Measure) -> float:
        """The form that has a standard error."""
        ...

    def stated(self, measure: Measure, value: float, error: float) -> tuple[float, float]:
        """What to say, with its error, where ``value`` with ``error`` was found for the smooth form."""
        ...


@dataclass(frozen=True)
class Participation:
    """(sum s)² / sum s²."""

    def smooth(self, measure: Measure) -> float:
        """Zero if all values vanish."""
        second = measure.total(2)
        return measure.total(1) ** 2 / second if second else 0.0

    def stated(self, measure: Measure, value: float, error: float) -> tuple[float, float]:
        """The same."""
        return value, error


@dataclass(frozen=True)
class Entropy:
    """exp(- sum p log p) with p = s / sum s."""

    def smooth(self, measure: Measure) -> float:
        """Zero if all values vanish."""
        total = measure.total(1)
        if not total:
            return 0.0
        shares = np.maximum(measure.values, 0.0) / total
        logs = np.log(np.where(shares > 0, shares, 1.0))
        entropy = -float((measure.counts * shares * logs).sum())
        return math.exp(min(entropy, math.log(max(measure.total(0), 1.0))))

    def stated(self, measure: Measure, value: float, error: float) -> tuple[float, float]:
        """The same."""
        return value, error


@dataclass(frozen=True)
class Share:
    """How many of the largest values hold a share of their sum."""

    share: float

    def smooth(self, measure: Measure) -> float:
        """Interpolated within the value at which the share is reached."""
        return self._reached(measure)[0]

    def stated(self, measure: Measure, value: float, error: float) -> tuple[float, float]:
        """The whole number, with the value at which the share is reached, and the error of the step to it included.

        Among resolved values the number does not need the probes' mean.
        """
        count, place = self._reached(measure)
        number = count if place < measure.resolved else value
        return ceiling(number - _TIE * (1 + number), error)

    def _reached(self, measure: Measure) -> tuple[float, int]:
        """The interpolated count and the place of the value at which the share is reached."""
        order = np.argsort(-measure.values, kind="stable")
        values, counts = measure.values[order], measure.counts[order]
        held = np.cumsum(values * counts)
        if not len(held) or held[-1] <= 0:
            return 0.0, 0
        wanted = self.share * held[-1]
        place = int(np.searchsorted(held, wanted * (1 - 1e-12)))
        missing = wanted - (held[place - 1] if place else 0.0)
        return float(counts[:place].sum() + missing / values[place]), int(order[place])


def ceiling(number: float, error: float) -> tuple[float, float]:
    """The next whole number and its root mean square error if the number has a normal one; not below the latter."""
    whole = float(math.ceil(number))
    if not 0 < error < _MANY_STEPS:
        return whole, error
    reach = math.ceil(8 * error) + 1
    steps = np.arange(-reach, reach + 1)
    up_to = ndtr((whole - number + np.append(steps[0] - 1, steps)) / error)
    return whole, max(error, math.sqrt(float(steps**2 @ np.diff(up_to))))
