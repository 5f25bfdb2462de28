"""How deep a critical network may be before an expansion in 1/n stops being one, how large a step, and for what.

What has to be small are the dimensionless ratios of all tensors of order 1/n: V/(nK^2) of the preactivations, D, F, A
and B of the tangent kernel, P to U of its differentials (9.23)-(9.25), (11.62), (∞.21). They grow as depth over
width, those of half-stable activations faster, so one of them binds. With skip connections only V is known, and
layers that have one are followed (an output without one differs by a number that does not grow with depth).

What is gained is information between the halves of the output, truncated and exact, against depth over width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from foretrain.activations import Activation
from foretrain.support.answers import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    RED,
    Axis,
    Figure,
    Result,
    labelled,
    log,
)
from foretrain.support.arguments import Array
from foretrain.support.errors import InputError, unknown_name
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, spawn
from foretrain.theory.architecture import MLP
from foretrain.theory.asymptotics import dimensionless_ratios
from foretrain.theory.finite_width import LARGE, SMALL
from foretrain.theory.flow import flow
from foretrain.theory.information import (
    complete_information,
    log_normal_law,
    mixture_information,
    printed_information,
    sampled_law,
)

if TYPE_CHECKING:
    import xarray as xr

    from foretrain.theory.advice.advise import Advice


_FIRST = 32
_DEEPEST = 1024  # layers that are followed one by one; the rest by the slope of the last half
_DEEPEST_RESIDUAL = 64  # there the cost is the square of the depth


@dataclass(frozen=True, eq=False, repr=False)
class PerturbativeDepths(Result):
    """The largest depths at which no ratio exceeds 0.1 (``small``) and 0.3 (``large``), and which ratio is next.

    ``ratios`` are those of the recursion by layer, at this width, ``slopes`` their growth per layer at its end.
    """

    width: int
    small: int
    large: int
    small_criterion: str
    large_criterion: str
    ratios: xr.Dataset
    slopes: dict[str, float]

    def at(self, depth: int) -> tuple[str, float]:
        """The largest ratio of a network of this depth: its name and size."""
        sizes = {name: float(_extended(self, name, np.array([depth]))[0]) for name in self.slopes}
        worst = max(sizes, key=lambda name: sizes[name])
        return worst, sizes[worst]

    def largest(self, depths: Array) -> Array:
        """The size of the largest ratio at many depths."""
        return np.asarray(np.max([_extended(self, name, depths) for name in self.slopes], axis=0))


def perturbative_depths(
    act: Activation, width: int, first_kernel: float, nu: float, gamma: float = 0.0
) -> PerturbativeDepths:
    """Depths for a critical network with the rates of its class, whose input has K = ``first_kernel`` at layer 1.

    ``nu`` is the growth of V/(nK^2) with L/n far beyond the layers that are followed, where it has not settled yet.
    """
    deepest = _DEEPEST_RESIDUAL if gamma else _DEEPEST
    depth = min(_FIRST, deepest)
    while True:
        ratios = _ratios(act, depth, width, first_kernel, gamma)
        sizes = np.max([np.abs(ratios[name].values) for name in ratios], axis=0)
        if depth >= deepest or sizes[-1] > LARGE:
            break
        depth = min(deepest, 4 * depth)
    half = depth // 2
    slopes = {
        str(name): float((abs(ratios[name][-1]) - abs(ratios[name][half - 1])) / (depth - half))
        for name in ratios
    }
    slopes["V/(nK^2)"] = max(slopes["V/(nK^2)"], nu / width)
    bare = PerturbativeDepths(width, 0, 0, "", "", ratios, slopes)
    small, large = (_last_below(bare, sizes, limit) for limit in (SMALL, LARGE))
    first, second = (bare.at(last + 1)[0] for last in (small, large))
    return PerturbativeDepths(width, small, large, first, second, ratios, slopes)


def _ratios(act: Activation, depth: int, width: int, first_kernel: float, gamma: float) -> xr.Dataset:
    """All ratios by layer: those of a network that ends there, too, since its rates differ by a factor."""
    mlp = MLP.critical(act, depth + bool(gamma), width, n_in=1, gamma=gamma or None)
    x = math.sqrt(max(0.0, first_kernel - mlp.C_b[0]) / mlp.C_W[0])
    if not gamma:
        return dimensionless_ratios(mlp, [x])
    found = flow(mlp, [[x]], ["K", "V"])
    K, V = (found[name].values.ravel()[:depth] for name in ("K", "V"))
    return labelled({"V/(nK^2)": ("layer", V / (width * K**2))}, counted=("layer",))


def _extended(depths: PerturbativeDepths, name: str, layers: Array) -> Array:
    known = np.abs(depths.ratios[name].values)
    last = len(known)
    beyond = known[-1] + depths.slopes[name] * (layers - last)
    inside = known[np.clip(layers, 1, last).astype(int) - 1]
    return np.asarray(np.where(layers <= last, inside, np.maximum(beyond, known[-1])))


def _last_below(depths: PerturbativeDepths, sizes: Array, limit: float) -> int:
    """The last depth before the largest ratio first exceeds the limit."""
    above = np.flatnonzero(sizes > limit)
    if len(above):
        return int(above[0])
    last = len(sizes)
    rooms = [
        (limit - abs(float(depths.ratios[name][-1]))) / slope
        for name, slope in depths.slopes.items()
        if slope > 0
    ]
    return last + math.floor(min(rooms)) if rooms else last


LOSSES = ("squared_error", "mse", "cross_entropy")
_SHARE = 0.5  # of the largest stable step: there the steepest direction reaches its minimum at once


class StableStep(NamedTuple):
    """eta at which descent on all inputs together begins to diverge at infinite width, and half of it."""

    loss: str
    largest: float
    recommended: float
    eigenvalue: float  # the largest of Theta on the inputs
    inputs: int


def check_loss(loss: str, n_out: int) -> None:
    """An error for a loss that is not known, or not for one output."""
    if loss not in LOSSES:
        raise unknown_name("`loss`", str(loss), LOSSES)
    if loss == "cross_entropy" and n_out < 2:
        raise InputError("cross entropy needs two outputs or more: set n_out to the number of classes.")


def stable_step(mlp: MLP, X: ArrayLike, loss: str) -> StableStep:
    """2 / curvature, since a step multiplies errors by 1 - eta curvature: the top of Theta times that of the loss.

    ``squared_error`` is half the SUM of squares, ``mse`` the mean over inputs and outputs as torch has it, and
    ``cross_entropy`` the mean over inputs, with the largest second derivative 1/2 that a softmax has anywhere.
    """
    check_loss(loss, mlp.n_out)
    Theta = flow(mlp, X, ["Theta"])["Theta"].values[-1]
    inputs, top = len(Theta), float(np.linalg.eigvalsh(Theta)[-1])
    bend = {"squared_error": 1.0, "mse": 2 / (inputs * mlp.n_out), "cross_entropy": 0.5 / inputs}[loss]
    largest = 2 / (top * bend)
    return StableStep(loss, largest, _SHARE * largest, top, inputs)


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
