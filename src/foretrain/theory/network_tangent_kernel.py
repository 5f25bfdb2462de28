"""The tangent kernel of actual networks, exact, in two ways, and the gradient step it predicts.

``forward_kernels``      layer by layer (8.12): the kernel of every layer, O(L n^3 N^2)
``output_kernel``        backwards (8.16)-(8.18): that of the output alone, without a Jacobian in parameter space
``layer_contributions``  the terms of the backward sum, by layer and group
``descend``              one step of tensorial gradient descent on half the sum of squares (7.11)

Networks are :class:`foretrain.theory.ensembles.Parameters`, many at once. A kernel has the indices
(draws, i_1, i_2, a_1, a_2), neurons before inputs, as in H_{i1 i2; a1 a2}.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.arguments import real_array
from foretrain.support.errors import InputError
from foretrain.support.memory import require_memory
from foretrain.theory.architecture import MLP
from foretrain.theory.arguments import check_learning_rate, check_targets
from foretrain.theory.ensembles import Parameters, activity, forward

Array = NDArray[np.float64]

_NEGATIVE = 1e-10


@dataclass(frozen=True)
class LayerRates:
    """Learning rates of one layer: a number is lambda_b or lambda_W of (8.6), a matrix is lambda itself.

    The matrix of the biases is (n_l, n_l); that of the weights (n_l n_{l-1}, n_l n_{l-1}) in row-major order of W,
    and contains whatever 1/n_{l-1} is wanted. Both must be symmetric and positive semidefinite.
    """

    bias: float | Array
    weight: float | Array


def standard_rates(mlp: MLP) -> tuple[LayerRates, ...]:
    """The rates that the network states."""
    return tuple(LayerRates(layer.lambda_b, layer.lambda_W) for layer in mlp.layers)


def forward_kernels(
    parameters: Parameters, X: ArrayLike, rates: Sequence[LayerRates] | None = None
) -> dict[int, Array]:
    """The tangent kernel of every layer, {layer: (draws, n_l, n_l, N, N)}, by the forward equation (8.12)."""
    mlp, chosen = parameters.mlp, _check_rates(parameters.mlp, rates)
    inputs = mlp.check_inputs(X)
    _require(parameters, 2 * max(mlp.widths[1:]) ** 2 * len(inputs) ** 2)
    z = forward(parameters, inputs)
    found: dict[int, Array] = {}
    for layer, rate in zip(mlp.layers, chosen, strict=True):
        signals = _signals(mlp, inputs, z, layer.number)
        own = np.broadcast_to(np.eye(layer.width), (len(signals), signals.shape[2], layer.width, layer.width))
        kernel = _bias_term(own, rate.bias) + _weight_term(own, signals, rate.weight)
        if layer.number > 1:
            step = _step(parameters, z, layer.number)
            kernel = kernel + np.einsum(
                "daij,djkab,dblk->dilab", step, found[layer.number - 1], step, optimize=True
            )
        found[layer.number] = kernel
    return found


def output_kernel(parameters: Parameters, X: ArrayLike, rates: Sequence[LayerRates] | None = None) -> Array:
    """The tangent kernel of the output (draws, n_L, n_L, N, N) by the backward equation (8.18)."""
    return np.asarray(layer_contributions(parameters, X, rates).sum(axis=(1, 2)))


def layer_contributions(
    parameters: Parameters, X: ArrayLike, rates: Sequence[LayerRates] | None = None
) -> Array:
    """What biases and weights of every layer add to it: (draws, L, 2, n_L, n_L, N, N)."""
    mlp, chosen = parameters.mlp, _check_rates(parameters.mlp, rates)
    inputs = mlp.check_inputs(X)
    _require(parameters, 2 * mlp.depth * (mlp.n_out * len(inputs)) ** 2)
    z = forward(parameters, inputs)
    terms = [
        (
            _bias_term(jacobian, chosen[number - 1].bias),
            _weight_term(jacobian, _signals(mlp, inputs, z, number), chosen[number - 1].weight),
        )
        for number, jacobian in _jacobians(parameters, z).items()
    ]
    return np.stack([np.stack(pair, axis=1) for pair in terms[::-1]], axis=1)


def descend(
    parameters: Parameters, X: ArrayLike, Y: ArrayLike, eta: float, rates: Sequence[LayerRates] | None = None
) -> Parameters:
    """The networks after theta <- theta - eta lambda dL/dtheta, L half the sum of squares over inputs (7.11)."""
    mlp, chosen = parameters.mlp, _check_rates(parameters.mlp, rates)
    inputs, eta = mlp.check_inputs(X), check_learning_rate(eta)
    z = forward(parameters, inputs)
    error = z[mlp.depth] - check_targets(Y, len(inputs), mlp.n_out, "Y").T
    weights, biases = list(parameters.weights), list(parameters.biases)
    for number, jacobian in _jacobians(parameters, z).items():
        rate, signals = chosen[number - 1], _signals(mlp, inputs, z, number)
        sensitivity = np.einsum("dia,daij->dja", error, jacobian)
        bias_slope, weight_slope = sensitivity.sum(axis=2), sensitivity @ signals.transpose(0, 2, 1)
        biases[number - 1] = biases[number - 1] - eta * _times(rate.bias, bias_slope)
        fan_in = signals.shape[1]
        if np.ndim(rate.weight):
            change = _times(rate.weight, weight_slope.reshape(len(error), -1)).reshape(weight_slope.shape)
        else:
            change = rate.weight / fan_in * weight_slope
        weights[number - 1] = weights[number - 1] - eta * change
    return replace(parameters, weights=tuple(weights), biases=tuple(biases))


def _jacobians(parameters: Parameters, z: dict[int, Array]) -> dict[int, Array]:
    """dz^(L) / dz^(l) as (draws, inputs, n_L, n_l), from the output to layer 1 (8.16), (8.17)."""
    mlp = parameters.mlp
    draws, outputs, inputs = z[mlp.depth].shape
    jacobian = np.broadcast_to(np.eye(outputs), (draws, inputs, outputs, outputs))
    found = {mlp.depth: jacobian}
    for number in range(mlp.depth, 1, -1):
        jacobian = jacobian @ _step(parameters, z, number)
        found[number - 1] = jacobian
    return found


def _step(parameters: Parameters, z: dict[int, Array], number: int) -> Array:
    """dz^(l) / dz^(l-1) = W diag(s') + gamma as (draws, inputs, n_l, n_{l-1})."""
    mlp, before = parameters.mlp, z[number - 1]
    slope = np.asarray(mlp.activation.derivative(before, 1), dtype=np.float64).transpose(0, 2, 1)
    step = parameters.weights[number - 1][:, None] * slope[:, :, None, :]
    gamma = mlp.gamma[number - 1]
    return np.asarray(step + gamma * np.eye(before.shape[1]) if gamma else step)


def _signals(mlp: MLP, inputs: Array, z: dict[int, Array], number: int) -> Array:
    """What enters a layer: (draws, n_{l-1}, inputs)."""
    if number > 1:
        return activity(mlp, z[number - 1])
    return np.broadcast_to(inputs.T, (len(z[1]), *inputs.T.shape))


def _bias_term(jacobian: Array, rate: float | Array) -> Array:
    """J lambda J^T over neurons, for all pairs of inputs and outputs."""
    return _pairs(jacobian, jacobian @ rate if np.ndim(rate) else rate * jacobian)


def _weight_term(jacobian: Array, signals: Array, rate: float | Array) -> Array:
    if not np.ndim(rate):
        overlap = signals.transpose(0, 2, 1) @ signals / signals.shape[1]
        return np.asarray(_pairs(jacobian, rate * jacobian) * overlap[:, None, None])
    features = np.einsum("daik,dma->daikm", jacobian, signals)
    features = features.reshape(*features.shape[:3], -1)
    return _pairs(features, features @ rate)


def _pairs(left: Array, right: Array) -> Array:
    """sum_k left[a, i, k] right[b, j, k] as (draws, i, j, a, b)."""
    draws, inputs, outputs, _ = left.shape
    flat = (draws, inputs * outputs, -1)
    gram = left.reshape(flat) @ right.reshape(flat).transpose(0, 2, 1)
    return gram.reshape(draws, inputs, outputs, inputs, outputs).transpose(0, 2, 4, 1, 3)


def _times(rate: float | Array, slope: Array) -> Array:
    """lambda times gradients (draws, parameters); lambda is symmetric."""
    return np.asarray(slope @ rate if np.ndim(rate) else rate * slope)


def _check_rates(mlp: MLP, rates: Sequence[LayerRates] | None) -> tuple[LayerRates, ...]:
    if rates is None:
        return standard_rates(mlp)
    if len(rates) != mlp.depth:
        raise InputError(f"rates list {len(rates)} layers but the network has {mlp.depth}: give one each.")
    for number, rate in enumerate(rates, start=1):
        if not isinstance(rate, LayerRates):
            raise InputError(f"rates of layer {number} are {rate!r}: give LayerRates(bias, weight).")
        fan_in, width = mlp.widths[number - 1 : number + 1]
        _check_rate(f"biases of layer {number}", rate.bias, width)
        _check_rate(f"weights of layer {number}", rate.weight, width * fan_in)
    return tuple(rates)


def _check_rate(what: str, rate: float | Array, size: int) -> None:
    matrix = np.atleast_2d(real_array(f"the learning rate of the {what}", rate))
    shape = (size, size) if np.ndim(rate) else (1, 1)
    if matrix.shape != shape or not np.allclose(matrix, matrix.T, atol=0):
        raise InputError(
            f"the learning rate of the {what} must be a number or a symmetric {size} x {size} matrix."
        )
    lowest, highest = np.linalg.eigvalsh(matrix)[[0, -1]]
    if lowest < -_NEGATIVE * max(abs(highest), abs(lowest)):
        raise InputError(
            f"the learning rate of the {what} is not positive semidefinite, so that the loss could rise: remove its "
            f"negative eigenvalues, the lowest of which is {lowest:.3g}."
        )


def _require(parameters: Parameters, entries: int) -> None:
    draws = len(parameters.biases[0])
    require_memory(
        8 * draws * entries, f"tangent kernels of {draws} networks", "use fewer networks or inputs"
    )
