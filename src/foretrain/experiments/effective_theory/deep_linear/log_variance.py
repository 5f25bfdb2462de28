"""The law of log R, where R is the output variance of a deep linear network (equivalent to section 3.4).

Given the weights of all layers but the last, the outputs are independent normals of variance R. The mean of
R stays at G_2, yet log R tends to N(−r, 2r) at fixed r = L/n: the typical variance is e^{−r} G_2 and the mean
is carried by rare draws.
"""

from __future__ import annotations

import numpy as np
import xarray

from foretrain.compare.judging.agreement import largest_score_allowed
from foretrain.experiments.effective_theory.deep_linear.networks import (
    Network,
    Plan,
    log_variance_moments,
    real_networks,
)
from foretrain.experiments.judgements import measured_row
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import INK, ORANGE, SKY, Axis, Figure
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, with_seeds
from foretrain.theory.architecture import FloatArray
from foretrain.theory.linear import scaling_limit_log_variance

PLANS = plans(
    quick=Plan((Network(40, 10, 10_000), Network(20, 20, 10_000))),
    paper=Plan((Network(80, 20, 30_000), Network(50, 50, 50_000))),
)


def log_variance(plan: Plan, seed: int) -> Result:
    """Histogram of log R over real networks, with N(−r, 2r) and the exact mean and variance."""
    tasks = track(with_seeds(plan.networks, seed), "deep linear networks")
    cases = [_measure(network, own) for network, own in tasks]
    data = xarray.concat(cases, "case", join="outer")
    rows = tuple(row for case in range(len(cases)) for row in _rows(data.isel(case=case), 2 * len(cases)))
    deepest = data.isel(case=-1)
    verdict = (
        f"At L = {deepest.depth.item()}, n = {deepest.width.item()} the typical output variance is "
        f"{np.exp(np.nanmedian(deepest.log_R)):.2f} of its mean; mean and variance of log R "
        f"{'do not agree' if any(row.agrees is False for row in rows) else 'agree'} with the exact theory."
    )
    return Result(verdict, rows, data, _figure)


def _measure(network: Network, seed: Seed) -> xarray.Dataset:
    ensemble = real_networks(network.depth, network.width, network.draws, seed)
    metrics = [chunk[network.depth].ravel() for chunk in ensemble.metrics([network.depth])]
    mean, variance = log_variance_moments(network.width, network.depth)
    return xarray.Dataset(
        {"log_R": ("draw", np.log(np.concatenate(metrics))), "mean": mean, "variance": variance},
        coords={"draw": range(network.draws), "width": network.width, "depth": network.depth},
    )


def _rows(case: xarray.Dataset, tested: int) -> list[Row]:
    """Mean and variance against the exact theory, and against the limit for orientation."""
    values = case.log_R.dropna("draw").values
    count, bound = len(values), largest_score_allowed(tested)
    mean, spread = float(values.mean()), float(values.var(ddof=1))
    mean_error = float(np.sqrt(spread / count))
    spread_error = float(np.sqrt(np.var((values - values.mean()) ** 2) / count))
    name = f"n = {case.width.item()}, L = {case.depth.item()}"
    limit = scaling_limit_log_variance(case.depth.item() / case.width.item())
    return [
        measured_row(f"{name}: E log R", case["mean"].item(), mean, mean_error, bound),
        measured_row(f"{name}: Var log R", case.variance.item(), spread, spread_error, bound),
        Row(f"{name}: E log R, limit −r", limit.mean, mean, mean_error),
        Row(f"{name}: Var log R, limit 2r", limit.variance, spread, spread_error),
    ]


def _figure(data: xarray.Dataset) -> Figure:
    cases = [data.isel(case=index) for index in range(data.sizes["case"])]
    title = "Output variance R of real deep linear networks"
    figure = Figure(title, columns=len(cases), size=(6 * len(cases), 4.8))
    for case in cases:
        values = case.log_R.dropna("draw").values
        width, depth = case.width.item(), case.depth.item()
        limit = scaling_limit_log_variance(depth / width)
        edges = limit.mean + np.sqrt(limit.variance) * np.linspace(-4.2, 4.2, 61)
        grid = np.linspace(edges[0], edges[-1], 301)
        exact = _normal(grid, case["mean"].item(), case.variance.item())
        top = 1.45 * exact.max()
        title = f"n = {width}, L = {depth}  (r = {depth / width:g})"
        panel = figure.panel(title, r"$\log (R/G_2)$", Axis("density", low=0, high=top), legend="upper left")
        panel.histogram(values, edges, "real networks", SKY)
        panel.curve(grid, _normal(grid, *limit), "-", "limit  $N(-r, 2r)$", INK)
        panel.curve(grid, exact, "--", "normal, exact moments", ORANGE)
        panel.level(x=0, dash=":", width=1.2)
        panel.note(0, 0.76 * top, "mean of R")
        panel.level(x=np.median(values), dash=":", width=1.2)
        panel.note(np.median(values), 0.76 * top, "typical R", align="right")
    return figure


def _normal(grid: FloatArray, mean: float, variance: float) -> FloatArray:
    return np.asarray(np.exp(-0.5 * (grid - mean) ** 2 / variance) / np.sqrt(2 * np.pi * variance))
