"""Expectations of products on chosen index sets of N inputs, each distinct one computed once.

<f_1(z_a) f_2(z_b) f_3(z_c) f_4(z_d)> for a list of quadruples (a, b, c, d): entries that differ by exchanging
inputs with the same factor are one, and repeated inputs become one input with a product of factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.gaussian.covariance import check_gram
from foretrain.gaussian.expectation import MOST_INPUTS, check_tolerance, default_tolerance
from foretrain.gaussian.factors import Factor, as_factor, one
from foretrain.gaussian.result import Expectation
from foretrain.gaussian.stack import Stack
from foretrain.support.errors import InputError
from foretrain.support.progress import track

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

_CHUNK = 256


def expectations_at(
    factors: Sequence[Any], K: ArrayLike, indices: ArrayLike, *, tolerance: float | None = None
) -> Expectation:
    """``<prod_s f_s(z_{indices[..., s]})>_K`` for every row of ``indices``.

    Parameters
    ----------
    factors
        One per slot, 1 to 4 of them, as in :func:`expectation`.
    K
        Covariance (N, N) of all inputs.
    indices
        Integers (..., number of slots), each naming an input.

    Examples
    --------
    >>> expectations_at(["sin"] * 4, np.eye(3), [[0, 0, 1, 1], [1, 0, 1, 0]]).value.round(6)
    array([0.186911, 0.186911])
    """
    parts = [as_factor(f) for f in factors]
    K = check_gram(K).astype(float)
    rows, shape = _check_indices(indices, len(parts), len(K))
    tolerance = check_tolerance(tolerance, default_tolerance(len(parts)))
    kinds = list(dict.fromkeys(parts))
    codes = np.sort(rows * len(kinds) + np.array([kinds.index(f) for f in parts]), axis=1)
    distinct, where = np.unique(codes, axis=0, return_inverse=True)
    value, error, rules = _distinct(kinds, distinct, K, tolerance)
    where = where.ravel()
    return Expectation(
        value[where].reshape(shape), error[where].reshape(shape), " and ".join(sorted(rules)) or "symmetry"
    )


def _check_indices(indices: ArrayLike, slots: int, size: int) -> tuple[Indices, tuple[int, ...]]:
    rows = np.asarray(indices)
    if not 1 <= slots <= MOST_INPUTS:
        raise InputError(f"1 to {MOST_INPUTS} factors are offered on index sets, not {slots}.")
    if rows.dtype.kind not in "iu" or rows.ndim < 1 or rows.shape[-1] != slots:
        raise InputError(
            f"the index sets must be integers of shape (..., {slots}), one column for each factor, "
            f"but are {rows.dtype} of shape {rows.shape}."
        )
    if rows.size and (rows.min() < 0 or rows.max() >= size):
        raise InputError(f"the index sets name inputs {rows.min()} to {rows.max()}, but there are {size}.")
    return rows.reshape(-1, slots).astype(np.intp), rows.shape[:-1]


def _distinct(
    kinds: list[Factor], codes: Indices, K: Array, tolerance: float
) -> tuple[Array, Array, set[str]]:
    """Values for sorted rows of codes ``input * kinds + kind``, grouped by which inputs coincide."""
    inputs, kind = codes // len(kinds), codes % len(kinds)
    fresh = np.concatenate([np.ones((len(codes), 1), bool), np.diff(inputs, axis=1) != 0], axis=1)
    position = np.cumsum(fresh, axis=1) - 1
    signature = np.concatenate([position, kind], axis=1)
    value, error, rules = np.empty(len(codes)), np.empty(len(codes)), set[str]()
    tasks = []
    for pattern in np.unique(signature, axis=0):
        members = np.flatnonzero((signature == pattern).all(axis=1))
        tasks += [(pattern, part) for part in np.array_split(members, -(-len(members) // _CHUNK))]
    for pattern, members in track(tasks, "expectations of products"):
        where, which = np.split(pattern, 2)
        merged = [one] * (int(where[-1]) + 1)
        for place, f in zip(where, which):
            merged[place] = merged[place] * kinds[f]
        first = np.flatnonzero(np.diff(where, prepend=-1))
        chosen = inputs[members][:, first]
        stack = Stack(K[chosen[:, :, None], chosen[:, None, :]], np.zeros(chosen.shape), tolerance)
        value[members], error[members] = stack.total(merged)
        stack.warn_if_short(merged, value[members], error[members])
        rules |= stack.rules
    return value, error, rules
