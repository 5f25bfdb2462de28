"""Expectations of all pairs of inputs at once: <f(z_a) g(z_b)>_K for every a, b of one set, or of two.

What a kernel recursion calls in every layer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.gaussian.all_pairs.closed_forms import closed_pair, own_values
from foretrain.gaussian.all_pairs.engine import AllPairs, Pair
from foretrain.gaussian.covariance import check_cross, check_gram
from foretrain.gaussian.expectation import check_tolerance
from foretrain.gaussian.factors import Factor, as_factor
from foretrain.gaussian.result import Expectation
from foretrain.gaussian.stack import Stack
from foretrain.support.errors import InputError
from foretrain.support.memory import require_memory

Array = NDArray[np.float64]

_GUARDED = 1500**2  # entries: below, the matrices are too small to be worth asking how much memory there is


def gram(
    products: Any, K: ArrayLike, *, tolerance: float | None = None, dtype: Any = None
) -> Expectation | list[Expectation]:
    """``<f(z_a) g(z_b)>_K`` for all pairs a, b of N inputs.

    Parameters
    ----------
    products
        An activation (name, object, callable) or factor f: gives <f f>. Or a list of pairs ``(f, g)``: gives a list,
        sharing the work, e.g. ``[("tanh", "tanh"), (("tanh", 1), ("tanh", 1))]``.
    K
        Covariance (N, N); float32 stays float32, which is faster.
    tolerance
        Relative to sqrt(<f^2><g^2>); 1e-10, or 1e-6 in float32.

    Entries of the diagonal where delta functions of one input would multiply are inf, or nan if not even that.

    Examples
    --------
    >>> gram("relu", [[1, 0.5], [0.5, 1]]).value.round(6)
    array([[0.5     , 0.304499],
           [0.304499, 0.5     ]])
    """
    pairs, single = _as_pairs(products)
    K = _in_precision(check_gram(K), dtype)
    tolerance = _tolerance_of(K, tolerance)
    _require_memory(K, len(pairs))
    results = AllPairs(K, np.diagonal(K), tolerance).all(pairs)
    return results[0] if single else results


def cross_gram(
    products: Any,
    K: ArrayLike,
    row_variance: ArrayLike,
    column_variance: ArrayLike,
    *,
    tolerance: float | None = None,
    dtype: Any = None,
) -> Expectation | list[Expectation]:
    """``<f(z_a) g(z_b)>`` for all inputs a of one set and b of another, without the pairs inside a set.

    Parameters
    ----------
    products
        As in :func:`gram`; f stands at the rows, g at the columns.
    K
        Covariances (m, n) between the two sets; float32 stays float32.
    row_variance, column_variance
        Variances (m,) and (n,) of the inputs of each set.
    tolerance
        As in :func:`gram`.

    Examples
    --------
    >>> cross_gram("relu", [[0.5, 1.0]], [1.0], [1.0, 1.0]).value.round(6)
    array([[0.304499, 0.5     ]])
    """
    pairs, single = _as_pairs(products)
    K, *variances = check_cross(K, row_variance, column_variance)
    K = _in_precision(K, dtype)
    tolerance = _tolerance_of(K, tolerance)
    _require_memory(K, len(pairs))
    variance = np.concatenate(variances).astype(K.dtype, copy=False)
    results = AllPairs(K, variance, tolerance, first_column=len(K)).all(pairs)
    return results[0] if single else results


def second_moments(f: Factor, variance: Array, tolerance: float = 1e-12) -> Array:
    """``<f^2>`` at single inputs of these variances (N,): the diagonal of :func:`gram`."""
    closed = closed_pair(f, f)
    if closed is not None:
        return np.asarray(own_values(*closed, variance))
    stack = Stack(variance[:, None, None], np.zeros((len(variance), 1)), tolerance)
    value, error = stack.total([f * f])
    stack.warn_if_short([f * f], value, error)
    return value


def _as_pairs(products: Any) -> tuple[list[Pair], bool]:
    """The products as pairs, and whether there is only one, not in a list."""
    single = not isinstance(products, list)
    return [_as_pair(p) for p in ([(products, products)] if single else products)], single


def _as_pair(product: Any) -> Pair:
    if not isinstance(product, tuple) or len(product) != 2:
        raise InputError(f"each product must be a pair (f, g), one factor for each input, not {product!r}.")
    return as_factor(product[0]), as_factor(product[1])


def _in_precision(K: NDArray[Any], dtype: Any) -> NDArray[Any]:
    if dtype is None:
        return K
    if np.dtype(dtype) not in (np.float32, np.float64):
        raise InputError(f"`dtype` must be float32 or float64, not {dtype!r}.")
    return K.astype(dtype, copy=False)


def _tolerance_of(K: NDArray[Any], tolerance: float | None) -> float:
    return check_tolerance(tolerance, 1e-6 if K.dtype == np.float32 else 1e-10)


def _require_memory(K: NDArray[Any], products: int) -> None:
    if K.size > _GUARDED:
        require_memory(
            K.nbytes * (2 * products + 1),
            f"{products} expectations of all pairs of {len(K)} and {K.shape[1]} inputs",
            "ask for fewer inputs or products at a time, or pass K in float32",
        )
