"""Escape times of five activations collapse when multiplied by K (Rawal & DeWeese, figure 3).

tanh, erf and sin (class B), GELU and Swish (class C), depth 4, width 64, all layers at ε, threshold X_1 = 0.5. K t
is the same for all as ε → 0; what is left at finite ε shrinks with its first power, because the curvature of
class C enters one order below that of class B. Whole networks and stochastic gradient descent stand beside the
exact scalar flow. Descent is timed by its loss: it has escaped when its loss is that of the scalar flow at X_1 = 0.5.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foretrain.experiments.drawing import FAINT, INK, PALETTE, new_figure
from foretrain.experiments.parts import Parts
from foretrain.experiments.registry import Result, Row, Scale
from foretrain.experiments.saddle_fits import fit
from foretrain.saddle import balanced_time, collapse, coupling, escape_time, reduced_flow
from foretrain.support.seeds import integer, spawn

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from foretrain.saddle.escape.entry import Method

Array = NDArray[np.float64]

_ACTIVATIONS = {"tanh": "B", "erf": "B", "sin": "B", "gelu": "C", "swish": "C"}
_DEPTH, _WIDTH, _THRESHOLD = 4, 64, 0.5
_BATCH = 1024
_SMALL = (3e-5, 1e-4)  # far below the window, for the rate at which the spread shrinks
_POWER_ERROR = 0.1
_FORMULAS: tuple[Method, ...] = ("leading", "corrected", "reduced")


@dataclass(frozen=True)
class Sizes:
    """ε of the window; ``networks`` of them flow as whole networks; descent at some ε of each class."""

    epsilons: int
    networks: int
    descent_width: int
    rate: float
    seeds: int
    descent_epsilons: dict[str, tuple[float, ...]]  # by class


def _logarithmic(first: float, last: float) -> tuple[float, ...]:
    return tuple(np.geomspace(first, last, 5).tolist())


_SIZES = {
    Scale.QUICK: Sizes(14, 4, 16, 0.5, 5, {"B": (0.1,), "C": (0.2, 0.316)}),
    Scale.PAPER: Sizes(
        14, 14, _WIDTH, 0.05, 5, {"B": _logarithmic(0.03, 0.1), "C": _logarithmic(0.1, 10**-0.5)}
    ),
}


def saddle_universality(scale: Scale, seed: int, parts: Parts) -> Result:
    """K t of five activations over ε, by the scalar flow, by whole networks and by stochastic gradient descent."""
    return run(_SIZES[scale], seed, parts)


def run(sizes: Sizes, seed: int, parts: Parts) -> Result:
    """The experiment at any size."""
    import xarray

    epsilon = np.geomspace(3e-3, 0.1, sizes.epsilons)
    scalar = parts.get("scalar flow", partial(_scalar, epsilon))
    chosen = epsilon[np.linspace(0, sizes.epsilons - 1, sizes.networks).round().astype(int)]
    whole = parts.get("whole networks", partial(_whole, chosen))
    descents = [
        parts.get(f"descent {name}", partial(_descend, sizes, name, own))
        for name, own in zip(_ACTIVATIONS, spawn(seed, len(_ACTIVATIONS)), strict=True)
    ]
    descent = xarray.concat(descents, dim="case", join="exact")
    data = xarray.merge([scalar, whole, descent], combine_attrs="drop").assign_attrs(
        width=_WIDTH, descent_width=sizes.descent_width, rate=sizes.rate, seeds=sizes.seeds
    )
    return Result(_verdict(data), _table(data), data, partial(_draw, data))


def _scalar(epsilon: Array) -> xarray.Dataset:
    """K t by three formulas over the window, and by the exact flow far below it."""
    scaled = partial(collapse, list(_ACTIVATIONS), depth=_DEPTH, width=_WIDTH, threshold=_THRESHOLD)
    window = scaled(epsilon, formula=_FORMULAS)
    below = scaled(_SMALL, formula="reduced").isel(formula=0, drop=True)
    labels = {"activation": list(_ACTIVATIONS)}
    return (
        window[["scaled_time", "spread", "K"]]
        .assign_coords(labels)
        .assign(small_spread=("small_epsilon", below["spread"].values), small_epsilon=list(_SMALL))
    )


def _whole(epsilon: Array) -> xarray.Dataset:
    """K t of whole networks on the manifold; their function depends on one input alone, so one is enough."""
    import xarray

    from foretrain.training.gradient_flow import Integration, Problem, ansatz, escape, hermite_sample

    found = []
    for name in _ACTIVATIONS:
        problem = Problem(name, depth=_DEPTH, width=_WIDTH, inputs=1)
        escaped = escape(
            problem,
            ansatz(problem, np.repeat(epsilon[:, None], _DEPTH, axis=1)),
            thresholds=(_THRESHOLD,),
            observable="amplitude",
            metric="normalized",
            sample=hermite_sample(problem, 64),
            integration=Integration(rtol=1e-6),
        )
        found.append(coupling(name, _DEPTH, _WIDTH) * escaped["time"].values[:, 0])
    return xarray.Dataset(
        {"network_time": (("activation", "network_epsilon"), np.stack(found))},
        coords={"activation": list(_ACTIVATIONS), "network_epsilon": epsilon},
    )


def _descend(sizes: Sizes, name: str, seed: np.random.SeedSequence) -> xarray.Dataset:
    """K t of descent from the manifold (case, seed), with that of the scalar flow of the same width."""
    import xarray

    from foretrain.training.gradient_flow import Problem, ansatz, gaussian_sample, stochastic_escape

    width = sizes.descent_width
    K, problem = coupling(name, _DEPTH, width), Problem(name, depth=_DEPTH, width=width, inputs=16)
    exact, times = [], []
    epsilons = [float(each) for each in sizes.descent_epsilons[_ACTIVATIONS[name]]]
    for epsilon, own in zip(epsilons, spawn(seed, len(epsilons)), strict=True):
        scales = np.full(_DEPTH, epsilon)
        expected = escape_time(name, scales, width=width, threshold=_THRESHOLD, method="reduced")
        level = float(reduced_flow(name, scales, width=width, threshold=_THRESHOLD)["loss"][-1])
        found = stochastic_escape(
            problem,
            ansatz(problem, np.tile(scales, (sizes.seeds, 1))),
            learning_rate=sizes.rate,
            batch=_BATCH,
            steps=round(2 * expected / sizes.rate),
            thresholds=(level,),
            metric="normalized",
            sample=gaussian_sample(problem, 1024),
            every=5,
            seed=integer(own),
        )
        exact.append(K * expected)
        times.append(K * found["time"].values[:, 0])
    return xarray.Dataset(
        {
            "descent_time": (("case", "seed"), np.stack(times)),
            "descent_exact": ("case", exact),
            "descent_activation": ("case", [name] * len(epsilons)),
            "descent_epsilon": ("case", epsilons),
        }
    )


def _table(data: xarray.Dataset) -> tuple[Row, ...]:
    exact = data["scaled_time"].sel(formula="reduced")
    spread = data["spread"].sel(formula="reduced").values
    power = fit(data.epsilon.values, spread)
    below = np.diff(np.log(data["small_spread"].values)) / np.diff(np.log(data.small_epsilon.values))
    ends = f"{spread[-1]:.3f} to {spread[0]:.4f}"
    odd = exact.sel(activation=[name for name, letter in _ACTIVATIONS.items() if letter == "B"])
    odd_spread = (odd.max("activation") / odd.min("activation") - 1).values
    beside = exact.sel(epsilon=data.network_epsilon.values).values
    network = float(np.abs(data["network_time"].values / beside - 1).max())
    corrected = np.abs((data["scaled_time"].sel(formula="corrected") / exact).values - 1).max(axis=0)
    return (
        Row(
            "spread of K t over five activations, ε = 0.1 to 0.003",
            "tends to 0",
            ends,
            agrees=bool((np.diff(spread) > 0).all()),
            note="Largest over smallest, less 1; without K the times themselves differ by a factor of "
            f"{_raw_factor(data):.1f}.",
        ),
        Row(
            f"power of ε by which the spread shrinks, at ε = {_SMALL[0]:g} .. {_SMALL[1]:g}",
            1.0,
            float(below[0]),
            agrees=bool(abs(below[0] - 1) <= _POWER_ERROR),
            note=f"Over the window {power.slope:.2f}; set by class C, whose first correction is of relative order ε.",
        ),
        Row(
            "spread inside class B, ε = 0.1 to 0.003",
            "tends to 0",
            f"{odd_spread[-1]:.4f} to {odd_spread[0]:.2g}",
            agrees=bool(odd_spread[0] < 0.1 * odd_spread[-1]),
            note="One order smaller than that of class C: relative order ε² log(1/ε).",
        ),
        Row(
            "largest distance of the first-order flow, ε = 0.1 to 0.003",
            "tends to 0",
            f"{corrected[-1]:.4f} to {corrected[0]:.2g}",
            agrees=bool(corrected[0] < 0.1 * corrected[-1]),
            note="It accounts for what class C lacks; in class B half comes from the fixed point close above X_1 = 0.5.",
        ),
        Row(
            "largest relative distance of whole networks from the scalar flow",
            "< 1e-4",
            network,
            agrees=network < 1e-4,
            note=f"Width {data.width}, all five activations, {data.sizes['network_epsilon']} values of ε.",
        ),
        *_descent_rows(data),
    )


def _raw_factor(data: xarray.Dataset) -> float:
    times = (data["scaled_time"].sel(formula="reduced") / data["K"]).isel(epsilon=0)
    return float(times.max() / times.min())


def _descent_rows(data: xarray.Dataset) -> list[Row]:
    """K t of descent, mean over seeds, beside the scalar flow; a step of the rate is the least that can be told."""
    rows = []
    for case in range(data.sizes["case"]):
        own = data.isel(case=case)
        name, times = str(own["descent_activation"].values), own["descent_time"].values
        mean, error = float(times.mean()), float(times.std(ddof=1) / np.sqrt(len(times)))
        exact = float(own["descent_exact"])
        rows.append(
            Row(
                f"SGD, {name}, ε = {float(own['descent_epsilon']):.3g}: K t",
                exact,
                mean,
                error,
                agrees=bool(abs(mean - exact) <= 3 * error + 0.02 * exact),
                note=f"Width {data.descent_width}, batch {_BATCH}, rate {data.rate:g}, {len(times)} seeds; to agree "
                "within three standard errors and 2 % for the finite rate and the noise.",
            )
        )
    return rows


def _verdict(data: xarray.Dataset) -> str:
    spread = data["spread"].sel(formula="reduced").values
    descent = np.abs((data["descent_time"].mean("seed") / data["descent_exact"]).values - 1)
    return (
        f"K t of five activations differ by {spread[-1]:.1%} at ε = 0.1 and by {spread[0]:.2%} at ε = 0.003, where "
        f"the times themselves differ by a factor of {_raw_factor(data):.1f}; SGD is within "
        f"{float(descent.max()):.1%} of the scalar flow."
    )


def _draw(data: xarray.Dataset) -> Figure:
    title = f"Universality of escape: depth {_DEPTH}, until X_1 = {_THRESHOLD:g}"
    figure, panels = new_figure(title, 2, 2, (12, 9.5))
    _draw_times(panels[0], data)
    _draw_collapse(panels[1], data)
    _draw_ratios(panels[2], data)
    _draw_spread(panels[3], data)
    return figure


def _draw_times(panel: Axes, data: xarray.Dataset) -> None:
    for name, color in zip(_ACTIVATIONS, PALETTE):
        own = data.sel(activation=name)
        panel.plot(
            data.epsilon,
            own["scaled_time"].sel(formula="reduced") / own["K"],
            color=color,
            label=_label(name),
        )
        panel.plot(
            data.network_epsilon,
            own["network_time"] / own["K"],
            "s",
            color=color,
            markersize=6,
            markerfacecolor="none",
        )
    panel.plot([], [], "s", color=INK, markerfacecolor="none", label="whole network")
    panel.set(xscale="log", yscale="log", xlabel="ε", ylabel="escape time s")
    panel.set_title(f"before: width {data.width}", fontsize=11)
    panel.legend(frameon=False, fontsize=9)


def _label(name: str) -> str:
    return f"{name} ({_ACTIVATIONS[name]})"


def _draw_collapse(panel: Axes, data: xarray.Dataset) -> None:
    for name, color in zip(_ACTIVATIONS, PALETTE):
        own = data.sel(activation=name)
        panel.plot(data.epsilon, own["scaled_time"].sel(formula="reduced"), color=color)
        panel.plot(
            data.network_epsilon, own["network_time"], "s", color=color, markersize=6, markerfacecolor="none"
        )
    panel.plot(data.epsilon, _law(data.epsilon.values), ":", color=INK, label="closed form (11)")
    panel.set(xscale="log", yscale="log", xlabel="ε", ylabel="K × escape time")
    panel.set_title("after: times K", fontsize=11)
    panel.legend(frameon=False, fontsize=9)


def _law(epsilon: Array) -> Array:
    return np.array([balanced_time(1.0, float(each), _DEPTH, _THRESHOLD) for each in epsilon])


def _draw_ratios(panel: Axes, data: xarray.Dataset) -> None:
    """K t over the closed form; descent with the scalar flow of its own width."""
    for name, color in zip(_ACTIVATIONS, PALETTE):
        own = data.sel(activation=name)
        panel.plot(
            data.epsilon, own["scaled_time"].sel(formula="reduced") / _law(data.epsilon.values), color=color
        )
        cases = np.flatnonzero(data["descent_activation"].values == name)
        where = data["descent_epsilon"].values[cases]
        times, exact = data["descent_time"].values[cases], data["descent_exact"].values[cases]
        law = _law(where)
        panel.errorbar(
            where,
            times.mean(axis=1) / law,
            times.std(axis=1, ddof=1) / law,
            fmt="o",
            color=color,
            markersize=6,
        )
        panel.plot(where, exact / law, "_", color=INK, markersize=14)
    panel.axhline(1, color=FAINT, linewidth=1)
    panel.plot([], [], "o", color=INK, label=f"SGD, width {data.descent_width}, {data.seeds} seeds")
    panel.plot([], [], "_", color=INK, markersize=14, label=f"scalar flow, width {data.descent_width}")
    panel.plot([], [], color=INK, label=f"scalar flow, width {data.width}")
    panel.set(xscale="log", xlabel="ε", ylabel="K × escape time / closed form (11)")
    panel.set_title("the collapse close up", fontsize=11)
    panel.legend(frameon=False, fontsize=9, loc="lower left")


def _draw_spread(panel: Axes, data: xarray.Dataset) -> None:
    exact, leading = (data["scaled_time"].sel(formula=name) for name in ("reduced", "leading"))
    corrected = data["scaled_time"].sel(formula="corrected")
    for name, color in zip(_ACTIVATIONS, PALETTE):
        own = exact.sel(activation=name)
        base = leading.sel(activation=name)
        panel.plot(data.epsilon, np.abs(own / base - 1), "o", color=color, markersize=4.5, label=_label(name))
        panel.plot(
            data.epsilon, np.abs(corrected.sel(activation=name) / base - 1), color=color, linewidth=1.2
        )
    panel.plot(
        data.epsilon, data["spread"].sel(formula="reduced"), "--", color=INK, label="spread over all five"
    )
    panel.plot([], [], color=INK, linewidth=1.2, label="first-order flow")
    panel.set(xscale="log", yscale="log", xlabel="ε", ylabel="relative distance of K t from leading order")
    panel.set_title("what is left of the collapse", fontsize=11)
    panel.legend(frameon=False, fontsize=8.5)
