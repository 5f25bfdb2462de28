"""The picture of the forward test: forecast against outcome, hit rates, courses of single networks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from foretrain.support.drawing import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, new_figure

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NAMES = {"gru": "GRU", "rnn": "vanilla RNN"}
_COLORS = {"linearised": PURPLE, "flow": BLUE, "rayleigh": ORANGE, "proxy": GREEN}
_MISSED = "#f1f1f4"
_SHOWN = (0, 2, 3, 4)  # gains whose courses are drawn


def draw(data: xarray.Dataset) -> Figure:
    """Scatters for two forecasts, bars, and courses of some networks of both cells."""
    title = (
        f"Memory-Pro, {data.attrs['units']} units, {3 * data.attrs['period']} steps: "
        "modes learned by SGD, foretold from the initial NTK"
    )
    figure, panels = new_figure(title, 2, 3, (16, 9.5))
    _scatter(panels[0], data, "flow", "frozen NTK, gradient flow")
    _scatter(panels[1], data, "rayleigh", "each mode at its own rate (Cor. 2)")
    _bars(panels[2], data)
    _by_gain(panels[3], data)
    for panel, cell in zip(panels[4:], data.cell.values):
        _courses(panel, data.sel(cell=cell), str(cell))
    return figure


def _scatter(panel: Axes, data: xarray.Dataset, predictor: str, title: str) -> None:
    """Shares left after half of the steps, coloured by gain."""
    from matplotlib import colormaps

    threshold = data.attrs["threshold"]
    top = 1.13
    panel.fill_between([0, threshold], threshold, top, color=_MISSED, zorder=0)
    panel.fill_between([threshold, top], 0, threshold, color=_MISSED, zorder=0)
    panel.text(0.02, 0.53, "foretold, not learned", color=FAINT, fontsize=9)
    panel.text(0.53, 0.02, "learned, not foretold", color=FAINT, fontsize=9)
    panel.plot([0, 1.1], [0, 1.1], color=FAINT, linewidth=1)
    levels = data.sizes["level"]
    for cell, marker in zip(data.cell.values, ("o", "^")):
        at = data.sel(cell=cell, predictor=predictor).sel(progress=0.5, method="nearest")
        for level in range(levels):
            color = colormaps["viridis"](level / max(levels - 1, 1))
            for mode in at.mode.values:
                one = at.isel(level=level).sel(mode=mode)
                filled = color if mode > 1 else "none"
                told, left = (np.minimum(abs(values), 1.1) for values in (one.forecast, one.left))
                panel.scatter(
                    told, left, marker=marker, s=30, facecolor=filled, edgecolor=color, linewidth=0.9
                )
    for cell, marker in zip(data.cell.values, ("o", "^")):
        panel.scatter([], [], marker=marker, color=INK, s=30, label=f"{_NAMES[str(cell)]}, angle")
    panel.scatter([], [], marker="o", facecolor="none", edgecolor=INK, s=30, label="fixation (open)")
    panel.set(xlim=(0, top), ylim=(0, 1.5), xlabel="share foretold to be left", ylabel="share left by SGD")
    panel.set_title(f"{title}, half of the steps", fontsize=11)
    panel.legend(
        frameon=False,
        fontsize=9,
        loc="upper left",
        ncols=2,
        title="dark to light: rising gain",
        title_fontsize=9,
    )


def _bars(panel: Axes, data: xarray.Dataset) -> None:
    """Hit rates by predictor and budget, with the base rate of each budget."""
    budgets, names = data.budget.values, list(data.predictor.values)
    networks = data.largest_rate.size
    for place, budget in enumerate(budgets):
        own = data.sel(budget=budget)
        for shift, name in enumerate(names):
            hit = own.hit.sel(predictor=name)
            single = hit.mean("mode").values.ravel()
            panel.bar(
                place + 0.2 * (shift - 1.5),
                single.mean(),
                0.19,
                yerr=single.std(ddof=1) / np.sqrt(networks),
                color=_COLORS[name],
                label=name if not place else None,
                error_kw={"elinewidth": 1, "ecolor": INK},
            )
        for values, style, label in ((own.base, "-", "by cell and mode"), (own.constant, ":", "one answer")):
            level = float(values.mean())
            said = f"base rate, {label}" if not place else None
            panel.plot(
                [place - 0.42, place + 0.42], [level, level], style, color=INK, linewidth=1.6, label=said
            )
    panel.set_xticks(range(len(budgets)), [f"{100 * part:g} %" for part in budgets])
    panel.set(ylim=(0.2, 1.2), xlabel="budget, part of all steps", ylabel="hit rate")
    panel.set_title("hit rate, error over networks", fontsize=11)
    panel.legend(frameon=False, fontsize=9, ncols=2, loc="upper right")


def _by_gain(panel: Axes, data: xarray.Dataset) -> None:
    """Share of angle modes that are learned, against the gain's place among the gains."""
    for cell, style in zip(data.cell.values, ("-", "--")):
        own = data.sel(cell=cell, mode=[2, 3])
        name = _NAMES[str(cell)]
        for values, color, said in (
            (own.learned, INK, "SGD"),
            (own.foreseen.sel(predictor="flow"), BLUE, "flow"),
            (own.foreseen.sel(predictor="rayleigh"), ORANGE, "rayleigh"),
        ):
            shares = values.mean(("draw", "mode", "budget"))
            panel.plot(range(len(shares)), shares, style, marker="o", color=color, label=f"{name}: {said}")
    gains = zip(*(data.gain.sel(cell=cell).values for cell in data.cell.values))
    panel.set_xticks(range(data.sizes["level"]), ["\n".join(f"{gain:g}" for gain in pair) for pair in gains])
    panel.set(
        ylim=(-0.03, 1.25), xlabel="gain (" + ", below ".join(_NAMES[str(c)] for c in data.cell.values) + ")"
    )
    panel.set_ylabel("share of cases learned")
    panel.set_title("angle modes learned, all budgets", fontsize=11)
    panel.legend(frameon=False, fontsize=8.5, ncols=2, loc="upper left")


def _courses(panel: Axes, data: xarray.Dataset, cell: str) -> None:
    """Mode 2 of one network for some gains: trained, by flow, and at its own rate."""
    from matplotlib import colormaps

    levels = data.sizes["level"]
    steps = float(data.steps.max()) * data.progress
    for level in [place for place in _SHOWN if place < levels]:
        one = data.isel(level=level, draw=0).sel(mode=2)
        color = colormaps["viridis"](level / max(levels - 1, 1))
        panel.plot(steps, abs(one.left), color=color, linewidth=2, label=f"gain {float(one.gain):g}")
        panel.plot(steps, abs(one.forecast.sel(predictor="flow")), "--", color=color, linewidth=1.3)
        panel.plot(steps, abs(one.forecast.sel(predictor="rayleigh")), ":", color=color, linewidth=1.3)
    for style, said in (("-", "SGD"), ("--", "flow"), (":", "own rate")):
        panel.plot([], [], style, color=INK, label=said)
    panel.axhline(data.attrs["threshold"], color=FAINT, linewidth=1)
    for part in data.budget.values:
        panel.axvline(part * float(data.steps.max()), color=FAINT, linewidth=0.8)
    panel.set(xlabel="step", ylabel="share left", ylim=(0, 1.45))
    panel.set_title(f"{_NAMES[cell]}: mode 2, one network per gain, and budgets", fontsize=11)
    panel.legend(frameon=False, fontsize=8.5, ncols=4, loc="upper center")
