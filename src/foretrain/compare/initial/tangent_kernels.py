"""NTKs of many random torch networks at once, by the forward equation (8.12), and what is averaged over them.

The NTK of a layer is kept for pairs a ≤ b of inputs, as Ĥ_jk;ab of shape (draws, neurons j, pairs, neurons k): both
products with weights are then one batched product each. Pairs in the other order are Ĥ_jk;ba = Ĥ_kj;ab.

The average over a layer's own weights is done exactly: with R_jk;ab = σ'_ja Ĥ_jk;ab σ'_kb of the layer before, the
mean of Ĥ given the layer before is δ Ô, Ô_ab = λ_b + λ_W/n Σ_j σ_ja σ_jb + C_W/n Σ_j R_jj;ab (8.57), and what F and B
are means of is F̂ and B̂ of :class:`TangentState` (8.69), (8.83).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from foretrain.compare.ensembles import LayerState
from foretrain.compare.torch_activation import TensorFunction, torch_activation
from foretrain.support.errors import NotSupportedError
from foretrain.theory.architecture import MLP, FloatArray, Layer
from foretrain.theory.recursions.pairs import Pairs

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
    kernel: Tensor | None  # Ĥ, (draws, n_l, pairs, n_l); None at the last layer unless its weights are drawn


def bytes_per_network(mlp: MLP, inputs: int) -> int:
    """What :func:`tangent_states` holds for one network."""
    return 8 * _COPIES * inputs * (inputs + 1) // 2 * max(mlp.widths[1:]) ** 2


def tangent_states(mlp: MLP, X: FloatArray, states: Iterator[LayerState]) -> Iterator[TangentState]:
    """Layers 2..L of a walk of an ensemble whose weights are drawn."""
    function = torch_activation(mlp.activation)
    pairs = Pairs(len(X))
    first = next(states)
    kernel: Tensor | None = _first_kernel(first, X, pairs)
    for state in states:
        if kernel is None or state.previous is None or state.layer.gamma:
            raise NotSupportedError("the NTK is carried through plain layers whose weights are drawn only.")
        found = _next_state(state, state.previous, kernel, function, pairs)
        yield found
        kernel = found.kernel


def _first_kernel(state: LayerState, X: FloatArray, pairs: Pairs) -> Tensor:
    """δ_jk (λ_b + λ_W x·x / n_0) (8.23)."""
    value = state.layer.lambda_b + state.layer.lambda_W * pairs.vector(X @ X.T) / X.shape[1]
    identity = torch.eye(state.layer.width, dtype=torch.float64)
    kernel = identity[:, None, :] * torch.from_numpy(np.asarray(value))[:, None]
    return kernel.expand(len(state.metric), -1, -1, -1)


def _next_state(
    state: LayerState, z: Tensor, kernel: Tensor, function: TensorFunction, pairs: Pairs
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
    strength = layer.C_W**2 / width
    return TangentState(
        layer,
        state.metric[:, first, second],
        bracket + layer.C_W * _mean_diagonal(R),
        strength * (left @ signal).view(len(z), pairs.size, len(pairs), pairs.size),
        strength * (flat @ flat.mT),
        strength * (flat @ by_pair.mT.flatten(2).mT),
        (z[..., first] * z[..., second]).mean(dim=1),
        _mean_diagonal(kernel),
        None if state.normals is None else _next_kernel(layer, state.normals, R, bracket),
    )


def _mean_diagonal(kernel: Tensor) -> Tensor:
    """The mean over j of Ĥ_jj;ab: (draws, pairs)."""
    return kernel.diagonal(dim1=1, dim2=3).mean(dim=-1)


def _next_kernel(layer: Layer, normals: Tensor, R: Tensor, bracket: Tensor) -> Tensor:
    """δ_ik (λ_b + λ_W/n Σ σσ) + Σ W_ij R_jm;ab W_km (8.12)."""
    draws, width, fan_in = normals.shape
    pairs = R.shape[2]
    left = (normals @ R.flatten(2)).view(draws, width * pairs, fan_in)
    kernel = (left @ normals.mT).view(draws, width, pairs, width).mul_(layer.C_W / fan_in)
    kernel.diagonal(dim1=1, dim2=3).add_(bracket[..., None])
    return kernel
