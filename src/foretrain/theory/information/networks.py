"""Information in a given network: its X = V / (n G^2), and what the series make of it at every layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.errors import InputError
from foretrain.theory.architecture import MLP
from foretrain.theory.asymptotics import exact_fluctuation
from foretrain.theory.finite_width.statistics import check_layer
from foretrain.theory.flow import flow
from foretrain.theory.information.aspect_ratio import turning_point
from foretrain.theory.information.series import (
    entropy_series,
    information_series,
    leading_information,
    tripartite_series,
)

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]


def relative_variance(mlp: MLP, x: ArrayLike) -> xr.DataArray:
    """X of one input by layer: exact in width for scale-invariant networks without biases, else V / (n K^2).

    The attribute ``order`` says which: "exact" or "leading".

    Examples
    --------
    >>> relative_variance(MLP("relu", depth=3, width=10, C_W=2.0), [1.0]).values
    array([0.  , 0.5 , 1.25])
    """
    K, V = _kernel_and_vertex(mlp, x)
    if mlp.activation.slopes is not None and not any(mlp.C_b) and not mlp.is_residual:
        values, order = exact_fluctuation(mlp), "exact"
    else:
        values, order = V.values / (np.array([1, *mlp.hidden_widths]) * K.values**2), "leading"
    found = K.copy(data=values).rename("relative_variance")
    return found.assign_attrs(meaning="variance of the metric over its mean squared", order=order)


def layer_information(mlp: MLP, x: ArrayLike, m_1: float = 1, m_2: float = 1) -> xr.Dataset:
    """Entropy of m_1 + m_2 neurons and information between both groups at every layer, by the series (A.66), (A.67).

    ``information`` has the dimension ``order``: "leading" (X^2) and "next" (X^3 as well). ``standing`` says what the
    latter is worth: "rising", "past its maximum" from the turning point X = 4 / (20 + 3 m_1 + 3 m_2) on, or
    "negative", which no information is: there :func:`mixture_information` is the one to ask.
    """
    import xarray as xr

    X = relative_variance(mlp, x)
    K, _ = _kernel_and_vertex(mlp, x)
    turn = turning_point(m_1, m_2)
    parts = np.searchsorted([turn, 1.5 * turn], X.values, side="right")
    standing = np.array(["rising", "past its maximum", "negative"])[parts]
    terms = {"leading": 2, "next": 3}
    entropy = [
        [entropy_series(m_1 + m_2, v, k, order) for k, v in zip(K.values, X.values)] for order in (2, 3)
    ]
    information = [information_series(m_1, m_2, X.values, order) for order in (2, 3)]
    return xr.Dataset(
        {
            "relative_variance": X,
            "entropy": (("order", "layer"), entropy),
            "information": (("order", "layer"), information),
            "tripartite": ("layer", tripartite_series(m_1, m_2, 1, X.values)),
            "standing": ("layer", standing),
        },
        coords={"order": list(terms), "layer": X["layer"]},
        attrs={"m_1": float(m_1), "m_2": float(m_2), "turning_point": turn, "network": repr(mlp)},
    )


def network_information(
    mlp: MLP, X: ArrayLike, m_1: float = 1, m_2: float = 1, layer: int | None = None
) -> float:
    """Information between two groups of neurons of a layer on several inputs at once, leading order 1/n^2."""
    number = check_layer(mlp, layer)
    if number == 1:
        return 0.0
    found = flow(mlp, X, ["K", "V"])
    K, V = (found[name].sel(layer=number).values for name in ("K", "V"))
    return leading_information(K, V, mlp.hidden_widths[number - 2], m_1, m_2)


def _kernel_and_vertex(mlp: MLP, x: ArrayLike) -> tuple[xr.DataArray, xr.DataArray]:
    vector = np.atleast_1d(np.asarray(x, dtype=np.float64))
    if vector.ndim != 1:
        raise InputError(f"x has shape {vector.shape}: give one input, a list of n_in numbers.")
    found = flow(mlp, vector[None], ["K", "V"])
    K, V = (found[name].squeeze([d for d in found[name].dims if d != "layer"]) for name in ("K", "V"))
    if not (K.values > 0).all():
        raise InputError("the input gives no signal at some layer, so that there is no entropy to speak of.")
    return K, V
