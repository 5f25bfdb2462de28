"""Numbers of steps in words: two digits are all that a forecast knows; what is far is told by its power of ten."""

from __future__ import annotations

import math

_WRITTEN_OUT = 1e6
_FARTHEST = 14  # power of ten


def counted(steps: float) -> str:
    """As in "25", "1,300", "2 x 10^8", "more than 10^14"."""
    if not steps < 10**_FARTHEST:
        return f"more than 10^{_FARTHEST}"
    if steps < 1:
        return "1" if steps > 0 else "0"
    power = math.floor(math.log10(steps))
    rounded = round(steps, 1 - power) if power > 0 else round(steps)
    if rounded < _WRITTEN_OUT:
        return f"{rounded:,.0f}"
    digits, exponent = f"{rounded:.1e}".split("e")
    return f"{digits.removesuffix('.0')} x 10^{int(exponent)}"
