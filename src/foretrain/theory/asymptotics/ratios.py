"""Dimensionless ratios of all finite-width tensors against depth, of any network: how large its 1/n effects are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from foretrain.support.answers import labelled
from foretrain.support.errors import InputError
from foretrain.theory.architecture import MLP
from foretrain.theory.arguments import one_input
from foretrain.theory.asymptotics.dntk_laws import DNTK_MEASURES
from foretrain.theory.asymptotics.ntk_laws import NTK_MEASURES
from foretrain.theory.flow import flow
from foretrain.theory.recursions.kinks import slope_jumps

if TYPE_CHECKING:
    import xarray as xr


def dimensionless_ratios(mlp: MLP, x: ArrayLike, target_square: float = 0.0) -> xr.Dataset:
    """V/(nK^2), A/(nTheta^2), .., RK/(nTheta^3), .. of one input at every layer (11.62), (∞.21), (∞.22), (∞.170).

    These include the 1/n, with the width before each layer, and hold for any hyperparameters and widths, critical or
    not. Where they are not small, neither is what the expansion in 1/n leaves out. R to U are absent where the slope
    of the activation jumps.

    Parameters
    ----------
    target_square
        The mean over outputs of y^2, for targets that are not as small as the outputs: R to U then have K + this.

    Examples
    --------
    >>> found = dimensionless_ratios(MLP("linear", depth=10, width=100, lambda_b=0.1, lambda_W=0.1), [1.0])
    >>> found["SK/(nTheta^3)"].values[-1].round(8)  # 3.3 / (100 * 2^3)
    np.float64(0.004125)
    """
    vector = one_input(x)
    if not (math.isfinite(target_square) and target_square >= 0):
        raise InputError(f"target_square is {target_square!r}: give a mean square, zero or more.")
    absent = set("RSTU") if slope_jumps(mlp.activation) else set()
    measures = {k: m for k, m in (NTK_MEASURES | DNTK_MEASURES).items() if m.tensor not in absent}
    tensors = flow(mlp, vector[None], ["K", "Theta", *(measure.tensor for measure in measures.values())])
    values = {name: tensor.values.reshape(mlp.depth) for name, tensor in tensors.items()}
    seen = values | {"K": values["K"] + target_square}
    before = np.array([1, *mlp.hidden_widths], dtype=np.float64)  # at layer 1 all tensors vanish
    return _dataset(
        mlp, {k: m.of(seen if m.tensor in "RSTU" else values, before) for k, m in measures.items()}
    )


def _dataset(mlp: MLP, ratios: dict[str, np.ndarray]) -> xr.Dataset:
    return labelled(
        {name: ("layer", values) for name, values in ratios.items()},
        {"network": repr(mlp)},
        counted=("layer",),
    )
