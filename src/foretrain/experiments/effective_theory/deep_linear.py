"""Chapter 3: deep linear networks, exact in width, beside real ones.

Weights have C_W = 1, biases are zero and the input has G^(0) = 1, so the two-point function is 1 in every layer and
only the growth of the higher moments with depth over width is left.

``deep_linear_vertex``   the connected four-point function against depth over width (section 3.3)
``deep_linear_scaling``  moments at fixed depth over width r tend to e^{m(m−1)r} like 1/n (section 3.4)
``log_variance``         the law of log R, where R is the output variance (equivalent to section 3.4)

Given the weights of all layers but the last, the outputs are independent normals of variance R. The mean of R stays
at G_2, yet log R tends to N(−r, 2r) at fixed r = L/n: the typical variance is e^{−r} G_2 and the mean is carried by
rare draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import xarray

from foretrain.compare.judging.agreement import largest_score_allowed
from foretrain.experiments.judgements import agreeing, computed_row, limit_row, measured_row
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import INK, ORANGE, PALETTE, SKY, Axis, Figure, log
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, with_seeds
from foretrain.theory import linear
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.ensembles import Ensemble, connected_correlator, moment_sums

_G0 = 1.0
_LARGEST_RATIO = 2.0  # of the theory curves; networks are measured up to 1/2, where the tails are still tame
_SHOWN_RATIOS = (0.1, 0.2, 0.4)
_ORDERS = (2, 3, 4)  # m of G_2m
_MEASURED_ORDERS = (2, 3)  # one draw of R^4 is too noisy to show the 1/n correction
_WIDTHS = (10, 20, 40, 80, 160, 320, 640, 1280)


@dataclass(frozen=True)
class Network:
    """Networks of one shape, and how many are drawn."""

    width: int
    depth: int
    draws: int


@dataclass(frozen=True)
class Plan:
    """The networks that are measured."""

    networks: tuple[Network, ...]


@dataclass(frozen=True)
class ScalingPlan:
    """Depth over width, and how many networks of which widths are drawn."""

    ratio: float
    draws: dict[int, int]  # by width


PLANS = {
    "deep_linear_vertex": plans(
        quick=Plan((Network(10, 6, 60_000), Network(20, 11, 30_000), Network(40, 17, 12_000))),
        paper=Plan(
            (
                Network(10, 6, 1_000_000),
                Network(20, 11, 400_000),
                Network(50, 21, 60_000),
                Network(100, 41, 10_000),
            )
        ),
    ),
    "deep_linear_scaling": plans(
        quick=ScalingPlan(0.2, {10: 400_000, 20: 100_000, 40: 20_000}),
        paper=ScalingPlan(0.2, {10: 4_000_000, 20: 1_500_000, 40: 400_000, 80: 60_000}),
    ),
    "log_variance": plans(
        quick=Plan((Network(40, 10, 10_000), Network(20, 20, 10_000))),
        paper=Plan((Network(80, 20, 30_000), Network(50, 50, 50_000))),
    ),
}


def real_networks(depth: int, width: int, draws: int, seed: Seed) -> Ensemble:
    """Critical deep linear networks with weights drawn one by one, on one input."""
    mlp = MLP("linear", depth=depth, width=width)
    return Ensemble(mlp, np.full((1, 1), np.sqrt(_G0)), draws, method="weights", seed=seed)


def vertex(width: int, layers: Sequence[int]) -> FloatArray:
    """κ_2 = G_4 − G_2² at these layers, exact in width (3.29)."""
    kappa = linear.connected(linear.DeepLinear.critical([width] * max(layers)), _G0, max_order=2)
    return np.asarray(kappa.sel(order=2, layer=list(layers)).values, dtype=np.float64)


def moment(width: int, depth: int, order: int) -> float:
    """G_2m of the output, m = order, exact in width (3.47)."""
    found = linear.moments(linear.DeepLinear.critical([width] * depth), _G0, max_order=order)
    return float(found.sel(layer=depth, order=order))


def deep_linear_vertex(plan: Plan, seed: int) -> Result:
    """κ_2 against (l−1)/n for several widths: a straight line first (3.28), an exponential later (3.56)."""
    measured, curves = [], []
    for network, own in track(with_seeds(plan.networks, seed), "deep linear networks"):
        # κ_2 of layers 2..L from the variance of the last metric over real networks.
        layers = list(range(2, network.depth + 1))
        networks = real_networks(network.depth, network.width, network.draws, own)
        correlator = connected_correlator(networks, "1122", layers=layers)
        values = {
            "theory": vertex(network.width, layers),
            "measured": correlator.value.values.ravel(),
            "standard_error": correlator.standard_error.values.ravel(),
            "draws": [network.draws] * len(layers),
        }
        places = {"width": ("point", [network.width] * len(layers)), "layer": ("point", layers)}
        points = {name: ("point", each) for name, each in values.items()}
        measured.append(xarray.Dataset(points, places))
        # The exact curve goes on to deeper networks.
        layers = list(range(2, int(_LARGEST_RATIO * network.width) + 2))
        curve, width = vertex(network.width, layers), ("curve_point", [network.width] * len(layers))
        places = {"curve_width": width, "curve_layer": ("curve_point", layers)}
        curves.append(xarray.Dataset({"curve": ("curve_point", curve)}, places))
    data = xarray.merge([xarray.concat(measured, "point"), xarray.concat(curves, "curve_point")])
    cases = list(product(np.unique(data.width), _SHOWN_RATIOS))
    bound, names, rows = largest_score_allowed(len(cases)), ("theory", "measured", "standard_error"), []
    for width, ratio in cases:
        layer = round(ratio * width) + 1
        at = data.isel(point=(data.width.values == width) & (data.layer.values == layer)).squeeze("point")
        rows.append(limit_row(f"κ_2, n = {width}, layer {layer}", at, bound, names))
    shortfall = _vertex_limit(np.array([_LARGEST_RATIO]))[0] / (2 * _LARGEST_RATIO)
    verdict = (
        f"{agreeing(rows)} measured values of κ_2 agree with the exact theory; "
        f"at (l−1)/n = {_LARGEST_RATIO:g} the straight line is short by a factor {shortfall:.0f}."
    )
    return Result(verdict, tuple(rows), data, _vertex_figure)


def _vertex_limit(ratios: FloatArray) -> FloatArray:
    """κ_2 as n and l grow at fixed ratio (3.56)."""
    return np.array([linear.scaling_limit_connected(ratio, max_order=2)[1] for ratio in ratios])


def _vertex_figure(data: xarray.Dataset) -> Figure:
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
        panel.curve(ratio, _vertex_limit(ratio), ":", r"limit  $e^{2(\ell-1)/n}-1$", INK)
        for color, width in zip(PALETTE, np.unique(data.width), strict=False):
            curve = data.isel(curve_point=data.curve_width.values == width)
            at = data.isel(point=data.width.values == width)
            panel.curve((curve.curve_layer - 1) / width, curve.curve, "-", "", color)
            label = f"n = {width}: exact (line), measured (points)"
            points = (at.layer - 1) / width, at.measured
            panel.curve(*points, "o", label, color, error=at.standard_error, hollow=True, size=4)
    return figure


def deep_linear_scaling(plan: ScalingPlan, seed: int) -> Result:
    """G_2m / G_2^m at fixed r = L/n against its limit: exact at all widths, measured at the smaller ones."""
    exact = [[moment(n, _depth(n, plan.ratio), m) for n in _WIDTHS] for m in _ORDERS]
    limits = linear.scaling_limit_moments(plan.ratio, max(_ORDERS))
    errors = [[linear.scaling_limit_relative_error(plan.ratio, m, n) for n in _WIDTHS] for m in _ORDERS]
    tasks = track(with_seeds(plan.draws.items(), seed), "deep linear networks")
    measured = []
    for (width, draws), own in tasks:  # G_2m as the correlator of m neurons, two legs each
        depth, moments = _depth(width, plan.ratio), [((0, 0),) * order for order in _MEASURED_ORDERS]
        ensemble = real_networks(depth, width, draws, own)
        value, spread = moment_sums(ensemble, (depth,), moments, "wick").estimate(lambda means: means)
        values = {"measured": ("order", value[0]), "standard_error": ("order", spread[0]), "draws": draws}
        measured.append(xarray.Dataset(values, {"order": list(_MEASURED_ORDERS), "width": width}))
    data = xarray.Dataset(
        {
            "limit": ("order", [limits[m - 1] for m in _ORDERS]),
            "exact": (("order", "width"), exact),
            "first_order_error": (("order", "width"), errors),
        },
        coords={"order": list(_ORDERS), "width": list(_WIDTHS)},
        attrs={"ratio": plan.ratio},
    )
    real = xarray.concat(measured, "width").reindex(order=list(_ORDERS), width=list(_WIDTHS))
    data = data.merge(real.transpose("order", "width"))
    rows, n, error = [], _WIDTHS[-1], data.exact / data.limit - 1
    for order in _ORDERS:  # the exact values approach the limit as 1/n, with the coefficient of the expansion
        here = error.sel(order=order).values
        rows.append(computed_row(f"m = {order}: error ratio on doubling n", 2.0, here[-2] / here[-1], 0.05))
        expected = n * data.first_order_error.sel(order=order)[-1].item()
        title = f"m = {order}: n × relative error, n = {n}"
        rows.append(computed_row(title, expected, n * here[-1], 0.05 * abs(expected)))
    bound, names = (
        largest_score_allowed(len(_MEASURED_ORDERS) * len(plan.draws)),
        ("exact", "measured", "standard_error"),
    )
    for width, order in product(plan.draws, _MEASURED_ORDERS):
        title = f"G_{2 * order} / G_2^{order}, n = {width}, L = {_depth(width, plan.ratio)}"
        rows.append(limit_row(title, data.sel(width=width, order=order), bound, names))
    verdict = (
        f"At depth over width r = {plan.ratio:g} the moments tend to e^(m(m−1)r) with an error that halves "
        f"when the width doubles; real networks of widths {', '.join(map(str, plan.draws))} "
        f"{'agree' if all(row.agrees for row in rows) else 'do not all agree'} with the exact values."
    )
    return Result(verdict, tuple(rows), data, _scaling_figure)


def _depth(width: int, ratio: float) -> int:
    return round(ratio * width)


def _scaling_figure(data: xarray.Dataset) -> Figure:
    title = f"Deep linear networks at depth over width r = {data.attrs['ratio']:g}"
    figure, width = Figure(title, columns=2, size=(12, 4.8)), log("width n", ticks=_WIDTHS)
    title = "moments: exact (lines), real networks (points), limit (dotted)"
    values = figure.panel(title, width, log(r"$G_{2m}/G_2^m$", 1, 14, ticks=(1, 1.5, 2, 3, 5, 10)))
    title = "distance from the limit: exact (solid), first order in 1/n (dashed)"
    errors = figure.panel(title, width, log(r"$1-G_{2m}\,/\,(G_2^m\,e^{m(m-1)r})$"))
    for color, order in zip(PALETTE, _ORDERS, strict=False):
        own, limit = data.sel(order=order), data.limit.sel(order=order).item()
        values.level(y=limit, color=color, dash=":", width=1.6)
        text = rf"$m = {order}$,  limit $e^{{{order * (order - 1)}r}}$"
        values.note(_WIDTHS[-1], limit, text, color, align="right", above=True)
        values.curve(own.width, own.exact, "-", "", color)
        real = own.dropna("width")
        values.curve(real.width, real.measured, "o", "", color, error=real.standard_error, hollow=True)
        errors.curve(own.width, 1 - own.exact / limit, "o-", f"m = {order}", color, size=4)
        errors.curve(own.width, -own.first_order_error, "--", "", color, width=1)
    return figure


def log_variance(plan: Plan, seed: int) -> Result:
    """Histogram of log R over real networks, with N(−r, 2r) and the exact mean and variance."""
    cases = []
    for network, own in track(with_seeds(plan.networks, seed), "deep linear networks"):
        ensemble = real_networks(network.depth, network.width, network.draws, own)
        metrics = [chunk[network.depth].ravel() for chunk in ensemble.metrics([network.depth])]
        exact = linear.DeepLinear.critical([network.width] * network.depth)
        law = linear.log_variance_statistics(exact, _G0).sel(layer=network.depth)
        values = {name: float(law[name]) for name in ("mean", "variance")}
        places = {"draw": range(network.draws), "width": network.width, "depth": network.depth}
        drawn = {"log_R": ("draw", np.log(np.concatenate(metrics)))}
        cases.append(xarray.Dataset({**drawn, **values}, places))
    data = xarray.concat(cases, "case", join="outer")
    rows = tuple(
        row for case in range(len(cases)) for row in _log_variance_rows(data.isel(case=case), 2 * len(cases))
    )
    deepest = data.isel(case=-1)
    verdict = (
        f"At L = {deepest.depth.item()}, n = {deepest.width.item()} the typical output variance is "
        f"{np.exp(np.nanmedian(deepest.log_R)):.2f} of its mean; mean and variance of log R "
        f"{'do not agree' if any(row.agrees is False for row in rows) else 'agree'} with the exact theory."
    )
    return Result(verdict, rows, data, _log_variance_figure)


def _log_variance_rows(case: xarray.Dataset, tested: int) -> list[Row]:
    """Mean and variance against the exact theory, and against the limit for orientation."""
    values = case.log_R.dropna("draw").values
    count, bound = len(values), largest_score_allowed(tested)
    mean, spread = float(values.mean()), float(values.var(ddof=1))
    mean_error = float(np.sqrt(spread / count))
    spread_error = float(np.sqrt(np.var((values - values.mean()) ** 2) / count))
    name = f"n = {case.width.item()}, L = {case.depth.item()}"
    limit = linear.scaling_limit_log_variance(case.depth.item() / case.width.item())
    return [
        measured_row(f"{name}: E log R", case["mean"].item(), mean, mean_error, bound),
        measured_row(f"{name}: Var log R", case.variance.item(), spread, spread_error, bound),
        Row(f"{name}: E log R, limit −r", limit.mean, mean, mean_error),
        Row(f"{name}: Var log R, limit 2r", limit.variance, spread, spread_error),
    ]


def _log_variance_figure(data: xarray.Dataset) -> Figure:
    cases = [data.isel(case=index) for index in range(data.sizes["case"])]
    title = "Output variance R of real deep linear networks"
    figure = Figure(title, columns=len(cases), size=(6 * len(cases), 4.8))
    for case in cases:
        values = case.log_R.dropna("draw").values
        width, depth = case.width.item(), case.depth.item()
        limit = linear.scaling_limit_log_variance(depth / width)
        edges = limit.mean + np.sqrt(limit.variance) * np.linspace(-4.2, 4.2, 61)
        grid = np.linspace(edges[0], edges[-1], 301)
        exact, simple = (
            np.exp(-0.5 * (grid - mean) ** 2 / variance) / np.sqrt(2 * np.pi * variance)
            for mean, variance in ((case["mean"].item(), case.variance.item()), limit)
        )
        top = 1.45 * exact.max()
        title = f"n = {width}, L = {depth}  (r = {depth / width:g})"
        panel = figure.panel(title, r"$\log (R/G_2)$", Axis("density", low=0, high=top), legend="upper left")
        panel.histogram(values, edges, "real networks", SKY)
        panel.curve(grid, simple, "-", "limit  $N(-r, 2r)$", INK)
        panel.curve(grid, exact, "--", "normal, exact moments", ORANGE)
        panel.level(x=0, dash=":", width=1.2)
        panel.note(0, 0.76 * top, "mean of R")
        panel.level(x=np.median(values), dash=":", width=1.2)
        panel.note(np.median(values), 0.76 * top, "typical R", align="right")
    return figure
