"""Many networks at once, as explicit weights and biases, and the laws that these are drawn from.

At leading order in the width only the variance of a law matters; its excess kurtosis k_4 enters at 1/n.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from foretrain.support.answers import Result
from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError, unknown_name
from foretrain.support.memory import require_memory
from foretrain.support.seeds import Seed, generator
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.arguments import MOST_DRAWS

Shape = tuple[int, ...]
Array = TypeVar("Array", bound=Any)  # of numpy here, of torch in foretrain.compare.ensembles

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
        raise unknown_name("weight `law`", name, _LAWS)
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


def _draw_truncated_normal(generator: np.random.Generator, shape: Shape) -> FloatArray:
    scale = 1.0 / math.sqrt(truncated_normal_moments(_CUT)[0])
    tail = special.ndtr(-_CUT)
    values: FloatArray = scale * special.ndtri(generator.uniform(tail, 1.0 - tail, shape))
    return values


_LAWS = {
    law.name: law
    for law in (
        WeightLaw("gaussian", 0.0, np.random.Generator.standard_normal),
        WeightLaw("uniform", -6.0 / 5.0, lambda source, shape: source.uniform(-(3**0.5), 3**0.5, shape)),
        WeightLaw("truncated_normal", truncated_normal_moments(_CUT)[1], _draw_truncated_normal),
    )
}


def check_draws(draws: object) -> int:
    """The number of networks as a whole number of at least 2, since a standard error needs two."""
    count = whole_number("draws", draws, least=2)
    if count > MOST_DRAWS:
        raise InputError(f"`draws` is {count:,}: give at most {MOST_DRAWS:,}.")
    return count


def check_layers(mlp: MLP, layers: Sequence[int] | None) -> tuple[int, ...]:
    """The layers asked for, in order; None means all of 1..L."""
    if layers is None:
        return tuple(range(1, mlp.depth + 1))
    chosen = tuple(sorted({mlp.check_layer(layer) for layer in layers}))
    if not chosen:
        raise InputError(f"layers is empty: choose from 1 to {mlp.depth}, or leave it out for all.")
    return chosen


@dataclass(frozen=True, repr=False)
class Parameters(Result):
    """Weights (draws, n_l, n_{l-1}) and biases (draws, n_l) of layers 1..L of many networks."""

    mlp: MLP
    weights: tuple[FloatArray, ...]
    biases: tuple[FloatArray, ...]


def sample_parameters(mlp: MLP, draws: int, law: str = "gaussian", seed: Seed = 0) -> Parameters:
    """Independent parameters with E[b²] = C_b and E[W²] = C_W / fan-in (2.19)-(2.22)."""
    count, draw = check_draws(draws), partial(weight_law(law).draw, generator(seed))
    require_memory(8 * count * mlp.parameter_count, f"the parameters of {count} networks", "use fewer draws")
    return draw_parameters(mlp, count, draw)


def draw_parameters(mlp: MLP, draws: int, draw: Callable[[Shape], FloatArray]) -> Parameters:
    """The same from a function that draws independent numbers of unit variance."""
    layers = [draw_layer(mlp, number, draws, draw) for number in range(1, mlp.depth + 1)]
    return Parameters(mlp, *zip(*((scale * weights, biases) for weights, biases, scale in layers)))


def draw_layer(
    mlp: MLP, number: int, draws: int, draw: Callable[[Shape], Array]
) -> tuple[Array, Array, float]:
    """Weights (draws, n_l, n_{l-1}) of unit variance, biases (draws, n_l) and √(C_W / fan-in) of one layer.

    The last is the factor of the weights, kept apart because some products apply it for nothing. ``draw`` gives
    arrays of any library, of a law with unit variance; where C_b = 0 it is not asked for biases, which are zero.
    """
    fan_in, width = mlp.widths[number - 1 : number + 1]
    C_b, C_W = mlp.C_b[number - 1], mlp.C_W[number - 1]
    weights = draw((draws, width, fan_in))
    biases: Array = draw((draws, width)) * math.sqrt(C_b) if C_b else weights[..., 0] * 0
    return weights, biases, math.sqrt(C_W / fan_in)


def activity(mlp: MLP, preactivations: FloatArray) -> FloatArray:
    """σ(z), which feeds the next layer."""
    return np.asarray(mlp.activation.value(preactivations), dtype=np.float64)


def forward(parameters: Parameters, X: ArrayLike) -> dict[int, FloatArray]:
    """Preactivations of every layer of every network, {layer: (draws, n_l, inputs)} (2.5), (B.3)."""
    mlp = parameters.mlp
    incoming = mlp.check_inputs(X).T
    draws = len(parameters.biases[0])
    size = 8 * draws * incoming.shape[1] * sum(mlp.widths[1:])
    require_memory(size, f"the preactivations of {draws} networks", "use fewer networks or inputs")
    result: dict[int, FloatArray] = {}
    for layer, weights, biases in zip(mlp.layers, parameters.weights, parameters.biases, strict=True):
        preactivations = weights @ incoming + biases[..., None]
        if layer.gamma:
            preactivations += layer.gamma * result[layer.number - 1]
        result[layer.number] = preactivations
        if layer.number < mlp.depth:
            incoming = activity(mlp, preactivations)
    return result
