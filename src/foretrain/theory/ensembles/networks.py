"""Many networks at once, as explicit weights and biases."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from foretrain.support.answers import Result
from foretrain.support.memory import require_memory
from foretrain.support.seeds import Seed, generator
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.ensembles.checks import check_draws
from foretrain.theory.ensembles.laws import WeightLaw, weight_law


@dataclass(frozen=True, repr=False)
class Parameters(Result):
    """Weights (draws, n_l, n_{l-1}) and biases (draws, n_l) of layers 1..L of many networks."""

    mlp: MLP
    weights: tuple[FloatArray, ...]
    biases: tuple[FloatArray, ...]


def sample_parameters(mlp: MLP, draws: int, law: str = "gaussian", seed: Seed = 0) -> Parameters:
    """Independent parameters with E[b²] = C_b and E[W²] = C_W / fan-in (2.19)-(2.22)."""
    count = check_draws(draws)
    chosen = weight_law(law)
    require_memory(8 * count * mlp.parameter_count, f"the parameters of {count} networks", "use fewer draws")
    source = generator(seed)
    layers = [draw_layer(mlp, number, count, chosen, source) for number in range(1, mlp.depth + 1)]
    return Parameters(mlp, tuple(weight for weight, _ in layers), tuple(bias for _, bias in layers))


def draw_layer(
    mlp: MLP, number: int, draws: int, law: WeightLaw, source: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Weights and biases of one layer of many networks; where C_b = 0 the biases are zero."""
    fan_in, width = mlp.widths[number - 1 : number + 1]
    C_b, C_W = mlp.C_b[number - 1], mlp.C_W[number - 1]
    weights = law.draw(source, (draws, width, fan_in))
    weights *= np.sqrt(C_W / fan_in)
    biases = np.sqrt(C_b) * law.draw(source, (draws, width)) if C_b else np.zeros((draws, width))
    return weights, biases


def apply_layer(weights: FloatArray, biases: FloatArray, incoming: FloatArray) -> FloatArray:
    """b + W s for signals ``incoming`` of shape (..., n_{l-1}, inputs)."""
    result: FloatArray = weights @ incoming + biases[..., None]
    return result


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
        preactivations = apply_layer(weights, biases, incoming)
        if layer.gamma:
            preactivations += layer.gamma * result[layer.number - 1]
        result[layer.number] = preactivations
        if layer.number < mlp.depth:
            incoming = activity(mlp, preactivations)
    return result
