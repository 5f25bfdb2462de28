"""Pictures for a browser: every panel as what plotly draws.

Colours are names of the page's style (``var(--blue)``), looked up when a picture is drawn, so that pictures follow
the reader's choice of dark or light.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from foretrain.support.answers.figure import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    RED,
    SKY,
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
from foretrain.support.answers.formulas import html_math, unicode_math
from foretrain.support.answers.tables import Table

_NAMES = {
    BLUE: "var(--blue)",
    ORANGE: "var(--orange)",
    GREEN: "var(--green)",
    PURPLE: "var(--purple)",
    SKY: "var(--sky)",
    RED: "var(--red)",
    INK: "var(--ink)",
    FAINT: "var(--muted)",
    "#dddddd": "var(--line)",
    "#555555": "var(--muted)",
}
_DASHES = {"-": "solid", "--": "dash", ":": "dot", "-.": "dashdot"}
_SYMBOLS = {
    "o": "circle",
    "s": "square",
    "D": "diamond",
    "d": "diamond-tall",
    "^": "triangle-up",
    "v": "triangle-down",
    "x": "x-thin-open",
    "+": "cross-thin-open",
    "*": "star",
    ".": "circle",
    "_": "line-ew-open",
    "|": "line-ns-open",
}
_SEQUENTIAL = "Cividis"
_LINEAR_PART = 0.3  # decades that the linear part of a bent axis takes on either side of 0
_SILENT = {"showlegend": False, "hoverinfo": "skip"}  # neither in the legend nor under the pointer
_FEW, _LONG = 12, 18  # names under an axis, and letters of one
_MOST_COLUMNS = 12  # curves in the table of numbers


def specifications(figure: Figure) -> list[dict[str, Any]]:
    """What plotly draws, panel by panel: ``data``, ``layout`` and ``toggles``.

    Toggles are the axes that can be turned from linear to logarithmic and back, with the words on their buttons.
    """
    colors = figure.colors()
    return [
        _specification(panel, {place: c for (owner, place), c in colors.items() if owner == number})
        for number, panel in enumerate(figure.panels)
    ]


def numbers(panel: Panel) -> Table:
    """The numbers behind a panel: a column for x and one for every curve or row of bars, or the cells of a matrix."""
    curves = [mark for mark in panel.marks if isinstance(mark, Curve | Bars) and len(_along(mark)[0])]
    if not curves:
        return _cells(panel)
    places: dict[Any, dict[int, Any]] = {}
    shown = curves[:_MOST_COLUMNS]
    across = panel.y if all(isinstance(mark, Bars) and mark.horizontal for mark in shown) else panel.x
    for column, mark in enumerate(shown):
        for x, y in zip(*_along(mark), strict=True):
            name, again = _name_at(x, across, mark), 0
            # A curve may have several points at one place.
            while column in places.setdefault((name, again), {}):
                again += 1
            places[name, again][column] = y
    rows = [
        (name, *(values.get(column) for column in range(len(shown)))) for (name, _), values in places.items()
    ]
    headings = [unicode_math(across.label) or "place"]
    for number, mark in enumerate(shown):
        headings.append(unicode_math(mark.label or panel.y.label or f"curve {number + 1}"))
    more = f", {len(shown)} of {len(curves)} curves" if len(curves) > len(shown) else ""
    return Table(headings, rows, f"{unicode_math(panel.title or panel.y.label or 'Numbers')}{more}")


def plain_numbers(value: Any) -> Any:
    """Lists and numbers that JSON knows; a number that is not finite leaves a gap."""
    if isinstance(value, Mapping):
        return {key: plain_numbers(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain_numbers(value.tolist())
    if isinstance(value, list | tuple):
        return [plain_numbers(item) for item in value]
    if isinstance(value, float):
        # Seven digits are finer than any screen, and keep the page small.
        return float(f"{value:.7g}") if math.isfinite(value) else None
    return value


def _specification(panel: Panel, colors: Mapping[int, str]) -> dict[str, Any]:
    traces: list[dict[str, Any]] = []
    layout: dict[str, Any] = {"shapes": [], "annotations": [], "barmode": "overlay"}
    for place, mark in enumerate(panel.marks):
        _add(mark, colors.get(place, INK), traces, layout, panel)
    for which, axis in (("x", panel.x), ("y", panel.y)):
        layout[f"{which}axis"] = _axis(axis, panel, which)
        if axis.scale == "symlog":
            _bend(which, axis, traces, layout)
    if panel.equal:
        layout["yaxis"]["scaleanchor"] = "x"
    listed = any(part.get("showlegend") for part in (*traces, *layout["shapes"]))
    layout["showlegend"] = bool(panel.legend) and listed
    if panel.bare:
        layout["margin"] = {"l": 8, "r": 8, "t": 20, "b": 8}
    layout["hovermode"] = "x unified" if _shares_places(panel) else "closest"
    seen: set[str] = set()
    for trace in traces:  # equal labels stand in the legend once
        if trace.get("showlegend"):
            trace["showlegend"] = trace["name"] not in seen
            trace["legendgroup"] = trace["name"]
            seen.add(trace["name"])
    for mark in panel.marks if panel.equal else ():
        if isinstance(mark, HeatMap):  # a page is only as high for it as the picture needs
            layout["meta"] = {"aspect": mark.values.shape[0] / mark.values.shape[1]}
    return {"data": plain_numbers(traces), "layout": plain_numbers(layout), "toggles": _toggles(panel)}


def _toggles(panel: Panel) -> dict[str, str]:
    """Axes along which nothing is negative and positive values differ by more than a factor of three."""
    words = {}
    for which, axis in (("x", panel.x), ("y", panel.y)):
        counted = isinstance(axis.ticks, Mapping) or axis.whole or axis.scale == "symlog"
        if counted or any(
            isinstance(mark, HeatMap | Contours) or (isinstance(mark, Note) and not mark.fraction)
            for mark in panel.marks
        ):
            continue
        known = np.concatenate([np.zeros(0), *_values(panel, which)])
        positive = known[known > 0]
        wide = len(positive) and (known >= 0).all() and positive.max() > 3 * positive.min()
        if axis.scale == "log" or (wide and not any(isinstance(mark, Bars) for mark in panel.marks)):
            words[f"{which}axis"] = f"Logarithmic {unicode_math(axis.label).split(' (')[0] or which}"
    return words


def _values(panel: Panel, which: str) -> list[Any]:
    """All finite places along an axis."""
    found = []
    for mark in panel.marks:
        if isinstance(mark, Curve | HeatMap):
            found.append(mark.x if which == "x" else mark.y)
        elif isinstance(mark, Bars):
            found.append(mark.places if (which == "x") != mark.horizontal else mark.values)
    numbers = [np.asarray(one, dtype=float).ravel() for one in found if np.asarray(one).dtype.kind in "iuf"]
    return [one[np.isfinite(one)] for one in numbers]


def _shares_places(panel: Panel) -> bool:
    """Whether there are several curves, all over the same numbers: then one place shows the values of all."""
    curves = [mark for mark in panel.marks if isinstance(mark, Curve) and len(mark.x)]
    same = all(np.array_equal(mark.x, curves[0].x) for mark in curves)
    return len(curves) > 1 and same and not isinstance(panel.x.ticks, Mapping)


def _name_at(x: Any, axis: Axis, mark: Curve | Bars) -> Any:
    """What is written under a place, or the place; bars stand beside their tick where several share it."""
    if not isinstance(axis.ticks, Mapping):
        return x
    near = min(axis.ticks, key=lambda tick: abs(tick - x), default=x) if isinstance(mark, Bars) else x
    return axis.ticks.get(near, x) if abs(near - x) < 0.5 else x


def _add(mark: Mark, color: str, traces: list[Any], layout: dict[str, Any], panel: Panel) -> None:
    match mark:
        case Curve():
            traces.extend(_curve(mark, _named(mark.color or color), panel))
        case Bars():
            traces.append(_bars(mark, mark.color or color))
        case HeatMap():
            traces.append(_heat_map(mark))
            layout["annotations"] += [
                {"x": x, "y": y, "text": html_math(text), "showarrow": False, "font": {"size": 11}}
                for y, row in zip(mark.y, mark.texts or ())
                for x, text in zip(mark.x, row)
            ]
        case Contours():
            traces += [_contour(mark, level) for level in mark.levels]
            layout["annotations"] += _contour_texts(mark, panel)
        case Region():
            _add_region(mark, _named(mark.color or color), traces, layout)
        case Level():
            shape: dict[str, Any] = {"type": "line", "line": _stroke(mark, _named(mark.color))}
            name = html_math(mark.label)
            if mark.y is None:
                shape |= {"yref": "paper", "y0": 0, "y1": 1, "x0": mark.x, "x1": mark.x}
                shape |= {"name": name, "showlegend": True} if name else {}
            else:
                shape |= {"xref": "paper", "x0": 0, "x1": 1, "y0": mark.y, "y1": mark.y}
            if mark.y is not None and name:
                end, side = _free_place(mark.y, panel)
                shape["label"] = {"text": name, "textposition": end, "yanchor": side}
                shape["label"]["font"] = {"color": "var(--muted)", "size": 12}
            layout["shapes"].append(shape)
        case Note():
            layout["annotations"].append(_note(mark, panel))


def _curve(mark: Curve, color: str, panel: Panel) -> list[dict[str, Any]]:
    name, shown = html_math(mark.label), bool(mark.label)
    traces: list[dict[str, Any]] = []
    if mark.band is not None:
        # Others shine through; the script on the page knows the names of colours with a share behind them.
        share = 0.2 * mark.alpha
        faint = f"{color} / {share:g}"
        if color.startswith("#"):
            faint = f"rgba({', '.join(str(int(color[i : i + 2], 16)) for i in (1, 3, 5))}, {share:g})"
        for values, fill in ((mark.band[0], None), (mark.band[1], "tonexty")):
            edge: dict[str, Any] = {"type": "scatter", "mode": "lines", "x": mark.x, "y": values}
            edge |= {"line": {"width": 0, "color": color}, "legendgroup": name, **_SILENT}
            edge |= {"fill": fill, "fillcolor": faint} if fill else {}
            traces.append(edge)
    mode = {(True, True): "lines+markers", (True, False): "lines"}.get((bool(mark.dash), bool(mark.marker)))
    symbol = _SYMBOLS.get(mark.marker, "circle")
    if mark.hollow and not symbol.endswith("open"):
        symbol += "-open"
    size = 4 if mark.marker == "." else 1.4 * mark.size
    trace = {
        "type": "scatter",
        "mode": mode or "markers",
        "name": name,
        "x": mark.x,
        "y": mark.y,
        "opacity": mark.alpha,
    }
    trace["line"] = _stroke(mark, color) | {"shape": "hv" if mark.steps else "linear"}
    trace["marker"] = {"symbol": symbol, "size": size, "color": color, "line": {"color": color, "width": 1.5}}
    if not len(mark.x):  # only for the legend
        trace |= {"x": [None], "y": [None]}
    for key, lengths in (("error_y", mark.error), ("error_x", mark.x_error)):
        if lengths is not None:
            ends = dict(zip(("arrayminus", "array"), lengths)) if lengths.ndim == 2 else {"array": lengths}
            trace[key] = {"type": "data", "thickness": 1.2, "width": 3, "color": color, **ends}
    place = "" if _shares_places(panel) else "%{x:.4g}: "
    if isinstance(panel.x.ticks, Mapping):
        place = "%{text}: "
        trace["text"] = [html_math(str(_name_at(x, panel.x, mark))) for x in mark.x.tolist()]
    trace["hovertemplate"] = f"{place}%{{y:.4g}}" + ("" if shown else "<extra></extra>")
    return [*traces, trace | {"showlegend": shown}]


def _bars(mark: Bars, color: Any) -> dict[str, Any]:
    tone = _named(color) if isinstance(color, str) else [_named(one) for one in color]
    along, across = ("y", "x") if mark.horizontal else ("x", "y")
    orientation = "h" if mark.horizontal else "v"
    trace: dict[str, Any] = {"type": "bar", "orientation": orientation, "width": mark.width}
    trace |= {along: mark.places, across: mark.values, "base": np.broadcast_to(mark.base, mark.values.shape)}
    trace |= {"name": html_math(mark.label), "showlegend": bool(mark.label), "opacity": mark.alpha}
    trace |= {"marker": {"color": tone}, "hovertemplate": f"%{{{across}:.4g}}"}
    if mark.texts:
        words = [html_math(text) for text in mark.texts]
        trace |= {"text": words, "textposition": "outside", "cliponaxis": False}
    if mark.error is not None:
        error = {"type": "data", "array": mark.error, "color": "var(--ink)", "thickness": 1.2}
        trace[f"error_{across}"] = error
    return trace


def _heat_map(mark: HeatMap) -> dict[str, Any]:
    values = np.log10(np.where(mark.values > 0, mark.values, np.nan)) if mark.logarithmic else mark.values
    scale = "log" if mark.logarithmic else "linear"
    trace: dict[str, Any] = {"type": "heatmap", "x": mark.x, "y": mark.y, "z": values}
    trace |= {"zmin": _log_end(mark.low, scale), "zmax": _log_end(mark.high, scale)}
    trace |= {"colorscale": _SEQUENTIAL, "showscale": bool(mark.label)}
    if mark.diverging and mark.low is not None and mark.high is not None:
        part = (mark.middle - mark.low) / (mark.high - mark.low)
        trace["colorscale"] = [[0, "var(--low)"], [part, "var(--middle)"], [1, "var(--high)"]]
    trace |= {"hoverongaps": False, "zsmooth": "best" if mark.smooth else False}
    trace["hovertemplate"] = "%{x:.4g}, %{y:.4g}: %{z:.4g}<extra></extra>"
    power = "power of ten of " if mark.logarithmic else ""
    bar: dict[str, Any] = {"title": {"text": power + html_math(mark.label), "side": "right"}, "thickness": 12}
    bar["outlinewidth"] = 0
    if mark.ticks is not None:
        bar |= {"tickvals": list(mark.ticks), "ticktext": list(mark.ticks.values())}
    return trace | {"colorbar": bar}


def _contour(mark: Contours, level: float) -> dict[str, Any]:
    contours = {"start": level, "end": level, "size": 1, "coloring": "none", "showlabels": False}
    trace = {"type": "contour", "x": mark.x, "y": mark.y, "z": mark.values, "contours": contours}
    return trace | {"line": _stroke(mark, _named(mark.color)), "showscale": False, **_SILENT}


def _contour_texts(mark: Contours, panel: Panel) -> list[dict[str, Any]]:
    """The words of every level where it crosses a row of the grid, or else a column, the next level further along."""
    x, y, z = (np.asarray(values, dtype=float) for values in (mark.x, mark.y, mark.values))
    notes = []
    for number, (level, text) in enumerate(zip(mark.levels, mark.texts), start=1):
        for along, across, values in ((x, y, z), (y, x, z.T)):
            side = np.sign(values - level)  # nan where nothing is known
            rows, columns = np.nonzero(side[:, :-1] * side[:, 1:] < 0)
            if len(rows):
                middle = len(rows) * number // (len(mark.texts) + 1)
                row, start = rows[middle], columns[middle]
                share = (level - values[row, start]) / (values[row, start + 1] - values[row, start])
                spot = (along[start] + share * (along[start + 1] - along[start]), across[row])
                place = spot if values is z else spot[::-1]
                notes.append(_note(Note(*place, text, mark.color, align="center"), panel))
                break
    return notes


def _bend(which: str, axis: Axis, traces: list[dict[str, Any]], layout: dict[str, Any]) -> None:
    """Bend data for an axis plotly does not have, linear near 0 and logarithmic beyond; ticks say what it was."""

    def bent(values: Any) -> Any:
        size = np.abs(np.asarray(values, dtype=float)) / axis.threshold
        return np.sign(values) * (_LINEAR_PART * np.minimum(size, 1) + np.log10(np.maximum(size, 1)))

    reach = 0.0
    for trace in traces:
        values = np.asarray(trace[which], dtype=float)
        base = np.asarray(trace.get("base", 0.0))
        reach = max(reach, float(np.max(np.abs(values), initial=0.0, where=np.isfinite(values))))
        errors = trace.get(f"error_{which}", {})
        if "array" in errors:  # bars that were as long on both sides no longer are
            above, below = errors["array"], errors.get("arrayminus", errors["array"])
            errors["array"] = bent(values + above) - bent(values)
            errors["arrayminus"] = bent(values) - bent(values - below)
        trace |= {which: bent(base + values) - bent(base), "customdata": values}
        trace |= {"base": bent(base)} if "base" in trace else {}
        trace["hovertemplate"] = trace.get("hovertemplate", "").replace(f"%{{{which}:", "%{customdata:")
    for part in (*layout["shapes"], *layout["annotations"]):
        if part.get(f"{which}ref") != "paper":
            part |= {end: bent(part[end]) for end in (which, f"{which}0", f"{which}1") if end in part}
    drawn = layout[f"{which}axis"]
    if "range" in drawn:
        drawn["range"] = bent(drawn["range"])
    if "autorangeoptions" in drawn:
        drawn["autorangeoptions"] = {key: bent(end) for key, end in drawn["autorangeoptions"].items()}
    if "tickvals" not in drawn:
        powers = axis.threshold * 10.0 ** np.arange(
            max(0, math.ceil(math.log10(reach / axis.threshold or 1))) + 1
        )
        drawn["tickvals"] = [*-powers[::-1], 0.0, *powers]
    drawn.setdefault("ticktext", [f"{place:g}" for place in drawn["tickvals"]])
    drawn["tickvals"] = bent(drawn["tickvals"])


def _add_region(mark: Region, color: str, traces: list[Any], layout: dict[str, Any]) -> None:
    name = html_math(mark.label)
    if mark.between:
        x = np.asarray(mark.x)
        low, high = (np.broadcast_to(end, x.shape) for end in (mark.low, mark.high))
        trace: dict[str, Any] = {"type": "scatter", "mode": "lines", "fill": "toself", "line": {"width": 0}}
        trace |= {"x": np.concatenate([x, x[::-1]]), "y": np.concatenate([high, low[::-1]])}
        trace |= {"fillcolor": color, "opacity": mark.alpha, "name": name, "showlegend": bool(name)}
        traces.append(trace | {"hoverinfo": "skip"})
        return
    shape: dict[str, Any] = {"type": "rect", "fillcolor": color, "opacity": mark.alpha, "line": {"width": 0}}
    shape |= {"layer": "below", "name": name, "showlegend": bool(name)}
    x0, x1 = mark.x if mark.x is not None else (0, 1)
    y0, y1 = (mark.low, mark.high) if mark.low is not None else (0, 1)
    shape |= {"x0": x0, "x1": x1, "y0": y0, "y1": y1}
    references = {"xref": "paper" if mark.x is None else "x", "yref": "paper" if mark.low is None else "y"}
    layout["shapes"].append(shape | references)


def _free_place(level: float, panel: Panel) -> tuple[str, str]:
    """Where words on a level are farther from the curves, and their side: below the level only above all curves."""
    logarithmic = panel.y.scale == "log"
    near, highest = {"start": math.inf, "end": math.inf}, -math.inf
    for mark in panel.marks:
        if not isinstance(mark, Curve) or mark.y.dtype.kind not in "iuf":
            continue
        known = np.isfinite(mark.y) & (mark.y > 0 if logarithmic else True)
        heights = mark.y[known]
        if not len(heights):
            continue
        highest = max(highest, float(heights.max()))
        gaps = np.abs(np.log(heights / level)) if logarithmic and level > 0 else np.abs(heights - level)
        few = -(-len(gaps) // 5)
        near["start"] = min(near["start"], float(gaps[:few].min()))
        near["end"] = min(near["end"], float(gaps[-few:].min()))
    return "start" if near["start"] > near["end"] else "end", "top" if level > highest else "bottom"


def _note(mark: Note, panel: Panel) -> dict[str, Any]:
    x, y = mark.x, mark.y
    if not mark.fraction:  # plotly wants logarithms on a logarithmic axis
        x = math.log10(x) if panel.x.scale == "log" and x > 0 else x
        y = math.log10(y) if panel.y.scale == "log" and y > 0 else y
    anchor = {None: "middle", True: "bottom", False: "top"}[mark.above]
    reference: dict[str, Any] = {"xref": "paper", "yref": "paper"} if mark.fraction else {}
    font = {"size": 12, "color": _named(mark.color)}
    text: dict[str, Any] = {"text": html_math(mark.text), "font": font, "showarrow": False}
    return {"x": x, "y": y, "xanchor": mark.align, "yanchor": anchor, **text, **reference}


def _axis(axis: Axis, panel: Panel, which: str) -> dict[str, Any]:
    scale = "log" if axis.scale == "log" else "linear"
    made: dict[str, Any] = {"title": {"text": html_math(axis.label)}, "type": scale, "zeroline": False}
    if isinstance(axis.ticks, Mapping):
        step = -(-len(axis.ticks) // (_FEW if which == "x" else 40))
        shown = list(axis.ticks.items())[::step]
        made["tickvals"] = [place for place, _ in shown]
        half = _LONG // 2
        made["ticktext"] = [
            html_math(text if len(text) <= _LONG or "$" in text else f"{text[:half]}…{text[-half + 1 :]}")
            for _, text in shown
        ]
    elif axis.ticks is not None:
        made["tickvals"] = list(axis.ticks)
    elif axis.whole:
        known = np.concatenate([np.zeros(0), *_values(panel, which)])
        made |= {"tickformat": "d", "dtick": max(1, -(-int(np.ptp(known)) // _FEW)) if len(known) else 1}
    low, high = (_log_end(end, scale) for end in (axis.low, axis.high))
    if low is not None and high is not None:
        made["range"] = [high, low] if axis.reverse else [low, high]
    else:
        made |= {"autorange": "reversed"} if axis.reverse else {}
        given = {"minallowed": low, "maxallowed": high}
        ends = {key: end for key, end in given.items() if end is not None}
        made |= {"autorangeoptions": ends} if ends else {}
        if any(isinstance(mark, HeatMap) for mark in panel.marks):
            made["constrain"] = "domain"
    if not panel.grid:
        made["showgrid"] = False
    if panel.bare:
        made["visible"] = False
    return made


def _log_end(end: float | None, scale: str) -> float | None:
    return math.log10(end) if end is not None and scale == "log" and end > 0 else end


def _stroke(mark: Curve | Contours | Level, color: str) -> dict[str, Any]:
    return {"color": color, "width": 1.3 * mark.width, "dash": _DASHES.get(mark.dash, "solid")}


def _named(color: str) -> str:
    return _NAMES.get(color, color)


def _along(mark: Curve | Bars) -> tuple[list[Any], list[Any]]:
    x, y = (mark.x, mark.y) if isinstance(mark, Curve) else (mark.places, mark.values)
    return x.tolist(), y.tolist()


def _cells(panel: Panel) -> Table:
    for mark in panel.marks:
        if isinstance(mark, HeatMap):
            headings = [
                unicode_math(panel.y.label) or "row",
                *(f"{x:.4g}" if not isinstance(x, str) else x for x in mark.x),
            ]
            rows = [(y, *row) for y, row in zip(mark.y.tolist(), mark.values.tolist(), strict=True)]
            few = slice(None, _MOST_COLUMNS + 1)
            return Table(headings[few], [row[few] for row in rows], unicode_math(panel.title or mark.label))
    return Table(("place", "value"), [], unicode_math(panel.title))
