"""The activation functions of figure 2.2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from foretrain.activations import Activation, activation
from foretrain.experiments.registry import Result, Row, Scale
from foretrain.support.drawing import BLUE, FAINT, GREEN, ORANGE, new_figure
from foretrain.theory.architecture import FloatArray

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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

_FAMILIES = {"saturating or periodic": ORANGE, "scale-invariant": BLUE, "smooth, like ReLU": GREEN}
_CURVES = {
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
class Plan:
    """How finely the curves are drawn."""

    points: int


PLANS: Mapping[Scale, Plan] = {Scale.QUICK: Plan(401), Scale.PAPER: Plan(2001)}


def activation_curves(plan: Plan, seed: int) -> Result:
    """The curves of figure 2.2, with their derivatives at the origin and their minima against the source."""
    import xarray

    points = np.linspace(-4.0, 4.0, plan.points)
    curves = [_curve(name).value(points) for name in _CURVES]
    table = tuple(_derivative_rows()) + tuple(_minimum_rows())
    data = xarray.Dataset(
        {"value": (("activation", "z"), np.stack(curves))}, coords={"activation": list(_CURVES), "z": points}
    )
    agree = sum(row.agrees is True for row in table)
    verdict = (
        f"{agree} of {len(table)} derivatives at zero and minima of the activations agree with the source."
    )
    return Result(verdict, table, data, partial(_draw, data))


def _curve(name: str) -> Activation:
    return activation(name, slope=_LEAK) if name == "leaky_relu" else activation(name)


def _derivative_rows() -> list[Row]:
    rows = []
    for name, expected in _DERIVATIVES_AT_ZERO.items():
        found = activation(name).taylor(3)
        for order, (value, here) in enumerate(zip(expected, found, strict=True)):
            rows.append(Row(f"{name} σ_{order}", value, float(here), agrees=bool(abs(here - value) < 1e-12)))
    return rows


def _minimum_rows() -> list[Row]:
    """Place and value of the dip of SWISH and GELU, from the zero of the derivative."""
    from scipy.optimize import brentq

    rows = []
    for name, (place, value) in _MINIMA.items():
        curve = activation(name)
        found = float(brentq(lambda z, curve=curve: float(curve.derivative(z, 1)), -2.0, 0.0, xtol=1e-12))
        for label, expected, here in (("place", place, found), ("value", value, float(curve.value(found)))):
            rows.append(Row(f"{name} minimum, {label}", expected, here, agrees=abs(here - expected) < 5e-7))
    return rows


def _draw(data: xarray.Dataset) -> Figure:
    from matplotlib.lines import Line2D

    figure, panels = new_figure("Activation functions (figure 2.2)", 2, 5, (13, 5.6))
    for panel, (name, (label, family)) in zip(panels, _CURVES.items(), strict=True):
        values = data.value.sel(activation=name).values
        _draw_curve(panel, data.z.values, values, _FAMILIES[family], breaks=name == "perceptron")
        panel.set_title(label, fontsize=11)
        panel.set_ylim((-1.5, 1.5) if values.max() <= 1.0 else (-1.5, 3.5))
        panel.set_xlim(-4, 4)
    for panel in panels[5:]:
        panel.set_xlabel("$z$")
    for panel in (panels[0], panels[5]):
        panel.set_ylabel(r"$\sigma(z)$")
    lines = [Line2D([], [], color=color, linewidth=2.2) for color in _FAMILIES.values()]
    figure.legend(lines, list(_FAMILIES), loc="outside lower center", ncols=3, frameon=False)
    return figure


def _draw_curve(panel: Axes, points: FloatArray, values: FloatArray, color: str, breaks: bool) -> None:
    """One curve over its axes; a jump is left open instead of being joined by a vertical line."""
    panel.axhline(0, color=FAINT, linewidth=0.8)
    panel.axvline(0, color=FAINT, linewidth=0.8)
    sides = (points < 0, points >= 0) if breaks else (np.ones(len(points), dtype=bool),)
    for side in sides:
        panel.plot(points[side], values[side], color=color, linewidth=2.2)
