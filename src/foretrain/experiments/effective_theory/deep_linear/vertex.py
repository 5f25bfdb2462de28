"""The connected four-point function of deep linear networks against depth over width (section 3.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from foretrain.compare.judging.agreement import largest_score_allowed
from foretrain.experiments.effective_theory.deep_linear.networks import real_networks, vertex
from foretrain.experiments.registry import Result, Row, Scale
from foretrain.support.drawing import INK, PALETTE, new_figure
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, spawn
from foretrain.theory.architecture import FloatArray
from foretrain.theory.ensembles import connected_correlator
from foretrain.theory.linear import scaling_limit_connected

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LARGEST_RATIO = 2.0  # of the theory curves; networks are measured up to 1/2, where the tails are still tame
_SHOWN_RATIOS = (0.1, 0.2, 0.4)


@dataclass(frozen=True)
class Network:
    """Networks of one width, and how many are drawn."""

    width: int
    depth: int
    draws: int


@dataclass(frozen=True)
class Plan:
    """The networks that are measured."""

    networks: tuple[Network, ...]


PLANS: Mapping[Scale, Plan] = {
    Scale.QUICK: Plan((Network(10, 6, 60_000), Network(20, 11, 30_000), Network(40, 17, 12_000))),
    Scale.PAPER: Plan(
        (
            Network(10, 6, 1_000_000),
            Network(20, 11, 400_000),
            Network(50, 21, 60_000),
            Network(100, 41, 10_000),
        )
    ),
}


def deep_linear_vertex(plan: Plan, seed: int) -> Result:
    """κ_2 against (l−1)/n for several widths: a straight line first (3.28), an exponential later (3.56)."""
    import xarray

    tasks = list(zip(plan.networks, spawn(seed, len(plan.networks)), strict=True))
    measured = [_measure(network, own_seed) for network, own_seed in track(tasks, "deep linear networks")]
    curves = [_curve(network.width) for network in plan.networks]
    data = xarray.merge([xarray.concat(measured, "point"), xarray.concat(curves, "curve_point")])
    rows = _table(data)
    agreeing = sum(row.agrees is True for row in rows)
    shortfall = _limit(np.array([_LARGEST_RATIO]))[0] / (2 * _LARGEST_RATIO)
    verdict = (
        f"{agreeing} of {len(rows)} measured values of κ_2 agree with the exact theory; "
        f"at (l−1)/n = {_LARGEST_RATIO:g} the straight line is short by a factor {shortfall:.0f}."
    )
    return Result(verdict, rows, data, partial(_draw, data))


def _measure(network: Network, seed: Seed) -> xarray.Dataset:
    """κ_2 of layers 2..L from the variance of the last metric over real networks."""
    import xarray

    layers = list(range(2, network.depth + 1))
    found = connected_correlator(
        real_networks(network.depth, network.width, network.draws, seed), "1122", layers=layers
    )
    return xarray.Dataset(
        {
            "theory": ("point", vertex(network.width, layers)),
            "measured": ("point", found.value.values.ravel()),
            "standard_error": ("point", found.standard_error.values.ravel()),
            "draws": ("point", [network.draws] * len(layers)),
        },
        coords={"width": ("point", [network.width] * len(layers)), "layer": ("point", layers)},
    )


def _curve(width: int) -> xarray.Dataset:
    import xarray

    layers = list(range(2, int(_LARGEST_RATIO * width) + 2))
    return xarray.Dataset(
        {"curve": ("curve_point", vertex(width, layers))},
        coords={
            "curve_width": ("curve_point", [width] * len(layers)),
            "curve_layer": ("curve_point", layers),
        },
    )


def _limit(ratios: FloatArray) -> FloatArray:
    """κ_2 as n and l grow at fixed ratio (3.56)."""
    return np.array([scaling_limit_connected(ratio, max_order=2)[1] for ratio in ratios])


def _table(data: xarray.Dataset) -> tuple[Row, ...]:
    widths = np.unique(data.width)
    bound = largest_score_allowed(len(widths) * len(_SHOWN_RATIOS))
    rows = []
    for width in widths:
        for ratio in _SHOWN_RATIOS:
            layer = round(ratio * width) + 1
            point = data.isel(point=(data.width.values == width) & (data.layer.values == layer)).squeeze(
                "point"
            )
            score = (point.measured - point.theory) / point.standard_error
            rows.append(
                Row(
                    f"κ_2, n = {width}, layer {layer}",
                    point.theory.item(),
                    point.measured.item(),
                    point.standard_error.item(),
                    agrees=bool(abs(score) <= bound),
                )
            )
    return tuple(rows)


def _draw(data: xarray.Dataset) -> Figure:
    figure, (near, far) = new_figure("Deep linear networks: interaction between neurons", 1, 2, (12, 4.8))
    _draw_lines(near, np.linspace(0, 0.5, 101))
    _draw_lines(far, np.linspace(0.01, _LARGEST_RATIO, 201))
    for color, width in zip(PALETTE, np.unique(data.width), strict=False):
        curve = data.isel(curve_point=data.curve_width.values == width)
        points = data.isel(point=data.width.values == width)
        for panel in (near, far):
            panel.plot((curve.curve_layer - 1) / width, curve.curve, color=color, linewidth=1.4)
            panel.errorbar(
                (points.layer - 1) / width,
                points.measured,
                points.standard_error,
                fmt="o",
                color=color,
                markersize=4,
                markerfacecolor="white",
                label=f"n = {width}: exact (line), measured (points)",
            )
    near.set_xlim(0, 0.52)
    near.set_ylim(0, 1.9)
    near.set_title("small ratio", fontsize=11)
    near.set_ylabel(r"$\kappa_2 = E[(z_j^2-G_2)(z_k^2-G_2)]\,/\,G_2^2$")
    far.set_yscale("log")
    far.set_xlim(0, _LARGEST_RATIO)
    far.set_title("large ratio, logarithmic axis", fontsize=11)
    for panel in (near, far):
        panel.set_xlabel(r"depth over width  $(\ell-1)/n$")
    near.legend(frameon=False, fontsize=9, loc="upper left")
    return figure


def _draw_lines(panel: Axes, ratio: FloatArray) -> None:
    panel.plot(ratio, 2 * ratio, "--", color=INK, linewidth=1.1, label=r"first order  $2(\ell-1)/n$")
    panel.plot(ratio, _limit(ratio), ":", color=INK, linewidth=1.6, label=r"limit  $e^{2(\ell-1)/n}-1$")
