"""Several inputs of a plain network: all layers, each tensor by the cheapest recursion that gives it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import numpy as np

from foretrain.support.errors import InputError
from foretrain.support.progress import track
from foretrain.theory.architecture import MLP
from foretrain.theory.flow import result
from foretrain.theory.flow.request import Array, Request
from foretrain.theory.pairs import Pairs
from foretrain.theory.recursions.contraction import (
    ContractedVertices,
    FormCovariance,
    SampledCovariance,
    diagonal_covariance,
    exact_covariance,
)
from foretrain.theory.recursions.pair_blocks import MetricCorrection, PairVertices
from foretrain.theory.recursions.preactivation import PairExpectations, Step, next_kernel, next_vertex
from foretrain.theory.recursions.quadruples import QuadrupleVertices
from foretrain.theory.recursions.single_input import width_ratio
from foretrain.theory.recursions.six_point import six_point_flow

if TYPE_CHECKING:
    import xarray as xr

_FEW_INPUTS = 8  # up to here a contraction is exact by default
_DEFAULT_DRAWS = 16_384
_EXPLODED = 1e30


class _Moving(Protocol):
    """Tensors that move from layer to layer: a step takes the expectations at the old kernel."""

    def step(self, old: PairExpectations, step: Step) -> None: ...

    def now(self) -> dict[str, Array]: ...


class _FullVertex:
    """V with all its entries."""

    def __init__(self, pairs: Pairs) -> None:
        self._pairs = pairs
        self._matrix = np.zeros((len(pairs), len(pairs)))

    def step(self, old: PairExpectations, step: Step) -> None:
        self._matrix = next_vertex(old, self._matrix, step)

    def now(self) -> dict[str, Array]:
        return {"V": self._pairs.tensor(self._matrix)}


def several_inputs(mlp: MLP, K: Array, request: Request) -> dict[str, xr.DataArray]:
    """The tensors asked for, from the kernel (N, N) of layer 1."""
    contraction = _contraction(request, len(K)) if request.matrices is not None else None
    moving = [*_moving(request, Pairs(len(K))), *([contraction] if contraction else [])]
    kept: dict[str, list[Array]] = {}
    for now in _layers(mlp, K, request, moving):
        for name in now.keys() & {*request.names}:
            kept.setdefault(name, []).append(now[name])
    found = {name: np.stack(values) for name, values in kept.items()}
    if "six_point" in request.names:
        found["six_point"] = six_point_flow(mlp, np.diagonal(K))
    if "three_point" in request.names:
        found["three_point"] = np.zeros((mlp.depth, *(len(K),) * 3))
    labelled = {name: _labelled(name, values, request) for name, values in found.items()}
    if contraction is not None:
        total = contraction.values()
        labelled["V"] = result.contracted(
            "V", total.value, np.sqrt(total.variance), single=request.single_contraction
        )
    return {name: labelled[name] for name in request.names}


def _layers(mlp: MLP, K: Array, request: Request, moving: list[_Moving]) -> Iterator[dict[str, Array]]:
    """All tensors at layers 1..L: first those of the next layer from the old kernel, then the kernel itself."""
    for index, layer in enumerate(track(mlp.layers, "layers")):
        if index:
            old = PairExpectations(mlp.activation, K, request.tolerance)
            corrections = (float(request.C_b_1[index]), float(request.C_W_1[index]))
            step = Step(layer.C_W, width_ratio(mlp, index), *corrections)
            for item in moving:
                item.step(old, step)
            K = next_kernel(old, layer.C_b, layer.C_W)
        _refuse_exploded(K, layer.number)
        now = {"K": K}
        for item in moving:
            now |= item.now()
        yield now


def _refuse_exploded(K: Array, layer: int) -> None:
    if not np.abs(K).max() < _EXPLODED:
        raise InputError(
            f"the kernel exceeds {_EXPLODED:g} at layer {layer}: choose a smaller C_W, fewer layers or smaller "
            "inputs."
        )


def _moving(request: Request, pairs: Pairs) -> Iterator[_Moving]:
    """What has to be carried from layer to layer for the names asked for."""
    if "G1" in request.names:
        yield MetricCorrection(pairs)
    elif {"norm_covariance", "entry_variance"} & {*request.names}:
        yield PairVertices(pairs)
    if request.wants_full_vertex:
        yield _FullVertex(pairs)
    if request.quadruples is not None:
        yield QuadrupleVertices(request.quadruples)


def _contraction(request: Request, inputs: int) -> ContractedVertices:
    assert request.matrices is not None
    return ContractedVertices(request.matrices, _covariance(request, inputs))


def _covariance(request: Request, inputs: int) -> FormCovariance:
    """Exact where it is cheap or asked for, else sampled."""
    assert request.matrices is not None
    off_diagonal = request.matrices * (1 - np.eye(inputs))
    if not off_diagonal.any():
        return diagonal_covariance
    if request.draws == 0 or (request.draws is None and inputs <= _FEW_INPUTS):
        return exact_covariance
    return SampledCovariance(request.draws or _DEFAULT_DRAWS, request.seed)


def _labelled(name: str, values: Array, request: Request) -> xr.DataArray:
    if name == "V" and request.quadruples is not None:
        return result.on_quadruples(name, values, request.quadruples)
    return result.tensor(name, values)
