"""Theory beside measurement: kernels layer by layer with z-scores, signals and gradients through the network."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from foretrain.report.page.markup import Markup, element
from foretrain.report.page.numbers import number
from foretrain.report.page.patient import Patient
from foretrain.report.page.plots.plot import BLUE, Plot, Trace, axis, counting_axis
from foretrain.report.page.plots.series import level, line, points
from foretrain.report.page.section import Part, Section
from foretrain.report.page.table import Table

if TYPE_CHECKING:
    import xarray

_FAR = 3.0  # deviations: beyond this chance is no explanation
_KERNELS = ("K_measured", "K_theory", "K_deviation", "K_z")
_SIGNALS = ("distance_measured", "distance_theory", "gradient_measured", "gradient_theory")


def agreement(patient: Patient) -> Section | None:
    """What the theory of wide networks says about this one, and what it does."""
    kernels = patient.data("initialisation", *_KERNELS)
    signals = patient.data("initialisation", *_SIGNALS)
    parts: list[Part] = []
    if kernels is not None:
        parts += [_kernel_table(kernels), _kernel_plot(kernels), _scores(kernels)]
    if signals is not None and signals.sizes["hidden"] > 1:
        parts.append(_signal_plot(signals))
    if not parts:
        return None
    lead = (
        "The theory predicts the mean over networks with these widths and variances; z counts how many deviations "
        "between single networks this one is away from it."
    )
    return Section("agreement", "Theory beside measurement", lead, parts)


def _kernel_table(data: xarray.Dataset) -> Table:
    names = data["name"].values if "name" in data.coords else data["layer"].values
    means = [data[key].mean("input").values for key in _KERNELS[:3]]
    scores = data["K_z"].values
    rows = [
        (int(layer), str(name), theory, measured, deviation, _score(_typical(z)))
        for layer, name, measured, theory, deviation, z in zip(
            data["layer"].values, names, *means, scores, strict=True
        )
    ]
    columns = ("Layer", "Module", "K by theory", "K measured", "± between networks", "z")
    return Table(f"Kernels K, means over {data.sizes['input']} inputs", columns, rows)


def _typical(z: np.ndarray) -> float:
    """The mean of some inputs' scores: they share their weights, so they do not average out."""
    known = z[np.isfinite(z)]
    return float(known.mean()) if len(known) else float("nan")


def _score(z: float) -> Markup | str:
    if not np.isfinite(z):
        return "–"
    told = f"{z:+.2f}".replace("-", "−")
    return element("strong", f"{told} ✖", class_="away") if abs(z) > _FAR else told


def _kernel_plot(data: xarray.Dataset) -> Plot:
    layers = data["layer"].values
    measured, theory, deviation = (data[key].mean("input").values for key in _KERNELS[:3])
    low, high = np.maximum(theory - 2 * deviation, theory * 1e-2), theory + 2 * deviation
    band: Trace = {
        "type": "scatter",
        "name": "± 2 deviations",
        "x": np.concatenate([layers, layers[::-1]]),
        "y": np.concatenate([high, low[::-1]]),
        "fill": "toself",
        "fillcolor": "var(--faint-blue)",
        "line": {"width": 0},
        "mode": "lines",
        "hoverinfo": "skip",
    }
    return Plot(
        "kernels",
        "Size of the signal, layer by layer",
        f"Mean square preactivations go from {number(measured[0])} in layer 1 to {number(measured[-1])} in layer "
        f"{layers[-1]}; theory says {number(theory[0])} and {number(theory[-1])}.",
        [
            band,
            line("theory", layers, theory, colour=BLUE, dash="dash"),
            points("measured", layers, measured, place=1),
        ],
        {"xaxis": counting_axis("layer", len(layers)), "yaxis": axis("kernel K", "log")},
        Table(
            "Kernels by layer",
            ("Layer", "Theory", "Measured", "Deviation"),
            list(zip(layers.tolist(), theory.tolist(), measured.tolist(), deviation.tolist(), strict=True)),
        ),
        {"yaxis": "Logarithmic K"},
    )


def _scores(data: xarray.Dataset) -> Plot:
    layers, scores = data["layer"].values, data["K_z"].values
    known = scores[np.isfinite(scores)]
    inside = int((np.abs(known) <= 2).sum())
    drawn = [
        points(f"input {i + 1}", layers, scores[:, i], place=i, hovertemplate="layer %{x}: z = %{y:.2f}")
        for i in range(scores.shape[1])
    ]
    reach = max(3.2, 1.1 * float(np.abs(known).max())) if len(known) else 3.2
    return Plot(
        "scores",
        "Distance from the theory",
        f"{inside} of {len(known)} scores lie within 2 deviations; inputs share their weights and go together.",
        drawn,
        {
            "xaxis": counting_axis("layer", len(layers)),
            "yaxis": axis("z", range=[-reach, reach]),
            "shapes": [level(2.0, "+2"), level(-2.0, "−2")],
        },
        Table(
            "Scores z by layer and input",
            ("Layer", *(f"Input {i + 1}" for i in range(scores.shape[1]))),
            [(int(layer), *row) for layer, row in zip(layers, scores.tolist(), strict=True)],
        ),
    )


def _signal_plot(data: xarray.Dataset) -> Plot:
    hidden = data["hidden"].values
    words = {"distance": "differences between inputs", "gradient": "gradients"}
    drawn: list[Trace] = []
    told = []
    for place, (key, name) in enumerate(words.items()):
        measured, theory = (np.sqrt(data[f"{key}_{kind}"].values) for kind in ("measured", "theory"))
        drawn.append(
            line(f"{name}, theory", hidden, theory, place=place, dash="dash", hovertemplate="%{y:.3g}")
        )
        drawn.append(points(f"{name}, measured", hidden, measured, place=place, hovertemplate="%{y:.3g}"))
        ratio = measured[-1] / measured[0] if key == "distance" else measured[0] / measured[-1]
        direction = "forwards" if key == "distance" else "backwards"
        told.append(f"{name} are multiplied by {number(ratio)} {direction}")
    return Plot(
        "signals",
        "Differences and gradients through the hidden layers",
        f"Through {len(hidden)} hidden layers {' and '.join(told)}.",
        drawn,
        {"xaxis": counting_axis("hidden layer", len(hidden)), "yaxis": axis("root mean square", "log")},
        Table(
            "Mean squares by hidden layer",
            ("Hidden layer", *(key.replace("_", ", ") for key in _SIGNALS)),
            [
                (int(layer), *row)
                for layer, row in zip(
                    hidden, np.stack([data[k].values for k in _SIGNALS], 1).tolist(), strict=True
                )
            ],
        ),
        {"yaxis": "Logarithmic size"},
        wide=True,
    )
