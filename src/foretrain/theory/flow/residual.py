"""Networks with skip connections: kernels, four-point vertex and three-point function, any number of inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from foretrain.support.progress import track
from foretrain.theory.architecture import MLP
from foretrain.theory.flow.request import Array, Request
from foretrain.theory.recursions.ntk import next_tangent_kernel
from foretrain.theory.recursions.pairs import Pairs
from foretrain.theory.recursions.preactivation import PairExpectations, next_kernel
from foretrain.theory.recursions.residual import residual_flow

if TYPE_CHECKING:
    import xarray as xr


def residual_inputs(mlp: MLP, K: Array, Theta: Array, request: Request) -> dict[str, xr.DataArray]:
    """The tensors asked for, from the kernel and the tangent kernel (N, N) of layer 1."""
    apart = {"Theta"} if request.quadruples is None else {"Theta", "V"}
    names = tuple(name for name in request.names if name not in apart)
    found = _run(mlp, K, names, request) if names else {}
    if "Theta" in request.names:
        found["Theta"] = _tangent_kernels(mlp, K, Theta, request.tolerance)
    if request.quadruples is not None:
        found["V"] = _on_quadruples(mlp, K, request)
    elif "V" in found:
        found["V"] = _on_all_inputs(found["V"])
    return {name: request.labelled(name, found[name]) for name in request.names}


def _run(mlp: MLP, K: Array, names: tuple[str, ...], request: Request) -> dict[str, Array]:
    return residual_flow(mlp, K, method=request.method, wanted=names, tolerance=request.tolerance)


def _tangent_kernels(mlp: MLP, K: Array, Theta: Array, tolerance: float) -> Array:
    """Theta at layers 1..L: (L, N, N)."""
    kept = [Theta]
    for layer in track(mlp.layers[1:], "layers"):
        old = PairExpectations(mlp.activation, K, tolerance)
        kept.append(next_tangent_kernel(old, kept[-1], layer))
        K = next_kernel(old, layer)
    return np.stack(kept)


def _on_quadruples(mlp: MLP, K: Array, request: Request) -> Array:
    """V_(ab)(cd) from the flow of the inputs a, b, c, d alone, which marginalisation allows."""
    assert request.quadruples is not None
    columns = [np.zeros((mlp.depth, 0))]
    for quadruple in track(request.quadruples, "quadruples"):
        used, (a, b, c, d) = np.unique(quadruple, return_inverse=True)
        V = _run(mlp, K[np.ix_(used, used)], ("V",), request)["V"]
        number = Pairs(len(used)).number
        columns.append(V[:, number[a, b], number[c, d]][:, None])
    return np.concatenate(columns, axis=1)


def _on_all_inputs(V: Array) -> Array:
    """V on pairs of pairs (L, P, P) with four input indices: (L, N, N, N, N)."""
    pairs = Pairs(round((np.sqrt(8 * V.shape[1] + 1) - 1) / 2))
    return np.stack([pairs.tensor(matrix) for matrix in V])
