"""The rate constant K of the plateau, and the two units of time it can be given in.

The scalar flow (4) runs in t, the matrix flow in s = N t. K = beta h alpha^(L-1) / sqrt(N) (7) belongs to s;
in t it is N times as large.
"""

from __future__ import annotations

import math
from typing import Any

from foretrain.saddle.classes import SaddleClass, classify
from foretrain.saddle.parameters import check_beta, check_depth, check_width, matrix_times
from foretrain.support.errors import InputError


def coupling(activation: Any, depth: int, width: int = 64, beta: float = 1.0, time: str = "matrix") -> float:
    """K of dX_l/ds = K prod_{m != l} X_m (7), per unit of matrix time s or of reduced time t; of any sign.

    >>> round(coupling("tanh", depth=4, width=64), 9)
    0.075713189
    """
    layers, neurons = check_depth(depth), check_width(width)
    strength = check_beta(beta) * classify(activation).signal(layers) / math.sqrt(neurons)
    return strength * matrix_times(neurons, time)


def escape_coupling(found: SaddleClass, depth: int, width: int, beta: float) -> float:
    """K per matrix time, refused unless it is positive: only then do positive scales grow."""
    rate = check_beta(beta) * found.signal(depth) / math.sqrt(width)
    if not rate > 0:
        raise InputError(
            f"there is no escape along positive scales: K = beta h alpha^(L-1) / sqrt(N) = {rate:.6g} is not "
            f"positive for {found.activation.label} (h = {found.h:.6g}, alpha = {found.alpha:.6g}, L = {depth}, "
            f"beta = {beta:g}); choose an activation, depth or beta with K > 0."
        )
    return rate
