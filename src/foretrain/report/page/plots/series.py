"""Curves, bars and points over a layer, a step or an index."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from foretrain.report.page.plots.plot import DASHES, MUTED, SERIES, SYMBOLS, Trace

_MANY = 100  # points; more of them are drawn smaller


def line(
    name: str,
    x: Any,
    y: Any,
    *,
    place: int = 0,
    markers: bool = False,
    colour: str = "",
    dash: str = "",
    **options: Any,
) -> Trace:
    """A curve; its ``place`` among the others gives it colour, dash and marker, so that colour is not all."""
    tone = colour or SERIES[place % len(SERIES)]
    return {
        "type": "scatter",
        "name": name,
        "x": x,
        "y": y,
        "mode": "lines+markers" if markers else "lines",
        "line": {"color": tone, "width": 2.2, "dash": dash or DASHES[place % len(DASHES)]},
        "marker": {"symbol": SYMBOLS[place % len(SYMBOLS)], "size": 7, "color": tone},
        **options,
    }


def points(name: str, x: Any, y: Any, *, place: int = 0, **options: Any) -> Trace:
    """Markers without a line between them."""
    tone = SERIES[place % len(SERIES)]
    size = 9 if len(x) <= _MANY else 4
    marker = {"symbol": SYMBOLS[place % len(SYMBOLS)], "size": size, "color": tone}
    return {"type": "scatter", "name": name, "x": x, "y": y, "mode": "markers", "marker": marker, **options}


def bars(
    name: str, x: Any, y: Any, *, place: int = 0, colours: Sequence[str] | None = None, **options: Any
) -> Trace:
    """Bars; ``colours`` one for each, where some stand out."""
    tone = list(colours) if colours is not None else SERIES[place % len(SERIES)]
    return {"type": "bar", "name": name, "x": x, "y": y, "marker": {"color": tone}, **options}


def level(y: float, text: str, at: str = "end") -> dict[str, Any]:
    """A horizontal line across the picture with its words at its "start" or "end", for ``layout.shapes``."""
    return {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": y,
        "y1": y,
        "line": {"color": MUTED, "width": 1.5, "dash": "dot"},
        "label": {
            "text": text,
            "textposition": at,
            "yanchor": "bottom",
            "font": {"color": MUTED, "size": 12},
        },
    }


def short(names: Iterable[Any]) -> list[str]:
    """Names of weights without what they share, ".weight", where they stay different."""
    full = [str(name) for name in names]
    cut = [name.removesuffix(".weight") for name in full]
    return cut if all(name.endswith(".weight") for name in full) and len(set(cut)) == len(full) else full
