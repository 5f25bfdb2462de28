"""Pictures of comparisons at initialisation: layer by layer, the limit of infinite width, and the scores."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from foretrain.support.answers import INK, PALETTE, SKY, Axis, Figure
from foretrain.theory.tensors import TENSORS

if TYPE_CHECKING:
    import xarray

_TITLES = {
    **{name: tensor.title for name, tensor in TENSORS.items()},
    "kurtosis": "excess of the fourth moment",
}
_SHOWN_LIMITS = 3


def comparison_figure(datasets: Sequence[xarray.Dataset]) -> Figure:
    """One row of panels for each activation; the datasets are those of ``Comparison.to_dataset``."""
    figure, ends = Figure("Random networks (points) and theory (lines)"), [0]
    for data in datasets:
        for name in dict.fromkeys(data.observable.values.tolist()):
            _add_layers(figure, data.isel(entry=data.observable.values == name), name)
        figure.panels[ends[-1]].y = Axis(data.attrs["activation"])
        _add_limits(figure, data)
        _add_scores(figure, data)
        ends.append(len(figure.panels))
    letters = [chr(ord("A") + place) for place in range(ends[-1])]
    rows = ["".join(letters[start:end]) for start, end in pairwise(ends)]
    columns = max(map(len, rows))
    figure.layout = " ".join(row.ljust(columns, ".") for row in rows)
    figure.size = (3.7 * columns, 3.4 * len(rows) + 0.4)
    return figure


def _add_layers(figure: Figure, data: xarray.Dataset, name: str) -> None:
    """The first few index sets of an observable over the layers."""
    panel = figure.panel(f"{_TITLES[name]}, $n\\to\\infty$", x=Axis("layer", whole=True))
    panel.level(y=0)
    for inputs, color in zip(dict.fromkeys(data.inputs.values.tolist()), PALETTE):
        own = data.isel(entry=data.inputs.values == inputs)
        label, error = _index_text(name, inputs), own.standard_error
        panel.curve(own.layer, own.theory, "-", color=color, width=1.3)
        panel.curve(own.layer, own.limit, "o", label, color, error=error, hollow=True, size=4.5)


def _index_text(observable: str, inputs: str) -> str:
    numbers = inputs.split()
    if observable in ("V", "A"):  # symmetric in both pairs of indices and under their exchange
        return f"({''.join(numbers[:2])})({''.join(numbers[2:])})"
    return "".join(numbers)


def _add_limits(figure: Figure, data: xarray.Dataset) -> None:
    """The last layer against 1/n: measured over theory, the quadratic, and its value at infinite width."""
    chosen = "V" if "V" in data.observable.values else str(data.observable.values[0])
    own = (data.observable.values == chosen) & np.isfinite(data.z.values) & (data.theory.values != 0)
    if not own.any():
        return
    last = data.isel(entry=own)
    layer = int(last.layer.values.max())
    last = last.isel(entry=last.layer.values == layer)
    last = last.isel(
        entry=np.argsort(-np.abs(last.theory.values / last.standard_error.values))[:_SHOWN_LIMITS]
    )
    names = {x: f"n = {n}" for x, n in zip(data.inverse_width.values.tolist(), data.width.values.tolist())}
    title = f"{chosen} over theory, layer {layer}, against $1/n$"
    panel = figure.panel(title, x=Axis(ticks={0.0: "∞", **names}))
    panel.level(y=1, color=INK, dash="--")
    grid = np.linspace(0, 1.05 * max(names), 60)
    for place, color in zip(range(last.sizes["entry"]), PALETTE):
        one = last.isel(entry=place)
        size = float(one.theory)
        values, errors = one.measured.values / size, one.measured_error.values / abs(size)
        fit = np.polyfit(one.inverse_width, values, 2, w=1 / errors)
        label = _index_text(chosen, str(one.inputs.values))
        panel.curve(grid, np.polyval(fit, grid), "-", color=color, width=1.2)
        panel.curve(one.inverse_width, values, "o", label, color, error=errors, hollow=True, size=4.5)
        limit, error = float(one.limit) / size, float(one.standard_error) / abs(size)
        panel.curve([0.04 * grid[-1] * place], [limit], "D", color=color, error=[error])


def _add_scores(figure: Figure, data: xarray.Dataset) -> None:
    """Histogram of the independent scores against the standard normal density."""
    scores, bound = data.independent_score.values, float(data.attrs["bound"])
    panel = figure.panel(f"{scores.size} independent z-scores", x="(measured − theory) / standard error")
    if scores.size:
        edges = np.linspace(-bound, bound, 17)
        density, _ = np.histogram(np.clip(scores, -bound, bound), edges, density=True)
        panel.bars((edges[1:] + edges[:-1]) / 2, density, color=SKY, width=0.95 * (edges[1] - edges[0]))
    grid = np.linspace(-bound, bound, 201)
    panel.curve(grid, np.exp(-0.5 * grid**2) / np.sqrt(2 * np.pi), "-", color=INK)
    word = "agrees" if data.attrs["agrees"] else "does NOT agree"
    note = f"{word}\nrms {data.attrs['rms_z']:.2f}\nlargest {data.attrs['largest_z']:.2f}\nbound {bound:.2f}"
    panel.note(0.03, 0.97, note, above=False, fraction=True)
