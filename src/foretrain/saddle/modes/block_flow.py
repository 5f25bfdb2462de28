"""Escape times and trajectories of all modes together, by the exact block-symmetric flow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from foretrain.saddle.modes.block_field import BlockField, block_field
from foretrain.saddle.modes.following import RELATIVE_TOLERANCE, BlockPath, Watch, follow
from foretrain.saddle.modes.gaussian_grid import GaussianGrid
from foretrain.saddle.parameters import Array, check_choice, check_positive
from foretrain.support.errors import InputError

if TYPE_CHECKING:
    import xarray as xr

Observable = Literal["amplitude", "alignment"]

OBSERVABLES = {
    "amplitude": "X_1 of the mode, in its own block",
    "alignment": "|W_1 v_k| / sqrt(N), over all blocks",
}


def block_escape(
    activation: Any,
    scales: ArrayLike,
    betas: Sequence[float],
    block_width: int,
    *,
    threshold: float = 0.5,
    observable: Observable = "amplitude",
    until: float = 1e6,
    grid: GaussianGrid | None = None,
) -> xr.DataArray:
    """When each mode's amplitude or alignment rises to the threshold, with all modes flowing together.

    ``scales`` are X_l (layers, modes) on the ansatz, or a stack (flows, layers, modes). Times are matrix times s
    (learning rate of the first layer times steps); nan where ``until`` came first.

    >>> found = block_escape("tanh", [[0.2], [0.2], [0.2]], (1.0,), 16, threshold=0.3)
    >>> found.dims
    ('mode',)
    """
    import xarray as xr

    X = _scales(scales)
    if not until > 0:
        raise InputError(f"until is {until}: give a positive time at which to stop.")
    if X.ndim not in (2, 3):
        raise InputError(f"scales have shape {X.shape}: give (layers, modes) or (flows, layers, modes).")
    field = block_field(activation, X.shape[-2], betas, block_width, grid)
    starts = field.layout.from_scales(X if X.ndim == 3 else X[None])
    watch = watcher(field, observable)
    levels = np.full(len(field.betas), check_positive(threshold, "threshold"))
    times = np.array(
        [flow_in_matrix_time(field, start, until, watch=watch, levels=levels).crossings for start in starts]
    )
    dims = ("flow", "mode") if X.ndim == 3 else ("mode",)
    return xr.DataArray(
        times if X.ndim == 3 else times[0],
        dims=dims,
        coords={"mode": np.arange(1, len(field.betas) + 1)},
        name="time",
        attrs={"time_unit": "matrix time s", "observable": OBSERVABLES[observable], "threshold": threshold},
    )


def block_flow(
    activation: Any,
    scales: ArrayLike,
    betas: Sequence[float],
    block_width: int,
    times: ArrayLike,
    *,
    grid: GaussianGrid | None = None,
) -> xr.Dataset:
    """Loss, alignments, scales X and all matrices A along the exact flow, at matrix times s."""
    import xarray as xr

    record = np.atleast_1d(np.asarray(times, dtype=float))
    if not record.size or not np.isfinite(record).all() or (record < 0).any() or (np.diff(record) < 0).any():
        raise InputError("times must be one or more finite numbers, not negative and in ascending order.")
    X = _scales(scales)
    if X.ndim != 2:
        raise InputError(f"scales have shape {X.shape}: give one number for each layer and mode.")
    field = block_field(activation, X.shape[0], betas, block_width, grid)
    start = field.layout.from_scales(X)
    levels = np.full(len(field.betas), math.inf)
    path = flow_in_matrix_time(field, start, float(record[-1]), watch=field.alignments, levels=levels)
    states = path.at(record)
    matrices = field.layout.matrices(states)
    modes = np.arange(1, len(field.betas) + 1)
    return xr.Dataset(
        {
            "loss": ("time", field.loss(states)),
            "alignment": (("time", "mode"), field.alignments(states)),
            "X": (("time", "layer", "mode"), field.layout.scales(states)),
            "A": (("time", "inner_layer", "block", "mode"), np.stack(matrices[:-1], axis=1)),
        },
        coords={
            "time": record,
            "mode": modes,
            "block": modes,
            "layer": np.arange(1, field.depth + 1),
            "inner_layer": np.arange(1, field.depth),
        },
        attrs={"time_unit": "matrix time s", "betas": list(field.betas), "block_width": block_width},
    )


def _scales(scales: ArrayLike) -> Array:
    try:
        return np.asarray(scales, dtype=float)
    except (TypeError, ValueError):
        raise InputError("scales are no table of numbers: give one for each layer and mode.") from None


def flow_in_matrix_time(
    field: BlockField,
    start: Array,
    until: float,
    *,
    watch: Watch,
    levels: Array,
    tolerance: float = RELATIVE_TOLERANCE,
) -> BlockPath:
    """The path of one state, with times s = N_B t."""
    return follow(
        lambda x: field.rates(x) / field.block_width,
        start,
        until,
        watch=watch,
        levels=levels,
        tolerance=tolerance,
    )


def watcher(field: BlockField, observable: str) -> Watch:
    """The numbers of the modes whose passing of a threshold is called their escape."""
    check_choice(observable, "observable", list(OBSERVABLES))
    if observable == "alignment":
        return field.alignments
    return lambda state: field.layout.scales(state)[..., 0, :]
