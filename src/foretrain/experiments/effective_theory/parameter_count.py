"""The parameters of the multilayer perceptron of figure 2.1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from foretrain.experiments.registry import Result, Row, Scale
from foretrain.support.drawing import BLUE, FAINT, GREEN, INK, PURPLE, new_figure
from foretrain.theory.architecture import MLP
from foretrain.theory.ensembles import sample_parameters

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

_PRINTED_COUNT = 91  # figure 2.1
_WIDTHS = (4, 5, 5, 5, 1)


@dataclass(frozen=True)
class Plan:
    """Nothing: the one network of the figure is counted at any scale."""


PLANS: Mapping[Scale, Plan] = dict.fromkeys(Scale, Plan())


def parameter_count(plan: Plan, seed: int) -> Result:
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
    return Result(verdict, table, data, partial(_draw, data))


def _draw(data: xarray.Dataset) -> Figure:
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
