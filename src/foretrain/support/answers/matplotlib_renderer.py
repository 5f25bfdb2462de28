"""Pictures drawn by matplotlib: for papers, for ``.plot()``, and as the still picture of a page."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from foretrain.support.answers.figure import (
    BLUE,
    FAINT,
    INK,
    ORANGE,
    Axis,
    Bars,
    Contours,
    Curve,
    Figure,
    HeatMap,
    Level,
    Mark,
    Note,
    Panel,
    Region,
)
from foretrain.support.atomic import new_file
from foretrain.support.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".pdf", ".svg")
_NAME = 40  # letters of a name at a tick
_NAME_GAP = 4  # pixels between names under an axis
_LETTERS = 10  # of a title in an inch
_CAPTION = 72  # letters of a line of a panel's caption
_MANY_NAMES = 8  # letters under an axis: more of them are turned


def draw(figure: Figure, ax: Axes | None = None) -> Any:
    """Draw all panels and return matplotlib's figure; with ``ax``, draw the first panel there and return ``ax``."""
    colors = figure.colors()
    figure = figure.with_words(_legible)
    if ax is not None:
        _draw_panel(ax, figure.panels[0], {place: c for (panel, place), c in colors.items() if panel == 0})
        _finish_legend(ax, figure.panels[0])
        return ax
    from matplotlib.figure import Figure as Drawing

    drawing = Drawing(figsize=figure.inches(), layout="constrained")
    if figure.title:
        title = _broken(figure.title, _LETTERS * figure.inches()[0])
        drawing.suptitle(title, fontsize=13, fontweight="bold", color=INK)
    rows = figure.rows()
    heights = list(figure.heights) or [1.0] * len(rows)
    grid = drawing.subplot_mosaic("\n".join(rows), height_ratios=heights)
    axes = [grid[letter] for letter, _ in figure.places()]
    for number, (letter, panel) in enumerate(figure.places()):
        own = {place: color for (owner, place), color in colors.items() if owner == number}
        _draw_panel(grid[letter], panel, own)
    for letter in set(grid) - {letter for letter, _ in figure.places()}:
        grid[letter].set_axis_off()
    if figure.caption:
        drawing.supxlabel(figure.caption, fontsize=9, color=INK)
    drawing.draw_without_rendering()  # so that places on the paper are known
    for axis, panel in zip(axes, figure.panels):
        if panel.x.ticks is not None:  # where names under the axis would touch each other, they are turned
            names = [label for label in axis.get_xticklabels() if label.get_text()]
            boxes = sorted((box.x0, box.x1) for box in (name.get_window_extent() for name in names))
            if any(right[0] - left[1] < _NAME_GAP for left, right in pairwise(boxes)):
                for name in names:
                    name.set(rotation=35, ha="right", rotation_mode="anchor")
    if figure.legend:
        entries = _legend_entries(axes)
        for axis in axes:
            legend = axis.get_legend()
            if legend is not None:
                legend.remove()
        look: dict[str, Any] = {"loc": "outside lower center", "frameon": False, "fontsize": 9}
        drawing.legend(entries.values(), entries.keys(), ncols=min(4, max(1, len(entries))), **look)
    else:
        for axis, panel in zip(axes, figure.panels):
            _finish_legend(axis, panel)
    return drawing


def write(figure: Figure, path: Path, *, overwrite: bool = True) -> None:
    """Draw to a file whose ending names the format."""
    refuse_unknown_picture(path)
    with new_file(path, overwrite=overwrite) as partial:
        draw(figure).savefig(partial, format=path.suffix.lower().lstrip("."), bbox_inches="tight")


def refuse_unknown_picture(path: Path) -> None:
    """Raise if the file's name does not end like a picture."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(
            f"`path|--plot` {path} does not say what kind of picture to draw: end it in {', '.join(SUFFIXES)}."
        )


@cache
def _legible(text: str) -> str:
    """Words that matplotlib can set: no control characters, and $ written out where it starts no formula."""
    from matplotlib.mathtext import MathTextParser

    text = re.sub(r"[\x00-\x09\x0b-\x1f\x7f]", " ", text)
    if "$" in text:
        try:
            for line in text.split("\n"):  # as matplotlib reads it
                MathTextParser("path").parse(line)
        except ValueError:
            return text.replace("$", r"\$")
    return text


def _broken(text: str, letters: float) -> str:
    """A title in lines of so many letters; formulas are not broken."""
    lines = text.split("\n")
    return "\n".join(line if "$" in line else "\n".join(wrap(line, max(20, int(letters)))) for line in lines)


def _draw_panel(axes: Axes, panel: Panel, colors: Mapping[int, str]) -> None:
    # Thin axes on two sides and a faint grid behind the data.
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.grid(panel.grid, color="#e6e6e6", linewidth=0.6) if panel.grid else axes.grid(False)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9, color=FAINT)
    for which, axis in (("x", panel.x), ("y", panel.y)):
        options = {"linthresh": axis.threshold, "linscale": 0.3} if axis.scale == "symlog" else {}
        getattr(axes, f"set_{which}scale")(axis.scale, **options)
    for place, mark in enumerate(panel.marks):
        _draw_mark(axes, mark, colors.get(place, INK))
    if panel.equal:
        axes.set_aspect("equal")
    for which, axis in (("x", panel.x), ("y", panel.y)):
        _set_axis(axes, which, axis)
    if panel.bare:
        axes.set_axis_off()
    if panel.title:
        width = axes.get_window_extent().width / axes.figure.dpi
        axes.set_title(_broken(panel.title, _LETTERS * width), fontsize=11)
    if panel.caption:
        axes.set_xlabel("\n".join([panel.x.label, *wrap(panel.caption, _CAPTION)]), fontsize=10)
    entries = _legend_entries([axes]) if panel.legend else {}
    if entries:
        look: dict[str, Any] = {"frameon": False, "fontsize": 9, "ncols": panel.legend_columns}
        if panel.legend == "right":
            look |= {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "borderaxespad": 0.0}
        elif panel.legend == "below":
            look |= {"loc": "upper center", "bbox_to_anchor": (0.5, -0.18)}
        else:
            look |= {"loc": panel.legend}
        axes.legend(entries.values(), entries.keys(), **look)


def _set_axis(axes: Axes, which: str, axis: Axis) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    getattr(axes, f"set_{which}label")(_broken(axis.label, _CAPTION), fontsize=10)
    drawn = getattr(axes, f"{which}axis")
    if axis.ticks is not None:
        texts = None
        if isinstance(axis.ticks, Mapping):
            texts = [
                f"{name[:_NAME]}..." if len(name) > _NAME and "$" not in name else name
                for name in axis.ticks.values()
            ]
        places = list(axis.ticks)
        long = which == "x" and texts is not None and sum(map(len, texts)) > 30 + 6 * _MANY_NAMES
        turn: dict[str, Any] = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if long else {}
        getattr(axes, f"set_{which}ticks")(places, texts, **turn)
        drawn.set_tick_params(which="minor", length=0)
        drawn.set_minor_formatter(NullFormatter())
        if texts is None:
            drawn.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    elif axis.whole:
        drawn.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    low, high = getattr(axes, f"get_{which}lim")()
    if axis.whole and abs(high - low) < 1:  # one place alone
        low, high = round((low + high) / 2) - 0.5, round((low + high) / 2) + 0.5
        getattr(axes, f"set_{which}lim")(low, high)
    if axis.room:
        high = _beyond(low, high, axis)
    low, high = (high, low) if axis.reverse and low < high else (low, high)
    low, high = (axis.low if axis.low is not None else low), (axis.high if axis.high is not None else high)
    if axis.reverse and axis.low is not None and axis.high is not None:
        low, high = axis.high, axis.low
    if (axis.room or axis.reverse or axis.low is not None or axis.high is not None) and low != high:
        getattr(axes, f"set_{which}lim")(low, high)
    if axis.scale == "log" and axis.ticks is None and 0 < abs(np.log10(high / low)) < 2.0:
        # Less than two powers of ten: plain numbers at 1, 2 and 5 say more than one power.
        drawn.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
        drawn.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        drawn.set_minor_formatter(NullFormatter())


def _beyond(low: float, high: float, axis: Axis) -> float:
    if axis.scale == "log":
        return float(high * (high / low) ** axis.room)
    return high + axis.room * (high - low)


def _draw_mark(axes: Axes, mark: Mark, color: str) -> None:
    match mark:
        case Curve():
            _draw_curve(axes, mark, mark.color or color)
        case Bars():
            _draw_bars(axes, mark, mark.color or color)
        case HeatMap():
            _draw_heat_map(axes, mark)
        case Contours():
            lines = axes.contour(
                mark.x,
                mark.y,
                mark.values,
                mark.levels,
                colors=mark.color,
                linewidths=mark.width,
                linestyles=mark.dash,
            )
            if mark.texts:
                words = dict(zip(mark.levels, mark.texts, strict=True))
                axes.clabel(
                    lines, fmt=lambda value: words[min(words, key=lambda v: abs(v - value))], fontsize=7
                )
        case Region():
            tone, label = mark.color or color, mark.label or None
            look: dict[str, Any] = {"color": tone, "alpha": mark.alpha, "linewidth": 0, "label": label}
            if mark.hatched:
                look = {"facecolor": "#f1f1f1", "edgecolor": tone, "hatch": "////", "linewidth": 0.0}
                look |= {"zorder": -1, "label": label}
            if mark.x is None:
                axes.axhspan(mark.low, mark.high, **look)
            elif mark.low is None:
                axes.axvspan(*mark.x, **look)
            else:
                axes.fill_between(mark.x, mark.low, mark.high, **look)
        case Level():
            style: dict[str, Any] = {
                "color": mark.color,
                "linestyle": mark.dash,
                "linewidth": mark.width,
                "label": mark.label or None,
                "zorder": 1.5,
            }
            if mark.y is not None:
                axes.axhline(mark.y, **style)
            if mark.x is not None:
                axes.axvline(mark.x, **style)
        case Note():
            _draw_note(axes, mark)


def _draw_curve(axes: Axes, mark: Curve, color: str) -> None:
    if mark.band is not None:
        low, high = mark.band
        axes.fill_between(mark.x, low, high, color=color, alpha=0.2 * mark.alpha, linewidth=0)
    look: dict[str, Any] = {
        "color": color,
        "marker": mark.marker or None,
        "linestyle": mark.dash or "none",
        "linewidth": mark.width,
        "markersize": mark.size,
        "alpha": mark.alpha,
        "label": mark.label or None,
    }
    if mark.hollow:
        look["markerfacecolor"] = "white"
    if mark.steps:
        look["drawstyle"] = "steps-post"
    if mark.error is None and mark.x_error is None:
        axes.plot(mark.x, mark.y, **look)
    else:
        axes.errorbar(mark.x, mark.y, mark.error, mark.x_error, elinewidth=1.0, capsize=2, **look)


def _draw_bars(axes: Axes, mark: Bars, color: Any) -> None:
    error = {"xerr" if mark.horizontal else "yerr": mark.error} if mark.error is not None else {}
    look = {"color": color, "alpha": mark.alpha, "label": mark.label or None, "ecolor": INK, **error}
    if mark.horizontal:
        axes.barh(mark.places, mark.values, mark.width, mark.base, **look)
    else:
        axes.bar(mark.places, mark.values, mark.width, mark.base, **look)
    for place, end, text in zip(mark.places, np.add(mark.base, mark.values), mark.texts):
        spot, shift = ((end, place), (3, 0)) if mark.horizontal else ((place, end), (0, 2))
        align: dict[str, Any] = {"va": "center"} if mark.horizontal else {"ha": "center", "va": "bottom"}
        axes.annotate(text, spot, xytext=shift, textcoords="offset points", fontsize=8, **align)


def _draw_heat_map(axes: Axes, mark: HeatMap) -> None:
    from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize, TwoSlopeNorm

    colors: Any = "cividis"
    norm = LogNorm(mark.low, mark.high) if mark.logarithmic else Normalize(mark.low, mark.high)
    if mark.diverging:
        colors = LinearSegmentedColormap.from_list("diverging", [BLUE, "#ffffff", ORANGE])
        norm = TwoSlopeNorm(mark.middle, mark.low, mark.high)
    smooth = mark.smooth and min(mark.values.shape) > 1
    shading: Literal["gouraud", "flat"] = "gouraud" if smooth else "flat"
    places = (mark.x, mark.y) if smooth else (_edges(mark.x), _edges(mark.y))
    mesh = axes.pcolormesh(
        *places, mark.values, cmap=colors, norm=norm, shading=shading, rasterized=True, zorder=0
    )
    if mark.texts is not None:
        for y, row in zip(mark.y, mark.texts):
            for x, text in zip(mark.x, row):
                axes.text(x, y, text, ha="center", va="center", fontsize=8, color=INK)
    if mark.label:
        bar = axes.figure.colorbar(mesh, ax=axes, pad=0.02, aspect=28)
        if mark.ticks is not None:
            bar.set_ticks(list(mark.ticks), labels=list(mark.ticks.values()))
        bar.ax.tick_params(labelsize=8)
        bar.set_label(mark.label, fontsize=9)
        bar.outline.set_visible(False)


def _edges(places: Any) -> Any:
    """Where cells around places end: halfway to their neighbours; a cell alone is one wide."""
    steps = np.diff(places) if len(places) > 1 else np.ones(1)
    return np.concatenate(
        [[places[0] - steps[0] / 2], places[:-1] + np.diff(places) / 2, [places[-1] + steps[-1] / 2]]
    )


def _draw_note(axes: Axes, mark: Note) -> None:
    upright = {None: "center", True: "bottom", False: "top"}[mark.above]
    aside = {"left": 4, "center": 0, "right": -4}[mark.align] if not mark.fraction else 0
    raised = {None: 0, True: 3, False: -3}[mark.above] if not mark.fraction else 0
    axes.annotate(
        mark.text,
        (mark.x, mark.y),
        xycoords="axes fraction" if mark.fraction else "data",
        xytext=(aside, raised),
        textcoords="offset points",
        ha=mark.align,
        va=upright,
        color=mark.color,
        fontsize=mark.size,
        annotation_clip=False,
    )


def _finish_legend(axes: Axes, panel: Panel) -> None:
    """Where a legend inside the panel would cover data, the axis grows upwards until it does not."""
    legend = axes.get_legend()
    if legend is None or panel.legend in ("right", "below") or axes.figure is None:
        return
    box = legend.get_window_extent()
    points = _points_on_paper(axes)
    x, y = points.T
    covered = (x > box.x0) & (x < box.x1) & (y > box.y0) & (y < box.y1)
    if not covered.any() or panel.y.high is not None:
        return
    low, high = axes.get_ylim()
    share = min(0.8, 1.15 * box.height / axes.get_window_extent().height)
    room = share / (1 - share)
    grown = _beyond(low, high, Axis(scale=panel.y.scale, room=room)) if low < high else high
    axes.set_ylim(low, grown)
    # On the side where what lies highest is not; a point is covered, so that there are some.
    middle = axes.get_window_extent().x0 + axes.get_window_extent().width / 2
    left, right = y[x < middle], y[x >= middle]
    left_is_freer = not len(left) or (len(right) > 0 and left.max() <= right.max())
    legend.set_loc("upper left" if left_is_freer else "upper right")


def _points_on_paper(axes: Axes) -> Any:
    """All points of lines and the ends of bars, in pixels."""
    from matplotlib.patches import Rectangle

    lines: list[Any] = [
        (line.get_transform(), line.get_path().interpolated(8).vertices) for line in axes.lines
    ]
    bars = [bar for bar in axes.patches if isinstance(bar, Rectangle)]
    tops = [(bar.get_x() + bar.get_width() / 2, bar.get_y() + bar.get_height()) for bar in bars]
    places = [*lines, (axes.transData, tops)]
    paper = [
        transform.transform(np.asarray(points, dtype=float)) for transform, points in places if len(points)
    ]
    every = np.concatenate([*paper, np.zeros((0, 2))])
    return every[np.isfinite(every).all(axis=1)]


def _legend_entries(axes: list[Axes]) -> dict[str, Any]:
    """Labels with what they stand for: the first of equal ones."""
    pairs = [pair for axis in axes for pair in zip(*axis.get_legend_handles_labels(), strict=True)]
    first = {label: handle for handle, label in reversed(pairs)}
    return {label: first[label] for _, label in pairs}
