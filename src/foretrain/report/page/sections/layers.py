"""The network layer by layer: gains of its blocks, and how much each layer takes part in learning."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from foretrain.report.page.numbers import number
from foretrain.report.page.patient import Patient
from foretrain.report.page.plots.plot import Plot, axis, counting_axis, named_axis
from foretrain.report.page.plots.series import bars, level, line, points, short
from foretrain.report.page.section import Part, Section
from foretrain.report.page.table import Table

if TYPE_CHECKING:
    import xarray

_UNITS = {"dead": "dead", "always_on": "always on", "closed": "closed, over units and samples"}
_GAINS = ("distance", "gradient", "forward_gain", "backward_gain")


def layers(patient: Patient) -> Section | None:
    """Gains per block and shares per layer, as far as they were measured."""
    parts: list[Part] = []
    gains = patient.data("gains", *_GAINS)
    if gains is not None:
        parts += [_passage(gains), _gains(gains)]
    shares = patient.data("layer_shares", "relative", "share")
    if shares is not None:
        parts.append(_shares(shares))
    units = patient.data("dead_units", "dead", "closed")
    if units is not None and any(units[key].any() for key in _UNITS if key in units):
        parts.append(_units(units))
    scatter = patient.data("aspect_ratio", "fluctuation")
    if scatter is not None:
        parts.append(_scatter(scatter))
    if not parts:
        return None
    lead = "Signals should keep their size, all layers take part in learning, and all units answer."
    return Section("layers", "Layer by layer", lead, parts)


def _passage(data: xarray.Dataset) -> Plot:
    blocks = _names(data)
    distance, gradient = data["distance"].values, data["gradient"].values
    return Plot(
        "passage",
        "Signals and gradients through the blocks",
        f"From the first to the last of {len(blocks)} blocks, differences between samples are multiplied by "
        f"{number(_ratio(distance[-1], distance[0]))}; backwards, gradients are multiplied by "
        f"{number(_ratio(gradient[0], gradient[-1]))}.",
        [
            line(
                "differences between samples",
                blocks,
                distance,
                place=0,
                markers=True,
                hovertemplate="%{y:.3g}",
            ),
            line("gradients", blocks, gradient, place=1, markers=True, hovertemplate="%{y:.3g}"),
        ],
        {"xaxis": named_axis(blocks), "yaxis": axis("size", "log"), "hovermode": "x unified"},
        _table(data, ("distance", "gradient")),
        {"yaxis": "Logarithmic size"},
    )


def _gains(data: xarray.Dataset) -> Plot:
    blocks = _names(data)
    forward, backward = data["forward_gain"].values, data["backward_gain"].values
    return Plot(
        "gains",
        "Gain of every block",
        f"Forward gains go from {number(np.nanmin(forward))} to {number(np.nanmax(forward))}, backward gains from "
        f"{number(np.nanmin(backward))} to {number(np.nanmax(backward))}; 1 keeps the size.",
        [
            line("forward", blocks, forward, place=0, markers=True, hovertemplate="%{y:.3g}"),
            line("backward", blocks, backward, place=1, markers=True, hovertemplate="%{y:.3g}"),
        ],
        {
            "xaxis": named_axis(blocks),
            "yaxis": axis("gain", "log"),
            "shapes": [level(1.0, "keeps the size")],
            "hovermode": "x unified",
        },
        _table(data, ("forward_gain", "backward_gain")),
        {"yaxis": "Logarithmic gain"},
    )


def _shares(data: xarray.Dataset) -> Plot:
    names, relative = short(data["layer"].values), data["relative"].values
    drawn = [points("this network, at its rates", names, relative, place=0, hovertemplate="%{y:.3g}")]
    columns, rows = ["Layer", "Share / mean share"], [names, relative.tolist()]
    if "theory_share" in data:
        theory = data["theory_share"].values
        drawn.append(
            line("theory, at equal rates", names, theory, place=1, dash="dot", hovertemplate="%{y:.3g}")
        )
        columns, rows = [*columns, "By theory, at equal rates"], [*rows, theory.tolist()]
    low, high = int(np.argmin(relative)), int(np.argmax(relative))
    return Plot(
        "shares",
        "Share of every layer in learning",
        f"Layer {names[low]} moves the outputs least, {number(relative[low])} of the mean layer; layer {names[high]} "
        f"most, {number(relative[high])}. The equivalence principle asks for 1.",
        drawn,
        {
            "xaxis": named_axis(names),
            "yaxis": axis("share / mean share", "log"),
            "shapes": [level(1.0, "equal shares", "start")],
            "hovermode": "x unified",
        },
        Table("Shares of the tangent kernel by weight matrix", tuple(columns), list(zip(*rows, strict=True))),
        {"yaxis": "Logarithmic share"},
    )


def _units(data: xarray.Dataset) -> Plot:
    names = short(data["layer"].values)
    keys = [key for key in _UNITS if key in data]
    worst = int(np.argmax(data["dead"].values))
    dead = float(data["dead"][worst])
    told = (
        f"At most {100 * dead:.0f} % of the units of a layer are dead (layer {names[worst]})."
        if dead
        else "No unit is dead."
    )
    return Plot(
        "units",
        "Units that do not answer",
        told,
        [
            bars(_UNITS[key], names, 100 * data[key].values, place=i, hovertemplate="%{y:.3g} %")
            for i, key in enumerate(keys)
        ],
        {
            "xaxis": named_axis(names),
            "yaxis": axis("percent", range=[0, 100]),
            "barmode": "group",
            "hovermode": "x unified",
        },
        Table(
            "Shares of units, in percent",
            ("Layer", *(_UNITS[key].capitalize() for key in keys)),
            list(zip(names, *((100 * data[key].values).tolist() for key in keys), strict=True)),
        ),
    )


def _scatter(data: xarray.Dataset) -> Plot:
    layers, values = data["layer"].values, data["fluctuation"].values
    most = int(np.nanargmax(values))
    ratio = data.attrs.get("depth_to_width")
    told = f" Depth over width is {number(ratio)}." if ratio is not None else ""
    return Plot(
        "scatter",
        "Scatter between initialisations",
        f"By theory the mean square signal scatters between networks like this one by a relative variance of up to "
        f"{number(values[most])}, in layer {layers[most]}.{told}",
        [
            line(
                "V / (n K²)",
                layers,
                values,
                markers=True,
                hovertemplate="layer %{x}: %{y:.3g}<extra></extra>",
            )
        ],
        {
            "xaxis": counting_axis("layer", len(layers)),
            "yaxis": axis("relative variance", rangemode="tozero"),
        },
        Table(
            "Relative variance of the signal",
            ("Layer", "V / (n K²)"),
            list(zip(layers.tolist(), values.tolist(), strict=True)),
        ),
    )


def _names(data: xarray.Dataset) -> list[str]:
    return [str(name) for name in data["block"].values]


def _ratio(above: float, below: float) -> float:
    return float(above / below) if below else float("inf")


def _table(data: xarray.Dataset, keys: tuple[str, ...]) -> Table:
    columns = [data[key].values.tolist() for key in keys]
    rows = list(zip(_names(data), *columns, strict=True))
    return Table("By block", ("Block", *(key.replace("_", " ").capitalize() for key in keys)), rows)
