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
import xarray

from foretrain.experiments.judgements import claim_row, computed_row
from foretrain.experiments.parts import Parts
from foretrain.experiments.registry import Result, Row, plans
from foretrain.experiments.saddle_escape.escape_times import descent_row, fit, network_times
from foretrain.saddle import balanced_time, collapse, coupling, escape_time, reduced_flow
from foretrain.support.answers import INK, PALETTE, Figure, log
from foretrain.support.seeds import integer, spawn
from foretrain.theory.architecture import FloatArray

if TYPE_CHECKING:
    from foretrain.saddle.escape import Method


_ACTIVATIONS = {"tanh": "B", "erf": "B", "sin": "B", "gelu": "C", "swish": "C"}  # with their classes
_DEPTH, _WIDTH, _THRESHOLD, _BATCH = 4, 64, 0.5, 1024
_SMALL = (3e-5, 1e-4)  # far below the window, for the rate at which the spread shrinks
_POWER_ERROR = 0.1
_FORMULAS: tuple[Method, ...] = ("leading", "corrected", "reduced")


@dataclass(frozen=True)
class Plan:
    """ε of the window; ``networks`` of them flow as whole networks; descent at some ε of each class."""

    epsilons: int
    networks: int
    descent_width: int
    rate: float
    seeds: int
    descent_epsilons: dict[str, tuple[float, ...]]  # by class


_ENDS = {"B": (0.03, 0.1), "C": (0.1, 10**-0.5)}
_FIVE = {kind: tuple(np.geomspace(*ends, 5).tolist()) for kind, ends in _ENDS.items()}
PLANS = plans(
    quick=Plan(14, 4, 16, 0.5, 5, {"B": (0.1,), "C": (0.2, 0.316)}),
    paper=Plan(14, 14, _WIDTH, 0.05, 5, _FIVE),
)


def saddle_universality(plan: Plan, seed: int, parts: Parts) -> Result:
    """K t of five activations over ε, by the scalar flow, by whole networks and by stochastic gradient descent."""
    epsilon = np.geomspace(3e-3, 0.1, plan.epsilons)
    chosen = epsilon[np.linspace(plan.epsilons - 1, 0, plan.networks).round().astype(int)]

    def scalar_flow() -> xarray.Dataset:
        """K t by three formulas over the window, and by the exact flow far below it."""
        scaled = partial(collapse, list(_ACTIVATIONS), depth=_DEPTH, width=_WIDTH, threshold=_THRESHOLD)
        below = scaled(_SMALL, formula="reduced").isel(formula=0, drop=True)["spread"].values
        window = scaled(epsilon, formula=_FORMULAS)[["scaled_time", "spread", "K"]]
        window = window.assign_coords({"activation": list(_ACTIVATIONS)})
        return window.assign(small_spread=("small_epsilon", below), small_epsilon=list(_SMALL))

    def whole_networks() -> xarray.Dataset:
        """K t of whole networks on the manifold."""
        scales = np.repeat(chosen[:, None], _DEPTH, axis=1)
        found = [
            coupling(name, _DEPTH, _WIDTH) * network_times(name, scales, _WIDTH, _THRESHOLD)
            for name in _ACTIVATIONS
        ]
        coords = {"activation": list(_ACTIVATIONS), "network_epsilon": chosen}
        return xarray.Dataset({"network_time": (tuple(coords), np.stack(found))}, coords)

    whole = [parts.get("scalar flow", scalar_flow), parts.get("whole networks", whole_networks)]
    descents = [
        parts.get(f"descent {name}", partial(_descend, plan, name, own))
        for name, own in zip(_ACTIVATIONS, spawn(seed, len(_ACTIVATIONS)), strict=True)
    ]
    descent = xarray.concat(descents, dim="case", join="exact")
    data = xarray.merge([*whole, descent], combine_attrs="drop").assign_attrs(
        width=_WIDTH, descent_width=plan.descent_width, rate=plan.rate, seeds=plan.seeds
    )
    times = (data["scaled_time"].sel(formula="reduced") / data["K"]).isel(epsilon=0)
    factor = float(times.max() / times.min())
    spread = data["spread"].sel(formula="reduced").values
    off = np.abs((data["descent_time"].mean("seed") / data["descent_exact"]).values - 1)
    verdict = (
        f"K t of five activations differ by {spread[-1]:.1%} at ε = 0.1 and by {spread[0]:.2%} at ε = 0.003, where "
        f"the times themselves differ by a factor of {factor:.1f}; SGD is within {float(off.max()):.1%} of the "
        "scalar flow."
    )
    return Result(verdict, _table(data, factor), data, _draw)


def _descend(plan: Plan, name: str, seed: np.random.SeedSequence) -> xarray.Dataset:
    """K t of descent from the manifold (case, seed), with that of the scalar flow of the same width."""
    from foretrain.training.gradient_flow import Problem, ansatz, gaussian_sample, stochastic_escape

    width = plan.descent_width
    K, problem = coupling(name, _DEPTH, width), Problem(name, depth=_DEPTH, width=width, inputs=16)
    exact, times = [], []
    epsilons = [float(each) for each in plan.descent_epsilons[_ACTIVATIONS[name]]]
    for epsilon, own in zip(epsilons, spawn(seed, len(epsilons)), strict=True):
        scales = np.full(_DEPTH, epsilon)
        expected = escape_time(name, scales, width=width, threshold=_THRESHOLD, method="reduced")
        level = float(reduced_flow(name, scales, width=width, threshold=_THRESHOLD)["loss"][-1])
        found = stochastic_escape(
            problem,
            ansatz(problem, np.tile(scales, (plan.seeds, 1))),
            lr=plan.rate,
            batch_size=_BATCH,
            steps=round(2 * expected / plan.rate),
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


def _table(data: xarray.Dataset, factor: float) -> tuple[Row, ...]:
    exact = data["scaled_time"].sel(formula="reduced")
    spread = data["spread"].sel(formula="reduced").values
    power = fit(data.epsilon.values, spread)
    below = np.diff(np.log(data["small_spread"].values)) / np.diff(np.log(data.small_epsilon.values))
    odd = exact.sel(activation=[name for name, letter in _ACTIVATIONS.items() if letter == "B"])
    odd_spread = (odd.max("activation") / odd.min("activation") - 1).values
    beside = exact.sel(epsilon=data.network_epsilon.values).values
    network = np.abs(data["network_time"].values / beside - 1).max()
    corrected = np.abs((data["scaled_time"].sel(formula="corrected") / exact).values - 1).max(axis=0)
    window = "ε = 0.1 to 0.003"
    title, ends = f"spread of K t over five activations, {window}", f"{spread[-1]:.3f} to {spread[0]:.4f}"
    note = f"without K the times themselves differ by a factor of {factor:.1f}."
    note, rising = f"Largest over smallest, less 1; {note}", (np.diff(spread) > 0).all()
    rows = [claim_row(title, "tends to 0", ends, rising, note)]
    title = f"power of ε by which the spread shrinks, at ε = {_SMALL[0]:g} .. {_SMALL[1]:g}"
    note = (
        f"Over the window {power.slope:.2f}; set by class C, whose first correction is of relative order ε."
    )
    rows.append(computed_row(title, 1.0, below[0], _POWER_ERROR, note))
    distances = {
        "spread inside class B": (
            odd_spread,
            "One order smaller than that of class C: relative order ε² log(1/ε).",
        ),
        "largest distance of the first-order flow": (
            corrected,
            "It accounts for class C; in class B half comes from the fixed point close above X_1 = 0.5.",
        ),
    }
    for title, (off, note) in distances.items():
        ends = f"{off[-1]:.4f} to {off[0]:.2g}"
        rows.append(claim_row(f"{title}, {window}", "tends to 0", ends, off[0] < 0.1 * off[-1], note))
    title = "largest relative distance of whole networks from the scalar flow"
    note = f"Width {data.width}, all five activations, {data.sizes['network_epsilon']} values of ε."
    return (*rows, claim_row(title, "< 1e-4", network, network < 1e-4, note), *_descent_rows(data))


def _descent_rows(data: xarray.Dataset) -> list[Row]:
    """K t of descent, mean over seeds, beside the scalar flow; a step of the rate is the least that can be told."""
    rows = []
    for case in range(data.sizes["case"]):
        own = data.isel(case=case)
        title = f"SGD, {own['descent_activation'].values}, ε = {float(own['descent_epsilon']):.3g}: K t"
        note = (
            f"Width {data.descent_width}, batch {_BATCH}, rate {data.rate:g}, {own.sizes['seed']} seeds; to agree "
            "within three standard errors and 2 % for the finite rate and the noise."
        )
        rows.append(descent_row(title, float(own["descent_exact"]), own["descent_time"].values, note))
    return rows


def _draw(data: xarray.Dataset) -> Figure:
    """Times before and after they are multiplied by K, the collapse close up, and what is left of it."""
    title = f"Universality of escape: depth {_DEPTH}, until $X_1$ = {_THRESHOLD:g}"
    figure, epsilon = Figure(title, columns=2, size=(12, 9.5)), log("ε")
    before = figure.panel(f"before: width {data.width}", epsilon, log("escape time s"))
    after = figure.panel("after: times K", epsilon, log("K × escape time"))
    close = figure.panel("the collapse close up", epsilon, "K × escape time / closed form (11)")
    left = figure.panel(
        "what is left of the collapse", epsilon, log("relative distance of K t from leading order")
    )
    places, law = data.epsilon.values, _law(data.epsilon.values)
    for (name, letter), color in zip(_ACTIVATIONS.items(), PALETTE):
        own, label = data.sel(activation=name), f"{name} ({letter})"
        exact, leading, corrected = (
            own.scaled_time.sel(formula=each) for each in ("reduced", *_FORMULAS[:2])
        )
        for panel, factor, words in ((before, own.K, label), (after, 1.0, "")):
            panel.curve(places, exact / factor, "-", words, color)
            panel.curve(data.network_epsilon, own.network_time / factor, "s", "", color, hollow=True)
        close.curve(places, exact / law, color=color)
        case = data.isel(case=data.descent_activation.values == name)
        where, times, ratio = case.descent_epsilon, case.descent_time, _law(case.descent_epsilon.values)
        error = times.std("seed", ddof=1) / ratio
        close.curve(where, times.mean("seed") / ratio, "o", "", color, error=error, size=6)
        close.curve(where, case.descent_exact / ratio, "_", "", INK, size=14)
        left.curve(places, np.abs(exact / leading - 1), "o", label, color)
        left.curve(places, np.abs(corrected / leading - 1), color=color)
    before.legend_entry("s", "whole network", hollow=True)
    after.curve(places, law, ":", "closed form (11)", INK)
    close.level(y=1)
    close.legend_entry("o", f"SGD, width {data.descent_width}, {data.seeds} seeds")
    close.legend_entry("_", f"scalar flow, width {data.descent_width}")
    close.legend_entry("-", f"scalar flow, width {data.width}")
    left.curve(places, data.spread.sel(formula="reduced"), "--", "spread over all five", INK)
    left.legend_entry("-", "first-order flow")
    return figure


def _law(epsilon: FloatArray) -> FloatArray:
    return np.array([balanced_time(1.0, float(each), _DEPTH, _THRESHOLD) for each in epsilon])
