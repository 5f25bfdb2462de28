"""Neurons of random networks to order 1/n: functions of them, one given another, and the information between them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product
from typing import Any

import numpy as np
import xarray as xr

from foretrain.compare.judging.agreement import judge, largest_score_allowed
from foretrain.experiments.effective_theory.width_limits import MethodPlan, limits_of_batches
from foretrain.experiments.judgements import agreement_rows, computed_row, judgement_rows, limit_row, rows_of
from foretrain.experiments.pictures import coloured, draw_limit
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import BLUE, FAINT, GREEN, INK, ORANGE, RED, Axis, Figure, names_axis
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, spawn, with_seeds
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.ensembles import sample_metric
from foretrain.theory.finite_width import covariance_of, layer_statistics, mean_of
from foretrain.theory.information import (
    complete_information,
    entropy_series,
    linear_law,
    log_normal_law,
    mixture_entropy,
    mixture_information,
    printed_information,
    sampled_law,
    turning_point,
)
from foretrain.theory.prediction.bayes import hebbian_variance
from foretrain.theory.residual_networks import fluctuation_rate

PLANS: dict[str, Any] = {}

Given = Callable[[FloatArray], FloatArray]

_LAYER = 4
_X = [[1.1, -0.7]]
_NEURON_GROUPS = (1, 2, 4, 8)
_BATCHES = 50

# A function of a neuron, and its mean given the variance of the neuron.
_FUNCTIONS: dict[str, tuple[Given, Given]] = {
    "z⁴": (lambda z: z**4, lambda G: 3 * G**2),
    "cos z": (np.cos, lambda G: np.exp(-G / 2)),
    "sin² z": (lambda z: np.sin(z) ** 2, lambda G: (1 - np.exp(-2 * G)) / 2),
}
_PAIRS = (("cos z", "cos z"), ("z⁴", "cos z"), ("sin² z", "z⁴"))


PLANS |= {
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
        f"Functions of one, two and up to {_NEURON_GROUPS[-1]} neurons of random networks {word} with the order 1/n "
        f"(largest |z| {worst:.1f})."
    )
    return Result(verdict, tuple(rows), data, _neuron_figure)


def _network(name: str, width: int) -> MLP:
    return MLP.critical(name, _LAYER, width, n_in=2)


def _labels() -> list[str]:
    return [
        *(f"mean of {name}" for name in _FUNCTIONS),
        *(f"covariance of {a} and {b} of two neurons" for a, b in _PAIRS),
        *(f"density of {m} neurons at zero, relative" for m in _NEURON_GROUPS),
    ]


def changes(G: FloatArray, K: float) -> FloatArray:
    """What these draws of the metric say of all observables, less infinite width."""
    means = {name: given(G) for name, (_, given) in _FUNCTIONS.items()}
    one = [values.mean() - float(_FUNCTIONS[name][1](np.array(K))) for name, values in means.items()]
    two = [np.mean(means[a] * means[b]) - means[a].mean() * means[b].mean() for a, b in _PAIRS]
    density = [((G / K) ** (-m / 2)).mean() - 1 for m in _NEURON_GROUPS]
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
    density = [m * (m + 2) / 8 * V / K**2 - m / 2 * G1 / K for m in _NEURON_GROUPS]

    def changes_by_batch(width: int, count: int, own: Seed) -> FloatArray:
        network = _network(name, width)
        G = sample_metric(network, _X, count, method=plan.method, layers=[_LAYER], seed=own).values
        return width * np.stack([changes(part, K) for part in np.split(G.ravel(), _BATCHES)])

    theory = np.array([*one, *two, *density])
    return limits_of_batches(plan.draws, seed, changes_by_batch, theory, "observable", _labels())


def _at_first_input(function: Given, points: FloatArray) -> FloatArray:
    return function(points[:, 0])


def _neuron_figure(data: xr.Dataset) -> Figure:
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
_REFERENCE = (0.5, 64, 0.1068981848)  # seen, width, variance


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
    seen, width, reference = _REFERENCE
    found = hebbian_variance(_tanh_network(width), [[1.0]], [seen])
    here = float(found["kernel"].item() + found["association"].item())
    title = f"tanh, layer {_DEPTH}, n = {width}, seen {seen:g}: K + association"
    rows = [computed_row(title, reference, here, 5e-11)]
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


_INFORMATION_GROUPS = (1, 5)  # neurons on either side
_SPREADS = np.linspace(0, 0.8, 81)
_REACHED = (0.15, 0.3, 0.45, 0.6, 0.75)  # nu r of random networks, roughly
_NETWORKS = {"linear": 24, "relu": 60, "tanh": 24}  # widths
_TANH_WIDTH = 10
_TANH = {  # layer: information of 1 and 1, of 5 and 5 neurons, as the reference measured them
    3: (0.0014, 0.029),
    6: (0.0074, 0.116),
    11: (0.0244, 0.277),
    21: (0.0735, 0.543),
    41: (0.194, 0.906),
}
_EXACT = {1: 0.002027, 2: 0.006305, 4: 0.017639}  # at these multiples of nu r = 2/13
_PRINTED = {1: 0.000986, 2: -0.003945, 4: -0.078895}
_DIGIT = 6e-7
_REFERENCE_ERROR = 0.02  # the reference prints no standard errors


@dataclass(frozen=True)
class InformationPlan:
    """How many deep networks, and tanh networks of width ten, are drawn."""

    draws: int
    tanh_draws: int


PLANS["mutual_information"] = plans(
    quick=InformationPlan(6_000, 40_000), paper=InformationPlan(60_000, 400_000)
)


def mutual_information(plan: InformationPlan, seed: int) -> Result:
    """Information between neurons of a layer: truncated series, exact mixture, random networks (appendix A).

    The series (A.71) has a maximum at r* = 4 / (20 + 3 m_1 + 3 m_2) / nu and is negative beyond 3/2 r*. Given the
    metric the neurons are Gaussian, so that the exact information is one integral over the law of the metric: it has
    no maximum, for scale-invariant networks in the limit of large width and depth, nor for tanh networks of width
    ten.
    """
    wide, narrow = spawn(seed, 2)
    # The information of scale-invariant networks by nu r: exact, as printed, and with all terms of third order.
    laws = [log_normal_law(float(y)) for y in _SPREADS]
    columns = {
        "exact": [[mixture_information(law, m, m).value for law in laws] for m in _INFORMATION_GROUPS],
        "printed": [printed_information(m, m, _SPREADS) for m in _INFORMATION_GROUPS],
        "complete": [complete_information(m, m, _SPREADS, "scale-invariant") for m in _INFORMATION_GROUPS],
        "complete_zero": [complete_information(m, m, _SPREADS, "K*=0") for m in _INFORMATION_GROUPS],
    }
    curves = xr.Dataset(
        {name: (("neurons", "spread"), values) for name, values in columns.items()},
        coords={"neurons": list(_INFORMATION_GROUPS), "spread": _SPREADS},
    )
    # Tanh networks of width ten start from K = 1 and are measured at the layers of the reference.
    layers = list(_TANH)
    mlp = MLP("tanh", depth=max(layers), width=_TANH_WIDTH, n_in=1, n_out=_TANH_WIDTH)
    found = []
    for layer, own in track(with_seeds(layers, narrow), "tanh networks"):
        law = sampled_law(mlp, [1.0], plan.tanh_draws, layer=layer, seed=own)
        found.append([mixture_information(law, m, m) for m in _INFORMATION_GROUPS])
    dims = ("layer", "neurons")
    tanh_networks = xr.Dataset(
        {
            "tanh": (dims, [[each.value for each in row] for row in found]),
            "tanh_error": (dims, [[each.standard_error for each in row] for row in found]),
            "tanh_reference": (dims, list(_TANH.values())),
        },
        coords={"layer": layers},
    )
    data = xr.merge([curves, _wide_networks(plan.draws, wide), tanh_networks])
    rows = []
    for name, reference in (("exact", _EXACT), ("(A.71)", _PRINTED)):
        for multiple, expected in reference.items():
            y = multiple * turning_point(1, 1)
            exact, printed = mixture_information(log_normal_law(y), 1, 1).value, printed_information(1, 1, y)
            title = f"I(1,1) {name} at {multiple} r*" if multiple > 1 else f"I(1,1) {name} at r*"
            rows.append(computed_row(title, expected, exact if name == "exact" else float(printed), _DIGIT))
    rows += [*_coefficient_rows(), *_linear_rows(data), *_tanh_rows(data)]
    # Whether any exact or measured information falls with depth by more than its error.
    steps = data.tanh.diff("layer").values
    errors = np.hypot(data.tanh_error.values[1:], data.tanh_error.values[:-1])
    grows = bool((steps > 3 * errors).all() and (data.exact.diff("spread") > 0).all())
    note = "a property of the truncated series: r* is the depth at which perturbation theory ends, νr(m₁ + m₂) ~ 1"
    here = "grows at every depth" if grows else "falls somewhere"
    title, claim = "I against depth over width (A.72)", "a maximum at r*"
    rows.append(Row(title, claim, here, agrees=not grows, note=note, disputed=True))
    ratio = _EXACT[1] / _PRINTED[1]
    verdict = (
        "The exact information between neurons grows with depth without a maximum; the truncated series peaks at r*, "
        f"where the exact one is {ratio:.2g} times as large, and is negative beyond 3/2 r*."
    )
    return Result(verdict, tuple(rows), data, _information_figure)


def _wide_networks(draws: int, seed: Seed) -> xr.Dataset:
    """Random networks at depths up to nu r = 0.8, by activation; linear ones with their exact law."""
    tasks = [
        (name, width, depth)
        for name, width in _NETWORKS.items()
        for depth in sorted({max(2, round(1 + y * width / fluctuation_rate(name))) for y in _REACHED})
    ]
    measured, errors, exact = [], [], []
    for (name, width, depth), own in track(with_seeds(tasks, seed), "networks"):
        law = sampled_law(MLP.critical(name, depth, width, n_in=1, n_out=10), [1.0], draws, seed=own)
        found = [mixture_information(law, m, m) for m in _INFORMATION_GROUPS]
        measured.append([each.value for each in found])
        errors.append([each.standard_error for each in found])
        exact.append([np.nan] * len(_INFORMATION_GROUPS))
        if name == "linear":
            known = linear_law([width] * (depth - 1))
            exact[-1] = [mixture_information(known, m, m).value for m in _INFORMATION_GROUPS]
    activations, widths, depths = zip(*tasks, strict=True)
    # What has fluctuated are the hidden layers, one less than the depth.
    reached = [fluctuation_rate(name) * (depth - 1) / width for name, width, depth in tasks]
    labels = {"activation": activations, "width": widths, "depth": depths, "reached": reached}
    columns = {"measured": measured, "measured_error": errors, "law": exact}
    return xr.Dataset(
        {name: (("network", "neurons"), values) for name, values in columns.items()},
        coords={key: ("network", list(values)) for key, values in labels.items()},
    )


def _coefficient_rows() -> list[Row]:
    """Cubic coefficients by Richardson extrapolation: of the entropy in X, of the information in nu r."""
    rows = []
    for m in (1, 2, 4):
        values = []
        for n in (200, 400, 800):  # one linear layer has X = 2/n exactly
            exact = mixture_entropy(linear_law([n]), m).value
            values.append((exact - float(entropy_series(m, 2 / n, order=2))) / (2 / n) ** 3)
        expected, title = (m**3 + 10 * m**2 + 16 * m) / 48, f"S, coefficient of X³ (A.66), m = {m}"
        rows.append(computed_row(title, expected, _richardson(values), 1e-3 * expected))
    for m in (1, 4):
        values = []
        for y in (0.02, 0.01, 0.005):
            leading = m**2 / 8 * y**2
            values.append((mixture_information(log_normal_law(y), m, m).value / leading - 1) / y)
        here, title = _richardson(values), f"I, relative coefficient of νr, m₁ = m₂ = {m}"
        complete, printed = -(14 + 6 * m) / 6, -(20 + 6 * m) / 6
        rows.append(computed_row(f"{title}, complete", complete, here, 5e-3 * abs(complete)))
        note = "(A.71) puts X = νr into a series of third order, where X = νr + (νr)²/2 is needed"
        allowed = 5e-3 * abs(printed)
        rows.append(computed_row(f"{title}, (A.71)", printed, here, allowed, note, disputed=True))
    return rows


def _richardson(values: list[float]) -> float:
    """The limit of three values at steps 4, 2 and 1, whose errors are a step and its square."""
    first = [2 * fine - coarse for coarse, fine in pairwise(values)]
    return (4 * first[1] - first[0]) / 3


def _linear_rows(data: xr.Dataset) -> tuple[Row]:
    linear = data.isel(network=data.activation.values == "linear")
    _, largest = agreement_rows(((linear.measured - linear.law) / linear.measured_error).values)
    title = f"linear networks of width {_NETWORKS['linear']} against their exact law"
    return (replace(largest, quantity=f"{title}: {largest.quantity}"),)


def _tanh_rows(data: xr.Dataset) -> list[Row]:
    rows = []
    for layer, m in product(data.layer.values, _INFORMATION_GROUPS):
        point = data.sel(layer=layer, neurons=m)
        expected, here, error = (float(point[key]) for key in ("tanh_reference", "tanh", "tanh_error"))
        digit = 0.5 * 10.0 ** (-4 if expected < 0.1 and m == 1 else -3)
        close = abs(here - expected) <= 3 * error + digit + _REFERENCE_ERROR * expected
        title = f"tanh, n = {_TANH_WIDTH}, layer {layer}: I({m},{m})"
        rows.append(Row(title, expected, here, error, agrees=bool(close)))
    return rows


def _information_figure(data: xr.Dataset) -> Figure:
    title = "Information between neurons of a layer: the truncated series and the truth"
    figure = Figure(title, size=(17.0, 5.0))
    for m in _INFORMATION_GROUPS:
        # Information over nu r, for so many neurons on either side.
        own = data.sel(neurons=m)
        y, turn, top = own.spread.values, turning_point(m, m), 1.25 * float(own.exact.max())
        panel = figure.panel(
            f"{m} and {m} neurons" if m > 1 else "two neurons",
            x=Axis(r"$\nu r$,  $r$ = hidden layers over width", low=0, high=y[-1]),
            y=Axis("nats", low=-0.2 * top, high=top),
            legend="best" if m == 1 else "",
        )
        panel.curve(y, own.exact, "-", "exact, scale-invariant, deep and wide", INK, width=2.4)
        good = own.printed.values >= 0
        panel.curve(y[good], own.printed[good], "-", "series (A.71)", RED, width=2)
        panel.curve(y[~good], own.printed[~good], ":", "(A.71), negative: invalid", RED, width=1.4)
        panel.curve(y, own.complete, "--", "with all terms of third order", RED, width=1.1)
        for name, marker, color in (("linear", "s", GREEN), ("relu", "o", BLUE), ("tanh", "^", ORANGE)):
            at = own.isel(network=own.activation.values == name)
            label = f"random {name} networks, n = {int(at.width[0])}"
            error = 2 * at.measured_error
            panel.curve(at.reached, at.measured, marker, label, color, error=error, size=6, hollow=True)
        panel.curve([turn, turn], [-0.2 * top, 0.3 * top], "--", "", FAINT, width=1.2)
        panel.note(turn, -0.17 * top, r"$r^*$", size=11)
        panel.level(y=0)
    title = f"tanh networks of width {_TANH_WIDTH}: no maximum"
    across = Axis("layer", low=0, high=max(_TANH) + 1)
    panel = figure.panel(title, x=across, y=Axis("nats", low=-0.15, high=1.0))
    layer, nu = np.linspace(1, max(_TANH), 400), fluctuation_rate("tanh")
    for m, color in zip(_INFORMATION_GROUPS, (BLUE, ORANGE)):
        own, series = data.sel(neurons=m), printed_information(m, m, nu * layer / _TANH_WIDTH)
        panel.curve(own.layer, own.tanh, "-", f"exact, {m} and {m}", color, error=2 * own.tanh_error, width=2)
        panel.curve(own.layer, own.tanh_reference, "o", "", color, size=8, hollow=True)
        panel.curve(layer, series, ":", f"series (A.71), {m} and {m}", color)
    panel.legend_entry("o", "reference", hollow=True)
    panel.level(y=0)
    return figure
