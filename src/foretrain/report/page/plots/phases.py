"""The phase diagram of an activation with the layers of a network in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from foretrain.report.page.numbers import number
from foretrain.report.page.plots.plot import INK, RED, Plot, Trace, axis
from foretrain.report.page.table import Table

if TYPE_CHECKING:
    import xarray

    from foretrain.doctor.mlp.chain import MlpChain

_POINTS = 48
_SPAN = (4.0, 0.25)  # of C_W and C_b at least
_MARGIN = 1.25  # beyond the layer that is farthest out
_DEPTHS = (1.0, 3.0, 10.0, 100.0)
_SCALE = [[0, "var(--low)"], [0.5, "var(--middle)"], [1, "var(--high)"]]


def phase_plot(chain: MlpChain, wanted: xarray.Dataset | None) -> Plot:
    """Every layer at its (C_W, C_b), and where it should be, over the phases of the activation (section 5.3)."""
    from foretrain.theory.criticality.phase_diagram import phase_diagram

    C_W, C_b = np.asarray(chain.C_W), np.asarray(chain.C_b)
    span = [
        max(least, _MARGIN * float(values.max())) for least, values in zip(_SPAN, (C_W, C_b), strict=True)
    ]
    diagram = phase_diagram(chain.activation, (0.0, span[1]), (0.0, span[0]), points=_POINTS)
    traces = [
        _phases(diagram),
        *_edges(diagram, span),
        *_critical(diagram, span),
        *([] if wanted is None else [_wanted(wanted, span)]),
        _layers(chain, C_W, C_b),
    ]
    layout = {
        "xaxis": axis("weight variance C_W", range=[0, span[0]], zeroline=False),
        "yaxis": axis("bias variance C_b", range=[-0.04 * span[1], span[1]], zeroline=False),
        "legend": {"y": 1.02},
    }
    return Plot(
        "phases",
        f"Where the layers lie among the phases of {chain.activation.label}",
        _caption(chain, C_W, C_b, diagram),
        traces,
        layout,
        Table(
            "Variances of every layer",
            ("Layer", "Module", "C_W", "C_b"),
            [(i + 1, name, w, b) for i, (name, w, b) in enumerate(zip(chain.names, C_W, C_b, strict=True))],
        ),
        height=430,
        wide=True,
    )


def _phases(diagram: xarray.Dataset) -> Trace:
    """Blue where nearby inputs merge, orange where they part; the stronger, the fewer layers it takes."""
    growth = np.sign(diagram["chi_perpendicular"].values - 1)
    shade = growth / np.sqrt(np.maximum(diagram["depth_perpendicular"].values, 1.0))
    ticks = [*(-(d**-0.5) for d in _DEPTHS), *(d**-0.5 for d in reversed(_DEPTHS))]
    return {
        "type": "heatmap",
        "name": "phases",
        "x": diagram["C_W"].values,
        "y": diagram["C_b"].values,
        "z": np.round(shade, 4),
        "zmin": -1,
        "zmax": 1,
        "zsmooth": "best",
        "colorscale": _SCALE,
        "opacity": 0.85,
        "colorbar": {
            "title": {"text": "layers per factor e:<br>merge (below), part (above)", "side": "right"},
            "tickvals": ticks,
            "ticktext": [f"{d:g}" for d in (*_DEPTHS, *reversed(_DEPTHS))],
            "thickness": 12,
            "outlinewidth": 0,
        },
        "hoverinfo": "skip",
    }


def _edges(diagram: xarray.Dataset, span: list[float]) -> list[Trace]:
    if "scale-invariant" in diagram["critical_kind"].values:
        x = float(diagram["critical_C_W"][0])
        return [_edge("edge: χ⊥ = χ∥ = 1", [x, x], [0, span[1]], "solid")]
    words = {"perpendicular": ("χ⊥ = 1", "solid"), "parallel": ("χ∥ = 1", "dash")}
    return [_edge(text, *_inside(diagram, line, span), dash) for line, (text, dash) in words.items()]


def _inside(diagram: xarray.Dataset, line: str, span: list[float]) -> tuple[Any, Any]:
    C_W, C_b = (diagram[key].sel(line=line).values for key in ("line_C_W", "line_C_b"))
    inside = (C_b >= -0.1 * span[1]) & (C_b <= 1.5 * span[1]) & (1.5 * span[0] >= C_W)
    return np.where(inside, C_W, np.nan), np.where(inside, C_b, np.nan)


def _edge(name: str, x: Any, y: Any, dash: str) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": x,
        "y": y,
        "line": {"color": INK, "width": 2, "dash": dash},
        "hoverinfo": "name",
    }


def _critical(diagram: xarray.Dataset, span: list[float]) -> list[Trace]:
    found = [
        (float(w), float(b), str(stability))
        for w, b, stability in zip(
            diagram["critical_C_W"].values,
            diagram["critical_C_b"].values,
            diagram["critical_stability"].values,
            strict=True,
        )
        if stability != "unstable" and w <= span[0]
    ]
    if not found:
        return []
    marker = {"symbol": "star", "size": 17, "color": RED, "line": {"color": "var(--surface)", "width": 1.5}}
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "critical point",
            "x": [w for w, _, _ in found],
            "y": [b for _, b, _ in found],
            "marker": marker,
            "hovertemplate": "critical: C_W = %{x:.4g}, C_b = %{y:.4g}<extra></extra>",
        }
    ]


def _layers(chain: MlpChain, C_W: Any, C_b: Any) -> Trace:
    few = len(C_W) <= 6
    return {
        "type": "scatter",
        "mode": "markers+text" if few else "markers",
        "name": "layers of this network",
        "x": C_W,
        "y": C_b,
        "text": [str(i + 1) for i in range(len(C_W))],
        "textposition": "top center",
        "customdata": list(chain.names),
        "marker": {
            "symbol": "circle",
            "size": 11,
            "color": INK,
            "line": {"color": "var(--surface)", "width": 2},
        },
        "hovertemplate": "layer %{text} (%{customdata}): C_W = %{x:.4g}, C_b = %{y:.4g}<extra></extra>",
        "cliponaxis": False,
    }


def _wanted(data: xarray.Dataset, span: list[float]) -> Trace:
    C_W, C_b = data["C_W_wanted"].values, data["C_b_wanted"].values
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "advised, hidden layers",
        "x": np.minimum(C_W[1:], span[0]),
        "y": C_b[1:],
        "text": [str(i) for i in data["layer"].values[1:]],
        "marker": {"symbol": "circle-open", "size": 13, "color": INK, "line": {"width": 2}},
        "hovertemplate": "layer %{text}: advised C_W = %{x:.4g}, C_b = %{y:.4g}<extra></extra>",
        "cliponaxis": False,
    }


def _caption(chain: MlpChain, C_W: Any, C_b: Any, diagram: xarray.Dataset) -> str:
    where = [
        f"C_W = {number(w)}, C_b = {number(b)}"
        for w, b, stability in zip(
            diagram["critical_C_W"].values,
            diagram["critical_C_b"].values,
            diagram["critical_stability"].values,
            strict=True,
        )
        if stability != "unstable"
    ]
    here = (
        f"The {len(C_W)} layers of weights have C_W from {number(C_W.min())} to {number(C_W.max())} "
        f"and C_b from {number(C_b.min())} to {number(C_b.max())}."
    )
    told = f" {chain.activation.label} is critical at {'; '.join(where)}." if where else ""
    return f"{here}{told} Blue: nearby inputs merge with depth; orange: they part."
