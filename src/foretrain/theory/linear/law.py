"""The law of the output: z_i = sqrt(R) g_i, where R is G_2 times a product of chi-squares, one per hidden layer.

The density of a neuron is the inverse Mellin transform of E|z|^(s-1). Integer moments do not determine it beyond
layer 2 (they grow too fast), but complex ones do. The contour passes through the saddle point, where the integrand
does not oscillate, so that far tails keep their relative precision.

Beside it the scaling limit at fixed r = L / n, where 1/n fails, and how many draws a check needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from foretrain.gaussian.cumulants import cumulants_from_moments
from foretrain.support.answers import Result
from foretrain.support.arguments import Array
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.seeds import Seed, generator
from foretrain.theory.linear.moments import (
    DeepLinear,
    by_layer,
    check_mean_square,
    check_order,
    layer_index,
    log_flow,
    settled,
)

if TYPE_CHECKING:
    import xarray as xr


_LARGE = 40.0  # from here on the Stirling series below is exact to rounding
_BLOCK = 64  # nodes of the contour at a time
_MOST_BLOCKS = 400
_NEAR_POLE = 0.25
_LEFT_OF_POLE = -0.5
_DIGITS = 2 * math.pi / 38  # step over distance to a singularity for 16 digits: exp(-38)


def absolute_moment(network: DeepLinear, G0: float, s: float) -> xr.DataArray:
    """E|z|^s by layer for any real s > -1, fractional powers included; infinite where it overflows."""
    if not s > -1:
        raise InputError(f"E|z|^s diverges at s = {s}: use a power above -1.")
    network.require_no_bias("E|z|^s")
    log_two_point = log_flow(network, G0, 1)[:, 0]
    gaussian = s / 2 * math.log(2) + math.lgamma((s + 1) / 2) - math.log(math.pi) / 2
    factors = [0.0, *(log_chi_square_moment(n, s / 2) for n in network.widths[:-1])]
    power = np.zeros(network.depth) if s == 0 else s / 2 * log_two_point
    return by_layer(network, np.exp(power + gaussian + np.cumsum(factors)), "E|z|^s")


def log_variance_statistics(network: DeepLinear, G0: float) -> xr.Dataset:
    """Mean and variance of log R by layer: at large depth the typical R is far below its mean G_2."""
    import xarray as xr

    network.require_no_bias("the law of log R")
    if check_mean_square(G0) == 0:
        raise InputError("log R needs a non-zero input: G0 is 0.")
    half = np.array([0.0, *network.widths[:-1]]) / 2
    shifts, spreads = np.zeros(network.depth), np.zeros(network.depth)
    a = half[1:]
    series = -1 / (2 * a) - (1 / 12 - (1 / 120 - 1 / (252 * a**2)) / a**2) / a**2
    shifts[1:] = np.where(a < _LARGE, special.digamma(a) - np.log(a), series)
    spreads[1:] = special.polygamma(1, half[1:])
    mean = log_flow(network, G0, 1)[:, 0] + np.cumsum(shifts)
    return xr.Dataset(
        {
            "mean": by_layer(network, mean, "mean"),
            "variance": by_layer(network, np.cumsum(spreads), "variance"),
        }
    )


def sample_variances(network: DeepLinear, draws: int, G0: float, seed: Seed = 0) -> Array:
    """Exact draws of R, the variance of a neuron given all layers below: shape (draws, L), biases included.

    One chi-square per layer and draw, whatever the width.
    """
    if draws < 1:
        raise InputError(f"{draws} draws were asked for: draw at least one.")
    random = generator(seed)
    result = np.empty((draws, network.depth))
    result[:, 0] = network.biases[0] + network.gains[0] * check_mean_square(G0)
    for layer, (n, gain, bias) in enumerate(zip(network.widths, network.gains[1:], network.biases[1:])):
        result[:, layer + 1] = bias + gain * result[:, layer] * random.chisquare(n, draws) / n
    return result


def sample_preactivations(
    network: DeepLinear, draws: int, G0: float, layer: int, neurons: int = 1, seed: Seed = 0
) -> Array:
    """Exact draws of some neurons of one layer, shape (draws, neurons)."""
    place = layer_index(network, layer)
    if not 1 <= neurons <= network.widths[place]:
        raise InputError(
            f"layer {layer} has {network.widths[place]} neurons, so {neurons} of them cannot be drawn."
        )
    random = generator(seed)
    variance = sample_variances(network, draws, G0, random)[:, place]
    return np.asarray(np.sqrt(variance)[:, None] * random.normal(size=(draws, neurons)))


def log_chi_square_moment(n: int, s: Any) -> Any:
    """log E[(chi2_n / n)^s] = log of (n/2)^-s Gamma(n/2 + s) / Gamma(n/2), for real or complex s, at any width."""
    a = n / 2
    if a < _LARGE:
        return special.loggamma(a + s) - special.gammaln(a) - s * math.log(a)
    x = s / a
    if np.iscomplexobj(x):  # where numpy's log1p loses digits
        log1p = 0.5 * np.log1p(2 * x.real + np.abs(x) ** 2) + 1j * np.arctan2(x.imag, 1 + x.real)
    else:
        log1p = np.log1p(x)
    return (a + s - 0.5) * log1p - s + _stirling(a + s) - _stirling(a)


def _stirling(x: Any) -> Any:
    """What Stirling's formula leaves out of log Gamma(x)."""
    square = x * x
    return (1 / 12 - (1 / 360 - (1 / 1260 - 1 / (1680 * square)) / square) / square) / x


def density(network: DeepLinear, z: ArrayLike, G0: float, layer: int) -> Array:
    """p(z) of one neuron of a layer; infinite at z = 0 where a layer below has a single neuron."""
    place = layer_index(network, layer)
    if any(network.biases[1 : place + 1]):
        raise NotSupportedError(
            "the density is known only without biases after layer 1: set C_b = 0 there, or sample."
        )
    log_two_point = float(log_flow(network, G0, 1)[place, 0])
    if not math.isfinite(log_two_point):
        raise InputError("z is 0 with certainty, so it has no density: G0 or a C_W is 0.")
    size = np.abs(np.asarray(z, dtype=np.float64))
    if not np.isfinite(size).all():
        raise InputError("the points z must be finite numbers.")
    scaled = size.ravel() / math.exp(log_two_point / 2)
    law = _Law(network.widths[:place])
    return np.asarray(law.density(scaled).reshape(size.shape) / math.exp(log_two_point / 2))[()]


class _Law:
    """|z| at G_2 = 1, with hidden widths given: everything through the transform E|z|^(s-1)."""

    def __init__(self, widths: Sequence[int]) -> None:
        found, counts = np.unique(np.array(widths, dtype=int), return_counts=True)
        self._widths = [(int(n), int(count)) for n, count in zip(found, counts)]
        self._narrowest = int(found[0]) if len(found) else None

    def density(self, z: Array) -> Array:
        """p(z) for z >= 0."""
        if self._narrowest is None:
            return np.asarray(np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi))
        at_zero = math.inf
        if self._narrowest > 1:
            factors = sum(count * float(log_chi_square_moment(n, -0.5)) for n, count in self._widths)
            at_zero = math.exp(factors) / math.sqrt(2 * math.pi)
        result = np.full(len(z), at_zero)
        log_z = np.log(np.where(z > 0, z, 1.0))
        saddle = self._saddle(log_z)
        pole = (saddle < _NEAR_POLE) & (self._narrowest > 1) & (z > 0)
        plain = (z > 0) & ~pole
        result[plain] = self._contour(log_z[plain], np.maximum(saddle[plain], _NEAR_POLE / 8))
        # Small z: the pole at s = 0 gives p(0), and the contour to its left the rest.
        result[pole] += self._contour(log_z[pole], np.full(int(pole.sum()), _LEFT_OF_POLE))
        return result

    def _saddle(self, log_z: Array) -> Array:
        """The real s > 0 where E|z|^(s-1) z^-s is least, by bisection in log s."""
        low, high = np.full(len(log_z), -12.0), np.full(len(log_z), 40.0)
        for _ in range(50):
            middle = (low + high) / 2
            c = np.exp(middle)
            slope = math.log(2) / 2 + special.digamma(c / 2) / 2  # d/dc log E|z|^(c-1)
            for n, count in self._widths:
                slope = slope + count / 2 * (special.digamma((n + c - 1) / 2) - math.log(n / 2))
            below = slope < log_z
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return np.asarray(np.exp((low + high) / 2))

    def _contour(self, log_z: Array, c: Array) -> Array:
        """(1 / 4 pi) int dt E|z|^(c+it-1) z^-(c+it) by the trapezoid rule on log E|z|^(s-1)."""
        # The step is fine enough for the width of the saddle and for the nearest pole.
        curvature = special.polygamma(1, np.abs(c) / 2) / 4
        for n, count in self._widths:
            curvature = curvature + count / 4 * special.polygamma(1, (n + np.maximum(c, 0) - 1) / 2)
        distance = np.where(c > 0, c, -_LEFT_OF_POLE)
        step = np.minimum(0.5 / np.sqrt(curvature), _DIGITS * distance)
        total, largest = np.zeros(len(c)), np.zeros(len(c))
        for block in range(_MOST_BLOCKS):
            nodes = np.arange(block * _BLOCK, (block + 1) * _BLOCK)
            s = c[:, None] + 1j * step[:, None] * nodes
            transform = (s - 1) / 2 * math.log(2) + special.loggamma(s / 2) - math.log(math.pi) / 2
            for n, count in self._widths:
                transform = transform + count * log_chi_square_moment(n, (s - 1) / 2)
            terms = np.exp(transform - s * log_z[:, None])
            total += (np.where(nodes == 0, 1.0, 2.0) * terms.real).sum(axis=1)
            size = np.abs(terms[:, -1])
            largest = np.maximum(largest, np.abs(terms).max(axis=1))
            if np.all(size <= 1e-18 * largest):
                return total * step / (4 * math.pi)
        raise NotSupportedError(
            "the contour integral did not settle: z is too close to 0; use the value at 0."
        )


def scaling_limit_moments(r: float, max_order: int = 4) -> NDArray[np.float64]:
    """G_2m / G_2^m = e^(m (m-1) r) for m = 1..max_order, as n and L grow at fixed r = L / n (3.55)."""
    m = np.arange(1, check_order(max_order) + 1)
    return np.asarray(np.exp(m * (m - 1) * _ratio(r)))


def scaling_limit_connected(r: float, max_order: int = 4) -> NDArray[np.float64]:
    """kappa_m / G_2^m for m = 1..max_order in the scaling limit (3.56), (3.57)."""
    order, ratio = check_order(max_order), _ratio(r)

    def by_decimals() -> list[NDArray[np.object_]]:
        powers = [(m * (m - 1) * Decimal(ratio)).exp() for m in range(1, order + 1)]
        return [cumulants_from_moments(np.array(powers, dtype=object))]

    return np.asarray(settled(by_decimals)[0])


def scaling_limit_leading(r: float, m: int) -> float:
    """kappa_m / G_2^m at small r: m^(m-2) (2 r)^(m-1)."""
    return float(check_order(m)) ** (m - 2) * (2 * _ratio(r)) ** (m - 1)


def scaling_limit_relative_error(r: float, m: int, n: int) -> float:
    """Exact minus limit over limit for G_2m at width n, at leading order in 1 / n; large once m^3 L / n^2 is 1."""
    pairs = check_order(m) * (m - 1)
    return -pairs / check_order(n) * (1 + _ratio(r) / 6 * (4 * m - 2))


class NormalLaw(NamedTuple):
    """Mean and variance of a normal variable."""

    mean: float
    variance: float


def scaling_limit_log_variance(r: float) -> NormalLaw:
    """log(R / G_2) tends to N(-r, 2 r): the typical mean square is e^-r G_2, its mean is carried by rare draws."""
    return NormalLaw(-_ratio(r), 2 * _ratio(r))


@dataclass(frozen=True, repr=False)
class PerturbationCheck(Result):
    """Whether the first order in 1 / n describes G_2m; true or false as a whole."""

    ratio: float
    """m^2 L / n, which must be small."""
    exact: float
    """G_2m / G_2^m, infinite where it overflows."""
    first_order: float
    """1 + m (m - 1) (L - 1) / n."""
    tolerance: float

    @property
    def relative_error(self) -> float:
        """Of the first order."""
        return abs(self.first_order / self.exact - 1)

    def __bool__(self) -> bool:
        return self.relative_error <= self.tolerance


def perturbation_valid(n: int, L: int, m: int, tolerance: float = 0.1) -> PerturbationCheck:
    """Is the 1 / n expansion of the 2m-point function any good at width n, in layer L?"""
    n, L, m = check_order(n), check_order(L), check_order(m)
    log_factor = float(np.log1p(2 * np.arange(m) / n).sum())
    with np.errstate(over="ignore"):
        exact = float(np.exp((L - 1) * log_factor))
    return PerturbationCheck(m**2 * L / n, exact, 1 + m * (m - 1) * (L - 1) / n, tolerance)


def draws_needed(r: float, m: int, relative_error: float) -> float:
    """Draws for a relative standard error of the mean of R^m: (e^(2 m^2 r) - 1) / error^2 in the scaling limit.

    Where that is hopeless, verify through log R or a fractional moment instead.
    """
    return _draws(2 * check_order(m) ** 2 * _ratio(r), relative_error)


def draws_needed_at(
    network: DeepLinear, m: int, relative_error: float, layer: int | None = None, G0: float = 1.0
) -> float:
    """As :func:`draws_needed`, exactly for one network and layer (the output unless told).

    The input's mean square G0 matters only with biases.
    """
    place = layer_index(network, network.depth if layer is None else layer)
    logs = log_flow(network, G0, 2 * check_order(m))[place]
    return _draws(float(logs[2 * m - 1] - 2 * logs[m - 1]), relative_error)


def _draws(log_second: float, relative_error: float) -> float:
    """(e^log_second - 1) / error^2 draws, where e^log_second = E[R^2m] / E[R^m]^2."""
    if not relative_error > 0:
        raise InputError(f"the relative error is {relative_error}, but it must be positive.")
    excess = math.expm1(log_second) if log_second < 700 else math.inf
    return max(1.0, excess / relative_error**2)


def _ratio(r: float) -> float:
    if not (math.isfinite(r) and r >= 0):
        raise InputError(f"r = L / n is {r}, but it must be a finite number from 0 on.")
    return float(r)
