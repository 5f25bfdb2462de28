"""Torch tensors as labelled arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    import xarray as xr

PAIR = ("input_1", "input_2")
OUTPUTS = ("output_1", "output_2")


def labelled(
    values: Tensor, dims: Sequence[str], meaning: str, coords: Mapping[str, Any] | None = None, **attrs: Any
) -> xr.DataArray:
    """A tensor as a DataArray on the CPU, with its meaning."""
    import xarray as xr

    array = values.detach().cpu()
    if array.dtype in (torch.bfloat16, torch.float16):  # numpy has no bfloat16
        array = array.float()
    return xr.DataArray(
        array.numpy(), dims=tuple(dims), coords=coords, attrs={"meaning": meaning, **attrs}, name=None
    )
