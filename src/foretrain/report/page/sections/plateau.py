"""How long the loss will wait on a plateau, and which layers are small."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from foretrain.report.page.numbers import number
from foretrain.report.page.patient import Patient
from foretrain.report.page.plots.curves import scale_for
from foretrain.report.page.plots.plot import Plot, Trace, axis, named_axis
from foretrain.report.page.plots.series import level, line, points, short
from foretrain.report.page.section import Section
from foretrain.report.page.table import Table

if TYPE_CHECKING:
    import xarray

_NAMES = {"given": "as given", "rescaled": "small layers rescaled"}


def plateau(patient: Patient) -> Section | None:
    """The forecast of the loss along its own gradient flow, and the scale of every layer."""
    data = patient.data("plateau", "given_loss", "relative_scale", "at_bottleneck", "factor")
    if data is None:
        return None
    lead = "The loss along the network's own gradient flow until it falls below the level of the saddle."
    return Section("plateau", "Plateau forecast", lead, [_flows(data), _scales(data)])


def _flows(data: xarray.Dataset) -> Plot:
    names = [name for name in _NAMES if f"{name}_loss" in data]
    drawn: list[Trace] = []
    rows: list[tuple[Any, ...]] = []
    for place, name in enumerate(names):
        steps, losses = data[f"{name}_step"].values, data[f"{name}_loss"].values
        drawn.append(line(_NAMES[name], steps, losses, place=place, markers=len(steps) < 40))
        rows += [(_NAMES[name], float(s), float(value)) for s, value in zip(steps, losses, strict=True)]
    lengths = [f"{_NAMES[name]} about {number(data[f'{name}_step'].values[-1], 2)} steps" for name in names]
    saddle = float(data.attrs["level"])
    layout = {
        "xaxis": axis("step", scale_for([data[f"{name}_step"].values[-1] for name in names])),
        "yaxis": axis(f"loss ({data.attrs.get('loss', 'of the task')})"),
        "shapes": [level(saddle, "level of the saddle")],
    }
    return Plot(
        "forecast",
        "Forecast of the loss",
        f"The flow was followed {'; '.join(lengths)}. The saddle's level is {number(saddle)}.",
        drawn,
        layout,
        Table("Loss along the flow", ("Network", "Step", "Loss"), rows),
        {"xaxis": "Logarithmic steps", "yaxis": "Logarithmic loss"},
    )


def _scales(data: xarray.Dataset) -> Plot:
    layers = short(data["layer"].values)
    scales, small = data["relative_scale"].values, data["at_bottleneck"].values.astype(bool)
    kinds = {"small": (small, 4), "not small": (~small, 0)}
    told = f"{int(small.sum())} of {len(layers)} layers are small" if small.any() else "No layer is small"
    return Plot(
        "scales",
        "Scale of every layer",
        f"{told}; relative to their natural norms the scales go from {number(np.min(scales))} to "
        f"{number(np.max(scales))}.",
        [
            points(
                kind, layers, np.where(chosen, scales, np.nan), place=place, hovertemplate="%{x}: %{y:.3g}"
            )
            for kind, (chosen, place) in kinds.items()
            if chosen.any()
        ],
        {
            "xaxis": named_axis(layers),
            "yaxis": axis("norm / natural norm", "log"),
            "shapes": [level(1.0, "natural")],
        },
        Table(
            "Scale of every layer",
            ("Layer", "Norm / natural norm", "Small", "Multiply by"),
            list(zip(layers, scales.tolist(), small.tolist(), data["factor"].values.tolist(), strict=True)),
        ),
        {"yaxis": "Logarithmic scale"},
    )
