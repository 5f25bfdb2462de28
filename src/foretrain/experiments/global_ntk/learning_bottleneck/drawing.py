"""The picture of the learning-bottleneck experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from foretrain.support.drawing import BLUE, FAINT, GREEN, INK, ORANGE, RED, new_mosaic

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PLATEAU = 1 / 9  # mean squared error with modes 2 and 3 missing: a third of the steps, one of three channels
PUBLISHED_ESCAPE = 750
_COLORS = {
    "network 1, SGD": RED,
    "network 1, Shampoo": ORANGE,
    "network 2, SGD": BLUE,
    "network 2, Shampoo": GREEN,
}
_MODE_STYLES = {1: ":", 2: "--", 3: "-"}
_SMALLEST = 1e-6  # cosines below are drawn here


def draw(data: xarray.Dataset, escapes: dict[str, float]) -> Figure:
    """Losses, modes left, alignment, rank, and what the trained networks answer."""
    circles = [f"answer {place}" for place in range(4)]
    layout = [
        ["loss"] * 4 + ["left"] * 4 + ["cosine"] * 4,
        ["rank"] * 4 + [name for name in circles for _ in range(2)],
    ]
    title = (
        f"Memory-Pro: GRUs of {data.attrs['units']} units by Xavier's rule (network 1) and with "
        f"{data.sizes['point']} stable fixed points (network 2)"
    )
    figure, panels = new_mosaic(title, layout, [1.25, 1.0], (16, 9))
    _draw_losses(panels["loss"], data)
    _draw_left(panels["left"], data, escapes)
    _draw_cosines(panels["cosine"], data)
    _draw_ranks(panels["rank"], data)
    for name, run in zip(circles, _COLORS, strict=True):
        _draw_answers(panels[name], data.sel(run=run))
    return figure


def _draw_losses(panel: Axes, data: xarray.Dataset) -> None:
    for run, color in _COLORS.items():
        panel.plot(_from_one(data.step), data.loss.sel(run=run), color=color, linewidth=1.6, label=run)
    panel.axhline(PLATEAU, color=INK, linewidth=0.9, linestyle="--")
    panel.text(1, PLATEAU * 0.97, "modes 2 and 3 missing: 1/9", fontsize=8.5, color=INK, va="top")
    panel.set(xlabel="step + 1", ylabel="mean squared error", xscale="log", yscale="log", title="Loss")
    panel.legend(frameon=False, fontsize=9, loc="upper right")


def _draw_left(panel: Axes, data: xarray.Dataset, escapes: dict[str, float]) -> None:
    for run, color in _COLORS.items():
        for mode in (2, 3):
            left = data.unlearned.sel(run=run, mode=mode)
            label = run if mode == 3 else None
            panel.plot(data.step, left, _MODE_STYLES[mode], color=color, linewidth=1.5, label=label)
        if np.isfinite(escapes[run]):
            panel.plot(escapes[run], 0.5, "o", color=color, markersize=6, markeredgecolor="white", zorder=5)
    panel.axvline(PUBLISHED_ESCAPE, color=FAINT, linewidth=1.0)
    panel.text(PUBLISHED_ESCAPE, 0.5, "Shampoo, published", fontsize=8.5, color=INK, rotation=90, ha="right")
    panel.plot([], [], "--", color=INK, label="mode 2")
    panel.plot([], [], "-", color=INK, label="mode 3")
    panel.plot([], [], "o", color=INK, label="half of both learned")
    panel.set(xlabel="step", ylabel="share of the mode that is left", ylim=(0, 1.45))
    panel.set_title("What is left of modes 2 and 3 (the angle)")
    panel.legend(frameon=False, fontsize=8.5, ncols=2, loc="upper left")


def _draw_cosines(panel: Axes, data: xarray.Dataset) -> None:
    for run, color in _COLORS.items():
        for mode, style in _MODE_STYLES.items():
            cosine = np.abs(data.cosine.sel(run=run, mode=mode, kind="readout").values)
            shown = np.maximum(cosine, _SMALLEST)
            panel.plot(
                _from_one(data.record), shown, style, color=color, linewidth=1.4, marker="o", markersize=3
            )
    for mode, style in _MODE_STYLES.items():
        panel.plot([], [], style, color=INK, label=f"mode {mode}")
    panel.set(
        xlabel="step + 1",
        ylabel="cosine of u and NTK$_S$ u",
        xscale="log",
        yscale="log",
        ylim=(_SMALLEST, 1.5),
    )
    panel.set_title("Alignment of target modes, through the readout")
    panel.legend(frameon=False, fontsize=9, loc="lower left")


def _draw_ranks(panel: Axes, data: xarray.Dataset) -> None:
    for run, color in _COLORS.items():
        rank = data["rank"].sel(run=run)
        panel.plot(_from_one(data.record), rank, color=color, marker="o", markersize=3.5, linewidth=1.4)
    panel.set(xlabel="step + 1", ylabel="effective rank", xscale="log", ylim=(0, None))
    panel.set_title("Temporal rank of NTK$_S$")


def _draw_answers(panel: Axes, data: xarray.Dataset) -> None:
    """Paths of the two angle outputs in the response, one for each angle, with the wanted points."""
    from matplotlib.colors import hsv_to_rgb

    output = data.output.values
    angles, steps = output.shape[:2]
    for place, path in enumerate(output[:, 2 * steps // 3 :, :2]):
        angle = 2 * np.pi * place / angles
        color = hsv_to_rgb((place / angles, 0.75, 0.8))
        panel.plot(path[:, 0], path[:, 1], color=color, linewidth=1.0)
        panel.plot(path[-1, 0], path[-1, 1], "o", color=color, markersize=4)
        panel.plot(np.cos(angle), np.sin(angle), "x", color=color, markersize=5)
    run = str(data.run.values)
    panel.set(xlim=(-1.35, 1.35), ylim=(-1.35, 1.35), aspect="equal", xticks=[-1, 0, 1], yticks=[-1, 0, 1])
    panel.set_title(f"{run}:\nanswers (dots), wanted (×)", fontsize=9.5, color=_COLORS[run])
    panel.set(xlabel="cos", ylabel="sin")


def _from_one(steps: xarray.DataArray) -> xarray.DataArray:
    """Ready for a logarithmic axis."""
    return steps + 1
