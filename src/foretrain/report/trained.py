"""Pictures of comparisons with trained networks: outputs, deviations over the width, and the limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from foretrain.experiments.effective_theory.trained_ensembles.drawing import (
    draw_bands,
    draw_outputs,
    draw_sizes,
)
from foretrain.support.drawing import FAINT, INK, PALETTE, new_figure

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def trained_figure(datasets: Sequence[xarray.Dataset]) -> Figure:
    """One row of panels for each activation; the datasets are those of ``TrainedComparison.to_dataset``."""
    figure, panels = _rows_of_panels("Trained networks beside the prediction", len(datasets))
    for data, (first, second, third) in zip(datasets, panels, strict=True):
        on_a_line = data.sizes["feature"] == 1 and data.sizes["test"] > 2 and data.sizes["output"] == 1
        (draw_bands if on_a_line else draw_outputs)(first, data)
        first.set_ylabel(f"{data.attrs['activation']}: output")
        draw_sizes(second, data)
        _draw_scores(third, data, "limit of infinite width")
    return figure


def finite_figure(datasets: Sequence[xarray.Dataset]) -> Figure:
    """One row of panels for each activation; the datasets are those of ``FiniteComparison.to_dataset``."""
    figure, panels = _rows_of_panels("Trained networks beside the theory of order 1/n", len(datasets))
    for data, (first, second, third) in zip(datasets, panels, strict=True):
        _draw_against_width(first, data)
        first.set_ylabel(f"{data.attrs['activation']}: n × change over theory")
        _draw_beside(second, data)
        _draw_scores(third, data, "order 1/n")
    return figure


def _rows_of_panels(title: str, rows: int) -> tuple[Figure, list[list[Axes]]]:
    figure, panels = new_figure(title, rows, 3, (15.5, 4.3 * rows + 0.5))
    return figure, [panels[3 * row : 3 * row + 3] for row in range(rows)]


def _by_observable(data: xarray.Dataset) -> list[tuple[str, str, xarray.Dataset]]:
    """Name, colour and entries of each."""
    names = list(dict.fromkeys(data.observable.values.tolist()))
    return [
        (name, PALETTE[place % len(PALETTE)], data.isel(entry=data.observable.values == name))
        for place, name in enumerate(names)
    ]


def _draw_against_width(panel: Axes, data: xarray.Dataset) -> None:
    """For each observable its clearest entry over 1/n, and where the widths lead."""
    inverse = 1 / data.width.values.astype(float)
    shift = 0.012 * inverse.max()
    for place, (_, color, own) in enumerate(_by_observable(data)):
        clear = np.abs(own.theory.values) / np.where(
            own.standard_error.values > 0, own.standard_error.values, np.inf
        )
        if not clear.any():
            continue
        one = own.isel(entry=int(np.argmax(clear)))
        size = float(one.theory)
        at = place * shift
        panel.errorbar(
            inverse + at,
            one.measured.values / size,
            one.measured_error.values / abs(size),
            fmt="o-",
            color=color,
            markersize=4.5,
            linewidth=0.9,
            label=str(one.entry.values),
        )
        panel.errorbar(
            [at],
            float(one.limit) / size,
            float(one.standard_error) / abs(size),
            fmt="D",
            color=color,
            capsize=3,
        )
    panel.axhline(1, color=INK, linewidth=1, linestyle="--", label="theory")
    panel.set_xticks([0, *inverse], ["0", *(f"1/{n}" for n in data.width.values)])
    panel.set_xlabel("1/n")
    panel.set_title("the clearest entry of each kind, and its limit (diamonds)", fontsize=11)
    panel.legend(frameon=False, fontsize=8)


def _draw_beside(panel: Axes, data: xarray.Dataset) -> None:
    """Limits of all entries against theory, each kind in units of its largest."""
    for name, color, own in _by_observable(data):
        size = float(np.abs(own.theory.values).max()) or float(np.abs(own.limit.values).max()) or 1.0
        panel.errorbar(
            own.theory.values / size,
            own.limit.values / size,
            own.standard_error.values / size,
            fmt="o",
            color=color,
            markersize=4,
            elinewidth=0.9,
            label=name,
        )
    panel.plot([-1, 1], [-1, 1], color=FAINT, linewidth=1, zorder=0)
    panel.set(xlabel="theory / largest of its kind", ylabel="networks, extrapolated to 1/n = 0")
    panel.set_title("n × what finite width changes, all entries", fontsize=11)
    panel.legend(frameon=False, fontsize=8.5, loc="upper left")


def _draw_scores(panel: Axes, data: xarray.Dataset, what: str) -> None:
    """z-scores of the limit, entry by entry, and the bound on the largest."""
    bound, place = float(data.attrs["bound"]), 0
    for name, color, own in _by_observable(data):
        z = own.z.values
        known = np.isfinite(z)
        panel.plot(
            np.arange(place, place + z.size)[known], z[known], "o", color=color, markersize=4, label=name
        )
        place += z.size
    for level in (-bound, bound):
        panel.axhline(level, color=INK, linewidth=1, linestyle="--")
    panel.axhline(0, color=FAINT, linewidth=0.8)
    panel.set(xlabel="entry", ylabel="(limit − prediction) / standard error")
    panel.set_ylim(-1.5 * bound, 1.9 * bound)
    word = "agrees" if data.attrs["agrees"] else "does NOT agree"
    panel.set_title(f"{what}: {word}, rms z {data.attrs['rms_z']:.2f}", fontsize=11)
    panel.legend(frameon=False, fontsize=8.5, ncols=3, loc="upper left")
