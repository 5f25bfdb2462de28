"""Kernels while a model learns: shares of the NTK of the outputs, collective fields, and the global-state NTK."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from foretrain.empirical.fields import fields as collective_fields
from foretrain.empirical.global_ntk import global_ntk
from foretrain.empirical.global_ntk.dynamics import places_of
from foretrain.empirical.global_ntk.readout import find_readout, placed_target
from foretrain.empirical.global_ntk.reduced_views import reduced_view
from foretrain.empirical.tangent_kernel import ntk
from foretrain.operators.estimators import Estimate
from foretrain.support.arguments import whole_number
from foretrain.support.errors import unknown_name
from foretrain.support.seeds import Seed
from foretrain.training.observables.registry import Observable, add, inputs, targets

if TYPE_CHECKING:
    import xarray as xr

    from foretrain.empirical.fields.state import ReadoutLike

_VIEWS = ("total", "temporal", "spatial")
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
        raise unknown_name("grouping", str(by), ["parameter", "layer"], "by=")

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


def global_ntk_rank(accuracy: float = 0.02, seed: Seed = 0, **options: Any) -> Observable:
    """Effective ranks tr(A)^2 / tr(A^2) of NTK_S and of its temporal and spatial reductions (15), with errors.

    ``accuracy`` is their relative standard error; further options are those of ``ft.global_ntk``: ``states=``, ...
    """

    def function(model: nn.Module, batch: Any) -> dict[str, xr.DataArray]:
        kernel = global_ntk(model, inputs(batch), **options)
        ranks = [
            kernel.effective_rank(accuracy=accuracy, seed=seed),
            reduced_view(kernel, "temporal", accuracy=accuracy, seed=seed).rank,
            reduced_view(kernel, "spatial", accuracy=accuracy, seed=seed).rank,
        ]
        return {
            "": _by("view", _VIEWS, [rank.value for rank in ranks]),
            "error": _by("view", _VIEWS, [rank.standard_error for rank in ranks]),
        }

    return Observable("global_ntk_rank", function)


def core_cosine(accuracy: float = 0.02, seed: Seed = 0, **options: Any) -> Observable:
    """Cosine of NTK_S with the concatenated core V V* (x) I, with its error."""

    def function(model: nn.Module, batch: Any) -> Estimate:
        kernel = global_ntk(model, inputs(batch), **options)
        found: Estimate = kernel.cosine(kernel.concatenated_core, accuracy=accuracy, seed=seed)
        return found

    return Observable("core_cosine", function)


def mode_alignment(modes: int = 3, accuracy: float = 0.02, seed: Seed = 0, **options: Any) -> Observable:
    """How NTK_S treats the leading modes of the target: cosine of u and A u, relative Rayleigh quotient, its error.

    Through the model's linear readout where it has one, else by the temporal kernel. ``rayleigh`` is 1 for a random
    direction, ``cosine`` is 1 for an eigenvector; nan where the target has fewer modes.
    """
    modes = whole_number("modes", modes)

    def function(model: nn.Module, batch: Any) -> dict[str, xr.DataArray]:
        x = inputs(batch)
        kernel = global_ntk(model, x, **options)
        readout = find_readout(model, x, kernel)
        target = placed_target(targets(batch), places_of(kernel.domain, "mode_alignment"), readout)
        weight = None if readout is None else readout.weight
        found = kernel.alignment(target, weight, modes=modes, accuracy=accuracy, seed=seed)
        return {
            "": _modes(found.cosine, modes),
            "rayleigh": _modes(found.rayleigh, modes),
            "rayleigh_error": _modes(found.standard_error, modes),
        }

    return Observable("mode_alignment", function)


def _modes(values: NDArray[np.float64], count: int) -> xr.DataArray:
    padded = np.full(count, np.nan)
    padded[: len(values)] = values
    return _by("target_mode", range(1, count + 1), padded)


def _by(axis: str, labels: Any, values: Any) -> xr.DataArray:
    import xarray as xr

    return xr.DataArray(np.asarray(values, dtype=np.float64), {axis: list(labels)}, [axis])


for _make in (ntk_shares, fields, global_ntk_rank, core_cosine, mode_alignment):
    add(_make.__name__, _make)
