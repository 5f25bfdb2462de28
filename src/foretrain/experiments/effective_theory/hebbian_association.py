"""Neurons that fire together: the variance of a neuron, given what another one of its layer does (section 6.4.1).

At finite width neurons of a layer are coupled. Given the metric they are independent, so that the law of one neuron,
given another, is an average over real networks, weighted with the density of what was seen. n times what that changes
is measured at three widths, extrapolated to infinite width, and put beside (6.78).
"""

from __future__ import annotations

import math

import numpy as np
import xarray as xr

from foretrain.compare.judging.agreement import largest_score_allowed
from foretrain.experiments.effective_theory.width_limits import MethodPlan, limits_of_batches
from foretrain.experiments.judgements import computed_row, limit_row
from foretrain.experiments.pictures import coloured, draw_limit
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import BLUE, INK, Figure
from foretrain.support.seeds import Seed
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.ensembles import sample_metric
from foretrain.theory.prediction.bayes import hebbian_variance

_DEPTH = 6
_SEEN = np.array([0.0, 0.2, 0.35, 0.5, 0.65])  # of a neuron whose deviation is 0.32
_PUBLISHED = (0.5, 64, 0.1068981848)  # seen, width, variance
_BATCHES = 50


PLANS = plans(
    quick=MethodPlan({48: 400_000, 96: 400_000, 192: 300_000}, "conditional"),
    paper=MethodPlan({64: 600_000, 128: 300_000, 256: 100_000}, "weights"),
)


def hebbian_association(plan: MethodPlan, seed: int) -> Result:
    """n times what seeing one neuron changes of the variance of another, measured and from theory."""

    def shifts_by_batch(width: int, count: int, own: Seed) -> FloatArray:
        """n (E[z² | seen] - E z²) in every batch."""
        network = _network(width)
        G = sample_metric(network, [[1.0]], count, method=plan.method, layers=[_DEPTH], seed=own).values
        return width * np.stack([shifts(part) for part in np.split(G.ravel(), _BATCHES)])

    theory = np.array([_coefficient(value) for value in _SEEN])
    data = limits_of_batches(plan.draws, seed, shifts_by_batch, theory, "seen", _SEEN)
    bound = largest_score_allowed(len(_SEEN))
    seen, width, published = _PUBLISHED
    found = hebbian_variance(_network(width), [[1.0]], [seen])
    here = float(found["kernel"].item() + found["association"].item())
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
    for value, own, color in coloured(data, "seen"):
        draw_limit(panel, own, f"$z_1$ = {value:g}", color)
        panel.curve([0], own.theory, "_", "", INK, size=18)
    return figure
