"""Numbers as people read them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

_RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
_PLAIN = (1e-3, 1e5)  # beyond these a power of ten is easier to read


def number(value: Any, digits: int = 3) -> str:
    """Three digits that count, powers of ten where the number is very large or very small."""
    x = float(value)
    if math.isnan(x):
        return "not known"
    if math.isinf(x):
        return "∞" if x > 0 else "−∞"
    size = abs(x)
    if size and not _PLAIN[0] <= size < _PLAIN[1]:
        mantissa, _, power = f"{x:.{digits - 1}e}".partition("e")
        return f"{_signed(mantissa)} × 10{str(int(power)).translate(_RAISED)}"
    if x == int(x):
        return _signed(f"{x:,.0f}")
    return _signed(f"{x:,.{max(0, digits - 1 - math.floor(math.log10(size)))}f}")


def file_size(count: int) -> str:
    """Megabytes, or kilobytes where it is less than one."""
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"


def cell(value: Any) -> str:
    """Anything that stands in a table."""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | float | np.number):
        return "–" if math.isnan(float(value)) else number(value)
    return "" if value is None else str(value)


def _signed(text: str) -> str:
    return text.replace("-", "−")
