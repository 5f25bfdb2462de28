"""Laws from which weights and biases are drawn: same variance, different shape.

At leading order in the width only the variance matters; the excess kurtosis k_4 enters at 1/n.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special

from foretrain.support.errors import unknown_name
from foretrain.theory.architecture import MLP, FloatArray

Shape = tuple[int, ...]

_CUT = 2.0  # parent deviations at which the usual truncated normal initialiser cuts


@dataclass(frozen=True)
class WeightLaw:
    """A symmetric law of unit variance: its excess kurtosis and a function that draws from it."""

    name: str
    excess_kurtosis: float
    draw: Callable[[np.random.Generator, Shape], FloatArray]


def weight_law(name: str) -> WeightLaw:
    """The law "gaussian", "uniform" or "truncated_normal" (cut at two parent deviations, then rescaled)."""
    if name not in _LAWS:
        raise unknown_name("weight law", name, _LAWS)
    return _LAWS[name]


def truncated_normal_moments(cut: float) -> tuple[float, float]:
    """Variance and excess kurtosis of a standard normal restricted to ±cut."""
    density = math.exp(-0.5 * cut * cut) / math.sqrt(2.0 * math.pi)
    edge = 2.0 * cut * density / math.erf(cut / math.sqrt(2.0))
    variance = 1.0 - edge
    return variance, (3.0 * variance - cut * cut * edge) / variance**2 - 3.0


def framework_default(mlp: MLP) -> MLP:
    """The network with C_W = 1/3 and C_b = 1/(3 fan-in) in every layer.

    Drawn with the law "uniform" this is what frameworks do by default: U(±1/√fan-in) for weights and biases.
    """
    return mlp.replace(C_W=1.0 / 3.0, C_b=[1.0 / (3.0 * fan_in) for fan_in in mlp.widths[:-1]])


def _draw_gaussian(generator: np.random.Generator, shape: Shape) -> FloatArray:
    return generator.standard_normal(shape)


def _draw_uniform(generator: np.random.Generator, shape: Shape) -> FloatArray:
    half_width = math.sqrt(3.0)
    return generator.uniform(-half_width, half_width, shape)


def _draw_truncated_normal(generator: np.random.Generator, shape: Shape) -> FloatArray:
    scale = 1.0 / math.sqrt(truncated_normal_moments(_CUT)[0])
    tail = special.ndtr(-_CUT)
    values: FloatArray = scale * special.ndtri(generator.uniform(tail, 1.0 - tail, shape))
    return values


_LAWS = {
    law.name: law
    for law in (
        WeightLaw("gaussian", 0.0, _draw_gaussian),
        WeightLaw("uniform", -6.0 / 5.0, _draw_uniform),
        WeightLaw("truncated_normal", truncated_normal_moments(_CUT)[1], _draw_truncated_normal),
    )
}
