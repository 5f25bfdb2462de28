"""How the training goes: loss, gradient, learning rate, weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from foretrain.empirical.fields.spectra import weight_eigenvalues
from foretrain.empirical.models.model import call_with
from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError
from foretrain.training.observables.registry import Observable, add, both

if TYPE_CHECKING:
    import xarray as xr


def loss() -> Observable:
    """The recorder's loss(outputs, targets) on its batch, in evaluation mode."""
    return Observable("loss", _loss, ("loss",))


def gradient_norm() -> Observable:
    """|dL/dtheta| over parameters with requires_grad, for the recorder's loss on its batch, in evaluation mode."""
    return Observable("gradient_norm", _gradient_norm, ("loss",))


def learning_rate() -> Observable:
    """That of the step just made, before a scheduler changes it; one entry for every group of the optimizer."""
    return Observable("learning_rate", _learning_rate, ("optimizer",))


def weight_spectra(largest: int | None = None) -> Observable:
    """Singular values of every parameter with two axes or more (the first against the others), or the largest ones.

    (matrix, rank); nan where a matrix has fewer, or is not finite.
    """
    count = None if largest is None else whole_number("largest", largest)
    return Observable("weight_spectra", lambda model, batch: _weight_spectra(model, count))


def _loss(model: nn.Module, batch: Any, *, loss: Any) -> float:
    with torch.no_grad():
        return float(_evaluated(model, batch, loss))


def _gradient_norm(model: nn.Module, batch: Any, *, loss: Any) -> float:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(_evaluated(model, batch, loss), trained, allow_unused=True)
    squares = [gradient.double().square().sum() for gradient in gradients if gradient is not None]
    return float(torch.stack(squares).sum().sqrt())


def _evaluated(model: nn.Module, batch: Any, loss: Any) -> Any:
    x, y = both(batch)
    found = loss(call_with(model, x), y)
    if isinstance(found, torch.Tensor) and found.numel() != 1:
        raise InputError(
            f"the loss has shape {tuple(found.shape)}: give one that is a single number, such as the mean."
        )
    return found


def _learning_rate(model: nn.Module, batch: Any, *, optimizer: Any) -> Any:
    import xarray as xr

    rates = [float(group["lr"]) for group in optimizer.param_groups]
    return rates[0] if len(rates) == 1 else xr.DataArray(rates, {"group": np.arange(len(rates))}, ["group"])


def _weight_spectra(model: nn.Module, largest: int | None) -> xr.DataArray:
    import xarray as xr

    matrices = {name: value.detach().flatten(1) for name, value in model.named_parameters() if value.ndim > 1}
    if not matrices:
        raise InputError("the model has no parameter with two axes: there are no weight spectra.")
    count = max(min(matrix.shape) for matrix in matrices.values())
    values = np.full((len(matrices), min(count, largest or count)), np.nan)
    for row, matrix in zip(values, matrices.values()):
        if bool(torch.isfinite(matrix).all()):
            singular = weight_eigenvalues(matrix).sqrt().cpu().double().numpy()[: len(row)]
            row[: len(singular)] = singular
    labels = {"matrix": list(matrices), "rank": np.arange(1, values.shape[1] + 1)}
    return xr.DataArray(values, labels, ["matrix", "rank"], attrs={"picture": "spectra"})


for _make in (loss, gradient_norm, learning_rate, weight_spectra):
    add(_make.__name__, _make)
