"""Fluctuations of residual networks against the skip coupling gamma (appendix B).

At criticality V / (n K^2) grows as nu L / n. The printed nu (B.29) leaves out what neurons remember of their own past
beyond the quadratic order; the complete one does not. Random residual networks of three widths, extrapolated to
infinite width, decide between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from foretrain.compare.judging.agreement import largest_score_allowed
from foretrain.experiments.effective_theory.width_limits import infinite_width
from foretrain.experiments.judgements import agreement_rows
from foretrain.experiments.registry import Result, Row, Scale
from foretrain.support.drawing import BLUE, FAINT, GREEN, INK, ORANGE, new_figure
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, spawn
from foretrain.theory.architecture import MLP
from foretrain.theory.ensembles import Ensemble, connected_correlator
from foretrain.theory.flow import flow
from foretrain.theory.flow.request import Method
from foretrain.theory.residual_networks import fluctuation_rate, optimal_aspect_ratio, optimal_skip

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ACTIVATIONS = ("relu", "linear", "tanh")
_COLORS = {"relu": BLUE, "linear": GREEN, "tanh": ORANGE}
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


PLANS: Mapping[Scale, Plan] = {
    Scale.QUICK: Plan(
        {"relu": (-0.6, 0.3, 0.6, 0.9), "linear": (0.3, 0.8), "tanh": (0.3, 0.8)},
        {32: 20_000, 64: 60_000, 128: 40_000},
        "conditional",
    ),
    Scale.PAPER: Plan(
        dict.fromkeys(_ACTIVATIONS, (-0.9, -0.5, 0.2, 0.45, 0.7, 0.9)),
        {32: 60_000, 64: 100_000, 128: 40_000},
        "weights",
    ),
}


def residual_fluctuations(plan: Plan, seed: int) -> Result:
    """nu(gamma) and r*(gamma), as printed and complete, and V at layer 6 of real residual networks."""
    import xarray

    data = xarray.merge([_rates(), _vertices(), _measure(plan, seed)])
    # So few scores say little by their spread: only the largest is judged.
    _, largest = agreement_rows(data.z.values)
    rows = (*_published_rows(), *_maximum_rows(), *_measured_rows(data), largest)
    worst = data.isel(point=int(np.abs(data.z_book.values).argmax()))
    judgement = "agree" if all(row.agrees is not False for row in rows) else "do not agree"
    verdict = (
        f"Random residual networks {judgement} with the complete leading order (largest |z| {largest.here:.1f}); "
        f"the printed recursion is off by up to {abs(float(worst.z_book)):.0f} standard errors "
        f"({worst.measured_activation.item()}, γ = {float(worst.measured_gamma):g})."
    )
    return Result(verdict, rows, data, partial(_draw, data))


def _rates() -> xarray.Dataset:
    """nu and r* by activation, method and gamma."""
    import xarray

    rates = [
        [[fluctuation_rate(name, gamma, method) for gamma in _COUPLINGS] for method in _METHODS]
        for name in _ACTIVATIONS
    ]
    ratios = [
        [
            [optimal_aspect_ratio(name, gamma, n_out=_OUTPUTS, method=method) for gamma in _COUPLINGS]
            for method in _METHODS
        ]
        for name in _ACTIVATIONS
    ]
    dims = ("activation", "theory", "gamma")
    return xarray.Dataset(
        {"rate": (dims, rates), "best_ratio": (dims, ratios)},
        coords={"activation": list(_ACTIVATIONS), "theory": list(_METHODS), "gamma": _COUPLINGS},
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


def _vertices() -> xarray.Dataset:
    """V / K^2 at layer 6 by activation, method and gamma."""
    import xarray

    tasks = [
        (name, method, float(gamma))
        for name in _ACTIVATIONS
        for method in _METHODS
        for gamma in _VERTEX_COUPLINGS
    ]
    values = [_relative_vertex(name, gamma, method) for name, method, gamma in track(tasks, "recursions")]
    shape = (len(_ACTIVATIONS), len(_METHODS), len(_VERTEX_COUPLINGS))
    return xarray.Dataset(
        {"vertex": (("activation", "theory", "vertex_gamma"), np.reshape(values, shape))},
        coords={"vertex_gamma": _VERTEX_COUPLINGS},
    )


def _measure(plan: Plan, seed: Seed) -> xarray.Dataset:
    """V / K^2 of random networks at layer 6 beside both theories."""
    import xarray

    points = [(name, gamma) for name, couplings in plan.couplings.items() for gamma in couplings]
    tasks = list(zip(points, spawn(seed, len(points)), strict=True))
    columns = [_one_network(plan, *point, own) for point, own in track(tasks, "residual networks")]
    names = ("measured", "standard_error", "book", "complete")
    found = dict(zip(names, np.array(columns).T, strict=True))
    found["z"] = (found["measured"] - found["complete"]) / found["standard_error"]
    found["z_book"] = (found["measured"] - found["book"]) / found["standard_error"]
    activations, couplings = zip(*points, strict=True)
    return xarray.Dataset(
        {name: ("point", values) for name, values in found.items()},
        coords={
            "measured_activation": ("point", list(activations)),
            "measured_gamma": ("point", list(couplings)),
        },
    )


def _one_network(plan: Plan, name: str, gamma: float, seed: Seed) -> tuple[float, float, float, float]:
    """Measured V / K^2 at infinite width, its standard error, and both theories."""
    widths, values, errors = list(plan.draws), [], []
    for (width, draws), own in zip(plan.draws.items(), spawn(seed, len(widths)), strict=True):
        mlp = _network(name, gamma, width)
        ensemble = Ensemble(mlp, _input(name), draws, method=plan.method, seed=own)
        found = connected_correlator(ensemble, "1122", layers=[_LAYER], estimator="neurons")
        values.append(width * found.value.values.ravel())
        errors.append(width * found.standard_error.values.ravel())
    limit, error = infinite_width(widths, np.stack(values), np.stack(errors))
    square = float(flow(mlp, _input(name))["K"].sel(layer=_LAYER).squeeze()) ** 2
    theory = [_relative_vertex(name, gamma, method) for method in _METHODS]
    return float(limit[0]) / square, float(error[0]) / square, theory[0], theory[1]


def _row(quantity: str, expected: float, here: float, digits: float = _DIGITS) -> Row:
    return Row(quantity, expected, here, agrees=bool(abs(here - expected) <= digits))


def _published_rows() -> list[Row]:
    rows = [
        _row(f"{name}: ν {method}, γ = {gamma:g}", expected, fluctuation_rate(name, gamma, method))
        for (name, method), values in _PUBLISHED_RATES.items()
        for gamma, expected in values.items()
    ]
    for name, values in _PUBLISHED_RATIOS.items():
        for gamma, expected in values.items():
            here = optimal_aspect_ratio(name, gamma, n_out=_OUTPUTS, method="book")
            rows.append(_row(f"{name}: r* book, γ = {gamma:g}, {_OUTPUTS} outputs", expected, here))
    for name, expected in _PUBLISHED_SKIPS.items():
        here = optimal_skip(name, 0.5, n_out=_OUTPUTS, method="book")
        rows.append(_row(f"{name}: γ* book, r = 1/2, {_OUTPUTS} outputs", expected, here))
    return rows


def _maximum_rows() -> list[Row]:
    """The complete nu of ReLU rises from 5 before it falls."""
    from scipy.optimize import brentq, minimize_scalar

    peak = minimize_scalar(
        lambda gamma: -fluctuation_rate("relu", gamma), bounds=(0.1, 0.8), method="bounded"
    )
    back = brentq(lambda gamma: fluctuation_rate("relu", gamma) - fluctuation_rate("relu"), peak.x, 0.95)
    return [
        _row("relu: largest ν complete", 6.531, float(-peak.fun), 5e-4),
        _row("relu: γ of the largest ν", 0.449, float(peak.x), 5e-4),
        _row("relu: γ beyond which ν < ν(0)", 0.749, float(back), 5e-4),
    ]


def _measured_rows(data: xarray.Dataset) -> list[Row]:
    """Against the complete theory, and for orientation against the printed one."""
    bound = largest_score_allowed(data.z.size)
    rows = []
    for index in range(data.sizes["point"]):
        point = data.isel(point=index)
        title = (
            f"{point.measured_activation.item()}, γ = {float(point.measured_gamma):g}: V/K² at layer {_LAYER}"
        )
        here, error = float(point.measured), float(point.standard_error)
        agrees = bool(abs(float(point.z)) <= bound)
        rows.append(Row(f"{title}, complete", float(point.complete), here, error, agrees=agrees))
        if abs(float(point.book / point.complete) - 1) > 1e-9:
            rows.append(Row(f"{title}, book", float(point.book), here, error))
    return rows


def _draw(data: xarray.Dataset) -> Figure:
    title = "Residual networks: fluctuations against the skip coupling"
    figure, (vertex, rate, ratio) = new_figure(title, 1, 3, (16, 4.9))
    _draw_pair(vertex, data.vertex, "vertex_gamma")
    _draw_points(vertex, data)
    vertex.set(ylabel="$V/K^2$", ylim=(0, None))
    vertex.set_title(f"at layer {_LAYER}: real networks decide", fontsize=11)
    _draw_pair(rate, data.rate, "gamma")
    rate.set(ylabel=r"$\nu$", ylim=(0, 7.2))
    rate.set_title(r"growth of fluctuations with depth, $V/(nK^2)=\nu L/n$", fontsize=11)
    _draw_pair(ratio, data.best_ratio, "gamma")
    ratio.set(yscale="log", ylabel="$r^* = L/n$")
    ratio.set_yticks([0.01, 0.02, 0.05, 0.1, 0.2, 0.5], ["0.01", "0.02", "0.05", "0.1", "0.2", "0.5"])
    ratio.minorticks_off()
    ratio.set_title(f"best depth over width for {_OUTPUTS} outputs", fontsize=11)
    _draw_legend(ratio)
    return figure


def _draw_pair(panel: Axes, curves: xarray.DataArray, gamma: str) -> None:
    for name in _ACTIVATIONS:
        for method, style, width in (("complete", "-", 2.2), ("book", "--", 1.4)):
            curve = curves.sel(activation=name, theory=method)
            panel.plot(curve[gamma], curve, style, color=_COLORS[name], linewidth=width)
    panel.axvline(0, color=FAINT, linewidth=0.8)
    panel.set_xlabel(r"skip coupling $\gamma$")


def _draw_points(panel: Axes, data: xarray.Dataset) -> None:
    for name in _ACTIVATIONS:
        points = data.isel(point=data.measured_activation.values == name)
        panel.errorbar(
            points.measured_gamma,
            points.measured,
            points.standard_error,
            fmt="o",
            color=_COLORS[name],
            markersize=6,
            markerfacecolor="white",
            elinewidth=1.6,
            zorder=5,
        )


def _draw_legend(panel: Axes) -> None:
    for name in _ACTIVATIONS:
        panel.plot([], [], color=_COLORS[name], linewidth=3, label=name)
    panel.plot([], [], color=INK, linewidth=2.2, label="complete leading order")
    panel.plot([], [], "--", color=INK, linewidth=1.4, label="as printed, (B.29), (B.35)")
    panel.plot(
        [], [], "o", color=INK, markersize=6, markerfacecolor="white", label="real networks, $n\\to\\infty$"
    )
    panel.legend(framealpha=1, edgecolor="white", fontsize=9, loc="upper center")
