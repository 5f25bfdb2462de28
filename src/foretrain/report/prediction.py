"""Predictions of trained networks for the eye: along one input, beside given targets, or test by test."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foretrain.support.drawing import FAINT, INK, PALETTE, new_figure

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

_PANELS = 4  # outputs drawn
_TERMS = ("term_", "mean_wiring", "mean_rest")  # names of what finite width adds
_BARS = 60  # test inputs drawn one by one


def prediction_figure(data: xr.Dataset) -> Figure:
    """The picture of a prediction with its data, as ``foretrain predict --save`` writes it.

    Needs ``mean`` (test, output), ``x`` and ``x_test``; uses ``variance``, ``probabilities``, ``y`` and ``y_test``.
    """
    place = varying_component(data["x"].values, data["x_test"].values)
    classes = "probabilities" in data
    outputs = 1 if classes else min(data.sizes["output"], _PANELS)
    draw = _chosen(data, place)
    shifted = draw is _draw_curve and "infinite_mean" in data
    columns = 2 if outputs == _PANELS and not shifted else outputs
    rows = 2 if shifted else -(-outputs // columns)
    width = 7.0 if outputs == 1 and draw is not _draw_beside else 4.6 * columns
    figure, panels = new_figure(_title(data), rows, columns, (width, 3.9 * rows + 0.5))
    for output, panel in enumerate(panels[:outputs]):
        draw(panel, data, place, output)
        if not classes and data.sizes["output"] > 1:
            panel.set_title(f"output {output}", fontsize=10, loc="left")
        if shifted:
            _draw_shift(panels[outputs + output], data, place, output)
    return figure


def _chosen(data: xr.Dataset, place: int | None) -> Callable[[Axes, xr.Dataset, int | None, int], None]:
    """The kind of panel that suits the data."""
    if "probabilities" in data:
        return _draw_classes
    if place is not None:
        return _draw_curve
    return _draw_beside if "y_test" in data else _draw_sorted


def _title(data: xr.Dataset) -> str:
    """Which networks, and what was done to them."""
    return f"{data.attrs.get('network', '')}\n{data.attrs.get('statement', '')}".strip()


def varying_component(*inputs: Array) -> int | None:
    """The one component in which rows of inputs differ, if there is one."""
    moving = np.flatnonzero(np.ptp(np.concatenate(inputs), axis=0) > 0)
    return int(moving[0]) if len(moving) == 1 else None


def _spread(data: xr.Dataset, output: int) -> Array | None:
    if "variance" not in data:
        return None
    values = np.sqrt(data["variance"].values)
    return np.asarray(values if values.ndim == 1 else values[:, output])


def _column(values: Array, output: int) -> Array:
    return np.asarray(values if values.ndim == 1 else values[:, output])


def _draw_curve(panel: Axes, data: xr.Dataset, place: int | None, output: int) -> None:
    """Mean with bands of one and two standard deviations, training points, and the given targets."""
    order = np.argsort(data["x_test"].values[:, place])
    x = data["x_test"].values[order, place]
    mean, spread = data["mean"].values[order, output], _spread(data, output)
    if spread is not None:
        for times, strength in ((2, 0.14), (1, 0.24)):
            low, high = mean - times * spread[order], mean + times * spread[order]
            label = f"± {times} standard deviation{'s' if times > 1 else ''}"
            panel.fill_between(x, low, high, color=PALETTE[0], alpha=strength, linewidth=0, label=label)
    if "y_test" in data:
        given = _column(data["y_test"].values, output)[order]
        panel.plot(x, given, color=FAINT, linestyle="--", linewidth=1.3, label="given on test inputs")
    panel.plot(x, mean, color=PALETTE[0], linewidth=1.8, label="mean")
    trained = data["x"].values[:, place], _column(data["y"].values, output)
    panel.plot(*trained, "o", color=INK, markersize=5, label="training targets", zorder=5)
    panel.set_xlabel("input" if data.sizes["component"] == 1 else f"component {place} of the input")
    panel.set_ylabel("output")
    panel.legend(frameon=False, fontsize=8, loc="best")


def _draw_shift(panel: Axes, data: xr.Dataset, place: int | None, output: int) -> None:
    """What finite width adds to the mean, in all and by origin."""
    order = np.argsort(data["x_test"].values[:, place])
    x = data["x_test"].values[order, place]
    parts = {str(name): data[name] for name in data if str(name).startswith(_TERMS)}
    for number, (name, part) in enumerate(parts.items(), start=1):
        color, label = PALETTE[number % len(PALETTE)], name.partition("_")[2]
        panel.plot(x, part.values[order, output], color=color, linewidth=1.2, label=label)
    whole = (data["mean"] - data["infinite_mean"]).values[order, output]
    panel.plot(x, whole, color=INK, linewidth=2.0, label="in all")
    panel.plot(data["x"].values[:, place], np.zeros(data.sizes["train"]), "o", color=INK, markersize=5)
    panel.set_xlabel("input" if data.sizes["component"] == 1 else f"component {place} of the input")
    panel.set_ylabel("added to the mean by finite width")
    panel.legend(frameon=False, fontsize=8, loc="best")


def _draw_beside(panel: Axes, data: xr.Dataset, _: int | None, output: int) -> None:
    """Predicted against given outputs; on the diagonal they agree."""
    given, mean = _column(data["y_test"].values, output), data["mean"].values[:, output]
    spread = _spread(data, output)
    panel.errorbar(
        given,
        mean,
        spread,
        fmt="o",
        color=PALETTE[0],
        markersize=3.5,
        elinewidth=0.8,
        alpha=0.7 if len(given) < 300 else 0.35,
        label="mean" + ("" if spread is None else " ± standard deviation"),
    )
    ends = [min(given.min(), mean.min()), max(given.max(), mean.max())]
    panel.plot(ends, ends, color=INK, linestyle="--", linewidth=1, label="predicted = given", zorder=5)
    error = np.sqrt(np.mean((mean - given) ** 2))
    told = f"root mean square error {error:.3g}\nspread of given targets {given.std():.3g}"
    panel.text(0.97, 0.04, told, transform=panel.transAxes, ha="right", fontsize=8.5)
    panel.set_xlabel("given")
    panel.set_ylabel("predicted")
    panel.legend(frameon=False, fontsize=8, loc="upper left")


def _draw_sorted(panel: Axes, data: xr.Dataset, _: int | None, output: int) -> None:
    """Test inputs by their predicted mean."""
    mean, spread = data["mean"].values[:, output], _spread(data, output)
    order = np.argsort(mean)
    bars = None if spread is None else spread[order]
    panel.errorbar(
        np.arange(len(mean)),
        mean[order],
        bars,
        fmt="o",
        color=PALETTE[0],
        markersize=3.5,
        elinewidth=0.8,
        label="mean" + ("" if bars is None else " ± standard deviation"),
    )
    panel.axhline(0, color=FAINT, linewidth=0.8)
    panel.set_xlabel("test input, by its mean")
    panel.set_ylabel("output")
    panel.legend(frameon=False, fontsize=8, loc="upper left")


def _draw_classes(panel: Axes, data: xr.Dataset, place: int | None, _: int) -> None:
    """Mean probabilities of classes: bands along the one input that varies, else a bar for each test input."""
    chances = data["probabilities"].values
    count = chances.shape[1]
    order = np.lexsort((chances.max(axis=1), chances.argmax(axis=1)))
    if place is not None:
        order = np.argsort(data["x_test"].values[:, place])
    elif len(order) > _BARS:
        order = order[np.linspace(0, len(order) - 1, _BARS).round().astype(int)]
    where = np.arange(len(order)) if place is None else data["x_test"].values[order, place]
    tops = np.cumsum(chances[order], axis=1)
    for number in range(count):
        low = tops[:, number - 1] if number else np.zeros(len(order))
        color, label = PALETTE[number % len(PALETTE)], f"class {number}" if number < 8 else None
        if place is None:
            panel.bar(where, tops[:, number] - low, bottom=low, width=0.9, color=color, label=label)
        else:
            panel.fill_between(where, low, tops[:, number], color=color, linewidth=0, label=label)
    if "y_test" in data:
        colors = [PALETTE[int(given) % len(PALETTE)] for given in data["y_test"].values[order]]
        panel.scatter(where, np.full(len(order), -0.045), c=colors, marker="s", s=16, clip_on=False)
        panel.text(0.0, -0.09, "squares: the given class", transform=panel.transAxes, fontsize=8, va="top")
    panel.set_ylim(-0.08, 1.0)
    panel.set_xlabel("test input, by class" if place is None else f"component {place} of the input")
    panel.set_ylabel("mean probability over networks")
    panel.grid(visible=False)
    panel.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
