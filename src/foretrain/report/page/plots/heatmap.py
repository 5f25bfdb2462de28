"""Matrices as pictures."""

from __future__ import annotations

from typing import Any

import numpy as np

from foretrain.report.page.plots.plot import Trace

_SIGNED = [[0, "var(--low)"], [0.5, "var(--middle)"], [1, "var(--high)"]]
_POSITIVE = [[0, "var(--middle)"], [1, "var(--low)"]]


def heatmap(x: Any, y: Any, z: Any, title: str, hover: str) -> Trace:
    """Blue for negative and orange for positive values, the same distance from zero equally strong; one colour where
    nothing is negative."""
    values = np.asarray(z, dtype=float)
    known = values[np.isfinite(values)]
    size = float(np.abs(known).max()) if len(known) and np.abs(known).max() > 0 else 1.0
    signed = bool(len(known)) and known.min() < -1e-6 * size
    return {
        "type": "heatmap",
        "name": title,
        "x": x,
        "y": y,
        "z": np.where(np.abs(values) < 1e-5 * size, 0.0, values),
        "zmin": -size if signed else 0.0,
        "zmax": size,
        "colorscale": _SIGNED if signed else _POSITIVE,
        "colorbar": {"title": {"text": title, "side": "right"}, "thickness": 12, "outlinewidth": 0},
        "hovertemplate": f"{hover}<extra></extra>",
    }
