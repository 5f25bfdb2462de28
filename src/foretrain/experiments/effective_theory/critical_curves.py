"""Where the two susceptibilities meet: figures 5.1 to 5.3.

A critical initialisation needs chi_perp = chi_parallel = 1 at one kernel value K*. The ratio
chi_perp / chi_parallel = 2K^2 <s'^2> / <s^2 (z^2 - K)> (5.73) does not depend on C_b and C_W, so that one curve per
activation shows where it can be met.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import xarray

from foretrain.activations import Activation, activation
from foretrain.experiments.judgements import computed_row
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import INK, Axis, Figure, labelled
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.criticality import criticality
from foretrain.theory.criticality.fixed_points import fixed_points
from foretrain.theory.flow import flow
from foretrain.theory.kernel_functions import KernelFunctions

_DIGITS = 5e-7  # values are published with six decimals


@dataclass(frozen=True)
class Plan:
    """How finely the curves are drawn."""

    points: int


PLANS = plans(quick=Plan(121), paper=Plan(601))


def critical_lines(plan: Plan, seed: int) -> Result:
    """tanh: the lines chi_perp = 1 and chi_parallel = 1 in the plane (C_W, C_b), and the ratio against K."""
    K = np.geomspace(1e-4, 30.0, plan.points)
    values = KernelFunctions("tanh").at(K)
    lines = xarray.Dataset(coords={"K": K})
    for name, slope in (("perpendicular", values.slope_square), ("parallel", values.square_slope)):
        lines[f"C_W_{name}"] = ("K", 1 / slope)
        lines[f"C_b_{name}"] = ("K", K - values.square / slope)
    data = xarray.merge([lines, _ratios(("tanh",), np.linspace(0.0, 3.0, plan.points))])
    rows = (
        computed_row("C_W where the lines meet", 1.0, lines.C_W_perpendicular[0], 1e-3),
        computed_row("C_b where the lines meet", 0.0, lines.C_b_perpendicular[0], 1e-3),
        *_rows("tanh", {0.0: 1.0, 0.1: 1.185962, 1.0: 2.554504, 3.0: 5.316211}),
    )
    verdict = "The two lines of tanh meet in one point only, (C_W, C_b) = (1, 0), where the kernel vanishes."
    return Result(verdict, rows, data, _lines_figure)


def ratio_without_criticality(plan: Plan, seed: int) -> Result:
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


def ratio_half_stable(plan: Plan, seed: int) -> Result:
    """SWISH and GELU: the ratio is one at K = 0, an unstable point, and at a half-stable K* > 0."""
    data = _ratios(("swish", "gelu"), np.linspace(0.0, 20.0, plan.points))
    rows = [*_rows("swish", {0.0: 1.0, 10.0: 0.989497}), *_rows("gelu", {0.0: 1.0, 10.0: 1.018514})]
    published = {
        "swish": (14.320173618, 0.5551431707, 1.9880046783),
        "gelu": ((3 + np.sqrt(17)) / 2, 0.1729223908, 1.9830582574),
    }
    neighbours = {"swish": (14.5931, 14.5, 0.1), "gelu": (3.03498, 3.2, 0.05)}  # found, printed, its digits
    for name, expected in published.items():
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


def _ratios(names: tuple[str, ...], K: FloatArray) -> xarray.Dataset:
    values = np.stack([_ratio(name, K) for name in names])
    return labelled({"ratio": ("activation kernel", values)}, activation=list(names), kernel=K)


def _rows(name: str, published: dict[float, float]) -> list[Row]:
    here = _ratio(name, np.array(list(published)))
    return [
        computed_row(f"{name}: ratio at K = {K:g}", value, ratio, _DIGITS)
        for (K, value), ratio in zip(published.items(), here, strict=True)
    ]


def _lines_figure(data: xarray.Dataset) -> Figure:
    figure = Figure("Criticality of tanh", columns=2, size=(12, 4.8))
    panel = figure.panel(x=Axis("$C_W$", low=0, high=5), y=Axis("$C_b$", low=-1, high=3))
    for name, symbol in (("perpendicular", r"\perp"), ("parallel", r"\parallel")):
        panel.curve(data[f"C_W_{name}"], data[f"C_b_{name}"], "-", rf"$\chi_{symbol} = 1$", width=2)
    panel.curve(1, 0, "o", "critical point (1, 0)", INK, size=7)
    panel.level(y=0, width=0.8)
    return _add_ratios(data, figure=figure)


def _add_ratios(data: xarray.Dataset, title: str = "", figure: Figure | None = None) -> Figure:
    """Add the ratios to a figure, or to one of their own with this title."""
    figure = figure or Figure(title, size=(7, 4.6))
    panel = figure.panel(x=Axis("kernel $K$", low=0), y=r"$\chi_\perp(K)\,/\,\chi_\parallel(K)$")
    for name in data.activation.values:
        panel.curve(data.kernel, data.ratio.sel(activation=name), "-", str(name), width=2)
    panel.level(y=1, color=INK, dash="--")
    return figure
