"""What pictures of experiments have in common: colours along a dimension, means, guides, z-scores, limits in 1/n."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import xarray
from numpy.typing import NDArray

from foretrain.compare.judging.agreement import largest_score_allowed
from foretrain.support.answers import FAINT, INK, PALETTE, SKY, Figure, Panel


def coloured(data: xarray.Dataset, dim: str) -> Iterator[tuple[Any, xarray.Dataset, str]]:
    """Every place along a dimension: its label, what the data hold there, and its colour."""
    for color, label in zip(PALETTE, data[dim].values.tolist()):
        yield label, data.sel({dim: label}), color


def draw_means(
    panel: Panel,
    x: Any,
    values: xarray.DataArray,
    over: str,
    style: str,
    label: str,
    color: str,
    least: float | None = None,
) -> None:
    """Draw means over a dimension, those below ``least`` there, with their standard errors."""
    error = values.std(over, ddof=1) / np.sqrt(values.sizes[over])
    panel.curve(x, values.mean(over).clip(min=least), style, label, color, error=error, size=4)


def draw_guide(panel: Panel, x: Any, start: float, power: float, text: str, place: int, **note: Any) -> None:
    """Draw a faint line of a power of x from ``start`` on, with words at one of its places."""
    y = start * (x / x[0]) ** power
    panel.curve(x, y, "--", "", FAINT, width=1)
    panel.note(x[place], y[place], text, FAINT, **note)


def add_scores(figure: Figure, scores: NDArray[np.float64], title: str, label: str = "") -> None:
    """Add a panel with the histogram of z-scores, those beyond the 1 % bound at its place, and the normal law."""
    panel = figure.panel(title, x="z: (measured − theory) / standard error", y="density")
    bound = largest_score_allowed(scores.size)
    grid = np.linspace(-bound, bound, 201)
    panel.histogram(scores, np.linspace(-bound, bound, 27), label, SKY)
    panel.curve(grid, np.exp(-0.5 * grid**2) / np.sqrt(2 * np.pi), "-", "N(0, 1)", INK)


def draw_limit(
    panel: Panel, at: xarray.Dataset, label: str, color: str, *, unit: float = 1.0, shift: float = 0.0
) -> None:
    """Draw one measured number against 1/n, and where the widths lead as a diamond at 1/n = 0.

    ``at`` holds it under the names of ``limits_of_batches``; ``unit`` divides it. ``shift`` moves it aside by so many
    times the largest 1/n, so that numbers that are nearly equal can be told apart.
    """
    inverse = 1 / at.width.values
    aside = shift * inverse.max()
    points, error = at.measured / unit, at.measured_error / abs(unit)
    panel.curve(inverse + aside, points, "o", label, color, error=error, hollow=True)
    panel.curve([aside], at.limit / unit, "D", "", color, error=at.standard_error / abs(unit))
