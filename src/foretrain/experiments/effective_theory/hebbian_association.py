"""Neurons that fire together: the variance of a neuron, given what another one of its layer does (section 6.4.1).

At finite width neurons of a layer are coupled. Given the metric they are independent, so that the law of one neuron,
given another, is an average over real networks, weighted with the density of what was seen. n times what that changes
is measured at three widths, extrapolated to infinite width, and put beside (6.78).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import xarray as xr

from foretrain.compare.judging.agreement import largest_score_allowed
from foretrain.experiments.effective_theory.width_limits import draw_limit, limits_of_batches
from foretrain.experiments.judgements import computed_row, limit_row
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import BLUE, INK, PALETTE, Figure
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, with_seeds
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.ensembles import Ensemble
from foretrain.theory.prediction.bayes import hebbian_variance

_DEPTH = 6
_SEEN = np.array([0.0, 0.2, 0.35, 0.5, 0.65])  # of a neuron whose deviation is 0.32
_PUBLISHED = (0.5, 64, 0.1068981848)  # seen, width, variance
_BATCHES = 50


@dataclass(frozen=True)
class Plan:
    """How many networks of which widths are drawn, and how."""

    draws: dict[int, int]  # networks by width
    method: str  # by metrics alone, which is exact at any width, or with all weights drawn


PLANS = plans(
    quick=Plan({48: 400_000, 96: 400_000, 192: 300_000}, "conditional"),
    paper=Plan({64: 600_000, 128: 300_000, 256: 100_000}, "weights"),
)


def hebbian_association(plan: Plan, seed: int) -> Result:
    """n times what seeing one neuron changes of the variance of another, measured and from theory."""
    data = _limits(plan, seed)
    bound = largest_score_allowed(len(_SEEN))
    seen, width, published = _PUBLISHED
    theory = hebbian_variance(_network(width), [[1.0]], [seen])
    here = float(theory["kernel"].item() + theory["association"].item())
    title = f"tanh, layer {_DEPTH}, n = {width}, seen {seen:g}: K + association"
    rows = [computed_row(title, published, here, 5e-11)]
    for value in _SEEN:
        title = f"real networks, seen {value:g}: n (variance − G)"
        rows.append(limit_row(title, data.sel(seen=value), bound))
    silent, loud = data.isel(seen=0), data.isel(seen=-1)
    apart = float(loud.limit - silent.limit) / math.hypot(silent.standard_error, loud.standard_error)
    title = "variance given a loud neuron less that given a silent one, in standard errors"
    note = "independent neurons, as at infinite width, would give 0"
    rows.append(Row(title, "positive, above 5", apart, agrees=apart > 5, note=note))
    word = "agree" if all(row.agrees for row in rows) else "do NOT agree"
    verdict = (
        f"What one neuron does tells of another by 1/n: real networks {word} with "
        f"(6.78), {apart:.0f} standard errors from independence."
    )
    return Result(verdict, tuple(rows), data, _figure)


def _network(width: int) -> MLP:
    return MLP("tanh", _DEPTH, width, n_in=1)


def _limits(plan: Plan, seed: Seed) -> xr.Dataset:
    """n (E[z² | seen] - E z²) by width, its limit, and the coefficient of 1/n in theory."""
    batches = []
    for (width, count), own in track(with_seeds(plan.draws.items(), seed), "widths"):
        ensemble = Ensemble(_network(width), [[1.0]], count, method=plan.method, seed=own)
        G = np.concatenate([chunk[_DEPTH].ravel() for chunk in ensemble.metrics([_DEPTH])])
        batches.append(width * np.stack([shifts(part) for part in np.split(G, _BATCHES)]))
    theory = np.array([_coefficient(value) for value in _SEEN])
    return limits_of_batches(list(plan.draws), batches, theory, "seen", _SEEN)


def shifts(G: FloatArray) -> FloatArray:
    """E[z_2² | z_1] - E z² for every seen z_1, from draws of the metric: one batch of networks."""
    weight = np.exp(-(_SEEN[:, None] ** 2) / (2 * G)) / np.sqrt(G)
    return np.asarray((weight * G).mean(axis=1) / weight.mean(axis=1) - G.mean())


def _coefficient(seen: float) -> float:
    width = 10**6
    return width * float(hebbian_variance(_network(width), [[1.0]], [seen])["association"].item())


def _figure(data: xr.Dataset) -> Figure:
    title = f"Neurons that fire together: tanh, layer {_DEPTH}, given one neuron of the layer"
    figure, change = Figure(title, size=(13, 5.0)), "$n\\,(E[z_2^2 | z_1] - G)$"
    panel = figure.panel(x="what the other neuron shows, $z_1$", y=change)
    fine = np.linspace(0, 1.1 * _SEEN[-1], 60)
    panel.curve(fine, [_coefficient(float(value)) for value in fine], "-", "theory (6.78)", INK)
    panel.curve(data.seen, data.limit, "D", "networks, n → ∞", BLUE, error=data.standard_error)
    panel.level(y=0, label="independent neurons")
    panel = figure.panel("by width; bars at 0: theory", x="1 / width", y=change, legend_columns=3)
    for color, value in zip(PALETTE, _SEEN):
        draw_limit(panel, data.sel(seen=value), f"$z_1$ = {value:g}", color)
        panel.curve([0], data.theory.sel(seen=value), "_", "", INK, size=18)
    return figure
