"""The picture of the experiment on mutual information."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from foretrain.support.drawing import BLUE, FAINT, GREEN, INK, ORANGE, RED, new_figure
from foretrain.theory.information import printed_information, turning_point

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = {"linear": ("s", GREEN), "relu": ("o", BLUE), "tanh": ("^", ORANGE)}


def draw(data: xarray.Dataset, width: int, nu: float) -> Figure:
    """Two panels over nu r, for one and for five neurons on either side, and tanh networks against depth."""
    title = "Information between neurons of a layer: the truncated series and the truth"
    figure, (ones, fives, deep) = new_figure(title, 1, 3, (17.0, 5.0))
    for panel, m in ((ones, 1), (fives, 5)):
        _draw_spreads(panel, data.sel(neurons=m), m)
    ones.legend(framealpha=0.85, edgecolor="none", fontsize=9, loc="upper left")
    _draw_depths(deep, data, width, nu)
    return figure


def _draw_spreads(panel: Axes, data: xarray.Dataset, m: int) -> None:
    y, turn = data.spread.values, turning_point(m, m)
    top = 1.25 * float(data.exact.max())
    panel.plot(y, data.exact, color=INK, linewidth=2.4, label="exact, scale-invariant, deep and wide")
    good = data.printed.values >= 0
    panel.plot(y[good], data.printed.values[good], color=RED, linewidth=2.0, label="series (A.71)")
    panel.plot(
        y[~good], data.printed.values[~good], ":", color=RED, linewidth=1.4, label="(A.71), negative: invalid"
    )
    panel.plot(y, data.complete, "--", color=RED, linewidth=1.1, label="with all terms of third order")
    for name, (marker, color) in _MARKERS.items():
        own = data.isel(network=data.activation.values == name)
        panel.errorbar(
            own.reached,
            own.measured,
            2 * own.measured_error,
            fmt=marker,
            color=color,
            markersize=6,
            markerfacecolor="white",
            label=f"random {name} networks, n = {int(own.width[0])}",
        )
    panel.axvline(turn, color=FAINT, linewidth=1.2, linestyle=(0, (3, 2)))
    panel.annotate(r"$r^*$", (turn, -0.17 * top), (4, 0), textcoords="offset points", fontsize=11, color=INK)
    panel.axhline(0, color=FAINT, linewidth=0.8)
    panel.set(
        xlim=(0, y[-1]),
        ylim=(-0.2 * top, top),
        xlabel=r"$\nu r$,  $r$ = hidden layers over width",
        ylabel="nats",
    )
    panel.set_title(f"{m} and {m} neurons" if m > 1 else "two neurons", fontsize=11, loc="left")


def _draw_depths(panel: Axes, data: xarray.Dataset, width: int, nu: float) -> None:
    layer = np.linspace(1, float(data.layer.max()), 400)
    for m, color in ((1, BLUE), (5, ORANGE)):
        own = data.sel(neurons=m)
        panel.errorbar(
            own.layer,
            own.tanh,
            2 * own.tanh_error,
            fmt="-",
            color=color,
            linewidth=2,
            label=f"exact, {m} and {m}",
        )
        panel.plot(own.layer, own.tanh_reference, "o", color=color, markerfacecolor="white", markersize=8)
        series = printed_information(m, m, nu * layer / width)
        panel.plot(layer, series, ":", color=color, linewidth=1.6, label=f"series (A.71), {m} and {m}")
    panel.plot([], [], "o", color=INK, markerfacecolor="white", markersize=8, label="reference")
    panel.axhline(0, color=FAINT, linewidth=0.8)
    panel.set(xlabel="layer", ylabel="nats", xlim=(0, layer[-1] + 1), ylim=(-0.15, 1.0))
    panel.set_title(f"tanh networks of width {width}: no maximum", fontsize=11, loc="left")
    panel.legend(framealpha=0.85, edgecolor="none", fontsize=9, loc="upper left")
