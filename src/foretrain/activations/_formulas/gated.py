"""The smooth relatives of the ReLU: softplus, and z times a gate."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from scipy import special

from foretrain.activations._activation import Activation, Array
from foretrain.activations._formulas.polynomials import compose, hermite
from foretrain.activations._formulas.saturating import half_gaussian_exponential, hyperbolic_tangent, logistic

_GELU_SCALE = math.sqrt(2.0 / math.pi)
_GELU_CUBIC = 0.044715


def smooth_ramp(z: Array, order: int) -> Array:
    """The softplus log(1 + e^z); its derivatives are those of the sigmoid."""
    return np.logaddexp(z, np.zeros_like(z)) if order == 0 else logistic(z, order - 1)


def gated_by_logistic(z: Array, order: int, beta: float) -> Array:
    """Z s(beta z) and its derivatives by Leibniz."""
    product = z * logistic(beta * z, order) * math.pow(beta, order)
    if order == 0:
        return product
    return product + order * math.pow(beta, order - 1) * logistic(beta * z, order - 1)


def gated_by_normal(z: Array, order: int) -> Array:
    """Z Phi(z): the k-th derivative is (-1)^(k-1) (He_k - He_(k-2)) phi for k >= 2."""
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
    slope = 2.0 * _GELU_SCALE
    inner = [
        slope * near * (1.0 + _GELU_CUBIC * near**2),
        slope * (1.0 + 3.0 * _GELU_CUBIC * near**2),
        slope * 6.0 * _GELU_CUBIC * near,
        np.full_like(near, slope * 6.0 * _GELU_CUBIC),
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


def softplus() -> Activation:
    """(2.15)."""
    return Activation("softplus", "log(1 + exp(z))", smooth_ramp, ("softplus",), strip=math.pi)


def swish(beta: float) -> Activation:
    """(2.16), with the gate's steepness beta."""
    return Activation(
        "swish",
        "z / (1 + exp(-beta z))",
        partial(gated_by_logistic, beta=beta),
        ("swish", beta),
        parameter_items=(("beta", beta),),
        strip=math.pi / beta,
    )


def gelu() -> Activation:
    """(2.17), the exact form with the error function."""
    return Activation(
        "gelu", "z Φ(z), Φ the normal distribution function", gated_by_normal, ("gelu",), closed_form="gelu"
    )


def gelu_tanh() -> Activation:
    """The common approximation of the GELU by tanh; a different function, with other critical points."""
    return Activation(
        "gelu_tanh",
        "z/2 (1 + tanh(sqrt(2/π) (z + 0.044715 z³)))",
        gated_by_cubic_tanh,
        ("gelu_tanh",),
        strip=_nearest_pole_of_cubic_gate(),
    )


def mish() -> Activation:
    """Z tanh(softplus(z)); its poles are at e^z = -1 ± i."""
    return Activation(
        "mish", "z tanh(log(1 + exp(z)))", gated_by_tanh_of_ramp, ("mish",), strip=0.75 * math.pi
    )


def _nearest_pole_of_cubic_gate() -> float:
    """The smallest |Im z| with 2u(z) = i pi (2m + 1); the poles move away from the axis as m grows."""
    heights = [math.pi * (2 * m + 1) / (2.0 * _GELU_SCALE) for m in range(20)]
    roots = np.concatenate([np.roots([_GELU_CUBIC, 0.0, 1.0, -1j * height]) for height in heights])
    return float(np.min(np.abs(roots.imag)))
