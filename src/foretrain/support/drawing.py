"""One look for all pictures: colours that colour-blind readers can tell apart, quiet axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PURPLE, SKY, RED = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED)
INK, FAINT = "#222222", "#9a9a9a"


def new_figure(title: str, rows: int, columns: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """An empty figure with a title, and its panels row by row."""
    figure = _titled(title, size)
    panels: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for panel in panels:
        _quiet(panel)
    return figure, panels


def new_mosaic(
    title: str, layout: list[Any], heights: list[float], size: tuple[float, float]
) -> tuple[Figure, dict[str, Axes]]:
    """An empty figure whose panels have names and may span rows; ``heights`` are those of the rows."""
    figure = _titled(title, size)
    panels: dict[str, Axes] = figure.subplot_mosaic(layout, height_ratios=heights)
    for panel in panels.values():
        _quiet(panel)
    return figure, panels


def _titled(title: str, size: tuple[float, float]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(title, fontsize=13, fontweight="bold", color=INK)
    return figure


def _quiet(panel: Axes) -> None:
    """Thin axes on two sides and a faint grid behind the data."""
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines[["left", "bottom"]].set_color(FAINT)
    panel.grid(True, color="#e6e6e6", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.tick_params(labelsize=9, color=FAINT)
