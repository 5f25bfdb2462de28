"""Pullback Gram metrics and the operators that carry changes through the layers, for pairs of inputs.

Indices follow sections 2 and 7 of the note: the projector D_l, the metric G_l and the pullback P_l act on layer l and
hold the weights and the masks of layer l + 1, so l = 0..L-1. Selections of inputs are index tensors; pairs are formed
of all first with all second ones.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from foretrain.empirical.autograd_graph.chain import Chain
from foretrain.empirical.fields.state import FieldState
from foretrain.support.memory import require_memory


def projector(chain: Chain, number: int, first: Tensor, second: Tensor) -> Tensor:
    """Diagonal of D_l = diag(a_{l+1} of one input * a_{l+1} of the other) (20), (pairs..., n_{l+1})."""
    slopes = chain.a(number + 1)
    return slopes[first][:, None, :] * slopes[second][None, :, :]


def metric(chain: Chain, number: int, first: Tensor, second: Tensor) -> Tensor:
    """G_l = W_{l+1}^T D_l W_{l+1} (165), (pairs..., n_l, n_l)."""
    require_pairs(chain, number, len(first) * len(second), 1)
    weight = chain.layer(number + 1).weight
    diagonal = projector(chain, number, first, second)
    return (weight.T * diagonal[:, :, None, :]) @ weight


def pullback(chain: Chain, number: int, first: Tensor, second: Tensor, X: Tensor) -> Tensor:
    """P_l[X] = W_{l+1}^T diag(a_{l+1}) X diag(a_{l+1}) W_{l+1} (184), X (..., n_{l+1}, n_{l+1}).

    Leading dimensions of X after the two of pairs are outputs; a plain matrix is pulled back for every pair.
    """
    weight, slopes = chain.layer(number + 1).weight, chain.a(number + 1)
    extra = (1,) * max(0, X.ndim - 4)
    rows = slopes[first].reshape(len(first), 1, *extra, -1, 1)
    columns = slopes[second].reshape(1, len(second), *extra, 1, weight.shape[0])
    return weight.T @ (rows * X * columns) @ weight


def dense_transport(state: FieldState, number: int, first: Tensor, second: Tensor) -> Tensor:
    """M_l (pairs..., C, C, n_l, n_l) by M_l = S^{l+1} 1 + P_l[M_{l+1}], M_L = 0 (186), (187)."""
    chain = state.chain
    widest = max(range(number, chain.depth), key=lambda layer: chain.widths[layer])
    require_pairs(chain, widest, len(first) * len(second), state.readout.outputs**2)

    def fresh(layer: int) -> Tensor:
        eye = torch.eye(chain.widths[layer], dtype=chain.u(0).dtype, device=chain.u(0).device)
        return _fresh(state, layer + 1, first, second)[..., None, None] * eye

    return _come_down(chain, number, fresh, lambda layer, X: pullback(chain, layer, first, second, X))


def _come_down(
    chain: Chain, number: int, fresh: Callable[[int], Tensor], back: Callable[[int, Tensor], Tensor]
) -> Tensor:
    """The recursion (187) from layer L - 1 down to l: what a layer adds, and what was carried there brought back."""
    carried = fresh(chain.depth - 1)
    for layer in range(chain.depth - 2, number - 1, -1):
        carried = fresh(layer) + back(layer, carried)
    return carried


def apply_transport(state: FieldState, number: int, first: Tensor, second: Tensor, vectors: Tensor) -> Tensor:
    """M_l acting on vectors (second, n_l), one for each second input: (pairs..., C, C, n_l), without M_l (187).

    The vector goes up with the masks of the second input, is weighted with S at every layer, and comes back with the
    masks of the first.
    """
    chain = state.chain
    require_memory(
        3 * len(first) * len(second) * state.readout.outputs**2 * max(chain.widths) * vectors.element_size(),
        f"transport between {len(first) * len(second)} pairs of inputs",
        "ask for fewer pairs",
    )
    going_up = climb(chain, number, second, vectors)

    def fresh(layer: int) -> Tensor:
        correlator = _fresh(state, layer + 1, first, second)
        return correlator[..., None] * going_up[layer - number][:, None, None, :]

    def back(layer: int, carried: Tensor) -> Tensor:
        slopes = chain.a(layer + 1)[first][:, None, None, None, :]
        return (slopes * carried) @ chain.layer(layer + 1).weight

    return _come_down(chain, number, fresh, back)


def transport_sum(state: FieldState, number: int, vectors: Tensor, weights: Tensor) -> Tensor:
    """Sum over second inputs and outputs of M_l vector weight, for all inputs (M, C, n_l), as in (185).

    Costs a few products of (M, n) matrices for each layer; vectors (M, n_l), weights (M, C).
    """
    chain = state.chain
    everyone = torch.arange(chain.inputs, device=vectors.device)
    going_up = climb(chain, number, everyone, vectors)

    def fresh(layer: int) -> Tensor:
        summed = weighted_correlator(state, layer + 1, weights) @ going_up[layer - number]
        return float(chain.layer(layer + 1).trains_weight) * summed

    def back(layer: int, carried: Tensor) -> Tensor:
        return (chain.a(layer + 1)[:, None, :] * carried) @ chain.layer(layer + 1).weight

    return _come_down(chain, number, fresh, back)


def weighted_correlator(state: FieldState, number: int, weights: Tensor) -> Tensor:
    """Sum over the second output of S^l weight: (M, C, sources); weights (sources, C) of the first inputs."""
    masked = state.masked(number)
    pulled = torch.einsum("bcn,bc->bn", masked[: len(weights)], weights)
    return masked @ pulled.T


def climb(chain: Chain, number: int, inputs: Tensor, vectors: Tensor) -> list[Tensor]:
    """Vectors (inputs, n_l) carried forward: at layers l, l + 1, ..., L - 1 (153), (154)."""
    found = [vectors]
    for layer in range(number + 1, chain.depth):
        found.append(chain.a(layer)[inputs] * (found[-1] @ chain.layer(layer).weight.T))
    return found


def forward_transport(chain: Chain, start: int, end: int, inputs: Tensor) -> Tensor:
    """F_{m->l} = diag(a_l) W_l ... diag(a_{m+1}) W_{m+1}, F_{l->l} = 1 (153), (154): (inputs, n_l, n_m)."""
    require_memory(
        2 * len(inputs) * max(chain.widths) * chain.widths[start] * chain.u(0).element_size(),
        f"the transport of {len(inputs)} inputs from layer {start} to {end}",
        "ask for fewer inputs",
    )
    eye = torch.eye(chain.widths[start], dtype=chain.u(0).dtype, device=chain.u(0).device)
    carried = eye.expand(len(inputs), -1, -1)
    for layer in range(start + 1, end + 1):
        carried = chain.a(layer)[inputs][:, :, None] * (chain.layer(layer).weight @ carried)
    return carried


def require_pairs(chain: Chain, number: int, pairs: int, outputs: int) -> None:
    """Refuse matrices of many pairs that would not fit."""
    widths = chain.widths
    numbers = pairs * outputs * widths[number] * (widths[number] + widths[number + 1])
    require_memory(
        2 * numbers * chain.u(0).element_size(),
        f"{pairs} matrices of {widths[number]} x {widths[number]} units",
        "ask for fewer pairs, or apply the operator to vectors instead of forming it",
    )


def _fresh(state: FieldState, layer: int, first: Tensor, second: Tensor) -> Tensor:
    """S of a layer for pairs (first, second, C, C); zero if its weights do not learn."""
    masked = state.masked(layer)
    values = torch.einsum("acn,bdn->abcd", masked[first], masked[second])
    return float(state.chain.layer(layer).trains_weight) * values
