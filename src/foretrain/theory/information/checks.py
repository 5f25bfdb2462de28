"""What the rooms of information ask of their arguments."""

from __future__ import annotations

import math
from numbers import Real

from foretrain.support.errors import InputError


def neurons(m: object) -> float:
    """A number of neurons; halves of an odd layer are allowed, as (A.73) has them."""
    if isinstance(m, bool) or not isinstance(m, Real) or not 0 < float(m) < math.inf:
        raise InputError(f"the number of neurons is {m!r}: give a positive number.")
    return float(m)
