"""Neurons of random networks to order 1/n: functions of one, two and several, and one given another.

``neuron_observables``: means, covariances and joint densities (section 4.3, (4.61), (4.64), (4.102)).
``hebbian_association``: neurons that fire together, the variance of one given what another does (section 6.4.1).

Given the metric the neurons of a layer are independent normals, so that all of these are averages over the metric of
real networks; the law of one neuron, given another, weighs them with the density of what was seen. n times what
finite width changes is measured at three widths, extrapolated to infinite width, and put beside the theory. The
density of m neurons at zero runs with m as m (m + 2): neurons that are traced out change the couplings of the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from foretrain.compare.judging.agreement import judge, largest_score_allowed
from foretrain.experiments.effective_theory.width_limits import MethodPlan, limits_of_batches
from foretrain.experiments.judgements import computed_row, judgement_rows, limit_row, rows_of
from foretrain.experiments.pictures import coloured, draw_limit
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import BLUE, INK, Figure, names_axis
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, with_seeds
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.ensembles import sample_metric
from foretrain.theory.finite_width import covariance_of, layer_statistics, mean_of
from foretrain.theory.prediction.bayes import hebbian_variance

Given = Callable[[FloatArray], FloatArray]

_LAYER = 4
_X = [[1.1, -0.7]]
_GROUPS = (1, 2, 4, 8)
_BATCHES = 50

# A function of a neuron, and its mean given the variance of the neuron.
_FUNCTIONS: dict[str, tuple[Given, Given]] = {
    "z⁴": (lambda z: z**4, lambda G: 3 * G**2),
    "cos z": (np.cos, lambda G: np.exp(-G / 2)),
    "sin² z": (lambda z: np.sin(z) ** 2, lambda G: (1 - np.exp(-2 * G)) / 2),
}
_PAIRS = (("cos z", "cos z"), ("z⁴", "cos z"), ("sin² z", "z⁴"))


PLANS: dict[str, Any] = {
    "neuron_observables": plans(
        quick=MethodPlan({48: 300_000, 96: 300_000, 192: 300_000}, "conditional"),
        paper=MethodPlan({48: 500_000, 96: 400_000, 192: 200_000}, "weights"),
    )
}


def neuron_observables(plan: MethodPlan, seed: int) -> Result:
    """n times what finite width does to means, covariances and joint densities of neurons."""
    names = ("tanh", "sin")
    parts = [_limits(name, plan, own) for name, own in track(with_seeds(names, seed), "activations")]
    data = xr.concat(parts, xr.Variable("activation", list(names)), join="outer")
    rows: list[Row] = []
    for name in names:
        own = data.sel(activation=name).dropna("direction", subset=["independent"])
        judgement = judge([(own.z.values, own.independent.values)])
        rows += rows_of(name, judgement_rows(judgement, "observables"))
        for label in _labels():
            title = f"{name}, layer {_LAYER}: n times the change of the {label}"
            rows.append(limit_row(title, own.sel(observable=label), judgement.bound))
    word = "agree" if all(row.agrees for row in rows) else "do NOT all agree"
    worst = float(np.abs(data.z).max())
    verdict = (
        f"Functions of one, two and up to {_GROUPS[-1]} neurons of random networks {word} with the order 1/n "
        f"(largest |z| {worst:.1f})."
    )
    return Result(verdict, tuple(rows), data, _figure)


def _network(name: str, width: int) -> MLP:
    return MLP.critical(name, _LAYER, width, n_in=2)


def _labels() -> list[str]:
    return [
        *(f"mean of {name}" for name in _FUNCTIONS),
        *(f"covariance of {a} and {b} of two neurons" for a, b in _PAIRS),
        *(f"density of {m} neurons at zero, relative" for m in _GROUPS),
    ]


def changes(G: FloatArray, K: float) -> FloatArray:
    """What these draws of the metric say of all observables, less infinite width."""
    means = {name: given(G) for name, (_, given) in _FUNCTIONS.items()}
    one = [values.mean() - float(_FUNCTIONS[name][1](np.array(K))) for name, values in means.items()]
    two = [np.mean(means[a] * means[b]) - means[a].mean() * means[b].mean() for a, b in _PAIRS]
    density = [((G / K) ** (-m / 2)).mean() - 1 for m in _GROUPS]
    return np.array([*one, *two, *density])


def _limits(name: str, plan: MethodPlan, seed: Seed) -> xr.Dataset:
    """Changes at every width, their limits, and the coefficients of 1/n, in the order of the labels."""
    n = 10**6
    mlp = _network(name, n)
    at = layer_statistics(mlp, _X, _LAYER)
    K, V, G1 = (float(np.asarray(each).item()) for each in (at.K, at.V, at.G1))
    functions = {key: partial(_at_first_input, function) for key, (function, _) in _FUNCTIONS.items()}
    one = [n * mean_of(function, mlp, _X, _LAYER).correction for function in functions.values()]
    two = [n * covariance_of(functions[a], functions[b], mlp, _X, _LAYER).correction for a, b in _PAIRS]
    density = [m * (m + 2) / 8 * V / K**2 - m / 2 * G1 / K for m in _GROUPS]

    def changes_by_batch(width: int, count: int, own: Seed) -> FloatArray:
        network = _network(name, width)
        G = sample_metric(network, _X, count, method=plan.method, layers=[_LAYER], seed=own).values
        return width * np.stack([changes(part, K) for part in np.split(G.ravel(), _BATCHES)])

    theory = np.array([*one, *two, *density])
    return limits_of_batches(plan.draws, seed, changes_by_batch, theory, "observable", _labels())


def _at_first_input(function: Given, points: FloatArray) -> FloatArray:
    return function(points[:, 0])


def _figure(data: xr.Dataset) -> Figure:
    title = f"Neurons of layer {_LAYER} of random networks: n times what finite width changes, over theory"
    figure = Figure(title, size=(14, 5.6))
    place = np.arange(data.sizes["observable"])
    for name in data.activation.values:
        panel = figure.panel(str(name), names_axis(data.observable.values), "measured / theory")
        own = data.sel(activation=name)
        for (width, at, color), shift in zip(coloured(own, "width"), (-0.24, -0.08, 0.08)):
            ratio, error = at.measured / own.theory, at.measured_error / np.abs(own.theory)
            panel.curve(place + shift, ratio, "o", f"n = {width}", color, error=error)
        ratio, error = own.limit / own.theory, own.standard_error / np.abs(own.theory)
        panel.curve(place + 0.24, ratio, "D", "n → ∞", INK, error=error)
        panel.level(y=1)
    return figure


_DEPTH = 6
_SEEN = np.array([0.0, 0.2, 0.35, 0.5, 0.65])  # of a neuron whose deviation is 0.32
_PUBLISHED = (0.5, 64, 0.1068981848)  # seen, width, variance


PLANS["hebbian_association"] = plans(
    quick=MethodPlan({48: 400_000, 96: 400_000, 192: 300_000}, "conditional"),
    paper=MethodPlan({64: 600_000, 128: 300_000, 256: 100_000}, "weights"),
)


def hebbian_association(plan: MethodPlan, seed: int) -> Result:
    """n times what seeing one neuron changes of the variance of another, measured and from theory."""

    def shifts_by_batch(width: int, count: int, own: Seed) -> FloatArray:
        """n (E[z² | seen] - E z²) in every batch."""
        network = _tanh_network(width)
        G = sample_metric(network, [[1.0]], count, method=plan.method, layers=[_DEPTH], seed=own).values
        return width * np.stack([shifts(part) for part in np.split(G.ravel(), _BATCHES)])

    theory = np.array([_coefficient(value) for value in _SEEN])
    data = limits_of_batches(plan.draws, seed, shifts_by_batch, theory, "seen", _SEEN)
    bound = largest_score_allowed(len(_SEEN))
    seen, width, published = _PUBLISHED
    found = hebbian_variance(_tanh_network(width), [[1.0]], [seen])
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
    return Result(verdict, tuple(rows), data, _association_figure)


def _tanh_network(width: int) -> MLP:
    return MLP("tanh", _DEPTH, width, n_in=1)


def shifts(G: FloatArray) -> FloatArray:
    """E[z_2² | z_1] - E z² for every seen z_1, from draws of the metric: one batch of networks."""
    weight = np.exp(-(_SEEN[:, None] ** 2) / (2 * G)) / np.sqrt(G)
    return np.asarray((weight * G).mean(axis=1) / weight.mean(axis=1) - G.mean())


def _coefficient(seen: float) -> float:
    width = 10**6
    return width * float(hebbian_variance(_tanh_network(width), [[1.0]], [seen])["association"].item())


def _association_figure(data: xr.Dataset) -> Figure:
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
