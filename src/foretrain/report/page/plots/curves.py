"""Loss over the steps of a few trainings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from foretrain.report.page.plots.plot import Plot, axis
from foretrain.report.page.plots.series import line
from foretrain.report.page.table import Table


def loss_curves(name: str, title: str, caption: str, labels: Sequence[str], steps: Any, losses: Any) -> Plot:
    """One curve for each label; ``losses`` is (label, step)."""
    drawn = [
        line(label, steps, values, place=place, hovertemplate="%{y:.4g}")
        for place, (label, values) in enumerate(zip(labels, losses, strict=True))
    ]
    rows = [(step, *values) for step, values in zip(steps.tolist(), losses.T.tolist(), strict=True)]
    return Plot(
        name,
        title,
        caption,
        drawn,
        {"xaxis": axis("step"), "yaxis": axis("loss", scale_for(losses)), "hovermode": "x unified"},
        Table("Loss by step", ("Step", *labels), rows),
        {"yaxis": "Logarithmic loss"},
    )


def scale_for(values: Any) -> str:
    """Logarithmic where positive values differ by more than a factor of three."""
    known = np.asarray(values, dtype=float)
    known = known[np.isfinite(known) & (known > 0)]
    return "log" if len(known) and known.max() > 3 * known.min() else "linear"
