"""The law of the output: z_i = sqrt(R) g_i, where R is G_2 times a product of chi-squares, one per hidden layer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from foretrain.support.errors import InputError
from foretrain.support.seeds import Seed, generator
from foretrain.theory.linear.moments import log_flow
from foretrain.theory.linear.network import DeepLinear, by_layer, check_mean_square, layer_index

if TYPE_CHECKING:
    import xarray as xr

_LARGE = 40.0  # from here on the Stirling series below is exact to rounding


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
    shifts[1:] = _digamma_minus_log(half[1:])
    spreads[1:] = special.polygamma(1, half[1:])
    mean = log_flow(network, G0, 1)[:, 0] + np.cumsum(shifts)
    return xr.Dataset(
        {
            "mean": by_layer(network, mean, "mean"),
            "variance": by_layer(network, np.cumsum(spreads), "variance"),
        }
    )


def sample_variances(network: DeepLinear, draws: int, G0: float, seed: Seed = 0) -> NDArray[np.float64]:
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
) -> NDArray[np.float64]:
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
        value = special.loggamma(a + s) - special.gammaln(a) - s * math.log(a)
    else:
        value = (a + s - 0.5) * _log1p(s / a) - s + _stirling(a + s) - _stirling(a)
    return value


def _log1p(x: Any) -> Any:
    """log(1 + x) for small complex x, where numpy's loses digits."""
    if not np.iscomplexobj(x):
        return np.log1p(x)
    return 0.5 * np.log1p(2 * x.real + np.abs(x) ** 2) + 1j * np.arctan2(x.imag, 1 + x.real)


def _stirling(x: Any) -> Any:
    """What Stirling's formula leaves out of log Gamma(x)."""
    square = x * x
    return (1 / 12 - (1 / 360 - (1 / 1260 - 1 / (1680 * square)) / square) / square) / x


def _digamma_minus_log(a: NDArray[np.float64]) -> NDArray[np.float64]:
    series = -1 / (2 * a) - (1 / 12 - (1 / 120 - 1 / (252 * a**2)) / a**2) / a**2
    return np.asarray(np.where(a < _LARGE, special.digamma(a) - np.log(a), series))
