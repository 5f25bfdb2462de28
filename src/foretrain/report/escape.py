"""The picture of escape times: how the plateau grows as the initial scale shrinks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from foretrain.support.drawing import FAINT, INK, PALETTE, new_figure

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from foretrain.saddle.escape.entry import Method

METHODS: dict[Method, str] = {
    "leading": "leading order",
    "corrected": "first correction",
    "reduced": "exact scalar flow",
}
"""Ways to an escape time, from the roughest on, and what tables and legends call them."""

_STYLES: dict[str, dict[str, Any]] = {
    "leading": {"linestyle": "--", "linewidth": 1.3},
    "corrected": {"linestyle": "-", "linewidth": 1.6},
    "reduced": {"linestyle": "none", "marker": "o", "markersize": 5, "markerfacecolor": "white"},
}


def escape_figure(table: xarray.DataArray, rate: float | None = None) -> Figure:
    """Draw what ``foretrain.saddle.escape_times`` returns over epsilon, in steps if a learning rate is given."""
    table = table if "bottleneck" in table.dims else table.expand_dims(bottleneck=[0], axis=2)
    title = f"Escape from the saddle: {table.attrs['activation']}, width {table.attrs['width']}"
    figure, (panel,) = new_figure(title, 1, 1, (7.6, 5.2))
    pairs = [(int(L), int(r)) for L in table.depth for r in table.bottleneck]
    drawn = [pair for pair in pairs if np.isfinite(table.sel(depth=pair[0], bottleneck=pair[1])).any()]
    for place, (depth, bottleneck) in enumerate(drawn):
        own = table.sel(depth=depth, bottleneck=bottleneck) / (rate or 1.0)
        _draw_network(panel, own, depth, bottleneck, PALETTE[place % len(PALETTE)])
    for method, word in METHODS.items():
        if method in table.formula:
            panel.plot([], [], color=INK, label=word, **_STYLES[method])
    unit = "steps of gradient descent" if rate else _unit(str(table.attrs["time"]))
    panel.set(xscale="log", yscale="log", xlabel="initial scale ε")
    panel.set_ylabel(f"until $X_1$ = {table.attrs['threshold']:g}, {unit}")
    panel.grid(True, which="major", color="#e6e6e6", linewidth=0.6)
    panel.legend(frameon=False, fontsize=9, ncols=2)
    return figure


def _draw_network(panel: Axes, times: xarray.DataArray, depth: int, bottleneck: int, colour: str) -> None:
    for method in map(str, times.formula.values):
        own = times.sel(formula=method)
        panel.plot(own.epsilon, own, color=colour, **_STYLES[method])
    small = bottleneck or depth
    law = {1: "constant", 2: "~ log(1/ε)"}.get(small, f"~ $ε^{{-{small - 2}}}$")
    label = f"L = {depth}" + (f", {bottleneck} small" if bottleneck else "") + f": {law}"
    panel.plot([], [], color=colour, linewidth=3, label=label)


def _unit(told: str) -> str:
    """The axis label for a unit of time, from its description, which begins with its letter."""
    return "time s (learning rate × steps)" if told.startswith("s") else "time t (= s / width)"


def trajectory_figure(flow: xarray.Dataset, threshold: float) -> Figure:
    """Draw the amplitudes of all layers over time, as ``foretrain.saddle.reduced_flow`` returns them."""
    figure, (panel,) = new_figure("Amplitudes of the layers on the symmetric manifold", 1, 1, (7.6, 4.8))
    for place, layer in enumerate(flow.layer.values):
        panel.plot(
            flow.time, flow.X.sel(layer=layer), color=PALETTE[place % len(PALETTE)], label=f"$X_{{{layer}}}$"
        )
    panel.axhline(threshold, color=FAINT, linewidth=1, linestyle=":")
    panel.set(xlabel=_unit(str(flow.time.attrs["unit"])), ylabel="amplitude")
    panel.legend(frameon=False, fontsize=9)
    return figure
