"""Kernel, vertex and metric correction of a layer, what they say of it, and whether 1/n is small: V / (n K^2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from foretrain.support.answers import Result
from foretrain.support.arguments import Array
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.user_warnings import warn_user
from foretrain.theory.architecture import MLP
from foretrain.theory.criticality import criticality
from foretrain.theory.flow import Flow, flow
from foretrain.theory.residual_networks import fluctuation_rate

if TYPE_CHECKING:
    import xarray as xr


SMALL, LARGE = 0.1, 0.3
"""V / (n K^2) below which the next order in 1/n hardly shows, and from which on the first is not enough."""


@dataclass(frozen=True, repr=False)
class ExpansionParameter(Result):
    """Whether 1/n is a small parameter: ``value`` = ``growth`` * L/n, the output's V / (n K^2).

    ``growth`` is that of the network's universality class, None (taken as 1) where it is not at criticality.
    """

    depth_to_width: float
    growth: float | None
    value: float
    verdict: str


def expansion_parameter(mlp: MLP) -> ExpansionParameter:
    """L/n times the growth of V / (n K^2) per layer, with a verdict; warns where it is not small.

    In a scale-invariant network the metric's relative variance is (1 + x/L)^L - 1 with x this parameter, so the
    order left out changes fluctuations by about x/2.
    """
    growth = _growth(mlp)
    value = mlp.depth_to_width * (1.0 if growth is None else growth)
    verdict = verdict_on(value)
    if value >= LARGE:
        warn_user(too_deep(value))
    return ExpansionParameter(mlp.depth_to_width, growth, value, verdict)


def verdict_on(fluctuation: float) -> str:
    """What a size of V / (n K^2) means for an expansion in 1/n, in words."""
    if fluctuation < SMALL:
        return f"small, the next order changes fluctuations by about {50 * fluctuation:.1g} %"
    if fluctuation < LARGE:
        return f"noticeable, the next order changes fluctuations by about {50 * fluctuation:.2g} %"
    return "large, the first order in 1/n is not enough: widen the network or make it shallower"


def too_deep(fluctuation: float) -> str:
    """The sentence of the warning for strong fluctuations."""
    return (
        f"the relative variance of the metric is {fluctuation:.2g}, so the first order in 1/n is only a "
        "guide: widen the network or make it shallower."
    )


def _growth(mlp: MLP) -> float | None:
    """What a layer adds to V / K^2 at criticality (section 5.4), None off criticality."""
    skips = set(mlp.gamma[1:-1])
    point = criticality(mlp.activation).point if len(skips) < 2 else None
    share = 1 - np.square(mlp.gamma[1:])  # what a skip connection leaves to the weights (B.20)
    if point is None or not np.allclose(mlp.C_W[1:], share * point.C_W, rtol=1e-6, atol=0.0):
        return None
    if point.kind == "scale-invariant" and not mlp.is_residual and all(mlp.C_b[1:]):
        return point.coefficients["nu"] / 3  # semi-critical: the kernel itself grows with depth
    if not np.allclose(mlp.C_b[1:], share * point.C_b, rtol=1e-6, atol=1e-12):
        return None
    skip = skips.pop() if skips else 0.0
    if point.kind != "half-stable":
        return fluctuation_rate(mlp.activation, skip)
    found = criticality(mlp.activation, skip).point
    return None if found is None else found.coefficients["nu"]


@dataclass(frozen=True, repr=False)
class LayerStatistics(Result):
    """Kernel K (N, N), vertex V (N, N, N, N) and correction G1 (N, N) of one layer; n = ``fan_in``."""

    also = ("fluctuation",)
    layer: int
    fan_in: int
    K: Array
    V: Array
    G1: Array

    @property
    def fluctuation(self) -> float:
        """The largest V / (n K^2) of the inputs: what has to be small for an expansion in 1/n."""
        K, V = np.diagonal(self.K), np.einsum("aaaa->a", self.V)
        return float(np.max(np.where(K > 0, V / np.where(K > 0, K, 1.0) ** 2, 0.0))) / self.fan_in


def layer_statistics(mlp: MLP, X: ArrayLike, layer: int | None = None) -> LayerStatistics:
    """K, V and G1 of one layer (the output by default) over the rows of X."""
    inputs = mlp.check_inputs(X)
    number = mlp.check_layer(layer)
    refuse_residual(mlp, "the expansion of observables in 1/n")
    found = _whole_flow(mlp, tuple(map(tuple, inputs.tolist())))
    K, V, G1 = (found[name].sel(layer=number).values.copy() for name in ("K", "V", "G1"))
    return LayerStatistics(number, mlp.with_inputs(inputs).widths[number - 1], K, V, G1)


@lru_cache(maxsize=8)
def _whole_flow(mlp: MLP, rows: tuple[tuple[float, ...], ...]) -> Flow:
    """Kept, because one asks for many observables of the same network and inputs."""
    return flow(mlp, np.array(rows), ["K", "V", "G1"])


def refuse_residual(mlp: MLP, what: str) -> None:
    """An error that names what is not known for networks with skip connections."""
    if mlp.is_residual:  # odd moments of its neurons do not vanish, and K, V, G1 are not all there is
        raise NotSupportedError(
            f"{what} is known for networks without skip connections only: leave `gamma` out, or sample networks "
            "with foretrain.theory.ensembles."
        )


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
