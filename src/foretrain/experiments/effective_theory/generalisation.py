"""What trained networks answer near one training input, and between and beyond two of them (section 10.3)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from foretrain.activations import Activation, activation
from foretrain.experiments.effective_theory.criticality import (
    fitted_layers,
    leading_coefficient,
    shown_layers,
)
from foretrain.experiments.judgements import computed_row, measured_row
from foretrain.experiments.pictures import coloured, draw_guide
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import BLUE, GREEN, INK, ORANGE, PALETTE, RED, Axis, Figure, log
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, spawn, with_seeds
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.criticality import criticality
from foretrain.theory.learning_rates import class_rates
from foretrain.theory.prediction.infinite_width import (
    expanded_mean_as_printed,
    expanded_prediction,
    on_the_line,
    output_kernels,
    tangent_series,
)
from foretrain.theory.prediction.infinite_width.few_inputs import (
    class_robustness,
    constant_rate_robustness,
    constant_rate_robustness_as_printed,
    linear_robustness,
    nearby_training,
    one_training_input,
    tangent_angles,
)

if TYPE_CHECKING:
    pass

PLANS: dict[str, Any] = {}

_RATES = {"lambda_b": 1.3, "lambda_W": 0.7}
_NEARBY_MIDDLE, _NEARBY_APART = np.array([1.0, 1.0]), np.array([0.1, -0.1])  # at right angles: equal norms
_SHOWN_LAYERS = 160
_ANGLES = (0.1, 0.5, 1.0, 2.0, 3.0)
_TRAINED_ANGLES = np.array([0.2, 0.5, 1.0, 1.6, 2.4])  # of test inputs to the training input


@dataclass(frozen=True)
class NearbyPlan:
    """How deep the recursions run, and which networks are trained on one input."""

    depth: int
    angle_depth: int
    draws: int
    trained: tuple[str, ...] = ("gelu", "tanh")
    layers: int = 3
    widths: tuple[int, ...] = (32, 64, 128)


PLANS["nearby_inputs"] = plans(quick=NearbyPlan(3_000, 20_000, 600), paper=NearbyPlan(20_000, 100_000, 8_000))


@cache
def _smooth() -> dict[str, Activation]:
    """Two odd functions of the class K* = 0, and one that is not odd."""
    bent = activation(lambda z: np.tanh(z) + np.tanh(z) ** 2 / 2, name="tanh + tanh²/2")
    return {"tanh": activation("tanh"), "sin": activation("sin"), bent.label: bent}


def nearby_inputs(plan: NearbyPlan, seed: int) -> Result:
    """Predictions near one training input, against depth (section 10.3.1).

    The robustness measure Theta_-+ / Theta_++ - 1 says what a trained network changes of its answer on the way to a
    nearby input. Recursions are run to great depth and put beside the laws of the classes: constant for odd
    functions at the rates of the equivalence principle, a power of the depth for others (10.78), -3/4 for ReLU
    (10.94) whatever the inputs. For rates equal in all layers (10.80) lacks a term. Real networks, trained on one
    input, check the measure.
    """
    # cos zeta at every depth: of ReLU from several angles, and of a linear network from one.
    layers = shown_layers(1, plan.angle_depth, _SHOWN_LAYERS)
    mlp = MLP.critical("relu", plan.angle_depth, width=1, n_in=2).replace(**_RATES)
    flows = [
        tangent_angles(mlp, _circle(0.0), _circle(angle)).sel(layer=layers)
        for angle in track(_ANGLES, "angles of ReLU")
    ]
    straight = MLP.critical("linear", 50, width=1, n_in=2).replace(**_RATES)
    linear = tangent_angles(straight, _circle(0.0), _circle(1.0))
    variables = {
        f"relu_{name}": (("angle", "angle_layer"), np.stack([flow[name].values for flow in flows]))
        for name in ("cos_zeta", "robustness", "variance")
    }
    angle_flows = xr.Dataset(
        {**variables, "linear_cos_zeta": ("linear_layer", linear.cos_zeta.values)},
        coords={"angle": list(_ANGLES), "angle_layer": layers, "linear_layer": linear.layer.values},
        attrs={"kernel": float(mlp.C_W[0])},  # of an input with mean square one
    )
    smooth, angles = _smooth_flows(plan.depth), angle_flows
    trained, trained_rows, agree = _trained(plan, seed)
    data = xr.merge([smooth, angles, trained])
    rows = [*_law_rows(smooth), *_constant_rows(smooth)]
    # Limits of ReLU from every angle (10.93)-(10.95), and the deep linear network (10.98). From the smallest angle
    # the law sets in at a depth 3 / (rho psi) of about fifty.
    deep, layer, rest = fitted_layers(angles, "angle_layer")
    for angle in angles.angle.values:
        one = deep.sel(angle=angle)
        for name, values, expected in (
            ("cos ζ", one.relu_cos_zeta, 0.25),
            ("robustness", one.relu_robustness, -0.75),
            ("variance / K", one.relu_variance / angles.attrs["kernel"], 9 / 16),
        ):
            here, allowed = leading_coefficient(layer, values.values), 50 * rest * abs(expected)
            rows.append(computed_row(f"relu from {angle:g} rad: {name}", expected, here, allowed))
    expected, cosines = (
        1 + linear_robustness(1.0, float(np.cos(1.0)), **_RATES),
        angles.linear_cos_zeta.values,
    )
    worst = cosines[np.argmax(np.abs(cosines - expected))]
    rows.append(computed_row("linear: cos ζ (10.98), the worst of 50 layers", expected, worst, 1e-10))
    rows += trained_rows
    wrong = [row for row in rows if row.agrees is False and not row.note]
    verdict = (
        f"Robustness near a training input {'follows' if not wrong else 'does NOT follow'} the laws of the classes: "
        "the same at any depth for odd functions, growing for others, −3/4 for ReLU; (10.80) and (10.81) as printed "
        f"miss the biases' term, and real trained networks {'agree' if agree else 'do NOT agree'} with the measure."
    )
    return Result(verdict, tuple(rows), data, _nearby_figure)


def _smooth_flows(depth: int) -> xr.Dataset:
    """Robustness at every depth with rates of the equivalence principle and with equal rates, and the laws for it.

    The common factor by which the former depend on the depth of the network drops out of the ratio.
    """
    layers = shown_layers(2, depth, _SHOWN_LAYERS)
    parts = []
    for name, act in track(_smooth().items(), "smooth activations", total=3):
        found = criticality(act)
        p = found.exponents["p_perpendicular"]
        mlp = MLP.critical(act, depth, width=1, n_in=2)
        networks = (class_rates(found, depth, **_RATES).on(mlp), mlp.replace(**_RATES))
        flows = [nearby_training(each, _NEARBY_MIDDLE, _NEARBY_APART).sel(layer=layers) for each in networks]
        squared = flows[0].K2.values * layers.astype(float) ** p
        law = [
            class_robustness(found, int(layer), float(value), **_RATES)
            for layer, value in zip(layers, squared, strict=True)
        ]
        parts.append(
            xr.Dataset(
                {
                    "robustness": (("rates", "layer"), np.stack([flow.robustness.values for flow in flows])),
                    "law": ("layer", np.array(law)),
                    "delta_squared": ("layer", squared),
                    "power": ((), 1 - p),
                },
                coords={"layer": layers, "rates": ["equivalence principle", "equal"]},
            ).expand_dims(network=[name])
        )
    return xr.concat(parts, "network")


def _law_rows(data: xr.Dataset) -> list[Row]:
    """Recursion over law (10.78), fitted to infinite depth, and the growth with depth."""
    deep, layer, rest = fitted_layers(data.sel(rates="equivalence principle"))
    rows = []
    for name in data.network.values:
        one = deep.sel(network=name)
        ratio = leading_coefficient(layer, (one.robustness / one.law).values)
        rows.append(computed_row(f"{name}: robustness over (10.78)", 1.0, ratio, 4 * rest))
        half = one.sel(layer=layer[-1] / 2, method="nearest")
        growth = float(one.robustness[-1] / half.robustness)
        power = math.log(growth) / math.log(layer[-1] / float(half.layer))
        allowed = 10 * math.log(layer[-1]) / layer[-1]  # corrections of the law are of this order
        rows.append(computed_row(f"{name}: power of the depth", float(one.power), power, allowed))
    return rows


def _constant_rows(data: xr.Dataset) -> list[Row]:
    """Rates equal in all layers: -robustness L lambda_b / (4 delta^2), completed and as printed."""
    deep, layer, next_order = fitted_layers(data.sel(rates="equal"))
    rest, rows = 4 * next_order, []
    for name in ("tanh", "sin"):
        here = leading_coefficient(layer, _scaled(deep.sel(network=name)).values)
        complete, printed = (
            -_RATES["lambda_b"] / 4 * law(name, 1, 1.0, **_RATES)
            for law in (constant_rate_robustness, constant_rate_robustness_as_printed)
        )
        title = f"{name}, equal rates: −robustness L λ_b / 4δ²"
        rows.append(computed_row(f"{title}, completed", complete, here, rest * complete))
        note = "(10.80), (10.81) as printed lack the term (−a_1) λ_b / 2 of the biases: the recursion has it."
        rows.append(computed_row(f"{title}, as printed", printed, here, rest * printed, note, disputed=True))
    return rows


def _scaled(one: xr.Dataset) -> xr.DataArray:
    """-robustness L lambda_b / (4 delta^2)."""
    scaled: xr.DataArray = -one.robustness * one.layer * _RATES["lambda_b"] / (4 * one.delta_squared)
    return scaled


def _circle(angle: float) -> FloatArray:
    """A point at this angle on the circle of mean square one."""
    return math.sqrt(2) * np.array([np.cos(angle), np.sin(angle)])


def _measure(mlp: MLP, angle: float) -> float:
    """The robustness of an input at this angle to the training input."""
    return one_training_input(mlp, _circle(0.0), _circle(float(angle))).robustness


def _trained(plan: NearbyPlan, seed: Seed) -> tuple[xr.Dataset, list[Row], bool]:
    """Networks of three widths trained on one input: mean answers at several angles over the target less one.

    That is the measure, which comes along on a fine grid of angles; then rows, and whether all networks agree.
    """
    from foretrain.compare.trained import compare_trained

    grid, parts, rows, agree = np.linspace(0.02, np.pi, 60), [], list[Row](), True
    tests, train = np.stack([_circle(angle) for angle in _TRAINED_ANGLES]), _circle(0.0)[None]
    for name, own in with_seeds(plan.trained, seed):
        mlp = MLP.critical(name, plan.layers, plan.widths[0], n_in=2).replace(**_RATES)
        found = compare_trained(mlp, train, [[1.0]], tests, widths=plan.widths, draws=plan.draws, seed=own)
        places, judgement = np.flatnonzero(found.of("mean")), found.judgement
        here, errors = found.limit[places] - 1, found.standard_error[places]
        agree &= bool(found.agrees)
        title = f"{name}, trained on one input: rms z of means and variances (bound)"
        rows.append(Row(title, judgement.rms_bound, judgement.rms, agrees=bool(found.agrees)))
        for angle, value, error in zip(_TRAINED_ANGLES, here, errors, strict=True):
            title, expected = f"{name}, trained: robustness at {angle:g} rad", _measure(found.mlp, angle)
            rows.append(measured_row(title, expected, value, error, judgement.bound))
        part = xr.Dataset(
            {
                "trained_robustness": ("test_angle", here),
                "trained_error": ("test_angle", errors),
                "measure": ("fine_angle", np.array([_measure(found.mlp, angle) for angle in grid])),
            },
            coords={"test_angle": _TRAINED_ANGLES, "fine_angle": grid},
        )
        parts.append(part.expand_dims(trained_network=[name]))
    return xr.concat(parts, "trained_network"), rows, agree


def _nearby_figure(data: xr.Dataset) -> Figure:
    title = "What a trained network answers near its one training input"
    figure = Figure(title, columns=2, size=(13, 9.4))
    depth, principle = log("depth L"), "rates of the equivalence principle (dashed: (10.78))"
    panel = figure.panel(principle, x=depth, y=log("− robustness measure"))
    for name, one, color in coloured(data.sel(rates="equivalence principle"), "network"):
        label = f"{name}: $L^{{{float(one.power) + 0.0:.2g}}}$"
        panel.curve(one.layer, -one.robustness, "-", label, color)
        panel.curve(one.layer, -one.law, "--", "", color, width=1)
    across = Axis(r"− robustness · $L \lambda_b / 4\delta^2$", low=0)
    panel = figure.panel("rates equal in all layers (dashed: completed law)", x=depth, y=across)
    for color, name, bend in zip(PALETTE, ("tanh", "sin"), (2.0, 1.0)):
        one = data.sel(network=name, rates="equal")
        panel.curve(one.layer, _scaled(one), "-", f"{name}, recursion", color)
        panel.level(y=_RATES["lambda_W"] + bend * _RATES["lambda_b"] / 2, color=color, dash="--")
    panel.level(y=_RATES["lambda_W"], label="(10.81) as printed", color=INK, dash=":", width=1.5)
    title = "ReLU: all inputs end at 1/4 (10.93)"
    panel = figure.panel(title, x=depth, y=r"$\cos\zeta = \Theta_{+-} / \Theta_{++}$")
    for first, one, color in coloured(data, "angle"):
        panel.curve(data.angle_layer, one.relu_cos_zeta, "-", f"ψ = {first:g}", color)
    panel.level(y=0.25, color=INK, dash="--")
    panel.note(data.angle_layer[1], 0.25, "1/4", above=True, size=10)
    title = "real networks of 3 layers, trained on one input (points)"
    angle = Axis("angle to the training input", ticks={0: "0", np.pi / 2: "π/2", np.pi: "π"})
    panel = figure.panel(title, x=angle, y="mean answer / target − 1")
    for name, one, color in coloured(data, "trained_network"):
        panel.curve(one.fine_angle, one.measure, "-", f"{name}, infinite width", color)
        panel.curve(one.test_angle, one.trained_robustness, "o", "", color, error=one.trained_error)
    panel.level(y=0)
    return figure


_BETWEEN_MIDDLE = np.array([1.0, 0.3, -0.5])
_BETWEEN_APART = {"unequal norms": np.array([0.2, 1.0, 0.3]), "equal norms": np.array([0.2, 1.0, 1.0])}
_REFERENCE = {  # per unit of the distance, unequal norms
    "Θ_00": ("middle", 1.068533059, 5e-10),
    "δΘ_[1]": ("first", 0.0427432, 1e-6),  # from differences of kernels
    "δδΘ_[0]": ("mean", -0.1316000, 1e-6),
    "δδΘ_[2]": ("distance", 0.1624190, 1e-6),
    "cubic coefficient e": ("cubic", -0.0091102, 1e-6),
}
_DISTANCES = 0.4 * 0.5 ** np.arange(5.0)
_PLACES = np.array([-0.5, 0.25, 0.5, 1.5])
_POWER_ERROR = 0.15  # of powers between the two smallest distances: the next order is as small as they
_TRAINED_PLACES = np.array([-0.5, 0.0, 0.25, 0.5, 0.75, 1.0, 1.5])  # on the line, at distance one
_ASKED = _TRAINED_PLACES[(_TRAINED_PLACES != 0) & (_TRAINED_PLACES != 1)]
_TARGETS = (0.9, 0.4)


@dataclass(frozen=True)
class BetweenPlan:
    """How many tanh and linear networks of which widths are trained."""

    draws: int
    linear_draws: int
    widths: tuple[int, ...] = (32, 64, 128)
    linear_width: int = 4


PLANS["interpolation"] = plans(quick=BetweenPlan(800, 20), paper=BetweenPlan(20_000, 200))


def interpolation(plan: BetweenPlan, seed: int) -> Result:
    """Between and beyond two training inputs: how trained networks bend the line through their targets (section
    10.3.2).

    Deep linear networks answer with the straight line (10.104), each of them and at any width. Smooth activations
    bend it by the curvature of the tangent kernel: the expansion in the distance of the inputs is put beside the
    exact answer, corrected and as printed (10.117). Real tanh networks are trained on two inputs, and their mean
    answer along the line is extrapolated to infinite width.
    """
    from foretrain.compare.trained import compare_trained

    smooth, linear = spawn(seed, 2)
    (train, tests), targets = _line(_ASKED), np.array(_TARGETS)[:, None]
    mlp, how = _network(plan.widths[0]), {"widths": plan.widths, "draws": plan.draws}
    found = compare_trained(mlp, train, targets, tests, seed=smooth, **how)  # type: ignore[arg-type]
    # Narrow deep linear networks are really trained; their distance from the straight line is kept.
    from foretrain.compare.trained import Training, train_ensemble

    mlp = MLP("linear", 4, plan.linear_width, n_in=3, C_b=0.1, C_W=1.0, lambda_b=0.2, lambda_W=0.8)
    train, tests = _line(_TRAINED_PLACES)
    largest = float(np.linalg.eigvalsh(output_kernels(mlp, train).Theta_train)[-1])
    training = Training(np.array(_TARGETS)[:, None], 0.3 / largest)
    ensemble = train_ensemble(mlp, train, tests, training, plan.linear_draws, seed=linear)
    straight = _TRAINED_PLACES * _TARGETS[0] + (1 - _TRAINED_PLACES) * _TARGETS[1]
    error = np.abs(ensemble.end[:, len(train) :, 0] - straight).max(axis=1)
    # Means less the straight line are kept, measured and exact, the exact ones on a fine grid too.
    fine = np.linspace(-0.7, 1.7, 97)
    pair = _pair(_apart("unequal norms", 1.0))
    places = np.flatnonzero(found.of("mean"))

    def bend(s: FloatArray, mean: FloatArray) -> FloatArray:
        return np.asarray(mean - s * _TARGETS[0] - (1 - s) * _TARGETS[1])

    exact = on_the_line(_network(), *pair, *_TARGETS, fine).mean.values[:, 0]
    series = tangent_series(_network(), _BETWEEN_MIDDLE, pair[0] - pair[1])
    trained_table = xr.Dataset(
        {
            "trained_bend": ("place", bend(_ASKED, found.limit[places])),
            "trained_error": ("place", found.standard_error[places]),
            "exact_bend": ("fine", bend(fine, exact)),
            "expanded_bend": ("fine", bend(fine, expanded_prediction(series, fine, *_TARGETS))),
            "printed_bend": ("fine", bend(fine, expanded_mean_as_printed(series, fine, *_TARGETS))),
        },
        coords={"place": _ASKED, "fine": fine},
    )
    data = xr.merge([_expansions(), xr.Dataset({"straight_error": ("linear_network", error)}), trained_table])
    series = tangent_series(_network(), _BETWEEN_MIDDLE, _apart("unequal norms", 1.0))
    rows = [
        computed_row(f"tanh, L = 3: {name}", value, float(getattr(series, key)), 1.01 * digits)
        for name, (key, value, digits) in _REFERENCE.items()
    ]
    rows += _power_rows(data)
    title = f"{plan.linear_draws} linear networks, L = 4, width {plan.linear_width}, trained"
    note = "(10.104), exact for each network; training stops at a relative error of 1e-8"
    furthest = float(data.straight_error.max())
    rows.append(computed_row(f"{title}: distance from the line", 0.0, furthest, 1e-5, note))
    judgement = found.judgement
    title = "tanh networks trained on two inputs: rms z of means and variances (bound)"
    rows.append(Row(title, judgement.rms_bound, judgement.rms, agrees=bool(found.agrees)))
    for s, place in zip(_ASKED, np.flatnonzero(found.of("mean")), strict=True):
        straight = s * _TARGETS[0] + (1 - s) * _TARGETS[1]
        theory, limit, error = found.theory[place], found.limit[place], found.standard_error[place]
        title = f"trained tanh networks: bend at s = {s:g}"
        rows.append(measured_row(title, theory - straight, limit - straight, error, judgement.bound))
    good = [row.agrees for row in rows if not row.disputed]
    verdict = (
        f"Linear networks answer with the straight line to {furthest:.0e}; the corrected "
        f"expansion and trained tanh networks {'agree' if False not in good else 'do NOT agree'} "
        "with the exact bend, of which (10.117) as printed has four times as much."
    )
    return Result(verdict, tuple(rows), data, _between_figure)


def _network(width: int = 1) -> MLP:
    return MLP("tanh", 3, width, n_in=3, C_b=0.1, C_W=1.3, lambda_b=0.2, lambda_W=0.8)


def _apart(norms: str, distance: float) -> FloatArray:
    """Equal norms: at right angles to the middle."""
    direction = _BETWEEN_APART[norms]
    if norms == "equal norms":
        direction = (
            direction - direction @ _BETWEEN_MIDDLE / (_BETWEEN_MIDDLE @ _BETWEEN_MIDDLE) * _BETWEEN_MIDDLE
        )
    return distance * direction


def _pair(gap: FloatArray) -> tuple[FloatArray, FloatArray]:
    return _BETWEEN_MIDDLE + gap / 2, _BETWEEN_MIDDLE - gap / 2


def _expansions() -> xr.Dataset:
    """Largest errors of the expansion and of the straight line, and the largest variance, against the distance."""
    names = ("corrected", "printed", "straight", "variance")
    found, middle = np.full((len(_BETWEEN_APART), len(names), len(_DISTANCES)), np.nan), sum(_TARGETS) / 2
    for row, norms in enumerate(_BETWEEN_APART):
        for column, distance in enumerate(_DISTANCES):
            # Targets differ by what is of the order of the distance, as the expansion supposes.
            half = distance * (_TARGETS[0] - _TARGETS[1]) / 2
            gap, targets = _apart(norms, distance), (middle + half, middle - half)
            exact = on_the_line(_network(), *_pair(gap), *targets, _PLACES)
            assert exact.variance is not None
            mean, series = exact.mean.values[:, 0], tangent_series(_network(), _BETWEEN_MIDDLE, gap)
            straight = _PLACES * targets[0] + (1 - _PLACES) * targets[1]
            answers = [
                expanded_prediction(series, _PLACES, *targets),
                expanded_mean_as_printed(series, _PLACES, *targets),
                straight,
            ]
            found[row, :3, column] = [np.abs(each - mean).max() for each in answers]
            found[row, 3, column] = exact.variance.values.max()
    return xr.Dataset(
        {name: (("norms", "distance"), found[:, place]) for place, name in enumerate(names)},
        coords={"norms": list(_BETWEEN_APART), "distance": _DISTANCES},
    )


def _power(values: xr.DataArray) -> float:
    """Of the distance, between the two smallest ones."""
    return float(np.log2(values[-2] / values[-1]))


def _power_rows(data: xr.Dataset) -> list[Row]:
    """The expansion is to second order: what it leaves is of third."""
    rows = []
    for norms in data.norms.values:
        one, title = data.sel(norms=norms), f"tanh, {norms}: power of the distance"
        rows.append(computed_row(f"{title} in the bend", 2.0, _power(one.straight), _POWER_ERROR))
        title = f"{title} left by the corrected expansion"
        rows.append(computed_row(title, 3.0, _power(one.corrected), _POWER_ERROR))
    one, title = data.sel(norms="equal norms"), "tanh, equal norms: power of the distance"
    note = "its prefactor 4 s (1 - s) should be s (1 - s): three times the bend is left, of second order"
    printed = f"{title} left by (10.117) as printed"
    rows.append(computed_row(printed, 3.0, _power(one.printed), _POWER_ERROR, note, disputed=True))
    note = "(10.116) claims the third order at least; the exact covariance has the fourth"
    return [*rows, computed_row(f"{title} in the variance", 4.0, _power(one.variance), _POWER_ERROR, note)]


def _line(places: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Training inputs x_+ and x_-, and inputs at these places of the line through them."""
    train = np.stack(_pair(_apart("unequal norms", 1.0)))
    return train, places[:, None] * train[0] + (1 - places[:, None]) * train[1]


def _between_figure(data: xr.Dataset) -> Figure:
    figure = Figure("Between and beyond two training inputs", size=(13, 5.2))
    reach = 1.6 * float(np.abs(data.exact_bend).max())
    bend = Axis("mean answer less the straight line", low=-reach, high=reach)
    panel = figure.panel("tanh, L = 3: the tangent kernel bends the answer", x="place s on the line", y=bend)
    panel.level(y=0, label="straight line: linear networks")
    panel.curve(data.fine, data.exact_bend, "-", "infinite width, exact", INK)
    panel.curve(data.fine, data.expanded_bend, "--", "expansion, corrected", BLUE)
    panel.curve(data.fine, data.printed_bend, ":", "expansion as printed (10.117)", RED)
    networks = "trained networks, n → ∞"
    panel.curve(data.place, data.trained_bend, "o", networks, ORANGE, error=data.trained_error)
    panel.curve([0, 1], [0, 0], "s", "", INK, size=7)
    panel.note(0, 0, "$x_-$", align="right", above=True, size=11)
    panel.note(1, 0, "$x_+$", above=True, size=11)
    own, distance = data.sel(norms="equal norms"), data.distance.values
    title = "equal norms: what is left, and its power of the distance"
    x = log("distance of the training inputs", ticks=distance)
    panel = figure.panel(title, x=x, y=log("largest over s"))
    panel.curve(distance, own.straight, "o-", "bend of the exact answer", INK)
    panel.curve(distance, own.printed, "o-", "left by the printed expansion", RED)
    panel.curve(distance, own.corrected, "o-", "left by the corrected expansion", BLUE)
    panel.curve(distance, own.variance, "o-", "variance over networks", GREEN)
    for values, power in ((own.straight, 2), (own.corrected, 3)):
        draw_guide(panel, distance, 0.6 * float(values[0]), power, f"power {power}", -2, above=False)
    return figure
