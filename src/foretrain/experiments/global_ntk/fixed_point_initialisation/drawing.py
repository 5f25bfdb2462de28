"""The picture of figure 8: trajectories for 0, 1 and 2 added points, and what becomes of them as the gain grows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from foretrain.experiments.global_ntk.fixed_point_initialisation.dynamics import (
    ADDED,
    FAMILIES,
    SHOWN_GAIN,
    SIZE,
    predicted_loss,
    told,
)
from foretrain.support.drawing import BLUE, FAINT, GREEN, INK, ORANGE, RED, new_mosaic

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLORS = {0: INK, 1: BLUE, 2: ORANGE, 3: GREEN}


def draw(data: xarray.Dataset) -> Figure:
    """Trajectories for 0, 1 and 2 added points, attractors and Lyapunov exponents against the gain."""
    layout = [[f"{family} {added}" for added in range(3)] for family in FAMILIES]
    layout.append(["counts basis", "counts signs", "lyapunov"])
    title = f"Added fixed points of h ← W tanh(h), {data.attrs['units']} units, k = {SIZE}"
    figure, panels = new_mosaic(title, layout, [1, 1, 1], (13, 11.5))
    for family in FAMILIES:
        for added in range(3):
            _draw_trajectories(panels[f"{family} {added}"], data, family, added)
        _draw_counts(panels[f"counts {family}"], data, family)
    _draw_exponents(panels["lyapunov"], data)
    return figure


def _draw_trajectories(panel: Axes, data: xarray.Dataset, family: str, added: int) -> None:
    paths = data.trajectory.sel(family=family).isel(shown_added=added).values
    for path in paths:
        panel.plot(path[:, 0], path[:, 1], color=_COLORS[added], linewidth=0.7, alpha=0.45)
    ends = f"after {paths.shape[1] - 1} steps"
    panel.plot(*paths[:, -1].T, "o", color=RED, markersize=5, zorder=3, label=ends)
    points = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])[[[], [0, 1], [0, 1, 2, 3]][added]]
    panel.plot(
        *points.reshape(-1, 2).T, "x", color=INK, markersize=9, markeredgewidth=2, label="added points"
    )
    reach = 1.15 * max(1.1, float(np.abs(paths[:, 10:]).max()))
    panel.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
    panel.set(xlabel="along point 1", ylabel="along point 2")
    rests = " (never rests)" if not added and SHOWN_GAIN[family] > 1 else ""
    panel.set_title(f"{told(family)}, gain {SHOWN_GAIN[family]:g}: {added} added{rests}", fontsize=11)
    if added == 2 and family == "basis":
        panel.legend(fontsize=8, loc="center", framealpha=0.85, edgecolor="none")


def _draw_counts(panel: Axes, data: xarray.Dataset, family: str) -> None:
    own = data.sel(family=family)
    for added in ADDED:
        counts = own.attractors.sel(added=added).mean("draw")
        panel.plot(own.gain, counts, "o-", color=_COLORS[added], markersize=4, label=f"{added} added")
    predicted = predicted_loss(family, SIZE)
    name = "1" if family == "basis" else "k / tanh k"
    panel.axvline(predicted, color=FAINT, linestyle="--", linewidth=1, label=f"gain {name}")
    panel.set(xlabel="gain: spectral radius of W_perp", ylabel="attractors found", ylim=(-0.4, 8.6))
    panel.set_title(f"{told(family)}: attractors", fontsize=11)
    panel.legend(frameon=False, fontsize=8, loc="upper right")


def _draw_exponents(panel: Axes, data: xarray.Dataset) -> None:
    curves = (
        ("basis", 0, "-", INK, "no points"),
        ("basis", 2, "o", ORANGE, "2 points k e_i"),
        ("signs", 1, "s--", BLUE, "1 point of signs"),
        ("signs", 2, "D--", ORANGE, "2 points of signs"),
    )
    for family, added, style, color, label in curves:
        values = data.lyapunov.sel(family=family, added=added)
        panel.errorbar(
            data.gain,
            values.mean("draw"),
            values.std("draw"),
            fmt=style,
            color=color,
            markersize=5,
            markerfacecolor="white",
            elinewidth=0.8,
            linewidth=1.3,
            label=label,
        )
    panel.axhline(0, color=FAINT, linewidth=1)
    panel.set(xlabel="gain: spectral radius of W_perp", ylabel="largest Lyapunov exponent per step")
    panel.set_title("rest (below 0) or chaos (above)", fontsize=11)
    panel.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(0.0, 0.35))
