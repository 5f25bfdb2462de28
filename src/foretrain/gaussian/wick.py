"""Wick's theorem: pairings, set partitions, and the moments of a Gaussian vector without inverting K."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.gaussian.covariance import check_covariance
from foretrain.support.errors import InputError, NotSupportedError

Pairing = tuple[tuple[int, int], ...]
Partition = tuple[tuple[int, ...], ...]

_LARGEST_LIST = 200_000
_LARGEST_ORDER = 600


def double_factorial(n: int) -> int:
    """``n!! = n (n - 2) (n - 4) ...``, exact; ``(-1)!! = 1``. There are (2m - 1)!! pairings of 2m items."""
    if n < -1:
        raise InputError(f"the double factorial of {n} is not defined: give a whole number from -1 on.")
    return math.prod(range(n, 0, -2))


def pairings(n: int) -> tuple[Pairing, ...]:
    """All ways to pair the items 0..n-1 (1.45); each pair and each list of pairs is in increasing order."""
    if n < 0 or n % 2:
        raise InputError(f"{n} items cannot be paired: give an even number of them.")
    _refuse_long_list(double_factorial(n - 1), "pairings", n)
    return _pairings(n)


def set_partitions(n: int, *, even: bool = False) -> tuple[Partition, ...]:
    """All ways to split the items 0..n-1 into blocks (1.56).

    ``even`` keeps those with blocks of even size only, which are all that a law even under z -> -z needs.
    """
    if n < 0:
        raise InputError(f"{n} items cannot be split: give a number from 0 on.")
    _refuse_long_list(_partition_count(n, even), "partitions", n)
    return tuple(_partitions(tuple(range(n)), even))


def loop_count(first: Pairing, second: Pairing) -> int:
    """Number of closed loops when two pairings of the same items are laid over each other."""
    one, two = _partners(first), _partners(second)
    if one.keys() != two.keys():
        raise InputError("the two pairings are of different items: loops need the same items in both.")
    unseen, loops = set(one), 0
    while unseen:
        item = start = min(unseen)
        while item != start or start in unseen:
            unseen -= {item, one[item]}
            item = two[one[item]]
        loops += 1
    return loops


def equal_index_pairings(indices: Sequence[Hashable]) -> int:
    """Number of pairings that join equal labels only: the sum over pairings of products of deltas (3.44)."""
    counts = Counter(indices).values()
    if any(count % 2 for count in counts):
        return 0
    return math.prod(double_factorial(count - 1) for count in counts)


def wick_moment(K: ArrayLike, indices: Sequence[int], mean: ArrayLike | None = None) -> Any:
    """``E[z_i1 z_i2 ...]`` for a Gaussian vector (1.45); an index may repeat and K may be singular.

    ``K`` has shape (..., N, N) and ``mean`` (default zero) (..., N); the result has the shape in front.
    """
    size = np.shape(K)[-1] if np.ndim(K) else 0
    for index in indices:
        if not 0 <= index < size:
            raise InputError(f"index {index} is outside the {size} variables of K: count from 0.")
    counts = Counter(int(index) for index in indices)
    return gaussian_moment(K, [counts[i] for i in range(size)], mean)


def gaussian_moment(K: ArrayLike, powers: Sequence[int], mean: ArrayLike | None = None) -> Any:
    """``E[prod_i z_i^powers[i]]`` for a Gaussian vector; shapes as in :func:`wick_moment`.

    By Stein's recursion M(p) = sum_j K_ij q_j M(q - e_j) with q = p - e_i: its cost is N times the product of
    (power + 1), not (2m - 1)!!. Arrays of ``Fraction`` or ``int`` objects (``dtype=object``) stay exact.
    """
    covariance = _covariance(K, len(powers))
    if any(power < 0 or power != int(power) for power in powers):
        raise InputError(f"the powers {tuple(powers)} must be whole numbers from 0 on, one per variable.")
    if sum(powers) > _LARGEST_ORDER:
        raise NotSupportedError(
            f"a moment of order {sum(powers)} exceeds {_LARGEST_ORDER}, the highest that is offered."
        )
    shift, batch = None, covariance.shape[:-2]
    if mean is not None:
        shift = np.asarray(mean, dtype=covariance.dtype)
        if shift.ndim == 0 or shift.shape[-1] != covariance.shape[-1]:
            raise InputError(
                f"the mean has shape {shift.shape}, but its last axis must have the {covariance.shape[-1]} variables."
            )
        if shift.dtype != object and not np.isfinite(shift).all():
            raise InputError("the mean has entries that are not finite.")
        batch = np.broadcast_shapes(batch, shift.shape[:-1])
    if shift is None and sum(powers) % 2:
        return _scalar(np.zeros(batch, dtype=covariance.dtype))
    known: dict[tuple[int, ...], Any] = {(0,) * len(powers): np.ones(batch, dtype=covariance.dtype)}
    return _scalar(_moment(covariance, shift, tuple(int(power) for power in powers), known))


def _moment(
    K: NDArray[Any], mean: NDArray[Any] | None, powers: tuple[int, ...], known: dict[Any, Any]
) -> Any:
    if powers in known:
        return known[powers]
    i = next(index for index, power in enumerate(powers) if power)
    rest = lowered(powers, i)
    total: Any = 0 if mean is None else mean[..., i] * _moment(K, mean, rest, known)
    for j, power in enumerate(rest):
        if power:
            total = total + power * K[..., i, j] * _moment(K, mean, lowered(rest, j), known)
    known[powers] = total
    return total


def lowered(powers: tuple[int, ...], i: int) -> tuple[int, ...]:
    """The powers with that of variable ``i`` reduced by one."""
    return (*powers[:i], powers[i] - 1, *powers[i + 1 :])


def _covariance(K: ArrayLike, size: int) -> NDArray[Any]:
    raw = np.asarray(K)
    if raw.dtype != object:
        return check_covariance(raw, size)
    try:
        rounded = raw.astype(np.float64)
    except (TypeError, ValueError, OverflowError) as failure:
        raise InputError(
            "the covariance holds objects that are not numbers: use floats or Fractions."
        ) from failure
    check_covariance(rounded, size)
    return raw


def _scalar(value: Any) -> Any:
    """A plain number for a single covariance, an array for a batch."""
    return np.asarray(value)[()]


@lru_cache(maxsize=8)
def _pairings(n: int) -> tuple[Pairing, ...]:
    return tuple(_pair(tuple(range(n))))


def _pair(items: tuple[int, ...]) -> Iterator[Pairing]:
    if not items:
        yield ()
        return
    first, others = items[0], items[1:]
    for position, partner in enumerate(others):
        for rest in _pair(others[:position] + others[position + 1 :]):
            yield ((first, partner), *rest)


def _partitions(items: tuple[int, ...], even: bool) -> Iterator[Partition]:
    if not items:
        yield ()
        return
    first, others = items[0], items[1:]
    for size in range(int(even), len(others) + 1, 2 if even else 1):
        for block in combinations(others, size):
            remaining = tuple(item for item in others if item not in block)
            for rest in _partitions(remaining, even):
                yield ((first, *block), *rest)


def _partition_count(n: int, even: bool) -> int:
    """Bell numbers, or their analogue for even blocks: choose the block of the first item, recurse."""
    counts = [1]
    for items in range(1, n + 1):
        others = range(int(even), items, 2 if even else 1)
        counts.append(sum(math.comb(items - 1, size) * counts[items - 1 - size] for size in others))
    return counts[n]


def _refuse_long_list(count: int, what: str, n: int) -> None:
    if count > _LARGEST_LIST:
        raise NotSupportedError(
            f"{n} items have {count} {what}, more than the {_LARGEST_LIST} that are listed: "
            "use gaussian_moment or the one-variable recursions, which need no list."
        )


def _partners(pairing: Pairing) -> dict[int, int]:
    return {a: b for pair in pairing for a, b in (pair, pair[::-1])}
