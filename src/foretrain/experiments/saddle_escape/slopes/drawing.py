"""The picture of the slopes of escape times: times and lines, slopes between neighbours, and what moves a slope."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foretrain.experiments.saddle_escape.fits import (
    fit,
    fit_over_seeds,
    local_slopes,
    over_seeds,
    seed_error,
    seed_slopes,
)
from foretrain.support.drawing import BLUE, FAINT, GREEN, INK, ORANGE, new_figure

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
Published = Mapping[int, tuple[float, float]]

INTERVALS = (1, 25, 50)  # steps of the published rate between two looks at the loss
_STEP = 0.01
_THRESHOLD = 0.02
_COLORS = {3: BLUE, 5: ORANGE, 8: GREEN}


def checked_times(times: Array, interval: int) -> Array:
    """What escape times become when the loss is looked at every so many steps."""
    return np.asarray(np.ceil(times / (interval * _STEP)) * interval * _STEP)


def draw(data: xarray.Dataset, published: Published) -> Figure:
    """Above, the times for each number of small layers; below, local slopes, thresholds and looking intervals."""
    title = f"Escape of He-normal tanh networks, depth {data.depth}, width {data.width}, first r layers × ε"
    small = data.small_layers.values.tolist()
    figure, panels = new_figure(title, 2, 3, (15, 8.5))
    for panel, r in zip(panels, small):
        _draw_times(panel, data.sel(small_layers=r), r, published)
    for unused in panels[len(small) : 3]:
        unused.set_visible(False)
    _draw_local(panels[3], data, published)
    _draw_thresholds(panels[4], data)
    _draw_intervals(panels[5], data, published)
    return figure


def _draw_times(panel: Axes, own: xarray.Dataset, r: int, published: Published) -> None:
    epsilon, times = own["epsilon"].values, own["time"].sel(threshold=_THRESHOLD)
    positive = own["signal"].isel(point=0).values > 0
    mean = over_seeds(times.values)
    found = fit_over_seeds(epsilon, times.values)
    for place, (column, sign) in enumerate(zip(times.values.T, positive, strict=True)):
        face = _COLORS[r] if sign else "white"
        shift = 1.02 ** (place - (len(positive) - 1) / 2)
        panel.plot(epsilon * shift, column, "o", color=_COLORS[r], markersize=5, markerfacecolor=face)
    centre = np.exp(np.log(epsilon).mean()), np.exp(np.log(mean).mean())
    law = mean[0] * (epsilon / epsilon[0]) ** (2 - r)
    line = centre[1] * (epsilon / centre[0]) ** published[r][0]
    panel.plot(
        epsilon,
        found.times(epsilon),
        color=INK,
        linewidth=1.5,
        label=f"fit {found.slope:.2f} ± {found.error:.2f}",
    )
    panel.plot(
        epsilon,
        line,
        "--",
        color=INK,
        linewidth=1.2,
        label=f"published {published[r][0]} ± {published[r][1]}",
    )
    panel.plot(epsilon, law, ":", color=FAINT, linewidth=1.6, label=f"law {2 - r}")
    place = int(own["descent_point"])
    descent = own["descent_time"].values
    panel.plot(
        np.full(len(descent), epsilon[place]),
        descent,
        "x",
        color=INK,
        markersize=8,
        label="SGD, rate 0.01, batch 512",
    )
    panel.plot([], [], "o", color=_COLORS[r], label="flow, γ(0) > 0")
    panel.plot([], [], "o", color=_COLORS[r], markerfacecolor="white", label="flow, γ(0) < 0")
    panel.set(xscale="log", yscale="log", xlabel="ε", ylabel="escape time, learning rate × steps")
    panel.set_xticks(epsilon[::2], [f"{each:.2g}" for each in epsilon[::2]])
    panel.set_xticks([], minor=True)
    panel.set_title(f"r = {r}: time until loss < {_THRESHOLD:g}", fontsize=11)
    panel.legend(frameon=False, fontsize=8.5, loc="lower left")


def _draw_local(panel: Axes, data: xarray.Dataset, published: Published) -> None:
    for r in data.small_layers.values.tolist():
        own = data.sel(small_layers=r)
        times = over_seeds(own["time"].sel(threshold=_THRESHOLD).values)
        panel.plot(*local_slopes(own["epsilon"].values, times), "o-", color=_COLORS[r], label=f"r = {r}")
        ends = own["epsilon"].values[[0, -1]]
        panel.plot(ends, [2 - r] * 2, ":", color=_COLORS[r], linewidth=1.6)
        panel.plot(ends, [published[r][0]] * 2, "--", color=_COLORS[r], linewidth=1.2)
    panel.plot([], [], "--", color=INK, label="published fit")
    panel.plot([], [], ":", color=INK, label="law 2 - r")
    panel.set(xscale="log", xlabel="ε", ylabel="slope between neighbours")
    panel.set_title("The windows are not asymptotic", fontsize=11)
    panel.legend(frameon=False, fontsize=8.5, ncols=2)


def _draw_thresholds(panel: Axes, data: xarray.Dataset) -> None:
    thresholds = data.threshold.values.tolist()
    for place, r in enumerate(data.small_layers.values.tolist()):
        own = data.sel(small_layers=r)
        base = own["time"].sel(threshold=_THRESHOLD).values
        shifts = [
            seed_slopes(own["epsilon"].values, own["time"].sel(threshold=level).values / base)
            for level in thresholds
        ]
        _draw_points(panel, place, np.mean(shifts, axis=1), np.array(list(map(seed_error, shifts))), r)
    panel.axhspan(-0.08, 0.08, color=FAINT, alpha=0.3, linewidth=0, label="published bound")
    panel.set(xlabel="loss that counts as escaped", ylabel="fitted slope less that at 0.02")
    panel.set_xticks(range(len(thresholds)), [f"{level:g}" for level in thresholds])
    panel.set_title("Slopes depend on the threshold", fontsize=11)
    panel.legend(frameon=False, fontsize=8.5)


def _draw_intervals(panel: Axes, data: xarray.Dataset, published: Published) -> None:
    for place, r in enumerate(data.small_layers.values.tolist()):
        own = data.sel(small_layers=r)
        times = own["time"].sel(threshold=_THRESHOLD).values
        fits = [fit(own["epsilon"].values, over_seeds(checked_times(times, each))) for each in INTERVALS]
        slope, error = published[r]
        errors = [np.hypot(error, found.error) for found in fits]
        _draw_points(panel, place, np.array([found.slope - slope for found in fits]), np.array(errors), r)
    panel.axhline(0, color=INK, linewidth=1)
    panel.set(xlabel="steps between two looks at the loss", ylabel="fitted slope less the published one")
    panel.set_xticks(range(len(INTERVALS)), [str(interval) for interval in INTERVALS])
    panel.set_title("How often one looks matters too (combined errors)", fontsize=11)
    panel.legend(frameon=False, fontsize=8.5)


def _draw_points(panel: Axes, place: int, values: Array, errors: Array, r: int) -> None:
    """Side by side, so that the error bars of different r can be told apart."""
    where = np.arange(len(values)) + 0.08 * (place - 1)
    panel.errorbar(where, values, errors, fmt="o", color=_COLORS[r], capsize=3, label=f"r = {r}")
