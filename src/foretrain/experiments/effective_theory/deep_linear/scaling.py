"""Moments of deep linear networks at fixed depth over width r tend to e^{m(m−1)r} like 1/n (section 3.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from foretrain.compare.judging.agreement import largest_score_allowed
from foretrain.experiments.effective_theory.deep_linear.networks import moment, real_networks
from foretrain.experiments.registry import Result, Row, Scale
from foretrain.support.drawing import PALETTE, new_figure
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, spawn
from foretrain.theory.ensembles import moment_sums
from foretrain.theory.linear import scaling_limit_moments, scaling_limit_relative_error

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ORDERS = (2, 3, 4)  # m of G_2m
_MEASURED_ORDERS = (2, 3)  # one draw of R^4 is too noisy to show the 1/n correction
_WIDTHS = (10, 20, 40, 80, 160, 320, 640, 1280)


@dataclass(frozen=True)
class Plan:
    """Depth over width, and how many networks of which widths are drawn."""

    ratio: float
    draws: dict[int, int]  # by width


PLANS: Mapping[Scale, Plan] = {
    Scale.QUICK: Plan(0.2, {10: 400_000, 20: 100_000, 40: 20_000}),
    Scale.PAPER: Plan(0.2, {10: 4_000_000, 20: 1_500_000, 40: 400_000, 80: 60_000}),
}


def deep_linear_scaling(plan: Plan, seed: int) -> Result:
    """G_2m / G_2^m at fixed r = L/n against its limit: exact at all widths, measured at the smaller ones."""
    import xarray

    exact = [[moment(n, _depth(n, plan.ratio), m) for n in _WIDTHS] for m in _ORDERS]
    limits = scaling_limit_moments(plan.ratio, max(_ORDERS))
    errors = [[scaling_limit_relative_error(plan.ratio, m, n) for n in _WIDTHS] for m in _ORDERS]
    tasks = list(zip(plan.draws.items(), spawn(seed, len(plan.draws)), strict=True))
    found = [_measure(n, draws, plan.ratio, own) for (n, draws), own in track(tasks, "deep linear networks")]
    data = xarray.Dataset(
        {
            "limit": ("order", [limits[m - 1] for m in _ORDERS]),
            "exact": (("order", "width"), exact),
            "first_order_error": (("order", "width"), errors),
        },
        coords={"order": list(_ORDERS), "width": list(_WIDTHS)},
        attrs={"ratio": plan.ratio},
    )
    measured = xarray.concat(found, "width").reindex(order=list(_ORDERS), width=list(_WIDTHS))
    data = data.merge(measured.transpose("order", "width"))
    rows = (*_limit_rows(data), *_measured_rows(data, list(plan.draws)))
    verdict = (
        f"At depth over width r = {plan.ratio:g} the moments tend to e^(m(m−1)r) with an error that halves "
        f"when the width doubles; real networks of widths {', '.join(map(str, plan.draws))} "
        f"{'agree' if all(row.agrees for row in rows) else 'do not all agree'} with the exact values."
    )
    return Result(verdict, rows, data, partial(_draw, data))


def _depth(width: int, ratio: float) -> int:
    return round(ratio * width)


def _measure(width: int, draws: int, ratio: float, seed: Seed) -> xarray.Dataset:
    """G_2m as the correlator of m neurons, two legs each."""
    import xarray

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
    rows = []
    for order in _ORDERS:
        here = error.sel(order=order)
        halving = float(here[-2] / here[-1])
        rows.append(
            Row(f"m = {order}: error ratio on doubling n", 2.0, halving, agrees=abs(halving - 2) < 0.05)
        )
        expected = float(data.first_order_error.sel(order=order)[-1] * _WIDTHS[-1])
        scaled = float(here[-1] * _WIDTHS[-1])
        close = abs(scaled / expected - 1) < 0.05
        rows.append(
            Row(f"m = {order}: n × relative error, n = {_WIDTHS[-1]}", expected, scaled, agrees=close)
        )
    return rows


def _measured_rows(data: xarray.Dataset, widths: list[int]) -> list[Row]:
    bound = largest_score_allowed(len(_MEASURED_ORDERS) * len(widths))
    rows = []
    for width in widths:
        for order in _MEASURED_ORDERS:
            point = data.sel(width=width, order=order)
            score = (point.measured - point.exact) / point.standard_error
            rows.append(
                Row(
                    f"G_{2 * order} / G_2^{order}, n = {width}, L = {_depth(width, data.attrs['ratio'])}",
                    point.exact.item(),
                    point.measured.item(),
                    point.standard_error.item(),
                    agrees=bool(abs(score) <= bound),
                )
            )
    return rows


def _draw(data: xarray.Dataset) -> Figure:
    title = f"Deep linear networks at depth over width r = {data.attrs['ratio']:g}"
    figure, (values, errors) = new_figure(title, 1, 2, (12, 4.8))
    for color, order in zip(PALETTE, _ORDERS, strict=False):
        chosen = data.sel(order=order)
        _draw_moment(values, chosen, order, color)
        errors.plot(
            data.width, 1 - chosen.exact / chosen.limit, "o-", color=color, markersize=4, label=f"m = {order}"
        )
        errors.plot(data.width, -chosen.first_order_error, "--", color=color, linewidth=1)
    values.set_title("moments: exact (lines), real networks (points), limit (dotted)", fontsize=11)
    values.set_ylabel(r"$G_{2m}/G_2^m$")
    values.set_yscale("log")
    values.set_ylim(1, 14)
    values.set_yticks([1, 1.5, 2, 3, 5, 10], ["1", "1.5", "2", "3", "5", "10"])
    errors.set_title("distance from the limit: exact (solid), first order in 1/n (dashed)", fontsize=11)
    errors.set_ylabel(r"$1-G_{2m}\,/\,(G_2^m\,e^{m(m-1)r})$")
    errors.set_yscale("log")
    for panel in (values, errors):
        panel.set_xscale("log")
        panel.set_xticks(_WIDTHS, [str(n) for n in _WIDTHS])
        panel.minorticks_off()
        panel.set_xlabel("width n")
    errors.legend(frameon=False, fontsize=9)
    return figure


def _draw_moment(panel: Axes, data: xarray.Dataset, order: int, color: str) -> None:
    panel.axhline(float(data.limit), color=color, linestyle=":", linewidth=1.6)
    panel.plot(data.width, data.exact, color=color, linewidth=1.4)
    measured = data.dropna("width")
    panel.errorbar(
        measured.width,
        measured.measured,
        measured.standard_error,
        fmt="o",
        color=color,
        markersize=5,
        markerfacecolor="white",
    )
    label = rf"$m = {order}$,  limit $e^{{{order * (order - 1)}r}}$"
    panel.annotate(
        label,
        (data.width[-1], float(data.limit)),
        (0, 5),
        textcoords="offset points",
        ha="right",
        color=color,
    )
