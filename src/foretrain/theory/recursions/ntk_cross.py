"""F and B: what joins preactivations and tangent kernel of two neurons, entry by entry (8.79), (8.89)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from foretrain.theory.recursions.legs import Legs, Rule

Array = NDArray[np.float64]


def _next_F(at: Legs) -> Array:
    """F'_1324 = C_W^2 [<s_1 s_2 s'_3 s'_4> Theta_34 + r <d(s_1 s'_3)> <d(s_2 s'_4)> F] (8.79).

    Stored in the order 1, 3, 2, 4.
    """
    carried = at.through_F(at.value_response(0, 1), at.value_response(2, 3), 1, 3)
    return at.step.C_W**2 * (at.product(0, 1, 0, 1) * at.Theta(1, 3) + at.step.ratio * carried)


def _next_B(at: Legs) -> Array:
    """B'_1324 = C_W^2 [<s'_1 s'_2 s'_3 s'_4> Theta_12 Theta_34 + r <s'_1 s'_3> <s'_2 s'_4> B] (8.89).

    Stored in the order 1, 3, 2, 4.
    """
    source = at.product(1, 1, 1, 1) * at.Theta(0, 2) * at.Theta(1, 3)
    carried = at.slopes(0, 1) * at.slopes(2, 3) * at.old("B", 0, 1, 2, 3)
    return at.step.C_W**2 * (source + at.step.ratio * carried)


RULES = {
    "F": Rule(
        _next_F,
        uses=(("F", (0, 1, 2, 3)), ("F", (1, 1, 2, 3)), ("F", (0, 1, 3, 3)), ("F", (1, 1, 3, 3))),
        products=((0, 1, 0, 1),),
    ),
    "B": Rule(_next_B, uses=(("B", (0, 1, 2, 3)),), products=((1, 1, 1, 1),)),
}
