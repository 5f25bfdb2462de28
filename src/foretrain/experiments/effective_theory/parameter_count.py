"""The parameters of the multilayer perceptron of figure 2.1."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import BLUE, FAINT, GREEN, PURPLE, Axis, Figure
from foretrain.theory.architecture import MLP
from foretrain.theory.ensembles import sample_parameters

_PRINTED_COUNT = 91  # figure 2.1
_WIDTHS = (4, 5, 5, 5, 1)


@dataclass(frozen=True)
class Plan:
    """Nothing: the one network of the figure is counted at any scale."""


PLANS = plans(quick=Plan(), paper=Plan())


def parameter_count(plan: Plan, seed: int) -> Result:
    """Parameters of the network of figure 2.1, by (2.7) and by counting the entries of a real one."""
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
    return Result(verdict, tuple(rows), data, _figure)


def _figure(data: xr.Dataset) -> Figure:
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
