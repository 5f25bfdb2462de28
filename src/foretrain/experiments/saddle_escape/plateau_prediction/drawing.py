"""The picture of predicted plateaus: curves of four networks, and predicted against measured steps of all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from foretrain.support.drawing import BLUE, FAINT, INK, ORANGE, new_mosaic

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {"given": BLUE, "rescaled": ORANGE}
_CURVES = 4


def draw(data: xarray.Dataset) -> Figure:
    """Loss curves of evenly chosen networks beside the scatter of all escape steps."""
    title = f"Plateaus of real networks: gradient flow against descent in batches of {data.attrs['batch']}"
    places = np.unique(np.linspace(0, data.sizes["case"] - 1, _CURVES).round().astype(int))
    names = [f"curve {number}" for number in range(len(places))]
    half = (len(names) + 1) // 2
    upper, lower = names[:half], (names[half:] + names[-1:])[:half] if len(names) > 1 else names[:half]
    layout = [[*upper, "steps"], [*lower, "steps"]]
    figure, panels = new_mosaic(title, layout, [1.0, 1.0], (14.5, 7.6))
    for name, place in zip(names, places):
        _draw_curves(panels[name], data.isel(case=int(place)))
    panels[names[-1]].legend(frameon=False, fontsize=8.5, loc=(0.01, 0.12))
    _draw_steps(panels["steps"], data)
    return figure


def _draw_curves(panel: Axes, own: xarray.Dataset) -> None:
    for variant, colour in _COLOURS.items():
        one = own.sel(variant=variant)
        panel.plot(one.flow_step, one.flow_loss, color=colour, linewidth=1.8, label=f"{variant}, predicted")
        shown = slice(None, None, 3)  # as many as can be told apart
        panel.plot(
            one.descent_step[shown],
            one.descent_loss[shown],
            linestyle="none",
            marker="o",
            markersize=3.6,
            markerfacecolor="white",
            color=colour,
            label=f"{variant}, real descent",
        )
    panel.axhline(float(own.level), color=FAINT, linestyle="--", linewidth=1, label="loss at the saddle")
    panel.axhline(float(own.threshold), color=INK, linestyle=":", linewidth=0.9, label="escaped below")
    panel.set(xscale="log", xlabel="step", ylabel="loss over all data")
    panel.set_title(str(own.case.values), fontsize=10)


def _draw_steps(panel: Axes, data: xarray.Dataset) -> None:
    ends = np.array([0.6 * np.nanmin(data.predicted), 1.6 * np.nanmax(data.predicted)])
    panel.fill_between(
        ends, 0.8 * ends, 1.2 * ends, color=FAINT, alpha=0.25, linewidth=0, label="within 20 %"
    )
    panel.plot(ends, ends, color=INK, linewidth=1)
    for variant, colour in _COLOURS.items():
        one = data.sel(variant=variant)
        mean, spread = one.measured.mean("run"), one.measured.std("run")
        panel.errorbar(
            one.predicted,
            mean,
            spread,
            fmt="o",
            color=colour,
            markersize=6,
            markerfacecolor="white",
            label=variant,
        )
    panel.set(
        xscale="log", yscale="log", xlabel="predicted escape step", ylabel="escape step of real descent"
    )
    panel.set_title("all networks", fontsize=10)
    panel.legend(frameon=False, fontsize=9)
