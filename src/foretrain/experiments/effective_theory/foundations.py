"""What comes before the theory of layers: activations, parameters, nearly-Gaussian laws, and laws of the weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np
import xarray as xr

from foretrain.activations import activation
from foretrain.compare.judging.agreement import decorrelated, judge, largest_score_allowed
from foretrain.compare.judging.powers import Sizes, power_of
from foretrain.experiments.judgements import (
    agreeing,
    computed_row,
    judgement_rows,
    limit_row,
    power_row,
    sampled,
)
from foretrain.experiments.pictures import coloured
from foretrain.experiments.registry import Result, Row, plans
from foretrain.gaussian import cumulants
from foretrain.gaussian.action import EvenAction, QuarticAction
from foretrain.support.answers import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    PALETTE,
    PURPLE,
    Axis,
    Figure,
    log,
    names_axis,
)
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, generator, spawn, with_seeds
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.ensembles import Ensemble, sample_metric, sample_parameters, weight_law
from foretrain.theory.linear import DeepLinear, nongaussian_weights

PLANS: dict[str, Any] = {}

# Derivatives of order 0 to 3 at the origin, section 2.2.
_DERIVATIVES_AT_ZERO = {
    "sigmoid": (0.5, 0.25, 0.0, -0.125),
    "tanh": (0.0, 1.0, 0.0, -2.0),
    "sin": (0.0, 1.0, 0.0, -1.0),
    "linear": (0.0, 1.0, 0.0, 0.0),
    "softplus": (np.log(2.0), 0.5, 0.25, 0.0),
    "swish": (0.0, 0.5, 0.5, 0.0),
    "gelu": (0.0, 0.5, np.sqrt(2.0 / np.pi), 0.0),
}
_MINIMA = {"swish": (-1.278465, -0.278465), "gelu": (-0.751792, -0.169971)}  # place and value, six decimals

_CURVES = {  # title and family
    "perceptron": ("perceptron (2.9)", "saturating or periodic"),
    "sigmoid": ("sigmoid (2.10)", "saturating or periodic"),
    "tanh": ("tanh (2.11)", "saturating or periodic"),
    "sin": ("sin (2.12)", "saturating or periodic"),
    "linear": ("linear (2.14)", "scale-invariant"),
    "relu": ("ReLU (2.14)", "scale-invariant"),
    "leaky_relu": ("leaky ReLU (2.14)", "scale-invariant"),
    "softplus": ("softplus (2.15)", "smooth, like ReLU"),
    "swish": ("SWISH (2.16)", "smooth, like ReLU"),
    "gelu": ("GELU (2.17)", "smooth, like ReLU"),
}
_LEAK = 0.1  # visible in a picture; the usual 0.01 is not


@dataclass(frozen=True)
class CurvesPlan:
    """How finely the curves are drawn."""

    points: int


PLANS["activation_curves"] = plans(quick=CurvesPlan(401), paper=CurvesPlan(2001))


def activation_curves(plan: CurvesPlan, seed: int) -> Result:
    """The activation functions of figure 2.2."""
    from scipy.optimize import brentq

    points = np.linspace(-4.0, 4.0, plan.points)
    shapes = [activation(name, slope=_LEAK) if name == "leaky_relu" else activation(name) for name in _CURVES]
    curves = np.stack([shape.value(points) for shape in shapes])
    coords = {"activation": list(_CURVES), "z": points}
    data = xr.Dataset({"value": (("activation", "z"), curves)}, coords=coords)
    rows = [
        computed_row(f"{name} σ_{order}", value, here, 1e-12)
        for name, expected in _DERIVATIVES_AT_ZERO.items()
        for order, (value, here) in enumerate(zip(expected, activation(name).taylor(3), strict=True))
    ]
    for name, (place, value) in _MINIMA.items():  # where the derivative vanishes
        curve = activation(name)
        here = float(brentq(lambda z, curve=curve: float(curve.derivative(z, 1)), -2.0, 0.0, xtol=1e-12))
        rows.append(computed_row(f"{name} minimum, place", place, here, 5e-7))
        rows.append(computed_row(f"{name} minimum, value", value, float(curve.value(here)), 5e-7))
    verdict = f"{agreeing(rows)} derivatives at zero and minima of the activations agree with the source."
    return Result(verdict, tuple(rows), data, _curves_figure)


def _curves_figure(data: xr.Dataset) -> Figure:
    figure = Figure("Activation functions (figure 2.2)", columns=5, size=(13, 5.6), legend="below")
    for number, (name, (title, family)) in enumerate(_CURVES.items()):
        values = data.value.sel(activation=name).values
        x = Axis("$z$" if number >= 5 else "", low=-4, high=4)
        y = Axis("" if number % 5 else r"$\sigma(z)$", low=-1.5, high=1.5 if values.max() <= 1 else 3.5)
        panel = figure.panel(title, x, y)
        panel.level(y=0, width=0.8)
        panel.level(x=0, width=0.8)
        jumps = np.diff(values, append=values[-1]) > 0.5  # left open, not joined by a vertical line
        panel.curve(data.z, np.where(jumps, np.nan, values), "-", family, width=2.2)
    return figure


_PRINTED_COUNT = 91  # figure 2.1
_WIDTHS = (4, 5, 5, 5, 1)


@dataclass(frozen=True)
class CountPlan:
    """Nothing: the one network of the figure is counted at any scale."""


PLANS["parameter_count"] = plans(quick=CountPlan(), paper=CountPlan())


def parameter_count(plan: CountPlan, seed: int) -> Result:
    """The parameters of the multilayer perceptron of figure 2.1."""
    mlp = MLP("tanh", depth=4, width=_WIDTHS[1:-1], n_in=_WIDTHS[0], n_out=_WIDTHS[-1])
    network = sample_parameters(mlp, 2, seed=seed)
    biases, weights = ([one[0].size for one in stack] for stack in (network.biases, network.weights))
    counts = {
        "parameters by (2.7)": mlp.parameter_count,
        "entries of a drawn network": sum(biases) + sum(weights),
    }
    rows = [Row(name, _PRINTED_COUNT, here, agrees=here == _PRINTED_COUNT) for name, here in counts.items()]
    data = xr.Dataset(
        {"width": ("layer", list(_WIDTHS[1:])), "biases": ("layer", biases), "weights": ("layer", weights)},
        coords={"layer": range(1, mlp.depth + 1)},
        attrs={"n_in": _WIDTHS[0], "parameters": mlp.parameter_count},
    )
    verdict = f"A network with widths {', '.join(map(str, _WIDTHS))} has {mlp.parameter_count} parameters."
    return Result(verdict, tuple(rows), data, _count_figure)


def _count_figure(data: xr.Dataset) -> Figure:
    figure = Figure(f"An MLP with {data.attrs['parameters']} parameters (figure 2.1)", size=(8, 4.4))
    panel = figure.panel(y=Axis(low=-4.1, high=3.9), bare=True)
    widths = [int(data.attrs["n_in"]), *data.width.values.tolist()]
    heights = [np.arange(n) - (n - 1) / 2 for n in widths]
    for layer in data.layer.values:
        below, above = (part.ravel() for part in np.meshgrid(heights[layer - 1], heights[layer]))
        for ends in zip(below, above):
            panel.curve([layer - 1, layer], ends, "-", "", FAINT, width=0.7)
        biases, weights = (int(data[name].sel(layer=layer)) for name in ("biases", "weights"))
        count = f"{biases} {'bias' if biases == 1 else 'biases'}\n{weights} weights"
        panel.note(layer - 0.5, -3.1, count, align="center", above=False)
    names = ["input", *(f"layer {layer}" for layer in range(1, len(widths) - 1)), "output"]
    colors = [GREEN, *[BLUE] * (len(widths) - 2), PURPLE]
    for place, (levels, name, color) in enumerate(zip(heights, names, colors, strict=True)):
        panel.curve(np.full(len(levels), place), levels, "o", "", color, size=16)
        text = f"{name}\n$n_{place} = {widths[place]}$"
        panel.note(place, 2.75, text, align="center", above=True, size=10)
    return figure


_QUANTITIES = ("Z / sqrt(2πK)", "two-point", "connected four-point / -g")
_HALVED = 2.0 ** -np.arange(1.0, 9.0)  # couplings in units of the first
_SERIES = (0.1, 0.2, 1.0)
_ORDERS = 24
_EPSILONS = np.array([0.0025, 0.005, 0.01, 0.02, 0.04])
_GAUSSIAN_BATCHES = 200
_PAIRS = ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))
_FOURS = ((0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 1, 1), (0, 1, 1, 2), (1, 1, 1, 1), (1, 1, 2, 2), (2, 2, 2, 2))
_STRENGTH = 0.02  # of the coupling of three variables that is sampled
_WEAK = 0.002  # and of the one that is halved
_TENTH = 0.1  # the error at which first order counts as broken


@dataclass(frozen=True)
class GaussianPlan:
    """How many samples are drawn."""

    draws: int


PLANS["nearly_gaussian"] = plans(quick=GaussianPlan(8_000_000), paper=GaussianPlan(100_000_000))


def nearly_gaussian(plan: GaussianPlan, seed: int) -> Result:
    """Nearly-Gaussian laws: correlators from the couplings of an action, to first order, and where that breaks down.

    One variable with a quartic coupling g is integrated exactly and put beside (1.73), (1.74), (1.78): what first
    order leaves out must fall by four when g is halved. Three variables with a tensor coupling are sampled. Further
    orders are an asymptotic series: they help at first, then ruin any accuracy. With couplings of order epsilon and
    epsilon^2, cumulants of order 2m are of order epsilon^(m-1) (1.83).
    """
    found = []  # exact kappa_2, kappa_4, kappa_6 with a quartic coupling epsilon and a sextic one epsilon^2
    for epsilon in _EPSILONS:
        action = EvenAction([[1.0]], {4: epsilon, 6: np.full((1,) * 6, epsilon**2)})
        found.append(cumulants.even_cumulants_from_moments(exact_moments(action, (2, 4, 6))))
    places = {"epsilon": _EPSILONS, "points": [2, 4, 6]}
    hierarchy = xr.Dataset({"cumulant": (("epsilon", "points"), np.abs(np.array(found)))}, places)
    # The series Z = sum_k (-g/24)^k (4k-1)!! / k! is cut off at each order; its relative error is kept.
    orders = np.arange(_ORDERS + 1)
    odd = np.array([math.prod(range(4 * k - 1, 0, -2)) / math.factorial(k) for k in orders])
    errors = [np.abs(np.cumsum((-g / 24) ** orders * odd) / partition_ratio(g) - 1) for g in _SERIES]
    series = xr.Dataset(
        {"series_error": (("series_coupling", "order"), np.stack(errors))},
        coords={"series_coupling": list(_SERIES), "order": orders},
    )
    # Z, two-point and connected four-point of K = 1 are found exactly and to first order in the coupling.
    couplings = np.concatenate([_HALVED[::-1], [1.0, 2.0, 4.0]])
    exact, first = [], []
    for g in track(couplings, "couplings"):
        action = QuarticAction([[1.0]], g)
        second, fourth = cumulants.even_cumulants_from_moments(exact_moments(action, (2, 4)))
        exact.append([partition_ratio(g), second, -fourth / g])
        connected = -float(action.connected_four_point().item()) / g
        first.append([action.partition_ratio(), float(action.two_point().item()), connected])
    dims = ("coupling", "quantity")
    one_variable = xr.Dataset(
        {"exact": (dims, np.array(exact)), "first_order": (dims, np.array(first))},
        coords={"coupling": couplings, "quantity": list(_QUANTITIES)},
    )
    data = xr.merge([one_variable, series, hierarchy, _correlators(plan.draws, seed)])
    # The coupling at which the first order of the connected four-point is wrong by a tenth of the exact value.
    one = data.sel(quantity=_QUANTITIES[2])
    wrong = np.abs(one.first_order / one.exact - 1).values
    broken = float(np.exp(np.interp(np.log(_TENTH), np.log(wrong), np.log(data.coupling.values))))
    title = f"g at which first order is wrong by a tenth: {_QUANTITIES[2]}"
    last = Row(title, "none published", broken)
    errors = []  # from exact correlators back to the coupling: the error is of second order
    for g in _HALVED[-2:]:
        moments = exact_moments(QuarticAction([[1.0]], g), (2, 4))
        second, fourth = cumulants.even_cumulants_from_moments(moments)
        inverse = QuarticAction.from_correlators([[second]], np.full((1,) * 4, fourth))
        errors.append(abs(inverse.coupling.item() - g))
    title = "coupling from measured correlators: power of g in the error"
    back = computed_row(title, 2.0, math.log2(errors[0] / errors[1]), 0.1)
    # Samples are held against exact integrals, and first order against them with a coupling that is halved.
    judgement = judge([(data.z.values, data.independent.values)])
    rows = judgement_rows(judgement, "combinations of sampled correlators")
    for label in ("11", "12", "1111", "1122"):
        one = data.sel(correlator=label)
        value, perturbed = float(one.integrated), float(one.perturbed)
        title = f"three variables: {'two-point' if len(label) == 2 else 'connected'} {label}"
        rows.append(Row(f"{title}, samples", value, float(one.sampled), float(one.standard_error)))
        rows.append(Row(f"{title}, first order (no coupling: {float(one.gaussian):.4g})", value, perturbed))
    errors = []
    for strength in (_WEAK, _WEAK / 2):
        _, integrated, to_first_order, _ = _exact_correlators(_example(strength))
        errors.append(np.abs(integrated - to_first_order))
    fall = errors[0] / errors[1]
    worst = fall[np.argmax(np.abs(fall - 4))]
    title = f"three variables: error of first order falls per halving, {fall.size} correlators"
    rows = [
        *_power_rows(data),
        *rows,
        computed_row(f"{title} (the least like 4)", 4.0, worst, 0.2),
        back,
        last,
    ]
    good = all(row.agrees is not False for row in rows)
    verdict = (
        f"First-order correlators {'agree' if good else 'do NOT agree'} with exact integrals and samples up to "
        f"errors of second order; the connected four-point is wrong by a tenth at a coupling of g K² = {broken:.2g}, "
        f"and at g = {_SERIES[-1]:g} no order of the series is better than "
        f"{float(data.series_error.sel(series_coupling=_SERIES[-1]).min()):.1g}."
    )
    return Result(verdict, tuple(rows), data, _gaussian_figure)


def exact_moments(action: EvenAction, orders: tuple[int, ...]) -> list[float]:
    """E[z^order] of one variable under exp(-S) itself."""
    return [exact_moment(action, (0,) * order) for order in orders]


def exact_moment(action: EvenAction, indices: tuple[int, ...]) -> float:
    """E[z_a z_b ..] under exp(-S) itself."""
    return float(action.exact_expectation(lambda z: z[:, list(indices)].prod(axis=1)))


def partition_ratio(coupling: float) -> float:
    """Z / sqrt(2 pi) of S = z^2 / 2 + g z^4 / 24, with a = 3 / 4g: e^a K_1/4(a) sqrt(a / 2 pi) 2."""
    from scipy.special import kve

    a = 3 / (4 * coupling)
    return float(kve(0.25, a) * math.sqrt(2 * a / math.pi))


def _power_rows(data: xr.Dataset) -> list[Row]:
    """Powers between the two smallest couplings, and the order at which the series of Z is best."""
    rows, error = [], np.abs(data.exact - data.first_order)
    for quantity in _QUANTITIES:  # the next order of the error is of the size of the coupling
        order = 2.0 if quantity != _QUANTITIES[2] else 1.0  # the last was divided by g
        low, high = error.sel(quantity=quantity).values[:2]
        title = f"{quantity}: power of g that first order leaves"
        rows.append(computed_row(title, order, math.log2(high / low), 10 * data.coupling.values[1]))
    for points in data.points.values:
        low, high = data.cumulant.sel(points=points).values[:2]
        title = f"power of ε in the cumulant of {points} points"
        rows.append(computed_row(title, points / 2 - 1.0, math.log2(high / low), 20 * _EPSILONS[1]))
    for g in _SERIES:  # terms shrink until k ~ 3 / 2g; there the series is best
        best = int(np.argmin(data.series_error.sel(series_coupling=g).values))
        expected = 3 / (2 * g)
        title = f"order at which the series of Z is best, g = {g:g} (3 / 2g)"
        rows.append(Row(title, expected, best, agrees=bool(abs(best - expected) <= 1)))
    return rows


def _example(strength: float) -> QuarticAction:
    """Three variables with a positive coupling that mixes all of them."""
    K = np.array([[1.0, 0.5, -0.2], [0.5, 0.8, 0.1], [-0.2, 0.1, 0.6]])
    directions = np.array([[1.0, 0.3, 0.0], [0.2, 1.0, -0.5], [0.0, 0.6, 1.0]])
    return QuarticAction(K, strength * np.einsum("na,nb,nc,nd->abcd", *(directions,) * 4))


def _correlators(draws: int, seed: Seed) -> xr.Dataset:
    """Two-points and connected four-points of three variables: exact, first order, and from accepted samples."""
    action = _example(_STRENGTH)
    labels, exact, first, gaussian = _exact_correlators(action)
    # The same in each of some batches; Gaussian draws are accepted with probability exp(-V z^4 / 24).
    source, root, found = generator(seed), np.linalg.cholesky(action.K), []
    for _ in track(range(_GAUSSIAN_BATCHES), "samples"):
        z = source.normal(size=(draws // _GAUSSIAN_BATCHES, 3)) @ root.T
        extra = action.value(z) - 0.5 * np.einsum("pi,ij,pj->p", z, np.linalg.inv(action.K), z)
        kept = z[source.random(len(z)) < np.exp(-extra)]
        two = kept.T @ kept / len(kept)
        four = []
        for a, b, c, d in _FOURS:
            product = two[a, b] * two[c, d] + two[a, c] * two[b, d] + two[a, d] * two[b, c]
            four.append(float((kept[:, a] * kept[:, b] * kept[:, c] * kept[:, d]).mean() - product))
        found.append([*(two[pair] for pair in _PAIRS), *four])
    values = np.array(found)
    mean, error = values.mean(axis=0), values.std(axis=0, ddof=1) / math.sqrt(_GAUSSIAN_BATCHES)
    score = (mean - exact) / error
    columns = {"sampled": mean, "standard_error": error, "integrated": exact, "perturbed": first}
    columns |= {"gaussian": gaussian, "z": score}
    data = xr.Dataset({name: ("correlator", column) for name, column in columns.items()})
    independent = decorrelated(score, np.cov(values.T), _GAUSSIAN_BATCHES - 1)
    return data.assign(independent=("direction", independent)).assign_coords(correlator=labels)


def _exact_correlators(action: QuarticAction) -> tuple[list[str], FloatArray, FloatArray, FloatArray]:
    """Labels, and correlators by integration, to first order and without a coupling."""
    moment = cache(partial(exact_moment, action))
    labels = ["".join(str(i + 1) for i in indices) for indices in (*_PAIRS, *_FOURS)]
    four = [float(cumulants.joint_cumulant(moment, indices, even=True)) for indices in _FOURS]
    exact = np.array([*map(moment, _PAIRS), *four])
    two, connected = action.two_point(), action.connected_four_point()
    first = np.array([*(two[pair] for pair in _PAIRS), *(connected[indices] for indices in _FOURS)])
    gaussian = np.array([*(action.K[pair] for pair in _PAIRS), *np.zeros(len(_FOURS))])
    return labels, exact, first, gaussian


def _gaussian_figure(data: xr.Dataset) -> Figure:
    title = "Nearly-Gaussian laws: first order in the couplings, and its limits"
    figure, g = Figure(title, columns=3, size=(16, 9)), data.coupling.values
    title = "exact (points) and first order (dashed)"
    values = figure.panel(title, x=log("coupling g (K = 1)"), y=Axis("value", low=0, high=1.15))
    title = "what first order leaves out; grey: a tenth"
    errors = figure.panel(title, x=log("coupling g"), y=log("relative error of first order"))
    for quantity, one, color in coloured(data, "quantity"):
        values.curve(g, one.exact, "o-", quantity, color, size=4)
        values.curve(g, one.first_order, "--", "", color, width=1)
        errors.curve(g, np.abs(one.first_order / one.exact - 1), "o-", "", color, size=4)
    errors.curve(g[:6], 0.05 * g[:6] ** 2, ":", r"$\propto g^2$", INK, width=1.2)
    errors.curve(g[:6], 5 * g[:6], "-.", r"$\propto g$", INK, width=1.2)
    errors.level(y=_TENTH)
    title = "the series is asymptotic: more orders, then ruin"
    panel = figure.panel(title, x="last order of g kept", y=log("relative error of Z", 1e-14, 1e6))
    for coupling, one, color in coloured(data, "series_coupling"):
        panel.curve(data.order, one.series_error, "o-", f"g = {coupling:g}", color, size=4)
    epsilon, title = data.epsilon.values, r"hierarchy (1.83): dashed $\epsilon^{m-1}$"
    across = log("ε (couplings ε, ε²)", ticks=epsilon)
    panel = figure.panel(title, x=across, y=log("size of the cumulant"))
    for points, one, color in coloured(data, "points"):
        sizes = one.cumulant.values
        panel.curve(epsilon, sizes, "o", f"|κ| of {points} points", color)
        panel.curve(epsilon, sizes[0] * (epsilon / epsilon[0]) ** (points / 2 - 1), "--", "", color, width=1)
    _add_samples(figure, data.isel(correlator=slice(0, len(_PAIRS))), "two-points of three variables")
    _add_samples(figure, data.isel(correlator=slice(len(_PAIRS), None)), "connected four-points")
    return figure


def _add_samples(figure: Figure, data: xr.Dataset, title: str) -> None:
    panel = figure.panel(title, x=names_axis(data.correlator.values, "variables"), y="correlator")
    place = np.arange(data.sizes["correlator"])
    for values, label, color in (
        (data.gaussian, "Gaussian", FAINT),
        (data.perturbed, "first order", ORANGE),
        (data.integrated, "exact", INK),
    ):
        panel.curve(place, values, "_", label, color, size=22)
    panel.curve(place, data.sampled, "o", "samples", BLUE, error=data.standard_error, size=4)


_LAWS = ("gaussian", "uniform", "truncated_normal")
_HIDDEN, _OUTPUTS = (4, 5), 6
_REFERENCE = {"gaussian": (1.0, 2.1, 0.0), "uniform": (1.0, 1.833, -0.8316)}  # G_2, G_4, D at layer 3
_MOMENTS = {"G2": "G_2", "G4": "G_4", "D": "D, on one neuron"}
_LAW_BATCHES = 50
_LAYER = 3


@dataclass(frozen=True)
class LawPlan:
    """How many linear networks, and tanh networks of which widths, are drawn."""

    linear_draws: int
    draws: dict[int, int]  # tanh networks by width


PLANS["weight_laws"] = plans(
    quick=LawPlan(400_000, {4: 400_000, 8: 400_000, 16: 300_000, 32: 100_000}),
    paper=LawPlan(8_000_000, {4: 4_000_000, 8: 4_000_000, 16: 4_000_000, 32: 2_000_000}),
)


def weight_laws(plan: LawPlan, seed: int) -> Result:
    """Does the law of the weights matter? Gaussian, uniform and truncated normal ones of one variance (chapter 2).

    In deep linear networks the four-point function of non-Gaussian weights is known exactly: an extra term D sits on
    one neuron and does not pile up with depth. Real networks of widths four and five are put beside it. In tanh
    networks the law shows in the metric of deeper layers; what it changes there must fall as 1/n. And neurons that
    start alike stay alike, whatever is learned: a network of a thousand of them learns as a network of one.
    """
    linear, bent = spawn(seed, 2)
    data = xr.merge([_linear(plan.linear_draws, linear), _tanh(plan.draws, bent)])
    rows = [
        computed_row(f"linear, hidden 4 and 5, {law}: {name}", value, here, 1e-9)
        for law, values in _REFERENCE.items()
        for name, value, here in zip(_MOMENTS.values(), values, _exact(law), strict=True)
    ]
    bound = largest_score_allowed(len(_LAWS) * len(_MOMENTS))
    names = ("linear_theory", "linear", "linear_error")
    for law, (name, words) in product(_LAWS, _MOMENTS.items()):
        at = data.sel(law=law, moment=name)
        rows.append(limit_row(f"linear networks, {law}: {words}", at, bound, names))
    rows += _tanh_rows(data)
    # Neurons that start alike: after training they still do, and the width has acted as one.
    wide, narrow = (_trained_alike(width) for width in (1000, 1))
    spread, apart = float(wide.std(axis=1).max()), float(np.abs(wide[:, 0] - narrow[:, 0]).max())
    note = "equal neurons get equal gradients: symmetry must be broken by the draw of the weights"
    title = "their course against that of a single neuron, 50 steps: largest difference"
    rows.append(computed_row("1000 equal neurons after training: spread", 0.0, spread, 1e-12))
    rows.append(computed_row(title, 0.0, apart, 1e-9, note))
    widest = data.isel(width=-1)
    verdict = (
        f"{agreeing(rows)} checks agree: the law of the weights enters linear networks as the exact theory says "
        f"and changes tanh networks by 1/n, {float(widest.change.sel(law='uniform')):.2%} of the metric at width "
        f"{int(widest.width)}."
    )
    return Result(verdict, tuple(rows), data, _law_figure)


def _exact(law: str) -> list[float]:
    """G_2, G_4 and D of the linear networks at the output."""
    network = DeepLinear.critical([*_HIDDEN, _OUTPUTS])
    found = nongaussian_weights(network, np.ones(4), weight_law(law).excess_kurtosis)
    return [float(found[name].sel(layer=len(_HIDDEN) + 1)) for name in _MOMENTS]


def _linear(draws: int, seed: Seed) -> xr.Dataset:
    """The same moments of real linear networks, with standard errors from batches."""
    depth, size = len(_HIDDEN) + 1, draws // _LAW_BATCHES
    mlp, x = MLP("linear", depth, _HIDDEN, n_in=4, n_out=_OUTPUTS), np.ones((1, 4))
    values, errors = [], []
    for law, own in track(with_seeds(_LAWS, seed), "linear networks"):
        batches = []
        for batch in spawn(own, _LAW_BATCHES):
            ensemble = Ensemble(mlp, x, size, method="weights", law=law, seed=batch)
            z = np.concatenate([chunk[depth][..., 0] for chunk in ensemble.preactivations([depth])])
            batches.append(moments_of(z))
        values.append(np.mean(batches, axis=0))
        errors.append(np.std(batches, axis=0, ddof=1) / np.sqrt(_LAW_BATCHES))
    dims, theory = ("law", "moment"), [_exact(law) for law in _LAWS]
    return xr.Dataset(
        {"linear": (dims, values), "linear_error": (dims, errors), "linear_theory": (dims, theory)},
        coords={"law": list(_LAWS), "moment": list(_MOMENTS)},
    )


def moments_of(z: FloatArray) -> FloatArray:
    """G_2, G_4 from pairs of different neurons, and D = E z^4 - 3 G_4, of outputs (networks, neurons)."""
    square = z**2
    total = square.sum(axis=1)
    count = z.shape[1]
    pairs = (total**2 - (square**2).sum(axis=1)).mean() / (count * (count - 1))
    return np.array([square.mean(), pairs, (square**2).mean() - 3 * pairs])


def _tanh(draws: dict[int, int], seed: Seed) -> xr.Dataset:
    """Relative change of the mean metric at layer 3 against Gaussian weights, by law and width.

    Inputs are as wide as the layers: a sum of few weights keeps the shape of their law at any width of the network.
    """
    change, error = np.zeros((len(_LAWS), len(draws))), np.zeros((len(_LAWS), len(draws)))
    tasks = with_seeds(draws.items(), seed)
    for column, ((width, count), width_seed) in enumerate(track(tasks, "tanh networks")):
        mlp, x = MLP("tanh", _LAYER, width, n_in=width, C_W=1.5), np.ones((1, width))
        found = []
        for law, own in with_seeds(_LAWS, width_seed):
            G = sample_metric(mlp, x, count, method="weights", law=law, layers=[_LAYER], seed=own)
            found.append(sampled(G.values.ravel()))
        base, base_error = found[0]
        change[:, column] = [mean / base - 1 for mean, _ in found]
        error[1:, column] = [np.hypot(own, base_error) / base for _, own in found[1:]]
    return xr.Dataset(
        {"change": (("law", "width"), change), "change_error": (("law", "width"), error)},
        coords={"law": list(_LAWS), "width": list(draws)},
    )


def _tanh_rows(data: xr.Dataset) -> list[Row]:
    """n times the change, extrapolated: finite, and the change itself tends to nothing."""
    rows = []
    n = data.width.values.astype(float)
    for law in _LAWS[1:]:
        own = data.sel(law=law)
        change, error = own.change.values, own.change_error.values
        # Squares freed of noise, with the errors of squares of noisy numbers.
        sizes = Sizes(change**2 - error**2, np.sqrt(4 * change**2 * error**2 + 2 * error**4))
        power = power_of(n, sizes)
        title = f"tanh networks, {law}: power of n in the change of the metric at layer {_LAYER}"
        seen = ", ".join(f"{value:.2%} at {width:g}" for value, width in zip(change, n, strict=True))
        if power is None:
            rows.append(Row(title, -1.0, "hidden by noise", note=f"{seen}; more networks resolve it"))
            continue
        rows.append(power_row(title, -1.0, power, seen))
    return rows


def _trained_alike(width: int) -> FloatArray:
    """First-layer weights (steps, neurons) of y = sum_j w tanh(a x) / n, all neurons equal at the start."""
    first, last = np.full(width, 0.7), np.full(width, 0.5)
    x, y = np.array([0.8, -0.5, 1.3]), np.array([0.4, 0.1, -0.6])
    course = [first.copy()]
    for _ in range(50):
        signal = np.tanh(np.outer(x, first))
        error = signal @ last / width - y
        slope = error[:, None] * (1 - signal**2) * x[:, None]
        first, last = first - 0.1 * last * slope.sum(axis=0), last - 0.1 * signal.T @ error
        course.append(first.copy())
    return np.array(course)


def _law_figure(data: xr.Dataset) -> Figure:
    figure = Figure("The law of the weights: same variance, different shape", size=(13, 5.0))
    place = np.arange(len(_MOMENTS))
    names = names_axis(["$G_2$", "$G_4$", "D, on one neuron"])
    panel = figure.panel("deep linear networks, hidden widths 4 and 5", x=names, y="moment of the outputs")
    panel.level(y=0)
    for shift, color, law in zip((-0.2, 0.0, 0.2), PALETTE, _LAWS):
        own = data.sel(law=law)
        panel.curve(place + shift, own.linear_theory, "_", "exact", INK, size=20)
        panel.curve(place + shift, own.linear, "o", law, color, error=own.linear_error)
    title, width = f"tanh, layer {_LAYER}: against Gaussian weights; dashed 1/n", data.width.values
    change = log("|change of the mean metric|, relative")
    panel = figure.panel(title, x=log("width n", ticks=width), y=change)
    for color, law in zip(PALETTE[1:], _LAWS[1:]):
        own = data.sel(law=law)
        panel.curve(data.width, np.abs(own.change), "o", law, color, error=own.change_error)
        guide = abs(float(own.change[-1])) * float(data.width[-1]) / data.width
        panel.curve(data.width, guide, "--", "", color, width=1)
    return figure
