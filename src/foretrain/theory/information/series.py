"""Entropy and information of m neurons of a layer for one input, as series in X = V / (n G^2) (A.52)-(A.75).

G and V are the exact mean and variance of the metric: at next order a V / (n K^2) of leading order is not enough.
Every formula needs m X << 1, and the information turns over and becomes negative where that fails, which no true
information does.
"""

from __future__ import annotations

import math
from numbers import Real

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.arguments import real_array
from foretrain.support.errors import InputError


def neurons(m: object) -> float:
    """A number of neurons; halves of an odd layer are allowed, as (A.73) has them."""
    if isinstance(m, bool) or not isinstance(m, Real) or not 0 < float(m) < math.inf:
        raise InputError(f"the number of neurons is {m!r}: give a positive number.")
    return float(m)


Array = NDArray[np.float64]

# Of the entries of V as integrals give them, and of the sum of their squares.
_ACCURACY, _DOUBTFUL = 1e-10, 0.01
_ALIKE = (
    "K is singular to the accuracy of its integrals, since inputs repeat or nearly depend on each other: leave out "
    "those that do."
)


def entropy_series(m: float, X: ArrayLike, G: float = 1.0, order: int = 3) -> Array:
    """(m/2) log 2 pi e G - (m^2 + 2m)/16 X^2 + (m^3 + 10 m^2 + 16 m)/48 X^3, up to X^order (A.52), (A.66).

    Examples
    --------
    >>> entropy_series(2, 0.05).round(10)
    np.float64(2.8368353997)
    """
    m, size = neurons(m), _variance(X)
    if not (math.isfinite(G) and G > 0):
        raise InputError(f"G is {G!r}: give the mean of the metric, a positive number.")
    next_order = (m**3 + 10 * m**2 + 16 * m) / 48 * _cubic(order)
    base = m / 2 * math.log(2 * math.pi * math.e * G)
    return np.asarray(base - (m**2 + 2 * m) / 16 * size**2 + next_order * size**3)[()]


def information_series(m_1: float, m_2: float, X: ArrayLike, order: int = 3) -> Array:
    """m_1 m_2 / 8 X^2 - m_1 m_2 (20 + 3 m_1 + 3 m_2) / 48 X^3, up to X^order (A.53), (A.67)."""
    m_1, m_2, size = neurons(m_1), neurons(m_2), _variance(X)
    next_order = m_1 * m_2 * (20 + 3 * m_1 + 3 * m_2) / 48 * _cubic(order)
    return np.asarray(m_1 * m_2 / 8 * size**2 - next_order * size**3)[()]


def tripartite_series(m_1: float, m_2: float, m_3: float, X: ArrayLike) -> Array:
    """m_1 m_2 m_3 / 8 X^3 > 0: neurons of a layer are redundant, never synergistic, at leading order (A.75)."""
    return np.asarray(neurons(m_1) * neurons(m_2) * neurons(m_3) / 8 * _variance(X) ** 3)[()]


def leading_information(K: ArrayLike, V: ArrayLike, n: float, m_1: float = 1, m_2: float = 1) -> float:
    """m_1 m_2 / (8 n^2) V_(ab)(cd) V^(ab)(cd), indices raised with K^-1: several inputs, leading order (derived).

    One input gives (A.53).
    """
    kernel = np.atleast_2d(real_array("K", K))
    size = len(kernel)
    if kernel.shape != (size, size) or np.size(V) != size**4:
        raise InputError(f"K has shape {kernel.shape} and V {np.shape(V)}: give (N, N) and (N, N, N, N).")
    vertex = real_array("V", V).reshape((size,) * 4)
    values, vectors = np.linalg.eigh(kernel)
    if not values[0] > 0:
        raise InputError(_ALIKE)
    root = vectors / np.sqrt(values)
    whitened = np.einsum("abcd,ai,bj,ck,dl->ijkl", vertex, root, root, root, root, optimize=True)
    if _ACCURACY * np.abs(vertex).max() / values[0] ** 2 > _DOUBTFUL * np.linalg.norm(whitened):
        raise InputError(_ALIKE)
    return neurons(m_1) * neurons(m_2) / 8 * float((whitened**2).sum()) / neurons(n) ** 2


def _cubic(order: int) -> float:
    if order not in (2, 3):
        raise InputError(f"order is {order!r}: 2 for the leading term in X, 3 for the next one as well.")
    return float(order == 3)


def _variance(X: ArrayLike) -> Array:
    size = real_array("X", X)
    if (size < 0).any():
        raise InputError("X = V / (n G^2) is a relative variance: give numbers from 0 on.")
    return size
