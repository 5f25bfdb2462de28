"""Several matrices side by side in one picture."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrain.report.page.plots.heatmap import heatmap
from foretrain.report.page.plots.plot import Trace

Array = NDArray[np.float64]

_SMALL_FOLD = 49  # a list of fewer numbers is not folded into a square


def as_matrices(values: Array) -> Array:
    """(mode, rows, columns): leading axes are averaged, and a list whose length is a square is folded."""
    while values.ndim > 3:
        values = values.mean(1)
    if values.ndim == 3:
        return values
    side = round(values.shape[1] ** 0.5)
    if side * side == values.shape[1] >= _SMALL_FOLD:
        return values.reshape(len(values), side, side)
    return values[:, None, :]


def tiled(
    matrices: Array, names: list[str], title: str, across: int
) -> tuple[Trace, list[dict[str, Any]], tuple[int, int]]:
    """One heatmap of all, each with the same largest colour; labels above them, and the size of the whole."""
    down = -(-len(matrices) // across)
    _, rows, columns = matrices.shape
    gap = max(1, round(0.1 * columns))
    head = max(1, round(0.25 * rows))
    shape = (down * (rows + head), across * (columns + gap) - gap)
    z, text = np.full(shape, np.nan), np.full(shape, "", dtype=object)
    labels = []
    for place, (matrix, name) in enumerate(zip(matrices, names, strict=True)):
        top, left = (place // across) * (rows + head) + head, (place % across) * (columns + gap)
        scale = float(np.abs(matrix).max()) or 1.0
        z[top : top + rows, left : left + columns] = matrix / scale
        text[top : top + rows, left : left + columns] = name
        labels.append(_label(name, left + (columns - 1) / 2, top - 0.6))
    trace = heatmap(np.arange(shape[1]), np.arange(shape[0]), z, title, "%{text}: %{z:.3g}")
    return trace | {"text": text, "hoverongaps": False, "showscale": False}, labels, shape


def _label(text: str, x: float, y: float) -> dict[str, Any]:
    return {"text": text, "x": x, "y": y, "showarrow": False, "yanchor": "bottom", "font": {"size": 11}}
