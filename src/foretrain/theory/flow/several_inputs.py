"""Several inputs of a plain network: all layers, each tensor by the cheapest recursion that gives it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import numpy as np

from foretrain.support.progress import track
from foretrain.theory.architecture import MLP
from foretrain.theory.flow import result
from foretrain.theory.flow.contractions import PULLED_BACK, contraction
from foretrain.theory.flow.request import Array, Request
from foretrain.theory.recursions.full_tensors import FullTensors
from foretrain.theory.recursions.legs import BentExpectations
from foretrain.theory.recursions.ntk import next_tangent_kernel
from foretrain.theory.recursions.ntk_blocks import TangentCorrection
from foretrain.theory.recursions.pair_blocks import MetricCorrection, PairVertices
from foretrain.theory.recursions.pairs import Pairs
from foretrain.theory.recursions.preactivation import Step, next_kernel, refuse_exploded
from foretrain.theory.recursions.quadruples import QuadrupleTensors
from foretrain.theory.recursions.single_input import width_ratio
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
