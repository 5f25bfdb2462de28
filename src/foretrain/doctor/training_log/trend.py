"""Changes of a noisy curve with error bars that allow for autocorrelated noise, its trend, and forecasts.

Errors are those of batch means: a stretch of the curve is cut into blocks longer than its noise remembers, and the
means of the blocks scatter independently around a parabola. Student's t judges their slope.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage, optimize, special

Array = NDArray[np.float64]

_BLOCKS = (8, 16)  # fewer leave no freedom for the error; more would be no longer than the noise remembers
# One-sided. A log is asked some ten questions about a dozen stretches: one log in ten would raise a false alarm
# at 1 in 1,000 each if all were independent, and they are far from that.
CHANCE = 1e-3
_WINDOW = 0.05  # of the run, over which the trend averages
_FEWEST = 5  # records in that window
_BACKTEST = 0.25  # of the fall over the second half: how wrong the first half may forecast it
_MEANS = 40  # blocks to which forecasts are fitted


@dataclass(frozen=True)
class Change:
    """What a curve changes by from the start to the end of a stretch, in units of the loss."""

    value: float
    error: float
    freedom: int

    @property
    def bound(self) -> float:
        """How far chance may put the value off, in one of a thousand stretches."""
        return float(special.stdtrit(self.freedom, 1 - CHANCE)) * self.error

    @property
    def falls(self) -> bool:
        """Whether it falls significantly."""
        return self.value + self.bound < 0

    @property
    def rises(self) -> bool:
        """Whether it rises significantly."""
        return self.value - self.bound > 0

    def __str__(self) -> str:
        return f"{self.value:+.3g} ± {self.error:.1g}"


def memory(residuals: Array) -> float:
    """The integrated autocorrelation time: so many records carry as much as one independent value.

    Lags are summed until the noise has been forgotten (Geyer's initial positive pairs).
    """
    count = len(residuals)
    spread = float(residuals @ residuals)
    if spread == 0 or count < 4:
        return 1.0
    padded = np.fft.rfft(residuals, 2 * count)
    lags = np.fft.irfft(np.abs(padded) ** 2)[: count // 2] / spread
    pairs = lags[: len(lags) // 2 * 2].reshape(-1, 2).sum(1)
    end = np.flatnonzero(pairs <= 0)
    total = 2 * float(pairs[: end[0] if len(end) else None].sum()) - 1
    return float(np.clip(total, 1.0, count / 2))


def change(steps: Array, values: Array) -> Change:
    """The linear trend over a stretch of at least five records, times its length, with its standard error."""
    # The noise is what a parabola leaves; how long it remembers says how many blocks are independent.
    count = len(values)
    place = np.linspace(-1.0, 1.0, count)
    noise = values - np.polyval(np.polyfit(place, values, 2), place)
    blocks = min(count, int(np.clip(count / (2 * memory(noise)), *_BLOCKS)))
    means = block_means(np.stack([steps, values]), blocks)
    at, level = means[0] - means[0].mean(), means[1]
    slope = float(at @ level / (at @ at))
    left = level - np.polyval(np.polyfit(at, level, 2), at)
    freedom = blocks - 3
    error = math.sqrt(float(left @ left) / freedom / float(at @ at))
    length = float(steps[-1] - steps[0])
    return Change(slope * length, error * length, freedom)


def difference(first: Array, second: Array) -> Change:
    """The mean of the second stretch minus that of the first."""
    errors, counts = [], []
    for values in (first, second):
        place = np.linspace(-1.0, 1.0, len(values))
        noise = values - np.polyval(np.polyfit(place, values, 1), place)
        independent = max(len(values) / memory(noise), 2.0)
        errors.append(float(noise @ noise) / max(len(values) - 2, 1) / independent)
        counts.append(independent)
    return Change(float(second.mean() - first.mean()), math.sqrt(sum(errors)), max(round(sum(counts)) - 2, 1))


def falls(steps: Array, values: Array) -> bool:
    """Whether a stretch falls significantly, by itself or, where it may fall by orders, in its logarithm."""
    return change(steps, values).falls or (bool((values > 0).all()) and change(steps, np.log(values)).falls)


def fall_from_start(first: Array, last: Array, curve: Array | None = None) -> Change:
    """The mean of the end minus that of the start, where losses fall so fast that no line describes them.

    The noise of the start is that of the median second difference, in which a smooth fall cancels, there or of a
    whole ``curve``. It sees less of noise that remembers: for an autocorrelation r from record to record the share
    (1 - r)(3 - r)/3 of it, with r as at the end.
    """
    settled = difference(last, last)
    place = np.linspace(-1.0, 1.0, len(last))
    remembered = memory(last - np.polyval(np.polyfit(place, last, 1), place))
    alike = (remembered - 1) / (remembered + 1)
    bends = np.abs(np.diff(first if curve is None else curve, 2))
    rough = (1.4826 * float(np.median(bends))) ** 2 / 6 / ((1 - alike) * (3 - alike) / 3)
    error = math.sqrt(rough * min(1.0, remembered / len(first)) + settled.error**2 / 2)
    return Change(float(last.mean() - first.mean()), error, settled.freedom // 2 + len(first) - 2)


def block_means(values: Array, blocks: int) -> Array:
    """Means of ``blocks`` stretches of equal length along the last axis."""
    edges = np.linspace(0, values.shape[-1], blocks + 1).astype(int)
    return np.stack([values[..., a:b].mean(-1) for a, b in pairwise(edges)], axis=-1)


@dataclass(frozen=True, eq=False)
class Trend:
    """A smoothed curve with its standard error, and the noise around it."""

    level: Array
    error: Array
    noise: Array
    memory: float


def trend(values: Array) -> Trend:
    """A running mean over a twentieth of the run, from which single spikes are left out."""
    window = max(_FEWEST, round(_WINDOW * len(values))) | 1
    if len(values) < _FEWEST:
        return Trend(values, np.zeros(len(values)), np.zeros(len(values)), 1.0)
    middle = ndimage.median_filter(values, window)
    away = np.abs(values - middle)
    typical = ndimage.median_filter(away, 4 * window + 1)
    # Far out, both for this place and for the whole curve: without noise the ends of a line would be far out, too.
    wide = 0.1 * float(np.subtract(*np.quantile(values, [0.95, 0.05])))
    tamed = np.where(away > np.maximum(10 * typical, wide), middle, values)
    # Straight lines carry the curve on at its ends: a mean over records on one side only would lag behind it.
    reach = window // 2
    place = np.arange(float(window))
    ahead = np.polyval(np.polyfit(place, tamed[:window], 1), place[:reach] - reach)
    behind = np.polyval(np.polyfit(place, tamed[-window:], 1), place[:reach] + window)
    level = np.convolve(np.concatenate([ahead, tamed, behind]), np.ones(window) / window, "valid")
    noise = values - level
    remembered = memory(tamed - level)
    square = ndimage.uniform_filter1d((tamed - level) ** 2, 4 * window + 1)
    spread = np.sqrt(np.maximum(square, 0.0))  # rounding may leave less than nothing
    return Trend(level, spread * math.sqrt(min(1.0, remembered / window)), noise, remembered)


@dataclass(frozen=True)
class Forecast:
    """The loss after twice the steps, by the law that fits."""

    law: str
    loss: float
    error: float
    backtest: float  # how wrong the same law was on the second half, fitted to the first


def forecast(steps: Array, values: Array) -> Forecast | None:
    """A power law or an exponential above a floor, carried on to twice the steps; None where neither fits.

    A law fits if it forecasts from the first half of the run what the second half has brought. Its error holds the
    scatter of the fit, the error of that forecast, and what the laws differ by.
    """
    means = block_means(np.stack([steps - steps[0] + 1, values]), min(len(values), _MEANS))
    time, level = means[0] / means[0, -1], means[1]
    use, early = time > 0.05, time <= 0.5  # the first steps are another regime
    drop = float(level[early & use][-3:].mean() - level[-3:].mean())
    candidates = []
    for law, shape in (("a power law", _power), ("an exponential", _exponential)):
        back, whole = _fit(shape, time[use & early], level[use & early]), _fit(shape, time[use], level[use])
        if back is None or whole is None:
            continue
        wrong = abs(float(np.mean(shape(time[-3:], *back[0])) - level[-3:].mean()))
        left = level[use] - shape(time[use], *whole[0])
        expected = float(shape(np.array([2.0]), *whole[0])[0])
        nudge = 1e-4 * np.maximum(np.abs(whole[0]), 1e-6)
        slopes = [
            (float(shape(np.array([2.0]), *(whole[0] + move))[0]) - expected) / size
            for move, size in zip(np.diag(nudge), nudge)
        ]
        scatter = math.sqrt(max(float(np.array(slopes) @ whole[1] @ np.array(slopes)), 0.0))
        candidates.append((float(left @ left), law, expected, scatter, wrong))
    good = sorted(one for one in candidates if one[4] < _BACKTEST * drop)
    if not good:
        return None
    _, law, expected, scatter, wrong = good[0]
    apart = abs(good[0][2] - good[-1][2]) / 2
    error = math.sqrt(scatter**2 + wrong**2 + apart**2)
    return Forecast(law, expected, error, wrong) if math.isfinite(error) else None


def _power(time: Array, floor: float, size: float, exponent: float) -> Array:
    return np.asarray(floor + size * time**-exponent)


def _exponential(time: Array, floor: float, size: float, rate: float) -> Array:
    return np.asarray(floor + size * np.exp(-rate * (time - 1.0)))


def _fit(law: Callable[..., Array], time: Array, level: Array) -> tuple[Array, Array] | None:
    """Floor, size and exponent with their covariance."""
    if len(time) < 6:
        return None
    span = float(np.ptp(level)) or 1.0
    floor = 0.0 if level.min() > 0 else -np.inf
    bounds: Any = ([floor, 0.0, 1e-3], [float(level.max()), np.inf, 30.0])
    begin = [max(float(level[-1]) - 0.5 * span, floor + 1e-9 * span), span, 1.0]
    try:
        best, spread = optimize.curve_fit(law, time, level, begin, bounds=bounds, maxfev=2000)
    except (RuntimeError, ValueError):
        return None
    return np.asarray(best), np.asarray(spread)
