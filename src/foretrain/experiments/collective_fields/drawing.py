"""The picture of collective fields: one-step errors, flips, training without weights, and layers of the kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from foretrain.support.drawing import FAINT, INK, PALETTE, new_figure

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(data: xarray.Dataset) -> Figure:
    """Six panels."""
    figure, panels = new_figure("Collective fields of ReLU networks with L hidden layers", 2, 3, (16, 9))
    _draw_orders(panels[0], data)
    _draw_flipped(panels[1], data)
    _draw_flips(panels[2], data)
    _draw_simulation(panels[3], data)
    _draw_shares(panels[4], data)
    _draw_losses(panels[5], data)
    return figure


def _draw_orders(panel: Axes, data: xarray.Dataset) -> None:
    sizes = data.step_size.values
    for colour, depth in zip(PALETTE, data.depth.values, strict=False):
        for kind, style in (("residual", "o-"), ("conjugate", "s:")):
            share = data.frozen_error.sel(depth=depth, kind=kind).mean("network")
            label = f"L = {depth}" if kind == "residual" else None
            panel.loglog(sizes, np.maximum(share, 1e-15), style, color=colour, markersize=3, label=label)
    panel.loglog(sizes, 0.3 * sizes, "--", color=INK, linewidth=1, label="∝ η")
    panel.set(xlabel="η / largest stable", ylabel="error / linear change", ylim=(1e-15, 10))
    panel.set_title("masks kept: residuals (solid), conjugate fields (dotted)", fontsize=11)
    panel.legend(frameon=False, fontsize=9)


def _draw_flipped(panel: Axes, data: xarray.Dataset) -> None:
    for colour, depth in zip(PALETTE, data.depth.values, strict=False):
        one = data.sel(depth=depth, kind="residual").mean("network")
        panel.loglog(
            one.step_size,
            np.maximum(one.error, 1e-15),
            "o-",
            color=colour,
            markersize=3,
            label=f"L = {depth}",
        )
        panel.loglog(one.step_size, np.maximum(one.frozen_error, 1e-15), ":", color=colour, linewidth=1)
    panel.set(xlabel="η / largest stable", ylabel="error of Δr / Δr", ylim=(1e-8, 10))
    panel.set_title("masks free (dotted: kept)", fontsize=11)
    panel.legend(frameon=False, fontsize=9)


def _draw_flips(panel: Axes, data: xarray.Dataset) -> None:
    for colour, depth in zip(PALETTE, data.depth.values, strict=False):
        flips = data.flips.sel(depth=depth).mean("network")
        panel.loglog(
            data.step_size, flips.where(flips > 0), "o-", color=colour, markersize=3, label=f"L = {depth}"
        )
    panel.loglog(data.step_size, 0.05 * data.step_size, "--", color=INK, linewidth=1, label="∝ η")
    panel.set(xlabel="η / largest stable", ylabel="share of masks that flip")
    panel.set_title("mask flips in one step", fontsize=11)
    panel.legend(frameon=False, fontsize=9)


def _draw_simulation(panel: Axes, data: xarray.Dataset) -> None:
    panel.semilogy(data.time, data.real_loss, color=INK, label="loss, with weights")
    for colour, way in zip(PALETTE, data.way.values, strict=False):
        gap = np.maximum(data.gap.sel(way=way), 1e-17)
        panel.semilogy(data.time, gap, color=colour, label=f"largest difference, by {way}s")
    panel.set(xlabel="step", ylabel="loss; difference of outputs")
    panel.set_title("one hidden layer, trained without weights", fontsize=11)
    panel.legend(frameon=False, fontsize=9)


def _draw_shares(panel: Axes, data: xarray.Dataset) -> None:
    for depth, style in ((2, ":"), (3, "--"), (4, "-")):
        for colour, layer in zip(PALETTE, data.layer.values[:depth], strict=False):
            label = f"layer {layer}" if depth == 4 else None
            panel.plot(data.step, data.share.sel(depth=depth, layer=layer), style, color=colour, label=label)
    panel.set(xlabel="step", ylabel="share of tr K", ylim=(0, None))
    panel.set_title("layers of the kernel: L = 4 (solid), 3 (dashed), 2 (dotted)", fontsize=11)
    panel.legend(frameon=False, fontsize=9)


def _draw_losses(panel: Axes, data: xarray.Dataset) -> None:
    for colour, depth in zip(PALETTE, data.depth.values, strict=False):
        one = data.sel(depth=depth)
        panel.semilogy(one.step, one.loss / float(one.loss[0]), color=colour, label=f"L = {depth}: loss")
        panel.semilogy(one.step, one.trace / float(one.trace[0]), "--", color=colour, linewidth=1)
    panel.axhline(1, color=FAINT, linewidth=0.8)
    panel.set(xlabel="step", ylabel="over its first value", ylim=(1e-10, 10))
    panel.set_title("loss, and trace of K (dashed), while they learn", fontsize=11)
    panel.legend(frameon=False, fontsize=9)
