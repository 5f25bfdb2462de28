"""Escape times of five activations collapse when multiplied by K (Rawal & DeWeese, figure 3).

tanh, erf and sin (class B), GELU and Swish (class C), depth 4, width 64, all layers at ε, threshold X_1 = 0.5. K t
is the same for all as ε → 0; what is left at finite ε shrinks with its first power, because the curvature of
class C enters one order below that of class B. Whole networks and stochastic gradient descent stand beside the
exact scalar flow. Descent is timed by its loss: it has escaped when its loss is that of the scalar flow at X_1 = 0.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foretrain.experiments.parts import Parts
from foretrain.experiments.registry import Result, Row, Scale
from foretrain.experiments.saddle_escape.fits import fit
from foretrain.experiments.saddle_escape.universality.drawing import ACTIVATIONS, DEPTH, THRESHOLD, draw
from foretrain.saddle import collapse, coupling, escape_time, reduced_flow
from foretrain.support.seeds import integer, spawn

if TYPE_CHECKING:
    import xarray

    from foretrain.saddle.escape.entry import Method

Array = NDArray[np.float64]

_WIDTH = 64
_BATCH = 1024
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


def _logarithmic(first: float, last: float) -> tuple[float, ...]:
    return tuple(np.geomspace(first, last, 5).tolist())


PLANS: Mapping[Scale, Plan] = {
    Scale.QUICK: Plan(14, 4, 16, 0.5, 5, {"B": (0.1,), "C": (0.2, 0.316)}),
    Scale.PAPER: Plan(
        14, 14, _WIDTH, 0.05, 5, {"B": _logarithmic(0.03, 0.1), "C": _logarithmic(0.1, 10**-0.5)}
    ),
}


def saddle_universality(plan: Plan, seed: int, parts: Parts) -> Result:
    """K t of five activations over ε, by the scalar flow, by whole networks and by stochastic gradient descent."""
    import xarray

    epsilon = np.geomspace(3e-3, 0.1, plan.epsilons)
    scalar = parts.get("scalar flow", partial(_scalar, epsilon))
    chosen = epsilon[np.linspace(plan.epsilons - 1, 0, plan.networks).round().astype(int)]
    whole = parts.get("whole networks", partial(_whole, chosen))
    descents = [
        parts.get(f"descent {name}", partial(_descend, plan, name, own))
        for name, own in zip(ACTIVATIONS, spawn(seed, len(ACTIVATIONS)), strict=True)
    ]
    descent = xarray.concat(descents, dim="case", join="exact")
    data = xarray.merge([scalar, whole, descent], combine_attrs="drop").assign_attrs(
        width=_WIDTH, descent_width=plan.descent_width, rate=plan.rate, seeds=plan.seeds
    )
    return Result(_verdict(data), _table(data), data, partial(draw, data))


def _scalar(epsilon: Array) -> xarray.Dataset:
    """K t by three formulas over the window, and by the exact flow far below it."""
    scaled = partial(collapse, list(ACTIVATIONS), depth=DEPTH, width=_WIDTH, threshold=THRESHOLD)
    window = scaled(epsilon, formula=_FORMULAS)
    below = scaled(_SMALL, formula="reduced").isel(formula=0, drop=True)
    labels = {"activation": list(ACTIVATIONS)}
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
    for name in ACTIVATIONS:
        problem = Problem(name, depth=DEPTH, width=_WIDTH, inputs=1)
        escaped = escape(
            problem,
            ansatz(problem, np.repeat(epsilon[:, None], DEPTH, axis=1)),
            thresholds=(THRESHOLD,),
            observable="amplitude",
            metric="normalized",
            sample=hermite_sample(problem, 64),
            integration=Integration(rtol=1e-6),
        )
        found.append(coupling(name, DEPTH, _WIDTH) * escaped["time"].values[:, 0])
    return xarray.Dataset(
        {"network_time": (("activation", "network_epsilon"), np.stack(found))},
        coords={"activation": list(ACTIVATIONS), "network_epsilon": epsilon},
    )


def _descend(plan: Plan, name: str, seed: np.random.SeedSequence) -> xarray.Dataset:
    """K t of descent from the manifold (case, seed), with that of the scalar flow of the same width."""
    import xarray

    from foretrain.training.gradient_flow import Problem, ansatz, gaussian_sample, stochastic_escape

    width = plan.descent_width
    K, problem = coupling(name, DEPTH, width), Problem(name, depth=DEPTH, width=width, inputs=16)
    exact, times = [], []
    epsilons = [float(each) for each in plan.descent_epsilons[ACTIVATIONS[name]]]
    for epsilon, own in zip(epsilons, spawn(seed, len(epsilons)), strict=True):
        scales = np.full(DEPTH, epsilon)
        expected = escape_time(name, scales, width=width, threshold=THRESHOLD, method="reduced")
        level = float(reduced_flow(name, scales, width=width, threshold=THRESHOLD)["loss"][-1])
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


def _table(data: xarray.Dataset) -> tuple[Row, ...]:
    exact = data["scaled_time"].sel(formula="reduced")
    spread = data["spread"].sel(formula="reduced").values
    power = fit(data.epsilon.values, spread)
    below = np.diff(np.log(data["small_spread"].values)) / np.diff(np.log(data.small_epsilon.values))
    ends = f"{spread[-1]:.3f} to {spread[0]:.4f}"
    odd = exact.sel(activation=[name for name, letter in ACTIVATIONS.items() if letter == "B"])
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
            note="It accounts for class C; in class B half comes from the fixed point close above X_1 = 0.5.",
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
