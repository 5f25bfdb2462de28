"""Information in a given network: its X = V / (n G^2), and what the series make of it at every layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.answers import labelled
from foretrain.support.errors import InputError
from foretrain.theory.architecture import MLP
from foretrain.theory.arguments import one_input
from foretrain.theory.asymptotics import exact_fluctuation
from foretrain.theory.flow import flow
from foretrain.theory.information.aspect_ratio import turning_point
from foretrain.theory.information.series import (
    entropy_series,
    information_series,
    leading_information,
    neurons,
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

    Both have the dimension ``order``: "leading" (X^2) and "next" (X^3 as well). ``standing`` says what the
    information is worth: "rising", "past its maximum" from the turning point X = 4 / (20 + 3 m_1 + 3 m_2) on, or
    "negative", which no information is: there :func:`mixture_information` is the one to ask. The entropy takes the
    mean ``metric`` K + G1/n, of order 1/n, or K itself with skip connections, where G1 is not known.
    """
    X, metric = relative_variance(mlp, x), _metric(mlp, x)
    turn, m = turning_point(m_1, m_2), neurons(m_1) + neurons(m_2)
    parts = np.searchsorted([turn, 1.5 * turn], X.values, side="right")
    orders = {"leading": 2, "next": 3}
    # Far beyond the expansion K + G1/n may be negative, and there is no entropy.
    with np.errstate(invalid="ignore"):
        size = m / 2 * np.log(metric)
    entropy = [size + entropy_series(m, X.values, order=k) for k in orders.values()]
    information = [information_series(m_1, m_2, X.values, k) for k in orders.values()]
    return labelled(
        {
            "relative_variance": X,
            "metric": ("layer", metric),
            "entropy": ("order layer", entropy),
            "information": ("order layer", information),
            "standing": ("layer", np.array(["rising", "past its maximum", "negative"])[parts]),
        },
        {"m_1": float(m_1), "m_2": float(m_2), "turning_point": turn, "network": repr(mlp)},
        order=list(orders),
        layer=X["layer"],
    )


def _metric(mlp: MLP, x: ArrayLike) -> Array:
    """The mean of the metric by layer, as far as it is known."""
    names = ["K"] if mlp.is_residual else ["K", "G1"]
    found = flow(mlp, one_input(x)[None], names)
    K = found["K"].values.ravel()
    return np.asarray(K if mlp.is_residual else K + found["G1"].values.ravel() / [1, *mlp.hidden_widths])


def network_information(
    mlp: MLP, X: ArrayLike, m_1: float = 1, m_2: float = 1, layer: int | None = None
) -> float:
    """Information between two groups of neurons of a layer on several inputs at once, leading order 1/n^2."""
    number = mlp.check_layer(layer)
    if number == 1:
        return 0.0
    found = flow(mlp, X, ["K", "V"])
    K, V = (found[name].sel(layer=number).values for name in ("K", "V"))
    return leading_information(K, V, mlp.hidden_widths[number - 2], m_1, m_2)


def _kernel_and_vertex(mlp: MLP, x: ArrayLike) -> tuple[xr.DataArray, xr.DataArray]:
    vector = one_input(x)
    found = flow(mlp, vector[None], ["K", "V"])
    K, V = (found[name].squeeze([d for d in found[name].dims if d != "layer"]) for name in ("K", "V"))
    if not (K.values > 0).all():
        raise InputError("the input gives no signal at some layer, so that there is no entropy to speak of.")
    return K, V
