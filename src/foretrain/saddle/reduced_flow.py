"""Trajectories of the exact scalar flow (4): every X_l and the loss, in either unit of time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from foretrain.activations import activation as find_activation
from foretrain.saddle.classes import coupling
from foretrain.saddle.escape import escape_time
from foretrain.saddle.parameters import (
    TIME_LABELS,
    TIME_UNITS,
    Array,
    TimeUnit,
    check_beta,
    check_state,
    matrix_times,
)
from foretrain.saddle.scalar_flow import ChainField, follow, with_accuracy
from foretrain.support.answers import Figure, labelled
from foretrain.support.arguments import positive, whole_number
from foretrain.support.errors import InputError

if TYPE_CHECKING:
    import xarray as xr


def reduced_flow(
    activation: Any,
    scales: ArrayLike,
    *,
    width: int = 64,
    beta: float = 1.0,
    until: float | None = None,
    times: ArrayLike | None = None,
    threshold: float | None = None,
    points: int = 201,
    time: TimeUnit = "matrix",
) -> xr.Dataset:
    """The amplitudes X_l and the loss along the exact scalar flow (4), from scales of any sign.

    Give one of ``until`` (the last time), ``times`` (where to record) and ``threshold`` (record until X_1 reaches
    it); times are in the unit ``time``: "matrix" s, or "reduced" t = s / N.

    Returns
    -------
    A dataset over ``time`` and ``layer`` = 1..L: ``X``, ``loss`` = E[(f - y)^2] / 2, ``product`` = prod X_l.

    Examples
    --------
    >>> path = reduced_flow("tanh", [0.03, 0.05, 0.07, 0.09], until=1800.0, points=4)
    >>> path["X"].sel(layer=1).values.round(4)
    array([0.03  , 0.0473, 0.078 , 0.2038])
    """
    act, X, neurons = find_activation(activation), check_state(scales), whole_number("width", width)
    unit, strength = matrix_times(neurons, time), check_beta(beta)
    if sum(end is not None for end in (until, times, threshold)) != 1:
        raise InputError(
            "give exactly one of `until=`, `times=` and `threshold=`, to say where the flow is to end."
        )
    if threshold is not None:
        last = escape_time(
            act, X, width=neurons, beta=strength, threshold=threshold, method="reduced", time=time
        )
        if not math.isfinite(last):
            raise InputError(f"X_1 never reaches the threshold {threshold:g}: give `until=` instead.")
        until = last
    record = _record(until, times, points)
    states, field = with_accuracy(
        ChainField(act, neurons, strength), lambda finer: _states(finer, X, record * unit)
    )
    layers = states.shape[1]
    return labelled(
        {
            "X": ("time layer", states),
            "loss": ("time", field.loss(states)),
            "product": ("time", states.prod(axis=1)),
        },
        {
            "activation": field.activation.label,
            "width": field.width,
            "beta": field.beta,
            "time": time,
            "K": coupling(field.activation, layers, field.width, field.beta, time),
        },
        counted=("layer",),
        time=("time", record, {"unit": TIME_UNITS[time]}),
    )


def _record(until: float | None, times: ArrayLike | None, points: int) -> Array:
    """The times given, or so many up to the last one."""
    if times is None:
        if points < 2:
            raise InputError(f"`points` is {points}: give the number of times to record, 2 or more.")
        assert until is not None
        return np.linspace(0.0, 0.0 if until == 0.0 else positive("until", until), points)
    record = np.atleast_1d(np.asarray(times, dtype=float))
    if record.ndim != 1 or not record.size or not np.isfinite(record).all():
        raise InputError("times must be a list of finite numbers.")
    if record[0] < 0 or (np.diff(record) <= 0).any():
        raise InputError("times must increase, from 0 or later.")
    return record


def _states(field: ChainField, start: Array, record: Array) -> tuple[Array, Array]:
    """The states at the matrix times asked for, twice: as the result and as what was visited."""
    if record[-1] == 0.0:
        found = np.tile(start, (len(record), 1))
    else:
        found = follow(field, start, 0.0, float(record[-1]), times=record).states
    return found, found


def trajectory_figure(flow: xr.Dataset, threshold: float) -> Figure:
    """Draw the amplitudes of all layers over time, as :func:`reduced_flow` returns them."""
    figure = Figure("Amplitudes of the layers on the symmetric manifold", size=(7.6, 4.8))
    panel = figure.panel(x=TIME_LABELS[str(flow.time.attrs["unit"])[0]], y="amplitude")
    for layer in flow.layer.values:
        panel.curve(flow.time, flow.X.sel(layer=layer), "-", f"$X_{{{layer}}}$")
    panel.level(threshold, dash=":")
    return figure
