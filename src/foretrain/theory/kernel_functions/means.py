"""g, g', g'' and <s'^2> over many kernel values at once: what searches over decades of K look at.

Known activations go by the rules of :func:`foretrain.gaussian.expectation`. A user's smooth function goes by its
values alone: searches want signs, not fourteen digits, and its derivatives are slow where their arguments are wide.
A trapezoidal rule in u = z / sqrt(K) with central differences gives eight digits in milliseconds, as far as the
function is resolved: narrow features or fast growth end the range.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrain.activations import Activation
from foretrain.gaussian import Factor, expectation, factor, z
from foretrain.theory.kernel_functions.functions import KernelFunctions

Array = NDArray[np.float64]

_REACH = 9.0
_FEWEST, _MOST = 401, 40_001
_POINTS_PER_LENGTH = 8
_EDGE = 1e-10  # share of the integrand at the ends of the range that says it was cut off


class KernelMeans(NamedTuple):
    """g, g', K^2 g'' and <s'^2> at many kernel values."""

    square: Array
    square_slope: Array
    bend: Array
    slope_square: Array


def is_measured(act: Activation) -> bool:
    """Whether an activation is a user's smooth function, whose derivatives are measured."""
    return act.strip_is_measured and act.is_smooth


def kernel_means(act: Activation, kernels: Array, tolerance: float) -> KernelMeans:
    """The functions at ascending positive kernels; of a user's smooth function as many of them as are resolved."""
    return coarse_means(act, kernels) if is_measured(act) else precise_means(act, kernels, tolerance)


def precise_means(act: Activation, kernels: Array, tolerance: float) -> KernelMeans:
    """From s and s' alone, which is fast and needs no smoothness (section 5.3)."""
    if not act.is_continuous:
        at = KernelFunctions(act, tolerance).at(kernels)
        return KernelMeans(at.square, at.square_slope, kernels**2 * at.square_bend, at.slope_square)
    s, slope = factor(act), factor(act, 1).pointwise()

    def mean(f: Factor) -> Array:
        return np.asarray(expectation([f], kernels[:, None, None], tolerance=tolerance).value)

    first, third = mean(z * s * slope), mean(z * z * z * s * slope)
    return KernelMeans(mean(s * s), first / kernels, (third / kernels - 3 * first) / 2, mean(slope * slope))


def coarse_means(act: Activation, kernels: Array) -> KernelMeans:
    """From values of s alone, up to the kernel from which on they do not resolve it."""
    found = []
    for K in kernels:
        row = _at(act, float(K))
        if row is None:
            break
        found.append(row)
    return KernelMeans(*np.array(found).reshape(-1, 4).T)


def _at(act: Activation, K: float) -> tuple[float, ...] | None:
    deviation = np.sqrt(K)
    points = int(2 * _REACH * deviation / act.strip * _POINTS_PER_LENGTH) | 1
    if points > _MOST:
        return None
    u = np.linspace(-_REACH, _REACH, max(points, _FEWEST))
    weight = np.exp(-(u**2) / 2)
    weight /= weight.sum()
    with np.errstate(all="ignore"):  # what is not finite ends the range
        s, slope = _value_and_slope(act, deviation * u)
        products = (s * s, u * s * slope, u**3 * s * slope, slope * slope)
        means = [float(weight @ f) for f in products]
        ends = [np.abs(weight * f)[[0, -1]].sum() / np.abs(weight * f).sum() for f in products]
    if not np.isfinite(means).all() or np.nanmax(ends) > _EDGE:
        return None
    square, first, third, slope_square = means
    return square, first / deviation, deviation * (third - 3 * first) / 2, slope_square


def _value_and_slope(act: Activation, z: Array) -> tuple[Array, Array]:
    """Five-point central difference, a small part of the function's own length wide."""
    h = 0.003 * min(act.strip, 1.0)
    far, near = (np.asarray(act.value(z + k * h)) - np.asarray(act.value(z - k * h)) for k in (2, 1))
    return np.asarray(act.value(z), dtype=np.float64), (8 * near - far) / (12 * h)
