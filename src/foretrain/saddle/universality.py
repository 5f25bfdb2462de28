"""Collapse of escape times (Cor. 7): K t depends on the scales and the depth, not on the activation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from foretrain.saddle.classes import classify
from foretrain.saddle.escape.table import escape_times
from foretrain.saddle.parameters import check_depth
from foretrain.support.errors import InputError

if TYPE_CHECKING:
    import xarray as xr

    from foretrain.saddle.escape.entry import Method


def collapse(
    activations: Sequence[Any],
    epsilon: ArrayLike,
    depth: int,
    *,
    bottleneck: int | None = None,
    others: float = 1.0,
    width: int = 64,
    beta: float = 1.0,
    threshold: float = 1.0,
    formula: Method | Sequence[Method] = ("leading", "reduced"),
) -> xr.Dataset:
    """K t_esc over activation x epsilon x formula, with matrix times and each activation's own K (7).

    Variables: ``scaled_time`` = K t, ``time`` = t, ``K``, ``letter``, and ``spread`` = largest over smallest K t of
    the activations, less 1, which tends to 0 with epsilon for the classes A to C.

    Examples
    --------
    >>> found = collapse(["tanh", "erf"], [0.01], depth=4, threshold=0.3, formula="leading")
    >>> abs(float(found["spread"].sel(epsilon=0.01, formula="leading"))) < 1e-12
    True
    """
    import xarray as xr

    if isinstance(activations, str) or not len(activations):
        raise InputError("activations must be a list of activations, such as ['tanh', 'gelu'].")
    layers, classes = check_depth(depth), [classify(spec) for spec in activations]
    tables = [
        escape_times(
            found.activation,
            epsilon,
            layers,
            bottleneck=bottleneck,
            others=others,
            width=width,
            beta=beta,
            threshold=threshold,
            formula=formula,
        )
        for found in classes
    ]
    rows = [
        table.isel({name: 0 for name in ("depth", "bottleneck") if name in table.dims}, drop=True)
        for table in tables
    ]
    labels = [found.activation.label for found in classes]
    time = xr.concat(rows, dim="activation").assign_coords(activation=labels)
    K = xr.DataArray([float(table["K"][0]) for table in tables], dims="activation")
    scaled = time * K
    return xr.Dataset(
        {
            "scaled_time": scaled,
            "time": time,
            "K": K,
            "letter": ("activation", [found.letter for found in classes]),
            "spread": scaled.max("activation") / scaled.min("activation") - 1,
        },
        attrs={**tables[0].attrs, "activation": ", ".join(labels), "depth": layers},
    )
