"""Where the correlation of two inputs ends at infinite depth."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.optimize import brentq

from foretrain.activations import activation as find_activation
from foretrain.gaussian import gram
from foretrain.theory.criticality.fixed_points import ONE
from foretrain.theory.criticality.search import susceptibility

_NEAREST = 1e-6  # to 1: the gap there is about -(chi_perp - 1)(1 - c), and has to be seen above rounding
_NO_GROWTH = 1e-12


def final_correlation(activation: Any, K: float, C_b: float, C_W: float, gamma: float = 0.0) -> float:
    """c* = K_12 / K at infinite depth of two inputs that are both at the fixed point K; nan for K = 0.

    The map of correlations has no negative Taylor coefficient, so it is convex on [0, 1] and maps 1 to 1: with a
    slope chi_perp of at most one there, 1 is its only fixed point; otherwise there is one more, which attracts.

    Examples
    --------
    >>> from foretrain.theory.criticality.fixed_points import flows_to
    >>> round(final_correlation("tanh", flows_to("tanh", 0.1, 3.0, 1.0), C_b=0.1, C_W=3.0), 4)
    0.4775
    """
    act = find_activation(activation)
    if K <= 0:
        return math.nan
    if susceptibility(act, K, C_W, gamma).perpendicular <= 1 + ONE:
        return 1.0

    def growth(c: float) -> float:
        pair = np.asarray(gram(act, K * np.array([[1.0, c], [c, 1.0]])))[0, 1]
        return float(C_b + C_W * pair + gamma**2 * K * c) / K - c

    if growth(0.0) <= _NO_GROWTH:  # an odd activation without biases
        return 0.0
    below = 1 - _NEAREST
    return float(brentq(growth, 0.0, below, xtol=1e-12)) if growth(below) < 0 else 1.0
