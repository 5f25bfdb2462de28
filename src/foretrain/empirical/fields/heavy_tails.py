"""The exponent of a heavy tail by maximum likelihood: Clauset, Shalizi & Newman, SIAM Review 51 (2009).

An experiment, not a theorem: section 10.3 of the note conjectures that repeated co-activation transport makes the
heavy tails seen in trained weights. An exponent always comes out; whether a power law describes the tail at all is
what :func:`tail_p_value` tests.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.answers import Answer, Result, fields_answer
from foretrain.support.errors import InputError
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, generator

Array = NDArray[np.float64]


@dataclass(frozen=True, repr=False)
class HeavyTail(Result):
    """Density ~ value^(-exponent) from ``minimum`` on, found in the largest ``tail`` of ``count`` values."""

    exponent: float
    standard_error: float
    minimum: float
    tail: int
    count: int
    distance: float

    def answer(self) -> Answer:
        """The exponent, and what it rests on."""
        statement = (
            f"Density ~ value^-{self.exponent:.3f} from {self.minimum:.4g} on: an experiment, not a theorem."
        )
        meanings = {
            "tail": "values that were fitted, the largest",
            "distance": "Kolmogorov-Smirnov; any spectrum has a best exponent, tail_p_value says if it fits",
        }
        return fields_answer(self, statement, meanings)


def heavy_tail(values: ArrayLike, smallest_tail: int = 10) -> HeavyTail:
    """Fit a power law to the tail of positive values; zeros are left out.

    The start of the tail is the value with the smallest Kolmogorov-Smirnov distance between data and fit, among
    those that leave at least ``smallest_tail`` values. With k values in the tail the exponent is
    1 + k / sum ln(x / minimum), and its standard error (exponent - 1) / sqrt(k).
    """
    given = np.asarray(values, dtype=np.float64).ravel()
    if not np.isfinite(given).all() or (given.size and given.min() < 0):
        raise InputError("the values must be finite and not negative: give a spectrum or other sizes.")
    data = np.sort(given[given > 0])
    if smallest_tail < 2 or data.size < smallest_tail or data[0] == data[-1]:
        raise InputError(
            f"{data.size} positive values, not all equal, and tails of at least {smallest_tail} are asked for: give "
            "more values; two are the least."
        )
    return _fit(data, smallest_tail)


def tail_p_value(values: ArrayLike, draws: int = 200, smallest_tail: int = 10, seed: Seed = 0) -> float:
    """How often data that do follow the fitted law lie further from their own fit; below 0.1 speaks against it.

    Synthetic data are drawn from the fit above its minimum and from the data below, and fitted anew; the standard
    error is below 0.5 / sqrt(draws).
    """
    fit = heavy_tail(values, smallest_tail)
    data = np.asarray(values, dtype=np.float64).ravel()
    data = data[data > 0]
    below = data[data < fit.minimum]
    source = generator(seed)
    further = 0
    for _ in track(range(draws), "synthetic tails"):
        in_tail = int(source.binomial(data.size, fit.tail / data.size)) if below.size else data.size
        # Uniform numbers in (0, 1], so that no value is infinite.
        tail = fit.minimum * (1.0 - source.random(in_tail)) ** (-1.0 / (fit.exponent - 1.0))
        drawn = np.concatenate([source.choice(below, data.size - in_tail) if below.size else [], tail])
        further += _fit(np.sort(drawn), smallest_tail).distance >= fit.distance
    return further / draws


def _fit(data: Array, smallest_tail: int) -> HeavyTail:
    """The best tail of sorted positive data."""
    logs = np.log(data)
    starts = np.unique(data[: data.size - smallest_tail + 1], return_index=True)[1]
    best: HeavyTail | None = None
    for start in starts:
        tail = logs[start:] - logs[start]
        size = tail.size
        total = float(tail.sum())
        if total <= 0:
            continue
        slope = size / total
        model = -np.expm1(-slope * tail)
        steps = np.arange(size + 1) / size
        distance = float(max(np.max(steps[1:] - model), np.max(model - steps[:-1])))
        if best is None or distance < best.distance:
            best = HeavyTail(
                1.0 + slope, slope / np.sqrt(size), float(data[start]), size, data.size, distance
            )
    if best is None:
        raise InputError("the largest values are all equal, so there is no tail: give other values.")
    return best
