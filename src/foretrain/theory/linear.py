"""Deep linear networks, solved exactly at any width and depth (chapter 3).

``DeepLinear`` holds the architecture; the functions take it and G^(0), the mean square of the input. Layers run
from 1 to L. The law of layer 1 is Gaussian, so widths n_1 .. n_(l-1) enter at layer l, never n_0; only the
fluctuation of a whole layer feels its own width n_l.

The law of the output: z_i = sqrt(R) g_i, where R is G_2 times a product of chi-squares, one per hidden layer.

The density of a neuron is the inverse Mellin transform of E|z|^(s-1). Integer moments do not determine it beyond
layer 2 (they grow too fast), but complex ones do. The contour passes through the saddle point, where the integrand
does not oscillate, so that far tails keep their relative precision.

Beside it the scaling limit at fixed r = L / n, where 1/n fails, and how many draws a check needs.

Correlators of several inputs are E[z_(i1,a1) .. z_(i2m,a2m)] = sum_pi delta_pi(i) A_pi(a). One layer of width n takes
the amplitudes A of pairings to C_W^m sum_pi' n^(loops(pi, pi') - m) A_pi'.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Decimal, localcontext
from functools import cache
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from foretrain.gaussian.covariance import check_covariance
from foretrain.gaussian.cumulants import cumulants_from_moments
from foretrain.gaussian.wick import Pairing, loop_count, pairings
from foretrain.support.answers import Result
from foretrain.support.arguments import Array
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.seeds import Seed, generator

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True, repr=False)
class DeepLinear(Result):
    """z^(1) = b + W x, z^(l+1) = b + W (slope z^(l)), with weight variance C_W / (width below).

    Parameters
    ----------
    widths
        n_1 .. n_L: the hidden widths and the output's. The input's dimension n_0 never matters.
    C_W, C_b
        One number, or one per layer.
    slope
        Of the activation, sigma(z) = slope z.
    """

    widths: Sequence[int]
    C_W: float | Sequence[float] = 1.0
    C_b: float | Sequence[float] = 0.0
    slope: float = 1.0

    def __post_init__(self) -> None:
        widths = tuple(int(width) for width in self.widths)
        if not widths or min(widths) < 1 or any(int(w) != w for w in self.widths):
            raise InputError(
                f"the widths {tuple(self.widths)} must be whole numbers from 1 on, one per layer."
            )
        object.__setattr__(self, "widths", widths)
        object.__setattr__(self, "C_W", _per_layer(self.C_W, len(widths), "C_W"))
        object.__setattr__(self, "C_b", _per_layer(self.C_b, len(widths), "C_b"))
        if not math.isfinite(self.slope):
            raise InputError(f"the slope is {self.slope}, but it must be a finite number.")

    @classmethod
    def critical(cls, widths: Sequence[int], slope: float = 1.0) -> DeepLinear:
        """The tuning that preserves the two-point exactly: no bias and slope^2 C_W = 1 (3.15)."""
        if slope == 0 or not math.isfinite(slope):
            raise InputError(f"a slope of {slope} has no critical tuning: use a finite one other than 0.")
        return cls(widths, C_W=[1.0] + [1 / slope**2] * (len(widths) - 1), slope=slope)

    @property
    def depth(self) -> int:
        """L, the number of layers of weights."""
        return len(self.widths)

    @property
    def gains(self) -> tuple[float, ...]:
        """C_W of layer 1, slope^2 C_W of the others: what multiplies the two-point."""
        first, *others = _values(self.C_W)
        return (first, *(self.slope**2 * gain for gain in others))

    @property
    def biases(self) -> tuple[float, ...]:
        """C_b by layer."""
        return _values(self.C_b)

    def require_no_bias(self, what: str) -> None:
        """Refuse where the law is not a product of chi-squares: a bias after layer 1."""
        if any(self.biases[1:]):
            raise NotSupportedError(
                f"{what} is known only without biases after layer 1: set C_b = 0 there, or use sample_variances."
            )


def _check_mean_square(G0: float) -> float:
    """G^(0), refused unless it is a mean square."""
    if not (math.isfinite(G0) and G0 >= 0):
        raise InputError(f"G0 is {G0}, but the mean square of an input is a finite number from 0 on.")
    return float(G0)


def _check_one_gram(gram: ArrayLike) -> NDArray[np.float64]:
    """The Gram matrix (N, N) of the inputs, divided by n_0."""
    kernel = check_covariance(gram)
    if kernel.ndim != 2:
        raise InputError(f"one Gram matrix (N, N) is needed, but its shape is {kernel.shape}.")
    return kernel


def _check_order(order: int, least: int = 1) -> int:
    """A number of orders to compute."""
    if order < least or order != int(order):
        raise InputError(f"the order is {order}, but it must be a whole number from {least} on.")
    return int(order)


def _layer_index(network: DeepLinear, layer: int) -> int:
    """The place of a layer in an array over layers 1..L."""
    if not 1 <= layer <= network.depth:
        raise InputError(f"layer {layer} does not exist: the network has layers 1 to {network.depth}.")
    return layer - 1


def _by_layer(network: DeepLinear, values: Any, name: str, **axes: Any) -> xr.DataArray:
    """An array labelled by layer, then by the named axes."""
    import xarray as xr

    coordinates = {"layer": np.arange(1, network.depth + 1), **axes}
    dims = ("layer", *axes)
    return xr.DataArray(
        np.asarray(values, dtype=np.float64),
        dims=dims,
        coords={dim: labels for dim, labels in coordinates.items() if labels is not None},
        name=name,
    )


def _per_layer(value: float | Sequence[float], layers: int, name: str) -> tuple[float, ...]:
    given = np.asarray(value, dtype=np.float64)
    if given.shape not in ((), (layers,)):
        raise InputError(
            f"`{name}` has shape {given.shape}, but it must be one number or one per layer ({layers})."
        )
    if not np.isfinite(given).all() or (given < 0).any():
        raise InputError(f"`{name}` is {value}, but a variance must be a finite number from 0 on.")
    return tuple(float(entry) for entry in np.broadcast_to(given, (layers,)))


def _values(per_layer: float | Sequence[float]) -> tuple[float, ...]:
    """What ``__post_init__`` has turned into a tuple."""
    return tuple(per_layer) if isinstance(per_layer, Sequence) else (per_layer,)


def nongaussian_weights(network: DeepLinear, x: ArrayLike, excess_kurtosis: float) -> xr.Dataset:
    """G_2, G_4, D and the fluctuation by layer, for one input x (n_0,) and weights of the given kurtosis.

    E[z_1 z_2 z_3 z_4] = (3 pairings) G_4 + delta_1234 D. D does not pile up with depth: the sense in which the
    law of the weights does not matter. ``theory.ensembles.weight_law(name).excess_kurtosis`` knows the usual laws.
    Offered without biases.
    """
    import xarray as xr

    if any(network.biases):
        raise NotSupportedError("non-Gaussian weights are offered without biases: set C_b = 0.")
    vector = np.asarray(x, dtype=np.float64)
    if vector.ndim != 1 or not vector.size or not np.isfinite(vector).all():
        raise InputError("one input is needed: a finite vector x of shape (n_0,).")
    if not excess_kurtosis >= -2:
        raise InputError(f"an excess kurtosis of {excess_kurtosis} does not exist: it is at least -2.")
    first = network.gains[0]
    G2 = first * float((vector**2).mean())
    G4, D = G2**2, excess_kurtosis * first**2 * float((vector**4).mean()) / vector.size
    rows = [(G2, G4, D)]
    for n, gain in zip(network.widths, network.gains[1:]):
        G2, G4, D = (
            gain * G2,
            gain**2 * ((1 + 2 / n) * G4 + D / n),
            excess_kurtosis * gain**2 * (3 * G4 + D) / n,
        )
        rows.append((G2, G4, D))
    table = np.array(rows)
    widths = np.array(network.widths)
    spread = (1 + 2 / widths) * table[:, 1] + table[:, 2] / widths - table[:, 0] ** 2
    named = {"G2": table[:, 0], "G4": table[:, 1], "D": table[:, 2], "fluctuation": spread}
    return xr.Dataset({name: _by_layer(network, values, name) for name, values in named.items()})


Number = Any  # Decimal or _Series: whatever the recursion is run in
_DIGITS = (60, 120, 240, 480, 960)


def two_point(network: DeepLinear, gram: ArrayLike) -> xr.DataArray:
    """G^(l) = C_b + C_W G^(l-1) (3.14), from G^(0) of one input or the Gram matrix (N, N) of several.

    E[z_i z_j] = delta_ij G^(l); G^(0) is the inner product of the inputs divided by n_0.
    """
    if np.ndim(gram) == 0:
        kernel: NDArray[Any] = np.asarray(_check_mean_square(float(np.asarray(gram))))
        axes = {}
    else:
        kernel = _check_one_gram(gram)
        axes = {"input_1": None, "input_2": None}
    layers = []
    for gain, bias in zip(network.gains, network.biases):
        kernel = bias + gain * kernel
        layers.append(kernel)
    return _by_layer(network, np.stack(layers), "G", **axes)


def width_factor(m: int, n: int) -> float:
    """c_2m(n) = prod_(s<m) (1 + 2 s / n) (3.46): what one hidden layer of width n does to G_2m / G_2^m."""
    return float(np.exp(_log_width_factors(m, n)[-1]))


def log_moments(network: DeepLinear, G0: float, max_order: int = 4) -> xr.DataArray:
    """log G_2m by layer and order m = 1..max_order, safe where G_2m overflows (3.47)."""
    flow = _log_flow(network, G0, max_order)
    return _by_layer(network, flow, "log G", order=np.arange(1, max_order + 1))


def moments(network: DeepLinear, G0: float, max_order: int = 4) -> xr.DataArray:
    """G_2m by layer and order m: E[z_i1 .. z_i2m] = (sum over pairings of deltas) G_2m (3.44)-(3.47)."""
    logs = log_moments(network, G0, max_order)
    with np.errstate(over="ignore"):
        return logs.copy(data=np.exp(logs.values)).rename("G")


def connected(network: DeepLinear, G0: float, max_order: int = 4) -> xr.DataArray:
    """kappa_m by layer and order m, the coefficients of the connected 2m-point correlators (3.29), (3.57).

    kappa_2 is also the interaction of two neurons, E[(z_j^2 - G_2)(z_k^2 - G_2)] (3.30). They are tiny
    differences of moments at large width, so they are computed in as many digits as that takes.
    """
    order = _check_order(max_order)
    table = _settled(
        lambda: [cumulants_from_moments(_objects(row)) for row in _decimal_flow(network, G0, order)]
    )
    return _by_layer(network, table, "kappa", order=np.arange(1, order + 1))


def connected_expansion(
    network: DeepLinear, G0: float, max_order: int = 4, max_power: int = 4
) -> xr.DataArray:
    """kappa_m split by powers of 1 / width: summed over ``power`` up to its end it is exact.

    The leading power of kappa_m is m - 1, as in kappa_2 = 2 (l - 1) / n + .. (3.28).
    """
    order, power = _check_order(max_order), _check_order(max_power, least=0)
    flow = _series_flow(network, G0, order, power)
    table = [[kappa.terms for kappa in cumulants_from_moments(_objects(row))] for row in flow]
    return _by_layer(network, table, "kappa", order=np.arange(1, order + 1), power=np.arange(power + 1))


def fluctuation(network: DeepLinear, G0: float) -> xr.DataArray:
    """Variance of the layer's mean square sum_j z_j^2 / n_l, whose mean is G_2 (3.31); here n_l itself enters."""

    def by_decimals() -> list[Decimal]:
        flow = _decimal_flow(network, G0, 2)
        return [_variance(row, Decimal(1) / n) for row, n in zip(flow, network.widths)]

    return _by_layer(network, _settled(by_decimals), "Var O")


def fluctuation_expansion(network: DeepLinear, G0: float, max_power: int = 2) -> xr.DataArray:
    """The variance of the layer's mean square split by powers of 1 / width; 2 l / n G_2^2 at the first (3.33)."""
    power = _check_order(max_power, least=0)
    flow = _series_flow(network, G0, 2, power)
    table = [_variance(row, _Series.small(1 / n, power)).terms for row, n in zip(flow, network.widths)]
    return _by_layer(network, table, "Var O", power=np.arange(power + 1))


def _log_flow(network: DeepLinear, G0: float, max_order: int) -> NDArray[np.float64]:
    """log G_2m as a plain array (layer, order)."""
    order = _check_order(max_order)
    with np.errstate(divide="ignore"):
        first = np.logaddexp(
            np.log(network.biases[0]), np.log(network.gains[0]) + np.log(_check_mean_square(G0))
        )
        flow = [first * np.arange(1, order + 1)]
        for n, gain, bias in zip(network.widths, network.gains[1:], network.biases[1:]):
            below = np.append(0.0, flow[-1] + _log_width_factors(order, n))
            result = np.empty(order)
            for m in range(1, order + 1):  # log sum_k C(m, k) C_b^(m-k) C_W^k c_2k G_2k
                k = np.arange(m + 1)
                # xlogy has 0 log 0 = 0, which is what "no bias" means at k = m.
                weights = special.xlogy(m - k, bias) + special.xlogy(k, gain) + np.log(special.comb(m, k))
                result[m - 1] = np.logaddexp.reduce(weights + below[: m + 1])
            flow.append(result)
    return np.stack(flow)


def _variance(row: list[Number], inverse_width: Number) -> Number:
    return row[1] + 2 * (inverse_width * row[1]) - row[0] * row[0]


def _log_width_factors(order: int, n: int) -> NDArray[np.float64]:
    """log c_2m(n) for m = 1..order."""
    return np.cumsum(np.log1p(2 * np.arange(order) / n))


def _flow(
    network: DeepLinear,
    G0: float,
    order: int,
    number: Callable[[float], Number],
    inverse: Callable[[int], Number],
) -> list[list[Number]]:
    """G_2m for m = 1..order at every layer, in any arithmetic: (3.45) with biases."""
    one = number(1.0)
    first = number(network.biases[0]) + number(network.gains[0]) * number(_check_mean_square(G0))
    flow = [_powers(first, order)]
    for n, gain, bias in zip(network.widths, network.gains[1:], network.biases[1:]):
        below, factor = [one], one
        for m, moment in enumerate(flow[-1]):
            factor = factor * (one + 2 * m * inverse(n))
            below.append(factor * moment)
        gains, biases = [one, *_powers(number(gain), order)], [one, *_powers(number(bias), order)]
        terms = (
            [math.comb(m, k) * (biases[m - k] * gains[k] * below[k]) for k in range(m + 1)]
            for m in range(1, order + 1)
        )
        flow.append([sum(row) for row in terms])
    return flow


def _powers(value: Number, order: int) -> list[Number]:
    result = [value]
    for _ in range(order - 1):
        result.append(result[-1] * value)
    return result


def _decimal_flow(network: DeepLinear, G0: float, order: int) -> list[list[Decimal]]:
    return _flow(network, G0, order, Decimal, lambda n: Decimal(1) / n)


def _series_flow(network: DeepLinear, G0: float, order: int, power: int) -> list[list[_Series]]:
    def constant(value: float) -> _Series:
        return _Series.constant(value, power)

    return _flow(network, G0, order, constant, lambda n: _Series.small(1 / n, power))


def _settled(compute: Callable[[], Any]) -> NDArray[np.float64]:
    """The result in so many digits that doubling them changes nothing."""
    previous = None
    for digits in _DIGITS:
        with localcontext() as context:
            context.prec, context.Emax, context.Emin = digits, MAX_EMAX, MIN_EMIN
            found = np.array([[float(entry) for entry in np.atleast_1d(row)] for row in compute()])
        if previous is not None and np.allclose(found, previous, rtol=1e-13, atol=0.0, equal_nan=True):
            return found.squeeze(axis=1) if found.shape[1] == 1 else found
        previous = found
    raise NotSupportedError(
        f"the cancellation exceeds {_DIGITS[-1]} digits: the moments differ by less than that from Gaussian ones."
    )


def _objects(row: list[Number]) -> NDArray[Any]:
    table = np.empty(len(row), dtype=object)
    table[:] = row
    return table


@dataclass(frozen=True)
class _Series:
    """A power series in a bookkeeping parameter that counts powers of 1 / width, cut after a fixed power."""

    terms: NDArray[np.float64]

    @classmethod
    def constant(cls, value: float, power: int) -> _Series:
        return cls(np.append(value, np.zeros(power)))

    @classmethod
    def small(cls, value: float, power: int) -> _Series:
        return cls(np.append([0.0, value], np.zeros(power))[: power + 1])

    def __add__(self, other: Any) -> Any:
        return _Series(self.terms + other.terms) if isinstance(other, _Series) else NotImplemented

    def __sub__(self, other: Any) -> Any:
        if other == 0:  # an empty sum
            return self
        return _Series(self.terms - other.terms) if isinstance(other, _Series) else NotImplemented

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, _Series):
            return _Series(np.convolve(self.terms, other.terms)[: len(self.terms)])
        return NotImplemented

    def __radd__(self, other: Any) -> Any:
        return self if other == 0 else NotImplemented

    def __rmul__(self, other: Any) -> Any:
        return _Series(other * self.terms) if isinstance(other, int) else NotImplemented


_LARGE = 40.0  # from here on the Stirling series below is exact to rounding
_BLOCK = 64  # nodes of the contour at a time
_MOST_BLOCKS = 400
_NEAR_POLE = 0.25
_LEFT_OF_POLE = -0.5
_STEP = 2 * math.pi / 38  # step over distance to a singularity for 16 digits: exp(-38)


def absolute_moment(network: DeepLinear, G0: float, s: float) -> xr.DataArray:
    """E|z|^s by layer for any real s > -1, fractional powers included; infinite where it overflows."""
    if not s > -1:
        raise InputError(f"E|z|^s diverges at s = {s}: use a power above -1.")
    network.require_no_bias("E|z|^s")
    log_two_point = _log_flow(network, G0, 1)[:, 0]
    gaussian = s / 2 * math.log(2) + math.lgamma((s + 1) / 2) - math.log(math.pi) / 2
    factors = [0.0, *(log_chi_square_moment(n, s / 2) for n in network.widths[:-1])]
    power = np.zeros(network.depth) if s == 0 else s / 2 * log_two_point
    return _by_layer(network, np.exp(power + gaussian + np.cumsum(factors)), "E|z|^s")


def log_variance_statistics(network: DeepLinear, G0: float) -> xr.Dataset:
    """Mean and variance of log R by layer: at large depth the typical R is far below its mean G_2."""
    import xarray as xr

    network.require_no_bias("the law of log R")
    if _check_mean_square(G0) == 0:
        raise InputError("log R needs a non-zero input: G0 is 0.")
    half = np.array([0.0, *network.widths[:-1]]) / 2
    shifts, spreads = np.zeros(network.depth), np.zeros(network.depth)
    a = half[1:]
    series = -1 / (2 * a) - (1 / 12 - (1 / 120 - 1 / (252 * a**2)) / a**2) / a**2
    shifts[1:] = np.where(a < _LARGE, special.digamma(a) - np.log(a), series)
    spreads[1:] = special.polygamma(1, half[1:])
    mean = _log_flow(network, G0, 1)[:, 0] + np.cumsum(shifts)
    return xr.Dataset(
        {
            "mean": _by_layer(network, mean, "mean"),
            "variance": _by_layer(network, np.cumsum(spreads), "variance"),
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
    result[:, 0] = network.biases[0] + network.gains[0] * _check_mean_square(G0)
    for layer, (n, gain, bias) in enumerate(zip(network.widths, network.gains[1:], network.biases[1:])):
        result[:, layer + 1] = bias + gain * result[:, layer] * random.chisquare(n, draws) / n
    return result


def sample_preactivations(
    network: DeepLinear, draws: int, G0: float, layer: int, neurons: int = 1, seed: Seed = 0
) -> Array:
    """Exact draws of some neurons of one layer, shape (draws, neurons)."""
    place = _layer_index(network, layer)
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
    place = _layer_index(network, layer)
    if any(network.biases[1 : place + 1]):
        raise NotSupportedError(
            "the density is known only without biases after layer 1: set C_b = 0 there, or sample."
        )
    log_two_point = float(_log_flow(network, G0, 1)[place, 0])
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
        step = np.minimum(0.5 / np.sqrt(curvature), _STEP * distance)
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
    m = np.arange(1, _check_order(max_order) + 1)
    return np.asarray(np.exp(m * (m - 1) * _ratio(r)))


def scaling_limit_connected(r: float, max_order: int = 4) -> NDArray[np.float64]:
    """kappa_m / G_2^m for m = 1..max_order in the scaling limit (3.56), (3.57)."""
    order, ratio = _check_order(max_order), _ratio(r)

    def by_decimals() -> list[NDArray[np.object_]]:
        powers = [(m * (m - 1) * Decimal(ratio)).exp() for m in range(1, order + 1)]
        return [cumulants_from_moments(np.array(powers, dtype=object))]

    return np.asarray(_settled(by_decimals)[0])


def scaling_limit_leading(r: float, m: int) -> float:
    """kappa_m / G_2^m at small r: m^(m-2) (2 r)^(m-1)."""
    return float(_check_order(m)) ** (m - 2) * (2 * _ratio(r)) ** (m - 1)


def scaling_limit_relative_error(r: float, m: int, n: int) -> float:
    """Exact minus limit over limit for G_2m at width n, at leading order in 1 / n; large once m^3 L / n^2 is 1."""
    pairs = _check_order(m) * (m - 1)
    return -pairs / _check_order(n) * (1 + _ratio(r) / 6 * (4 * m - 2))


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
    n, L, m = _check_order(n), _check_order(L), _check_order(m)
    log_factor = float(np.log1p(2 * np.arange(m) / n).sum())
    with np.errstate(over="ignore"):
        exact = float(np.exp((L - 1) * log_factor))
    return PerturbationCheck(m**2 * L / n, exact, 1 + m * (m - 1) * (L - 1) / n, tolerance)


def draws_needed(r: float, m: int, relative_error: float) -> float:
    """Draws for a relative standard error of the mean of R^m: (e^(2 m^2 r) - 1) / error^2 in the scaling limit.

    Where that is hopeless, verify through log R or a fractional moment instead.
    """
    return _draws(2 * _check_order(m) ** 2 * _ratio(r), relative_error)


def draws_needed_at(
    network: DeepLinear, m: int, relative_error: float, layer: int | None = None, G0: float = 1.0
) -> float:
    """As :func:`draws_needed`, exactly for one network and layer (the output unless told).

    The input's mean square G0 matters only with biases.
    """
    place = _layer_index(network, network.depth if layer is None else layer)
    logs = _log_flow(network, G0, 2 * _check_order(m))[place]
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


Amplitudes = dict[tuple[int, ...], Array]  # by the points that are left, then by their pairings

_MOST_POINTS = 8


def pairing_amplitudes(network: DeepLinear, gram: ArrayLike, inputs: Sequence[int]) -> xr.DataArray:
    """A_pi by layer and pairing, for the 2m points with the given inputs (an input may repeat), biases included.

    The coordinate names a pairing by the places of its points: "(12)(34)" joins the first two and the last two.
    """
    kernel = _check_one_gram(gram)
    if len(inputs) % 2 or not inputs:
        raise InputError(f"{len(inputs)} points have no correlator: name an even number of inputs.")
    if len(inputs) > _MOST_POINTS:
        raise NotSupportedError(
            f"{len(inputs)} points have {math.prod(range(len(inputs) - 1, 0, -2))} pairings: "
            f"correlators of several inputs are offered up to {_MOST_POINTS} points."
        )
    if any(not 0 <= index < len(kernel) for index in inputs):
        raise InputError(f"the inputs {tuple(inputs)} must lie within the {len(kernel)} of the Gram matrix.")
    points = tuple(range(len(inputs)))
    # Layer 1 is Gaussian: products of its two-point. Smaller sets of points are needed where biases act.
    first = network.biases[0] + network.gains[0] * kernel[np.ix_(inputs, inputs)]
    sizes = range(0, len(points) + 1, 2) if any(network.biases[1:]) else [len(points)]
    amplitudes: Amplitudes = {
        kept: np.array([math.prod(first[kept[a], kept[b]] for a, b in pairing) for pairing in pairings(size)])
        for size in sizes
        for kept in combinations(points, size)
    }
    flow = [amplitudes[points]]
    for n, gain, bias in zip(network.widths, network.gains[1:], network.biases[1:]):
        amplitudes = _next_layer(amplitudes, n, gain, bias)
        flow.append(amplitudes[points])
    names = ["".join(f"({a + 1}{b + 1})" for a, b in pairing) for pairing in pairings(len(points))]
    return _by_layer(network, np.stack(flow), "A", pairing=names)


def correlator(
    network: DeepLinear, gram: ArrayLike, inputs: Sequence[int], neurons: Sequence[Hashable]
) -> xr.DataArray:
    """The full E[z_(i1,a1) .. z_(i2m,a2m)] by layer, for neurons i and inputs a."""
    if len(neurons) != len(inputs):
        raise InputError(f"{len(inputs)} inputs but {len(neurons)} neurons are named: each point needs both.")
    joined = [all(neurons[a] == neurons[b] for a, b in pairing) for pairing in pairings(len(inputs))]
    amplitudes = pairing_amplitudes(network, gram, inputs)
    return amplitudes.where(np.array(joined), 0.0).sum("pairing").rename("E")


def connected_four_point(network: DeepLinear, gram: ArrayLike, quadruples: ArrayLike) -> xr.DataArray:
    """A_(12)(34) - G_12 G_34 by layer for input quadruples (Q, 4), biases included; no N^4 object is formed.

    This is the connected correlator of neurons i, i, j, j with j != i. The recursion is run on the connected
    part itself, so nothing cancels at large width.
    """
    kernel = _check_one_gram(gram)
    chosen = np.asarray(quadruples, dtype=np.intp)
    if chosen.ndim != 2 or chosen.shape[1] != 4:
        raise InputError(f"the quadruples must be a table (Q, 4) of inputs, not of shape {chosen.shape}.")
    if ((chosen < 0) | (chosen >= len(kernel))).any():
        raise InputError(f"the quadruples name inputs outside the {len(kernel)} of the Gram matrix.")
    kernels = two_point(network, kernel).values
    part = np.zeros((3, len(chosen)))
    a, b, c, d = chosen.T
    flow = [part[0]]
    for n, gain, below in zip(network.widths, network.gains[1:], kernels):
        full = part + np.stack(
            [below[a, b] * below[c, d], below[a, c] * below[b, d], below[a, d] * below[b, c]]
        )
        part = gain**2 * (part + (full.sum(axis=0) - full) / n)
        flow.append(part[0])
    return _by_layer(network, np.stack(flow), "A connected", quadruple=None)


def _next_layer(below: Amplitudes, n: int, gain: float, bias: float) -> Amplitudes:
    """Each pair of a pairing carries C_b, or C_W / n times a sum over the neurons below."""
    passed = {}
    for kept, A in below.items():
        weights = float(n) ** (_loops(len(kept)) - len(kept) // 2)
        passed[kept] = gain ** (len(kept) // 2) * (weights @ A)
    if len(below) == 1:
        return passed
    return {
        kept: np.array([_with_biases(kept, pairing, passed, bias) for pairing in pairings(len(kept))])
        for kept in below
    }


def _with_biases(kept: tuple[int, ...], pairing: Pairing, passed: Amplitudes, bias: float) -> float:
    pairs = [(kept[a], kept[b]) for a, b in pairing]
    total = 0.0
    for size in range(len(pairs) + 1):
        for through in combinations(pairs, size):
            points = tuple(sorted(point for pair in through for point in pair))
            place = {point: index for index, point in enumerate(points)}
            inner = tuple((place[a], place[b]) for a, b in through)
            total += bias ** (len(pairs) - size) * passed[points][_pairing_places(len(points))[inner]]
    return total


@cache
def _pairing_places(points: int) -> dict[Pairing, int]:
    return {pairing: index for index, pairing in enumerate(pairings(points))}


@cache
def _loops(points: int) -> NDArray[np.intp]:
    every = pairings(points)
    return np.array([[loop_count(one, two) for two in every] for one in every])
