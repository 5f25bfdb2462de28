"""What K, V and G1 say by layer: second moment, kurtosis, covariance of neurons, four-point function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.errors import InputError
from foretrain.theory.architecture import MLP
from foretrain.theory.finite_width.expansion import refuse_residual
from foretrain.theory.flow import flow

if TYPE_CHECKING:
    import xarray as xr


Array = NDArray[np.float64]


def second_moment(mlp: MLP, X: ArrayLike) -> xr.Dataset:
    """E[z_a z_b] = K + G1/n at every layer (4.104): ``value``, and its parts ``leading`` and ``correction``."""
    import xarray as xr

    inputs = mlp.check_inputs(X)
    found = flow(mlp, inputs, ["K", "G1"])
    correction = found["G1"] / _fan_ins(mlp, inputs)
    return xr.Dataset(
        {"value": found["K"] + correction, "leading": found["K"], "correction": correction},
        attrs={"meaning": "E[z_a z_b] of one neuron to order 1/n", "network": repr(mlp)},
    )


def excess_kurtosis(mlp: MLP, X: ArrayLike) -> xr.DataArray:
    """E[z^4] / E[z^2]^2 - 3 = 3 V / (n K^2) at every layer, for every input (4.77): dims (layer, input)."""
    refuse_residual(mlp, "the excess kurtosis")
    kurtosis = 3 * fluctuation(mlp, X)
    return kurtosis.rename("excess_kurtosis").assign_attrs(
        meaning="excess kurtosis of a preactivation at leading order in 1/n"
    )


def fluctuation(mlp: MLP, X: ArrayLike) -> xr.DataArray:
    """V / (n K^2) at every layer, for every input: the relative variance of the metric, dims (layer, input)."""
    import xarray as xr

    inputs = mlp.check_inputs(X)
    alone = np.repeat(np.arange(len(inputs))[:, None], 4, axis=1)
    found = flow(mlp, inputs, ["K", "V"], quadruples=alone)
    K = np.einsum("laa->la", found["K"].values)
    V = found["V"].values / _fan_ins(mlp, inputs).values[:, None]
    return xr.DataArray(
        np.where(K > 0, V / np.where(K > 0, K, 1.0) ** 2, 0.0),
        dims=("layer", "input"),
        coords={"layer": found["K"]["layer"].values, "input": np.arange(len(inputs))},
        name="fluctuation",
        attrs={"meaning": "relative variance of the metric, V / (n K^2)"},
    )


def neuron_covariance(mlp: MLP, X: ArrayLike) -> xr.DataArray:
    """Cov[z_{i;a}^2, z_{j;b}^2] = V_(aa)(bb) / n of two neurons i != j (4.77): dims (layer, input_1, input_2)."""
    inputs = mlp.check_inputs(X)
    V = flow(mlp, inputs, ["norm_covariance"])["norm_covariance"]
    return (
        (V / _fan_ins(mlp, inputs))
        .rename("neuron_covariance")
        .assign_attrs(meaning="Cov[z_i^2, z_j^2] of two neurons at leading order in 1/n")
    )


def connected_four_point(
    mlp: MLP, X: ArrayLike, neurons: Sequence[int], inputs: Sequence[int], layer: int | None = None
) -> float:
    """The connected E[z_{i1;a1} z_{i2;a2} z_{i3;a3} z_{i4;a4}]: 1/n times the V's that the neurons allow (4.77).

    Examples
    --------
    >>> import foretrain as ft
    >>> deep = ft.MLP("linear", depth=3, width=50, n_out=2)
    >>> round(connected_four_point(deep, [[1.0]], neurons=(0, 0, 1, 1), inputs=(0, 0, 0, 0)), 6)
    0.08
    """
    rows = mlp.check_inputs(X)
    number = mlp.check_layer(layer)
    refuse_residual(mlp, "the connected four-point correlator")
    widths = mlp.with_inputs(rows).widths
    legs = _check_legs("neurons", neurons, widths[number])
    points = _check_legs("inputs", inputs, len(rows))
    pairings = ((0, 1, 2, 3), (0, 2, 1, 3), (0, 3, 1, 2))
    allowed = [p for p in pairings if legs[p[0]] == legs[p[1]] and legs[p[2]] == legs[p[3]]]
    if not allowed:
        return 0.0
    # Only the inputs that are named enter: the others are marginalised exactly.
    used = sorted(set(points))
    chosen = [[used.index(points[leg]) for leg in pairing] for pairing in allowed]
    V = flow(mlp, rows[used], ["V"], quadruples=chosen)["V"].sel(layer=number)
    return float(V.sum()) / widths[number - 1]


def _fan_ins(mlp: MLP, X: Array) -> xr.DataArray:
    """n_{l-1} by layer."""
    import xarray as xr

    widths = mlp.with_inputs(X).widths[:-1]
    return xr.DataArray(
        np.array(widths, dtype=float), dims="layer", coords={"layer": range(1, mlp.depth + 1)}
    )


def _check_legs(name: str, values: Sequence[int], count: int) -> list[int]:
    found = np.asarray(values)
    if found.shape != (4,) or found.dtype.kind not in "iu":
        raise InputError(f"`{name}` is {values!r}: give four whole numbers, one for each leg.")
    if found.min() < 0 or found.max() >= count:
        raise InputError(f"`{name}` names {found.min()}..{found.max()}: there are 0 to {count - 1}.")
    return [int(value) for value in found]
