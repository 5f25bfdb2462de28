"""Chapter 2: the multilayer perceptron of figure 2.1 and the activation functions of figure 2.2."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from foretrain.activations import Activation, activation
from foretrain.experiments.registry import Result, Row, Scale
from foretrain.support.drawing import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, new_figure
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.ensembles import sample_parameters

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PRINTED_COUNT = 91  # figure 2.1
_WIDTHS = (4, 5, 5, 5, 1)

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


def parameter_count(scale: Scale, seed: int) -> Result:
    """Parameters of the network of figure 2.1, by (2.7) and by counting the entries of a real one."""
    import xarray

    mlp = MLP("tanh", depth=4, width=_WIDTHS[1:-1], n_in=_WIDTHS[0], n_out=_WIDTHS[-1])
    network = sample_parameters(mlp, 2, seed=seed)
    biases = [bias[0].size for bias in network.biases]
    weights = [weight[0].size for weight in network.weights]
    drawn = sum(biases) + sum(weights)
    table = (
        Row(
            "parameters by (2.7)",
            _PRINTED_COUNT,
            mlp.parameter_count,
            agrees=mlp.parameter_count == _PRINTED_COUNT,
        ),
        Row("entries of a drawn network", _PRINTED_COUNT, drawn, agrees=drawn == _PRINTED_COUNT),
    )
    data = xarray.Dataset(
        {"width": ("layer", list(_WIDTHS[1:])), "biases": ("layer", biases), "weights": ("layer", weights)},
        coords={"layer": range(1, mlp.depth + 1)},
        attrs={"n_in": _WIDTHS[0], "parameters": mlp.parameter_count},
    )
    verdict = f"A network with widths {', '.join(map(str, _WIDTHS))} has {mlp.parameter_count} parameters."
    return Result(verdict, table, data, partial(_draw_network, data))


def _draw_network(data: xarray.Dataset) -> Figure:
    widths = [int(data.attrs["n_in"]), *(int(n) for n in data.width.values)]
    title = f"An MLP with {data.attrs['parameters']} parameters (figure 2.1)"
    figure, (panel,) = new_figure(title, 1, 1, (8, 4.4))
    panel.set_axis_off()
    heights = [np.arange(n) - (n - 1) / 2 for n in widths]
    for column in range(1, len(widths)):
        for below in heights[column - 1]:
            for above in heights[column]:
                panel.plot([column - 1, column], [below, above], color=FAINT, linewidth=0.7, zorder=1)
        biases, weights = int(data.biases[column - 1]), int(data.weights[column - 1])
        count = f"{biases} {'bias' if biases == 1 else 'biases'}\n{weights} weights"
        panel.text(column - 0.5, -3.1, count, ha="center", va="top", fontsize=9, color=INK)
    names = ["input", *(f"layer {layer}" for layer in range(1, len(widths) - 1)), "output"]
    for column, (levels, name) in enumerate(zip(heights, names, strict=True)):
        color = GREEN if column == 0 else PURPLE if column == len(widths) - 1 else BLUE
        panel.scatter([column] * len(levels), levels, s=260, color=color, edgecolor="white", zorder=2)
        panel.text(
            column, 2.75, f"{name}\n$n_{column} = {widths[column]}$", ha="center", va="bottom", fontsize=10
        )
    panel.set_ylim(-4.1, 3.9)
    return figure


def activation_curves(scale: Scale, seed: int) -> Result:
    """The curves of figure 2.2, with their derivatives at the origin and their minima against the source."""
    import xarray

    points = np.linspace(-4.0, 4.0, 2001 if scale is Scale.PAPER else 401)
    curves = [_curve(name).value(points) for name in _CURVES]
    table = tuple(_derivative_rows()) + tuple(_minimum_rows())
    data = xarray.Dataset(
        {"value": (("activation", "z"), np.stack(curves))}, coords={"activation": list(_CURVES), "z": points}
    )
    agree = sum(row.agrees is True for row in table)
    verdict = (
        f"{agree} of {len(table)} derivatives at zero and minima of the activations agree with the source."
    )
    return Result(verdict, table, data, partial(_draw_curves, data))


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


def _draw_curves(data: xarray.Dataset) -> Figure:
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
