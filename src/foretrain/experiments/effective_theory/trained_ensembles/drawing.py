"""Pictures of trained ensembles beside predictions; data as ``TrainedComparison.to_dataset`` labels them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foretrain.support.drawing import BLUE, FAINT, INK, ORANGE, PALETTE, RED, SKY, new_figure

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

_KINDS = {"mean": ("mean", BLUE), "covariance": ("covariance", ORANGE), "between": ("between outputs", RED)}
POSITIONS = ("position_train", "position_test")  # on the axis, where inputs are not numbers themselves
_CURVES = 25
_SPREAD = 2.0  # standard deviations


def draw(data: xarray.Dataset) -> Figure:
    """One row of panels for the function and one for the digits."""
    title = "Really trained networks beside the prediction at infinite width"
    figure, panels = new_figure(title, 2, 3, (16, 9))
    line, digits = (task_of(data, name) for name in ("function", "digits"))
    for panel, drawn in zip(panels, (draw_bands, draw_scaled, draw_sizes)):
        drawn(panel, line)
        panel.set_title(f"Function of an angle: {panel.get_title()}", fontsize=11)
    for panel, drawn in zip(panels[3:], (draw_outputs, draw_histogram, draw_sizes)):
        drawn(panel, digits)
        panel.set_title(f"Digits 3 and 8: {panel.get_title()}", fontsize=11)
    return figure


def task_of(data: xarray.Dataset, name: str) -> xarray.Dataset:
    """The numbers of one task, by their own names."""
    start = f"{name}_"
    chosen = data[[str(key) for key in data.data_vars if str(key).startswith(start)]]
    chosen = chosen.drop_vars([key for key in chosen.coords if not str(key).startswith(start)])
    names = {str(key): str(key).removeprefix(start) for key in (*chosen.variables, *chosen.dims)}
    attributes = {
        str(key).removeprefix(start): value for key, value in data.attrs.items() if str(key).startswith(start)
    }
    return chosen.rename(names).drop_attrs(deep=False).assign_attrs(attributes)


def means_of(data: xarray.Dataset, name: str, output: int = 0) -> Array:
    """The entries of the mean of one output, for every test input: (widths, tests) or (tests,)."""
    chosen = (data.observable.values == "mean") & (data.output_of_entry.values == output)
    return np.asarray(data[name].isel(entry=chosen).values)


def variances_of(data: xarray.Dataset, name: str) -> Array:
    """The entries of the variance on every test input: (widths, tests) or (tests,)."""
    same = np.array([len(set(inputs.split())) == 1 for inputs in data.inputs.values.tolist()])
    return np.asarray(data[name].isel(entry=(data.observable.values == "covariance") & same).values)


def _positions(data: xarray.Dataset) -> tuple[Array, Array, NDArray[np.intp]]:
    """Of training inputs, of test inputs from left to right, and the order of the latter."""
    names = POSITIONS if POSITIONS[0] in data else ("x_train", "x_test")
    trained, asked = (data[name].values.reshape(data[name].shape[0], -1)[:, 0] for name in names)
    order = np.argsort(asked)
    return trained, asked[order], order


def _axis_name(data: xarray.Dataset) -> str:
    return "angle of the input" if POSITIONS[0] in data else "input x"


def draw_bands(panel: Axes, data: xarray.Dataset) -> None:
    """A function of one variable: the predicted band, and mean and spread of trained networks."""
    trained, x, order = _positions(data)
    mean = data.predicted_mean.values[order, 0]
    spread = _SPREAD * np.sqrt(np.maximum(np.diagonal(data.predicted_covariance.values), 0.0))[order]
    panel.fill_between(x, mean - spread, mean + spread, color=SKY, alpha=0.3, label="predicted mean ± 2σ")
    panel.plot(x, mean, color=BLUE, linewidth=2)
    if "network_output" in data:
        outputs = data.network_output.values[:, order]
        panel.plot(x, outputs[:_CURVES].T, color=FAINT, linewidth=0.5, alpha=0.7, zorder=1)
        found, width, error = outputs.mean(axis=0), data.attrs["shown_width"], outputs.std(axis=0)
        told = f"{len(outputs)} networks of width {width}, mean ± 2σ"
    else:
        own = int(np.argmin(np.abs(np.log(data.inverse_width.values))))
        found = means_of(data, "measured")[own, order]
        error = np.sqrt(np.maximum(variances_of(data, "measured")[own, order], 0.0))
        told = f"networks of width {int(data.width[own])}, mean ± 2σ"
    panel.errorbar(
        x, found, _SPREAD * error, fmt="o", color=ORANGE, markersize=3.5, elinewidth=1.1, label=told
    )
    panel.plot(trained, data.y_train[:, 0], "s", color=INK, markersize=6, label="training data")
    panel.set(xlabel=_axis_name(data), ylabel="output")
    panel.set_title("prediction and networks", fontsize=11)
    panel.legend(frameon=False, fontsize=8.5, loc="upper left")
    _make_room(panel)


def _make_room(panel: Axes) -> None:
    """For the legend above the data."""
    low, high = panel.get_ylim()
    panel.set_ylim(low, high + 0.25 * (high - low))


def draw_scaled(panel: Axes, data: xarray.Dataset) -> None:
    """n times the deviation of the mean over the input: one curve for all widths if it falls as 1/n."""
    trained, x, order = _positions(data)
    scaled, errors = (means_of(data, f"scaled_deviation{end}")[:, order] for end in ("", "_error"))
    for color, width, values, error in zip(PALETTE, data.width.values, scaled, errors):
        panel.plot(x, values, "-o", color=color, markersize=3, linewidth=1, label=f"n = {width}")
        panel.errorbar(x, values, error, fmt="none", color=color, elinewidth=0.8, alpha=0.4)
    panel.plot(trained, np.zeros_like(trained), "s", color=INK, markersize=6)
    panel.axhline(0, color=FAINT, linewidth=0.8)
    panel.set(xlabel=_axis_name(data), ylabel="n × (mean of networks − prediction)")
    panel.set_title("the deviation, times the width", fontsize=11)
    panel.legend(frameon=False, fontsize=8.5, ncols=3, loc="upper left")
    _make_room(panel)


def draw_sizes(panel: Axes, data: xarray.Dataset) -> None:
    """Root mean square deviations against the width, with a line of slope −1 through each."""
    n = data.width.values.astype(float)
    alone = all(len(set(inputs.split())) == 1 for inputs in data.inputs.values.tolist())
    for kind in data.kind.values.tolist():
        own = data.sel(kind=kind)
        label, color = _KINDS[kind]
        label = label.replace("covariance", "variance") if alone else label
        size, error = own["size"].values, own.size_error.values
        seen = size > 0
        if not seen.any():
            continue
        power = f": $n^{{{float(own.power):.2f} ± {float(own.power_error):.2f}}}$"
        panel.errorbar(
            n[seen],
            size[seen],
            np.stack([np.minimum(error, 0.9 * size), error])[:, seen],
            fmt="o",
            color=color,
            markersize=5,
            capsize=2,
            label=label + (power if np.isfinite(own.power) else ": hidden by noise"),
        )
        weight = np.where(seen, size / np.maximum(error, 1e-300), 0.0) ** 2
        level = np.exp(np.sum(weight * np.log(np.where(seen, size * n, 1.0))) / weight.sum())
        panel.plot(n, level / n, color=color, linewidth=1, linestyle="--")
    panel.plot([], [], "--", color=INK, linewidth=1, label="slope −1")
    panel.set(xscale="log", yscale="log", xlabel="width n", ylabel="rms deviation from the prediction")
    panel.set_xticks(n, [f"{width:g}" for width in n])
    panel.minorticks_off()
    steps = dict.fromkeys(f"{count:.0f}" for count in (data.steps.values.min(), data.steps.values.max()))
    panel.set_title(f"deviations ({' to '.join(steps)} steps)", fontsize=11)
    panel.legend(frameon=False, fontsize=8.5)


def draw_outputs(panel: Axes, data: xarray.Dataset) -> None:
    """Mean and spread of trained outputs against the predicted mean, for every test input."""
    predicted = data.predicted_mean.values[:, 0]
    if "network_output" in data:
        outputs = data.network_output.values
        found, spread = outputs.mean(axis=0), outputs.std(axis=0, ddof=1)
        told = f"{len(outputs)} networks of width {data.attrs['shown_width']}"
        classes = data.network_target.values
    else:
        own = int(np.argmin(np.abs(np.log(data.inverse_width.values))))
        found, classes = means_of(data, "measured")[own], np.zeros_like(predicted)
        spread = np.sqrt(np.maximum(variances_of(data, "measured")[own], 0.0))
        told = f"networks of width {int(data.width[own])}"
    ends = np.array([predicted.min(), predicted.max()])
    panel.plot(ends, ends, color=INK, linewidth=1, zorder=1, label="prediction")
    for color, value in zip((BLUE, RED, ORANGE), np.unique(classes)):
        own_class = classes == value
        label = f"{told}, mean ± σ" + (f", target {value:+g}" if np.unique(classes).size > 1 else "")
        panel.errorbar(
            predicted[own_class],
            found[own_class],
            spread[own_class],
            fmt="o",
            color=color,
            markersize=3.5,
            elinewidth=0.7,
            label=label,
        )
    panel.set(xlabel="predicted mean output", ylabel="output of trained networks")
    panel.set_title(f"outputs on {predicted.size} test inputs", fontsize=11)
    panel.legend(frameon=False, fontsize=8.5, loc="upper left")


def draw_histogram(panel: Axes, data: xarray.Dataset) -> None:
    """Outputs of single networks in units of the predicted spread around the predicted mean."""
    spread = np.sqrt(np.diagonal(data.predicted_covariance.values))
    scores = ((data.network_output.values - data.predicted_mean.values[:, 0]) / spread).ravel()
    grid = np.linspace(-4, 4, 201)
    panel.hist(
        np.clip(scores, -4, 4),
        list(np.linspace(-4, 4, 41)),
        density=True,
        color=SKY,
        edgecolor="white",
        label=f"networks of width {data.attrs['shown_width']}",
    )
    panel.plot(grid, np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi), color=INK, linewidth=1.6, label="Gaussian")
    panel.set(xlabel="(output − predicted mean) / predicted σ", ylabel="density")
    right = float(np.mean(data.network_output.values * data.network_target.values > 0))
    note = f"mean {scores.mean():+.3f}\nσ {scores.std():.3f}\naccuracy {right:.1%}"
    panel.text(0.03, 0.97, note, transform=panel.transAxes, va="top", fontsize=9)
    panel.set_title("spread over networks", fontsize=11)
    panel.legend(frameon=False, fontsize=8.5, loc="upper right")
