"""The picture of several modes escaping together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from foretrain.support.drawing import BLUE, FAINT, INK, PALETTE, RED, new_figure

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(data: xarray.Dataset) -> Figure:
    """Losses, alignments, rotations; times of the first mode, shares of the homotopy, the order of two modes."""
    title = (
        f"Several modes escape together: tanh, depth 4, width {data.width}, β = "
        f"{', '.join(f'{beta:g}' for beta in data.betas)}, ε = {data.start_scale:g}"
    )
    figure, panels = new_figure(title, 2, 3, (16, 9))
    _draw_loss(panels[0], data)
    _draw_alignments(panels[1], data)
    _draw_rotations(panels[2], data)
    _draw_times(panels[3], data)
    _draw_shares(panels[4], data)
    _draw_order(figure, panels[5], data)
    return figure


def _draw_loss(panel: Axes, data: xarray.Dataset) -> None:
    panel.plot(data.time, data["loss"], color=INK, linewidth=1.5, label="block flow")
    panel.plot(
        data.time,
        data["network_loss"],
        "o",
        color=BLUE,
        markersize=4,
        markerfacecolor="white",
        label="whole network",
    )
    for name, color, words in (("exact", INK, "exact"), ("leading", RED, "leading order")):
        panel.axvline(float(data[name][0]), color=color, linestyle=":", label=f"mode 1 escapes, {words}")
    panel.set(xlabel="time s", ylabel="loss", yscale="log")
    panel.set_title("Training loss of the gradient flow", fontsize=11)
    panel.legend(frameon=False, fontsize=9)


def _draw_alignments(panel: Axes, data: xarray.Dataset) -> None:
    for mode, color in zip(data.mode.values.tolist(), PALETTE):
        own = data.sel(mode=mode)
        panel.plot(data.time, own["alignment"], color=color, linewidth=1.5)
        panel.plot(
            data.time,
            own["network_alignment"],
            "o",
            color=color,
            markersize=4,
            markerfacecolor="white",
            label=f"mode {mode}",
        )
    panel.set(xlabel="time s", ylabel=r"$\|W_1 v_k\| / \sqrt{N}$")
    panel.set_title("Alignment (dots: whole network, lines: block flow)", fontsize=11)
    panel.legend(frameon=False, fontsize=9)


def _draw_rotations(panel: Axes, data: xarray.Dataset) -> None:
    """Rows of every block, along its own direction and along the others."""
    rows = data["A"].sel(inner_layer=1)
    for block, style in zip(data.block.values.tolist(), ("-", "--", ":")):
        for mode, color in zip(data.mode.values.tolist(), PALETTE):
            label = f"block {block}" if mode == 1 else None
            panel.plot(
                data.time, rows.sel(block=block, mode=mode), style, color=color, linewidth=1.4, label=label
            )
    panel.set(xlabel="time s", ylabel=r"rows of $W_1$ along $v_k$ (colours as left)")
    panel.set_title("Every block turns towards the strong mode first", fontsize=11)
    panel.legend(frameon=False, fontsize=9, loc="upper left")


def _draw_times(panel: Axes, data: xarray.Dataset) -> None:
    times = {
        "leading order (11)": float(data["leading"][0]),
        "mode by itself, exact": float(data["alone"][0]),
        **{
            f"closure, {number} variables": float(data["closure"].sel(variables_kept=number))
            for number in data.variables_kept.values.tolist()
        },
        **{f"homotopy, {n} nodes": float(data["predicted"].sel(nodes=n)) for n in data.nodes.values.tolist()},
        "block flow, exact": float(data["exact"][0]),
        "whole network": float(data["network_escape"][0]),
    }
    places = np.arange(len(times))[::-1]
    exact = float(data["exact"][0])
    panel.hlines(places, exact, list(times.values()), color=FAINT, linewidth=1.2)
    panel.plot(list(times.values()), places, "o", color=BLUE, markersize=7)
    panel.axvline(exact, color=INK, linewidth=1.2)
    for place, value in zip(places, times.values()):
        panel.annotate(f"{value:.1f}", (value, place), (6, 4), textcoords="offset points", fontsize=8)
    low, high = min(times.values()), max(times.values())
    panel.set(xlabel="time s", xlim=(low - 0.1 * (high - low), high + 0.2 * (high - low)))
    panel.set_yticks(places, list(times))
    panel.set_title("When the first mode escapes", fontsize=11)


def _draw_shares(panel: Axes, data: xarray.Dataset) -> None:
    shares = data["share"].isel(nodes=-1)
    places = np.arange(shares.size)[::-1]
    panel.barh(places, shares, color=PALETTE[: shares.size])
    for place, value in zip(places, shares.values):
        panel.annotate(
            f"{value:+.1f}", (value, place), (4, 0), textcoords="offset points", fontsize=9, va="center"
        )
    panel.axvline(0, color=INK, linewidth=0.8)
    panel.set_yticks(places, shares.channel.values.tolist())
    least = float(shares.min())
    panel.set(xlabel="share of T(1) - T(0), time s", xlim=(1.15 * least, 0.15 * abs(least)))
    panel.set_title("Homotopy: what makes the first mode faster", fontsize=11)


def _draw_order(figure: Figure, panel: Axes, data: xarray.Dataset) -> None:
    """Colour: who is first in the exact flow; sign in the cell: whether the law says so too."""
    ratio = np.log10(data["time_ratio"].values)
    reach = min(1.5, float(np.abs(ratio).max()))
    image = panel.imshow(ratio, cmap="RdBu", vmin=-reach, vmax=reach, aspect="auto", origin="lower")
    law = data["rate_ratio"].values > 1
    for (row, column), value in np.ndenumerate(ratio):
        right = law[row, column] == (value > 0)
        first = 2 if law[row, column] else 1
        panel.text(
            column,
            row,
            f"law: {first}\n{'right' if right else 'wrong'}",
            ha="center",
            va="center",
            fontsize=9,
            color="white" if abs(value) > 0.7 * reach else INK,
            fontweight="normal" if right else "bold",
        )
    panel.grid(False)
    panel.set_xticks(np.arange(data.critical_depth.size), [f"{r:g}" for r in data.critical_depth.values])
    panel.set_yticks(np.arange(data.strength.size), [f"{b:g}" for b in data.strength.values])
    panel.set(xlabel="critical depth of mode 2 (mode 1: 4)", ylabel=r"strength $\beta_2$ ($\beta_1 = 1$)")
    panel.set_title("Which of two modes is first? (law: by Γ)", fontsize=11)
    bar = figure.colorbar(image, ax=panel)
    bar.set_label(r"log$_{10}$ time of mode 1 / mode 2 (red: 1 first)", fontsize=9)
