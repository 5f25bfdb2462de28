"""Coordinates in which the differences of squares are conserved to first order (Theorem 16).

At leading order X_i^2 - X_j^2 are conserved. The first-order flow (24) moves those with the first layer:
d(X_l^2 - X_1^2) = -(q-1) kappa X_1^(q-1) d(X_1^2), so that U_1 = X_1 - ((q-1)/(q+1)) kappa X_1^q and U_l = X_l have
differences of squares that are conserved to the next order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from foretrain.saddle.classes import classify
from foretrain.saddle.escape.corrected import correction_of
from foretrain.saddle.parameters import Array


def normal_form(activation: Any, X: ArrayLike) -> Array:
    """The coordinates U of states X (..., L), to first order in the correction."""
    correction = correction_of(classify(activation))
    U = np.array(X, dtype=float)
    q = correction.q
    U[..., 0] -= (q - 1) / (q + 1) * correction.kappa * U[..., 0] ** q
    return U


def square_differences(X: ArrayLike) -> Array:
    """X_l^2 - X_1^2 for l = 2..L, of states (..., L); conserved at leading order."""
    states = np.asarray(X, dtype=float)
    first = states[..., :1]
    return np.asarray((states[..., 1:] - first) * (states[..., 1:] + first))
