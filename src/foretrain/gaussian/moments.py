"""The Gaussian moments of one activation that every recursion begins with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from foretrain.gaussian.expectation import expectation
from foretrain.gaussian.factors import factor, z
from foretrain.support.errors import InputError

if TYPE_CHECKING:
    import xarray as xr


def moments(activation: Any, K: ArrayLike, *, tolerance: float | None = None) -> xr.Dataset:
    """Moments of an activation at one or several variances K, each with its error estimate and rule.

    A dataset with dimensions ``moment`` and ``K``; with s the activation, the moments are ``mean`` <s>, ``square``
    <s^2>, ``fourth`` <s^4>, ``derivative_square`` <s'^2> and ``radial_derivative`` <z s s'>. C_W times the last but
    one, and C_W / K times the last, are the susceptibilities.

    Examples
    --------
    >>> float(moments("relu", 1.0).value.sel(moment="square"))
    0.5
    """
    import xarray as xr

    variance = np.atleast_1d(np.asarray(K, dtype=float))
    if variance.ndim != 1:
        raise InputError(f"K must be one variance or a list of them, but has shape {variance.shape}.")
    s, slope = factor(activation), factor(activation, order=1)
    products = {
        "mean": s,
        "square": s**2,
        "fourth": s**4,
        "derivative_square": slope**2,
        "radial_derivative": z * s * slope,
    }
    found = [expectation([f], variance[:, None, None], tolerance=tolerance) for f in products.values()]
    table = xr.Dataset(
        {
            "value": (("moment", "K"), np.array([e.value for e in found])),
            "error": (("moment", "K"), np.array([e.error for e in found])),
            "rule": (("moment",), [e.rule for e in found]),
        },
        coords={"moment": list(products), "K": variance},
        attrs={"activation": s.terms[0].activation.label},
    )
    return table.squeeze("K") if np.ndim(K) == 0 else table
