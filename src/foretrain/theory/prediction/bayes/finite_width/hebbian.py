"""Neurons that fire together: the law of a neuron, given what others of its layer were seen to do (section 6.4.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.errors import InputError
from foretrain.theory.architecture import MLP
from foretrain.theory.finite_width import layer_statistics
from foretrain.theory.prediction.bayes.finite_width.observed import check_plain
from foretrain.theory.prediction.bayes.finite_width.posterior import warn_of_expansion
from foretrain.theory.prediction.bayes.posterior import targets_for
from foretrain.theory.prediction.cholesky import factorise

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]


def hebbian_variance(mlp: MLP, X: ArrayLike, observed: ArrayLike, layer: int | None = None) -> xr.Dataset:
    """E[z_a z_b] of a neuron, given the preactivations of other neurons of its layer on the inputs X (6.78).

    ``observed`` is (inputs,) for one neuron or (inputs, neurons) for several; ``layer`` is the output by default.
    With u = K^-1 z the ``variance`` (input_1, input_2) is ``kernel`` K + ``metric_correction`` G1/n + ``association``
    V_(ab)(cd) sum_k (u_k^c u_k^d - K^cd) / 2n: larger where others were larger than expected. The attribute
    ``expansion`` is the variance of the log density of what was observed over networks, which must be small.

    Examples
    --------
    >>> import foretrain as ft
    >>> found = hebbian_variance(ft.MLP("tanh", depth=6, width=64), [[1.0]], [0.5])
    >>> round((found["kernel"] + found["association"]).item(), 10)
    0.1068981848
    """
    import xarray as xr

    check_plain(mlp)
    inputs = mlp.check_inputs(X)
    seen = targets_for(observed, len(inputs), "observed preactivations")
    found = layer_statistics(mlp, inputs, layer)
    if found.layer == 1:
        raise InputError("neurons of the first layer are independent: ask for a layer from 2 on.")
    training = factorise(found.K)
    u = training.solve(seen)
    M = u @ u.T - seen.shape[1] * training.solve(np.eye(len(inputs)))
    association = np.einsum("abcd,cd->ab", found.V, M, optimize=True) / (2 * found.fan_in)
    expansion = 0.5 * float(np.sum(association * M))
    warn_of_expansion(expansion)
    parts = {
        "kernel": found.K,
        "metric_correction": found.G1 / found.fan_in,
        "association": association,
    }
    dims = ("input_1", "input_2")
    return xr.Dataset(
        {name: (dims, values) for name, values in {"variance": sum(parts.values()), **parts}.items()},
        attrs={"layer": found.layer, "fan_in": found.fan_in, "expansion": expansion},
    )
