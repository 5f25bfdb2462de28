"""Activations that are bounded: the perceptron's smooth relatives, which saturate on both sides, sine and cosine."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from scipy import special

from foretrain.activations._activation import MAX_ORDER, Activation, Array, Kink
from foretrain.activations._formulas.polynomials import eulerian, hermite, horner


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
    """Tanh z = 2 s(2z) - 1 and its derivatives."""
    return np.tanh(z) if order == 0 else 2.0 ** (order + 1) * logistic(2.0 * z, order)


def half_gaussian_exponential(z: Array) -> Array:
    """exp(-z^2 / 2), with the square split so that its rounding is not amplified in the tails."""
    coarse = np.round(16.0 * z) / 16.0
    return np.exp(-0.5 * coarse**2) * np.exp(-0.5 * (z - coarse) * (z + coarse))


def error_function(z: Array, order: int) -> Array:
    """Erf z and its derivatives (Hermite polynomials times the Gaussian)."""
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


def sigmoid() -> Activation:
    """(2.10)."""
    return Activation("sigmoid", "1 / (1 + exp(-z))", logistic, ("sigmoid",), strip=math.pi)


def tanh() -> Activation:
    """(2.11)."""
    return Activation("tanh", "tanh(z)", hyperbolic_tangent, ("tanh",), parity="odd", strip=math.pi / 2)


def erf() -> Activation:
    """The error function, whose Gaussian integrals are arcsines."""
    return Activation("erf", "erf(z)", error_function, ("erf",), parity="odd", closed_form="erf")


def softsign() -> Activation:
    """Smooth to first order; the even derivatives jump at 0. Each side has its pole a distance 1 away."""
    jumps = tuple(-2.0 * math.factorial(k) if k and k % 2 == 0 else 0.0 for k in range(MAX_ORDER + 1))
    return Activation(
        "softsign",
        "z / (1 + |z|)",
        rational_sign,
        ("softsign",),
        kinks=(Kink(0.0, jumps),),
        parity="odd",
        strip=1.0,
    )


def sinusoid(z: Array, order: int, quarter_turns: int) -> Array:
    """sin(z + quarter_turns pi/2) and its derivatives, each one quarter turn further."""
    turns = (order + quarter_turns) % 4
    wave = np.sin(z) if turns % 2 == 0 else np.cos(z)
    return wave if turns < 2 else -wave


def sin() -> Activation:
    """(2.12)."""
    return Activation(
        "sin", "sin(z)", partial(sinusoid, quarter_turns=0), ("sin",), parity="odd", closed_form="sine"
    )


def cos() -> Activation:
    """The even partner of the sine."""
    return Activation(
        "cos", "cos(z)", partial(sinusoid, quarter_turns=1), ("cos",), parity="even", closed_form="sine"
    )
