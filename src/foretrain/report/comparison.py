"""The picture of a comparison: measured against theory layer by layer, the limit of infinite width, the scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from foretrain.support.drawing import FAINT, INK, PALETTE, new_figure

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TITLES = {
    "K": r"kernel $K$",
    "V": r"four-point vertex $V$",
    "G1": r"$1/n$ shift of the metric $G^{\{1\}}$",
    "three_point": "three-point function",
    "kurtosis": "excess of the fourth moment",
    "Theta": r"tangent kernel $\Theta$",
    "H1": r"$1/n$ shift of the NTK $H^{\{1\}}$",
    "D": r"covariance $D$ of $zz$ and NTK",
    "F": r"cross covariance $F$ of $zz$ and NTK",
    "A": r"covariance $A$ of NTKs",
    "B": r"cross covariance $B$ of NTKs",
    "P": r"dNTK and preactivation $P$",
    "Q": r"dNTK and preactivation $Q$",
    "R": r"first ddNTK $R$",
    "S": r"second ddNTK $S$",
    "T": r"second ddNTK $T$",
    "U": r"second ddNTK $U$",
}
_OF_PAIRS = ("V", "A")  # symmetric in both pairs of indices and under their exchange
_MOST_CURVES = len(PALETTE)


def comparison_figure(datasets: Sequence[xarray.Dataset]) -> Figure:
    """One row of panels for each activation; the datasets are those of ``Comparison.to_dataset``."""
    observables = list(dict.fromkeys(name for data in datasets for name in data.observable.values.tolist()))
    columns = len(observables) + 2
    title = "Random networks (points) and theory (lines)"
    figure, panels = new_figure(title, len(datasets), columns, (3.7 * columns, 3.3 * len(datasets) + 0.4))
    for row, data in enumerate(datasets):
        own = panels[row * columns : (row + 1) * columns]
        for panel, name in zip(own, observables):
            _draw_layers(panel, _of(data, name), name)
        own[0].set_ylabel(data.attrs["activation"], fontsize=12, fontweight="bold")
        _draw_limits(own[-2], data)
        _draw_scores(own[-1], data)
    return figure


def _of(data: xarray.Dataset, observable: str) -> xarray.Dataset:
    return data.isel(entry=data.observable.values == observable)


def _curves(data: xarray.Dataset) -> list[tuple[str, xarray.Dataset]]:
    """The first few index sets, each with its entries at all layers."""
    names = list(dict.fromkeys(data.inputs.values.tolist()))[:_MOST_CURVES]
    return [(name, data.isel(entry=data.inputs.values == name)) for name in names]


def _draw_layers(panel: Axes, data: xarray.Dataset, name: str) -> None:
    if not data.sizes["entry"]:
        panel.set_axis_off()
        return
    for color, (inputs, own) in zip(PALETTE, _curves(data)):
        panel.plot(own.layer, own.theory, color=color, linewidth=1.3)
        panel.errorbar(
            own.layer,
            own.limit,
            own.standard_error,
            fmt="o",
            color=color,
            markersize=4.5,
            markerfacecolor="white",
            label=_index_text(name, inputs),
        )
    panel.axhline(0, color=FAINT, linewidth=0.8, zorder=0)
    panel.set_title(f"{_TITLES[name]}, $n\\to\\infty$", fontsize=11)
    panel.set_xlabel("layer", fontsize=9)
    layers = np.unique(data.layer)
    panel.set_xticks(layers[:: max(1, len(layers) // 8)])
    panel.legend(frameon=False, fontsize=7.5, handletextpad=0.1, labelspacing=0.25)


def _index_text(observable: str, inputs: str) -> str:
    numbers = inputs.split()
    if observable in _OF_PAIRS:
        return f"({''.join(numbers[:2])})({''.join(numbers[2:])})"
    return "".join(numbers)


def _draw_limits(panel: Axes, data: xarray.Dataset) -> None:
    """The last layer against 1/n: measured over theory, the quadratic, and its value at infinite width."""
    chosen = "V" if "V" in data.observable.values else str(data.observable.values[0])
    last = _of(data, chosen)
    last = last.isel(entry=(last.layer.values == last.layer.values.max()) & np.isfinite(last.z.values))
    last = last.isel(entry=np.argsort(-np.abs(last.theory.values / last.standard_error.values))[:3])
    if not last.sizes["entry"]:
        panel.set_axis_off()
        return
    grid = np.linspace(0, float(data.inverse_width.max()) * 1.05, 60)
    for color, column in zip(PALETTE, range(last.sizes["entry"])):
        one = last.isel(entry=column)
        size = float(one.theory)
        fit = np.polyfit(one.inverse_width, one.measured / size, 2, w=1 / one.measured_error)
        panel.plot(grid, np.polyval(fit, grid), color=color, linewidth=1.2)
        panel.errorbar(
            one.inverse_width,
            one.measured / size,
            one.measured_error / abs(size),
            fmt="o",
            color=color,
            markersize=4.5,
            markerfacecolor="white",
            label=_index_text(chosen, str(one.inputs.values)),
        )
        panel.errorbar(
            [0.04 * grid[-1] * column],
            [float(one.limit) / size],
            [float(one.standard_error) / abs(size)],
            fmt="D",
            color=color,
            markersize=5,
            capsize=2,
        )
    panel.axhline(1, color=INK, linewidth=1, linestyle="--")
    panel.set_title(f"{chosen} over theory, layer {int(last.layer[0])}, against $1/n$", fontsize=11)
    panel.set_xticks([0, *data.inverse_width.values], ["∞", *(f"n = {n}" for n in data.width.values)])
    panel.tick_params(axis="x", labelsize=7.5)
    panel.legend(frameon=False, fontsize=7.5, handletextpad=0.1, labelspacing=0.25)


def _draw_scores(panel: Axes, data: xarray.Dataset) -> None:
    """Histogram of the independent scores against the standard normal density."""
    scores, bound = data.independent_score.values, float(data.attrs["bound"])
    edges = np.linspace(-bound, bound, 17)
    panel.hist(np.clip(scores, -bound, bound), list(edges), density=True, color=PALETTE[4], edgecolor="white")
    grid = np.linspace(-bound, bound, 201)
    panel.plot(grid, np.exp(-0.5 * grid**2) / np.sqrt(2 * np.pi), color=INK, linewidth=1.6)
    panel.set_title(f"{scores.size} independent z-scores", fontsize=11)
    panel.set_xlabel("(measured − theory) / standard error", fontsize=9)
    word = "agrees" if data.attrs["agrees"] else "does NOT agree"
    note = f"{word}\nrms {data.attrs['rms_z']:.2f}\nlargest {data.attrs['largest_z']:.2f}\nbound {bound:.2f}"
    panel.text(0.03, 0.97, note, transform=panel.transAxes, va="top", fontsize=9)
