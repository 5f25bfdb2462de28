"""The picture of a phase diagram: where nearby inputs merge or part, over how many layers, and the edge between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from foretrain.support.drawing import BLUE, FAINT, INK, ORANGE, RED, new_figure

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

_DEPTHS = (1.0, 3.0, 10.0, 30.0, 100.0)
_CONTOURS = (3.0, 10.0, 30.0)
# The colour follows the square root of 1/depth, so that the region next to the edge shows its structure.
_TICKS = [*(-(d**-0.5) for d in _DEPTHS), 0.0, *(d**-0.5 for d in reversed(_DEPTHS))]
_TICK_LABELS = [*(f"{d:g}" for d in _DEPTHS), "∞", *(f"{d:g}" for d in reversed(_DEPTHS))]
_UNBOUNDED = ("exploding", "cycling")  # phases without a fixed point that is reached
_LINES = {"perpendicular": ("-", r"$\chi_\perp = 1$"), "parallel": ((0, (5, 2)), r"$\chi_\parallel = 1$")}


def phase_figure(diagram: xarray.Dataset) -> Figure:
    """Draw what :func:`foretrain.theory.criticality.phase_diagram.phase_diagram` returns.

    Blue: nearby inputs merge; orange: they part; the darker, the fewer layers it takes. Hatched: the kernel grows
    without bound. White between them is the edge, with the critical point on it.
    """
    name, gamma = diagram.attrs["activation"], diagram.attrs["gamma"]
    title = f"Phases of {name}" + (f", skip connection γ = {gamma:g}" if gamma else "")
    figure, (panel,) = new_figure(title, 1, 1, (7.2, 5.0))
    _shade(figure, panel, diagram)
    _draw_contours(panel, diagram)
    unbounded = _draw_unbounded(panel, diagram)
    _draw_lines(panel, diagram)
    _draw_critical_points(panel, diagram)
    panel.set_xlabel("weight variance  $C_W$")
    panel.set_ylabel("bias variance  $C_b$")
    panel.grid(False)
    handles, labels = panel.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True)) | unbounded
    figure.legend(
        unique.values(), unique.keys(), loc="outside lower center", ncols=3, frameon=False, fontsize=9
    )
    return figure


def _shade(figure: Figure, panel: Axes, diagram: xarray.Dataset) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("phases", [BLUE, "#ffffff", ORANGE])
    growth = np.sign(diagram["chi_perpendicular"].values - 1)
    shade = growth / np.sqrt(np.maximum(diagram["depth_perpendicular"].values, 1.0))
    shade = np.where(np.isin(diagram["phase"].values, _UNBOUNDED), np.nan, shade)
    C_W, C_b = diagram["C_W"].values, diagram["C_b"].values
    mesh = panel.pcolormesh(
        C_W, C_b, shade, cmap=colours, vmin=-1, vmax=1, shading="gouraud", rasterized=True, zorder=0
    )
    bar = figure.colorbar(mesh, ax=panel, ticks=_TICKS, pad=0.02, aspect=28)
    bar.ax.set_yticklabels(_TICK_LABELS, fontsize=8)
    bar.set_label("nearby inputs merge  ←  layers per factor e  →  part", fontsize=9)
    bar.outline.set_visible(False)


def _draw_contours(panel: Axes, diagram: xarray.Dataset) -> None:
    chi = diagram["chi_perpendicular"].values
    usable = np.isfinite(diagram["K"].values) & (chi > 0)
    rate = np.where(usable, np.log(np.where(usable, chi, 1.0)), np.nan)
    for sign in (-1, 1):
        levels = sorted(sign / d for d in _CONTOURS)
        inside = (np.nanmin(rate) < levels[-1]) and (np.nanmax(rate) > levels[0])
        if not inside:
            continue
        lines = panel.contour(
            diagram["C_W"],
            diagram["C_b"],
            rate,
            levels,
            colors=INK,
            linewidths=0.6,
            alpha=0.55,
            linestyles="solid",
        )
        panel.clabel(lines, fmt=lambda value: f"{abs(1 / value):.0f}", fontsize=7)


def _draw_unbounded(panel: Axes, diagram: xarray.Dataset) -> dict[str, Patch]:
    """Hatch behind the colours, seen where no fixed point is reached; what the legend needs for it."""
    from matplotlib.patches import Patch, Rectangle

    from foretrain.theory.criticality.phase_diagram import PHASES

    present = [PHASES[name] for name in _UNBOUNDED if (diagram["phase"] == name).any()]
    if not present:
        return {}
    C_W, C_b = diagram["C_W"].values, diagram["C_b"].values
    behind = Rectangle((C_W[0], C_b[0]), C_W[-1] - C_W[0], C_b[-1] - C_b[0], zorder=-1)
    for patch in (behind, sample := Patch()):
        patch.set(facecolor="#f1f1f1", edgecolor=FAINT, hatch="////", linewidth=0.0)
    panel.add_patch(behind)
    return {" or ".join(present): sample}


def _draw_lines(panel: Axes, diagram: xarray.Dataset) -> None:
    if "scale-invariant" in diagram["critical_kind"].values:
        # Both lines are one: a weight variance, whatever the bias variance.
        label = r"$\chi_\perp = \chi_\parallel = 1$"
        panel.axvline(float(diagram["critical_C_W"][0]), color=INK, linewidth=1.6, label=label, zorder=3)
    else:
        for line, (style, label) in _LINES.items():
            C_W, C_b = (diagram[key].sel(line=line).values for key in ("line_C_W", "line_C_b"))
            panel.plot(C_W, C_b, linestyle=style, color=INK, linewidth=1.6, label=label, zorder=3)
    bottom, top = float(diagram["C_b"].min()), float(diagram["C_b"].max())
    panel.set_xlim(float(diagram["C_W"].min()), float(diagram["C_W"].max()))
    panel.set_ylim(bottom - 0.03 * (top - bottom), top)


def _draw_critical_points(panel: Axes, diagram: xarray.Dataset) -> None:
    for i, stability in enumerate(diagram["critical_stability"].values):
        attracts = stability != "unstable"
        panel.plot(
            diagram["critical_C_W"].values[i],
            diagram["critical_C_b"].values[i],
            marker="*" if attracts else "o",
            markersize=16 if attracts else 7,
            markerfacecolor=RED if attracts else "white",
            markeredgecolor="white" if attracts else RED,
            linestyle="none",
            zorder=5,
            label="critical point" + ("" if attracts else ", unstable"),
        )
