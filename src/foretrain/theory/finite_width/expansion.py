"""Kernel, vertex and metric correction of a layer, and whether an expansion in 1/n can be trusted: V / (n K^2)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.answers import Result
from foretrain.support.errors import NotSupportedError
from foretrain.support.user_warnings import warn_user
from foretrain.theory.architecture import MLP
from foretrain.theory.criticality import criticality
from foretrain.theory.flow import Flow, flow
from foretrain.theory.residual_networks import fluctuation_rate

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


Array = NDArray[np.float64]


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
