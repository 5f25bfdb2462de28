"""The picture of the collapse of escape times, and the setting that it shares with the experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foretrain.saddle import balanced_time
from foretrain.support.drawing import FAINT, INK, PALETTE, new_figure

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

ACTIVATIONS = {"tanh": "B", "erf": "B", "sin": "B", "gelu": "C", "swish": "C"}  # with their classes
DEPTH, THRESHOLD = 4, 0.5


def draw(data: xarray.Dataset) -> Figure:
    """Times before and after they are multiplied by K, the collapse close up, and what is left of it."""
    title = f"Universality of escape: depth {DEPTH}, until X_1 = {THRESHOLD:g}"
    figure, panels = new_figure(title, 2, 2, (12, 9.5))
    _draw_times(panels[0], data)
    _draw_collapse(panels[1], data)
    _draw_ratios(panels[2], data)
    _draw_spread(panels[3], data)
    return figure


def _draw_times(panel: Axes, data: xarray.Dataset) -> None:
    for name, color in zip(ACTIVATIONS, PALETTE):
        own = data.sel(activation=name)
        panel.plot(
            data.epsilon,
            own["scaled_time"].sel(formula="reduced") / own["K"],
            color=color,
            label=_label(name),
        )
        panel.plot(
            data.network_epsilon,
            own["network_time"] / own["K"],
            "s",
            color=color,
            markersize=6,
            markerfacecolor="none",
        )
    panel.plot([], [], "s", color=INK, markerfacecolor="none", label="whole network")
    panel.set(xscale="log", yscale="log", xlabel="ε", ylabel="escape time s")
    panel.set_title(f"before: width {data.width}", fontsize=11)
    panel.legend(frameon=False, fontsize=9)


def _label(name: str) -> str:
    return f"{name} ({ACTIVATIONS[name]})"


def _draw_collapse(panel: Axes, data: xarray.Dataset) -> None:
    for name, color in zip(ACTIVATIONS, PALETTE):
        own = data.sel(activation=name)
        panel.plot(data.epsilon, own["scaled_time"].sel(formula="reduced"), color=color)
        panel.plot(
            data.network_epsilon, own["network_time"], "s", color=color, markersize=6, markerfacecolor="none"
        )
    panel.plot(data.epsilon, _law(data.epsilon.values), ":", color=INK, label="closed form (11)")
    panel.set(xscale="log", yscale="log", xlabel="ε", ylabel="K × escape time")
    panel.set_title("after: times K", fontsize=11)
    panel.legend(frameon=False, fontsize=9)


def _law(epsilon: Array) -> Array:
    return np.array([balanced_time(1.0, float(each), DEPTH, THRESHOLD) for each in epsilon])


def _draw_ratios(panel: Axes, data: xarray.Dataset) -> None:
    """K t over the closed form; descent with the scalar flow of its own width."""
    for name, color in zip(ACTIVATIONS, PALETTE):
        own = data.sel(activation=name)
        panel.plot(
            data.epsilon, own["scaled_time"].sel(formula="reduced") / _law(data.epsilon.values), color=color
        )
        cases = np.flatnonzero(data["descent_activation"].values == name)
        where = data["descent_epsilon"].values[cases]
        times, exact = data["descent_time"].values[cases], data["descent_exact"].values[cases]
        law = _law(where)
        panel.errorbar(
            where,
            times.mean(axis=1) / law,
            times.std(axis=1, ddof=1) / law,
            fmt="o",
            color=color,
            markersize=6,
        )
        panel.plot(where, exact / law, "_", color=INK, markersize=14)
    panel.axhline(1, color=FAINT, linewidth=1)
    panel.plot([], [], "o", color=INK, label=f"SGD, width {data.descent_width}, {data.seeds} seeds")
    panel.plot([], [], "_", color=INK, markersize=14, label=f"scalar flow, width {data.descent_width}")
    panel.plot([], [], color=INK, label=f"scalar flow, width {data.width}")
    panel.set(xscale="log", xlabel="ε", ylabel="K × escape time / closed form (11)")
    panel.set_title("the collapse close up", fontsize=11)
    panel.legend(frameon=False, fontsize=9, loc="lower left")


def _draw_spread(panel: Axes, data: xarray.Dataset) -> None:
    exact, leading = (data["scaled_time"].sel(formula=name) for name in ("reduced", "leading"))
    corrected = data["scaled_time"].sel(formula="corrected")
    for name, color in zip(ACTIVATIONS, PALETTE):
        own = exact.sel(activation=name)
        base = leading.sel(activation=name)
        panel.plot(data.epsilon, np.abs(own / base - 1), "o", color=color, markersize=4.5, label=_label(name))
        panel.plot(
            data.epsilon, np.abs(corrected.sel(activation=name) / base - 1), color=color, linewidth=1.2
        )
    panel.plot(
        data.epsilon, data["spread"].sel(formula="reduced"), "--", color=INK, label="spread over all five"
    )
    panel.plot([], [], color=INK, linewidth=1.2, label="first-order flow")
    panel.set(xscale="log", yscale="log", xlabel="ε", ylabel="relative distance of K t from leading order")
    panel.set_title("what is left of the collapse", fontsize=11)
    panel.legend(frameon=False, fontsize=8.5)
