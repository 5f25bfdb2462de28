"""The architecture of a deep linear network, and what weights that are not Gaussian make of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.gaussian.covariance import check_covariance
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
