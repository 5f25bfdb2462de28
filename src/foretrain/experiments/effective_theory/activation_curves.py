"""The activation functions of figure 2.2."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray

from foretrain.activations import activation
from foretrain.experiments.judgements import agreeing, computed_row
from foretrain.experiments.registry import Result, plans
from foretrain.support.answers import Axis, Figure

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
class Plan:
    """How finely the curves are drawn."""

    points: int


PLANS = plans(quick=Plan(401), paper=Plan(2001))


def activation_curves(plan: Plan, seed: int) -> Result:
    """The curves of figure 2.2, with their derivatives at the origin and their minima against the source."""
    from scipy.optimize import brentq

    points = np.linspace(-4.0, 4.0, plan.points)
    shapes = [activation(name, slope=_LEAK) if name == "leaky_relu" else activation(name) for name in _CURVES]
    curves = np.stack([shape.value(points) for shape in shapes])
    coords = {"activation": list(_CURVES), "z": points}
    data = xarray.Dataset({"value": (("activation", "z"), curves)}, coords=coords)
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
    return Result(verdict, tuple(rows), data, _figure)


def _figure(data: xarray.Dataset) -> Figure:
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
