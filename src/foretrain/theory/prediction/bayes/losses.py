"""Likelihoods of the hypotheses of section 6.2, and the losses of maximum likelihood and maximum a posteriori.

A deterministic hypothesis (6.9) has no loss: it demands that outputs equal targets. The other two are below.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from foretrain.support.arguments import real_array
from foretrain.support.errors import InputError
from foretrain.theory.architecture import MLP
from foretrain.theory.arguments import check_targets
from foretrain.theory.ensembles.networks import Parameters, forward
from foretrain.theory.prediction.cholesky import check_noise

Array = NDArray[np.float64]


class Penalty(NamedTuple):
    """a_mu of the penalty sum_mu a_mu theta_mu^2 for the biases and for the weights of one layer."""

    bias: float
    weight: float


def gaussian_loss(outputs: ArrayLike, Y: ArrayLike, noise: float) -> float:
    """-log p(y | outputs) under Gaussian noise, summed over inputs and outputs (6.10), (6.17)."""
    variance = _positive(noise)
    given = real_array("outputs", outputs)
    targets = check_targets(Y, len(given), given.shape[1] if given.ndim > 1 else 1)
    misses = given.reshape(targets.shape) - targets
    return float((misses**2).sum() / (2 * variance) + targets.size * np.log(2 * np.pi * variance) / 2)


def categorical_loss(outputs: ArrayLike, labels: ArrayLike) -> float:
    """-log p(labels | softmax of the outputs): the cross-entropy (6.11); labels: probabilities (inputs, outputs)."""
    given = real_array("outputs", outputs)
    if given.ndim != 2:
        raise InputError(f"outputs have shape {given.shape}: give (inputs, outputs).")
    chances = check_targets(labels, given.shape[0], given.shape[1], "labels")
    if (chances < 0).any() or not np.allclose(chances.sum(axis=1), 1):
        raise InputError("labels are not probabilities: give rows that are not negative and sum to one.")
    return float((chances * (logsumexp(given, axis=1, keepdims=True) - given)).sum())


def prior_penalties(mlp: MLP) -> tuple[Penalty, ...]:
    """a_mu = 1 / (2 Var theta_mu) of every layer, by which the prior regularises a loss (6.22).

    Infinite where the variance is zero: there the prior allows no other value than zero.
    """
    fan_ins = mlp.widths[:-1]
    with np.errstate(divide="ignore"):
        return tuple(
            Penalty(float(0.5 / np.float64(layer.C_b)), float(0.5 * fan_in / np.float64(layer.C_W)))
            for layer, fan_in in zip(mlp.layers, fan_ins, strict=True)
        )


def log_prior(parameters: Parameters) -> Array:
    """log p(theta) of every network under the law of the initialisation (6.6): (draws,)."""
    mlp, total = parameters.mlp, np.zeros(len(parameters.biases[0]))
    groups = zip(prior_penalties(mlp), parameters.biases, parameters.weights, strict=True)
    for penalty, biases, weights in groups:
        for a, values in zip(penalty, (biases, weights), strict=True):
            flat = values.reshape(len(total), -1)
            if np.isfinite(a):
                total += flat.shape[1] * np.log(a / np.pi) / 2 - a * (flat**2).sum(axis=1)
            elif flat.any():
                raise InputError(
                    "parameters whose prior variance is zero must be zero: use C_b > 0, C_W > 0."
                )
    return total


def negative_log_posterior(parameters: Parameters, X: ArrayLike, Y: ArrayLike, noise: float) -> Array:
    """-log p(y | theta) - log p(theta) of every network: what maximum a posteriori minimises (6.19), (6.22)."""
    outputs = forward(parameters, X)[parameters.mlp.depth]
    losses = [gaussian_loss(one.T, Y, noise) for one in outputs]
    return np.asarray(losses - log_prior(parameters))


def _positive(noise: float) -> float:
    variance = check_noise(noise)
    if not variance:
        raise InputError(
            "noise is zero, which makes a likelihood infinite or zero: give a positive variance."
        )
    return variance
