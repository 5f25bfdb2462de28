"""Tables of escape times over scales, depths, bottlenecks and methods, their picture, and their collapse (Cor. 7)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from foretrain.saddle.classes import classify, coupling
from foretrain.saddle.escape.entry import METHODS, Method, escape_time
from foretrain.saddle.parameters import (
    TIME_LABELS,
    TIME_UNITS,
    Array,
    TimeUnit,
    bottleneck_scales,
    check_choice,
    check_depth,
)
from foretrain.support.answers import INK, PALETTE, Figure, log
from foretrain.support.errors import InputError
from foretrain.support.progress import track

if TYPE_CHECKING:
    import xarray as xr


def escape_times(
    activation: Any,
    epsilon: ArrayLike,
    depth: int | Sequence[int],
    *,
    bottleneck: int | Sequence[int] | None = None,
    others: float = 1.0,
    width: int = 64,
    beta: float = 1.0,
    threshold: float = 1.0,
    formula: Method | Sequence[Method] = ("leading", "corrected", "reduced"),
    time: TimeUnit = "matrix",
) -> xr.DataArray:
    """Escape times over epsilon x depth x bottleneck x formula, with the first ``bottleneck`` layers at epsilon.

    ``bottleneck=None``: all layers at epsilon (balanced), and no such dimension. The remaining layers are at
    ``others``; entries with more bottleneck layers than layers are nan. K of each depth is a coordinate. ``formula``
    is what escape_time calls its method, a word that ``sel`` of xarray keeps for itself. It is a plain DataArray with
    xarray's own ``plot``; the command ``foretrain escape`` draws the same numbers with their laws.

    Examples
    --------
    >>> table = escape_times("tanh", [0.01, 0.1], depth=[3, 4], threshold=0.3, formula="leading")
    >>> round(float(table.sel(epsilon=0.1, depth=4, formula="leading")), 3)
    587.011
    """
    import xarray as xr

    found, small = classify(activation), _list(epsilon, "epsilon")
    depths = [check_depth(layers) for layers in _sequence(depth)]
    narrow = [None] if bottleneck is None else list(_sequence(bottleneck))
    methods = [check_choice(name, "`formula`", list(METHODS)) for name in _sequence(formula)]
    shape = (len(small), len(depths), len(narrow), len(methods))
    values = np.full(shape, np.nan)
    places = list(product(*map(range, shape)))
    for place in track(places, "escape times"):
        i, j, k, m = place
        layers, r = depths[j], narrow[k]
        if r is not None and r > layers:
            continue
        scales = bottleneck_scales(small[i], layers if r is None else r, layers, others)
        values[place] = escape_time(
            found.activation,
            scales,
            width=width,
            beta=beta,
            threshold=threshold,
            method=methods[m],
            time=time,
        )
    rates = [coupling(found.activation, layers, width, beta, time) for layers in depths]
    table = xr.DataArray(
        values,
        dims=("epsilon", "depth", "bottleneck", "formula"),
        coords={
            "epsilon": small,
            "depth": depths,
            "bottleneck": [0 if r is None else r for r in narrow],
            "formula": methods,
            "K": ("depth", rates),
        },
        name="escape_time",
        attrs={
            "activation": found.activation.label,
            "width": width,
            "beta": beta,
            "threshold": threshold,
            "others": others,
            "time": TIME_UNITS[time],
        },
    )
    return table.isel(bottleneck=0, drop=True) if bottleneck is None else table


def escape_figure(table: xr.DataArray, rate: float | None = None) -> Figure:
    """Draw what :func:`escape_times` returns over epsilon, in steps if a learning rate is given."""
    table = table if "bottleneck" in table.dims else table.expand_dims(bottleneck=[0], axis=2)
    styles = {"leading": "--", "corrected": "-", "reduced": "o"}
    unit = "steps of gradient descent" if rate else TIME_LABELS[str(table.attrs["time"])[0]]
    figure = Figure(
        f"Escape from the saddle: {table.attrs['activation']}, width {table.attrs['width']}", size=(7.6, 5.2)
    )
    panel = figure.panel(
        x=log("initial scale ε"),
        y=log(f"until $X_1$ = {table.attrs['threshold']:g}, {unit}"),
        legend_columns=2,
    )
    networks = [(int(L), int(r)) for L in table.depth for r in table.bottleneck if r <= L]
    for (depth, bottleneck), color in zip(networks, cycle(PALETTE)):
        own = table.sel(depth=depth, bottleneck=bottleneck) / (rate or 1.0)
        small = bottleneck or depth
        law = {1: "constant", 2: "~ log(1/ε)"}.get(small, f"~ $ε^{{-{small - 2}}}$")
        label = f"L = {depth}" + (f", {bottleneck} small" if bottleneck else "") + f": {law}"
        panel.legend_entry("-", label, color)
        for method in map(str, own.formula.values):
            panel.curve(own.epsilon, own.sel(formula=method), styles[method], color=color, hollow=True)
    for method, word in METHODS.items():
        if method in table.formula:
            panel.legend_entry(styles[method], word, INK, hollow=True)
    return figure


def _list(values: ArrayLike, name: str) -> Array:
    found = np.atleast_1d(np.asarray(values, dtype=float))
    if found.ndim != 1 or not found.size:
        raise InputError(f"`{name}` must be one number or a list of them, but has shape {found.shape}.")
    return found


def _sequence(value: Any) -> Sequence[Any]:
    return [value] if isinstance(value, str) or not hasattr(value, "__len__") else list(value)


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
