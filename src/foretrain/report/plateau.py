"""The picture of a plateau: predicted and real losses of the given and the rescaled network, and their layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from foretrain.support.drawing import BLUE, FAINT, INK, ORANGE, new_mosaic

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {"given": BLUE, "rescaled": ORANGE}


def plateau_figure(found: xarray.Dataset, trained: xarray.Dataset | None = None) -> Figure:
    """Draw what ``Plateau.to_dataset`` and ``PlateauVerification.to_dataset`` return."""
    figure, panels = new_mosaic(
        "Plateau of a small initialisation", [["loss", "loss", "layers"]], [1.0], (12, 4.8)
    )
    draw_losses(panels["loss"], found, trained)
    _draw_layers(panels["layers"], found)
    return figure


def draw_losses(panel: Axes, found: xarray.Dataset, trained: xarray.Dataset | None) -> None:
    """Flows as lines, real descent as points, and the steps predicted for the escape."""
    for name in map(str, found.network.values):
        colour = _COLOURS[name]
        steps, losses = found[f"{name}_step"].values, found[f"{name}_loss"].values
        shown = np.append(1.0, steps[steps > 1])  # the axis is logarithmic
        panel.plot(
            shown, np.interp(shown, steps, losses), color=colour, linewidth=1.8, label=f"{name}: predicted"
        )
        escape = float(found.escape.sel(network=name))
        if np.isfinite(escape):
            panel.axvline(max(escape, 1), color=colour, linewidth=0.9, linestyle=":")
        if trained is not None and name in trained.network.values:
            _draw_descent(panel, trained.sel(network=name), name, colour)
    panel.axhline(found.attrs["level"], color=FAINT, linewidth=1, linestyle="--", label="loss at the saddle")
    panel.axhline(found.attrs["threshold"], color=INK, linewidth=0.9, linestyle=":", label="escaped below")
    panel.set(xscale="log", xlabel="step", ylabel=f"loss over all data ({found.attrs['loss']})")
    panel.set_title("flow (lines) and real descent (points)", fontsize=11)
    panel.legend(frameon=False, fontsize=9)


def _draw_descent(panel: Axes, runs: xarray.Dataset, name: str, colour: str) -> None:
    """All runs, thinned to what can be told apart on a logarithmic axis."""
    steps = runs.step.values
    known = np.flatnonzero(steps >= 1)
    last = max(steps[known[-1]], 2)
    wanted = np.concatenate([np.geomspace(1, last, 30), np.linspace(1, last, 30)])  # the fall is at the end
    shown = known[np.unique(np.searchsorted(steps[known], wanted).clip(max=len(known) - 1))]
    for place, losses in enumerate(runs.loss.values):
        panel.plot(
            steps[shown],
            losses[shown],
            linestyle="none",
            marker="o",
            markersize=4,
            markerfacecolor="white",
            color=colour,
            label=f"{name}: real descent" if place == 0 else None,
        )


def _draw_layers(panel: Axes, found: xarray.Dataset) -> None:
    """Scales of all layers; arrows are the rescaling that is advised."""
    places = np.arange(found.sizes["layer"])
    relative, factor = found.relative_scale.values, found.factor.values
    colours = [BLUE if small else FAINT for small in found.at_bottleneck.values]
    panel.scatter(relative, places, color=colours, s=36, zorder=3)
    for place, scale, by in zip(places, relative, factor):
        if by != 1:
            panel.annotate(
                "",
                (scale * by, place),
                (scale, place),
                arrowprops={"arrowstyle": "->", "color": ORANGE, "linewidth": 1.4},
            )
            panel.annotate(
                f"× {by:.3g}",
                (scale * by**0.5, place),
                (0, 4),
                textcoords="offset points",
                color=ORANGE,
                fontsize=9,
                ha="center",
            )
    panel.axvline(1, color=INK, linewidth=0.9, linestyle=":")
    panel.set(xscale="log", xlabel="norm over natural norm", xlim=(0.7 * min(relative.min(), 0.5), 2))
    _plain_ticks(panel)
    panel.set_yticks(places, [str(name) for name in found.layer.values])
    panel.set_ylim(len(places) - 0.5, -0.6)
    panel.set_title("weight matrices" + (", and the advice" if (factor != 1).any() else ""), fontsize=11)


def _plain_ticks(panel: Axes) -> None:
    """1, 2 and 5 of each decade, written as decimals."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    panel.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    panel.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    panel.xaxis.set_minor_locator(NullLocator())
