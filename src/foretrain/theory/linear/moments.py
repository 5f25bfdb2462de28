"""Deep linear networks and their moments for a single input, exact in width.

Moments G_2m, connected correlators kappa_m and fluctuations, and what weights that are not Gaussian make of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Decimal, localcontext
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from foretrain.gaussian.covariance import check_covariance
from foretrain.gaussian.cumulants import cumulants_from_moments
from foretrain.support.answers import Result
from foretrain.support.errors import InputError, NotSupportedError

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


def check_mean_square(G0: float) -> float:
    """G^(0), refused unless it is a mean square."""
    if not (math.isfinite(G0) and G0 >= 0):
        raise InputError(f"G0 is {G0}, but the mean square of an input is a finite number from 0 on.")
    return float(G0)


def check_one_gram(gram: ArrayLike) -> NDArray[np.float64]:
    """The Gram matrix (N, N) of the inputs, divided by n_0."""
    kernel = check_covariance(gram)
    if kernel.ndim != 2:
        raise InputError(f"one Gram matrix (N, N) is needed, but its shape is {kernel.shape}.")
    return kernel


def check_order(order: int, least: int = 1) -> int:
    """A number of orders to compute."""
    if order < least or order != int(order):
        raise InputError(f"the order is {order}, but it must be a whole number from {least} on.")
    return int(order)


def layer_index(network: DeepLinear, layer: int) -> int:
    """The place of a layer in an array over layers 1..L."""
    if not 1 <= layer <= network.depth:
        raise InputError(f"layer {layer} does not exist: the network has layers 1 to {network.depth}.")
    return layer - 1


def by_layer(network: DeepLinear, values: Any, name: str, **axes: Any) -> xr.DataArray:
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
    return xr.Dataset({name: by_layer(network, values, name) for name, values in named.items()})


Number = Any  # Decimal or _Series: whatever the recursion is run in
_DIGITS = (60, 120, 240, 480, 960)


def two_point(network: DeepLinear, gram: ArrayLike) -> xr.DataArray:
    """G^(l) = C_b + C_W G^(l-1) (3.14), from G^(0) of one input or the Gram matrix (N, N) of several.

    E[z_i z_j] = delta_ij G^(l); G^(0) is the inner product of the inputs divided by n_0.
    """
    if np.ndim(gram) == 0:
        kernel: NDArray[Any] = np.asarray(check_mean_square(float(np.asarray(gram))))
        axes = {}
    else:
        kernel = check_one_gram(gram)
        axes = {"input_1": None, "input_2": None}
    layers = []
    for gain, bias in zip(network.gains, network.biases):
        kernel = bias + gain * kernel
        layers.append(kernel)
    return by_layer(network, np.stack(layers), "G", **axes)


def width_factor(m: int, n: int) -> float:
    """c_2m(n) = prod_(s<m) (1 + 2 s / n) (3.46): what one hidden layer of width n does to G_2m / G_2^m."""
    return float(np.exp(_log_width_factors(m, n)[-1]))


def log_moments(network: DeepLinear, G0: float, max_order: int = 4) -> xr.DataArray:
    """log G_2m by layer and order m = 1..max_order, safe where G_2m overflows (3.47)."""
    flow = log_flow(network, G0, max_order)
    return by_layer(network, flow, "log G", order=np.arange(1, max_order + 1))


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
    order = check_order(max_order)
    table = settled(
        lambda: [cumulants_from_moments(_objects(row)) for row in _decimal_flow(network, G0, order)]
    )
    return by_layer(network, table, "kappa", order=np.arange(1, order + 1))


def connected_expansion(
    network: DeepLinear, G0: float, max_order: int = 4, max_power: int = 4
) -> xr.DataArray:
    """kappa_m split by powers of 1 / width: summed over ``power`` up to its end it is exact.

    The leading power of kappa_m is m - 1, as in kappa_2 = 2 (l - 1) / n + .. (3.28).
    """
    order, power = check_order(max_order), check_order(max_power, least=0)
    flow = _series_flow(network, G0, order, power)
    table = [[kappa.terms for kappa in cumulants_from_moments(_objects(row))] for row in flow]
    return by_layer(network, table, "kappa", order=np.arange(1, order + 1), power=np.arange(power + 1))


def fluctuation(network: DeepLinear, G0: float) -> xr.DataArray:
    """Variance of the layer's mean square sum_j z_j^2 / n_l, whose mean is G_2 (3.31); here n_l itself enters."""

    def by_decimals() -> list[Decimal]:
        flow = _decimal_flow(network, G0, 2)
        return [_variance(row, Decimal(1) / n) for row, n in zip(flow, network.widths)]

    return by_layer(network, settled(by_decimals), "Var O")


def fluctuation_expansion(network: DeepLinear, G0: float, max_power: int = 2) -> xr.DataArray:
    """The variance of the layer's mean square split by powers of 1 / width; 2 l / n G_2^2 at the first (3.33)."""
    power = check_order(max_power, least=0)
    flow = _series_flow(network, G0, 2, power)
    table = [_variance(row, _Series.small(1 / n, power)).terms for row, n in zip(flow, network.widths)]
    return by_layer(network, table, "Var O", power=np.arange(power + 1))


def log_flow(network: DeepLinear, G0: float, max_order: int) -> NDArray[np.float64]:
    """log G_2m as a plain array (layer, order)."""
    order = check_order(max_order)
    with np.errstate(divide="ignore"):
        first = np.logaddexp(
            np.log(network.biases[0]), np.log(network.gains[0]) + np.log(check_mean_square(G0))
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
    first = number(network.biases[0]) + number(network.gains[0]) * number(check_mean_square(G0))
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


def settled(compute: Callable[[], Any]) -> NDArray[np.float64]:
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
