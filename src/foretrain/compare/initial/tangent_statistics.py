"""Statistics of the NTK of an ensemble, batch by batch, and Theta, H1, D, F, A, B from them.

D and A are covariances of conditional means Ĝ and Ô (8.68), (8.90), F and B plain means (8.69), (8.83). The mean of
Ô − Θ is found by an exact rearrangement, because its plain average is noisy, and n times it the more the wider:
with z̄z̄ and H̄ the averages of z_ja z_jb and Ĥ_jj;ab over the neurons of the layer before,

    E[Ô − Θ] = E[Ô − Θ − M (z̄z̄ − K) − m (H̄ − Θ)] + M E[Ĝ − K] + m E[Ô − Θ],

where all but the first two terms belong to the layer before. It holds for any M and m; with the derivatives of Θ with
respect to K and Θ of the layer before, what is linear in the fluctuations cancels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from foretrain.compare.ensembles import Ensemble
from foretrain.compare.initial.tangent_kernels import TangentState, tangent_states
from foretrain.support.memory import require_memory
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.recursions.expectations import PairExpectations, Step
from foretrain.theory.recursions.pairs import Pairs, Response


@dataclass(frozen=True)
class TangentStatistics:
    """Means over the networks of each batch, layers 2..L; deviations are taken from the theory's K and Θ."""

    metric: FloatArray  # (batches, layers, pairs): Ĝ − K
    mean: FloatArray  # (batches, layers, pairs): Ô − Θ
    mixed: FloatArray  # (batches, layers, pairs, pairs): (Ĝ − K)(Ô − Θ)
    variance: FloatArray  # (batches, layers, pairs, pairs): (Ô − Θ)(Ô − Θ)
    cross: FloatArray  # (batches, layers, inputs, pairs, inputs): F̂
    aligned: FloatArray  # (batches, layers, pairs, pairs): B̂ with both pairs in their order
    crossed: FloatArray  # (batches, layers, pairs, pairs): B̂ with one pair reversed
    before_metric: FloatArray  # (batches, layers, pairs): z̄z̄ − K of the layer before
    before_mean: FloatArray  # (batches, layers, pairs): H̄ − Θ of the layer before


def collect_tangents(ensemble: Ensemble, K: FloatArray, Theta: FloatArray) -> TangentStatistics:
    """All batches of an ensemble; K and Theta (layers, inputs, inputs) are the theory's."""
    pairs = Pairs(len(ensemble.X))
    size = 4 * len(pairs) + 4 * len(pairs) ** 2 + pairs.size**2 * len(pairs)
    kept = 8 * ensemble.batches * (ensemble.mlp.depth - 1) * size
    require_memory(kept, f"the NTK statistics of {ensemble.batches} batches", "use fewer draws or inputs")
    metric, mean = (torch.from_numpy(tensor[:, pairs.first, pairs.second]) for tensor in (K, Theta))
    found = ensemble.each_batch(lambda number: _one_batch(ensemble, metric, mean, number))
    names = [item.name for item in fields(TangentStatistics)]
    return TangentStatistics(**{name: np.stack([getattr(one, name) for one in found]) for name in names})


def _one_batch(ensemble: Ensemble, K: Tensor, Theta: Tensor, number: int) -> TangentStatistics:
    """The statistics of one batch, without the axis of batches."""
    with torch.no_grad():
        sums = [
            [_sums(state, K, Theta) for state in tangent_states(ensemble.mlp, ensemble.X, walk)]
            for walk in ensemble.walks(number)
        ]
    names = [item.name for item in fields(TangentStatistics)]
    layers = [[sum(parts) / ensemble.draws_per_batch for parts in zip(*chunks)] for chunks in zip(*sums)]
    return TangentStatistics(**{name: np.stack(column) for name, column in zip(names, zip(*layers))})


def _sums(state: TangentState, K: Tensor, Theta: Tensor) -> tuple[FloatArray, ...]:
    """Over networks, in the order of the fields of TangentStatistics."""
    own = state.layer.number - 1
    metric, mean = state.metric - K[own], state.mean - Theta[own]
    found = (
        metric.sum(dim=0),
        mean.sum(dim=0),
        metric.mT @ mean,
        mean.mT @ mean,
        state.cross.sum(dim=0),
        state.aligned.sum(dim=0),
        state.crossed.sum(dim=0),
        (state.before_metric - K[own - 1]).sum(dim=0),
        (state.before_mean - Theta[own - 1]).sum(dim=0),
    )
    return tuple(tensor.numpy() for tensor in found)


def tangent_readers(
    mlp: MLP, K: FloatArray, Theta: FloatArray
) -> dict[str, Callable[[TangentStatistics], FloatArray]]:
    """Theta, H1, D, F, A, B at layers 2..L as functions of means: (…, layers, inputs, …), F and B stored as 1324."""
    pairs, shift = Pairs(K.shape[-1]), _MeanShift(mlp, K, Theta)
    number, fan_in = pairs.number, np.array(mlp.hidden_widths, dtype=float)[:, None, None]
    one, three, two, four = np.indices((pairs.size,) * 4)

    def covariance(products: FloatArray, first: FloatArray, second: FloatArray) -> FloatArray:
        scaled = fan_in * (products - first[..., :, None] * second[..., None, :])
        return np.asarray(scaled[..., number[:, :, None, None], number[None, None]])

    def cross(means: TangentStatistics) -> FloatArray:
        """F_1324 = F_2413, of which the one with its NTK pair in order was measured."""
        reversed_pair = three > four
        left, right = np.where(reversed_pair, two, one), np.where(reversed_pair, one, two)
        return np.asarray(means.cross[..., left, number[three, four], right])

    def cross_variance(means: TangentStatistics) -> FloatArray:
        place = (..., number[one, two], number[three, four])
        return np.where((one <= two) == (three <= four), means.aligned[place], means.crossed[place])

    return {
        "Theta": lambda means: np.asarray(Theta[1:] + shift(means)[..., number]),
        "H1": lambda means: np.asarray(fan_in * shift(means)[..., number]),
        "D": lambda means: covariance(means.mixed, means.metric, means.mean),
        "F": cross,
        "A": lambda means: covariance(means.variance, means.mean, means.mean),
        "B": cross_variance,
    }


class _MeanShift:
    """E[Ô − Θ] of layers 2..L by the rearrangement of this file's head."""

    def __init__(self, mlp: MLP, K: FloatArray, Theta: FloatArray) -> None:
        pairs = Pairs(K.shape[-1])
        # By layer C_W, d<σσ>/dK, dΘ'/dK and dΘ'/dΘ = C_W <σ'σ'>, (pairs,).
        self._steps: list[tuple[float, Response, Response, FloatArray]] = []
        for layer, kernel, tangent in zip(mlp.layers[1:], K, Theta):
            old = PairExpectations(mlp.activation, kernel, Theta=tangent)
            response = old.tangent_response(Step(layer.C_W, lambda_W=layer.lambda_W))
            growth = layer.C_W * pairs.vector(old.of(1, 1))
            self._steps.append((layer.C_W, old.response, response, growth))

    def __call__(self, means: TangentStatistics) -> FloatArray:
        """(…, layers, pairs); layer 1 does not fluctuate, so that nothing is carried into layer 2."""
        found = np.zeros_like(means.mean)
        metric = mean = np.zeros_like(means.mean[..., 0, :])
        for layer, (C_W, kernel, tangent, growth) in enumerate(self._steps):
            # What was measured of the layer before is replaced by what is known of its expectation.
            metric = metric - means.before_metric[..., layer, :]
            mean = mean - means.before_mean[..., layer, :]
            carried = (tangent @ metric.T).T + growth * mean
            metric = means.metric[..., layer, :] + C_W * (kernel @ metric.T).T
            mean = found[..., layer, :] = means.mean[..., layer, :] + carried
        return found
