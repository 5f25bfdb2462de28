"""The picture of Bayesian learning at finite width: n times what finite width changes, against 1/n."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from foretrain.support.drawing import FAINT, INK, PALETTE, new_figure

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANELS = {
    "log evidence": {"log evidence": "log p(targets)"},
    "posterior mean": {"mean of output 1": "output 1", "mean of output 2": "output 2"},
    "posterior covariance": {
        "variance of an output, given the metric": "one output, given the metric",
        "covariance of means of outputs 1 and 1": "means of 1 and 1",
        "covariance of means of outputs 2 and 2": "means of 2 and 2",
        "covariance of means of outputs 1 and 2": "means of 1 and 2",
    },
    "shift of hidden layers": {
        f"metric of layer {layer}, inputs {a} and {b}": f"layer {layer}, inputs {a}, {b}"
        for layer, a, b in ((3, 0, 0), (3, 0, 1), (2, 0, 0), (2, 0, 1))
    },
}


def draw(data: xarray.Dataset) -> Figure:
    """One row of panels for each network."""
    cases = data["case"].values
    title = "Bayesian learning at finite width: exact posteriors, and their order 1/n from theory"
    figure, panels = new_figure(title, len(cases), len(_PANELS), (16, 4.1 * len(cases)))
    for row, case in enumerate(cases):
        for column, (name, quantities) in enumerate(_PANELS.items()):
            panel = panels[row * len(_PANELS) + column]
            _panel(panel, data.sel(case=case), quantities)
            if name == "shift of hidden layers":
                _footnote(panel, data.sel(case=case, quantity="metric of layer 2, inputs 0 and 1"))
            _finish(panel, data)
            panel.set_title(f"{case}: {name}", fontsize=10.5)
            if column == 0:
                panel.set_ylabel("n × (exact − infinite width)")
            if row == len(cases) - 1:
                panel.set_xlabel("1/n, n the width of the last hidden layer")
    return figure


def _panel(panel: Axes, data: xarray.Dataset, quantities: dict[str, str]) -> None:
    inverse = 1 / data["width"].values.astype(float)
    fine = np.linspace(0, inverse.max(), 60)
    for (quantity, label), color in zip(quantities.items(), PALETTE, strict=False):
        own = data.sel(quantity=quantity)
        panel.errorbar(
            inverse, own.measured, own.standard_error, fmt="o", color=color, markersize=4, label=label
        )
        # Through the points and their limit, which is how the limit was found.
        curve = np.polyfit([0, *inverse], [own.limit.item(), *own.measured.values], 2)
        panel.plot(fine, np.polyval(curve, fine), color=color, linewidth=1, alpha=0.6)
        panel.errorbar([0], own.limit.item(), own.limit_error.item(), color=color, capsize=3, elinewidth=1.2)
        panel.plot(
            [0], own.theory.item(), marker="*", color=color, markersize=13, markeredgecolor=INK, zorder=5
        )


def _footnote(panel: Axes, own: xarray.Dataset) -> None:
    """What layer 2 would do at 1/n^2, from its narrowest network on."""
    widest = 1 / own["width"].values[0]
    line = [0, own.measured.values[0]]
    panel.plot([0, widest], line, "--", color=FAINT, linewidth=1.2, label="1/n² (footnote 35)")


def _finish(panel: Axes, data: xarray.Dataset) -> None:
    """Axes from 1/n = 0 on, with room for the legend above."""
    inverse = 1 / data["width"].values.astype(float)
    panel.plot([], [], "*", color="white", markeredgecolor=INK, markersize=11, label="theory at 1/n → 0")
    panel.axvline(0, color=FAINT, linewidth=0.8)
    low, high = panel.get_ylim()
    panel.set(ylim=(low, high + 0.36 * (high - low)), xlim=(-0.0015, 1.06 * inverse.max()))
    panel.set_xticks([0, *inverse], ["0", *(f"1/{round(1 / x)}" for x in inverse)])
    panel.legend(
        frameon=False, fontsize=7.8, loc="upper center", ncols=2, columnspacing=1.0, handletextpad=0.4
    )
