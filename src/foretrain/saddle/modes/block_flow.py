"""Escape times and trajectories of all modes together, by the exact block-symmetric flow."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.integrate import LSODA
from scipy.optimize import brentq

from foretrain.saddle.integration import smallest_scale
from foretrain.saddle.modes.block_field import BlockField, block_field
from foretrain.saddle.modes.gaussian_grid import GaussianGrid
from foretrain.saddle.parameters import Array, check_choice, check_positive
from foretrain.support.answers import labelled
from foretrain.support.errors import InputError, NotSupportedError

if TYPE_CHECKING:
    import xarray as xr

RELATIVE_TOLERANCE = 1e-10
_MOST_STEPS = 100_000

Watch = Callable[[Array], Array]


@dataclass(frozen=True, eq=False)
class BlockPath:
    """The steps of the integrator; ``crossings`` are the times at which each watched number rose to its level."""

    times: Array
    states: Array
    crossings: Array  # nan where the flow ended before
    pieces: list[Any] = field(default_factory=list, repr=False)

    def at(self, times: Array) -> Array:
        """The states at times, between the steps too."""
        if len(self.times) == 1:
            return np.tile(self.states[0], (len(times), 1))
        place = np.clip(np.searchsorted(self.times[1:], times), 0, len(self.pieces) - 1)
        return np.array([self.pieces[k](time) for k, time in zip(place, times)])


def follow(
    rates: Callable[[Array], Array],
    start: Array,
    until: float,
    *,
    watch: Watch,
    levels: Array,
    tolerance: float = RELATIVE_TOLERANCE,
) -> BlockPath:
    """The flow from time 0 until every watched number has risen to its level, or until a time."""
    before = watch(start)
    crossings = np.where(before >= levels, 0.0, math.nan)
    if until == 0:  # the integrator cannot make a step of no length
        return BlockPath(np.zeros(1), start[None], crossings)
    absolute = 0.01 * tolerance * smallest_scale(start)
    solver = LSODA(lambda _, x: rates(x), 0.0, start, until, rtol=tolerance, atol=absolute)
    times, states, pieces = [0.0], [start], []
    while times[-1] < until and np.isnan(crossings).any():
        message = solver.step()  # None while all is well
        if message is not None or len(times) > _MOST_STEPS or not np.isfinite(solver.y).all():
            raise NotSupportedError(f"the flow could not be followed beyond {solver.t:g} ({message}).")
        piece, after = solver.dense_output(), watch(solver.y)
        for mode in np.flatnonzero(np.isnan(crossings) & (after >= levels)):
            crossings[mode] = _crossing(piece, watch, int(mode), float(levels[mode]), times[-1], solver.t)
        times.append(float(solver.t))
        states.append(solver.y.copy())
        pieces.append(piece)
    return BlockPath(np.array(times), np.array(states), crossings, pieces)


def _crossing(piece: Any, watch: Watch, mode: int, level: float, begin: float, end: float) -> float:
    """Where a watched number is at its level inside one step."""

    def gap(time: float) -> float:
        return float(watch(piece(time))[mode] - level)

    if gap(begin) >= 0:  # the interpolant may be above the level by rounding
        return begin
    return float(brentq(gap, begin, end, xtol=1e-14 * end, rtol=1e-14))


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
    check_choice(observable, "`observable`", list(OBSERVABLES))

    def watch(state: Array) -> Array:
        """The numbers of the modes whose passing of a threshold is called their escape."""
        return field.alignments(state) if observable == "alignment" else field.layout.scales(state)[..., 0, :]

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
    return labelled(
        {
            "loss": ("time", field.loss(states)),
            "alignment": ("time mode", field.alignments(states)),
            "X": ("time layer mode", field.layout.scales(states)),
            "A": ("time inner_layer block mode", np.stack(matrices[:-1], axis=1)),
        },
        {"time_unit": "matrix time s", "betas": list(field.betas), "block_width": block_width},
        counted=("layer",),
        time=record,
        mode=modes,
        block=modes,
        inner_layer=np.arange(1, field.depth),
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
