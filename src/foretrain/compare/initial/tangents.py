"""NTKs of many random torch networks at once, by the forward equation (8.12), and Theta, H1, D, F, A, B from them.

The NTK of a layer is kept for pairs a ≤ b of inputs, as Ĥ_jk;ab of shape (draws, neurons j, pairs, neurons k): both
products with weights are then one batched product each. Pairs in the other order are Ĥ_jk;ba = Ĥ_kj;ab.

The average over a layer's own weights is done exactly: with R_jk;ab = σ'_ja Ĥ_jk;ab σ'_kb of the layer before, the
mean of Ĥ given the layer before is δ Ô, Ô_ab = λ_b + λ_W/n Σ_j σ_ja σ_jb + C_W/n Σ_j R_jj;ab (8.57), and what F and B
are means of is F̂ and B̂ of :class:`TangentState` (8.69), (8.83).

D and A are covariances of conditional means Ĝ and Ô (8.68), (8.90), F and B plain means (8.69), (8.83). The mean of
Ô − Θ is found by an exact rearrangement, because its plain average is noisy, and n times it the more the wider:
with z̄z̄ and H̄ the averages of z_ja z_jb and Ĥ_jj;ab over the neurons of the layer before,

    E[Ô − Θ] = E[Ô − Θ − M (z̄z̄ − K) − m (H̄ − Θ)] + M E[Ĝ − K] + m E[Ô − Θ],

where all but the first two terms belong to the layer before. It holds for any M and m; with the derivatives of Θ with
respect to K and Θ of the layer before, what is linear in the fluctuations cancels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from foretrain.compare.build import TensorFunction, torch_activation
from foretrain.compare.ensembles import Ensemble, TorchLayer
from foretrain.compare.initial.preactivations import pseudo_values
from foretrain.compare.judging.ladder import BatchValues, Entry
from foretrain.support.errors import NotSupportedError
from foretrain.support.memory import require_memory
from foretrain.theory.architecture import MLP, FloatArray, Layer
from foretrain.theory.recursions.expectations import PairExpectations, Step
from foretrain.theory.recursions.pairs import Pairs, Response

_COPIES = 5  # of the largest NTK, held at once while it is carried to the next layer


@dataclass(frozen=True, eq=False)
class TangentState:
    """Layer l ≥ 2 of some networks, averaged over its own weights; n is the width of the layer before."""

    layer: Layer
    metric: Tensor  # Ĝ, (draws, pairs)
    mean: Tensor  # Ô, (draws, pairs)
    cross: Tensor  # F̂_a;bc;d = C_W²/n Σ_jk σ_ja R_jk;bc σ_kd, (draws, inputs a, pairs bc, inputs d)
    aligned: Tensor  # B̂ = C_W²/n Σ_jk R_jk;ab R_jk;cd, (draws, pairs ab, pairs cd)
    crossed: Tensor  # the same with R_kj;cd, that is, with c and d exchanged
    before_metric: Tensor  # z_ja z_jb averaged over the neurons of the layer before, (draws, pairs)
    before_mean: Tensor  # Ĥ_jj;ab averaged over the neurons of the layer before, (draws, pairs)
    kernel: Tensor | None  # Ĥ, (draws, n_l, pairs, n_l); None at the last layer


def bytes_per_network(mlp: MLP, inputs: int) -> int:
    """What :func:`tangent_states` holds for one network."""
    return 8 * _COPIES * inputs * (inputs + 1) // 2 * max(mlp.widths[1:]) ** 2


def tangent_states(mlp: MLP, X: FloatArray, states: Iterator[TorchLayer]) -> Iterator[TangentState]:
    """Layers 2..L of a walk of an ensemble whose weights are drawn."""
    function = torch_activation(mlp.activation)
    pairs = Pairs(len(X))
    first = next(states)
    # δ_jk (λ_b + λ_W x·x / n_0) (8.23).
    value = first.layer.lambda_b + first.layer.lambda_W * pairs.vector(X @ X.T) / X.shape[1]
    identity = torch.eye(first.layer.width, dtype=torch.float64)
    start = identity[:, None, :] * torch.from_numpy(np.asarray(value))[:, None]
    kernel: Tensor | None = start.expand(first.count, -1, -1, -1)
    for state in states:
        if kernel is None or state.previous is None or state.layer.gamma:
            raise NotSupportedError("the NTK is carried through plain layers whose weights are drawn only.")
        found = _next_state(state, state.previous, kernel, function, pairs)
        yield found
        kernel = found.kernel


def _next_state(
    state: TorchLayer, z: Tensor, kernel: Tensor, function: TensorFunction, pairs: Pairs
) -> TangentState:
    layer, width = state.layer, z.shape[1]
    with torch.enable_grad():
        leaf = z.detach().requires_grad_(True)
        signal = function(leaf)
        (slope,) = torch.autograd.grad(signal.sum(), leaf)
    signal = signal.detach()
    first, second = torch.from_numpy(pairs.first), torch.from_numpy(pairs.second)
    R = slope[..., first][..., None] * kernel * slope.mT[:, None, second]
    bracket = layer.lambda_b + layer.lambda_W / width * (signal.mT @ signal)[:, first, second]
    by_pair = R.transpose(1, 2)  # (draws, pairs, n, n)
    flat = by_pair.flatten(2)
    left = (signal.mT @ R.flatten(2)).view(len(z), -1, width)
    strength, following = layer.C_W**2 / width, None
    if layer.number < state.sampler.mlp.depth and state.parameters:
        # δ_ik (λ_b + λ_W/n Σ σσ) + Σ W_ij R_jm;ab W_km (8.12).
        normals = state.parameters[0]
        draws, wide, _ = normals.shape
        half = (normals @ R.flatten(2)).view(draws, wide * len(pairs), width)
        following = (half @ normals.mT).view(draws, wide, len(pairs), wide).mul_(layer.C_W / width)
        following.diagonal(dim1=1, dim2=3).add_(bracket[..., None])
    return TangentState(
        layer,
        state.metric[:, first, second],
        bracket + layer.C_W * _mean_diagonal(R),
        strength * (left @ signal).view(len(z), pairs.size, len(pairs), pairs.size),
        strength * (flat @ flat.mT),
        strength * (flat @ by_pair.mT.flatten(2).mT),
        (z[..., first] * z[..., second]).mean(dim=1),
        _mean_diagonal(kernel),
        following,
    )


def _mean_diagonal(kernel: Tensor) -> Tensor:
    """The mean over j of Ĥ_jj;ab: (draws, pairs)."""
    return kernel.diagonal(dim1=1, dim2=3).mean(dim=-1)


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

    def one_batch(number: int) -> list[FloatArray]:
        """Means in the order of the fields, (layers, ...)."""
        with torch.no_grad():
            sums = [
                [_sums(state, metric, mean) for state in tangent_states(ensemble.mlp, ensemble.X, walk)]
                for walk in ensemble.walks(number)
            ]
        layers = [[sum(parts) / ensemble.draws_per_batch for parts in zip(*chunks)] for chunks in zip(*sums)]
        return [np.stack(column) for column in zip(*layers)]

    return TangentStatistics(*(np.stack(column) for column in zip(*ensemble.each_batch(one_batch))))


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


def tangent_batch_values(
    mlp: MLP, K: FloatArray, Theta: FloatArray, statistics: TangentStatistics, entries: list[Entry]
) -> BatchValues:
    """Of entries of the NTK's statistics; K and Theta are the theory's."""
    return pseudo_values(statistics, tangent_readers(mlp, K, Theta), entries, first_layer=2)


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
