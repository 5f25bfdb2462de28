"""Statistics of the NTK of an ensemble, batch by batch, and Theta, H1, D, F, A, B from them.

D and A are covariances of conditional means Ĝ and Ô (8.68), (8.90), F and B plain means (8.69), (8.83). The mean of
Ô − Θ is found by an exact rearrangement, because its plain average is noisy, and n times it the more the wider:
with z̄z̄ and H̄ the averages of z_ja z_jb and Ĥ_jj;ab over the neurons of the layer before,

    E[Ô − Θ] = E[Ô − Θ − M (z̄z̄ − K) − m (H̄ − Θ)] + M E[Ĝ − K] + m E[Ô − Θ],

where all but the first two terms belong to the layer before. It holds for any M and m; with the derivatives of Θ with
respect to K and Θ of the layer before, what is linear in the fluctuations cancels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from foretrain.compare.ensembles import Ensemble
from foretrain.compare.initial.tangent_kernels import TangentState, tangent_states
from foretrain.support.memory import require_memory
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.recursions.ntk import TangentExpectations
from foretrain.theory.recursions.pairs import Pairs
from foretrain.theory.recursions.preactivation import Response, Step


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


class TangentReaders:
    """Theta, H1, D, F, A, B at layers 2..L as functions of means (any leading axis)."""

    def __init__(self, mlp: MLP, K: FloatArray, Theta: FloatArray) -> None:
        self._pairs = Pairs(K.shape[-1])
        self._Theta = Theta[1:]
        self._fan_in = np.array(mlp.hidden_widths, dtype=float)
        self._shift = _MeanShift(mlp, K, Theta)

    def named(self, observable: str) -> Callable[[TangentStatistics], FloatArray]:
        """The reader of one observable: (…, layers, inputs, …), F and B stored as 1324."""
        readers = {
            "Theta": self._mean,
            "H1": self._correction,
            "D": self._mixed,
            "F": self._cross,
            "A": self._variance,
            "B": self._cross_variance,
        }
        return readers[observable]

    def _mean(self, means: TangentStatistics) -> FloatArray:
        return np.asarray(self._Theta + self._shift(means)[..., self._pairs.number])

    def _correction(self, means: TangentStatistics) -> FloatArray:
        return np.asarray(self._fan_in[:, None, None] * self._shift(means)[..., self._pairs.number])

    def _mixed(self, means: TangentStatistics) -> FloatArray:
        return self._on_pairs(means.mixed - means.metric[..., :, None] * means.mean[..., None, :])

    def _variance(self, means: TangentStatistics) -> FloatArray:
        return self._on_pairs(means.variance - means.mean[..., :, None] * means.mean[..., None, :])

    def _on_pairs(self, covariance: FloatArray) -> FloatArray:
        number = self._pairs.number
        scaled = self._fan_in[:, None, None] * covariance
        return np.asarray(scaled[..., number[:, :, None, None], number[None, None]])

    def _cross(self, means: TangentStatistics) -> FloatArray:
        """F_1324 = F_2413, of which the one with its NTK pair in order was measured."""
        one, three, two, four = np.indices((self._pairs.size,) * 4)
        reversed_pair = three > four
        left, right = np.where(reversed_pair, two, one), np.where(reversed_pair, one, two)
        return np.asarray(means.cross[..., left, self._pairs.number[three, four], right])

    def _cross_variance(self, means: TangentStatistics) -> FloatArray:
        one, three, two, four = np.indices((self._pairs.size,) * 4)
        place = (..., self._pairs.number[one, two], self._pairs.number[three, four])
        alike = (one <= two) == (three <= four)
        return np.where(alike, means.aligned[place], means.crossed[place])


class _MeanShift:
    """E[Ô − Θ] of layers 2..L by the rearrangement of this file's head."""

    def __init__(self, mlp: MLP, K: FloatArray, Theta: FloatArray) -> None:
        self._steps = list(_linear_steps(mlp, K, Theta))

    def __call__(self, means: TangentStatistics) -> FloatArray:
        """(…, layers, pairs); layer 1 does not fluctuate, so that nothing is carried into layer 2."""
        found = np.zeros_like(means.mean)
        metric = mean = np.zeros_like(means.mean[..., 0, :])
        for layer, step in enumerate(self._steps):
            # What was measured of the layer before is replaced by what is known of its expectation.
            metric = metric - means.before_metric[..., layer, :]
            mean = mean - means.before_mean[..., layer, :]
            carried = (step.tangent @ metric.T).T + step.growth * mean
            metric = means.metric[..., layer, :] + step.C_W * (step.kernel @ metric.T).T
            mean = found[..., layer, :] = means.mean[..., layer, :] + carried
        return found


@dataclass(frozen=True)
class _LinearStep:
    C_W: float
    kernel: Response  # d<σσ>/dK
    tangent: Response  # dΘ'/dK
    growth: FloatArray  # dΘ'/dΘ = C_W <σ'σ'>, (pairs,)


def _linear_steps(mlp: MLP, K: FloatArray, Theta: FloatArray) -> Iterator[_LinearStep]:
    pairs = Pairs(K.shape[-1])
    for layer, kernel, tangent in zip(mlp.layers[1:], K, Theta):
        old = TangentExpectations(mlp.activation, kernel, tangent)
        step = Step(layer.C_W, lambda_W=layer.lambda_W)
        growth = layer.C_W * pairs.vector(old.of(1, 1))
        yield _LinearStep(layer.C_W, old.response, old.tangent_response(step), growth)
