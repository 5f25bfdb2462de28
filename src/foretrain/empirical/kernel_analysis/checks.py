"""Arguments that several questions have in common, and what all of them refuse."""

from __future__ import annotations

from foretrain.support.arguments import not_negative, whole_number
from foretrain.support.errors import InputError

LANCZOS_MODES = 10  # of kernels known by products, where nothing is said
PROBES = 64


def checked_top(top: int | None, otherwise: int, size: int) -> int:
    """How many modes: those asked for or, where nothing is said, ``otherwise``; never more than there are."""
    return min(otherwise if top is None else whole_number("top", top), size)


def checked_probes(probes: int) -> int:
    """As many as a standard error needs."""
    return whole_number("probes", probes, least=2)


def checked_ridge(ridge: float) -> float:
    """A finite number that is not negative."""
    return not_negative("ridge", ridge)


def refuse_zero(largest: float) -> None:
    """A kernel without a positive eigenvalue, or without a trace."""
    if largest <= 0:
        raise InputError("the kernel is zero: no chosen parameter changes the outputs.")


def plus_minus(error: float) -> str:
    """A standard error in text; nothing where the value is exact."""
    return f" ± {error:.2g}" if error > 0 else ""
