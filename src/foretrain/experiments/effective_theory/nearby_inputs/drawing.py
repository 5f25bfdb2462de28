"""The picture of predictions near one training input."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from foretrain.support.drawing import FAINT, INK, PALETTE, new_figure

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(data: xarray.Dataset) -> Figure:
    """Four panels: laws of smooth activations, equal rates, ReLU, and trained networks."""
    figure, panels = new_figure("What a trained network answers near its one training input", 2, 2, (13, 9.4))
    _draw_laws(panels[0], data)
    _draw_equal_rates(panels[1], data)
    _draw_relu(panels[2], data)
    _draw_trained(panels[3], data)
    return figure


def _draw_laws(panel: Axes, data: xarray.Dataset) -> None:
    for colour, name in zip(PALETTE, data.network.values, strict=False):
        one = data.sel(network=name, rates="equivalence principle")
        panel.loglog(
            one.layer, -one.robustness, color=colour, label=f"{name}: L^{float(one.power) + 0.0:.2g}"
        )
        panel.loglog(one.layer, -one.law, "--", color=colour, linewidth=1)
    panel.set(xlabel="depth L", ylabel="− robustness measure")
    panel.set_title("rates of the equivalence principle (dashed: (10.78))", fontsize=11)
    panel.legend(frameon=False, fontsize=9)


def _draw_equal_rates(panel: Axes, data: xarray.Dataset) -> None:
    """Robustness times depth over that of the completed law, with the printed one below it."""
    rate_b, rate_W = 1.3, 0.7
    for colour, name, bend in zip(PALETTE, ("tanh", "sin"), (2.0, 1.0), strict=False):
        one = data.sel(network=name, rates="equal")
        scaled = -one.robustness * one.layer * rate_b / (4 * one.delta_squared)
        panel.semilogx(one.layer, scaled, color=colour, label=f"{name}, recursion")
        panel.axhline(rate_W + bend * rate_b / 2, color=colour, linestyle="--", linewidth=1)
    panel.axhline(rate_W, color=INK, linestyle=":", label="(10.81) as printed")
    panel.set(xlabel="depth L", ylabel="− robustness · L λ_b / 4δ²", ylim=(0, None))
    panel.set_title("rates equal in all layers (dashed: completed law)", fontsize=11)
    panel.legend(frameon=False, fontsize=9)


def _draw_relu(panel: Axes, data: xarray.Dataset) -> None:
    for colour, angle in zip(PALETTE, data.angle.values, strict=False):
        panel.semilogx(
            data.angle_layer, data.relu_cos_zeta.sel(angle=angle), color=colour, label=f"ψ = {angle:g}"
        )
    panel.axhline(0.25, color=INK, linestyle="--", linewidth=1)
    panel.text(data.angle_layer.values[1], 0.26, "1/4", fontsize=10)
    panel.set(xlabel="depth L", ylabel="cos ζ = Θ₊₋ / Θ₊₊")
    panel.set_title("ReLU: all inputs end at 1/4 (10.93)", fontsize=11)
    panel.legend(frameon=False, fontsize=9)


def _draw_trained(panel: Axes, data: xarray.Dataset) -> None:
    for colour, name in zip(PALETTE, data.trained_network.values, strict=False):
        one = data.sel(trained_network=name)
        panel.plot(one.fine_angle, one.measure, color=colour, label=f"{name}, infinite width")
        panel.errorbar(one.test_angle, one.trained_robustness, one.trained_error, fmt="o", color=colour)
    panel.axhline(0, color=FAINT, linewidth=0.8)
    panel.set_xticks([0, np.pi / 2, np.pi], ["0", "π/2", "π"])
    panel.set(xlabel="angle to the training input", ylabel="mean answer / target − 1")
    panel.set_title("real networks of 3 layers, trained on one input (points)", fontsize=11)
    panel.legend(frameon=False, fontsize=9)
