"""Covariance matrices: checked at the door, factored without ever being inverted."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.acceleration import accelerates
from foretrain.support.errors import InputError
from foretrain.support.threads import over_cores

Array = NDArray[np.float64]

_CHECKED_ROWS = 128
_LOST = 16 * float(np.finfo(float).eps)
_LARGEST = 1e30  # beyond, fourth powers of activations leave the range of floats
_FULLY_CHECKED = 200
_SPLITTER = 134217729.0  # 2^27 + 1: cuts a float64 into two halves that multiply exactly


def _tolerance(K: NDArray[Any]) -> float:
    """How far round-off of the given precision may take K from symmetric and positive semidefinite."""
    return 1e-5 if K.dtype == np.float32 else 1e-8


def _refuse_masked(name: str, values: object) -> None:
    """Masked entries would count as numbers."""
    if np.ma.is_masked(values):
        raise InputError(f"`{name}` is masked: fill its masked entries, or leave them out.")


def _real(name: str, values: ArrayLike, ragged: str) -> NDArray[Any]:
    """An array of real numbers."""
    _refuse_masked(name, values)
    try:
        raw = np.asarray(values)
    except ValueError:
        raise InputError(ragged) from None
    if raw.dtype.kind not in "fiu":
        raise InputError(f"{name} must hold real numbers, not {raw.dtype}.")
    return raw


def _square(K: ArrayLike) -> NDArray[Any]:
    name = "the covariance"
    raw = _real(name, K, "the covariance has rows of different lengths; give a square matrix.")
    if raw.ndim < 2 or raw.shape[-1] != raw.shape[-2] or raw.shape[-1] == 0:
        raise InputError(
            f"the covariance must be a square matrix or a stack of them (..., n, n), but has shape {raw.shape}; "
            "for one input of variance K write [[K]]."
        )
    if not np.isfinite(raw).all():
        raise InputError("the covariance has entries that are not finite; check the inputs it came from.")
    if np.abs(raw).max(initial=0) > _LARGEST:
        raise InputError(f"the covariance has entries above {_LARGEST:g}; rescale the inputs.")
    return raw


def check_covariance(K: ArrayLike, inputs: int | None = None) -> Array:
    """The covariance(s) ``(..., n, n)`` as float64, refused unless finite, symmetric and positive semidefinite.

    Parameters
    ----------
    K
        One matrix or a stack of them, each judged by its own size.
    inputs
        The number n of inputs that the caller needs, if it is fixed.
    """
    raw = _square(K)
    n = raw.shape[-1]
    if inputs is not None and n != inputs:
        raise InputError(f"the covariance is {n} x {n}, but there are {inputs} inputs: give one row each.")
    tolerance = _tolerance(raw)
    checked = np.array(raw, dtype=np.float64)
    stack = checked.reshape(-1, n, n)
    if not len(stack):
        return checked
    size = np.abs(stack).max(axis=(1, 2))
    gap = np.abs(stack - stack.transpose(0, 2, 1)).max(axis=(1, 2))
    _refuse_asymmetric(gap, tolerance * size)
    lowest = np.linalg.eigvalsh(stack)[:, 0] if n > 1 else stack[:, 0, 0]
    worst = int(np.argmin(lowest + tolerance * size))
    _refuse_negative(float(lowest[worst]), float(size[worst]), tolerance)
    return checked


def _refuse_asymmetric(gap: Array, allowed: Array) -> None:
    worst = int(np.argmax(gap - allowed))
    if gap[worst] > allowed[worst]:
        raise InputError(
            f"the covariance is not symmetric: entries differ from their transpose by up to {gap[worst]:.2g}."
        )


def _refuse_negative(low: float, high: float, tolerance: float) -> None:
    if low < -tolerance * abs(high):
        raise InputError(
            f"the covariance is not positive semidefinite: it has the eigenvalue {low:.3g}; "
            "no inputs can have such inner products."
        )


def check_gram(K: ArrayLike) -> NDArray[Any]:
    """One ``(N, N)`` covariance of any size, in its own precision.

    Small ones are checked fully. Of large ones every 2 x 2 block is, which is all that expectations of pairs rely on.
    """
    _refuse_masked("the covariance", K)
    raw = (
        _square(K)
        if not isinstance(K, np.ndarray) or K.ndim != 2 or len(K) <= _FULLY_CHECKED
        else np.asarray(K)
    )
    if raw.ndim != 2:
        raise InputError(f"one covariance matrix (N, N) is needed here, but the shape is {raw.shape}.")
    if raw.dtype not in (np.float32, np.float64):
        raw = _square(raw).astype(np.float64)
    if len(raw) <= _FULLY_CHECKED:
        check_covariance(raw)
        return raw
    if raw.shape[0] != raw.shape[1]:
        _square(raw)
    tolerance = _tolerance(raw)
    root = np.sqrt(np.maximum(np.diagonal(raw), 0))
    wide = root * (1 + tolerance)
    allowed = tolerance * root.max(initial=0.0) ** 2

    def is_sound(start: int) -> bool:
        if accelerates(raw.size):
            from foretrain.gaussian import fused_pairs

            return fused_pairs.is_sound(raw, wide, allowed, start, min(start + _CHECKED_ROWS, len(raw)))
        rows = slice(start, start + _CHECKED_ROWS)
        gap = raw[rows, start:] - raw[start:, rows].T
        excess = np.abs(raw[rows, start:])
        excess -= wide[rows, None] * wide[None, start:]
        # A NaN fails both comparisons, so this one line also finds what is not finite.
        return bool(np.abs(gap, out=gap).max() <= allowed and excess.max() <= 0)

    if not all(over_cores(is_sound, range(0, len(raw), _CHECKED_ROWS))):
        # The fast check failed: say what is wrong.
        gap = np.abs(_square(raw) - raw.T).max()
        _refuse_asymmetric(np.array([gap]), np.array([tolerance * np.abs(raw).max()]))
        diagonal = np.diagonal(raw)
        _refuse_negative(float(diagonal.min()), float(np.abs(diagonal).max()), tolerance)
        excess = np.abs(raw) - np.outer(wide, wide)
        if excess.max() > 0:
            i, j = np.unravel_index(np.argmax(excess), raw.shape)
            raise InputError(
                f"the covariance is not positive semidefinite: |K[{i},{j}]| exceeds sqrt(K[{i},{i}] K[{j},{j}])."
            )
    return raw


def check_cross(
    K: ArrayLike, row_variance: ArrayLike, column_variance: ArrayLike
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Covariances ``(m, n)`` between two sets of inputs in their own precision, and the variances of both sets.

    Every pair is checked, which is all that expectations of pairs rely on.
    """
    covariance, *variances = (_numbers(part) for part in (K, row_variance, column_variance))
    if [v.ndim for v in variances] != [1, 1] or covariance.shape != (len(variances[0]), len(variances[1])):
        raise InputError(
            f"covariances of shape {covariance.shape} do not fit variances of shapes {variances[0].shape} and "
            f"{variances[1].shape}: give (m, n), (m,) and (n,)."
        )
    if not covariance.size:
        raise InputError("one of the two sets has no inputs: give at least one on either side.")
    if min(v.min() for v in variances) < 0 or max(v.max() for v in variances) > _LARGEST:
        raise InputError(f"variances must lie between 0 and {_LARGEST:g}: check the inputs they came from.")
    wide = [np.sqrt(v) * (1 + _tolerance(covariance)) for v in variances]

    def is_sound(start: int) -> bool:
        rows = slice(start, start + _CHECKED_ROWS)
        excess = np.abs(covariance[rows])
        excess -= wide[0][rows, None] * wide[1]
        return bool(excess.max() <= 0)

    if not all(over_cores(is_sound, range(0, len(covariance), _CHECKED_ROWS))):
        excess = np.abs(covariance) - np.outer(*wide)
        i, j = np.unravel_index(np.argmax(excess), covariance.shape)
        raise InputError(f"|K[{i},{j}]| exceeds the root of its two variances: no inputs have such products.")
    return covariance, variances[0], variances[1]


def _numbers(values: ArrayLike) -> NDArray[Any]:
    """An array of finite real numbers, float32 or float64."""
    name = "covariances and variances"
    raw = _real(name, values, f"{name} must be arrays without ragged rows.")
    if not np.isfinite(raw).all():
        raise InputError(f"{name} must be finite; check the inputs they came from.")
    return raw if raw.dtype in (np.float32, np.float64) else raw.astype(np.float64)


def stack_pairs(first: Array, second: Array, covariance: Array) -> Array:
    """Covariances (B, 2, 2) of pairs of inputs from their variances and covariances (B,)."""
    rows = [np.stack([first, covariance], axis=-1), np.stack([covariance, second], axis=-1)]
    return np.stack(rows, axis=-2).astype(np.float64, copy=False)


def difference_of_products(a: Any, b: Any, c: Any, d: Any) -> Array:
    """``a b - c d`` to full relative precision (Dekker's exact products): no loss for nearly parallel inputs."""
    left, left_rest = _exact_product(np.asarray(a, float), np.asarray(b, float))
    right, right_rest = _exact_product(np.asarray(c, float), np.asarray(d, float))
    return np.asarray((left - right) + (left_rest - right_rest))


def _exact_product(a: Array, b: Array) -> tuple[Array, Array]:
    product = a * b
    a_high, b_high = _high_half(a), _high_half(b)
    a_low, b_low = a - a_high, b - b_high
    rest = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, rest


def _high_half(a: Array) -> Array:
    scaled = _SPLITTER * a
    return scaled - (scaled - a)


class Staircase(NamedTuple):
    """``z[order] = factor @ x`` with x standard normal: a pivoted Cholesky factor, zero beyond the rank."""

    factor: Array  # (B, n, n), lower triangular in the pivoted order
    order: NDArray[np.intp]  # (B, n)
    rank: NDArray[np.intp]  # (B,)


def condition(K: Array, pivot: int) -> Array:
    """Covariance of the other inputs once input ``pivot`` is known (Schur complement), for a stack (B, n, n)."""
    others = [i for i in range(K.shape[-1]) if i != pivot]
    block = K[:, others][:, :, others]
    column = K[:, others, pivot]
    variance = K[:, pivot, pivot][:, None, None]
    safe = np.where(variance > 0, variance, 1.0)
    schur = difference_of_products(block, safe, column[:, :, None], column[:, None, :]) / safe
    return _without_lost(np.where(variance > 0, schur, block), np.zeros((len(K), len(others))))


def _without_lost(K: Array, floor: Array) -> Array:
    """Inputs whose variance is not above the floor (B, n) set to zero: they are no directions of their own."""
    keep = np.diagonal(K, axis1=1, axis2=2) > floor
    return np.asarray(K * keep[:, :, None] * keep[:, None, :])


def staircase(K: Array) -> Staircase:
    """Pivoted Cholesky factors of a stack (B, n, n), largest remaining variance first; null directions dropped.

    Two inputs are told apart to the last digit. Among more, what is left of a variance is trusted only above the
    rounding of what it was.
    """
    batch, n, _ = K.shape
    rows = np.arange(batch)
    order = np.tile(np.arange(n), (batch, 1))
    factor = np.zeros((batch, n, n))
    rest = K.copy()
    floor = np.diagonal(K, axis1=1, axis2=2) * (_LOST if n > 2 else 0.0)
    for j in range(n):
        pivot = j + np.argmax(np.diagonal(rest, axis1=1, axis2=2)[:, j:], axis=1)
        if (pivot != j).any():
            _swap(rows, j, pivot, order, factor, rest)
        variance = rest[:, j, j]
        alive = variance > 0
        root = np.sqrt(np.where(alive, variance, 1.0))
        factor[:, j:, j] = np.where(alive[:, None], rest[:, j:, j] / root[:, None], 0.0)
        if j + 1 < n:
            below = np.take_along_axis(floor, order[:, j + 1 :], axis=1)
            rest[:, j + 1 :, j + 1 :] = _without_lost(condition(rest[:, j:, j:], 0), below)
    rank = (np.diagonal(factor, axis1=1, axis2=2) > 0).sum(axis=1)
    return Staircase(factor, order, rank)


def _swap(
    rows: NDArray[np.intp],
    j: int,
    pivot: NDArray[np.intp],
    order: NDArray[np.intp],
    factor: Array,
    rest: Array,
) -> None:
    order[rows, j], order[rows, pivot] = order[rows, pivot], order[rows, j].copy()
    first = factor[rows, j].copy()
    factor[rows, j], factor[rows, pivot] = factor[rows, pivot], first
    first = rest[rows, j].copy()
    rest[rows, j], rest[rows, pivot] = rest[rows, pivot], first
    first = rest[rows, :, j].copy()
    rest[rows, :, j], rest[rows, :, pivot] = rest[rows, :, pivot], first
