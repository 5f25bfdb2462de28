"""Points and weights for averages over the one Gaussian direction g of the reduced flow."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from foretrain.activations import Activation
from foretrain.saddle.parameters import Array

_COARSEST_STEP = 0.3
_DIGITS = 38.0  # log of the accuracy that the first step aims at for the teacher, exp(-2 pi strip / step)
_PANEL, _PANEL_NODES = 0.5, 10


@dataclass(frozen=True)
class GaussianRule:
    """E[F(g)] = weights . F(points); for odd activations F is even, and the points are the positive half."""

    points: Array
    weights: Array


def gaussian_rule(act: Activation, refinement: int) -> GaussianRule:
    """A rule for functions made of sigma(g) and sigma(X g); each refinement halves the step and goes further out.

    Smooth activations: the midpoint rule, exponentially accurate in the width of the strip of analyticity.
    With kinks: Gauss-Legendre panels that end at the kinks of the teacher and at 0.
    """
    radius = 9.5 + 2.0 * refinement
    points, weights = _panels(act, radius, refinement) if act.kinks else _midpoints(act, radius, refinement)
    weights = weights * np.exp(-0.5 * points**2) / math.sqrt(2 * math.pi)
    if act.parity != "odd":
        points, weights = np.concatenate([-points[::-1], points]), np.concatenate([weights[::-1], weights])
    else:
        weights = 2 * weights
    return GaussianRule(points, weights)


def _midpoints(act: Activation, radius: float, refinement: int) -> tuple[Array, Array]:
    step = min(_COARSEST_STEP, 2 * math.pi * act.strip / _DIGITS) / 2**refinement
    count = math.ceil(radius / step)
    return step * (np.arange(count) + 0.5), np.full(count, step)


def _panels(act: Activation, radius: float, refinement: int) -> tuple[Array, Array]:
    regular = np.linspace(0.0, radius, math.ceil(radius / _PANEL) * 2**refinement + 1)
    kinks = [abs(kink.location) for kink in act.kinks if 0 < abs(kink.location) < radius]
    edges = np.union1d(regular, kinks)
    x, w = np.polynomial.legendre.leggauss(_PANEL_NODES)
    widths = np.diff(edges)[:, None]
    return (edges[:-1, None] + widths * (x + 1) / 2).ravel(), (widths * w / 2).ravel()
