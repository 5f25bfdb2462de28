"""The picture of nearly-Gaussian laws: correlators against the coupling, errors, the series, and samples."""

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
    title = "Nearly-Gaussian laws: first order in the couplings, and its limits"
    figure, panels = new_figure(title, 2, 3, (16, 9))
    _draw_values(panels[0], data)
    _draw_errors(panels[1], data)
    _draw_series(panels[2], data)
    _draw_hierarchy(panels[3], data)
    _draw_samples(panels[4], data.isel(correlator=slice(0, 6)), "two-points of three variables")
    _draw_samples(panels[5], data.isel(correlator=slice(6, None)), "connected four-points")
    return figure


def _draw_values(panel: Axes, data: xarray.Dataset) -> None:
    for colour, quantity in zip(PALETTE, data.quantity.values, strict=False):
        one = data.sel(quantity=quantity)
        panel.semilogx(one.coupling, one.exact, "o-", color=colour, markersize=4, label=str(quantity))
        panel.semilogx(one.coupling, one.first_order, "--", color=colour, linewidth=1)
    panel.set(xlabel="coupling g (K = 1)", ylabel="value", ylim=(0, 1.15))
    panel.set_title("exact (points) and first order (dashed)", fontsize=11)
    panel.legend(frameon=False, fontsize=9, loc="lower left")


def _draw_errors(panel: Axes, data: xarray.Dataset) -> None:
    g = data.coupling.values
    for colour, quantity in zip(PALETTE, data.quantity.values, strict=False):
        one = data.sel(quantity=quantity)
        panel.loglog(g, np.abs(one.first_order / one.exact - 1), "o-", color=colour, markersize=4)
    panel.loglog(g[:6], 0.05 * g[:6] ** 2, ":", color=INK, linewidth=1.2, label="∝ g²")
    panel.loglog(g[:6], 5 * g[:6], "-.", color=INK, linewidth=1.2, label="∝ g")
    panel.axhline(0.1, color=FAINT, linewidth=1)
    panel.set(xlabel="coupling g", ylabel="relative error of first order")
    panel.set_title("what first order leaves out; grey: a tenth", fontsize=11)
    panel.legend(frameon=False, fontsize=9)


def _draw_series(panel: Axes, data: xarray.Dataset) -> None:
    for colour, g in zip(PALETTE, data.series_coupling.values, strict=False):
        panel.semilogy(
            data.order,
            data.series_error.sel(series_coupling=g),
            "o-",
            color=colour,
            markersize=4,
            label=f"g = {g:g}",
        )
    panel.set(xlabel="last order of g kept", ylabel="relative error of Z", ylim=(1e-14, 1e6))
    panel.set_title("the series is asymptotic: more orders, then ruin", fontsize=11)
    panel.legend(frameon=False, fontsize=9)


def _draw_hierarchy(panel: Axes, data: xarray.Dataset) -> None:
    epsilon = data.epsilon.values
    for colour, points in zip(PALETTE, data.points.values, strict=False):
        values = data.cumulant.sel(points=points).values
        panel.loglog(epsilon, values, "o", color=colour, label=f"|κ| of {points} points")
        panel.loglog(
            epsilon, values[0] * (epsilon / epsilon[0]) ** (points / 2 - 1), "--", color=colour, linewidth=1
        )
    panel.set_xticks(epsilon, [f"{value:g}" for value in epsilon])
    panel.minorticks_off()
    panel.set(xlabel="ε (couplings ε, ε²)", ylabel="size of the cumulant")
    panel.set_title(r"hierarchy (1.83): dashed $\epsilon^{m-1}$", fontsize=11)
    panel.legend(frameon=False, fontsize=9)


def _draw_samples(panel: Axes, data: xarray.Dataset, title: str) -> None:
    place = np.arange(data.sizes["correlator"])
    panel.plot(place, data.gaussian, "_", color=FAINT, markersize=22, markeredgewidth=2, label="Gaussian")
    panel.plot(
        place, data.perturbed, "_", color=PALETTE[1], markersize=22, markeredgewidth=2, label="first order"
    )
    panel.plot(place, data.integrated, "_", color=INK, markersize=22, markeredgewidth=2, label="exact")
    panel.errorbar(
        place, data.sampled, data.standard_error, fmt="o", color=PALETTE[0], markersize=4, label="samples"
    )
    panel.set_xticks(place, [str(label) for label in data.correlator.values])
    panel.set(xlabel="variables", ylabel="correlator")
    panel.set_title(title, fontsize=11)
    panel.legend(frameon=False, fontsize=9)
