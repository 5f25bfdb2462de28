"""Pictures as data: what is drawn, on which axes, and what it means. No drawing library is needed to make one.

>>> figure = Figure("Loss of two networks", columns=2)
>>> panel = figure.panel("training", x="step", y=log("loss"))
>>> panel.curve([0, 1, 2], [1.0, 0.5, 0.2], "o-", "network 1", error=[0.1, 0.1, 0.1])
>>> panel.level(y=0.1, label="noise floor")

``matplotlib_renderer`` and ``plotly_renderer`` draw it; both read every field below.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

BLUE, ORANGE, GREEN, PURPLE, SKY, RED = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED)  # colour-blind readers can tell these apart
INK, FAINT = "#222222", "#9a9a9a"

Scale: TypeAlias = Literal["linear", "log", "symlog"]
Colour: TypeAlias = str | None  # None: the next colour of the palette, or that of the same label elsewhere
Values: TypeAlias = Any  # whatever numpy turns into an array
Array = NDArray[Any]


@dataclass(frozen=True)
class Axis:
    """An axis with its label, scale and limits; what is None is chosen by the renderer.

    ``ticks`` are places, or places with the words to write there. ``whole`` asks for ticks at whole numbers. ``room``
    adds so many times the range of the data above it, for words or a legend. ``threshold`` is where "symlog" turns
    linear.
    """

    label: str = ""
    scale: Scale = "linear"
    low: float | None = None
    high: float | None = None
    ticks: Sequence[float] | Mapping[float, str] | None = None
    reverse: bool = False
    whole: bool = False
    room: float = 0.0
    threshold: float = 1.0


def log(label: str = "", low: float | None = None, high: float | None = None, **options: Any) -> Axis:
    """A logarithmic axis."""
    return Axis(label, "log", low, high, **options)


def names_axis(names: Sequence[str], label: str = "", **options: Any) -> Axis:
    """An axis whose places 0, 1, 2, ... have names."""
    return Axis(label, ticks=dict(enumerate(map(str, names))), **options)


@dataclass(frozen=True)
class Curve:
    """Points, or the line through them, or both, with error bars or a band around them."""

    x: Array
    y: Array
    marker: str  # one of "os^Dvx+*._|", or none
    dash: str  # one of "-", "--", ":", "-.", or none
    label: str
    color: Colour
    error: Array | None  # half the length of error bars, or (2, N): below and above
    band: tuple[Array, Array] | None  # lower and upper end
    width: float
    size: float
    alpha: float
    hollow: bool  # markers are not filled
    x_error: Array | None
    steps: bool  # a staircase: each value holds from one place to the next


@dataclass(frozen=True)
class Bars:
    """Bars from ``base`` on; ``color`` may be one for each. Names as places are written under the axis."""

    places: Array
    values: Array
    label: str
    color: Colour | Sequence[str]
    error: Array | None
    base: Array | float
    width: float
    horizontal: bool
    texts: Sequence[str]  # words at the end of each bar
    alpha: float


@dataclass(frozen=True)
class HeatMap:
    """A matrix in colours; rows are along y. ``diverging`` colours have their middle at zero."""

    x: Array
    y: Array
    values: Array
    label: str  # of the colour bar; none without a label
    diverging: bool
    low: float | None
    high: float | None
    logarithmic: bool
    smooth: bool
    ticks: Mapping[float, str] | None  # of the colour bar
    texts: Sequence[Sequence[str]] | None  # words in the cells


@dataclass(frozen=True)
class Contours:
    """Lines on which a function of x and y has given values; ``texts`` writes words on them."""

    x: Array
    y: Array
    values: Array
    levels: Sequence[float]
    texts: Sequence[str]
    color: str
    width: float
    dash: str


@dataclass(frozen=True)
class Region:
    """A shaded part of the plane: a span of x, a span of y, both, or between two curves over ``x``."""

    x: Array | tuple[float, float] | None
    low: Array | float | None
    high: Array | float | None
    label: str
    color: Colour
    alpha: float
    hatched: bool


@dataclass(frozen=True)
class Level:
    """A straight line across the whole panel, at one x or at one y."""

    x: float | None
    y: float | None
    label: str  # in the legend
    color: str
    dash: str
    width: float


@dataclass(frozen=True)
class Note:
    """A few words at a point of the data, or, as a ``fraction`` from 0 to 1, at a place of the panel."""

    x: float
    y: float
    text: str
    color: str
    align: Literal["left", "center", "right"]
    above: bool | None  # True: above the point, False: below, None: at its height
    fraction: bool
    size: float


Mark: TypeAlias = Curve | Bars | HeatMap | Contours | Region | Level | Note


@dataclass
class Panel:
    """Axes with what is drawn on them, in order: later marks lie above earlier ones.

    ``legend`` is "best" (beside the data), "below" or "right" of the panel, or "" for none.
    """

    title: str
    x: Axis
    y: Axis
    legend: str = "best"
    legend_columns: int = 1
    caption: str = ""
    equal: bool = False  # one unit is as long on both axes
    grid: bool = True
    bare: bool = False  # nothing but the marks: no axes
    marks: list[Mark] = field(default_factory=list)

    def curve(
        self,
        x: Values,
        y: Values,
        style: str = "-",
        label: str = "",
        color: Colour = None,
        *,
        error: Values = None,
        band: Values = None,
        width: float = 1.6,
        size: float = 5.0,
        alpha: float = 1.0,
        hollow: bool = False,
        x_error: Values = None,
        steps: bool = False,
    ) -> None:
        """Add a curve. ``style`` is a marker, a dash, or both: "-", "--", "o", "s:".

        ``error`` draws bars, ``band`` shades: half its width, or the pair of its lower and upper end.
        """
        x, y = np.atleast_1d(np.asarray(x)), np.atleast_1d(np.asarray(y))
        marker = style[:1] if style[:1] not in ("-", ":") else ""
        dash = style.removeprefix(marker)
        self.marks.append(
            Curve(
                x,
                y,
                marker,
                dash,
                label,
                color,
                _lengths(error, y),
                _band(band, y),
                width,
                size,
                alpha,
                hollow,
                _lengths(x_error, x),
                steps,
            )
        )

    def bars(
        self,
        places: Values,
        values: Values,
        label: str = "",
        color: Colour | Sequence[str] = None,
        *,
        error: Values = None,
        base: Values = 0.0,
        width: float = 0.8,
        horizontal: bool = False,
        texts: Sequence[str] = (),
        alpha: float = 1.0,
    ) -> None:
        """Add bars at places, which are numbers, or names for 0, 1, 2, ..."""
        at = np.atleast_1d(np.asarray(places))
        if at.dtype.kind in "UO":
            axis = "y" if horizontal else "x"
            setattr(self, axis, replace(getattr(self, axis), ticks=dict(enumerate(map(str, at)))))
            at = np.arange(len(at))
        heights = np.atleast_1d(np.asarray(values))
        self.marks.append(
            Bars(
                at,
                heights,
                label,
                color,
                _lengths(error, heights),
                base,
                width,
                horizontal,
                tuple(texts),
                alpha,
            )
        )

    def heat_map(
        self,
        values: Values,
        x: Values = None,
        y: Values = None,
        label: str = "",
        *,
        diverging: bool = False,
        low: float | None = None,
        high: float | None = None,
        logarithmic: bool = False,
        smooth: bool = False,
        ticks: Mapping[float, str] | None = None,
        texts: Sequence[Sequence[str]] | None = None,
    ) -> None:
        """Add a matrix in colours; without ``x`` and ``y`` columns and rows are counted from 0."""
        matrix = np.asarray(values)
        x = np.arange(matrix.shape[1]) if x is None else np.asarray(x)
        y = np.arange(matrix.shape[0]) if y is None else np.asarray(y)
        if diverging and low is None and high is None:
            high = float(np.nanmax(np.abs(matrix))) or 1.0
            low = -high
        self.grid = False
        self.marks.append(
            HeatMap(x, y, matrix, label, diverging, low, high, logarithmic, smooth, ticks, texts)
        )

    def contours(
        self,
        x: Values,
        y: Values,
        values: Values,
        levels: Sequence[float],
        texts: Sequence[str] = (),
        color: str = INK,
        *,
        width: float = 1.0,
        dash: str = "-",
    ) -> None:
        """Add the lines on which ``values`` (rows along y) equal the ``levels``."""
        self.marks.append(
            Contours(
                np.asarray(x),
                np.asarray(y),
                np.asarray(values),
                tuple(levels),
                tuple(texts),
                color,
                width,
                dash,
            )
        )

    def region(
        self,
        x: Values = None,
        low: Values = None,
        high: Values = None,
        label: str = "",
        color: Colour = FAINT,
        *,
        alpha: float = 0.2,
        hatched: bool = False,
    ) -> None:
        """Shade between two curves over ``x``, or a span of x (a pair), of y (``low`` to ``high``), or both."""
        between = np.ndim(low) or np.ndim(high)
        place = None if x is None else np.asarray(x) if between else (float(x[0]), float(x[1]))
        self.marks.append(Region(place, _ends(low), _ends(high), label, color, alpha, hatched))

    def level(
        self,
        y: float | None = None,
        x: float | None = None,
        label: str = "",
        color: str = FAINT,
        *,
        dash: str = "-",
        width: float = 1.0,
    ) -> None:
        """Add a line across the panel at this y, or at this x."""
        self.marks.append(
            Level(None if x is None else float(x), None if y is None else float(y), label, color, dash, width)
        )

    def note(
        self,
        x: float,
        y: float,
        text: str,
        color: str = INK,
        *,
        align: Literal["left", "center", "right"] = "left",
        above: bool | None = None,
        fraction: bool = False,
        size: float = 9.0,
    ) -> None:
        """Write a few words at a point, or at a fraction of the panel."""
        self.marks.append(Note(float(x), float(y), text, color, align, above, fraction, size))

    def legend_entry(self, style: str, label: str, color: str = INK, *, hollow: bool = False) -> None:
        """Say in the legend what a style means that several curves share."""
        self.curve([], [], style, label, color, hollow=hollow)


@dataclass
class Figure:
    """Panels in a grid, row by row, with a title above and a caption below.

    ``layout`` is a grid with panels that span places: rows of letters, such as "AAB CDD"; the first panel takes the
    first letter. Without it panels fill ``columns``. ``heights`` are those of the rows, relative to each other.
    ``size`` is in inches.
    """

    title: str = ""
    columns: int = 0
    layout: str = ""
    heights: Sequence[float] = ()
    size: tuple[float, float] | None = None
    caption: str = ""
    legend: str = ""  # "below": one legend for all panels
    panels: list[Panel] = field(default_factory=list)

    def panel(self, title: str = "", x: str | Axis = "", y: str | Axis = "", **options: Any) -> Panel:
        """Add a panel; axes are labels or ``Axis``, ``options`` the other fields of ``Panel``."""
        across, upright = (Axis(axis) if isinstance(axis, str) else axis for axis in (x, y))
        panel = Panel(title, across, upright, **options)
        self.panels.append(panel)
        return panel

    def rows(self) -> list[str]:
        """The grid as rows of letters; a dot is an empty place."""
        if self.layout:
            return self.layout.split()
        count = max(1, len(self.panels))
        columns = min(self.columns or 3, count)
        letters = "".join(chr(ord("A") + place) for place in range(count))
        letters += "." * (-count % columns)
        return [letters[start : start + columns] for start in range(0, len(letters), columns)]

    def places(self) -> Iterator[tuple[str, Panel]]:
        """Panels with the letters of their places."""
        letters = dict.fromkeys(letter for row in self.rows() for letter in row if letter != ".")
        return zip(letters, self.panels, strict=False)

    def inches(self) -> tuple[float, float]:
        """Width and height."""
        rows = self.rows()
        return self.size or (max(6.4, 4.7 * len(rows[0])), 3.7 * len(rows) + (0.5 if self.title else 0.0))

    def colors(self) -> dict[tuple[int, int], str]:
        """The colour of every mark that has none of its own, by panel and mark: equal labels have equal colours."""
        by_label: dict[str, str] = {}
        chosen: dict[tuple[int, int], str] = {}
        for number, panel in enumerate(self.panels):
            used = 0
            for place, mark in enumerate(panel.marks):
                if isinstance(mark, Curve | Bars | Region) and mark.color is None:
                    if mark.label and mark.label in by_label:
                        chosen[number, place] = by_label[mark.label]
                        continue
                    color = PALETTE[(len(by_label) if mark.label else used) % len(PALETTE)]
                    chosen[number, place] = color
                    used += 1
                    if mark.label:
                        by_label[mark.label] = color
        return chosen


def shades(count: int) -> list[str]:
    """Colours of an ordered family, from dark to light."""
    stops = np.array([[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [190, 210, 50]], dtype=float)
    where = np.linspace(0, len(stops) - 1, max(count, 1))
    channels = [np.interp(where, np.arange(len(stops)), stops[:, channel]) for channel in range(3)]
    return [f"#{round(r):02x}{round(g):02x}{round(b):02x}" for r, g, b in zip(*channels, strict=True)]


def scale_for(values: Values, factor: float = 50.0) -> Scale:
    """A logarithmic scale where all values are positive and span more than a factor, else a linear one."""
    finite = np.asarray(values, dtype=float)
    finite = finite[np.isfinite(finite)]
    wide = finite.size and finite.min() > 0 and finite.max() > factor * finite.min()
    return "log" if wide else "linear"


def _lengths(error: Values, y: Array) -> Array | None:
    if error is None:
        return None
    lengths = np.asarray(error, dtype=float)
    return lengths if lengths.ndim == 2 else np.broadcast_to(lengths, y.shape)


def _band(band: Values, y: Array) -> tuple[Array, Array] | None:
    if band is None:
        return None
    if isinstance(band, tuple):
        return np.asarray(band[0]), np.asarray(band[1])
    half = np.asarray(band)
    return y - half, y + half


def _ends(value: Values) -> Array | float | None:
    return None if value is None else np.asarray(value) if np.ndim(value) else float(value)
