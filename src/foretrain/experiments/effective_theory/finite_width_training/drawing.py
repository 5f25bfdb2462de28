"""The picture of trained networks of finite width: n times what finite width does to them, against 1/n."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foretrain.experiments.effective_theory.finite_width_training.table import (
    INTERACTION,
    case_of,
    entries_of,
    kernel_deviation,
    variance_scores,
)
from foretrain.support.drawing import BLUE, FAINT, GREEN, INK, ORANGE, PALETTE, RED, new_mosaic

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

_SHALLOW = {
    "sin, L = 2, descent at 0.2": ("descent, η λ = 0.2", GREEN),
    "sin, L = 2, descent at 1.2": ("descent, η λ = 1.2", BLUE),
    "sin, L = 2, two-step": ("two-step", ORANGE),
}
_TANH = {
    "tanh, L = 2, descent at 1.2": ("descent, η λ = 1.2", BLUE),
    "tanh, L = 2, two-step": ("two-step", ORANGE),
}
_DEEP = {
    "sin, L = 3, descent at 1.2": ("sin, descent, η λ = 1.2", BLUE),
    "sin, L = 3, two-step": ("sin, two-step", ORANGE),
    "tanh, L = 3, descent at 1.2": ("tanh, descent, η λ = 1.2", RED),
}
_PARTS = {
    "ntk_variance": ("kernel's variance", "s", GREEN),
    "interaction": ("kernel's change (interaction)", "o", BLUE),
    "mean": ("whole mean", "D", RED),
}


def draw(data: xarray.Dataset) -> Figure:
    """Interaction by algorithm and depth; all coefficients against theory; the kernel's part; its change."""
    title = "Trained networks of finite width: n × (mean output − infinite width) against theory of order 1/n"
    layout = [["sin", "tanh", "deep"], ["limits", "variance", "kernel"]]
    figure, panels = new_mosaic(title, layout, [1.0, 1.0], (16.5, 9.6))
    _draw_interaction(panels["sin"], data, _SHALLOW)
    _draw_printed(panels["sin"], data)
    panels["sin"].set_title("sin, L = 2: the end depends on the algorithm", fontsize=11)
    _draw_interaction(panels["tanh"], data, _TANH)
    panels["tanh"].set_title("tanh, L = 2: higher orders fall as 1/n", fontsize=11)
    _draw_interaction(panels["deep"], data, _DEEP)
    panels["deep"].set_title("L = 3", fontsize=11)
    for name in ("sin", "tanh", "deep"):
        _finish(panels[name])
    _draw_limits(panels["limits"], data)
    _draw_variance(panels["variance"], data)
    _draw_kernel(panels["kernel"], data)
    return figure


def _draw_interaction(panel: Axes, data: xarray.Dataset, cases: dict[str, tuple[str, str]]) -> None:
    """Measured at every width, the quadratic through them, and the theory at 1/n = 0."""
    widths: set[int] = set()
    for case, (label, color) in _present(data, cases).items():
        own = case_of(data, case).sel(entry=INTERACTION)
        inverse = 1 / own["width"].values.astype(float)
        widths |= {*own["width"].values.astype(int).tolist()}
        value, error = own["measured"].values, own["measured_error"].values
        panel.errorbar(inverse, value, error, fmt="o", color=color, markersize=5, capsize=2, label=label)
        curve = _through(inverse, value, error, own["limit"].item())
        fine = np.linspace(0, inverse.max(), 60)
        panel.plot(fine, curve(fine), color=color, linewidth=1, alpha=0.6)
        limit, spread = own["limit"].item(), own["standard_error"].item()
        panel.errorbar([0], limit, spread, color=color, capsize=5, elinewidth=1.4, zorder=6)
        panel.plot([0], own["theory"].item(), "*", color=color, markersize=15, markeredgecolor=INK, zorder=5)
    panel.set_xticks(
        [0, *(1 / n for n in sorted(widths))],
        ["0", *(f"1/{n}" for n in sorted(widths))],
        rotation=45,
        ha="right",
        rotation_mode="anchor",
    )
    panel.set_xlim(-0.0006, 1.04 / min(widths))


def _present(data: xarray.Dataset, cases: dict[str, tuple[str, str]]) -> dict[str, tuple[str, str]]:
    return {case: look for case, look in cases.items() if case in data["case"].values}


def _through(inverse: Array, value: Array, error: Array, limit: float) -> np.poly1d:
    """The quadratic in 1/n that was fitted, which has the limit at 0."""
    design = np.stack([inverse, inverse**2], axis=1) / error[:, None]
    slope, bend = np.linalg.lstsq(design, (value - limit) / error, rcond=None)[0]
    return np.poly1d([bend, slope, limit])


def _draw_printed(panel: Axes, data: xarray.Dataset) -> None:
    printed = data["printed_interaction"].item()
    panel.axhline(printed, color=BLUE, linestyle="--", linewidth=1)
    panel.annotate(
        "η λ = 1.2, formulas as printed",
        (panel.get_xlim()[1], printed),
        xytext=(0, -3),
        textcoords="offset points",
        ha="right",
        va="top",
        fontsize=8.5,
        color=BLUE,
    )


def _finish(panel: Axes) -> None:
    """Room for the legend above the points, and a star in it."""
    panel.plot([], [], "*", color="white", markeredgecolor=INK, markersize=12, label="theory, 1/n → 0")
    panel.axvline(0, color=FAINT, linewidth=0.8)
    panel.set(xlabel="1/n", ylabel="n × interaction,  n E[z(T) − z^F]")
    low, high = panel.get_ylim()
    panel.set_ylim(low - 0.06 * (high - low), high + 0.3 * (high - low))
    panel.legend(frameon=False, fontsize=8.5, ncols=2, loc="upper center")


def _draw_limits(panel: Axes, data: xarray.Dataset) -> None:
    """Every part of every case, extrapolated, over the theory."""
    for observable, (label, marker, color) in _PARTS.items():
        points = []
        for case in data["case"].values.tolist():
            own = case_of(data, case)
            at = own.sel(entry=entries_of(own, observable))
            points += list(zip(at["theory"].values, at["limit"].values, at["standard_error"].values))
        theory, limit, error = np.array(points).T
        panel.errorbar(
            theory,
            limit,
            error,
            fmt=marker,
            color=color,
            markersize=4.5,
            elinewidth=1,
            label=label,
            alpha=0.85,
        )
    low, high = panel.get_xlim()
    panel.plot([low, high], [low, high], color=FAINT, linewidth=1, zorder=0)
    panel.set(xlabel="theory", ylabel="networks, extrapolated to 1/n = 0")
    panel.set_title("n × every part of the mean, all cases", fontsize=11)
    panel.legend(frameon=False, fontsize=8.5, loc="upper left")


def _draw_variance(panel: Axes, data: xarray.Dataset) -> None:
    """z-scores of the kernel's variance part at every width: no extrapolation, no fit."""
    panel.axhspan(-2, 2, color=FAINT, alpha=0.18, linewidth=0)
    panel.axhline(0, color=FAINT, linewidth=0.8)
    scores = variance_scores(data)
    for place, ((case, score), color) in enumerate(zip(scores.items(), (*PALETTE, INK))):
        shift = 1.0 + 0.035 * (place - len(scores) / 2)
        for column, name in enumerate(score["entry"].values):
            values = score.sel(entry=name).values
            panel.plot(
                score["width"].values * shift,
                values,
                "o",
                color=color,
                markersize=5,
                markerfacecolor=color if column == 0 else "white",
                label=case.removesuffix(", descent at 1.2") if column == 0 else None,
            )
    panel.set_xscale("log", base=2)
    widths = data["width"].values.astype(int).tolist()
    panel.set_xticks(widths, [str(width) for width in widths])
    panel.minorticks_off()
    panel.set_ylim(-4.0, 5.6)
    panel.set(xlabel="n", ylabel="(measured − theory) / standard error")
    panel.set_title("kernel's variance part, at each width (band: 2 s.e.)", fontsize=11)
    panel.legend(frameon=False, fontsize=8, ncols=2, loc="upper center")


def _draw_kernel(panel: Axes, data: xarray.Dataset) -> None:
    """Distance of the mean change of the kernel from theory, all its entries, over the size of the change."""
    cases = _present(data, _SHALLOW | _TANH | _DEEP)
    markers = "oosoososo"
    for case, color, marker in zip(cases, (*PALETTE, INK, FAINT), markers):
        own = case_of(data, case)
        size, noise = kernel_deviation(own)
        seen = size > noise  # less is noise alone, which has no place on this axis
        panel.errorbar(
            own["width"].values[seen],
            size[seen],
            noise[seen],
            fmt=f"{marker}-",
            color=color,
            markersize=4.5,
            linewidth=1,
            label=case,
        )
    n = data["width"].values.astype(float)
    panel.plot(n, 12.0 / n, "--", color=INK, linewidth=1.2)
    panel.annotate("1/n", (n[1], 12.0 / n[1]), xytext=(4, -12), textcoords="offset points", fontsize=9)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_ylim(0.004, 1.6)
    panel.set_xticks(n, [f"{each:.0f}" for each in n])
    panel.minorticks_off()
    panel.set(xlabel="n", ylabel="|n ΔNTK − theory| / |theory|")
    panel.set_title("mean change of the tangent kernel by training", fontsize=11)
    panel.legend(frameon=False, fontsize=7.8, ncols=2, loc="upper center")
