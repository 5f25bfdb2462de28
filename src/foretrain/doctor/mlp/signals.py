"""What the layers of an MLP do to the differences between inputs and to gradients: measured and predicted.

Both are followed from the first hidden layer's activations to the last one's, so that neither the size of the
inputs nor a deliberately small last layer counts. Measured is this very network; predicted is the mean over networks
with its widths, C_b and C_W: <(s_a - s_b)^2> from the kernel (4.118), gradients from the product of chi_perp (9.93).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from foretrain.doctor.mlp.chain import MlpChain
from foretrain.support.seeds import Seed, torch_generator
from foretrain.theory.architecture import MLP
from foretrain.theory.criticality import susceptibility
from foretrain.theory.flow import flow

Array = NDArray[np.float64]

INPUTS = 3  # of the predictions
_PROBES = 4  # random cotangents per sample


@dataclass(frozen=True, eq=False)
class Signals:
    """Mean squares at the activations of hidden layers 1..L-1.

    ``distance``: of the difference between two inputs; ``gradient``: of a gradient that starts with size one at the
    last hidden layer.
    """

    distance: Array
    gradient: Array

    @property
    def distance_ratio(self) -> float:
        """Size of differences at the last hidden layer over that at the first."""
        return _root_ratio(self.distance[-1], self.distance[0]) if len(self.distance) else 1.0

    @property
    def gradient_ratio(self) -> float:
        """Size of gradients at the first hidden layer over that at the last."""
        return _root_ratio(self.gradient[0], self.gradient[-1]) if len(self.gradient) else 1.0


@dataclass(frozen=True, eq=False)
class Kernels:
    """Predictions for some inputs: K (L, inputs), its deviation between networks, chi (L, inputs), and signals."""

    K: Array
    deviation: Array
    chi_parallel: Array
    chi_perpendicular: Array
    signals: Signals


def measure(chain: MlpChain, seed: Seed) -> Signals:
    """The samples' mean, with random gradients at the last hidden layer; one sample differs from nothing."""
    fields = chain.fields
    hidden = [fields.u(number).double() for number in range(1, fields.depth)]
    distances = [2 * float(one.var(0).mean()) if len(one) > 1 else 0.0 for one in hidden]
    if fields.depth < 2:
        return Signals(np.array(distances), np.empty(0))
    last = fields.u(fields.depth - 1).double()
    source = torch_generator(seed)
    delta = torch.randn(_PROBES, *last.shape, generator=source, dtype=torch.float64).to(last.device)
    delta /= delta.square().sum(-1).mean().sqrt()
    gradients = [1.0]
    for number in range(fields.depth - 1, 1, -1):
        delta = (delta * fields.a(number).double()) @ fields.layer(number).weight.double()
        gradients.append(float(delta.square().sum(-1).mean()))
    return Signals(np.array(distances), np.array(gradients[::-1]))


def predict(mlp: MLP, inputs: Array) -> Kernels:
    """From the flow of the kernel of a few inputs; single networks scatter by V / n_{l-1} + 2 K^2 / n_l."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = flow(mlp, inputs)["K"].values
        # One input at a time: V among several inputs costs much more, and only its diagonal is wanted.
        V = np.stack([flow(mlp, x[None, :], ["V"])["V"].values.ravel() for x in inputs], axis=1)
    K = np.diagonal(whole, axis1=1, axis2=2)
    fan_ins, widths = np.array(mlp.widths[:-1])[:, None], np.array(mlp.widths[1:])[:, None]
    C_W = np.array(mlp.C_W)[:, None]
    chi = susceptibility(mlp.activation, K=K, C_W=np.broadcast_to(C_W, K.shape))
    parallel, perpendicular = np.asarray(chi.parallel), np.asarray(chi.perpendicular)
    deviation = np.sqrt(np.maximum(V, 0) / fan_ins + 2 * K**2 / widths)
    distance = _pair_distances(whole)[1:] / np.where(C_W[1:, 0] > 0, C_W[1:, 0], 1)
    passed = perpendicular[1:-1].mean(1)
    gradient = np.append(np.cumprod(passed[::-1])[::-1], 1.0) if mlp.depth > 1 else np.empty(0)
    return Kernels(K, deviation, parallel, perpendicular, Signals(distance, gradient))


def _pair_distances(K: Array) -> Array:
    """K_aa + K_bb - 2 K_ab, averaged over pairs of different inputs."""
    size = K.shape[1]
    if size < 2:
        return np.zeros(len(K))
    own = np.diagonal(K, axis1=1, axis2=2)
    table = own[:, :, None] + own[:, None, :] - 2 * K
    return np.asarray(table.sum((1, 2)) / (size * (size - 1)))


def _root_ratio(above: float, below: float) -> float:
    return float(np.sqrt(above / below)) if below > 0 else 1.0
