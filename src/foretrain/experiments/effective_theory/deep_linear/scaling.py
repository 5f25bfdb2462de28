"""Moments of deep linear networks at fixed depth over width r tend to e^{m(m−1)r} like 1/n (section 3.4)."""

from __future__ import annotations

from dataclasses import dataclass

import xarray

from foretrain.compare.judging.agreement import largest_score_allowed
from foretrain.experiments.effective_theory.deep_linear.networks import moment, real_networks
from foretrain.experiments.judgements import computed_row, limit_row
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import PALETTE, Figure, log
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, with_seeds
from foretrain.theory.ensembles import moment_sums
from foretrain.theory.linear import scaling_limit_moments, scaling_limit_relative_error

_ORDERS = (2, 3, 4)  # m of G_2m
_MEASURED_ORDERS = (2, 3)  # one draw of R^4 is too noisy to show the 1/n correction
_WIDTHS = (10, 20, 40, 80, 160, 320, 640, 1280)


@dataclass(frozen=True)
class Plan:
    """Depth over width, and how many networks of which widths are drawn."""

    ratio: float
    draws: dict[int, int]  # by width


PLANS = plans(
    quick=Plan(0.2, {10: 400_000, 20: 100_000, 40: 20_000}),
    paper=Plan(0.2, {10: 4_000_000, 20: 1_500_000, 40: 400_000, 80: 60_000}),
)


def deep_linear_scaling(plan: Plan, seed: int) -> Result:
    """G_2m / G_2^m at fixed r = L/n against its limit: exact at all widths, measured at the smaller ones."""
    exact = [[moment(n, _depth(n, plan.ratio), m) for n in _WIDTHS] for m in _ORDERS]
    limits = scaling_limit_moments(plan.ratio, max(_ORDERS))
    errors = [[scaling_limit_relative_error(plan.ratio, m, n) for n in _WIDTHS] for m in _ORDERS]
    tasks = track(with_seeds(plan.draws.items(), seed), "deep linear networks")
    measured = [_measure(n, draws, plan.ratio, own) for (n, draws), own in tasks]
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
    rows = (*_limit_rows(data), *_measured_rows(data, list(plan.draws)))
    verdict = (
        f"At depth over width r = {plan.ratio:g} the moments tend to e^(m(m−1)r) with an error that halves "
        f"when the width doubles; real networks of widths {', '.join(map(str, plan.draws))} "
        f"{'agree' if all(row.agrees for row in rows) else 'do not all agree'} with the exact values."
    )
    return Result(verdict, rows, data, _figure)


def _depth(width: int, ratio: float) -> int:
    return round(ratio * width)


def _measure(width: int, draws: int, ratio: float, seed: Seed) -> xarray.Dataset:
    """G_2m as the correlator of m neurons, two legs each."""
    depth = _depth(width, ratio)
    ensemble = real_networks(depth, width, draws, seed)
    moments = [((0, 0),) * order for order in _MEASURED_ORDERS]
    value, error = moment_sums(ensemble, (depth,), moments, "wick").estimate(lambda means: means)
    return xarray.Dataset(
        {"measured": ("order", value[0]), "standard_error": ("order", error[0]), "draws": draws},
        coords={"order": list(_MEASURED_ORDERS), "width": width},
    )


def _limit_rows(data: xarray.Dataset) -> list[Row]:
    """How the exact values approach the limit: rate 1/n, and with the coefficient of the expansion."""
    error = data.exact / data.limit - 1
    rows, n = [], _WIDTHS[-1]
    for order in _ORDERS:
        here = error.sel(order=order).values
        rows.append(computed_row(f"m = {order}: error ratio on doubling n", 2.0, here[-2] / here[-1], 0.05))
        expected = n * data.first_order_error.sel(order=order)[-1].item()
        title = f"m = {order}: n × relative error, n = {n}"
        rows.append(computed_row(title, expected, n * here[-1], 0.05 * abs(expected)))
    return rows


def _measured_rows(data: xarray.Dataset, widths: list[int]) -> list[Row]:
    bound = largest_score_allowed(len(_MEASURED_ORDERS) * len(widths))
    names = ("exact", "measured", "standard_error")
    rows = []
    for width in widths:
        for order in _MEASURED_ORDERS:
            title = f"G_{2 * order} / G_2^{order}, n = {width}, L = {_depth(width, data.attrs['ratio'])}"
            rows.append(limit_row(title, data.sel(width=width, order=order), bound, names))
    return rows


def _figure(data: xarray.Dataset) -> Figure:
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
