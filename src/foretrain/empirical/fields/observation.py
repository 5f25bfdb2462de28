"""One look at a network: what each layer adds to the kernel, spectra, and how metric and gradient align."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foretrain.empirical.fields import spectra
from foretrain.empirical.fields.spectra import heavy_tail
from foretrain.empirical.fields.state import FieldState
from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]
_SMALLEST_SPECTRUM = 20  # eigenvalues below which a tail exponent is not tried


def observe(
    state: FieldState, y: Tensor, loss_scale: float, *, modes: int = 8, inputs: Sequence[int] | None = None
) -> xr.Dataset:
    """One observation.

    ``kernel_trace`` tr K_l and ``kernel_drive`` r^T K_l r / r^T r by layer; ``kernel_eigenvalue`` of K and
    ``layer_eigenvalue`` of each K_l, with their participation ratios; ``weight_eigenvalue`` of W_l^T W_l and the
    ``tail_exponent`` with its error; of G_l of every followed input with itself, l = 0..L-1: ``metric_eigenvalue``
    and ``metric_alignment`` with the gradient of the loss by u_l. ``rank`` counts eigenvalues from the largest.
    """
    import xarray as xr

    modes = whole_number("modes", modes)
    residual = state.residual(y)
    numbers = [int(number) for number in (range(min(4, state.chain.inputs)) if inputs is None else inputs)]
    if not numbers or not all(0 <= number < state.chain.inputs for number in numbers):
        raise InputError(
            f"`inputs` is {inputs!r}: give numbers of inputs from 0 to {state.chain.inputs - 1}."
        )
    followed = torch.tensor(numbers, device=state.chain.x.device)
    variables = {
        "loss": ((), float(loss_scale * (residual**2).sum())),
        **_of_kernels(state, residual, modes),
        **_of_weights(state, modes),
        **_of_metrics(state, residual, followed, modes),
    }
    depth = state.chain.depth
    return xr.Dataset(
        variables,
        coords={
            "layer": np.arange(1, depth + 1),
            "metric_layer": np.arange(depth),
            "rank": np.arange(1, modes + 1),
            "followed": followed.cpu().numpy(),
        },
        attrs={
            "loss_scale": loss_scale,
            "readout": state.readout.label,
            "widths": list(state.chain.widths),
            "tail_exponent": "an experiment, not a theorem: every spectrum has a best exponent",
        },
    )


Variables = dict[str, tuple[tuple[str, ...], Array]]


def _of_kernels(state: FieldState, residual: Tensor, modes: int) -> Variables:
    kernels = (state.layer_kernel(number) for number in range(1, state.chain.depth + 1))
    total: Tensor | None = None
    spectra_of_layers, drives = [], []
    square = float((residual**2).sum())
    for kernel in kernels:
        total = kernel if total is None else total + kernel
        spectra_of_layers.append(_numpy(spectra.kernel_eigenvalues(kernel)))
        drive = float(torch.einsum("ac,abcd,bd->", residual, kernel, residual))
        drives.append(drive / square if square > 0 else float("nan"))
    assert total is not None
    whole = _numpy(spectra.kernel_eigenvalues(total))
    return {
        "kernel_trace": (("layer",), _numpy(state.kernel_traces())),
        "kernel_drive": (("layer",), np.array(drives)),
        "kernel_eigenvalue": (("rank",), _cut(whole, modes)),
        "kernel_participation": ((), np.array(spectra.effective_rank(whole))),
        "layer_eigenvalue": (("layer", "rank"), np.stack([_cut(one, modes) for one in spectra_of_layers])),
        "layer_participation": (
            ("layer",),
            np.array([spectra.effective_rank(one) for one in spectra_of_layers]),
        ),
    }


def _of_weights(state: FieldState, modes: int) -> Variables:
    found = [_numpy(spectra.weight_eigenvalues(layer.weight)) for layer in state.chain.layers]
    tails = []
    for values in found:
        fit = heavy_tail(values) if (values > 0).sum() >= _SMALLEST_SPECTRUM else None
        tails.append((np.nan, np.nan) if fit is None else (fit.exponent, fit.standard_error))
    return {
        "weight_eigenvalue": (("layer", "rank"), np.stack([_cut(one, modes) for one in found])),
        "weight_participation": (("layer",), np.array([spectra.effective_rank(one) for one in found])),
        "tail_exponent": (("layer",), np.array([tail[0] for tail in tails])),
        "tail_exponent_error": (("layer",), np.array([tail[1] for tail in tails])),
    }


def _of_metrics(state: FieldState, residual: Tensor, followed: Tensor, modes: int) -> Variables:
    chain = state.chain
    values = np.full((chain.depth, len(followed), modes), np.nan)
    alignment = np.full((chain.depth, len(followed)), np.nan)
    for number in range(chain.depth):
        spectrum = _numpy(spectra.metric_eigenvalues(chain, number, followed))
        values[number] = np.stack([_cut(one, modes) for one in spectrum])
        gradients = torch.einsum("bcn,bc->bn", state.conjugates[number][followed], residual[followed])
        alignment[number] = _numpy(spectra.metric_alignment(chain, number, followed, gradients))
    return {
        "metric_eigenvalue": (("metric_layer", "followed", "rank"), values),
        "metric_alignment": (("metric_layer", "followed"), alignment),
    }


def _cut(values: Array, modes: int) -> Array:
    """The largest ``modes`` eigenvalues, filled with nan."""
    found = np.full(modes, np.nan)
    found[: min(modes, values.size)] = values[:modes]
    return found


def _numpy(values: Tensor) -> Array:
    return values.detach().cpu().double().numpy()
