"""How to set up a network of a given width: depth, initialisation, learning rates, skip connections.

``advise``               everything about one activation and width, with code to paste
``information_curves``   information of the output against depth over width, truncated and exact
``perturbative_depths``  how deep the expansion in 1/n reaches, and which of its ratios says so

What has to be small are the dimensionless ratios of all tensors of order 1/n: V/(nK^2) of the preactivations, D, F, A
and B of the tangent kernel, P to U of its differentials (9.23)-(9.25), (11.62), (∞.21). They grow as depth over
width, those of half-stable activations faster, so one of them binds. With skip connections only V is known, and
layers that have one are followed (an output without one differs by a number that does not grow with depth).

What is gained is information between the halves of the output, truncated and exact, against depth over width.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from foretrain.activations import Activation
from foretrain.activations import activation as find_activation
from foretrain.support.answers import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    RED,
    Answer,
    Axis,
    Code,
    Figure,
    Result,
    Table,
    labelled,
    log,
)
from foretrain.support.arguments import Array
from foretrain.support.errors import AccuracyWarning, InputError, NotSupportedError, unknown_name
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, spawn
from foretrain.theory.architecture import MLP
from foretrain.theory.asymptotics import dimensionless_ratios
from foretrain.theory.criticality import Criticality, CriticalPoint, criticality
from foretrain.theory.criticality.critical_initialisation import critical_side
from foretrain.theory.finite_width import LARGE, SMALL
from foretrain.theory.flow import flow
from foretrain.theory.information import (
    complete_information,
    log_normal_law,
    mixture_information,
    next_coefficient,
    printed_information,
    sampled_law,
    turning_point,
)
from foretrain.theory.residual_networks import fluctuation_rate, optimal_skip

if TYPE_CHECKING:
    import xarray as xr


_FIRST = 32
_FOLLOWED = 1024  # layers that are followed one by one; the rest by the slope of the last half
_FOLLOWED_RESIDUAL = 64  # there the cost is the square of the depth


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
    deepest = _FOLLOWED_RESIDUAL if gamma else _FOLLOWED
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
    # Others are drawn.
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
    drawn = labelled(
        {
            "drawn": ("depth", [value.value for value in values]),
            "drawn_error": ("depth", [value.standard_error for value in values]),
        },
        {"drawn_width": width, "draws": draws},
        depth=depths,
    )
    return data.merge(drawn).assign_attrs(data.attrs | drawn.attrs)


def advice_figure(advice: Advice, seed: Seed = 0, draws: int = 3000) -> Figure:
    """Left the truncated and the exact information, right which depths the expansion in 1/n reaches by width."""
    skip = f", γ = {advice.gamma:g}" if advice.gamma else ""
    title = f"{advice.criticality.activation.label}: depth for a width of {advice.width}{skip}"
    figure = Figure(title, columns=2, size=(13.0, 5.0))
    # Left: the information.
    curves = information_curves(advice, draws, seed)
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
    # Right: every ratio is a function of the layer over the width, so that one width tells about all.
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
    return figure


_DEEPEST = 100_000  # layers of the network that is handed back, each with its rates


def advise(
    activation: Any,
    width: int,
    *,
    n_out: int = 1,
    n_in: int | None = None,
    gamma: float | None = None,
    depth: int | None = None,
    X: ArrayLike | None = None,
    loss: str = "squared_error",
) -> Advice:
    """What the effective theory recommends for networks with this activation and width.

    Depth: how deep the expansion in 1/n reaches, and r* = L/n at which the truncated information between the two
    halves of the output peaks. Initialisation: critical C_b and C_W. Training: learning rates by layer.

    Parameters
    ----------
    gamma
        Skip connections of all hidden layers but the first.
    depth
        A depth to judge; without it the network is as deep as r* says.
    X
        Typical inputs, a few hundred at most: fluctuations are then those of the one of median size, rates are
        balanced for them where the class has no law, and there is a largest stable step for the ``loss``.
    loss
        That the largest stable step on X is for: ``squared_error``, half the SUM of squares as in ``predict``,
        ``mse``, the mean over inputs and outputs as torch has it, or ``cross_entropy``, the mean over inputs.

    Examples
    --------
    >>> found = advise("tanh", 256, n_out=10)
    >>> found.best_depth, found.depths.small, found.depths.large
    (30, 40, 118)
    """
    act = find_activation(activation)
    if isinstance(width, bool) or not isinstance(width, int | np.integer):
        raise InputError(f"`width` is {width!r}: give one whole number, the width of all hidden layers.")
    check_loss(loss, n_out)
    plain = MLP.critical(act, 2, int(width), n_in=n_in, n_out=n_out)  # refuses what cannot be a network
    if X is not None:
        plain = plain.with_inputs(X)
    if gamma is not None and (isinstance(gamma, bool) or not isinstance(gamma, int | float | np.number)):
        raise InputError(f"`gamma` is {gamma!r}: give one number between -1 and 1.")
    skip = float(gamma or 0.0)
    found = criticality(act, skip)
    point = found.point
    assert point is not None  # or the network had been refused
    # nu of V / (n K^2) = nu L/n, complete and as printed; at a half-stable K* that of a signal at K*.
    nu = nu_printed = point.coefficients["nu"]
    if point.kind != "half-stable":
        nu, nu_printed = (fluctuation_rate(act, skip, way) for way in ("complete", "book"))
    start = _first_kernel(plain, point, X)
    depths = perturbative_depths(act, int(width), start, nu, skip)
    half = n_out / 2
    best = turning_point(half, half) / nu
    complete = None
    if point.kind != "half-stable":
        complete = turning_point(half, half, next_coefficient(point.kind)) / nu
    chosen = _chosen_depth(depth, best, width, skip)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AccuracyWarning)  # the notes say which side of K* inputs are on
        network = MLP.critical(act, chosen, width, plain.n_in, plain.n_out, skip or None, X)
    return Advice(
        criticality=criticality(act),
        width=int(width),
        n_out=n_out,
        gamma=skip,
        nu=nu,
        nu_printed=nu_printed,
        best_ratio=best,
        complete_ratio=complete,
        depths=depths,
        first_kernel=start,
        depth=depth,
        skip=_skip(act, depth, width, n_out),
        network=network,
        step=None if X is None else stable_step(network, X, loss),
        notes=_notes(found, point, plain, X, n_out, best * width),
    )


def _first_kernel(plain: MLP, point: CriticalPoint, X: ArrayLike | None) -> float:
    """Of the input of median size; without inputs K*, or one where K* is 0 or anything."""
    if X is not None:
        kernels = np.sort(np.diag(plain.first_kernel(X)))
        kernel = float(kernels[len(kernels) // 2])
        if kernel <= 0:
            raise InputError(
                "most inputs are zero, and with C_b = 0 they give no signal: leave those out of X."
            )
        return kernel
    return point.K_star or 1.0


def _chosen_depth(depth: int | None, best: float, width: int, gamma: float) -> int:
    least = 3 if gamma else 2
    if depth is None:
        there = max(least, math.floor(best * width))
        if there > _DEEPEST:
            raise InputError(
                f"r* is depth {there:,} at width {width:,}, more layers than can be written down: ask about a depth "
                f"of at most {_DEEPEST:,}."
            )
        return there
    if isinstance(depth, bool) or not isinstance(depth, int | np.integer) or depth < least:
        raise InputError(f"`depth` is {depth!r}: give a whole number of layers, at least {least}.")
    if depth > _DEEPEST:
        raise InputError(f"`depth` is {depth}: ask about at most {_DEEPEST:,} layers.")
    return int(depth)


def _skip(act: Activation, depth: int | None, width: int, n_out: int) -> float | None:
    """gamma* of the depth that is asked about; None where none is known or asked for."""
    if depth is None:
        return None
    try:
        return optimal_skip(act, depth / width, n_out=n_out)
    except NotSupportedError:
        return None


def _notes(
    found: Criticality, point: CriticalPoint, plain: MLP, X: ArrayLike | None, n_out: int, best: float
) -> tuple[str, ...]:
    notes = [
        "r* is a property of the truncated series: the exact information grows with depth without a maximum, and is "
        "larger than the truncated one at r* (about twice in deep scale-invariant networks)."
    ]
    if point.kind == "half-stable":
        notes.append(
            f"{found.activation.label} is critical at K* = {point.K_star:.6g} only and attracts from one side: nu is "
            "that of signals at K*, and falls to a fifth of it for those that come from far away."
        )
        assert point.K_star is not None
        square = (point.K_star - plain.C_b[0]) / plain.C_W[0]
        scaling = f"scale inputs to a mean square of {square:.6g} (per component), so that they start at K*."
        notes.append(scaling if X is None else critical_side(plain, X).sentence)
    if found.gamma and point.kind == "half-stable":
        notes.append("nu with skip connections is the printed kind here, without what neurons remember.")
    if n_out == 1:
        notes.append("one output has no halves: r* is (A.73) at its word.")
    if best < 2:
        notes.append(
            f"r* allows no hidden layer at width {plain.hidden_widths[0]}: that takes width "
            f"{math.ceil(2 * plain.hidden_widths[0] / best)}."
        )
    return tuple(notes)


@dataclass(frozen=True, eq=False, repr=False)
class Advice(Result):
    """Depth, initialisation, learning rates and skip connections for one activation and width.

    ``nu`` is the growth of V/(nK^2) with L/n; ``best_ratio`` is r* by (A.73) with it, ``complete_ratio`` r* with all
    terms of third order (None where they are not known). ``network`` is the recommended MLP: of the depth asked
    about, or of that at r*. ``skip`` is the gamma* of (B.36) for the depth that was asked about.
    """

    criticality: (
        Criticality  # of the plain network: layers with a skip connection have 1 - gamma^2 times C_b, C_W
    )
    width: int
    n_out: int
    gamma: float
    nu: float
    nu_printed: float
    best_ratio: float
    complete_ratio: float | None
    depths: PerturbativeDepths
    first_kernel: float  # K at layer 1 that the depths are for
    depth: int | None
    skip: float | None
    network: MLP
    step: StableStep | None
    notes: tuple[str, ...]

    @property
    def best_depth(self) -> int:
        """The depth at r*, rounded down; below 2 there is no hidden layer left."""
        return math.floor(self.best_ratio * self.width * (1 + 1e-12))

    @property
    def breakdown_depth(self) -> int:
        """The depth at which the truncated information is negative, 3/2 r*."""
        return math.ceil(1.5 * self.best_ratio * self.width)

    @property
    def position(self) -> str | None:
        """Of the depth that was asked about: "inside", "at the edge" or "outside" the perturbative range."""
        if self.depth is None:
            return None
        if self.depth <= self.depths.small:
            return "inside"
        return "at the edge" if self.depth <= self.depths.large else "outside"

    @property
    def verdict(self) -> str:
        """One sentence about the depth that was asked about, or about which depths to choose."""
        reach = f"perturbative up to depth {self.depths.small}, and marginally up to {self.depths.large}"
        if self.depth is None:
            optimum = f"is depth {self.best_depth}" if self.best_depth > 1 else "allows no hidden layer"
            return f"Width {self.width} is {reach}; r* = {self.best_ratio:.4g} {optimum}."
        name, size = self.depths.at(self.depth)
        told = f"Depth {self.depth} at width {self.width} is {self.position}: its largest ratio {name} is {size:.3g}"
        if self.position == "inside":
            return f"{told}, below {SMALL:g}."
        limit = f"not below {SMALL:g}" if self.position == "at the edge" else f"above {LARGE:g}"
        wide = math.ceil(self.width * size / SMALL)
        cure = f"take width {wide}" + (f", or depth {self.depths.small}" if self.depths.small > 1 else "")
        if self.skip and not self.gamma:
            turn = self.best_ratio * self.nu  # at the maximum of the truncated information
            cure += f", or skip connections gamma = {_below_one(self.skip)}, which bring nu L/n to {turn:.3g}"
        return f"{told}, {limit}; {cure}."

    @property
    def code(self) -> str:
        """Python that builds the network and its optimizer."""
        options = [self.network.activation.code, f"depth={self.network.depth}", f"width={self.width}"]
        balanced = self.step is not None and self.criticality.universality_class == "half-stable"
        if balanced:  # there the inputs themselves say what rates balance the layers
            options.append("X=x")
        elif self.network.n_in is not None:
            options.append(f"n_in={self.network.n_in}")
        options += [f"n_out={self.n_out}"] if self.n_out != 1 else []
        options += [f"gamma={self.gamma!r}"] if self.gamma else []
        inputs = "" if self.network.n_in is not None else ", n_in=x.shape[1]"
        eta = "0.1" if self.step is None else f"{self.step.recommended:.3g}"
        return "\n".join(
            [
                "import torch, foretrain as ft",
                "from foretrain.compare.build import build, parameter_groups",
                f"mlp = ft.MLP.critical({', '.join(options)})",
                f"network = build(mlp{inputs})",
                f"optimizer = torch.optim.SGD(parameter_groups(network, mlp, eta={eta}))",
            ]
        )

    @staticmethod
    def _range(first: int, last: int) -> str:
        return f"{first} to {last}" if last > first else str(first) if last == first else "none"

    def answer(self, seed: Seed = 0) -> Answer:
        """The verdict, its numbers and code to paste; the picture draws random networks with ``seed``."""
        found, depths, layers = self.criticality, self.depths, self.network.layers
        first, last = layers[0], layers[-1]
        shown = {"p_0": "p_0", "p_perpendicular": "p_perp", "p_V": "p_V"}
        named = (
            f"{short} {found.exponents[key]:.4g}" for key, short in shown.items() if key in found.exponents
        )
        K_star = "any" if found.K_star is None else f"{found.K_star:.8g}"
        share = f" (times {1 - self.gamma**2:.4g} where there is a skip)" if self.gamma else ""
        complete = "not known" if self.complete_ratio is None else f"{self.complete_ratio:.6g}"
        peak = f"L/n where the truncated information peaks (A.73): depth {self.best_depth}"
        inside = f"depths with all ratios below {SMALL:g}; the first above it is {depths.small_criterion}"
        negative = "depth from which the truncated information is negative"
        edge = f"the same below {LARGE:g}; the first above it is {depths.large_criterion}"
        bias, weight = (f"{one:.4g} to {other:.4g}" for one, other in zip(first[4:6], last[4:6], strict=True))
        rows = [
            ("C_b", f"{found.C_b:.8g}", f"variance of biases{share}"),
            ("C_W", f"{found.C_W:.8g}", f"variance of weights times fan-in{share}"),
            ("K*", K_star, f"fixed point of the kernel, class {found.universality_class}"),
            ("exponents", ", ".join(named), "p of what falls as depth^-p"),
            ("nu", f"{self.nu:.6g}", "growth of V/(nK^2) with L/n"),
            ("r*", f"{self.best_ratio:.6g}", peak),
            ("r* complete", complete, "the same with all terms of third order"),
            ("breakdown", str(self.breakdown_depth), negative),
            ("inside", self._range(2, depths.small), inside),
            ("edge", self._range(max(2, depths.small + 1), depths.large), edge),
            ("lambda_b", bias, f"rates of biases, layers 1 to {last.number}"),
            ("lambda_W", weight, "rates of weights, before dividing by fan-in"),
        ]
        if self.skip is not None:
            meaning = f"skip that makes depth {self.depth} optimal (B.36); 0: none needed"
            rows.append(("gamma*", _below_one(self.skip), meaning))
        if self.step is not None:
            meaning = f"largest stable eta on {self.step.inputs} inputs, loss {self.step.loss}"
            rows.append(("eta", f"{self.step.largest:.4g}", meaning))
        return Answer(
            self.verdict,
            [
                Table(("quantity", "value", "meaning"), rows),
                *(f"Note: {note}" for note in self.notes),
                Code(self.code, "In Python:"),
                lambda: advice_figure(self, seed),
            ],
            data=self._dataset,
            record=self._record(),
            holds=self.position != "outside",
        )

    def _record(self) -> dict[str, Any]:
        found, depths = self.criticality, self.depths
        same = ("C_b", "C_W", "K_star", "exponents", "universality_class")
        own = "width gamma nu nu_printed best_ratio complete_ratio best_depth breakdown_depth first_kernel"
        return {
            "activation": found.activation.label,
            **{name: getattr(found, name) for name in same},
            **{name: getattr(self, name) for name in f"{own} depth position verdict code".split()},
            "outputs": self.n_out,
            "perturbative_depth": depths.small,
            "perturbative_criterion": depths.small_criterion,
            "marginal_depth": depths.large,
            "marginal_criterion": depths.large_criterion,
            "optimal_skip": self.skip,
            "layers": [layer._asdict() for layer in self.network.layers],
            "stable_step": None if self.step is None else self.step._asdict(),
            "notes": list(self.notes),
        }

    def _dataset(self) -> xr.Dataset:
        """Ratios of order 1/n by name and layer, and the learning rates of the recommended network."""
        layers, ratios = self.network.layers, self.depths.ratios
        names = [str(name) for name in ratios]
        return labelled(
            {
                "size": ("ratio layer", np.stack([ratios[name].values for name in names])),
                "lambda_b": ("network_layer", [layer.lambda_b for layer in layers]),
                "lambda_W": ("network_layer", [layer.lambda_W for layer in layers]),
            },
            {k: value for k, value in self._record().items() if isinstance(value, str | int | float)},
            ratio=names,
            layer=ratios["layer"],
            network_layer=[layer.number for layer in layers],
        )


def _below_one(gamma: float) -> str:
    """With as many digits as tell it from 1, at which no network is critical."""
    digits = 4 if gamma < 0.999 else 3 - math.floor(math.log10(1 - gamma))
    return f"{gamma:.{digits}g}"
