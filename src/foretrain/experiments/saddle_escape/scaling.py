"""Escape time against the initial scale (Rawal & DeWeese, figure 2): slopes -(L-2) balanced, -(r-2) with bottlenecks.

tanh, width 64, threshold X_1 = 0.3. The closed forms (11), (12), the quadrature (10) and the first-order flow stand
beside the exact scalar flow, and whole networks on the symmetric manifold beside that. Times are matrix times s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foretrain.experiments.registry import Result, Row, Scale
from foretrain.experiments.saddle_escape.fits import fit, local_slopes
from foretrain.saddle import balanced_time, bottleneck_scales, coupling, critical_depth_time, escape_times
from foretrain.support.drawing import INK, PALETTE, new_figure

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from foretrain.saddle.escape.entry import Method

Array = NDArray[np.float64]

_LAYERS = (3, 4, 5, 6)  # depths of the balanced networks, and small layers of those of depth 6
_DEPTH = 6
_WIDTH, _THRESHOLD = 64, 0.3
_FORMULAS: tuple[Method, ...] = ("leading", "corrected", "reduced")
_KINDS = {"balanced": "L", "bottleneck": "r"}
_ASYMPTOTIC = (1e-4, 1.2e-4)
_SLOPE_ERROR = 2e-3  # what is left of the threshold and the corrections at those ε


@dataclass(frozen=True)
class Plan:
    """ε in the published window; ``networks`` of them are also followed as whole networks."""

    epsilons: int
    networks: int


PLANS: Mapping[Scale, Plan] = {Scale.QUICK: Plan(20, 2), Scale.PAPER: Plan(20, 20)}


def saddle_scaling(plan: Plan, seed: int) -> Result:
    """Escape times over ε for four depths and four bottlenecks; nothing is random, so the seed changes nothing."""
    data = _dataset(plan)
    rows = _table(data)
    return Result(_verdict(data), rows, data, partial(_draw, data))


def _dataset(plan: Plan) -> xarray.Dataset:
    import xarray

    epsilon = np.geomspace(1e-2, 10**-0.75, plan.epsilons)
    chosen = epsilon[np.unique(np.linspace(0, plan.epsilons - 1, plan.networks + 1).round().astype(int))[1:]]
    window, small = _times(epsilon), _times(np.array(_ASYMPTOTIC))
    return xarray.Dataset(
        {
            "time": window,
            "law": (("kind", "layers", "epsilon"), _law(epsilon)),
            "asymptotic_time": small.rename(epsilon="small_epsilon"),
            "network_time": (("kind", "layers", "network_epsilon"), _network_times(chosen)),
        },
        coords={"network_epsilon": chosen},
        attrs={"width": _WIDTH, "threshold": _THRESHOLD, "depth": _DEPTH},
    )


def _times(epsilon: Array) -> xarray.DataArray:
    """Times (kind, epsilon, layers, formula) by the three formulas."""
    import xarray

    balanced = escape_times(
        "tanh", epsilon, _LAYERS, width=_WIDTH, threshold=_THRESHOLD, formula=_FORMULAS
    ).rename(depth="layers")
    bottleneck = escape_times(
        "tanh", epsilon, _DEPTH, bottleneck=_LAYERS, width=_WIDTH, threshold=_THRESHOLD, formula=_FORMULAS
    ).isel(depth=0, drop=True)
    tables = [balanced.drop_vars("K"), bottleneck.rename(bottleneck="layers")]
    return xarray.concat(tables, dim=xarray.Variable("kind", list(_KINDS)), combine_attrs="drop")


def _law(epsilon: Array) -> Array:
    """The closed forms: (11) with its threshold for balanced networks, (12) with bottlenecks."""
    K = {layers: coupling("tanh", layers, _WIDTH) for layers in _LAYERS}
    balanced = [[balanced_time(K[n], float(e), n, _THRESHOLD) for e in epsilon] for n in _LAYERS]
    narrow = [[critical_depth_time(K[_DEPTH], float(e), n, _DEPTH) for e in epsilon] for n in _LAYERS]
    return np.array([balanced, narrow])


def _network_times(epsilon: Array) -> Array:
    """Whole networks on the manifold; their function depends on one input alone, so one is enough."""
    from foretrain.training.gradient_flow import Integration, Problem, ansatz, escape, hermite_sample

    found = np.empty((len(_KINDS), len(_LAYERS), len(epsilon)))
    for place, kind in enumerate(_KINDS):
        for number, layers in enumerate(_LAYERS):
            depth = layers if kind == "balanced" else _DEPTH
            problem = Problem("tanh", depth=depth, width=_WIDTH, inputs=1)
            scales = np.stack([bottleneck_scales(float(e), layers, depth) for e in epsilon])
            escaped = escape(
                problem,
                ansatz(problem, scales),
                thresholds=(_THRESHOLD,),
                observable="amplitude",
                metric="normalized",
                sample=hermite_sample(problem, 64),
                integration=Integration(rtol=1e-6),
            )
            found[place, number] = escaped["time"].values[:, 0]
    return found


def _table(data: xarray.Dataset) -> tuple[Row, ...]:
    rows: list[Row] = []
    for kind, letter in _KINDS.items():
        for layers in _LAYERS:
            own = data.sel(kind=kind, layers=layers)
            rows += _slope_rows(own, f"{kind}, {letter} = {layers}", 2 - layers)
            rows += _distance_rows(own, f"{kind}, {letter} = {layers}")
    return tuple(rows)


def _slope_rows(own: xarray.Dataset, title: str, law: int) -> list[Row]:
    """The slope of the whole window, of its small end, and far below it."""
    exact, corrected = (own["time"].sel(formula=name).values for name in ("reduced", "corrected"))
    window, first_order = fit(own.epsilon.values, exact), fit(own.epsilon.values, corrected)
    local = float(local_slopes(own.epsilon.values, exact)[1][0])
    below = float(
        local_slopes(np.array(_ASYMPTOTIC), own["asymptotic_time"].sel(formula="reduced").values)[1][0]
    )
    note = (
        f"The local slope at the smallest ε of the window is {local:.4f}; the first-order flow gives "
        f"{first_order.slope:.3f} over the window. What bends the line is the threshold X_1 = 0.3, "
        "to which ε = 0.18 is close."
    )
    return [
        Row(f"{title}: slope over the window", float(law), window.slope, window.error, note=note),
        Row(
            f"{title}: slope at ε = {_ASYMPTOTIC[0]:g}",
            float(law),
            below,
            agrees=abs(below - law) <= _SLOPE_ERROR,
        ),
    ]


def _distance_rows(own: xarray.Dataset, title: str) -> list[Row]:
    """How far formulas are from the exact scalar flow, and whole networks."""
    exact = own["time"].sel(formula="reduced")
    off = {name: np.abs((own["time"].sel(formula=name) / exact).values - 1) for name in _FORMULAS[:2]}
    shrinks = bool((np.diff(off["leading"]) > 0).all())
    beside = exact.sel(epsilon=own.network_epsilon.values).values
    distance = float(np.abs(own["network_time"].values / beside - 1).max())
    return [
        Row(
            f"{title}: distance of the quadrature (10), ε = 0.18 to 0.01",
            "shrinks to 0",
            f"{off['leading'][-1]:.3f} to {off['leading'][0]:.2g}",
            agrees=shrinks and bool(off["leading"][0] < 0.1 * off["leading"][-1]),
            note=f"With the first correction {off['corrected'][-1]:.3f} to {off['corrected'][0]:.2g}.",
        ),
        Row(
            f"{title}: relative distance of whole networks from the scalar flow",
            "< 1e-4",
            distance,
            agrees=distance < 1e-4,
            note=f"Width {_WIDTH}, {own.sizes['network_epsilon']} values of ε, normalized metric.",
        ),
    ]


def _verdict(data: xarray.Dataset) -> str:
    slopes = [
        local_slopes(
            np.array(_ASYMPTOTIC), data["asymptotic_time"].sel(kind=k, layers=n, formula="reduced").values
        )
        for k in _KINDS
        for n in _LAYERS
    ]
    worst = max(abs(float(found[1][0]) - (2 - n)) for found, n in zip(slopes, 2 * _LAYERS, strict=True))
    ratio = (data["time"] / data["time"].sel(formula="reduced")).isel(epsilon=0)
    leading, corrected = (np.abs(ratio.sel(formula=name).values - 1).max() for name in _FORMULAS[:2])
    return (
        f"Slopes are -(L-2) and -(r-2) within {worst:.1g} at ε = {_ASYMPTOTIC[0]:g}; at ε = 0.01 the quadrature is "
        f"within {leading:.2%} of the exact scalar flow, with the first correction within {corrected:.2%}."
    )


def _draw(data: xarray.Dataset) -> Figure:
    title = f"Escape time against initial scale: tanh, width {_WIDTH}, until X_1 = {_THRESHOLD:g}"
    figure, panels = new_figure(title, 2, 2, (12, 9))
    for column, (kind, letter) in enumerate(_KINDS.items()):
        own = data.sel(kind=kind)
        _draw_times(panels[column], own, letter)
        _draw_slopes(panels[2 + column], own, letter)
        words = (
            "all layers at ε" if kind == "balanced" else f"first r of {_DEPTH} layers at ε, the others at 1"
        )
        panels[column].set_title(words, fontsize=11)
    return figure


def _draw_times(panel: Axes, own: xarray.Dataset, letter: str) -> None:
    for layers, color in zip(_LAYERS, PALETTE):
        each = own.sel(layers=layers)
        name = f"{letter} = {layers}, slope {2 - layers}"
        panel.plot(
            own.epsilon, each["time"].sel(formula="reduced"), "o", color=color, markersize=4.5, label=name
        )
        panel.plot(own.epsilon, each["law"], ":", color=color, linewidth=1.2)
        panel.plot(own.epsilon, each["time"].sel(formula="leading"), color=color, linewidth=1.3)
        panel.plot(
            own.network_epsilon, each["network_time"], "s", color=INK, markersize=8, markerfacecolor="none"
        )
    panel.plot([], [], color=INK, label="quadrature (10)")
    panel.plot([], [], ":", color=INK, label="closed form (11)" if letter == "L" else "law (12)")
    panel.plot([], [], "s", color=INK, markersize=8, markerfacecolor="none", label="whole network")
    panel.set(xscale="log", yscale="log", xlabel="ε", ylabel="escape time s")
    panel.legend(frameon=False, fontsize=8.5)


def _draw_slopes(panel: Axes, own: xarray.Dataset, letter: str) -> None:
    epsilon = own.epsilon.values
    styles = {"leading": "-", "corrected": "--"}
    for layers, color in zip(_LAYERS, PALETTE):
        each = own["time"].sel(layers=layers)
        panel.plot(
            *_excess(epsilon, each, "reduced", layers),
            "o",
            color=color,
            markersize=4.5,
            label=f"{letter} = {layers}",
        )
        for name, style in styles.items():
            panel.plot(*_excess(epsilon, each, name, layers), style, color=color, linewidth=1.2)
    for name, style in styles.items():
        panel.plot(
            [], [], style, color=INK, label="quadrature (10)" if name == "leading" else "first correction"
        )
    panel.plot([], [], "o", color=INK, label="exact scalar flow")
    panel.set(xscale="log", yscale="log", xlabel="ε", ylim=(1e-5, 3), ylabel="|local slope - law|")
    panel.set_title("the law is reached as ε → 0", fontsize=11)
    panel.legend(frameon=False, fontsize=8.5, loc="lower right")


def _excess(epsilon: Array, times: xarray.DataArray, formula: str, layers: int) -> tuple[Array, Array]:
    middle, slopes = local_slopes(epsilon, times.sel(formula=formula).values)
    return middle, np.abs(slopes - (2 - layers))
