"""Neurons that fire together: the variance of a neuron, given what another one of its layer does (section 6.4.1).

At finite width neurons of a layer are coupled. Given the metric they are independent, so that the law of one neuron,
given another, is an average over real networks, weighted with the density of what was seen. n times what that changes
is measured at three widths, extrapolated to infinite width, and put beside (6.78).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foretrain.compare.judging.agreement import largest_score_allowed
from foretrain.experiments.effective_theory.width_limits import limits_of_batches
from foretrain.experiments.judgements import computed_row, measured_row
from foretrain.experiments.registry import Result, Row, Scale
from foretrain.support.drawing import FAINT, INK, PALETTE, new_figure
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, spawn
from foretrain.theory.architecture import MLP
from foretrain.theory.ensembles import Ensemble
from foretrain.theory.prediction.bayes import hebbian_variance

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

_DEPTH = 6
_SEEN = np.array([0.0, 0.2, 0.35, 0.5, 0.65])  # of a neuron whose deviation is 0.32
_PUBLISHED = (0.5, 64, 0.1068981848)  # seen, width, variance
_BATCHES = 50


@dataclass(frozen=True)
class Plan:
    """How many networks of which widths are drawn, and how."""

    draws: dict[int, int]  # networks by width
    method: str  # by metrics alone, which is exact at any width, or with all weights drawn


PLANS: Mapping[Scale, Plan] = {
    Scale.QUICK: Plan({48: 400_000, 96: 400_000, 192: 300_000}, "conditional"),
    Scale.PAPER: Plan({64: 600_000, 128: 300_000, 256: 100_000}, "weights"),
}


def hebbian_association(plan: Plan, seed: int) -> Result:
    """n times what seeing one neuron changes of the variance of another, measured and from theory."""
    data = _measured(plan, seed)
    bound = largest_score_allowed(len(_SEEN))
    seen, width, published = _PUBLISHED
    found = hebbian_variance(_network(width), [[1.0]], [seen])
    here = float(found["kernel"].item() + found["association"].item())
    rows: list[Row] = [
        computed_row(
            f"tanh, layer {_DEPTH}, n = {width}, seen {seen:g}: K + association", published, here, 5e-11
        )
    ]
    for value in _SEEN:
        at = data.sel(seen=value)
        theory, limit, error = (float(at[name]) for name in ("theory", "limit", "standard_error"))
        rows.append(
            measured_row(f"real networks, seen {value:g}: n (variance − G)", theory, limit, error, bound)
        )
    low, high = (float(data.limit.sel(seen=value)) for value in (_SEEN[0], _SEEN[-1]))
    errors = [float(data.standard_error.sel(seen=value)) for value in (_SEEN[0], _SEEN[-1])]
    apart = (high - low) / math.hypot(*errors)
    rows.append(
        Row(
            "variance given a loud neuron less that given a silent one, in standard errors",
            "positive, above 5",
            apart,
            agrees=apart > 5,
            note="independent neurons, as at infinite width, would give 0",
        )
    )
    good = all(row.agrees for row in rows)
    verdict = (
        f"What one neuron does tells of another by 1/n: real networks {'agree' if good else 'do NOT agree'} with "
        f"(6.78), {apart:.0f} standard errors from independence."
    )
    return Result(verdict, tuple(rows), data, partial(_draw, data))


def _network(width: int) -> MLP:
    return MLP("tanh", _DEPTH, width, n_in=1)


def _measured(plan: Plan, seed: Seed) -> xarray.Dataset:
    """n (E[z² | seen] - E z²) by width, its limit, and the coefficient of 1/n in theory."""
    widths, batches = list(plan.draws), []
    tasks = list(zip(plan.draws.items(), spawn(seed, len(widths)), strict=True))
    for (width, count), own in track(tasks, "widths"):
        ensemble = Ensemble(_network(width), [[1.0]], count, method=plan.method, seed=own)
        G = np.concatenate([chunk[_DEPTH].ravel() for chunk in ensemble.metrics([_DEPTH])])
        batches.append(width * np.stack([shifts(part) for part in np.split(G, _BATCHES)]))
    theory = np.array([_coefficient(value) for value in _SEEN])
    return limits_of_batches(widths, batches, theory, "seen", _SEEN)


def shifts(G: Array) -> Array:
    """E[z_2² | z_1] - E z² for every seen z_1, from draws of the metric: one batch of networks."""
    weight = np.exp(-(_SEEN[:, None] ** 2) / (2 * G)) / np.sqrt(G)
    return np.asarray((weight * G).mean(axis=1) / weight.mean(axis=1) - G.mean())


def _coefficient(seen: float) -> float:
    width = 10**6
    return width * float(hebbian_variance(_network(width), [[1.0]], [seen])["association"].item())


def _draw(data: xarray.Dataset) -> Figure:
    title = f"Neurons that fire together: tanh, layer {_DEPTH}, given one neuron of the layer"
    figure, (curve, widths) = new_figure(title, 1, 2, (13, 5.0))
    fine = np.linspace(0, 1.1 * _SEEN[-1], 60)
    curve.plot(fine, [_coefficient(float(value)) for value in fine], color=INK, label="theory (6.78)")
    curve.errorbar(
        data.seen, data.limit, data.standard_error, fmt="D", color=PALETTE[0], label="networks, n → ∞"
    )
    curve.axhline(0, color=FAINT, linewidth=1, label="independent neurons")
    curve.set(xlabel="what the other neuron shows, $z_1$", ylabel="$n\\,(E[z_2^2 | z_1] - G)$")
    curve.legend(frameon=False, fontsize=9)
    inverse = 1 / data.width.values
    for colour, value in zip(PALETTE, _SEEN, strict=False):
        at = data.sel(seen=value)
        widths.errorbar(
            inverse, at.measured, at.measured_error, fmt="o", color=colour, label=f"$z_1$ = {value:g}"
        )
        widths.errorbar([0], [float(at.limit)], [float(at.standard_error)], fmt="D", color=colour)
        widths.plot([0], [float(at.theory)], "_", color=INK, markersize=18)
    widths.set(xlabel="1 / width", ylabel="$n\\,(E[z_2^2 | z_1] - G)$")
    widths.set_title("by width; bars at 0: theory", fontsize=11)
    widths.legend(frameon=False, fontsize=9, loc="upper center", ncols=3)
    widths.set_ylim(top=1.3 * widths.get_ylim()[1])
    return figure
