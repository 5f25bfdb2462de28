"""Entropies of tables of probabilities, in nats: every axis of a table is one variable (A.1)-(A.24)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import entr, rel_entr

from foretrain.support.errors import InputError

Array = NDArray[np.float64]

_ROUNDING = 1e-9


def surprisal(p: ArrayLike) -> Array:
    """-log p of every outcome, infinite where it cannot happen (A.4)."""
    with np.errstate(divide="ignore"):
        return np.asarray(-np.log(_table(p)))


def entropy(p: ArrayLike) -> float:
    """S = -sum p log p of all variables together, between 0 and the log of the number of outcomes (A.1).

    Examples
    --------
    >>> round(entropy([0.5, 0.5]), 6)
    0.693147
    """
    return float(entr(_table(p)).sum())


def cross_entropy(p: ArrayLike, q: ArrayLike) -> float:
    """S[p, q] = -sum p log q: the entropy of p and the divergence from q to it; infinite where q rules p out."""
    return entropy(p) + divergence(p, q)


def divergence(p: ArrayLike, q: ArrayLike) -> float:
    """KL[p || q] = sum p log(p / q), never negative (A.12)."""
    first, second = _table(p), _table(q)
    if first.shape != second.shape:
        raise InputError(f"p has shape {first.shape} and q {second.shape}: give tables of the same outcomes.")
    return max(0.0, float(rel_entr(first, second).sum()))


def mutual_information(
    joint: ArrayLike, first: int | Iterable[int] = 0, second: int | Iterable[int] = 1
) -> float:
    """I = S_x + S_y - S_xy = KL[p_xy || p_x p_y] (A.14), (A.15).

    ``first`` and ``second`` are axes of the table, or groups of them; other axes are summed over.

    Examples
    --------
    >>> round(mutual_information(np.diag([0.25] * 4)), 6)
    1.386294
    """
    table = _table(joint)
    groups = [_axes(first, table), _axes(second, table)]
    if set(groups[0]) & set(groups[1]):
        raise InputError(f"axes {groups[0]} and {groups[1]} overlap: give two separate groups.")
    return max(0.0, sum(_entropy_of(table, g) for g in groups) - _entropy_of(table, groups[0] + groups[1]))


def conditional_information(joint: ArrayLike) -> float:
    """I(x, y | z) of a table with three axes, never negative."""
    table = _three(joint)
    return max(
        0.0,
        _entropy_of(table, (0, 2))
        + _entropy_of(table, (1, 2))
        - _entropy_of(table, (0, 1, 2))
        - _entropy_of(table, (2,)),
    )


def tripartite_information(joint: ArrayLike) -> float:
    """I_3 = I(x, y) - I(x, y | z) of a table with three axes (A.24).

    Positive where the variables repeat each other (copies), negative where two tell about the third only together
    (the exclusive or of two fair bits: -log 2).
    """
    table = _three(joint)
    ones = sum(_entropy_of(table, (axis,)) for axis in range(3))
    pairs = sum(_entropy_of(table, pair) for pair in ((0, 1), (0, 2), (1, 2)))
    return ones - pairs + _entropy_of(table, (0, 1, 2))


def _entropy_of(table: Array, axes: tuple[int, ...]) -> float:
    others = tuple(axis for axis in range(table.ndim) if axis not in axes)
    return float(entr(table.sum(axis=others)).sum())


def _axes(given: int | Iterable[int], table: Array) -> tuple[int, ...]:
    axes = (given,) if isinstance(given, int) else tuple(given)
    if not axes or any(not -table.ndim <= axis < table.ndim for axis in axes):
        raise InputError(f"axes {axes} do not name variables of a table with {table.ndim} axes.")
    return tuple(axis % table.ndim for axis in axes)


def _three(joint: ArrayLike) -> Array:
    table = _table(joint)
    if table.ndim != 3:
        raise InputError(f"the table has {table.ndim} axes: give one for each of three variables.")
    return table


def _table(p: ArrayLike) -> Array:
    table = np.asarray(p, dtype=np.float64)
    if not table.size or not np.isfinite(table).all() or (table < 0).any():
        raise InputError("the table holds negative or infinite numbers, or none: give probabilities.")
    if abs(table.sum() - 1) > _ROUNDING:
        raise InputError(f"the probabilities add up to {table.sum():.6g}: divide them by their sum.")
    return table
