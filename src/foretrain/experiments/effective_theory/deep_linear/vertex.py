"""The connected four-point function of deep linear networks against depth over width (section 3.3)."""

from __future__ import annotations

import numpy as np
import xarray

from foretrain.compare.judging.agreement import largest_score_allowed
from foretrain.experiments.effective_theory.deep_linear.networks import Network, Plan, real_networks, vertex
from foretrain.experiments.judgements import limit_row
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import INK, PALETTE, Axis, Figure, log
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, with_seeds
from foretrain.theory.architecture import FloatArray
from foretrain.theory.ensembles import connected_correlator
from foretrain.theory.linear import scaling_limit_connected

_LARGEST_RATIO = 2.0  # of the theory curves; networks are measured up to 1/2, where the tails are still tame
_SHOWN_RATIOS = (0.1, 0.2, 0.4)


PLANS = plans(
    quick=Plan((Network(10, 6, 60_000), Network(20, 11, 30_000), Network(40, 17, 12_000))),
    paper=Plan(
        (
            Network(10, 6, 1_000_000),
            Network(20, 11, 400_000),
            Network(50, 21, 60_000),
            Network(100, 41, 10_000),
        )
    ),
)


def deep_linear_vertex(plan: Plan, seed: int) -> Result:
    """κ_2 against (l−1)/n for several widths: a straight line first (3.28), an exponential later (3.56)."""
    tasks = track(with_seeds(plan.networks, seed), "deep linear networks")
    measured = [_measure(network, own) for network, own in tasks]
    curves = [_curve(network.width) for network in plan.networks]
    data = xarray.merge([xarray.concat(measured, "point"), xarray.concat(curves, "curve_point")])
    rows = _table(data)
    agreeing = sum(row.agrees is True for row in rows)
    shortfall = _limit(np.array([_LARGEST_RATIO]))[0] / (2 * _LARGEST_RATIO)
    verdict = (
        f"{agreeing} of {len(rows)} measured values of κ_2 agree with the exact theory; "
        f"at (l−1)/n = {_LARGEST_RATIO:g} the straight line is short by a factor {shortfall:.0f}."
    )
    return Result(verdict, rows, data, _figure)


def _measure(network: Network, seed: Seed) -> xarray.Dataset:
    """κ_2 of layers 2..L from the variance of the last metric over real networks."""
    layers = list(range(2, network.depth + 1))
    networks = real_networks(network.depth, network.width, network.draws, seed)
    correlator = connected_correlator(networks, "1122", layers=layers)
    return xarray.Dataset(
        {
            "theory": ("point", vertex(network.width, layers)),
            "measured": ("point", correlator.value.values.ravel()),
            "standard_error": ("point", correlator.standard_error.values.ravel()),
            "draws": ("point", [network.draws] * len(layers)),
        },
        coords={"width": ("point", [network.width] * len(layers)), "layer": ("point", layers)},
    )


def _curve(width: int) -> xarray.Dataset:
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
    widths, rows = np.unique(data.width), []
    bound = largest_score_allowed(len(widths) * len(_SHOWN_RATIOS))
    for width in widths:
        for ratio in _SHOWN_RATIOS:
            layer = round(ratio * width) + 1
            at = data.isel(point=(data.width.values == width) & (data.layer.values == layer)).squeeze("point")
            names = ("theory", "measured", "standard_error")
            rows.append(limit_row(f"κ_2, n = {width}, layer {layer}", at, bound, names))
    return tuple(rows)


def _figure(data: xarray.Dataset) -> Figure:
    figure = Figure("Deep linear networks: interaction between neurons", columns=2, size=(12, 4.8))
    symbol = r"$\kappa_2 = E[(z_j^2-G_2)(z_k^2-G_2)]\,/\,G_2^2$"
    for title, largest, y in (
        ("small ratio", 0.52, Axis(symbol, low=0, high=1.9)),
        ("large ratio, logarithmic axis", _LARGEST_RATIO, log()),
    ):
        x = Axis(r"depth over width  $(\ell-1)/n$", low=0, high=largest)
        panel = figure.panel(title, x, y, legend="" if figure.panels else "upper left")
        ratio = np.linspace(0.01, largest, 201)
        panel.curve(ratio, 2 * ratio, "--", r"first order  $2(\ell-1)/n$", INK, width=1.1)
        panel.curve(ratio, _limit(ratio), ":", r"limit  $e^{2(\ell-1)/n}-1$", INK)
        for color, width in zip(PALETTE, np.unique(data.width), strict=False):
            curve = data.isel(curve_point=data.curve_width.values == width)
            at = data.isel(point=data.width.values == width)
            panel.curve((curve.curve_layer - 1) / width, curve.curve, "-", "", color)
            label = f"n = {width}: exact (line), measured (points)"
            points = (at.layer - 1) / width, at.measured
            panel.curve(*points, "o", label, color, error=at.standard_error, hollow=True, size=4)
    return figure
