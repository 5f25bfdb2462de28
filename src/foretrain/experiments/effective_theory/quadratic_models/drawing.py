"""The picture of the experiment on quadratic models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from foretrain.support.drawing import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, RED, new_figure

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLORS = {"gradient_descent": BLUE, "flow": GREEN, "direct": ORANGE, "ridgeless": PURPLE}
_NAMES = {
    "gradient_descent": "gradient descent",
    "flow": "gradient flow",
    "direct": "direct optimisation",
    "ridgeless": "ridgeless (least norm)",
}


def draw(data: xarray.Dataset) -> Figure:
    """Six panels: orders in ε, algorithms, and the noisy line."""
    figure, panels = new_figure("Quadratic models: closed form and training", 2, 3, (15, 8.6))
    _draw_orders(panels[0], data, "error", "correction", "prediction")
    _draw_orders(panels[1], data, "kernel_error", "kernel_correction", "effective kernel (11.138)")
    _draw_kernels(panels[2], data)
    _draw_rates(panels[3], data)
    _draw_line(panels[4], data)
    _draw_fit_errors(panels[5], data)
    return figure


def _guide(panel: Axes, x: np.ndarray, start: float, power: int, text: str) -> None:
    """A faint line of a power, with its name at its middle."""
    y = start * (x / x.max()) ** power
    panel.plot(x, y, "--", color=FAINT, linewidth=1, zorder=1)
    middle = len(x) // 2
    panel.annotate(
        text, (x[middle], y[middle]), (6, -12), textcoords="offset points", fontsize=9, color=FAINT
    )


def _label_epsilons(panel: Axes, x: np.ndarray) -> None:
    """The values that were used, every second one where they are many."""
    shown = x if len(x) < 6 else x[::2]
    panel.set_xticks(shown, [f"{value:.3g}" for value in shown])
    panel.minorticks_off()
    panel.set(xlabel="ε", ylabel="largest absolute difference")


def _draw_orders(panel: Axes, data: xarray.Dataset, error: str, correction: str, title: str) -> None:
    x = data.epsilon.values
    for name in data.algorithm.values:
        own = data.sel(algorithm=name)
        panel.loglog(x, own[error], "o-", color=_COLORS[name], markersize=4, label=_NAMES[name])
        panel.loglog(x, own[correction], ":", color=_COLORS[name], linewidth=1.5)
    panel.plot([], [], "o-", color=INK, markersize=4, label="trained minus formula")
    panel.plot([], [], ":", color=INK, label="formula minus linear model")
    _guide(panel, x, float(data[error].isel(epsilon=0).min()) / 3, 2, "ε²")
    _label_epsilons(panel, x)
    panel.set_title(f"Order of the error: {title}", fontsize=11)
    bottom, top = panel.get_ylim()
    panel.set_ylim(bottom, top * (top / bottom) ** 0.55)  # room for the legend above the data
    panel.legend(frameon=False, fontsize=8, loc="upper left", ncols=2)


def _draw_kernels(panel: Axes, data: xarray.Dataset) -> None:
    x = data.epsilon.values
    for name, color, text in (
        ("printed_difference", RED, "symmetric kernel as printed, from (11.132)"),
        ("one_sided_difference", BLUE, "one-sided kernel, from (11.132)"),
        ("kernel_difference", GREEN, "effective kernels: descent from least norm"),
    ):
        panel.loglog(x, data[name], "o-", color=color, markersize=4, label=text)
    _guide(panel, x, float(data.printed_difference[0]) / 2, 1, "ε")
    _guide(panel, x, float(data.one_sided_difference[0]) / 2, 2, "ε²")
    _label_epsilons(panel, x)
    panel.set_title("Kernels that training has moved", fontsize=11)
    bottom, top = panel.get_ylim()
    panel.set_ylim(bottom, top * (top / bottom) ** 0.4)
    panel.legend(frameon=False, fontsize=8, loc="upper left")


def _draw_rates(panel: Axes, data: xarray.Dataset) -> None:
    panel.plot(data.relative_rate, data.rate_formula, color=BLUE, label="gradient descent, formula (11.134)")
    panel.plot(
        data.relative_rate,
        data.rate_trained,
        "o",
        color=BLUE,
        markersize=5,
        label="gradient descent, trained",
    )
    for name in data.end.values:
        value = float(data.rate_limit.sel(end=name))
        panel.axhline(value, color=_COLORS[name], linewidth=1.2, linestyle="--", label=_NAMES[name])
    panel.axhline(0, color=INK, linewidth=0.8)
    panel.set(
        xlabel="learning rate times largest eigenvalue", ylabel="change of the prediction at x = 1 by ε"
    )
    panel.set_title("The prediction remembers the algorithm", fontsize=11)
    bottom, top = panel.get_ylim()
    panel.set_ylim(bottom, top + 0.55 * (top - bottom))
    panel.legend(frameon=False, fontsize=8, loc="upper left", ncols=2)


def _draw_line(panel: Axes, data: xarray.Dataset) -> None:
    own = data.sel(end="flow")
    panel.plot(data.x, data.line_truth, "--", color=INK, linewidth=1.2, label="the line")
    panel.plot(
        data.x,
        own.line_formula.sel(line_epsilon=0, method="nearest"),
        color=FAINT,
        label="linear model, ε = 0",
    )
    for place, color in ((0, ORANGE), (-1, BLUE)):
        epsilon = float(data.line_epsilon[place])
        panel.plot(
            data.x,
            own.line_formula.isel(line_epsilon=place),
            color=color,
            label=f"formula, ε = {epsilon:.2g}",
        )
        panel.plot(
            data.x[::4],
            own.line_trained.isel(line_epsilon=place)[::4],
            ".",
            color=color,
            markersize=6,
            label=f"trained, ε = {epsilon:.2g}",
        )
    panel.plot(data.sample, data.line_y, "o", color=INK, markersize=7, label="noisy samples")
    panel.set(xlabel="x", ylabel="y")
    panel.set_title("Polynomial regression of a noisy line, gradient flow", fontsize=11)
    panel.legend(frameon=False, fontsize=8, loc="upper left")


def _draw_fit_errors(panel: Axes, data: xarray.Dataset) -> None:
    for name in data.end.values:
        for key, style in (("line_formula", "-"), ("line_trained", "o")):
            left = np.sqrt(((data[key].sel(end=name) - data.line_truth) ** 2).mean("x"))
            label = _NAMES[name] if style == "-" else None
            panel.plot(data.line_epsilon, left, style, color=_COLORS[name], markersize=5, label=label)
    panel.plot([], [], "-", color=INK, label="formula")
    panel.plot([], [], "o", color=INK, label="trained")
    panel.set(xlabel="ε", ylabel="root mean square distance from the line")
    panel.set_title("Fine tuning by ε: distance of the fit from the line", fontsize=11)
    panel.legend(frameon=False, fontsize=8)
