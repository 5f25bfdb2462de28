"""Information between the halves of the output against depth over width, truncated and exact, and its picture."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foretrain.support.answers import BLUE, FAINT, GREEN, INK, ORANGE, RED, Axis, Figure, labelled, log
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, spawn
from foretrain.theory.advice.advise import Advice
from foretrain.theory.architecture import MLP
from foretrain.theory.finite_width import LARGE, SMALL
from foretrain.theory.information import (
    complete_information,
    log_normal_law,
    mixture_information,
    printed_information,
    sampled_law,
)

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]

_REACH = 2.5  # in units of r*
_POINTS = 61
_NETWORKS = 6  # depths at which networks are drawn
_WORK = 6e7  # normal numbers to draw
_NARROWEST = 8
_BANDS = ((GREEN, "inside"), (ORANGE, "at the edge"), (RED, "outside"))


def information_curves(advice: Advice, draws: int = 3000, seed: Seed = 0) -> xr.Dataset:
    """``printed`` (A.71) and ``complete`` series by r = L/n up to 2.5 r*, and the exact information.

    Scale-invariant networks have the exact law of the limit n, L -> infinity, ``exact`` by r. Others are drawn, at
    the width of the advice or the largest affordable one (``drawn_width``): ``drawn`` by depth with its error.
    """
    import xarray as xr

    half, kind = advice.n_out / 2, advice.criticality.universality_class
    r = np.linspace(0, _REACH * advice.best_ratio, _POINTS)
    spread = advice.nu * r
    found = {"printed": ("r", printed_information(half, half, spread))}
    if kind != "half-stable":
        found["complete"] = ("r", complete_information(half, half, spread, kind))
    data = xr.Dataset(found, coords={"r": r}, attrs={"best_ratio": advice.best_ratio, "n_out": advice.n_out})
    if kind == "scale-invariant":
        exact = [
            mixture_information(log_normal_law(float(y)), half, half).value
            for y in track(spread, "exact law")
        ]
        return data.assign(exact=("r", exact))
    drawn = _drawn(advice, half, draws, seed)
    return data.merge(drawn).assign_attrs(data.attrs | drawn.attrs)


def _drawn(advice: Advice, half: float, draws: int, seed: Seed) -> xr.Dataset:
    # Depths add up to about half of the number of networks times the deepest.
    affordable = math.sqrt(2 * _WORK / (_NETWORKS * draws * _REACH * advice.best_ratio))
    width = max(_NARROWEST, min(advice.width, int(affordable)))
    least = 3 if advice.gamma else 2
    deepest = max(least, round(_REACH * advice.best_ratio * width))
    depths = np.unique(np.linspace(least, deepest, _NETWORKS).round().astype(int))
    x = math.sqrt((advice.first_kernel - advice.network.C_b[0]) / advice.network.C_W[0])
    act, gamma, values = advice.network.activation, advice.gamma or None, []
    for depth, own in track(list(zip(depths, spawn(seed, len(depths)), strict=True)), "networks"):
        mlp = MLP.critical(act, int(depth), width, n_in=1, gamma=gamma)
        values.append(mixture_information(sampled_law(mlp, [x], draws, seed=own), half, half))
    return labelled(
        {
            "drawn": ("depth", [value.value for value in values]),
            "drawn_error": ("depth", [value.standard_error for value in values]),
        },
        {"drawn_width": width, "draws": draws},
        depth=depths,
    )


def advice_figure(advice: Advice, seed: Seed = 0, draws: int = 3000) -> Figure:
    """Left the truncated and the exact information, right which depths the expansion in 1/n reaches by width."""
    skip = f", γ = {advice.gamma:g}" if advice.gamma else ""
    title = f"{advice.criticality.activation.label}: depth for a width of {advice.width}{skip}"
    figure = Figure(title, columns=2, size=(13.0, 5.0))
    _draw_information(figure, advice, information_curves(advice, draws, seed))
    _draw_plane(figure, advice)
    return figure


def _draw_information(figure: Figure, advice: Advice, curves: xr.Dataset) -> None:
    r, printed = curves["r"].values, curves["printed"].values
    exact = curves["exact" if "exact" in curves else "drawn"].values
    top = 1.15 * float(max(exact.max(), printed.max()))
    # One output or three have no halves, only a formula that can be read so.
    half, odd = divmod(advice.n_out, 2)
    outputs = f"{half} and {half} outputs"
    if odd:
        whole = "one output" if advice.n_out == 1 else f"{advice.n_out} outputs"
        outputs = f"halves of {whole}, in the sense of (A.73)"
    panel = figure.panel(
        f"Information between {outputs}",
        x=Axis("depth over width, $r = L/n$", low=0.0, high=float(r[-1])),
        y=Axis("nats", low=-0.25 * top, high=top),
        legend="below",
        legend_columns=2,
    )
    edges = [0.0, advice.depths.small / advice.width, advice.depths.large / advice.width, r[-1]]
    for low, high, (color, _) in zip(edges, edges[1:], _BANDS):
        if low < r[-1]:
            panel.region((low, min(high, r[-1])), color=color, alpha=0.1)
    valid = printed >= 0
    panel.curve(r[valid], printed[valid], "-", "series to third order, (A.71)", BLUE, width=2.2)
    panel.curve(r[~valid], printed[~valid], ":", "the same where it is invalid", BLUE)
    if "complete" in curves:
        panel.curve(r, curves["complete"], "--", "with all terms of third order", BLUE, width=1.2)
    if "exact" in curves:
        panel.curve(r, exact, "-", "exact, deep and wide", INK, width=2.2)
    else:
        width = curves.attrs["drawn_width"]
        label = f"random networks of width {width}, two errors"
        panel.curve(curves["depth"] / width, exact, "o-", label, INK, error=2 * curves["drawn_error"])
    panel.level(x=advice.best_ratio, color=INK, dash="--")
    panel.note(advice.best_ratio, 0.97 * top, f"$r^*$ = {advice.best_ratio:.3g}", above=False)
    panel.level(0.0)


def _draw_plane(figure: Figure, advice: Advice) -> None:
    """Every ratio is a function of the layer over the width, so that one width tells about all."""
    depth = np.unique(np.geomspace(2, 4 * max(advice.depths.large, advice.depth or 2, 8), 160).round())
    needed = advice.depths.largest(depth) * advice.width
    widths = advice.width * np.geomspace(0.1, 10.0, 200)
    # The depth at which a width reaches a ratio: the inverse of the width that a depth needs, which never falls.
    rising = np.maximum.accumulate(needed)
    small, large = (np.interp(widths, rising / limit, depth, right=2 * depth[-1]) for limit in (SMALL, LARGE))
    panel = figure.panel(
        f"Where all ratios of order 1/n are small; {advice.depths.large_criterion} is the largest",
        x=log("width $n$", float(widths[0]), float(widths[-1])),
        y=log("depth $L$", 2.0, float(depth[-1])),
        legend="below",
        legend_columns=3,
    )
    ends = (0 * small + 2, small, large, 0 * large + depth[-1])
    for low, high, (color, label) in zip(ends, ends[1:], _BANDS):
        panel.region(widths, low, high, label, color, alpha=0.16)
    panel.curve(widths, small, "-", color=GREEN)
    panel.curve(widths, large, "-", color=RED)
    panel.curve(widths, advice.best_ratio * widths, "--", "$L = r^* n$", INK, width=1.4)
    panel.level(x=advice.width, color=FAINT, width=0.8)
    if advice.depth is not None:
        panel.curve([advice.width], [advice.depth], "*", "asked about", INK, size=13)
