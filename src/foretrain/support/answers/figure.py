"""Pictures as data: what is drawn, on which axes, and what it means. No drawing library is needed to make one.

>>> figure = Figure("Loss of two networks", columns=2)
>>> panel = figure.panel("training", x="step", y=log("loss"))
>>> panel.curve([0, 1, 2], [1.0, 0.5, 0.2], "o-", "network 1", error=[0.1, 0.1, 0.1])
>>> panel.level(y=0.1, label="noise floor")

``matplotlib_renderer`` and ``plotly_renderer`` draw it; both read every field below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Concatenate, Literal, ParamSpec, TypeAlias

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

    x: Values
    y: Values
    style: str = "-"  # a marker ("os^Dvx+*._|"), a dash ("-", "--", ":", "-."), or both: "o--"
    label: str = ""
    color: Colour = None
    _: KW_ONLY
    error: Values = None  # half the length of error bars, or (2, N): below and above
    band: Values = None  # half the width of a shaded band, or the pair of its lower and upper end
    width: float = 1.6
    size: float = 5.0
    alpha: float = 1.0
    hollow: bool = False  # markers are not filled
    x_error: Values = None
    steps: bool = False  # a staircase: each value holds from one place to the next

    def __post_init__(self) -> None:
        x, y = np.atleast_1d(np.asarray(self.x)), np.atleast_1d(np.asarray(self.y))
        _set(self, x=x, y=y, error=_lengths(self.error, y), x_error=_lengths(self.x_error, x))
        if self.band is not None:
            ends = self.band if isinstance(self.band, tuple) else (y - self.band, y + self.band)
            low, high = (np.broadcast_to(end, y.shape) for end in ends)
            _set(self, band=(low, high))
            if len(x) == 1 and self.error is None:  # the band of one point has no width
                _set(self, error=np.stack([y - low, high - y]))

    @property
    def marker(self) -> str:
        """The letter of the marker, or nothing; one point alone, through which no line goes, has a dot."""
        given = self.style[:1] if self.style[:1] not in ("-", ":") else ""
        return given or ("o" if len(self.x) == 1 else "")

    @property
    def dash(self) -> str:
        """The dash of the line, or nothing."""
        return self.style.removeprefix(self.marker)


@dataclass(frozen=True)
class Bars:
    """Bars from ``base`` on, at numbers or at names, which are then written under the axis."""

    places: Values
    values: Values
    label: str = ""
    color: Colour | Sequence[str] = None  # one for all, or one for each
    _: KW_ONLY
    error: Values = None
    base: Values = 0.0
    width: float = 0.8
    horizontal: bool = False
    texts: Sequence[str] = ()  # words at the end of each bar
    alpha: float = 1.0

    def __post_init__(self) -> None:
        values = np.atleast_1d(np.asarray(self.values))
        places = np.atleast_1d(np.asarray(self.places))
        _set(self, places=places, values=values, error=_lengths(self.error, values))


@dataclass(frozen=True)
class HeatMap:
    """A matrix in colours; rows are along y, and places are counted from 0 unless ``x`` and ``y`` say more.

    ``diverging`` colours part at ``middle``.
    """

    values: Values
    x: Values = None
    y: Values = None
    label: str = ""  # of the colour bar; none without a label
    _: KW_ONLY
    diverging: bool = False
    middle: float = 0.0
    low: float | None = None
    high: float | None = None
    logarithmic: bool = False
    smooth: bool = False
    ticks: Mapping[float, str] | None = None  # of the colour bar
    texts: Sequence[Sequence[str]] | None = None  # words in the cells

    def __post_init__(self) -> None:
        matrix = np.asarray(self.values)
        _set(self, values=matrix)
        for name, count in (("y", matrix.shape[0]), ("x", matrix.shape[1])):
            places = getattr(self, name)
            _set(self, **{name: np.arange(count) if places is None else np.asarray(places)})
        if self.diverging and self.low is None and self.high is None:
            reach = float(np.nanmax(np.abs(matrix - self.middle))) or 1.0
            _set(self, low=self.middle - reach, high=self.middle + reach)


@dataclass(frozen=True)
class Contours:
    """Lines on which a function of x and y (rows along y) has given values; ``texts`` are written on them."""

    x: Values
    y: Values
    values: Values
    levels: Sequence[float]
    texts: Sequence[str] = ()
    color: str = INK
    _: KW_ONLY
    width: float = 1.0
    dash: str = "-"


@dataclass(frozen=True)
class Region:
    """A shaded part of the plane: between two curves over ``x``, or a span of x (a pair), of y, or both."""

    x: Values = None
    low: Values = None
    high: Values = None
    label: str = ""
    color: Colour = FAINT
    _: KW_ONLY
    alpha: float = 0.2
    hatched: bool = False

    def __post_init__(self) -> None:
        if self.between and np.size(self.x) == 1:  # as wide as it takes to be seen
            place = float(np.ravel(self.x)[0])
            reach = 0.01 * abs(place) or 0.01
            ends = {name: np.broadcast_to(np.ravel(getattr(self, name))[:1], 2) for name in ("low", "high")}
            _set(self, x=np.array([place - reach, place + reach]), **ends)

    @property
    def between(self) -> bool:
        """Whether it lies between two curves."""
        return self.x is not None and bool(np.ndim(self.low) or np.ndim(self.high))


@dataclass(frozen=True)
class Level:
    """A straight line across the whole panel, at one y or at one x."""

    y: float | None = None
    x: float | None = None
    label: str = ""  # in the legend
    color: str = FAINT
    _: KW_ONLY
    dash: str = "-"
    width: float = 1.0

    def __post_init__(self) -> None:
        _set(self, **{name: float(at) for name, at in (("x", self.x), ("y", self.y)) if at is not None})


@dataclass(frozen=True)
class Note:
    """A few words at a point of the data, or, as a ``fraction`` from 0 to 1, at a place of the panel."""

    x: float
    y: float
    text: str
    color: str = INK
    _: KW_ONLY
    align: Literal["left", "center", "right"] = "left"
    above: bool | None = None  # True: above the point, False: below, None: at its height
    fraction: bool = False
    size: float = 9.0

    def __post_init__(self) -> None:
        _set(self, x=float(self.x), y=float(self.y))


Mark: TypeAlias = Curve | Bars | HeatMap | Contours | Region | Level | Note
Arguments = ParamSpec("Arguments")


def _adds(kind: Callable[Arguments, Mark]) -> Callable[Concatenate[Panel, Arguments], None]:
    """A method of panels that adds a mark; it takes the fields of the mark."""

    def add(panel: Panel, /, *fields: Arguments.args, **options: Arguments.kwargs) -> None:
        panel.marks.append(kind(*fields, **options))

    add.__doc__ = kind.__doc__
    return add


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

    curve = _adds(Curve)
    contours = _adds(Contours)
    region = _adds(Region)
    level = _adds(Level)
    note = _adds(Note)
    _add_bars = _adds(Bars)
    _add_heat_map = _adds(HeatMap)

    def bars(self, places: Values, *fields: Any, **options: Any) -> None:
        """Add ``Bars``; names as places become the ticks of the axis."""
        at = np.atleast_1d(np.asarray(places))
        if at.dtype.kind in "UO":
            axis = "y" if options.get("horizontal") else "x"
            setattr(self, axis, replace(getattr(self, axis), ticks=dict(enumerate(map(str, at)))))
            at = np.arange(len(at))
        self._add_bars(at, *fields, **options)

    def histogram(self, values: Values, edges: Values, label: str = "", color: Colour = None) -> None:
        """Add the density of values between equally spaced edges; values beyond the ends count as at the ends."""
        edges = np.asarray(edges, dtype=float)
        heights, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges, density=True)
        self.bars((edges[1:] + edges[:-1]) / 2, heights, label, color, width=0.94 * (edges[1] - edges[0]))

    def heat_map(
        self, values: Values, x: Values = None, y: Values = None, *fields: Any, **options: Any
    ) -> None:
        """Add a ``HeatMap``, which needs no grid behind it; places that are counted have whole numbers."""
        self.grid = False
        self._add_heat_map(values, x, y, *fields, **options)
        if x is None:
            self.x = replace(self.x, whole=True)
        if y is None:
            self.y = replace(self.y, whole=True)

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

    def with_words(self, change: Callable[[str], str]) -> Figure:
        """The same picture with all its words changed: titles, labels, ticks and notes."""

        def changed(part: Any) -> Any:
            if isinstance(part, str):
                return change(part)
            if isinstance(part, Mapping):
                return {key: changed(text) for key, text in part.items()}
            return [changed(one) for one in part] if isinstance(part, list | tuple) else part

        def worded(part: Any, *names: str) -> Any:
            return replace(
                part, **{name: changed(getattr(part, name)) for name in names if hasattr(part, name)}
            )

        panels = [
            replace(
                worded(panel, "title", "caption"),
                x=worded(panel.x, "label", "ticks"),
                y=worded(panel.y, "label", "ticks"),
                marks=[worded(mark, "label", "text", "texts", "ticks") for mark in panel.marks],
            )
            for panel in self.panels
        ]
        return replace(self, title=change(self.title), caption=change(self.caption), panels=panels)

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


def _set(mark: Any, **values: Any) -> None:
    """Fields as arrays, once, when a mark is made."""
    for name, value in values.items():
        object.__setattr__(mark, name, value)
