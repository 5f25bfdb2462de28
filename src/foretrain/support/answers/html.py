"""Answers as HTML: a fragment for notebooks, and the pieces of which pages are made.

A fragment is complete without scripts: tables, and every picture as a still one. Where scripts run, panels that can
be looked into take the place of still pictures.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from io import BytesIO
from typing import TypeAlias
from uuid import uuid4

from foretrain._version import __version__
from foretrain.support.answers.answer import Answer, Code, Facts, Part
from foretrain.support.answers.figure import Figure
from foretrain.support.answers.formulas import number_text, power_text, unicode_math
from foretrain.support.answers.plotly_renderer import numbers, specifications
from foretrain.support.answers.tables import Cell, Table, Tone, cell_text

MOST_ROWS = 60  # of a table on a page
_SHORT = 24  # letters of texts in a column that are not broken
_HEIGHT, _LOWEST, _HIGHEST, _INCH = 340, 240, 560, 92  # of a panel, in pixels
_SYMBOLS = {"critical": "✖", "warning": "▲", "note": "●", "good": "✔"}
Attribute: TypeAlias = str | int | bool | None
_WITH_PLOTLY: list[str | None] = []  # the cells of this process's notebook that hold plotly
_VOID = frozenset({"meta", "link", "br", "img"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child: TypeAlias = "str | Markup | Iterable[Child] | None"


def element(name: str, /, *children: Child, **attributes: Attribute) -> Markup:
    """An element. ``class_`` is the attribute class, ``aria_label`` is aria-label; None and False leave one out."""
    pairs = ""
    for key, value in attributes.items():
        if value is not None and value is not False:
            attribute = key.rstrip("_").replace("_", "-")
            pairs += f" {attribute}" if value is True else f' {attribute}="{html.escape(str(value))}"'
    if name in _VOID:
        return Markup(f"<{name}{pairs}>")
    return Markup(f"<{name}{pairs}>{join(children)}</{name}>")


def join(children: Iterable[Child]) -> Markup:
    """Parts one after another; every text that is not markup already is escaped."""
    return Markup("".join(map(_text, children)))


def fragment(answer: Answer) -> str:
    """An answer for a notebook."""
    if not (answer.tables or answer.has_figure):  # then at least the numbers and words that machines get
        known = {
            key: value for key, value in answer.document().items() if isinstance(value, str | int | float)
        }
        rows = [item for item in known.items() if item[0] != "statement"]
        answer = replace(answer, parts=[*answer.parts, Table(("quantity", "value"), rows)])
    name = f"foretrain-{uuid4().hex[:12]}"
    body = element("div", body_of(answer), class_="foretrain", id=name)
    style = element("style", Markup(own_file("answers.css")))
    if not answer.has_figure:
        return f"{style}{body}"
    start = f'window.foretrainPictures.enliven(document.getElementById("{name}"));'
    script = element("script", Markup(f"{own_file('pictures.js')}\n{start}"))
    # Plotly, packed, with the first picture of a process, and again where that one's cell is run anew.
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    parent = getattr(shell, "parent_header", None) or {}
    cell: str | None = parent.get("metadata", {}).get("cellId")
    library = ""
    if not _WITH_PLOTLY or (cell is not None and cell in _WITH_PLOTLY):
        _WITH_PLOTLY.append(cell)
        library = element("script", Markup(_packed_plotly()), type="text/plain", data_foretrain_plotly=True)
    return f"{style}{library}{body}{script}"


def body_of(answer: Answer, level: int = 3, still: bool = True) -> Iterator[Markup]:
    """Heading, statement and parts of an answer; ``still`` also draws every picture for readers without scripts."""
    if answer.title:
        yield element(f"h{level}", answer.title)
    if answer.statement:
        yield element("p", _lines(answer.statement), class_="statement")
    for part in answer.parts:
        yield part_markup(part, level, still)


def part_markup(part: Part, level: int = 3, still: bool = True) -> Markup:
    """One part of an answer."""
    match part:
        case Answer():
            level = min(level + 1, 6)
            inner = body_of(replace(part, title="", statement=""), level, still)
            if part.tone:  # a card; otherwise a line that can be opened, or a section
                title = element("small", part.title) if part.title else None
                summary = element(
                    "summary", badge(part.tone), element(f"h{level}", part.statement, " ", title)
                )
                body = element("div", inner, class_="body")
                return element("details", summary, body, class_=f"card {part.tone}", open=not part.folded)
            if part.folded:
                summary = element("summary", ": ".join(filter(None, (part.title, part.statement))))
                return element("details", summary, inner, class_="more")
            return element("section", body_of(part, level, still))
        case Table():
            return table_markup(part) if part.rows else Markup("")
        case Code():
            label = part.caption or "Code"
            lines = element("pre", element("code", part.text), tabindex=0, role="region", aria_label=label)
            bar = element("div", None if part.brief else element("span", part.caption), class_="bar")
            block = element("div", bar, lines, class_="code")
            return (
                element("details", element("summary", label), block, class_="more") if part.brief else block
            )
        case Facts():
            cells = [element("div", element("dt", k), element("dd", text)) for k, text in part.texts.items()]
            columns = 4 if len(cells) % 4 == 0 else 3
            return element("dl", cells, class_="facts", style=f"--columns:{columns}")
        case Markup():
            return part
        case str():
            return element("p", _lines(part))
    figure = part if isinstance(part, Figure) else part()
    caption = element("p", unicode_math(figure.caption), class_="caption") if figure.caption else None
    alive = element("div", panels_markup(figure), class_="panels")
    picture = None
    if still:
        from foretrain.support.answers.matplotlib_renderer import draw

        file = BytesIO()
        draw(figure).savefig(file, format="png", dpi=110, bbox_inches="tight")
        source = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
        words = unicode_math(figure.title or figure.caption or "Picture")
        picture = element("img", src=source, alt=words, class_="still")
    return element("div", picture, alive, caption, class_="picture")


def badge(tone: str) -> Markup:
    """How something ended as a symbol and a word, so that nobody has to tell colours apart."""
    symbol = element("span", _SYMBOLS.get(tone, ""), aria_hidden="true")
    return element("span", symbol, tone.capitalize(), class_=f"badge {tone}")


def table_markup(table: Table, caption: bool = True) -> Markup:
    """A table in a box that can be scrolled with the keyboard."""
    shown = table.for_people().thinned(MOST_ROWS)
    texts = shown.texts()
    longest = [max((len(row[place]) for row in texts), default=0) for place in range(len(shown.columns))]
    classes = [
        "number" if shown.numeric(place) else "word" if length <= _SHORT else None
        for place, length in enumerate(longest)
    ]
    head = [
        element("th", column.heading, scope="col", class_=kind, title=column.meaning or None)
        for column, kind in zip(shown.columns, classes, strict=True)
    ]
    rows = [
        element(
            "tr",
            element("th", _cell(row[0]), scope="row", class_=classes[0]),
            [
                element("td", _cell(cell), class_=kind)
                for cell, kind in zip(row[1:], classes[1:], strict=True)
            ],
        )
        for row in shown.rows
    ]
    title = element("caption", shown.caption) if caption and shown.caption else None
    inner = element("table", title, element("thead", element("tr", head)), element("tbody", rows))
    return element("div", inner, class_="box", role="region", tabindex=0, aria_label=shown.caption or "Table")


def _cell(cell: Cell) -> Child:
    """Very small and very large numbers as powers of ten, tones as badges."""
    if isinstance(cell, Tone | Markup):
        return badge(cell) if isinstance(cell, Tone) else cell
    text = cell_text(cell)
    if isinstance(cell, bool) or not isinstance(cell, int | float):
        return text
    if not math.isfinite(cell):
        return "–" if math.isnan(cell) else number_text(cell)
    return power_text(text) if "e" in text else text.replace("-", "−")


def panels_markup(figure: Figure) -> Iterator[Markup]:
    """Every panel as a place to draw in, its data beside it, and its numbers below; one alone in its row is wide."""
    rows = figure.rows()
    height = _HEIGHT if figure.size is None else round(_INCH * figure.size[1] / len(rows))
    height = max(_LOWEST, min(_HIGHEST, height))
    for (letter, panel), specification in zip(figure.places(), specifications(figure), strict=True):
        title, caption = unicode_math(panel.title or figure.title), unicode_math(panel.caption)
        # Nothing in the data may end the element that holds it.
        text = json.dumps(specification, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text = text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
        place = element(
            "div",
            data_panel=True,
            class_="plot",
            role="img",
            aria_label=". ".join(filter(None, (title, caption))),
            style=f"height:{height}px",
        )
        yield element(
            "figure",
            element("h4", title) if title else None,
            place,
            element("script", Markup(text), type="application/json"),
            element("figcaption", caption) if caption else None,
            element("details", element("summary", "Numbers"), table_markup(numbers(panel))),
            class_="wide" if any(set(row) == {letter} for row in rows) else None,
        )


def document(title: str, style: str, body: Markup, *first: Child, **attributes: Attribute) -> str:
    """A whole page with the style of answers and its own; ``first`` are further elements of its head."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        first,
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="generator", content=f"foretrain {__version__}"),
        element("title", title),
        element("style", Markup(own_file("answers.css") + style)),
    )
    page = element("html", "\n", head, "\n", body, "\n", lang="en", **attributes)
    return f"<!DOCTYPE html>\n{page}\n"


def own_file(name: str) -> str:
    """A style sheet or script of this folder."""
    return (files("foretrain.support.answers") / name).read_text(encoding="utf-8")


def plotly_script() -> str:
    """Plotly's script. The end of a script element must not stand inside one."""
    from plotly.offline import get_plotlyjs

    script: str = get_plotlyjs()
    return script.replace("</script", "<\\/script")


@cache
def _packed_plotly() -> str:
    return base64.b64encode(gzip.compress(plotly_script().encode(), 6)).decode()


def _lines(text: str) -> Sequence[Child]:
    """A text whose line breaks are kept."""
    first, *others = text.split("\n")
    return [first, *(part for line in others for part in (element("br"), line))]


def _text(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, str):
        return html.escape(child)
    return join(child)
