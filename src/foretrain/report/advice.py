"""The picture of an advice: information against depth over width, and the plane of width and depth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from foretrain.support.drawing import BLUE, FAINT, GREEN, INK, ORANGE, RED, new_figure
from foretrain.theory.finite_width import LARGE, SMALL

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from foretrain.theory.advice import Advice

_BANDS = ((GREEN, "inside"), (ORANGE, "at the edge"), (RED, "outside"))


def advice_figure(advice: Advice, curves: xr.Dataset) -> Figure:
    """Left the truncated and the exact information, right which depths the expansion in 1/n reaches by width."""
    skip = f", γ = {advice.gamma:g}" if advice.gamma else ""
    title = f"{advice.criticality.activation.label}: depth for a width of {advice.width}{skip}"
    figure, (information, plane) = new_figure(title, 1, 2, (13.0, 5.0))
    _draw_information(information, advice, curves)
    _draw_plane(plane, advice)
    return figure


def _draw_information(panel: Axes, advice: Advice, curves: xr.Dataset) -> None:
    r, printed = curves["r"].values, curves["printed"].values
    exact = curves["exact"].values if "exact" in curves else curves["drawn"].values
    top = 1.15 * float(max(exact.max(), printed.max()))
    _shade(panel, advice, r[-1])
    valid = printed >= 0
    panel.plot(r[valid], printed[valid], color=BLUE, linewidth=2.2, label="series to third order, (A.71)")
    panel.plot(
        r[~valid], printed[~valid], ":", color=BLUE, linewidth=1.4, label="the same where it is invalid"
    )
    if "complete" in curves:
        panel.plot(
            r, curves["complete"], "--", color=BLUE, linewidth=1.2, label="with all terms of third order"
        )
    if "exact" in curves:
        panel.plot(r, exact, color=INK, linewidth=2.2, label="exact, deep and wide")
    else:
        panel.errorbar(
            curves["depth"] / curves.attrs["drawn_width"],
            exact,
            2 * curves["drawn_error"],
            fmt="o-",
            color=INK,
            markersize=5,
            label=f"random networks of width {curves.attrs['drawn_width']}, two errors",
        )
    panel.axvline(advice.best_ratio, color=INK, linewidth=1.0, linestyle=(0, (2, 2)))
    panel.annotate(
        f"$r^*$ = {advice.best_ratio:.3g}",
        (advice.best_ratio, 0.97 * top),
        (4, 0),
        textcoords="offset points",
        va="top",
        fontsize=10,
    )
    panel.axhline(0, color=FAINT, linewidth=0.8)
    panel.set(xlim=(0, r[-1]), ylim=(-0.25 * top, top), xlabel="depth over width, $r = L/n$", ylabel="nats")
    panel.set_title(f"Information between {_halves(advice.n_out)}", fontsize=11, loc="left")
    panel.legend(framealpha=0.75, edgecolor="none", fontsize=9, loc="upper left", bbox_to_anchor=(0.0, 0.92))


def _halves(outputs: int) -> str:
    """Of how many outputs information is drawn; one or three have no halves, only a formula that can be read so."""
    if outputs % 2 == 0:
        return f"{outputs // 2} and {outputs // 2} outputs"
    if outputs == 1:
        return "halves of one output, in the sense of (A.73)"
    return f"halves of {outputs} outputs, in the sense of (A.73)"


def _shade(panel: Axes, advice: Advice, last: float) -> None:
    edges = [0.0, advice.depths.small / advice.width, advice.depths.large / advice.width, last]
    for low, high, (color, _) in zip(edges, edges[1:], _BANDS):
        if low < last:
            panel.axvspan(low, min(high, last), color=color, alpha=0.10, linewidth=0)


def _draw_plane(panel: Axes, advice: Advice) -> None:
    """Every ratio is a function of the layer over the width, so that one width tells about all."""
    depth = np.unique(np.geomspace(2, 4 * max(advice.depths.large, advice.depth or 2, 8), 160).round())
    needed = advice.depths.largest(depth) * advice.width
    small, large = needed / SMALL, needed / LARGE
    widths = advice.width * np.array([0.1, 10.0])
    for low, high, (color, label) in zip((small, large, 0 * large), (1e12 + 0 * small, small, large), _BANDS):
        panel.fill_betweenx(depth, low, high, color=color, alpha=0.16, linewidth=0, label=label)
    panel.plot(small, depth, color=GREEN, linewidth=1.6)
    panel.plot(large, depth, color=RED, linewidth=1.6)
    panel.plot(
        widths,
        advice.best_ratio * widths,
        color=INK,
        linestyle=(0, (2, 2)),
        linewidth=1.4,
        label="$L = r^* n$",
    )
    panel.axvline(advice.width, color=FAINT, linewidth=0.8)
    if advice.depth is not None:
        panel.plot([advice.width], [advice.depth], "*", color=INK, markersize=15, label="asked about")
    panel.set(
        xscale="log",
        yscale="log",
        xlim=tuple(widths),
        ylim=(2, depth[-1]),
        xlabel="width $n$",
        ylabel="depth $L$",
    )
    name = advice.depths.large_criterion
    panel.set_title(
        f"Where all ratios of order 1/n are small; {name} is the largest", fontsize=11, loc="left"
    )
    panel.legend(framealpha=0.9, edgecolor="white", fontsize=9, loc="upper left")
