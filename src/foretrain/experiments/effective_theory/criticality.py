"""Criticality: where the susceptibilities meet, and what then changes with depth, class by class (chapter 5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from foretrain.activations import Activation, activation
from foretrain.compare.judging.agreement import largest_score_allowed
from foretrain.experiments.effective_theory.width_limits import limits
from foretrain.experiments.judgements import agreement_rows, computed_row, limit_row
from foretrain.experiments.pictures import coloured
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import BLUE, FAINT, INK, ORANGE, PALETTE, Axis, Figure, labelled, log
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, with_seeds
from foretrain.theory.angles import angle_flow as exact_angles
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.asymptotics import asymptotics
from foretrain.theory.criticality import criticality
from foretrain.theory.criticality.fixed_points import fixed_points
from foretrain.theory.ensembles import sample_metric
from foretrain.theory.flow import flow
from foretrain.theory.kernel_functions import KernelFunctions
from foretrain.theory.nearby import nearby_flow

PLANS: dict[str, Any] = {}

_DIGITS = 5e-7  # reference values have six decimals


@dataclass(frozen=True)
class RatioPlan:
    """How finely the curves are drawn."""

    points: int


PLANS |= dict.fromkeys(
    ("critical_lines", "ratio_without_criticality", "ratio_half_stable"),
    plans(quick=RatioPlan(121), paper=RatioPlan(601)),
)


def critical_lines(plan: RatioPlan, seed: int) -> Result:
    """tanh: the lines chi_perp = 1 and chi_parallel = 1 in the plane (C_W, C_b), and the ratio against K."""
    K = np.geomspace(1e-4, 30.0, plan.points)
    values = KernelFunctions("tanh").at(K)
    lines = xr.Dataset(coords={"K": K})
    for name, slope in (("perpendicular", values.slope_square), ("parallel", values.square_slope)):
        lines[f"C_W_{name}"] = ("K", 1 / slope)
        lines[f"C_b_{name}"] = ("K", K - values.square / slope)
    data = xr.merge([lines, _ratios(("tanh",), np.linspace(0.0, 3.0, plan.points))])
    rows = (
        computed_row("C_W where the lines meet", 1.0, lines.C_W_perpendicular[0], 1e-3),
        computed_row("C_b where the lines meet", 0.0, lines.C_b_perpendicular[0], 1e-3),
        *_rows("tanh", {0.0: 1.0, 0.1: 1.185962, 1.0: 2.554504, 3.0: 5.316211}),
    )
    verdict = "The two lines of tanh meet in one point only, (C_W, C_b) = (1, 0), where the kernel vanishes."
    return Result(verdict, rows, data, _lines_figure)


def ratio_without_criticality(plan: RatioPlan, seed: int) -> Result:
    """Sigmoid and softplus: the ratio is one at K = 0 for sigmoid, which needs a negative C_b, or nowhere."""
    data = _ratios(("sigmoid", "softplus"), np.linspace(0.0, 3.0, plan.points))
    sigmoid, softplus = criticality("sigmoid"), criticality("softplus")
    # At K = 0 sigmoid would need C_b = -(sigma_0 / sigma_1)^2.
    at_zero = KernelFunctions("sigmoid").at(np.array([1e-9]))
    bias = -at_zero.square[0] / at_zero.slope_square[0]
    # z^p: the ratio is p / (2p - 1) at any K (5.78), and kernels of z^2 have a closed recursion (5.3).
    powers = {p: activation(partial(_power, p), name=f"z^{p}") for p in (2, 3, 4)}
    first = np.array([[1.0, 0.4], [0.4, 0.7]])
    inputs = np.sqrt(2) * np.linalg.cholesky((first - 0.1) / 0.5)
    found = flow(MLP(powers[2], 2, 1, C_b=0.1, C_W=0.5), inputs, ["K"])["K"].sel(layer=2).values
    expected = 0.1 + 0.5 * (np.outer(np.diagonal(first), np.diagonal(first)) + 2 * first**2)
    worst = float(np.abs(found - expected).max())
    rows = (
        *_rows("sigmoid", {0.0: 1.0}),
        *_rows("softplus", {0.1: 0.598047, 1.0: 0.647204, 3.0: 0.707595}),
        computed_row("sigmoid: C_b that criticality at K = 0 needs", -4.0, bias, 1e-6),
        *(
            computed_row(
                f"z^{p}: ratio at K = {K:g}", p / (2 * p - 1), _ratio(monomial, np.array([K]))[0], 1e-9
            )
            for p, monomial in powers.items()
            for K in (0.3, 2.0)
        ),
        computed_row("z^2: two inputs, distance of the kernel from (5.3)", 0.0, worst, 1e-10),
        Row("sigmoid has a critical point", 0.0, float(sigmoid.exists), agrees=not sigmoid.exists),
        Row("softplus has a critical point", 0.0, float(softplus.exists), agrees=not softplus.exists),
    )
    verdict = f"Neither can be made critical. Sigmoid: {sigmoid.reason}; softplus: {softplus.reason}."
    return Result(verdict, rows, data, partial(_add_ratios, title="Activations without criticality"))


def _power(exponent: int, points: FloatArray) -> FloatArray:
    return np.asarray(np.asarray(points, dtype=np.float64) ** exponent)


def ratio_half_stable(plan: RatioPlan, seed: int) -> Result:
    """SWISH and GELU: the ratio is one at K = 0, an unstable point, and at a half-stable K* > 0."""
    data = _ratios(("swish", "gelu"), np.linspace(0.0, 20.0, plan.points))
    rows = [*_rows("swish", {0.0: 1.0, 10.0: 0.989497}), *_rows("gelu", {0.0: 1.0, 10.0: 1.018514})]
    reference = {
        "swish": (14.320173618, 0.5551431707, 1.9880046783),
        "gelu": ((3 + np.sqrt(17)) / 2, 0.1729223908, 1.9830582574),
    }
    neighbours = {"swish": (14.5931, 14.5, 0.1), "gelu": (3.03498, 3.2, 0.05)}  # found, printed, its digits
    for name, expected in reference.items():
        point = criticality(name).point
        assert point is not None
        assert point.K_star is not None
        for label, value in zip(("K_star", "C_b", "C_W"), expected, strict=True):
            title = f"{name}: {label.replace('_star', '*')}"
            rows.append(computed_row(title, value, getattr(point, label), 1e-8 * value))
        # The trivial fixed point that the critical C_b and C_W have besides K*.
        known, printed, digits = neighbours[name]
        solutions = [each.K for each in fixed_points(name, point.C_b, point.C_W) if each.K is not None]
        others = [K for K in solutions if abs(K / point.K_star - 1) > 1e-3]
        here = min(others, key=lambda K: abs(K - known), default=float("nan"))
        title, note = f"{name}: trivial fixed point nearby", "K = C_b + C_W g(K) has no other solution there"
        rows.append(computed_row(title, known, here, 6e-5))
        title = f"{title}, as in the footnote"
        rows.append(computed_row(title, printed, here, digits, note, disputed=True))
    verdict = "Both have a half-stable critical point at K* > 0 besides the unstable one at K = 0."
    return Result(verdict, tuple(rows), data, partial(_add_ratios, title="Half-stable criticality"))


def _ratio(act: str | Activation, K: FloatArray) -> FloatArray:
    """chi_perp / chi_parallel; at K = 0 its limit, which the smallest kernel value shows to all printed digits."""
    return 1 / KernelFunctions(act).ratio(np.maximum(K, 1e-9))


def _ratios(names: tuple[str, ...], K: FloatArray) -> xr.Dataset:
    values = np.stack([_ratio(name, K) for name in names])
    return labelled({"ratio": ("activation kernel", values)}, activation=list(names), kernel=K)


def _rows(name: str, reference: dict[float, float]) -> list[Row]:
    here = _ratio(name, np.array(list(reference)))
    return [
        computed_row(f"{name}: ratio at K = {K:g}", value, ratio, _DIGITS)
        for (K, value), ratio in zip(reference.items(), here, strict=True)
    ]


def _lines_figure(data: xr.Dataset) -> Figure:
    figure = Figure("Criticality of tanh", columns=2, size=(12, 4.8))
    panel = figure.panel(x=Axis("$C_W$", low=0, high=5), y=Axis("$C_b$", low=-1, high=3))
    for name, symbol in (("perpendicular", r"\perp"), ("parallel", r"\parallel")):
        panel.curve(data[f"C_W_{name}"], data[f"C_b_{name}"], "-", rf"$\chi_{symbol} = 1$", width=2)
    panel.curve(1, 0, "o", "critical point (1, 0)", INK, size=7)
    panel.level(y=0, width=0.8)
    return _add_ratios(data, figure=figure)


def _add_ratios(data: xr.Dataset, title: str = "", figure: Figure | None = None) -> Figure:
    """Add the ratios to a figure, or to one of their own with this title."""
    figure = figure or Figure(title, size=(7, 4.6))
    panel = figure.panel(x=Axis("kernel $K$", low=0), y=r"$\chi_\perp(K)\,/\,\chi_\parallel(K)$")
    for name in data.activation.values:
        panel.curve(data.kernel, data.ratio.sel(activation=name), "-", str(name), width=2)
    panel.level(y=1, color=INK, dash="--")
    return figure


_FITTED = 0.1  # leading coefficients come from the layers beyond this share of the depth
_RATE_LAYER = 12  # where the approach to a fixed point is asymptotic, and not yet lost in rounding


@dataclass(frozen=True)
class DepthPlan:
    """How deep the recursions run."""

    depth: int


PLANS["depth_laws"] = plans(quick=DepthPlan(1_000), paper=DepthPlan(100_000))


def _cases() -> dict[str, tuple[str, float, float, float]]:
    """Activation, C_b, C_W and the kernel at layer 1 for each class; half-stable ones start on their fixed point."""
    points = {name: criticality(name).point for name in ("gelu", "swish")}
    return {
        "tanh": ("tanh", 0.0, 1.0, 1.0),
        "sin": ("sin", 0.0, 1.0, 1.0),
        "relu": ("relu", 0.0, 2.0, 1.0),
        "relu with biases": ("relu", 0.1, 2.0, 1.0),
        **{name: (name, at.C_b, at.C_W, at.K_star) for name, at in points.items() if at and at.K_star},
        "tanh off-critical": ("tanh", 0.3, 1.5, 1.0),
    }


_K, _V, _G, _TUNED = "K l", "V / (K² l)", "G1", "tuned G1 l"
_GROWTH, _BEND = "K / l", "G1 / l²"
_SCALED: dict[str, Callable[[xr.Dataset], xr.DataArray]] = {
    _K: lambda flow: flow.K * flow.layer,
    _V: lambda flow: flow.fluctuation / flow.layer,
    _G: lambda flow: flow.G1,
    _TUNED: lambda flow: flow.G1_tuned * flow.layer,
    _GROWTH: lambda flow: flow.K / flow.layer,
    _BEND: lambda flow: flow.G1 / flow.layer**2,
}
# Limits at great depth: (5.94), (5.128), (5.134), corrected (5.143); (5.120), semi-critical, half-stable.
_LIMITS = {
    "tanh": {_K: 1 / 2, _V: 2 / 3, _G: -1 / 6, _TUNED: 1.236111},
    "sin": {_K: 1.0, _V: 2 / 3, _G: -1 / 3, _TUNED: 2.222222},
    "relu": {_V: 5.0, _G: 0.0},
    "relu with biases": {_GROWTH: 0.1, _V: 5 / 3, _G: 0.0},
    "gelu": {_V: 4.904, _BEND: -1.43626419e-4 * 62.2084 / 2},
    "swish": {_V: 4.923, _BEND: 2.84979219e-6 * 1009.585 / 2},
}
_AS_PRINTED = {"tanh": 13 / 12, "sin": 2 / 3}  # (5.143): 2 (3 a_2 - a_1²) / 3 (-a_1)³
_EXPONENTS = {"parallel": 2.0, "perpendicular": 1.0}  # of perturbations of tanh and sin (5.97), (5.99)
_PRINTED = 1.1e-4  # relative: reference values of half-stable classes have four digits
_LOG_CONSTANTS = {"tanh": (0.34387, 5e-6), "sin": (0.8385, 5e-5)}  # l_0 of (5.94) from K = 1
_SETTLED = {"K*": 0.8461750173, "chi_parallel": 0.3178500569}


def depth_laws(plan: DepthPlan, seed: int) -> Result:
    """How kernel, fluctuations and finite-width shift move with depth in each universality class (sections 5.3, 5.4).

    The exact recursions of one input run to great depth. Their leading coefficients, fitted to the last decade of
    layers with the corrections log(l)/l and 1/l that the theory knows, are put beside the asymptotic laws.
    """
    layers = shown_layers(1, plan.depth)
    flows = []
    for label, (name, C_b, C_W, first) in track(list(_cases().items()), "depth laws"):
        # One neuron wide, so that V / (n K^2) is V / K^2.
        mlp = MLP(name, plan.depth, width=1, C_b=C_b, C_W=C_W)
        laws = asymptotics(mlp, [np.sqrt((first - C_b) / C_W)])
        constants = {name: laws.attrs.get(name, np.nan) for name in ("l_0", "universality_class")}
        flows.append(laws.sel(layer=layers).assign(constants).drop_attrs().expand_dims(network=[label]))
    data = xr.concat(flows, "network", join="outer")
    data = data.assign_coords(network=data.network.astype(str))
    # Perturbations of one input fall with powers of the depth, by the recursions (5.47), (5.48).
    layers = shown_layers(_FITTED * plan.depth, plan.depth, 24)
    middle = np.sqrt(layers[1:] * layers[:-1].astype(float))
    allowed = max(10 * (np.log(middle[0]) / middle[0]) ** 2, 1e-6)
    rows = []
    for name in ("tanh", "sin"):
        flow = nearby_flow(MLP(name, plan.depth, width=1, n_in=2), [1.0, 1.0], [0.1, -0.02]).sel(layer=layers)
        for key, (direction, expected) in zip(("K1", "K2"), _EXPONENTS.items(), strict=True):
            powers = -np.diff(np.log(np.abs(flow[key].values))) / np.diff(np.log(layers))
            title = f"{name}: exponent of {direction} perturbations"
            rows.append(computed_row(title, expected, leading_coefficient(middle, powers), allowed))
    rows = [*_depth_limit_rows(data), *rows]
    for name, (expected, digits) in _LOG_CONSTANTS.items():
        rows.append(computed_row(f"{name}: l_0", expected, data.l_0.sel(network=name), digits))
    # Off criticality: the fixed point, the rate of approach, and the values at which V and G1 settle.
    case = "tanh off-critical"
    exact, law = (data.sel(network=case, law=which) for which in ("exact", "asymptotic"))
    settled = exact.K[-1].item()
    gaps = exact.K.sel(layer=[_RATE_LAYER, _RATE_LAYER + 1]).values - settled
    rows.append(computed_row(f"{case}: K", _SETTLED["K*"], settled, 1e-10))
    title, rate = f"{case}: decay of K − K*", gaps[1] / gaps[0]
    rows.append(computed_row(title, _SETTLED["chi_parallel"], rate, abs(gaps[0])))
    for name in ("V", "G1"):
        expected, here = law[name][-1].item(), exact[name][-1].item()
        rows.append(computed_row(f"{case}: {name}", expected, here, 1e-10 * abs(expected)))
    tested = [row for row in rows if not row.disputed]
    good = sum(row.agrees is True for row in tested)
    verdict = (
        f"{good} of {len(tested)} leading coefficients at depth {plan.depth:,} are those of their universality "
        f"class; fluctuations V / (n K²) grow with depth over width wherever the network is critical."
    )
    return Result(verdict, tuple(rows), data, _depth_figure)


def shown_layers(first: float, last: int, count: int = 240) -> NDArray[np.int_]:
    """At most so many layers, evenly spread in the logarithm."""
    return np.unique(np.geomspace(first, last, count).round().astype(int))


def fitted_layers(data: xr.Dataset, dim: str = "layer") -> tuple[xr.Dataset, FloatArray, float]:
    """The deepest layers, to which laws are fitted, and the largest of the first order that a fit leaves out."""
    deep = data.sel({dim: slice(_FITTED * data[dim].values[-1], None)})
    layer = deep[dim].values.astype(float)
    return deep, layer, (np.log(layer[0]) / layer[0]) ** 2


def leading_coefficient(layer: FloatArray, values: FloatArray) -> float:
    """The limit c of values = c + c_1 log(l)/l + c_2/l, by least squares."""
    basis = np.stack([np.ones_like(layer), np.log(layer) / layer, 1 / layer], axis=1)
    return float(np.linalg.lstsq(basis, values, rcond=None)[0][0])


def _depth_limit_rows(data: xr.Dataset) -> list[Row]:
    """Leading coefficients by class, then the tuned shift as (5.143) prints it."""
    deep, layer, next_order = fitted_layers(data.sel(law="exact"))

    def coefficient(name: str, quantity: str) -> float:
        return leading_coefficient(layer, _SCALED[quantity](deep.sel(network=name)).values)

    rows = []
    for name, coefficients in _LIMITS.items():
        allowed = max(next_order, _PRINTED if name in ("gelu", "swish") else 1e-6)
        rows += [
            # Relative, but for a limit of zero: there sums of order one cancel to rounding, on any processor.
            computed_row(
                f"{name}: {quantity}", value, coefficient(name, quantity), allowed * abs(value) or 1e-9
            )
            for quantity, value in coefficients.items()
        ]
    note = "a_1 times the coefficient of 1/l² in V (5.127) was left out when (5.141) was matched"
    for name, value in _AS_PRINTED.items():
        title = f"{name}: {_TUNED}, as printed (5.143)"
        here = coefficient(name, _TUNED)
        rows.append(computed_row(title, value, here, next_order * value, note, disputed=True))
    return rows


def _depth_figure(data: xr.Dataset) -> Figure:
    figure = Figure("Universality classes: how random networks change with depth", columns=2, size=(13, 9))
    layer = log(r"layer $\ell$")
    title = r"kernel: falls as $1/\ell$, stays, grows as $\ell$, or settles"
    kernel = figure.panel(title, layer, log("kernel $K$"), legend="")
    title = r"relative fluctuations grow as $\ell/n$ at criticality"
    y = Axis(r"$V/(K^2\ell)$", low=0, high=7.5)
    fluctuation = figure.panel(title, layer, y, legend="upper left", legend_columns=2)
    title = r"finite-width shift of the mean; $C_W(1+\frac{2}{3n})$ tunes it to $1/\ell$"
    shift = figure.panel(title, layer, log(r"$|G^{\{1\}}|$"), legend="")
    colors = dict(zip(data.network.values, (*PALETTE, INK), strict=True))
    for network, color in colors.items():
        own = data.sel(network=network)
        label = f"{network}  ({own.universality_class.item()})"
        flows = [
            (kernel, own.K, label),
            (fluctuation, own.fluctuation / own.layer, label),
            (shift, own.G1, label),
        ]
        if network in ("tanh", "sin"):
            flows.append((shift, own.G1_tuned, ""))
        for panel, course, words in flows:
            # The exact recursion as a broad line, its law dashed on top; nothing where the quantity vanishes.
            exact, law = (
                abs(course.sel(law=which)).where(course.layer > 2) for which in ("exact", "asymptotic")
            )
            if float(exact.max()) > 0:
                panel.curve(course.layer, exact.where(exact > 0), "-", words, color, width=4, alpha=0.45)
                panel.curve(course.layer, law.where(law > 0), "--", "", color, width=1.3)
    end = data.isel(layer=-1).sel(law="exact")
    depth = end.layer.item()
    shift.note(depth, abs(end.G1_tuned.sel(network="tanh").item()), "tuned")
    for network, text in (("relu", "5"), ("relu with biases", "5/3"), ("sin", "2/3")):
        height = end.fluctuation.sel(network=network).item() / depth
        fluctuation.note(depth, height, text, colors[network])
    fluctuation.legend_entry("--", "asymptotic law")
    # The distance of the recursion from its law for the slow class K* = 0, beside its known order.
    title = "the laws are approached as the theory says"
    panel = figure.panel(title, layer, log("|exact / law − 1|"), legend_columns=2)
    for network in ("tanh", "sin"):
        for name, style, symbol in (("K", "-", "K"), ("V", "--", "V"), ("G1", ":", r"G^{\{1\}}")):
            flow = data[name].sel(network=network)
            gap = np.abs(flow.sel(law="exact") / flow.sel(law="asymptotic") - 1)
            panel.curve(data.layer, gap, style, f"{network}, ${symbol}$", colors[network])
    late = data.layer[data.layer > 3]
    panel.curve(late, np.log(late) / late, "-", r"$\log\ell\,/\,\ell$", FAINT, width=1)
    panel.curve(late, 1.0 / late**2, "-.", r"$1/\ell^2$", FAINT, width=1)
    return figure


_ACTIVATIONS = ("relu", "leaky_relu(slope=0.2)")
_FIRST = (0.03, 0.3, 1.0, np.pi / 2, 3.0)
_REFERENCE = {
    np.pi / 2: {2: (1.24685022, 5e-9), 10: (0.545613197, 5e-10), 100: (0.085382232, 5e-10)},
    1.0: {2: (0.881275856, 5e-10), 5: (0.660029280, 5e-10), 10: (0.473429104, 5e-10)},
}
_MEASURED_FIRST = np.pi / 2


@dataclass(frozen=True)
class AnglePlan:
    """How deep the recursion runs, and which layers of which networks are measured."""

    depth: int  # of the exact recursion
    layers: tuple[int, ...]  # at which networks are measured
    draws: dict[int, int]  # networks of each width


PLANS["angle_flow"] = plans(
    quick=AnglePlan(1_000, (2, 3, 4, 6), {24: 6_000, 48: 14_000, 96: 6_000}),
    paper=AnglePlan(100_000, (2, 3, 4, 6, 8), {32: 100_000, 64: 200_000, 128: 80_000}),
)


def angle_flow(plan: AnglePlan, seed: int) -> Result:
    """The angle between two signals shrinks as 3 / (rho l) in critical scale-invariant networks (section 5.5).

    Exact recursion (5.162) from several first angles, for slopes (0, 1) and (0.2, 1), beside real random networks of
    three widths, whose angle of the mean metric is extrapolated to infinite width.
    """
    reference = [layer for row in _REFERENCE.values() for layer in row]
    chosen = np.unique(np.append(shown_layers(1, plan.depth), reference))
    starts = [(name, first) for name in _ACTIVATIONS for first in _FIRST]
    found = [
        exact_angles(_network(name, plan.depth, 1), *_pair(first)).sel(layer=chosen)
        for name, first in track(starts, "angle recursions")
    ]
    shape = (len(_ACTIVATIONS), len(_FIRST))
    curves = labelled(
        {
            "psi": ("activation first layer", np.reshape([each.psi for each in found], (*shape, -1))),
            "crossover_depth": (
                "activation first",
                np.reshape([each.attrs["crossover_depth"] for each in found], shape),
            ),
        },
        activation=list(_ACTIVATIONS),
        first=list(_FIRST),
        layer=chosen,
        rho=("activation", [each.attrs["rho"] for each in found[:: len(_FIRST)]]),
    )
    data = xr.merge([curves, _measure(plan, seed)])
    # The layers of one ensemble are few and correlated: only the largest score is judged, not their spread.
    _, largest = agreement_rows(data.z.values)
    rows = []
    for first, values in _REFERENCE.items():
        psi = data.psi.sel(activation="relu").sel(first=first, method="nearest")
        for layer, (value, digits) in values.items():
            title = f"relu: ψ at layer {layer} from {first:.4g}"
            rows.append(computed_row(title, value, psi.sel(layer=layer), 1.01 * digits))
    rows += _angle_limit_rows(data)
    bound, names = largest_score_allowed(data.z.size), ("theory", "limit", "limit_error")
    for layer in data.measured_layer.values:
        title = f"random relu networks: ψ at layer {layer}"
        rows.append(limit_row(title, data.sel(measured_layer=layer), bound, names))
    rows.append(largest)
    judgement = "agree" if all(row.agrees is not False for row in rows) else "do not agree"
    verdict = (
        f"Recursion, law 3 / (ρ ℓ) and random networks {judgement}: whatever the first angle, ReLU brings two "
        f"signals to {float(data.psi.isel(activation=0, layer=-1).max()):.2g} rad by layer {plan.depth:,} "
        f"(largest |z| of the measured angles {largest.here:.1f})."
    )
    return Result(verdict, tuple(rows), data, _angle_figure)


def _pair(psi: float) -> FloatArray:
    """Two inputs of length 1 at this angle."""
    return np.array([[1.0, 0.0], [np.cos(psi), np.sin(psi)]])


def _network(name: str, depth: int, width: int) -> MLP:
    C_W = criticality(name).C_W
    assert C_W is not None
    return MLP(name, depth, width=width, n_in=2, C_W=C_W)


def _measure(plan: AnglePlan, seed: Seed) -> xr.Dataset:
    """Angles of the mean metric of ReLU networks by width and layer, their limit, and the theory at first order.

    An angle is arccos G_12 / sqrt(G_11 G_22) of the mean over networks, and has a standard error.
    """
    layers, values, errors = list(plan.layers), [], []
    for (width, draws), own in track(with_seeds(plan.draws.items(), seed), "networks"):
        mlp, pair = _network("relu", max(layers), width), _pair(_MEASURED_FIRST)
        metric = sample_metric(mlp, pair, draws, method="weights", layers=layers, seed=own).values
        mean = metric.mean(axis=0)
        relative = metric / mean
        cosine = mean[:, 0, 1] / np.sqrt(mean[:, 0, 0] * mean[:, 1, 1])
        # How far one network moves the cosine, to first order.
        influence = cosine * (relative[..., 0, 1] - (relative[..., 0, 0] + relative[..., 1, 1]) / 2)
        values.append(np.arccos(cosine))
        errors.append(influence.std(axis=0, ddof=1) / np.sqrt(draws) / np.sqrt(1 - cosine**2))
    leading, slope = _first_order(layers)
    found = limits(list(plan.draws), values, errors, leading, "measured_layer", layers)
    found = found.rename(standard_error="limit_error", measured_error="standard_error")
    counts = ("width", list(plan.draws.values()))
    return found.assign(slope=("measured_layer", slope)).assign_coords(draws=counts)


def _first_order(layers: list[int]) -> tuple[FloatArray, FloatArray]:
    """Angle at infinite width and its slope in 1/n, -G1_12 / (K sin psi), as G1 of each norm vanishes (5.117)."""
    deep = flow(_network("relu", max(layers), 1), _pair(_MEASURED_FIRST), ["K", "G1"])
    K, shift = (deep[name].sel(layer=layers).values for name in ("K", "G1"))
    psi = np.arccos(K[:, 0, 1] / K[:, 0, 0])
    return psi, -shift[:, 0, 1] / (K[:, 0, 0] * np.sin(psi))


def _angle_limit_rows(data: xr.Dataset) -> list[Row]:
    """ρ ψ ℓ -> 3 (5.166) from the largest first angles; the fit leaves out (log l / l)^2."""
    deep, layer, next_order = fitted_layers(data)
    rows = []
    for name in _ACTIVATIONS:
        for first in _FIRST[2:]:
            own = deep.sel(activation=name, first=first)
            here = leading_coefficient(layer, float(own.rho) * own.psi.values * layer)
            # A start is forgotten once l is far beyond the crossover depth.
            memory = float(own.crossover_depth) / layer[0]
            allowed = 3 * (next_order + memory**2)
            rows.append(computed_row(f"{name}: ρ ψ ℓ from {first:.4g}", 3.0, here, allowed))
    # From a small angle, 1/ψ doubles over the crossover depth 3 / (ρ ψ); the next order is ρ ψ log 2 / 2.
    first, rho = _FIRST[0], 1 / np.pi
    crossover = round(3 / (rho * first))
    psi = exact_angles(_network("relu", crossover + 1, 1), *_pair(first)).psi.values
    title = f"relu: ψ / ψ⁽¹⁾ after the crossover, {crossover} layers"
    return [*rows, computed_row(title, 0.5, psi[-1] / first, rho * first / 2)]


def _angle_figure(data: xr.Dataset) -> Figure:
    figure = Figure("Signals that start apart meet: the angle between them", columns=3, size=(16, 4.9))
    layer = log(r"layer $\ell$")
    angle, scaled = log(r"angle $\psi$", high=4.5), Axis(r"$\rho\,\psi\,\ell$", low=0, high=3.3)
    depths = figure.panel("from five first angles", layer, angle, legend="lower left")
    law = figure.panel("all tend to 3; leaky ReLU dashed", layer, scaled, legend="lower right")
    late = data.layer[data.layer >= 4]
    for name, text, color, dash in zip(
        _ACTIVATIONS, ("ReLU", "leaky ReLU, slope 0.2"), (BLUE, ORANGE), ("-", "--"), strict=True
    ):
        own = data.sel(activation=name)
        for first, shade in zip(_FIRST, PALETTE, strict=False):
            psi, crossover = own.psi.sel(first=first), float(own.crossover_depth.sel(first=first)) + 1
            depths.curve(data.layer, psi, "-", text, color)
            depths.curve(crossover, psi.interp(layer=crossover), "o", "", color, hollow=True)
            label = rf"$\psi^{{(1)}} = {first:.3g}$" if dash == "-" else ""
            law.curve(data.layer, own.rho * psi * data.layer, dash, label, shade)
        depths.curve(late, 3 / (own.rho * late), "--", "", color, width=1.1)
    depths.legend_entry("--", r"law  $3/(\rho\,\ell)$")
    depths.legend_entry("o", r"crossover  $3/(\rho\,\psi^{(1)})$", hollow=True)
    law.level(y=3, color=INK)
    # The shift of the measured angle from infinite width against 1/n, and the line of theory.
    title = "real random ReLU networks; lines: theory to order $1/n$"
    panel = figure.panel(title, "1 / width", r"measured $\psi$ − infinite-width $\psi$")
    inverse = 1 / data.width.values
    grid = np.array([0, 1.1 * inverse.max()])
    for number, at, color in coloured(data, "measured_layer"):
        label, error = f"layer {number}", at.standard_error
        panel.curve(grid, at.slope.item() * grid, "-", "", color, width=1.2)
        panel.curve(inverse, at.measured - at.theory, "o", label, color, error=error, hollow=True)
        panel.curve(0, at.limit - at.theory, "D", "", color, error=at.limit_error, size=4)
    panel.level(y=0)
    return figure
