"""What is averaged over random networks, batch by batch.

For layer l and a pair A = (a, b) of inputs, X_j is the mean of z_ja z_jb of neuron j given the layer before: the
metric Ĝ_A in a plain layer (4.70), Ĝ_A + γ² z_ja z_jb (of the layer before) in one with a skip connection. Given the
layer before, different neurons are independent, so products over pairs of neurons j ≠ k measure
E[z_ja z_jb z_kc z_kd] with the average over the layer's own weights done exactly. The estimator "neurons" uses
z_ja z_jb of the layer itself instead, which is noisier and takes nothing from the theory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from foretrain.compare.ensembles import Ensemble, LayerState
from foretrain.compare.initial.pair_means import pair_means, single_means
from foretrain.support.memory import require_memory
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.recursions.expectations import PairExpectations
from foretrain.theory.recursions.pairs import Pairs

ESTIMATORS = ("metric", "neurons")


@dataclass(frozen=True)
class Statistics:
    """Means over the networks of each batch, deviations taken from the kernel K of the theory."""

    mean: FloatArray  # (batches, layers, pairs): X_A − K_A, averaged over neurons
    product: FloatArray  # (batches, layers, pairs, pairs): (X_jA − K_A)(X_kB − K_B), averaged over j ≠ k
    triple: FloatArray  # (batches, layers, inputs, pairs): z_ia (X_jA − K_A), averaged over i ≠ j
    fourth: FloatArray  # (batches, layers, inputs): z_a⁴, averaged over neurons; estimator "neurons" only
    remainder: (
        FloatArray  # (batches, layers, pairs): F(Ĝ) − F(K) − M (Ĝ − K); of plain networks, if asked for
    )


def collect(ensemble: Ensemble, K: FloatArray, estimator: str, with_remainder: bool) -> Statistics:
    """All batches of an ensemble; K (layers, inputs, inputs) is the kernel of the theory."""
    pairs = Pairs(len(ensemble.X))
    depth, size = ensemble.mlp.depth, len(pairs)
    kept = ensemble.draws * depth * size if with_remainder else 0
    kept += ensemble.batches * depth * (2 * size + size**2 + pairs.size * (size + 1))
    require_memory(8 * kept, f"the metrics of {ensemble.draws} networks", "use fewer draws or inputs")
    found = ensemble.each_batch(lambda number: _one_batch(ensemble, K, estimator, number))
    metrics, *means = zip(*found, strict=True)
    mean, product, triple, fourth = map(np.stack, means)
    remainder = np.zeros_like(mean)
    if with_remainder:
        remainder[:, 1:] = _remainders(ensemble.mlp, K, np.stack(metrics), pairs)
    return Statistics(mean, product, triple, fourth, remainder)


def _one_batch(ensemble: Ensemble, K: FloatArray, estimator: str, number: int) -> list[FloatArray]:
    """Ĝ of every network (draws, layers, pairs), then the first four means of ``Statistics`` in their order."""
    with torch.no_grad():
        reader = _Reader(torch.from_numpy(K), estimator)
        chunks = [[reader.read(state) for state in states] for states in ensemble.batch(number)]
    by_layer = [[torch.cat(parts).numpy() for parts in zip(*layer)] for layer in zip(*chunks)]
    metrics, *columns = (np.stack(parts, axis=1) for parts in zip(*by_layer))
    return [metrics, *(column.mean(axis=0) for column in columns)]


class _Reader:
    """Per-network statistics of one layer: Ĝ, X − K, its products over j ≠ k and with z_i, and z⁴."""

    def __init__(self, K: Tensor, estimator: str) -> None:
        self._K, self._estimator = K, estimator
        self._first, self._second = torch.triu_indices(K.shape[-1], K.shape[-1]).unbind()

    def read(self, state: LayerState) -> tuple[Tensor, ...]:
        kernel = self._pairs(self._K[state.layer.number - 1])
        metric = self._pairs(state.metric)
        if self._estimator == "neurons" and state.preactivations is not None:
            legs = state.preactivations
            return metric, *self._over_neurons(legs, self._legs(legs) - kernel), (legs**4).mean(dim=1)
        shared = metric - kernel
        no_fourth = shared.new_zeros((len(shared), self._K.shape[-1]))
        if state.layer.gamma and state.previous is not None:
            legs = state.layer.gamma * state.previous
            return metric, *self._over_neurons(legs, shared[:, None] + self._legs(legs)), no_fourth
        no_triple = shared.new_zeros((len(shared), self._K.shape[-1], shared.shape[-1]))
        return metric, shared, shared[:, :, None] * shared[:, None, :], no_triple, no_fourth

    def _pairs(self, matrix: Tensor) -> Tensor:
        return matrix[..., self._first, self._second]

    def _legs(self, z: Tensor) -> Tensor:
        """z_ja z_jb: (draws, neurons, pairs)."""
        return z[..., self._first] * z[..., self._second]

    @staticmethod
    def _over_neurons(z: Tensor, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        neurons = X.shape[1]
        distinct = neurons * (neurons - 1) if neurons > 1 else float("nan")
        total, legs = X.sum(dim=1), z.sum(dim=1)
        product = (total[:, :, None] * total[:, None, :] - X.mT @ X) / distinct
        triple = (legs[:, :, None] * total[:, None, :] - z.mT @ X) / distinct
        return total / neurons, product, triple


def _remainders(mlp: MLP, K: FloatArray, metrics: FloatArray, pairs: Pairs) -> FloatArray:
    """F(Ĝ) − F(K) − M (Ĝ − K) of layers 1..L-1, seen from layers 2..L: (batches, L − 1, pairs)."""
    found = []
    for layer in range(mlp.depth - 1):
        metric = metrics[:, :, layer].reshape(-1, len(pairs))
        deviation = metric - pairs.vector(K[layer])
        response = PairExpectations(mlp.activation, K[layer]).response
        curved = second_moments(mlp, metric, pairs) - second_moments(mlp, pairs.vector(K[layer])[None], pairs)
        curved -= (response @ deviation.T).T
        found.append(curved.reshape(*metrics.shape[:2], len(pairs)).mean(axis=1))
    return np.stack(found, axis=1)


def second_moments(mlp: MLP, metric: FloatArray, pairs: Pairs) -> FloatArray:
    """F_ab = <σ_a σ_b> of many metrics (draws, pairs)."""
    found = np.empty_like(metric)
    same = pairs.first == pairs.second
    found[:, same] = single_means(mlp.activation, metric[:, same])
    for pair in np.flatnonzero(~same):
        a, b = pairs.first_twice[pair], pairs.second_twice[pair]
        found[:, pair] = pair_means(mlp.activation, metric[:, a], metric[:, b], metric[:, pair])
    return found
