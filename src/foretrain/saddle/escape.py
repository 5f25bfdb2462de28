"""Escape times by every method: one, tables over scales, depths and bottlenecks, and their collapse (Cor. 7)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, product
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from foretrain.saddle.classes import SaddleClass, classify, coupling, escape_coupling
from foretrain.saddle.corrected import corrected_time, correction_of, printed_time
from foretrain.saddle.leading import transit_time
from foretrain.saddle.parameters import (
    TIME_LABELS,
    TIME_UNITS,
    TimeUnit,
    bottleneck_scales,
    check_choice,
    check_scales,
    check_threshold,
    matrix_times,
)
from foretrain.saddle.scalar_flow import reduced_time
from foretrain.support.answers import INK, PALETTE, Answer, Figure, Part, Result, Table, log
from foretrain.support.arguments import positive, whole_number
from foretrain.support.errors import InputError
from foretrain.support.progress import track
from foretrain.support.user_warnings import warn_user

if TYPE_CHECKING:
    import xarray as xr

Method = Literal["leading", "corrected", "reduced"]
Source = Literal["exact", "paper"]

METHODS: dict[Method, str] = {
    "leading": "leading order",
    "corrected": "first correction",
    "reduced": "exact scalar flow",
}
"""Ways to an escape time, from the roughest on, and what tables and legends call them."""


def escape_time(
    activation: Any,
    scales: ArrayLike,
    *,
    width: int = 64,
    beta: float = 1.0,
    threshold: float = 1.0,
    method: Method = "leading",
    time: TimeUnit = "matrix",
    source: Source = "exact",
) -> float:
    """How long gradient flow from small scales stays near the saddle: the first time at which X_1 = threshold.

    Parameters
    ----------
    activation
        A name, an activation, or any callable. In class D (sigma(0) != 0) "leading" and "corrected" speak of the
        centred network, sigma - sigma(0) in every layer and in the teacher, and warn; "reduced" follows sigma as it
        is given, as a network with it does, which may leave much earlier: the offset passes signals on where scales
        are small. Pass ``centred(activation)`` to hold the methods against each other.
    scales
        X_1(0), ..., X_L(0) in layer order (Def. 3): rows of W_1 of length X_1, entries X_l / N in the middle and
        X_L / sqrt(N) in the last layer. One may be zero; with two zeros nothing ever moves.
    width, beta
        N, and the strength of the teacher beta sigma(v . x).
    threshold
        On X_1. A first layer that is there already gives 0.
    method
        "leading": quadrature (10); "corrected": the first-order flow (24); "reduced": the exact scalar flow (4).
    time
        "matrix": s, learning rate of the first layer times steps; "reduced": t = s / N.
    source
        "paper" replaces the coefficients of "corrected" by the printed ones (33); balanced scales only.

    Returns
    -------
    The time, infinite if X_1 never gets there.

    Examples
    --------
    >>> round(escape_time("tanh", [0.1] * 4, width=64, threshold=0.3), 3)
    587.011
    """
    X, neurons = check_scales(scales), whole_number("width", width)
    level = check_threshold(threshold, X)
    check_choice(method, "`method`", list(METHODS))
    check_choice(source, "`source`", ["exact", "paper"])
    if source == "paper" and method != "corrected":
        raise InputError(
            "`source='paper'` changes the coefficients of `method='corrected'`: give that method."
        )
    found, unit = classify(activation), matrix_times(neurons, time)
    K = escape_coupling(found, len(X), neurons, beta)
    if method != "reduced" and found.letter == "D":
        warn_user(f"{found.centring_note}.")
    if method == "leading":
        return transit_time(K, X, level) / unit
    if method == "reduced":
        expected = transit_time(K, X, level)
        # Where the leading order never leaves, another activation's offset may still start the flow.
        estimate = expected if math.isfinite(expected) else 1 / K
        return reduced_time(found.activation, X, neurons, beta, level, estimate) / unit
    if source == "paper":
        return printed_time(K, X, level, found) / unit
    return corrected_time(K, X, level, correction_of(found)) / unit


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
    xarray's own ``plot``; ``escape_table`` has the same numbers as a result that shows and draws itself.

    Examples
    --------
    >>> table = escape_times("tanh", [0.01, 0.1], depth=[3, 4], threshold=0.3, formula="leading")
    >>> round(float(table.sel(epsilon=0.1, depth=4, formula="leading")), 3)
    587.011
    """
    import xarray as xr

    found, small = classify(activation), np.atleast_1d(np.asarray(epsilon, dtype=float))
    if small.ndim != 1 or not small.size:
        raise InputError(f"`epsilon` must be one number or a list of them, but has shape {small.shape}.")
    depths = [whole_number("depth", layers, 2) for layers in _sequence(depth)]
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


@dataclass(frozen=True, eq=False, repr=False)
class EscapeTable(Result):
    """Escape times of many networks: ``times`` as ``escape_times`` returns them, over epsilon, depth and formula."""

    found: SaddleClass
    times: xr.DataArray
    learning_rate: float | None = None

    def answer(self) -> Answer:
        """The class of the activation and a row for every network; those that cannot be are left out."""
        table, lr = self.times, self.learning_rate
        full = table if "bottleneck" in table.dims else table.expand_dims(bottleneck=[0], axis=2)
        methods: list[Method] = full.formula.values.tolist()
        records, rows = [], []
        for L, r, eps in product(
            full.depth.values.tolist(), full.bottleneck.values.tolist(), full.epsilon.values
        ):
            if r <= L:
                times = dict(zip(methods, full.sel(depth=L, bottleneck=r, epsilon=eps).values.tolist()))
                place = {"depth": L, "bottleneck": r or L, "epsilon": float(eps)}
                records.append({**place, "K": float(table.K.sel(depth=L)), "times": with_steps(times, lr)})
                rows.append((*place.values(), *times.values(), *((times[methods[-1]] / lr,) if lr else ())))
        steps = (f"steps ({METHODS[methods[-1]]})",) if lr else ()
        columns = ("layers", "small", "epsilon", *(METHODS[method] for method in methods), *steps)
        data = table.to_dataset().assign_attrs(table.attrs | {"learning_rate": lr or 0.0})
        task = {name: table.attrs[name] for name in ("width", "beta", "threshold")}
        record = {"others": table.attrs["others"], "rows": records}
        picture = partial(escape_figure, table, lr)
        return escape_answer(self.found, task, lr, Table(columns, rows), record, data, picture)


def escape_table(
    activation: Any,
    epsilon: ArrayLike,
    depth: int | Sequence[int],
    *,
    learning_rate: float | None = None,
    **options: Any,
) -> EscapeTable:
    """What :func:`escape_times` computes, with its ``options``, as a result that prints, draws and saves itself.

    Times are those of the matrix flow, s; with a learning rate they are given in steps too.

    >>> found = escape_table("tanh", [0.01, 0.1], depth=4, threshold=0.3, formula="leading")
    >>> round(found.answer().tables[0].rows[1][-1], 3)
    587.011
    """
    if learning_rate is not None:
        positive("learning_rate", learning_rate)
    if options.get("time", "matrix") != "matrix":
        raise InputError("`time=` is that of the matrix flow in a table: use escape_times for reduced times.")
    return EscapeTable(
        classify(activation), escape_times(activation, epsilon, depth, **options), learning_rate
    )


def with_steps(times: Mapping[Any, float], lr: float | None) -> dict[str, Any]:
    """Every time beside the steps that it takes."""
    return {key: {"time": time, "steps": None if lr is None else time / lr} for key, time in times.items()}


def escape_answer(
    found: SaddleClass,
    task: dict[str, Any],
    lr: float | None,
    table: Table,
    record: dict[str, Any],
    data: xr.Dataset | None,
    picture: Callable[[], Figure] | None,
) -> Answer:
    """The class of the activation, the times, and their unit."""
    about = found.answer()
    parts: list[Part] = [about.statement]
    if found.centring_note:  # in class D the columns do not speak of the same network
        parts.append(f"Note: {found.centring_note}.")
    steps = (
        f"; steps are at learning rate {lr:g}."
        if lr
        else ": with a learning rate (--lr) it is also given in steps."
    )
    unit = "Time s is the learning rate of the first layer times steps, the other layers learning at 1/width of it"
    parts += [table, f"{unit}{steps}", *([picture] if picture else [])]
    rate = {"learning_rate": lr, "time_unit": "learning rate of the first layer times steps"}
    return Answer(
        f"Escape from the saddle: {found.activation.label}, width {task['width']}, "
        f"teacher strength {task['beta']:g}, until X_1 = {task['threshold']:g}",
        parts,
        data=data,
        record={**about.document(), **task, **rate, **record},
    )


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
    layers, classes = whole_number("depth", depth, 2), [classify(spec) for spec in activations]
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
