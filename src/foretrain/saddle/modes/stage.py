"""Stage k of a sequence of escapes as one scalar equation, U' = F - H U + K U^(L-1) (65-68)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.integrate import quad

from foretrain.saddle.classes import classify
from foretrain.saddle.couplings import escape_coupling
from foretrain.saddle.parameters import check_depth, check_positive, check_width
from foretrain.support.answers import Result
from foretrain.support.errors import InputError


@dataclass(frozen=True, repr=False)
class Stage(Result):
    """Drive F, damping H and growth K of a mode's first-layer scale U, per matrix time s."""

    depth: int
    drive: float
    damping: float
    growth: float

    def rate(self, U: float) -> float:
        """dU/ds."""
        return self.drive - self.damping * U + self.growth * U ** (self.depth - 1)

    def time(self, threshold: float, start: float = 0.0) -> float:
        """When U reaches the threshold from ``start``; infinite if it comes to rest before."""
        level = check_positive(threshold, "threshold")
        if not 0 <= start <= level:
            raise InputError(f"start is {start:g}: give a number from 0 to the threshold {level:g}.")
        if self._least(start, level) <= 0:
            return math.inf
        split = (self.drive / self.growth) ** (1 / (self.depth - 1))
        points = [split] if start < split < level else None
        return float(
            quad(lambda U: 1 / self.rate(U), start, level, points=points, epsabs=0, epsrel=1e-11, limit=500)[
                0
            ]
        )

    def _least(self, start: float, level: float) -> float:
        """The smallest rate on the way: at an end, or where damping and growth balance."""
        power = self.depth - 1
        places = [start, level]
        if power > 1:
            places.append((self.damping / (power * self.growth)) ** (1 / (power - 1)))
        return min(self.rate(float(np.clip(place, start, level))) for place in places)


def stage(activation: Any, depth: int, *, beta: float, rho: float, block_width: int) -> Stage:
    """The stage of a mode whose other layers are at rho: F = K rho^(L-1), H = (alpha rho)^(2(L-1)), K of (7).

    Both come from the scalar flow (4) at leading order: the teacher drives X_1 at K prod X_l, and the network's own
    answer sqrt(N_B) (alpha rho)^(L-1) U g damps it.

    >>> found = stage("tanh", 4, beta=1.0, rho=0.1, block_width=64)
    >>> round(found.drive / found.growth, 12)
    0.001
    """
    layers, found, scale = check_depth(depth), classify(activation), check_positive(rho, "rho")
    K = escape_coupling(found, layers, check_width(block_width), beta)
    return Stage(layers, K * scale ** (layers - 1), (found.alpha * scale) ** (2 * (layers - 1)), K)
