"""The picture of a comparison with trained networks: outputs, deviations over the width, and the limit."""

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


def draw_trained(datasets: Sequence[xarray.Dataset]) -> Figure:
    """One row of panels for each activation; the datasets are those of ``TrainedComparison.to_dataset``."""
    figure, panels = new_figure(
        "Trained networks beside the prediction", len(datasets), 3, (15.5, 4.3 * len(datasets) + 0.5)
    )
    for row, data in enumerate(datasets):
        first, second, third = panels[3 * row : 3 * row + 3]
        on_a_line = data.sizes["feature"] == 1 and data.sizes["test"] > 2 and data.sizes["output"] == 1
        (draw_bands if on_a_line else draw_outputs)(first, data)
        first.set_ylabel(f"{data.attrs['activation']}: output")
        draw_sizes(second, data)
        _draw_limits(third, data)
    return figure


def _draw_limits(panel: Axes, data: xarray.Dataset) -> None:
    """z-scores of the limit of infinite width, entry by entry, and the bound on the largest."""
    bound, place = float(data.attrs["bound"]), 0
    for color, kind in zip(PALETTE, data.kind.values.tolist()):
        z = data.z.values[data.observable.values == kind]
        known = np.isfinite(z)
        panel.plot(
            np.arange(place, place + z.size)[known], z[known], "o", color=color, markersize=4, label=kind
        )
        place += z.size
    for level in (-bound, bound):
        panel.axhline(level, color=INK, linewidth=1, linestyle="--")
    panel.axhline(0, color=FAINT, linewidth=0.8)
    panel.set(xlabel="entry", ylabel="(limit − prediction) / standard error")
    panel.set_ylim(-1.5 * bound, 1.9 * bound)
    word = "agrees" if data.attrs["agrees"] else "does NOT agree"
    panel.set_title(f"limit of infinite width: {word}, rms z {data.attrs['rms_z']:.2f}", fontsize=11)
    panel.legend(frameon=False, fontsize=8.5, ncols=3, loc="upper left")
