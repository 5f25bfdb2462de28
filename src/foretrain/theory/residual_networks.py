"""Deep residual networks at criticality: how fast fluctuations grow, and the best depth and skip coupling.

At critical initialisation (B.20), (B.21) the relative fluctuation of the metric grows as V / (n K^2) = nu r, r = L/n.
The leading terms of the mutual information between two halves of the output are largest at nu r = 4 / (20 + 3 n_L)
(A.73), (B.36): the deeper the network, the stronger the skip coupling gamma that keeps it there.

``method="book"`` is (B.29); ``method="complete"`` adds what neurons remember of their own past beyond the quadratic
order, as in :mod:`foretrain.theory.recursions.residual`. Both agree for K* = 0 and for activations with equal slopes.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.integrate import quad
from scipy.optimize import brentq

from foretrain.activations import Activation
from foretrain.activations import activation as find_activation
from foretrain.support.arguments import Array, whole_number
from foretrain.support.errors import InputError, NotSupportedError, unknown_name
from foretrain.theory.criticality import CriticalPoint, criticality

_METHODS = ("book", "complete")
_MOST_TERMS = 2_000_000
_DIGITS = 38.0  # e^-38 is below the rounding of one


def fluctuation_rate(activation: Any, gamma: float = 0.0, method: str = "complete") -> float:
    """The nu of V / (n K^2) = nu L / n for deep networks at criticality; gamma = 0 is the plain MLP (A.69), (A.70).

    Scale-invariant: (1-g^2) [(1-g^2) (3 A_4/A_2^2 - 1) + 4 g^2] (B.29), and with the whole memory of the neurons
    2 (1-g^2)^2 (A_4/A_2^2 - 1) sum_k O(g^k) more. K* = 0: (2/3) (1 - g^4) (B.35), however fast K falls. Half-stable
    activations are refused, because there nu depends on where the flow starts: S*/K*^2 on the fixed point itself,
    a fifth of it once the kernel has come in from far away.

    Examples
    --------
    >>> fluctuation_rate("relu"), round(fluctuation_rate("relu", 0.6), 6)
    (5.0, 6.196091)
    """
    point = _critical_point(find_activation(activation))
    if not -1 < gamma < 1:
        raise InputError(f"`gamma` is {gamma!r}: criticality needs -1 < gamma < 1 (B.20), (B.21).")
    return _rate(point, float(gamma), _check_method(method))


def optimal_aspect_ratio(
    activation: Any, gamma: float = 0.0, *, n_out: int, method: str = "complete"
) -> float:
    """r* = L/n at which the leading terms of the mutual information of two halves of the output peak (A.73), (B.36).

    Examples
    --------
    >>> round(optimal_aspect_ratio("tanh", n_out=10), 12)
    0.12
    """
    return _best_fluctuation(n_out) / fluctuation_rate(activation, gamma, method)


def optimal_skip(activation: Any, r: float, *, n_out: int, method: str = "complete") -> float:
    """gamma* >= 0 that makes a network of aspect ratio r = L/n optimal, nu(gamma*) r = 4 / (20 + 3 n_L) (B.36).

    0 if the plain network is not too deep, r <= r*(0). Otherwise there is one root. The complete nu of activations
    with unequal slopes rises before it falls (ReLU: from 5 over 6.53 at 0.449 back to 5 at 0.749), so that the root
    lies on the falling side and gamma* jumps there as soon as r exceeds r*(0).

    Examples
    --------
    >>> round(optimal_skip("relu", 0.5, n_out=10, method="book"), 10)
    0.9799960176
    """
    if not (math.isfinite(r) and r > 0):
        raise InputError(f"the aspect ratio is {r!r}: give a positive number, depth over width.")
    point, way = _critical_point(find_activation(activation)), _check_method(method)
    target = _best_fluctuation(n_out) / r
    if target >= _rate(point, 0.0, way):
        return 0.0
    if point.kind == "K*=0":
        return float((1 - 1.5 * target) ** 0.25)
    if way == "book" or _excess(point) == 0:
        # 1 - gamma^2 from (B.29), a quadratic equation: written so that equal slopes of 4 are no special case.
        return math.sqrt(1 - target / (2 + math.sqrt(4 + (_source(point) - 4) * target)))

    def surplus(depth: float) -> float:
        return _rate(point, -math.expm1(-depth), way) - target

    return float(-math.expm1(-brentq(surplus, 0.0, 34.0, xtol=1e-14, rtol=1e-14)))


def largest_mutual_information(n_out: int) -> float:
    """(1/6) (n_L / (20 + 3 n_L))^2: the information at r*, whatever the activation and gamma (A.74), (B.36)."""
    return (whole_number("n_out", n_out) / (20 + 3 * n_out)) ** 2 / 6


def odd_overlap(c: ArrayLike) -> Array:
    """O(c) = (2/pi) [(1 + 2 c^2) arcsin c + 3 c sqrt(1 - c^2)] = <z^2 sign z, z'^2 sign z'> at correlation c."""
    c = np.asarray(c, dtype=np.float64)
    return np.asarray(2 / np.pi * ((1 + 2 * c**2) * np.arcsin(c) + 3 * c * np.sqrt(1 - c**2)))


def memory_sum(gamma: float) -> float:
    """sum_{k>=1} O(gamma^k), for -1 < gamma < 1."""
    size = abs(gamma)
    if size == 0:
        return 0.0
    total = _positive_sum(-math.log(size))
    # O is odd: for negative gamma the terms with odd k change sign.
    return total if gamma > 0 else 2 * _positive_sum(-2 * math.log(size)) - total


def _positive_sum(rate: float) -> float:
    """sum_{k>=1} O(e^(-k rate)): term by term, or near rate 0 with the tail by the formula of Euler and Maclaurin."""
    terms = math.ceil(_DIGITS / rate)
    if terms <= _MOST_TERMS:
        return float(odd_overlap(np.exp(-rate * np.arange(1, terms + 1))).sum())
    first = 1000
    c = math.exp(-first * rate)
    head = float(odd_overlap(np.exp(-rate * np.arange(1, first))).sum())
    integral = quad(lambda x: float(odd_overlap(x)) / x, 0.0, c, epsabs=0.0, epsrel=1e-13)[0] / rate
    slope = -rate * c * 8 / math.pi * (c * math.asin(c) + math.sqrt(1 - c**2))
    return head + integral + float(odd_overlap(c)) / 2 - slope / 12


def _rate(point: CriticalPoint, gamma: float, method: str) -> float:
    if point.kind == "K*=0":
        return 2 / 3 * (1 - gamma**4)
    distance = (1 - gamma) * (1 + gamma)
    book = distance * (distance * _source(point) + 4 * gamma**2)
    if method == "book" or _excess(point) == 0:
        return book
    return book + 2 * distance**2 * _excess(point) * memory_sum(gamma)


def _source(point: CriticalPoint) -> float:
    """3 A_4 / A_2^2 - 1."""
    return 3 * point.coefficients["A_4"] / point.coefficients["A_2"] ** 2 - 1


def _excess(point: CriticalPoint) -> float:
    """A_4 / A_2^2 - 1: zero if and only if both slopes are equal in size."""
    return point.coefficients["A_4"] / point.coefficients["A_2"] ** 2 - 1


@lru_cache(maxsize=64)
def _critical_point(act: Activation) -> CriticalPoint:
    found = criticality(act)
    if found.point is None:
        raise NotSupportedError(
            f"{found.activation.label} has no critical initialisation ({found.reason}): "
            "follow V with foretrain.flow at the C_b and C_W you use."
        )
    if found.point.kind == "half-stable":
        raise NotSupportedError(
            f"{found.activation.label} is half-stable, where nu depends on the first kernel: "
            "follow V with foretrain.flow from your inputs."
        )
    return found.point


def _best_fluctuation(n_out: int) -> float:
    """nu r at the maximum."""
    return 4 / (20 + 3 * whole_number("n_out", n_out))


def _check_method(method: str) -> str:
    if method not in _METHODS:
        raise unknown_name("`method` for the fluctuations of residual networks", method, _METHODS)
    return method
