"""The table of functions of the kernel: g, chi_parallel, chi_perp, h, j and the source of the vertex."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from foretrain.support.errors import InputError
from foretrain.theory.kernel_functions.functions import KernelFunctions

if TYPE_CHECKING:
    import xarray as xr

_MEANINGS = {
    "g": "<s^2>, the mean square of the activation (5.49)",
    "chi_parallel": "gamma^2 + C_W g'(K), growth of a difference of norms from layer to layer (5.50), (B.15)",
    "chi_perpendicular": "gamma^2 + C_W <s'^2>, growth of the squared distance at equal norms (5.51), (B.16)",
    "h": "half the slope of chi_perp, how a difference of norms feeds the distance (5.52)",
    "j": "4 K^2 C_W g''(K), how the vertex feeds the next-to-leading metric (5.111)",
    "source": "C_W^2 [<s^4> - <s^2>^2], what a layer adds to the four-point vertex (5.109)",
}


def kernel_functions(activation: Any, K: ArrayLike, C_W: float = 1.0, gamma: float = 0.0) -> xr.Dataset:
    """g, chi_parallel, chi_perp, h, j and the vertex source at kernel values K (5.49)-(5.53), (5.111).

    Examples
    --------
    >>> table = kernel_functions("relu", K=0.5)
    >>> [float(table[name]) for name in ("g", "chi_perpendicular", "source")]
    [0.25, 0.5, 0.3125]
    """
    import xarray as xr

    functions, places = KernelFunctions(activation), np.asarray(K, dtype=float)
    act = functions.activation
    if places.ndim > 1:
        raise InputError(f"kernel values have shape {places.shape}: give one number or a list of them.")
    if not act.is_smooth and act.slopes is None and not (places > 0).all():
        raise InputError(f"{act.label} has kinks, so that h need not exist at K = 0: give K > 0.")
    at = functions.at(places)
    values = {
        "g": at.square,
        "chi_parallel": gamma**2 + C_W * at.square_slope,
        "chi_perpendicular": gamma**2 + C_W * at.slope_square,
        "h": 0.5 * C_W * at.slope_square_slope,
        "j": 4 * places**2 * C_W * at.square_bend,
        "source": C_W**2 * (at.fourth - at.square**2),
    }
    dims = ("K",) if places.ndim else ()
    return xr.Dataset(
        {name: (dims, value, {"meaning": _MEANINGS[name]}) for name, value in values.items()},
        coords={"K": (dims, places, {"meaning": "variance of a preactivation"})},
        attrs={"activation": act.label, "C_W": C_W, "gamma": gamma},
    )
