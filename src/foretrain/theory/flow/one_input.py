"""One input of a plain network: every tensor is one number per layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from foretrain.theory.architecture import MLP
from foretrain.theory.flow import result
from foretrain.theory.flow.request import SECOND_DIFFERENTIALS, TENSORS, Array, Request
from foretrain.theory.recursions.dntk_single_input import ddntk_flow, dntk_flow
from foretrain.theory.recursions.ntk_single_input import tangent_flow
from foretrain.theory.recursions.single_input import single_input_flow
from foretrain.theory.recursions.six_point import six_point_flow

if TYPE_CHECKING:
    import xarray as xr


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
