"""Polynomials and truncated Taylor series (jets) that the derivative formulas are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

from foretrain.activations._activation import Array


def horner(coefficients: Sequence[float], z: Array) -> Array:
    """The polynomial with ascending coefficients, in the precision of ``z``."""
    result = np.full_like(z, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = result * z + float(coefficient)
    return result


def differentiate(coefficients: Sequence[float], order: int) -> tuple[float, ...]:
    """Ascending coefficients of the derivative of a polynomial; (0.0,) when nothing is left."""
    remaining = tuple(math.perm(power, order) * float(c) for power, c in enumerate(coefficients))[order:]
    return remaining or (0.0,)


def hermite(z: Array, degree: int) -> Array:
    """The probabilists' Hermite polynomial He_degree."""
    previous, current = np.zeros_like(z), np.ones_like(z)
    for k in range(degree):
        previous, current = current, z * current - k * previous
    return current


@cache
def eulerian(order: int) -> tuple[int, ...]:
    """Coefficients of sum_j <order, j> (-x)^j with the Eulerian numbers, divided by 1 - x for even orders.

    For even orders x = 1 is a root; taking it out exactly keeps the relative accuracy near it.
    """
    numbers = [1]
    for n in range(2, order + 1):
        padded = [0, *numbers, 0]
        numbers = [(j + 1) * padded[j + 1] + (n - j) * padded[j] for j in range(n)]
    signed = [(-1) ** j * number for j, number in enumerate(numbers)]
    if order % 2:
        return tuple(signed)
    quotient = [signed[0]]
    for coefficient in signed[1:-1]:
        quotient.append(coefficient + quotient[-1])
    return tuple(quotient)


def compose(outer: Sequence[Array], inner: Sequence[Array]) -> list[Array]:
    """Derivatives of f(g(z)) from those of f at g(z) and of g at z (Faà di Bruno by jets)."""
    order = len(inner) - 1
    increment = [np.zeros_like(inner[0]), *(g / math.factorial(k) for k, g in enumerate(inner) if k)]
    power = [np.ones_like(inner[0]), *(np.zeros_like(inner[0]) for _ in range(order))]
    total = [np.zeros_like(inner[0]) for _ in range(order + 1)]
    for j in range(order + 1):
        total = [t + outer[j] / math.factorial(j) * p for t, p in zip(total, power)]
        power = [
            sum((power[i] * increment[k - i] for i in range(k)), 0.0 * power[0]) for k in range(order + 1)
        ]
    return [t * math.factorial(k) for k, t in enumerate(total)]
