"""Leading-order escape times in closed form: balanced layers, the critical-depth law, shells."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from foretrain.saddle.escape.transit import transit_time
from foretrain.saddle.parameters import (
    bottleneck_scales,
    check_depth,
    check_positive,
    check_scales,
    check_threshold,
)
from foretrain.support.answers import Result
from foretrain.support.errors import InputError


def leading_time(K: float, scales: ArrayLike, threshold: float = 1.0) -> float:
    """int dU / (K sqrt(prod_{l>=2} (U^2 + D_l))) from X_1(0) to the threshold (10), in the unit of 1/K.

    D_l = X_l(0)^2 - X_1(0)^2 may have any sign. One scale may be zero; with two the time is infinite.

    >>> round(leading_time(0.5, [0.1, 0.1, 0.1]), 10)
    18.0
    """
    checked = check_scales(scales)
    return transit_time(check_positive(K, "K"), checked, check_threshold(threshold, checked))


def balanced_time(K: float, epsilon: float, depth: int, threshold: float = 1.0) -> float:
    """All layers at epsilon (11): log(X*/eps) / K for L = 2, (eps^-(L-2) - X*^-(L-2)) / ((L-2) K) for L >= 3."""
    rate, layers = check_positive(K, "K"), check_depth(depth)
    start, end = check_positive(epsilon, "epsilon"), check_positive(threshold, "threshold")
    if start >= end:
        return 0.0
    return _power_integral(start, end, layers - 1) / rate


def critical_depth_time(
    K: float,
    epsilon: float,
    bottleneck: int,
    depth: int,
    others: ArrayLike = 1.0,
    threshold: float = 1.0,
) -> float:
    """The law (12) as epsilon -> 0 with r = ``bottleneck`` layers at epsilon and the rest at ``others``.

    r = 2: log(1/eps) / (K prod s_i); r >= 3: eps^-(r-2) / ((r-2) K prod s_i). For r = 1 the time stays finite and
    is the quadrature (10) at epsilon = 0, the only case in which the threshold matters.
    """
    rate = check_positive(K, "K")
    scales = bottleneck_scales(epsilon, bottleneck, depth, others)
    if bottleneck == 1:
        return leading_time(rate, np.concatenate([[0.0], scales[1:]]), threshold)
    strength = rate * float(np.prod(scales[bottleneck:]))
    if strength == 0.0:
        raise InputError(
            "a layer outside the bottleneck has scale 0: the law needs all of them of order one."
        )
    if bottleneck == 2:
        return math.log(1 / epsilon) / strength
    return float(epsilon) ** (2 - bottleneck) / ((bottleneck - 2) * strength)


@dataclass(frozen=True, repr=False)
class ShellTime(Result):
    """The sum over shells (36): ``terms[j-1]`` is the time between s_j and s_{j+1}, in the unit of 1/K.

    It is never too short, since every amplitude is replaced by the larger of its start and the smallest amplitude.
    ``relative_error`` is its excess over the quadrature (10), measured. ``eta`` is the largest ratio s_j / s_{j+1}:
    the paper's bound L eta^2 on the error does not hold, as each scale passed leaves a constant beside log(1/eta).
    """

    time: float
    terms: tuple[float, ...]
    eta: float
    relative_error: float

    def __float__(self) -> float:
        return self.time


def shell_time(K: float, scales: ArrayLike, threshold: float = 1.0) -> ShellTime:
    """Widely separated scales (36): sum_j int_{s_j^2}^{s_{j+1}^2} Y^(-j/2) dY / (2 K prod_{i>j} s_i).

    The scales are sorted, s_{L+1} is the threshold, and it is on the smallest layer, not on X_1.
    """
    rate, end = check_positive(K, "K"), check_positive(threshold, "threshold")
    ordered = np.sort(check_scales(scales))
    if ordered[0] >= end:
        return ShellTime(0.0, (), 0.0, 0.0)
    if ordered[-1] > end:
        raise InputError(
            f"the largest scale {ordered[-1]:g} is above the threshold {end:g}: shells need scales below it."
        )
    if ordered[1] == 0.0:
        return ShellTime(math.inf, (), 1.0, 0.0)
    ends = np.append(ordered, end)
    terms = tuple(
        _power_integral(float(ends[j - 1]), float(ends[j]), j - 1) / (rate * float(np.prod(ordered[j:])))
        for j in range(1, len(ordered) + 1)
    )
    eta = float((ends[:-1] / ends[1:]).max())
    return ShellTime(sum(terms), terms, eta, sum(terms) / leading_time(rate, ordered, end) - 1)


def _power_integral(start: float, end: float, power: int) -> float:
    """int V^-power dV from start to end; over the squares Y it is int Y^(-(power+1)/2) dY / 2."""
    if start == end:
        return 0.0
    if power == 1:
        return math.log(end / start)
    return float(start ** (1.0 - power) - end ** (1.0 - power)) / (power - 1)
