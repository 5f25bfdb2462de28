"""A picture that is drawn in the reader's browser: what plotly is told, and the same in words and numbers.

Colours are names of the page's style (``var(--blue)``), looked up when the picture is drawn, so that pictures follow
the reader's choice of dark or light.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from foretrain.report.page.markup import Markup, element
from foretrain.report.page.table import Table, table

BLUE, ORANGE, GREEN, PURPLE, RED, INK, MUTED, SURFACE = (
    f"var(--{name})" for name in ("blue", "orange", "green", "purple", "red", "ink", "muted", "surface")
)
SERIES = (BLUE, ORANGE, GREEN, PURPLE, RED)
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x")
_FEW = 12  # numbers or names that fit under an axis
_LONG = 18  # letters of a name that fit under an axis

Trace = dict[str, Any]


@dataclass(frozen=True)
class Plot:
    """One picture. ``name`` is its place on the page, ``caption`` tells its message with numbers.

    ``toggles`` are axes that a button turns from logarithmic to linear, with the words on the button.
    """

    name: str
    title: str
    caption: str
    traces: Sequence[Trace]
    layout: Mapping[str, Any]
    numbers: Table
    toggles: Mapping[str, str] = field(default_factory=dict)
    height: int = 340
    wide: bool = False

    def specification(self) -> dict[str, Any]:
        """What the page's script hands to plotly."""
        return {"data": plain(list(self.traces)), "layout": plain(dict(self.layout))}

    def markup(self, prefix: str) -> Markup:
        """The figure with its controls, its caption and its numbers."""
        place = f"{prefix}-{self.name}"
        controls = [
            element(
                "button",
                words,
                type="button",
                data_axis=axis,
                data_target=place,
                aria_pressed=str(self.layout[axis].get("type") == "log").lower(),
            )
            for axis, words in self.toggles.items()
        ]
        return element(
            "figure",
            element("h4", self.title, id=f"{place}-title"),
            element("div", controls, class_="controls") if controls else None,
            element(
                "div",
                element(
                    "div",
                    id=place,
                    class_="plot",
                    role="img",
                    aria_label=f"{self.title}. {self.caption}",
                    style=f"height:{self.height}px",
                ),
                class_="drawing",
            ),
            element("figcaption", self.caption),
            element("details", element("summary", "Numbers"), table(self.numbers.thinned())),
            class_="wide" if self.wide else None,
        )


def axis(title: str, kind: str = "linear", **options: Any) -> dict[str, Any]:
    """An axis with its title."""
    return {"title": {"text": title}, "type": kind, **options}


def counting_axis(title: str, count: int) -> dict[str, Any]:
    """An axis of whole numbers; every one is written where there are few."""
    return axis(title, tickformat="d") | ({"dtick": 1} if count <= _FEW else {"nticks": _FEW})


def named_axis(names: Sequence[str]) -> dict[str, Any]:
    """An axis of names: at most a dozen are written, long ones without their middle."""
    step = -(-len(names) // _FEW)
    shown = list(names[::step])
    return axis("", "category", tickvals=shown, ticktext=[_tick(name) for name in shown])


def _tick(name: str) -> str:
    """Plotly takes tags in texts for markup, so what looks like one is written out."""
    short = name if len(name) <= _LONG else f"{name[: _LONG // 2]}…{name[-_LONG // 2 + 1 :]}"
    return html.escape(short, quote=False)


def plain(value: Any) -> Any:
    """Lists and numbers that JSON knows; a number that is not finite leaves a gap."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        # Seven digits are finer than any screen, and keep the page small.
        return float(f"{value:.7g}") if math.isfinite(value) else None
    return value
