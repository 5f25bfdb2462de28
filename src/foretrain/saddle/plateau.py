"""Follows the scalar flow (4) over a plateau so long that the escape at its end is below the resolution of time.

The variable is the length tau of the path, in units of the state: dX/dtau = |X| rates / |rates|, and time itself is
integrated, ds/dtau = |X| / |rates|. Amplitudes then grow at a steady pace however slow the plateau is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.integrate import solve_ivp

from foretrain.saddle.chain_field import ChainField
from foretrain.saddle.integration import (
    RELATIVE_TOLERANCE,
    End,
    StalledError,
    evaluation_limit,
    smallest_scale,
)
from foretrain.saddle.parameters import Array

_SHARE = 0.5  # the plateau ends where the network's own output halves what drives it
_LONGEST = 1e3


@dataclass(frozen=True)
class PlateauEnd:
    """The state behind the plateau, the matrix time it is reached, and whether X_1 is at the threshold there."""

    time: float
    states: Array  # (steps, L)
    crossed: bool


def cross_plateau(field: ChainField, start: Array, threshold: float, estimate: float) -> PlateauEnd:
    """The flow until X_1 = threshold, or until the output of the network is no longer small."""
    limit = evaluation_limit(field)

    def slopes(_: float, extended: Array) -> Array:
        X = extended[:-1]
        rates = field.rates(X) / field.width
        limit(float(extended[-1]) * estimate, X)
        pace = float(np.linalg.norm(X) / np.linalg.norm(rates))
        return np.append(rates * pace, pace / estimate)

    crossing = End(lambda extended: float(extended[0]) - threshold, rising=True)
    slowing = End(lambda extended: driven_share(field, extended[:-1]) - _SHARE, rising=False)
    small = 0.1 * RELATIVE_TOLERANCE * smallest_scale(start)
    found: Any = solve_ivp(
        slopes,
        (0.0, _LONGEST),
        np.append(start, 0.0),
        method="LSODA",
        events=(crossing, slowing),
        rtol=RELATIVE_TOLERANCE,
        atol=np.append(np.full(len(start), small), 0.1 * RELATIVE_TOLERANCE),
    )
    if found.status != 1 or not np.isfinite(found.y).all():
        raise StalledError(field, float(found.y[-1, -1]) * estimate, found.y[:-1, -1])
    return PlateauEnd(float(found.y[-1, -1]) * estimate, found.y[:-1].T, len(found.t_events[0]) > 0)


def driven_share(field: ChainField, X: Array) -> float:
    """The rates as a share of what the teacher alone would make them: one on the plateau, zero at a fixed point."""
    return float(np.linalg.norm(field.rates(X)) / np.linalg.norm(field.drive(X)))
