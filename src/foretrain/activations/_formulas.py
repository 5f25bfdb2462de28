"""The derivatives of the catalogue's activations to any order, in closed form: ``rule(z, order)``.

First the polynomials and truncated Taylor series (jets) that they are made of, then the bounded functions, the
smooth relatives of the ReLU (z times a gate), and what is simple on each side of 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from scipy import special

from foretrain.activations._activation import Array, Pieces

GELU_SCALE = math.sqrt(2.0 / math.pi)
GELU_CUBIC = 0.044715


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


def logistic(z: Array, order: int) -> Array:
    """s(z) = 1/(1 + e^-z) and its derivatives, with relative accuracy in the tails and near 0.

    For z <= 0, s^(k) = sum_m (-1)^(m-1) m^k e^(mz) = x A_k(-x) / (1 + x)^(k+1), x = e^z, with the Eulerian
    polynomial A_k; the other side follows by symmetry.
    """
    if order == 0:
        return np.asarray(special.expit(z))
    distance = np.abs(z)
    x = np.exp(-distance)
    magnitude = x * horner(eulerian(order), x) / (1.0 + x) ** (order + 1)
    if order % 2:
        return magnitude
    magnitude = magnitude * -np.expm1(-distance)
    return np.where(z < 0, magnitude, -magnitude)


def hyperbolic_tangent(z: Array, order: int) -> Array:
    """The function tanh z = 2 s(2z) - 1 and its derivatives."""
    return np.tanh(z) if order == 0 else 2.0 ** (order + 1) * logistic(2.0 * z, order)


def half_gaussian_exponential(z: Array) -> Array:
    """exp(-z^2 / 2), with the square split so that its rounding is not amplified in the tails."""
    coarse = np.round(16.0 * z) / 16.0
    return np.exp(-0.5 * coarse**2) * np.exp(-0.5 * (z - coarse) * (z + coarse))


def error_function(z: Array, order: int) -> Array:
    """The error function and its derivatives (Hermite polynomials times the Gaussian)."""
    if order == 0:
        return np.asarray(special.erf(z))
    # Beyond 40 the Gaussian is 0; without the clip a huge polynomial would meet it as inf * 0.
    near = np.clip(z, -40.0, 40.0)
    gaussian = half_gaussian_exponential(near) ** 2
    polynomial = math.sqrt(2.0) ** (order - 1) * hermite(math.sqrt(2.0) * near, order - 1)
    sign = 1.0 if order % 2 else -1.0
    return sign * 2.0 / math.sqrt(math.pi) * gaussian * polynomial


def rational_sign(z: Array, order: int) -> Array:
    """The softsign z / (1 + |z|) and its one-sided derivatives (-1)^(k-1) k! / (1 + z)^(k+1), z >= 0."""
    denominator = 1.0 + np.abs(z)
    if order == 0:
        return z / denominator
    magnitude = float(math.factorial(order)) / denominator ** (order + 1)
    return magnitude if order % 2 else np.where(z < 0, magnitude, -magnitude)


def sinusoid(z: Array, order: int, quarter_turns: int) -> Array:
    """sin(z + quarter_turns pi/2) and its derivatives, each one quarter turn further."""
    turns = (order + quarter_turns) % 4
    wave = np.sin(z) if turns % 2 == 0 else np.cos(z)
    return wave if turns < 2 else -wave


def smooth_ramp(z: Array, order: int) -> Array:
    """The softplus log(1 + e^z); its derivatives are those of the sigmoid."""
    return np.logaddexp(z, np.zeros_like(z)) if order == 0 else logistic(z, order - 1)


def gated_by_logistic(z: Array, order: int, beta: float) -> Array:
    """The function z s(beta z) and its derivatives by Leibniz."""
    product = z * logistic(beta * z, order) * math.pow(beta, order)
    if order == 0:
        return product
    return product + order * math.pow(beta, order - 1) * logistic(beta * z, order - 1)


def gated_by_normal(z: Array, order: int) -> Array:
    """The function z Phi(z): its k-th derivative is (-1)^(k-1) (He_k - He_(k-2)) phi for k >= 2."""
    # Beyond 40 the Gaussian is 0; without the clip a huge polynomial would meet it as inf * 0.
    near = np.clip(z, -40.0, 40.0)
    exponential = half_gaussian_exponential(near)
    density = exponential / math.sqrt(2.0 * math.pi)
    if order >= 2:
        sign = 1.0 if order % 2 else -1.0
        return sign * (hermite(near, order) - hermite(near, order - 2)) * density
    tail = 0.5 * np.asarray(special.erfcx(np.abs(near) / math.sqrt(2.0))) * exponential
    distribution = np.where(z < 0, tail, 1.0 - tail)
    return z * distribution if order == 0 else distribution + near * density


def gated_by_cubic_tanh(z: Array, order: int) -> Array:
    """The tanh fit of the GELU, z s(2u) with u = sqrt(2/pi) (z + 0.044715 z^3)."""
    # Beyond 25 the gate is 0 or 1 to the last digit, and its powers of z would only overflow.
    near = np.clip(z, -25.0, 25.0)
    slope = 2.0 * GELU_SCALE
    inner = [
        slope * near * (1.0 + GELU_CUBIC * near**2),
        slope * (1.0 + 3.0 * GELU_CUBIC * near**2),
        slope * 6.0 * GELU_CUBIC * near,
        np.full_like(near, slope * 6.0 * GELU_CUBIC),
    ]
    inner += [np.zeros_like(near) for _ in range(order)]
    gate = compose([logistic(inner[0], k) for k in range(order + 1)], inner[: order + 1])
    return _times_argument(z, gate)


def gated_by_tanh_of_ramp(z: Array, order: int) -> Array:
    """Mish, z tanh(log(1 + e^z))."""
    inner = [smooth_ramp(z, k) for k in range(order + 1)]
    return _times_argument(z, compose([hyperbolic_tangent(inner[0], k) for k in range(order + 1)], inner))


def _times_argument(z: Array, gate: list[Array]) -> Array:
    """The highest derivative of z g(z) that the derivatives of g allow."""
    order = len(gate) - 1
    return z * gate[order] + (order * gate[order - 1] if order else 0.0)


def two_polynomials(z: Array, order: int, pieces: Pieces) -> Array:
    """The derivative of a function that is one polynomial for z < 0 and another for z >= 0."""
    minus, plus = (horner(differentiate(piece, order), z) for piece in pieces)
    return np.where(z < 0, minus, plus)


def exponential_linear(z: Array, order: int, alpha: float, scale: float) -> Array:
    """Scale times z for z >= 0, alpha (e^z - 1) for z < 0."""
    below = np.minimum(z, 0.0)
    left = alpha * (np.expm1(below) if order == 0 else np.exp(below))
    right = z if order == 0 else np.full_like(z, 1.0 if order == 1 else 0.0)
    return scale * np.where(z < 0, left, right)
