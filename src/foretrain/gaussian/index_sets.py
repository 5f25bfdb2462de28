"""Expectations of products on chosen index sets of N inputs, each distinct one computed once.

<f_1(z_a) f_2(z_b) f_3(z_c) f_4(z_d)> for a list of quadruples (a, b, c, d): entries that differ by exchanging
inputs with the same factor are one, and repeated inputs become one input with a product of factors. All products on
the same set of inputs are integrated together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.gaussian.covariance import check_gram
from foretrain.gaussian.expectation import MOST_INPUTS, check_tolerance, default_tolerance
from foretrain.gaussian.factors import Factor, as_factor, one
from foretrain.gaussian.quadrature import are_smooth
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
    return products_at([(factors, indices)], K, tolerance=tolerance)[0]


def products_at(
    requests: Sequence[tuple[Sequence[Any], ArrayLike]], K: ArrayLike, *, tolerance: float | None = None
) -> list[Expectation]:
    """Several products at once, ``(factors, indices)`` each as in :func:`expectations_at`, sharing the work.

    All must have the same number of slots.

    Examples
    --------
    >>> same, mixed = products_at([(["sin"] * 2, [0, 1]), (["sin", ("sin", 1)], [0, 1])], [[1.0, 0.5], [0.5, 1.0]])
    >>> float(same), float(mixed)
    (0.191700..., 0.0)
    """
    parts = [[as_factor(f) for f in factors] for factors, _ in requests]
    slots = len(parts[0]) if parts else 0
    if any(len(factors) != slots for factors in parts):
        raise InputError("products that are computed together must have the same number of slots.")
    K = check_gram(K).astype(float)
    checked = [_check_indices(indices, slots, len(K)) for _, indices in requests]
    tolerance = check_tolerance(tolerance, default_tolerance(slots))
    kinds = list(dict.fromkeys(f for factors in parts for f in factors))
    codes = [
        np.sort(rows * len(kinds) + np.array([kinds.index(f) for f in factors]), axis=1)
        for (rows, _), factors in zip(checked, parts, strict=True)
    ]
    distinct, where = np.unique(np.concatenate(codes), axis=0, return_inverse=True)
    value, error, rules = _distinct(kinds, distinct, K, tolerance)
    rule = " and ".join(sorted(rules)) or "symmetry"
    places = np.split(where.ravel(), np.cumsum([len(rows) for rows in codes])[:-1])
    return [
        Expectation(value[at].reshape(shape), error[at].reshape(shape), rule)
        for at, (_, shape) in zip(places, checked, strict=True)
    ]


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
    """Values for sorted rows of codes ``input * kinds + kind``."""
    inputs, kind = codes // len(kinds), codes % len(kinds)
    fresh = np.diff(inputs, axis=1, prepend=-1) != 0
    value, error, rules = np.empty(len(codes)), np.empty(len(codes)), set[str]()
    tasks = []
    for size in np.unique(fresh.sum(axis=1)):
        rows = np.flatnonzero(fresh.sum(axis=1) == size)
        sets, which_set = np.unique(inputs[rows][fresh[rows]].reshape(-1, size), axis=0, return_inverse=True)
        signature = np.concatenate([np.cumsum(fresh[rows], axis=1) - 1, kind[rows]], axis=1)
        patterns, which_product = np.unique(signature, axis=0, return_inverse=True)
        products = [_merged(kinds, pattern) for pattern in patterns]
        place = np.full((len(sets), len(products)), -1)
        place[which_set.ravel(), which_product.ravel()] = rows
        tasks += [(sets, products, place, *part) for part in _parts(products, place >= 0)]
    for sets, products, place, members, chosen in track(tasks, "expectations of products"):
        where = sets[members]
        stack = Stack(K[where[:, :, None], where[:, None, :]], np.zeros(where.shape), tolerance)
        wanted = [products[k] for k in chosen]
        found, doubt = stack.totals(wanted)
        for factors, v, e in zip(wanted, found, doubt, strict=True):
            stack.warn_if_short(factors, v, e)
        at = place[np.ix_(members, chosen)].T
        value[at[at >= 0]], error[at[at >= 0]] = found[at >= 0], doubt[at >= 0]
        rules |= stack.rules
    return value, error, rules


def _merged(kinds: list[Factor], pattern: Indices) -> list[Factor]:
    """One factor for each distinct input, from the place and the kind of every slot."""
    where, which = np.split(pattern, 2)
    merged = [one] * (int(where[-1]) + 1)
    for place, f in zip(where, which, strict=True):
        merged[place] = merged[place] * kinds[f]
    return merged


def _parts(products: list[list[Factor]], needed: NDArray[np.bool_]) -> Iterator[tuple[Indices, Indices]]:
    """Sets of inputs and products to be done together, not too many sets at a time.

    Products of smooth factors cost little more together than alone, so that all sets get all of them; others are done
    where they are needed only.
    """
    smooth = [k for k, factors in enumerate(products) if are_smooth(factors)]
    for together in [smooth, *([k] for k in range(len(products)) if k not in smooth)]:
        members = np.flatnonzero(needed[:, together].any(axis=1))
        if members.size:
            for part in np.array_split(members, -(-len(members) // _CHUNK)):
                yield part, np.array(together)
