"""What the experiments on deep linear networks (chapter 3) share: the critical network and its exact theory.

Weights have C_W = 1, biases are zero and the input has G^(0) = 1, so the two-point function is 1 in every
layer and only the growth of the higher moments with depth over width is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foretrain.support.seeds import Seed
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.ensembles import Ensemble
from foretrain.theory.linear import DeepLinear, connected, log_variance_statistics, moments

_G0 = 1.0


@dataclass(frozen=True)
class Network:
    """Networks of one shape, and how many are drawn."""

    width: int
    depth: int
    draws: int


@dataclass(frozen=True)
class Plan:
    """The networks that are measured."""

    networks: tuple[Network, ...]


def real_networks(depth: int, width: int, draws: int, seed: Seed) -> Ensemble:
    """Critical deep linear networks with weights drawn one by one, on one input."""
    mlp = MLP("linear", depth=depth, width=width)
    return Ensemble(mlp, np.full((1, 1), np.sqrt(_G0)), draws, method="weights", seed=seed)


def vertex(width: int, layers: Sequence[int]) -> FloatArray:
    """κ_2 = G_4 − G_2² at these layers, exact in width (3.29)."""
    kappa = connected(_theory(max(layers), width), _G0, max_order=2)
    return np.asarray(kappa.sel(order=2, layer=list(layers)).values, dtype=np.float64)


def moment(width: int, depth: int, order: int) -> float:
    """G_2m of the output, m = order, exact in width (3.47)."""
    return float(moments(_theory(depth, width), _G0, max_order=order).sel(layer=depth, order=order))


def log_variance_moments(width: int, depth: int) -> tuple[float, float]:
    """Mean and variance of log R of the output, exact in width."""
    law = log_variance_statistics(_theory(depth, width), _G0).sel(layer=depth)
    return float(law["mean"]), float(law["variance"])


def _theory(depth: int, width: int) -> DeepLinear:
    return DeepLinear.critical([width] * depth)
