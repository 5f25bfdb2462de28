"""Which parameters carry the tangent kernel of the outputs, and the collective fields of a chain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import nn

from foretrain.empirical.fields import fields as collective_fields
from foretrain.empirical.tangent_kernel import ntk
from foretrain.support.errors import unknown_name
from foretrain.training.observables.registry import Observable, add, inputs, targets

if TYPE_CHECKING:
    import xarray as xr

    from foretrain.empirical.fields.state import ReadoutLike

_KEPT = (
    "kernel_trace",
    "kernel_drive",
    "kernel_participation",
    "layer_participation",
    "weight_participation",
)


def ntk_shares(
    by: Literal["parameter", "layer"] = "parameter", samples: int = 64, **options: Any
) -> Observable:
    """Share of every parameter or layer in the trace of the NTK of the outputs, for the first samples of the batch.

    Further options are those of ``ft.ntk``, such as ``output=`` or ``rates=``.
    """
    if by not in ("parameter", "layer"):
        raise unknown_name("grouping", str(by), ["parameter", "layer"])

    def function(model: nn.Module, batch: Any) -> xr.DataArray:
        import xarray as xr

        kernel = ntk(model, inputs(batch, samples), outputs="trace", by=by, **options)
        traces = torch.diagonal(kernel.values, dim1=1, dim2=2).double().sum(1)
        shares = (traces / traces.sum()).cpu().numpy()
        return xr.DataArray(shares, {by: list(kernel.labels or ())}, [by], attrs={"picture": "shares"})

    return Observable("ntk_shares", function)


def fields(readout: ReadoutLike = None) -> Observable:
    """Numbers of the collective fields of a chain of linear layers, by layer: see ``ft.fields(model, x).observe(y)``.

    ``kernel_trace`` tr K_l, ``kernel_drive`` r^T K_l r / r^T r, participation ratios of K, of every K_l and of
    W_l^T W_l, and ``metric_alignment`` of G_l with the gradient, the mean over the inputs that are followed.
    """

    def function(model: nn.Module, batch: Any) -> dict[str, xr.DataArray]:
        seen = collective_fields(model, inputs(batch), readout=readout).observe(targets(batch))
        alignment = seen["metric_alignment"].values
        known = np.isfinite(alignment)
        count = known.sum(1)
        mean = np.where(known, alignment, 0.0).sum(1) / np.where(count, count, np.nan)
        kept = {name: seen[name] for name in _KEPT}
        return kept | {"metric_alignment": seen["metric_alignment"].isel(followed=0).copy(data=mean)}

    return Observable("fields", function)


for _make in (ntk_shares, fields):
    add(_make.__name__, _make)
