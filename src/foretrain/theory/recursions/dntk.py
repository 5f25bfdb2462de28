"""P and Q: what joins the differential of the tangent kernel and a preactivation, entry by entry (11.45)-(11.52)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from foretrain.theory.recursions.legs import Legs, Rule

Array = NDArray[np.float64]


def _next_P(at: Legs) -> Array:
    """P'_0123 = C_W^2 {<s''_0 s'_1 s'_2 s_3> Theta_01 Theta_02
    + r <s'_1 s'_2> [<s''_0 s_3> (P_0120 + B_0012) + <s'_0 s'_3> P_0123]} (11.49).
    """
    source = at.product(2, 1, 1, 0) * at.Theta(0, 1) * at.Theta(0, 2)
    carried = at.bend(0, 3) * at.old("B", 0, 0, 1, 2)
    carried = carried + at.moved(3, 0) * at.old("P", 0, 1, 2, 0)
    carried = carried + at.slopes(0, 3) * at.old("P", 0, 1, 2, 3)
    return at.step.C_W**2 * (source + at.step.ratio * at.slopes(1, 2) * carried)


def _next_Q(at: Legs) -> Array:
    """Q'_0123 = C_W^2 <s''_0 s'_1 s'_2 s_3> Theta_01 Theta_02 + (lambda_W / C_W) F'_1032
    + r C_W^2 {<s'_0 s'_1> [<s''_2 s_3> Q_0122 + <s'_2 s'_3> Q_0123]
    + Theta_01 <d(s''_0 s'_1)> <d(s'_2 s_3)> F_{.0.2}} (11.52), with F' of the new layer.
    """
    source = at.product(2, 1, 1, 0) * at.Theta(0, 1) * at.Theta(0, 2)
    values = at.value_response(3, 2)
    own = values[2] * at.old("Q", 0, 1, 2, 2) + values[3] * at.old("Q", 0, 1, 2, 3)
    bent = at.Theta(0, 1) * at.through_F(at.bend_response(0, 1), values, 0, 2)
    grown = at.step.C_W**2 * (source + at.step.ratio * (at.slopes(0, 1) * own + bent))
    return grown + at.step.lambda_W / at.step.C_W * at.new("F", 1, 0, 3, 2)


RULES = {
    "P": Rule(
        _next_P,
        uses=(("P", (0, 1, 2, 3)), ("P", (0, 1, 2, 0)), ("B", (0, 0, 1, 2))),
        products=((2, 1, 1, 0),),
    ),
    "Q": Rule(
        _next_Q,
        uses=(
            ("Q", (0, 1, 2, 3)),
            ("Q", (0, 1, 2, 2)),
            *(("F", (i, 0, j, 2)) for i in (0, 1) for j in (2, 3)),
        ),
        products=((2, 1, 1, 0),),
    ),
}
