"""All layers of a flow by the cheapest recursion: of one input, of several, and with skip connections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import numpy as np

from foretrain.support.progress import track
from foretrain.theory.architecture import MLP
from foretrain.theory.flow import result
from foretrain.theory.flow.contractions import PULLED_BACK, contraction
from foretrain.theory.flow.request import SECOND_DIFFERENTIALS, TENSORS, Array, Request
from foretrain.theory.recursions.full_tensors import FullTensors
from foretrain.theory.recursions.legs import BentExpectations
from foretrain.theory.recursions.ntk import next_tangent_kernel
from foretrain.theory.recursions.pair_blocks import MetricCorrection, PairVertices, TangentCorrection
from foretrain.theory.recursions.pairs import Pairs
from foretrain.theory.recursions.preactivation import PairExpectations, Step, next_kernel, refuse_exploded
from foretrain.theory.recursions.quadruples import QuadrupleTensors
from foretrain.theory.recursions.residual import residual_flow
from foretrain.theory.recursions.single_input import (
    ddntk_flow,
    dntk_flow,
    single_input_flow,
    tangent_flow,
    width_ratio,
)
from foretrain.theory.recursions.six_point import six_point_flow

if TYPE_CHECKING:
    import xarray as xr


class _Moving(Protocol):
    """Tensors that move from layer to layer: a step takes the expectations at the old kernel."""

    def step(self, old: BentExpectations, step: Step) -> None: ...

    def now(self) -> dict[str, Array]: ...


def several_inputs(mlp: MLP, K: Array, Theta: Array, request: Request) -> dict[str, xr.DataArray]:
    """The tensors asked for, from the kernel and the tangent kernel (N, N) of layer 1."""
    contractions = {
        name: contraction(name, request)
        for name in request.tensors
        if request.matrices is not None and name in PULLED_BACK
    }
    moving = [*_moving(request, Pairs(len(K))), *contractions.values()]
    found: dict[str, Array] = {}
    for index, now in enumerate(_layers(mlp, K, Theta, request, moving)):
        for name in now.keys() & {*request.names}:
            if name not in found:
                found[name] = np.empty((mlp.depth, *now[name].shape), now[name].dtype)
            found[name][index] = now[name]
    if "six_point" in request.names:
        found["six_point"] = six_point_flow(mlp, np.diagonal(K))
    if "three_point" in request.names:
        found["three_point"] = np.zeros((mlp.depth, *(len(K),) * 3))
    arrays = {name: request.labelled(name, values) for name, values in found.items()}
    for name, pulled in contractions.items():
        total = pulled.values()
        arrays[name] = result.contracted(
            name, total.value, np.sqrt(total.variance), single=request.single_contraction
        )
    return {name: arrays[name] for name in request.names}


def _layers(
    mlp: MLP, K: Array, Theta: Array, request: Request, moving: list[_Moving]
) -> Iterator[dict[str, Array]]:
    """All tensors at layers 1..L: first those of the next layer from the old kernels, then the kernels.

    Theta stays what it was where nothing asks for it.
    """
    for index, layer in enumerate(track(mlp.layers, "layers")):
        if index:
            old = BentExpectations(mlp.activation, K, Theta, request.tolerance, request.kinks)
            corrections = (float(request.C_b_1[index]), float(request.C_W_1[index]))
            step = Step(layer.C_W, width_ratio(mlp, index), *corrections, layer.lambda_W)
            for item in moving:
                item.step(old, step)
            K = next_kernel(old, layer)
            if request.needs_tangent_kernel:
                Theta = next_tangent_kernel(old, Theta, layer)
        refuse_exploded(K.diagonal(), layer.number)
        now = {"K": K, "Theta": Theta}
        for item in moving:
            now |= item.now()
        yield now


def _moving(request: Request, pairs: Pairs) -> Iterator[_Moving]:
    """What has to be carried from layer to layer for the names asked for."""
    if "H1" in request.names:
        yield TangentCorrection(pairs)
    elif "G1" in request.names:
        yield MetricCorrection(pairs)
    elif {"norm_covariance", "entry_variance"} & {*request.names}:
        yield PairVertices(pairs)
    if request.full_tensors:
        yield FullTensors(pairs, request.full_tensors)
    if request.quadruples is not None:
        yield QuadrupleTensors(request.quadruples, request.tensors)


def one_input(mlp: MLP, K: Array, Theta: Array, request: Request) -> dict[str, xr.DataArray]:
    """The tensors asked for, from the kernel and the tangent kernel (1, 1) of layer 1."""
    found = single_input_flow(mlp, float(K[0, 0]), request.C_b_1, request.C_W_1)
    found["norm_covariance"] = found["entry_variance"] = found["V"]
    if request.needs_tangent_kernel:
        found |= tangent_flow(mlp, float(Theta[0, 0]), found, request.C_W_1)
    if request.differentials:
        found |= dntk_flow(mlp, found, request.kinks)
    if {*SECOND_DIFFERENTIALS} & {*request.names}:
        found |= ddntk_flow(mlp, found)
    if "three_point" in request.names:
        found["three_point"] = np.zeros(mlp.depth)
    if "six_point" in request.names:
        found["six_point"] = six_point_flow(mlp, np.diagonal(K))[:, 0]
    return {name: request.labelled(name, _shaped(name, found[name], request)) for name in request.names}


def _shaped(name: str, values: Array, request: Request) -> Array:
    """Numbers of each layer with the indices of the one input, or once for every quadruple."""
    if name in TENSORS and request.quadruples is not None:
        return np.repeat(values[:, None], len(request.quadruples), axis=1)
    return values.reshape(-1, *(1,) * result.INDICES[name])


def residual_inputs(mlp: MLP, K: Array, Theta: Array, request: Request) -> dict[str, xr.DataArray]:
    """The tensors asked for, from the kernel and the tangent kernel (N, N) of layer 1."""
    apart = {"Theta"} if request.quadruples is None else {"Theta", "V"}
    names = tuple(name for name in request.names if name not in apart)
    found = _run(mlp, K, names, request) if names else {}
    if "Theta" in request.names:
        kernel, kept = K, [Theta]
        for layer in track(mlp.layers[1:], "layers"):
            old = PairExpectations(mlp.activation, kernel, request.tolerance)
            kept.append(next_tangent_kernel(old, kept[-1], layer))
            kernel = next_kernel(old, layer)
        found["Theta"] = np.stack(kept)
    if request.quadruples is not None:
        found["V"] = _on_quadruples(mlp, K, request)
    elif "V" in found:
        pairs = Pairs(len(K))
        found["V"] = np.stack([pairs.tensor(matrix) for matrix in found["V"]])
    return {name: request.labelled(name, found[name]) for name in request.names}


def _run(mlp: MLP, K: Array, names: tuple[str, ...], request: Request) -> dict[str, Array]:
    return residual_flow(mlp, K, method=request.method, wanted=names, tolerance=request.tolerance)


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
