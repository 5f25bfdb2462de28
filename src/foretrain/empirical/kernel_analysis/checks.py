"""Arguments that several questions have in common, and what all of them refuse."""

from __future__ import annotations

import numpy as np

from foretrain.support.errors import InputError

LANCZOS_MODES = 10  # of kernels known by products, where nothing is said
PROBES = 64


def checked_top(top: int | None, otherwise: int, size: int) -> int:
    """How many modes: those asked for or, where nothing is said, ``otherwise``; never more than there are."""
    if top is None:
        return min(otherwise, size)
    if _whole(top) < 1:
        raise InputError(f"top is {top!r}, but it must be a number of modes from 1 on.")
    return min(_whole(top), size)


def checked_probes(probes: int) -> int:
    """As many as a standard error needs."""
    if _whole(probes) < 2:
        raise InputError(f"probes is {probes!r}, but a standard error needs at least 2.")
    return _whole(probes)


def _whole(number: object) -> int:
    """Of Python or numpy; 0 for what is no whole number."""
    return int(number) if isinstance(number, int | np.integer) and not isinstance(number, bool) else 0


def checked_ridge(ridge: float) -> float:
    """A finite number that is not negative."""
    if not (np.isfinite(ridge) and ridge >= 0):
        raise InputError(f"ridge is {ridge}, but it must be finite and not negative.")
    return float(ridge)


def refuse_zero(largest: float) -> None:
    """A kernel without a positive eigenvalue, or without a trace."""
    if largest <= 0:
        raise InputError("the kernel is zero: no chosen parameter changes the outputs.")


def plus_minus(error: float) -> str:
    """A standard error in text; nothing where the value is exact."""
    return f" ± {error:.2g}" if error > 0 else ""
