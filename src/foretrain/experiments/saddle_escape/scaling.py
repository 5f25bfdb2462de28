"""Escape time against the initial scale (Rawal & DeWeese, figure 2): slopes -(L-2) balanced, -(r-2) with bottlenecks.

tanh, width 64, threshold X_1 = 0.3. The closed forms (11), (12), the quadrature (10) and the first-order flow stand
beside the exact scalar flow, and whole networks on the symmetric manifold beside that. Times are matrix times s.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import xarray

from foretrain.experiments.judgements import claim_row, computed_row
from foretrain.experiments.registry import Result, Row, plans
from foretrain.experiments.saddle_escape.escape_times import fit, local_slopes, network_times
from foretrain.saddle import balanced_time, bottleneck_scales, coupling, critical_depth_time, escape_times
from foretrain.support.answers import INK, PALETTE, Figure, log
from foretrain.theory.architecture import FloatArray

if TYPE_CHECKING:
    from foretrain.saddle.escape import Method


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


PLANS = plans(quick=Plan(20, 2), paper=Plan(20, 20))


def saddle_scaling(plan: Plan, seed: int) -> Result:
    """Escape times over ε for four depths and four bottlenecks; nothing is random, so the seed changes nothing."""
    epsilon = np.geomspace(1e-2, 10**-0.75, plan.epsilons)
    chosen = epsilon[np.unique(np.linspace(0, plan.epsilons - 1, plan.networks + 1).round().astype(int))[1:]]
    # The closed forms: (11) with its threshold for balanced networks, (12) with bottlenecks.
    K = {layers: coupling("tanh", layers, _WIDTH) for layers in _LAYERS}
    law = [
        [[balanced_time(K[n], float(e), n, _THRESHOLD) for e in epsilon] for n in _LAYERS],
        [[critical_depth_time(K[_DEPTH], float(e), n, _DEPTH) for e in epsilon] for n in _LAYERS],
    ]
    whole = np.empty((len(_KINDS), len(_LAYERS), len(chosen)))
    for place, number in np.ndindex(whole.shape[:2]):
        layers = _LAYERS[number]
        scales = [bottleneck_scales(float(e), layers, (layers, _DEPTH)[place]) for e in chosen]
        whole[place, number] = network_times("tanh", np.stack(scales), _WIDTH, _THRESHOLD)
    values = {
        "time": _times(epsilon),
        "law": (("kind", "layers", "epsilon"), np.array(law)),
        "asymptotic_time": _times(np.array(_ASYMPTOTIC)).rename(epsilon="small_epsilon"),
        "network_time": (("kind", "layers", "network_epsilon"), whole),
    }
    attributes = {"width": _WIDTH, "threshold": _THRESHOLD, "depth": _DEPTH}
    data = xarray.Dataset(values, {"network_epsilon": chosen}, attributes)
    rows, worst = [], 0.0
    for (kind, letter), layers in product(_KINDS.items(), _LAYERS):
        own = data.sel(kind=kind, layers=layers)
        below = own["asymptotic_time"].sel(formula="reduced").values
        slope = float(local_slopes(np.array(_ASYMPTOTIC), below)[1][0])
        rows += _rows(own, f"{kind}, {letter} = {layers}", 2 - layers, slope)
        worst = max(worst, abs(slope - (2 - layers)))
    ratio = (data["time"] / data["time"].sel(formula="reduced")).isel(epsilon=0)
    leading, corrected = (np.abs(ratio.sel(formula=name).values - 1).max() for name in _FORMULAS[:2])
    verdict = (
        f"Slopes are -(L-2) and -(r-2) within {worst:.1g} at ε = {_ASYMPTOTIC[0]:g}; at ε = 0.01 the quadrature is "
        f"within {leading:.2%} of the exact scalar flow, with the first correction within {corrected:.2%}."
    )
    return Result(verdict, tuple(rows), data, _draw)


def _times(epsilon: FloatArray) -> xarray.DataArray:
    """Times (kind, epsilon, layers, formula) by the three formulas."""
    times = partial(escape_times, "tanh", epsilon, width=_WIDTH, threshold=_THRESHOLD, formula=_FORMULAS)
    balanced = times(_LAYERS).rename(depth="layers")
    bottleneck = times(_DEPTH, bottleneck=_LAYERS).isel(depth=0, drop=True)
    tables = [balanced.drop_vars("K"), bottleneck.rename(bottleneck="layers")]
    return xarray.concat(tables, dim=xarray.Variable("kind", list(_KINDS)), combine_attrs="drop")


def _rows(own: xarray.Dataset, title: str, law: int, slope: float) -> list[Row]:
    """Slopes in the window and below it, and how far formulas and whole networks are from the exact scalar flow."""
    exact, corrected = (own["time"].sel(formula=name) for name in ("reduced", "corrected"))
    window, first_order = (fit(own.epsilon.values, each.values) for each in (exact, corrected))
    local = local_slopes(own.epsilon.values, exact.values)[1][0]
    bend = (
        f"The local slope at the smallest ε of the window is {local:.4f}; the first-order flow gives "
        f"{first_order.slope:.3f} over the window. What bends the line is the threshold X_1 = 0.3, "
        "to which ε = 0.18 is close."
    )
    off, rest = (np.abs((own["time"].sel(formula=name) / exact).values - 1) for name in _FORMULAS[:2])
    shrinks = (np.diff(off) > 0).all() and off[0] < 0.1 * off[-1]
    first = f"{title}: distance of the quadrature (10), ε = 0.18 to 0.01"
    beside = exact.sel(epsilon=own.network_epsilon.values).values
    distance = np.abs(own["network_time"].values / beside - 1).max()
    second = f"{title}: relative distance of whole networks from the scalar flow"
    note = f"Width {_WIDTH}, {own.sizes['network_epsilon']} values of ε, normalized metric."
    ends, told = (
        f"{off[-1]:.3f} to {off[0]:.2g}",
        f"With the first correction {rest[-1]:.3f} to {rest[0]:.2g}.",
    )
    return [
        Row(f"{title}: slope over the window", float(law), window.slope, window.error, note=bend),
        computed_row(f"{title}: slope at ε = {_ASYMPTOTIC[0]:g}", law, slope, _SLOPE_ERROR),
        claim_row(first, "shrinks to 0", ends, shrinks, told),
        claim_row(second, "< 1e-4", distance, distance < 1e-4, note),
    ]


def _draw(data: xarray.Dataset) -> Figure:
    title = f"Escape time against initial scale: tanh, width {_WIDTH}, until $X_1$ = {_THRESHOLD:g}"
    figure = Figure(title, columns=2, size=(14, 9))
    titles = ("all layers at ε", f"first r of {_DEPTH} layers at ε, the others at 1")
    for (kind, letter), words, law in zip(_KINDS.items(), titles, ("closed form (11)", "law (12)")):
        panel = figure.panel(words, log("ε"), log("escape time s"), legend="right")
        for layers, color in zip(_LAYERS, PALETTE):
            own = data.sel(kind=kind, layers=layers)
            panel.curve(own.network_epsilon, own.network_time, "s", "", INK, size=9, hollow=True)
            label = f"{letter} = {layers}, slope {2 - layers}"
            panel.curve(own.epsilon, own.time.sel(formula="reduced"), "o", label, color)
            panel.curve(own.epsilon, own.law, ":", color=color)
            panel.curve(own.epsilon, own.time.sel(formula="leading"), color=color)
        panel.legend_entry("-", "quadrature (10)")
        panel.legend_entry(":", law)
        panel.legend_entry("s", "whole network", hollow=True)
    formulas = {"reduced": ("o", "exact scalar flow"), "leading": ("-", "quadrature (10)")}
    formulas["corrected"] = ("--", "first correction")
    for kind, letter in _KINDS.items():
        title, y = "the law is reached as ε → 0", log("|local slope - law|", 1e-5, 3)
        panel = figure.panel(title, log("ε"), y, legend="right")
        for layers, color in zip(_LAYERS, PALETTE):
            times = data.time.sel(kind=kind, layers=layers)
            for formula, (style, _) in formulas.items():
                middle, slopes = local_slopes(data.epsilon.values, times.sel(formula=formula).values)
                label = f"{letter} = {layers}" if formula == "reduced" else ""
                panel.curve(middle, np.abs(slopes - (2 - layers)), style, label, color)
        for style, label in formulas.values():
            panel.legend_entry(style, label)
    return figure
