"""Predictions near one training input, against depth (section 10.3.1).

The robustness measure Theta_-+ / Theta_++ - 1 says what a trained network changes of its answer on the way to a
nearby input. Recursions are run to great depth and put beside the laws of the classes: constant for odd functions at
the rates of the equivalence principle, a power of the depth for others (10.78), -3/4 for ReLU (10.94) whatever the
inputs. For rates equal in all layers (10.80) lacks a term. Real networks, trained on one input, check the measure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import xarray as xr

from foretrain.activations import Activation, activation
from foretrain.experiments.effective_theory.depth_laws import fitted_layers, leading_coefficient, shown_layers
from foretrain.experiments.judgements import computed_row, measured_row
from foretrain.experiments.pictures import coloured
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import INK, PALETTE, Axis, Figure, log
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, with_seeds
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.criticality import criticality
from foretrain.theory.learning_rates import class_rates
from foretrain.theory.prediction.infinite_width.one_training_input import (
    class_robustness,
    constant_rate_robustness,
    constant_rate_robustness_as_printed,
    linear_robustness,
    nearby_training,
    one_training_input,
    tangent_angles,
)

_RATES = {"lambda_b": 1.3, "lambda_W": 0.7}
_MIDDLE, _APART = np.array([1.0, 1.0]), np.array([0.1, -0.1])  # at right angles: equal norms
_SHOWN_LAYERS = 160
_ANGLES = (0.1, 0.5, 1.0, 2.0, 3.0)
_TRAINED_ANGLES = np.array([0.2, 0.5, 1.0, 1.6, 2.4])  # of test inputs to the training input


@dataclass(frozen=True)
class Plan:
    """How deep the recursions run, and which networks are trained on one input."""

    depth: int
    angle_depth: int
    draws: int
    trained: tuple[str, ...] = ("gelu", "tanh")
    layers: int = 3
    widths: tuple[int, ...] = (32, 64, 128)


PLANS = plans(quick=Plan(3_000, 20_000, 600), paper=Plan(20_000, 100_000, 8_000))


@cache
def _smooth() -> dict[str, Activation]:
    """Two odd functions of the class K* = 0, and one that is not odd."""
    bent = activation(lambda z: np.tanh(z) + np.tanh(z) ** 2 / 2, name="tanh + tanh²/2")
    return {"tanh": activation("tanh"), "sin": activation("sin"), bent.label: bent}


def nearby_inputs(plan: Plan, seed: int) -> Result:
    """Robustness against depth by class, the limit of ReLU, and real networks trained on one input."""
    smooth, angles = _smooth_flows(plan.depth), _angle_flows(plan.angle_depth)
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
    return Result(verdict, tuple(rows), data, _figure)


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
        flows = [nearby_training(each, _MIDDLE, _APART).sel(layer=layers) for each in networks]
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


def _angle_flows(depth: int) -> xr.Dataset:
    """cos zeta of ReLU from several angles, and of a linear network from one, at every depth."""
    layers = shown_layers(1, depth, _SHOWN_LAYERS)
    mlp = MLP.critical("relu", depth, width=1, n_in=2).replace(**_RATES)
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
    return xr.Dataset(
        {**variables, "linear_cos_zeta": ("linear_layer", linear.cos_zeta.values)},
        coords={"angle": list(_ANGLES), "angle_layer": layers, "linear_layer": linear.layer.values},
        attrs={"kernel": float(mlp.C_W[0])},  # of an input with mean square one
    )


def _measure(mlp: MLP, angle: float) -> float:
    """The robustness of an input at this angle to the training input."""
    return one_training_input(mlp, _circle(0.0), _circle(float(angle))).robustness


def _trained(plan: Plan, seed: Seed) -> tuple[xr.Dataset, list[Row], bool]:
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


def _figure(data: xr.Dataset) -> Figure:
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
