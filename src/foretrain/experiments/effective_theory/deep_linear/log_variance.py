"""The law of log R, where R is the output variance of a deep linear network (equivalent to section 3.4).

Given the weights of all layers but the last, the outputs are independent normals of variance R. The mean of
R stays at G_2, yet log R tends to N(−r, 2r) at fixed r = L/n: the typical variance is e^{−r} G_2 and the mean
is carried by rare draws.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from foretrain.compare.judging.agreement import largest_score_allowed
from foretrain.experiments.effective_theory.deep_linear.networks import log_variance_moments, real_networks
from foretrain.experiments.registry import Result, Row, Scale
from foretrain.support.drawing import FAINT, INK, ORANGE, SKY, new_figure
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, spawn
from foretrain.theory.architecture import FloatArray
from foretrain.theory.linear import scaling_limit_log_variance

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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


PLANS: Mapping[Scale, Plan] = {
    Scale.QUICK: Plan((Network(40, 10, 10_000), Network(20, 20, 10_000))),
    Scale.PAPER: Plan((Network(80, 20, 30_000), Network(50, 50, 50_000))),
}


def log_variance(plan: Plan, seed: int) -> Result:
    """Histogram of log R over real networks, with N(−r, 2r) and the exact mean and variance."""
    import xarray

    count = len(plan.networks)
    tasks = list(zip(plan.networks, spawn(seed, count), strict=True))
    cases = [_measure(network, own) for network, own in track(tasks, "deep linear networks")]
    data = xarray.concat(cases, "case", join="outer")
    rows = tuple(row for case in range(count) for row in _rows(data.isel(case=case), 2 * count))
    deepest = data.isel(case=-1)
    verdict = (
        f"At L = {deepest.depth.item()}, n = {deepest.width.item()} the typical output variance is "
        f"{np.exp(np.nanmedian(deepest.log_R)):.2f} of its mean; mean and variance of log R "
        f"{'do not agree' if any(row.agrees is False for row in rows) else 'agree'} with the exact theory."
    )
    return Result(verdict, rows, data, partial(_draw, data))


def _measure(network: Network, seed: Seed) -> xarray.Dataset:
    import xarray

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
    mean, deviations = float(values.mean()), values - values.mean()
    spread = float(values.var(ddof=1))
    mean_error = float(np.sqrt(spread / count))
    spread_error = float(np.sqrt(np.var(deviations**2) / count))
    name = f"n = {case.width.item()}, L = {case.depth.item()}"
    ratio = case.depth.item() / case.width.item()
    rows = []
    for label, expected, here, error in (
        ("E log R", case["mean"].item(), mean, mean_error),
        ("Var log R", case.variance.item(), spread, spread_error),
    ):
        rows.append(
            Row(f"{name}: {label}", expected, here, error, agrees=abs(here - expected) <= bound * error)
        )
    limit = scaling_limit_log_variance(ratio)
    rows.append(Row(f"{name}: E log R, limit −r", limit.mean, mean, mean_error))
    rows.append(Row(f"{name}: Var log R, limit 2r", limit.variance, spread, spread_error))
    return rows


def _draw(data: xarray.Dataset) -> Figure:
    title = "Output variance R of real deep linear networks"
    figure, panels = new_figure(title, 1, data.sizes["case"], (6 * data.sizes["case"], 4.8))
    for index, panel in enumerate(panels):
        _draw_case(panel, data.isel(case=index))
    panels[0].set_ylabel("density")
    return figure


def _draw_case(panel: Axes, case: xarray.Dataset) -> None:
    values = case.log_R.dropna("draw").values
    ratio = case.depth.item() / case.width.item()
    limit = scaling_limit_log_variance(ratio)
    edges = limit.mean + np.sqrt(limit.variance) * np.linspace(-4.2, 4.2, 61)
    panel.hist(
        values, list(edges), density=True, color=SKY, edgecolor="white", linewidth=0.4, label="real networks"
    )
    grid = np.linspace(edges[0], edges[-1], 301)
    panel.plot(grid, _normal(grid, *limit), color=INK, linewidth=1.8, label="limit  $N(-r, 2r)$")
    exact = _normal(grid, case["mean"].item(), case.variance.item())
    panel.plot(grid, exact, "--", color=ORANGE, linewidth=1.8, label="normal with exact mean and variance")
    top = 1.45 * exact.max()
    panel.set_ylim(0, top)
    for place, text, side in ((0.0, "mean of R", "left"), (float(np.median(values)), "typical R", "right")):
        panel.axvline(place, color=FAINT, linewidth=1.2, linestyle=":")
        offset = 4 if side == "left" else -4
        panel.annotate(
            text, (place, 0.76 * top), (offset, 0), textcoords="offset points", ha=side, fontsize=9, color=INK
        )
    panel.set_title(f"n = {case.width.item()}, L = {case.depth.item()}  (r = {ratio:g})", fontsize=11)
    panel.set_xlabel(r"$\log (R/G_2)$")
    panel.legend(frameon=False, fontsize=9, loc="upper left")


def _normal(grid: FloatArray, mean: float, variance: float) -> FloatArray:
    density: FloatArray = np.exp(-0.5 * (grid - mean) ** 2 / variance) / np.sqrt(2 * np.pi * variance)
    return density
