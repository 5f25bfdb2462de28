"""Fluctuations of residual networks against the skip coupling gamma (appendix B).

At criticality V / (n K^2) grows as nu L / n. The printed nu (B.29) leaves out what neurons remember of their own past
beyond the quadratic order; the complete one does not. Random residual networks of three widths, extrapolated to
infinite width, decide between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import xarray as xr

from foretrain.compare.judging.agreement import largest_score_allowed
from foretrain.experiments.effective_theory.width_limits import infinite_width
from foretrain.experiments.judgements import agreement_rows, computed_row, limit_row
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import BLUE, GREEN, ORANGE, Axis, Figure, Panel, log
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, with_seeds
from foretrain.theory.architecture import MLP
from foretrain.theory.ensembles import Ensemble, connected_correlator
from foretrain.theory.flow import flow
from foretrain.theory.flow.request import Method
from foretrain.theory.residual_networks import fluctuation_rate, optimal_aspect_ratio, optimal_skip

_COLORS = {"relu": BLUE, "linear": GREEN, "tanh": ORANGE}
_ACTIVATIONS = tuple(_COLORS)
_METHODS: tuple[Method, ...] = ("book", "complete")
_LAYER = 6  # the last with a skip connection, where V is measured
_OUTPUTS = 10
_COUPLINGS = np.round(np.linspace(-0.95, 0.95, 77), 10)
_STEPS = np.linspace(-1, 1, 30)
_VERTEX_COUPLINGS = 0.475 * (_STEPS + np.sin(np.pi / 2 * _STEPS))  # denser where the curves are steep
_PUBLISHED_RATES = {
    ("relu", "book"): {0.3: 4.4681, 0.6: 2.9696, 0.9: 0.7961},
    ("relu", "complete"): {0.3: 6.2951834678, 0.6: 6.1960914932, 0.9: 2.5358545522},
    ("tanh", "complete"): {0.6: 0.5802666667, 0.9: 0.2292666667},
}
_PUBLISHED_RATIOS = {
    "relu": {0.0: 0.016, 0.6: 0.0269396552, 0.9: 0.1004898882},
    "tanh": {0.0: 0.12, 0.6: 0.1378676471, 0.9: 0.3489386450},
}
_PUBLISHED_SKIPS = {"relu": 0.9799960176, "linear": 0.9793703613, "tanh": 0.9336914848}  # at r = 1/2
_DIGITS = 1e-10


@dataclass(frozen=True)
class Plan:
    """Skip couplings of the networks, how many of which widths are drawn, and how."""

    couplings: dict[str, tuple[float, ...]]  # gamma of the networks that are measured
    draws: dict[int, int]  # networks of each width
    method: str


PLANS = plans(
    quick=Plan(
        {"relu": (-0.6, 0.3, 0.6, 0.9), "linear": (0.3, 0.8), "tanh": (0.3, 0.8)},
        {32: 20_000, 64: 60_000, 128: 40_000},
        "conditional",
    ),
    paper=Plan(
        dict.fromkeys(_ACTIVATIONS, (-0.9, -0.5, 0.2, 0.45, 0.7, 0.9)),
        {32: 60_000, 64: 100_000, 128: 40_000},
        "weights",
    ),
)


def residual_fluctuations(plan: Plan, seed: int) -> Result:
    """nu(gamma) and r*(gamma), as printed and complete, and V at layer 6 of real residual networks."""
    data = xr.merge([_curves(), _measure(plan, seed)])
    # So few scores say little by their spread: only the largest is judged.
    _, largest = agreement_rows(data.z.values)
    rows, bound = _published_rows(), largest_score_allowed(data.z.size)
    for place in range(data.sizes["point"]):
        point = data.isel(point=place)
        name, gamma = point.measured_activation.item(), float(point.measured_gamma)
        title = f"{name}, γ = {gamma:g}: V/K² at layer {_LAYER}"
        row = limit_row(f"{title}, complete", point, bound, ("complete", "measured", "standard_error"))
        rows.append(row)
        if abs(float(point.book / point.complete) - 1) > 1e-9:  # the printed theory, for orientation
            rows.append(Row(f"{title}, book", float(point.book), row.here, row.standard_error))
    rows.append(largest)
    worst = data.isel(point=int(np.abs(data.z_book.values).argmax()))
    judgement = "agree" if all(row.agrees is not False for row in rows) else "do not agree"
    verdict = (
        f"Random residual networks {judgement} with the complete leading order (largest |z| {largest.here:.1f}); "
        f"the printed recursion is off by up to {abs(float(worst.z_book)):.0f} standard errors "
        f"({worst.measured_activation.item()}, γ = {float(worst.measured_gamma):g})."
    )
    return Result(verdict, tuple(rows), data, _figure)


def _curves() -> xr.Dataset:
    """nu, r*, and V / K^2 at layer 6 by activation, method and gamma."""
    points = list(product(_ACTIVATIONS, _METHODS, _COUPLINGS))
    rates = [fluctuation_rate(name, gamma, method) for name, method, gamma in points]
    ratios = [
        optimal_aspect_ratio(name, gamma, n_out=_OUTPUTS, method=method) for name, method, gamma in points
    ]
    tasks = track(list(product(_ACTIVATIONS, _METHODS, _VERTEX_COUPLINGS)), "recursions")
    vertices = [_relative_vertex(name, float(gamma), method) for name, method, gamma in tasks]
    curves = {"rate": (rates, "gamma"), "best_ratio": (ratios, "gamma"), "vertex": (vertices, "vertex_gamma")}
    shape = (len(_ACTIVATIONS), len(_METHODS), -1)
    return xr.Dataset(
        {
            name: (("activation", "theory", gamma), np.reshape(values, shape))
            for name, (values, gamma) in curves.items()
        },
        coords={
            "activation": list(_ACTIVATIONS),
            "theory": list(_METHODS),
            "gamma": _COUPLINGS,
            "vertex_gamma": _VERTEX_COUPLINGS,
        },
        attrs={"n_out": _OUTPUTS},
    )


def _network(name: str, gamma: float, width: int) -> MLP:
    return MLP.critical(name, depth=_LAYER + 1, width=width, gamma=gamma, n_in=1)


def _input(name: str) -> list[list[float]]:
    """An input with kernel 1 at layer 1."""
    return [[1 / np.sqrt(MLP.critical(name, depth=2, width=1).C_W[0])]]


def _relative_vertex(name: str, gamma: float, method: Method) -> float:
    """V / K^2 at the layer that is measured."""
    deep = flow(_network(name, gamma, 1), _input(name), ["K", "V"], method=method)
    return float(deep["V"].sel(layer=_LAYER).squeeze() / deep["K"].sel(layer=_LAYER).squeeze() ** 2)


def _measure(plan: Plan, seed: Seed) -> xr.Dataset:
    """V / K^2 of random networks at layer 6, extrapolated to infinite width, beside both theories."""
    points = [(name, gamma) for name, couplings in plan.couplings.items() for gamma in couplings]
    columns = []
    for (name, gamma), source in track(with_seeds(points, seed), "residual networks"):
        values, errors = [], []
        for (width, draws), own in with_seeds(plan.draws.items(), source):
            mlp = _network(name, gamma, width)
            ensemble = Ensemble(mlp, _input(name), draws, method=plan.method, seed=own)
            seen = connected_correlator(ensemble, "1122", layers=[_LAYER], estimator="neurons")
            values.append(width * seen.value.values.ravel())
            errors.append(width * seen.standard_error.values.ravel())
        limit, error = infinite_width(list(plan.draws), np.stack(values), np.stack(errors))
        square = float(flow(mlp, _input(name))["K"].sel(layer=_LAYER).squeeze()) ** 2
        theories = [_relative_vertex(name, gamma, method) for method in _METHODS]
        columns.append((float(limit[0]) / square, float(error[0]) / square, *theories))
    found = dict(zip(("measured", "standard_error", *_METHODS), np.array(columns).T, strict=True))
    found["z"] = (found["measured"] - found["complete"]) / found["standard_error"]
    found["z_book"] = (found["measured"] - found["book"]) / found["standard_error"]
    activations, couplings = zip(*points, strict=True)
    labels = {"measured_activation": activations, "measured_gamma": couplings}
    return xr.Dataset(
        {name: ("point", values) for name, values in found.items()},
        coords={name: ("point", list(values)) for name, values in labels.items()},
    )


def _published_rows() -> list[Row]:
    from scipy.optimize import brentq, minimize_scalar

    rows = []
    for (name, method), values in _PUBLISHED_RATES.items():
        for gamma, expected in values.items():
            here = fluctuation_rate(name, gamma, method)
            rows.append(computed_row(f"{name}: ν {method}, γ = {gamma:g}", expected, here, _DIGITS))
    for name, values in _PUBLISHED_RATIOS.items():
        for gamma, expected in values.items():
            here = optimal_aspect_ratio(name, gamma, n_out=_OUTPUTS, method="book")
            title = f"{name}: r* book, γ = {gamma:g}, {_OUTPUTS} outputs"
            rows.append(computed_row(title, expected, here, _DIGITS))
    for name, expected in _PUBLISHED_SKIPS.items():
        here = optimal_skip(name, 0.5, n_out=_OUTPUTS, method="book")
        rows.append(computed_row(f"{name}: γ* book, r = 1/2, {_OUTPUTS} outputs", expected, here, _DIGITS))
    # The complete nu of ReLU rises from 5 before it falls.
    peak = minimize_scalar(
        lambda gamma: -fluctuation_rate("relu", gamma), bounds=(0.1, 0.8), method="bounded"
    )
    back = brentq(lambda gamma: fluctuation_rate("relu", gamma) - fluctuation_rate("relu"), peak.x, 0.95)
    return [
        *rows,
        computed_row("relu: largest ν complete", 6.531, -peak.fun, 5e-4),
        computed_row("relu: γ of the largest ν", 0.449, peak.x, 5e-4),
        computed_row("relu: γ beyond which ν < ν(0)", 0.749, back, 5e-4),
    ]


def _figure(data: xr.Dataset) -> Figure:
    figure = Figure(
        "Residual networks: fluctuations against the skip coupling", size=(16, 5.3), legend="below"
    )
    gamma, title = r"skip coupling $\gamma$", f"at layer {_LAYER}: real networks decide"
    panel = figure.panel(title, x=gamma, y=Axis("$V/K^2$", low=0))
    _draw_pair(panel, data.vertex, "vertex_gamma")
    for name, color in _COLORS.items():
        at = data.isel(point=data.measured_activation.values == name)
        error = at.standard_error
        panel.curve(at.measured_gamma, at.measured, "o", "", color, error=error, size=6, hollow=True)
    title = r"growth of fluctuations with depth, $V/(nK^2)=\nu L/n$"
    _draw_pair(figure.panel(title, x=gamma, y=Axis(r"$\nu$", low=0, high=7.2)), data.rate, "gamma")
    title, ticks = f"best depth over width for {_OUTPUTS} outputs", (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
    panel = figure.panel(title, x=gamma, y=log("$r^* = L/n$", ticks=ticks))
    _draw_pair(panel, data.best_ratio, "gamma")
    for name, color in _COLORS.items():
        panel.legend_entry("-", name, color)
    panel.legend_entry("-", "complete leading order")
    panel.legend_entry("--", "as printed, (B.29), (B.35)")
    panel.legend_entry("o", r"real networks, $n\to\infty$", hollow=True)
    return figure


def _draw_pair(panel: Panel, curves: xr.DataArray, gamma: str) -> None:
    """The complete theory and the printed one, by activation."""
    for name, color in _COLORS.items():
        for method, style, width in (("complete", "-", 2.2), ("book", "--", 1.4)):
            curve = curves.sel(activation=name, theory=method)
            panel.curve(curve[gamma], curve, style, "", color, width=width)
    panel.level(x=0)
