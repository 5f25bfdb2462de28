"""The mean of any observable under a weighted Gaussian of up to three dimensions, on a lattice refined to settle."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.gaussian.result import Expectation
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.user_warnings import warn_user

Array = NDArray[np.float64]
Observable = Callable[[Array], ArrayLike]

_RANGE = 10.0  # in standard deviations: beyond it the Gaussian weight is below 1e-21
_LARGEST_LATTICE = {1: 200_000, 2: 5_000_000, 3: 10_000_000}  # by rank
_CHUNK = 2**17


def lattice_mean(
    observable: Observable, root: Array, weight: Callable[[Array], Array], tolerance: float
) -> Expectation:
    """<weight O> / <weight> under z = root x with x standard normal.

    The trapezoid rule gains digits exponentially for smooth observables; with kinks its changes fall by 4 at
    every halving, and the error quoted is the last change. ``observable`` maps points z (P, N) to P values,
    ``weight`` points x.
    """
    rank = root.shape[1]
    if rank not in _LARGEST_LATTICE:
        raise NotSupportedError(
            f"the covariance has rank {rank}, but a lattice is offered up to rank {max(_LARGEST_LATTICE)}: "
            "use the moments for polynomials, or sample."
        )
    values: list[float] = []
    error, points, step = math.inf, 0, 1.0
    while points * 2**rank <= _LARGEST_LATTICE[rank]:
        axis = np.arange(-math.floor(_RANGE / step), math.floor(_RANGE / step) + 1, dtype=np.float64) * step
        points, step = len(axis) ** rank, step / 2
        values.append(_weighted_mean(observable, root, weight, axis))
        error = _remaining(values) + _rounding(points) * abs(values[-1])
        if error <= tolerance * max(1.0, abs(values[-1])):
            break
    else:
        warn_user(
            f"the lattice settled to {error:.1e} only, above the tolerance of {tolerance:.1e}: the observable "
            "has kinks or varies fast."
        )
    return Expectation(np.asarray(values[-1]), np.asarray(error), f"lattice of {points} points")


def _remaining(values: list[float]) -> float:
    """The error of the last value: its change, times the rate at which changes fall if that is better than 4."""
    if len(values) < 3:
        return math.inf
    change, before = abs(values[-1] - values[-2]), abs(values[-2] - values[-3])
    rate = min(1.0, 4 * change / before) if before else 1.0
    return change * rate


def _rounding(points: int) -> float:
    """Of a mean over so many points, relative: that of one term, and of sums that err like a random walk."""
    return float(np.finfo(np.float64).eps) * (8 + math.sqrt(points) / 16)


def _weighted_mean(
    observable: Observable, root: Array, weight: Callable[[Array], Array], axis: Array
) -> float:
    shape = (len(axis),) * root.shape[1]
    sums = np.zeros(2)
    for first in range(0, math.prod(shape), _CHUNK):
        places = np.arange(first, min(first + _CHUNK, math.prod(shape)))
        x = np.asarray(axis[np.stack(np.unravel_index(places, shape), axis=-1)])
        mass = np.exp(-(x**2).sum(axis=1) / 2) * weight(x)
        sums += mass @ _values(observable, x @ root.T), mass.sum()
    return float(sums[0] / sums[1])


def _values(observable: Observable, z: Array) -> Array:
    values = np.asarray(observable(z), dtype=np.float64)
    if values.shape != (len(z),):
        raise InputError(
            f"the observable gave shape {values.shape} for {z.shape[0]} points of {z.shape[1]} variables: "
            "it must return one number per point."
        )
    if not np.isfinite(values).all():
        raise InputError("the observable is not finite everywhere: restrict it or bound it.")
    return values
