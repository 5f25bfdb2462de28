"""What the experiments on deep linear networks (chapter 3) share: the critical network and its exact theory.

Weights have C_W = 1, biases are zero and the input has G^(0) = 1, so the two-point function is 1 in every
layer and only the growth of the higher moments with depth over width is left.
"""

from __future__ import annotations

import numpy as np
from scipy.special import digamma, gammaln, polygamma

from foretrain.support.seeds import Seed
from foretrain.theory.architecture import MLP
from foretrain.theory.ensembles import Ensemble


def real_networks(depth: int, width: int, draws: int, seed: Seed) -> Ensemble:
    """Critical deep linear networks with weights drawn one by one, on one input."""
    mlp = MLP("linear", depth=depth, width=width)
    return Ensemble(mlp, np.ones((1, 1)), draws, method="weights", seed=seed)


def moment(width: int, layer: int, order: int) -> float:
    """G_2m at a layer, m = order, exact in width (3.47)."""
    return float(
        np.exp((layer - 1) * (gammaln(width / 2 + order) - gammaln(width / 2) + order * np.log(2 / width)))
    )


def vertex(width: int, layer: int) -> float:
    """κ_2 = G_4 − G_2² at a layer, exact in width (3.29)."""
    return moment(width, layer, 2) - 1.0


def log_variance_moments(width: int, layer: int) -> tuple[float, float]:
    """Mean and variance of log R, exact in width."""
    return (layer - 1) * float(digamma(width / 2) - np.log(width / 2)), (layer - 1) * float(
        polygamma(1, width / 2)
    )


def limit(order: int, ratio: float) -> float:
    """e^{m(m−1)r}."""
    return float(np.exp(order * (order - 1) * ratio))
