"""Values of all layers in the form that was asked for: whole, on quadruples of inputs, or contracted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from foretrain.theory.flow import result
from foretrain.theory.flow.request import TENSORS, Array, Request

if TYPE_CHECKING:
    import xarray as xr


def labelled(name: str, values: Array, request: Request) -> xr.DataArray:
    """Values (layers, quadruples) of a tensor on quadruples, else (layers, inputs, ...) with all their entries."""
    if name in TENSORS and request.quadruples is not None:
        return result.on_quadruples(name, values, request.quadruples)
    if name in TENSORS and request.matrices is not None:
        left, right = request.matrices[:, 0], request.matrices[:, 1]
        summed = np.einsum("qab,labcd,qcd->lq", left, values, right, optimize=True)
        return result.contracted(name, summed, np.zeros_like(summed), single=request.single_contraction)
    return result.tensor(name, values)
