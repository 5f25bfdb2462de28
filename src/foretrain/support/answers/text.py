"""Answers as text: plain lines for files and ``repr``, drawn tables on a terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from itertools import groupby
from textwrap import wrap
from typing import Literal

from foretrain.support.answers.answer import Answer, Code, Facts, Part
from foretrain.support.answers.tables import Table

_PADDING = 3  # between columns on a terminal
_TEXT, _WORD = 16, 32  # letters side by side that texts get at least, and that a word keeps together
_NARROWEST, _WIDEST = 40, 100  # letters in a line of prose on a terminal
_CODE_LINES = 14  # of code that is kept brief


def show(answer: Answer) -> None:
    """Print an answer: drawn on a terminal (without colours if NO_COLOR is set), else plain."""
    if not sys.stdout.isatty():
        print(plain(answer), end="")
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False)
    for part in readable(answer):
        if isinstance(part, Table):
            for block in _blocks(part, console.width):
                drawn = RichTable(box=SIMPLE_HEAD)
                columns = zip(block.headings, _widths(block, console.width), strict=True)
                for place, (heading, width) in enumerate(columns):
                    side: Literal["left", "right"] = "right" if block.numeric(place) else "left"
                    drawn.add_column(heading, justify=side, header_style="bold", overflow="fold", width=width)
                for row in block.texts():
                    drawn.add_row(*map(Text, row))
                console.print(drawn, crop=False)
            continue
        for line in part.split("\n"):
            # Prose is broken between words; code and columns are left to the terminal, so that they can be copied.
            console.print(line, soft_wrap=line.startswith(" ") or "  " in line)


def plain(answer: Answer, width: int | None = None) -> str:
    """An answer as text, one row of a table per line; prose is broken between words if a ``width`` is given."""
    parts = (_broken(part, width) if isinstance(part, str) else aligned(part) for part in readable(answer))
    return "\n".join(f"{part}\n" for part in parts)


def screen_width() -> int | None:
    """How wide prose is on a terminal; None where nobody looks at one."""
    if not sys.stdout.isatty():
        return None
    return max(_NARROWEST, min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns))


def readable(answer: Answer) -> Iterator[str | Table]:
    """What can be read, in order: paragraphs and tables; pictures are left out, folded answers are one line each."""
    heading = _heading(answer)
    if heading:
        yield heading
    for folded, group in groupby(answer.parts, lambda part: isinstance(part, Answer) and part.folded):
        if folded:
            yield "\n".join(_heading(part) for part in group if isinstance(part, Answer))
        else:
            for part in group:
                yield from _readable_part(part)


def _heading(answer: Answer) -> str:
    tone = answer.tone if answer.folded else answer.tone.upper()
    return ": ".join(filter(None, (tone, answer.title, answer.statement)))


def _broken(text: str, width: int | None) -> str:
    """Prose in lines that fit; code and columns, which have several spaces in a row, as they are."""
    if width is None:
        return text
    return "\n".join(
        line
        if line.startswith(" ") or "  " in line
        else "\n".join(wrap(line, width, break_long_words=False, break_on_hyphens=False))
        for line in text.split("\n")
    )


def _readable_part(part: Part) -> Iterator[str | Table]:
    if isinstance(part, Answer):
        yield from readable(part)
    elif isinstance(part, Facts):
        yield "\n".join(f"{name}: {text}" for name, text in part.texts.items())
    elif isinstance(part, Code):
        lines = [f"  {line}".rstrip() for line in part.text.splitlines()]
        if part.brief and len(lines) > _CODE_LINES:
            lines[_CODE_LINES - 1 :] = [f"  # ... {len(lines) - _CODE_LINES + 1} more lines"]
        yield "\n".join([*([part.caption] if part.caption else []), *lines])
    elif isinstance(part, Table):
        if part.caption:
            yield part.caption
        yield part.for_people()
    elif isinstance(part, str):
        yield part


def aligned(table: Table) -> str:
    """A table in columns of spaces, with a line of dashes under its headings."""
    lines = [list(table.headings), *table.texts()]
    count = len(table.columns)
    widths = [max(len(line[place]) for line in lines) for place in range(count)]
    right = [table.numeric(place) for place in range(count)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "  ".join(f"{t:>{w}}" if r else f"{t:<{w}}" for t, w, r in zip(line, widths, right)).rstrip()
        for line in lines
    )


def _blocks(table: Table, width: int) -> Iterator[Table]:
    """The table; of one that is too wide for the screen some columns at a time, the first with all of them."""
    needed = [_least_width(table, place) + _PADDING for place in range(len(table.columns))]
    rest = list(range(1, len(needed)))
    while True:
        chosen, room = [0], width - 1 - needed[0]
        while rest and (len(chosen) == 1 or needed[rest[0]] <= room):
            room -= needed[rest[0]]
            chosen.append(rest.pop(0))
        yield table.select(chosen)
        if not rest:
            return


def _least_width(table: Table, place: int) -> int:
    """Numbers and words of headings are never broken, texts are, between words."""
    cells = [row[place] for row in table.texts()]
    longest = max(map(len, cells), default=1)
    if not table.numeric(place):
        word = max((len(word) for cell in cells for word in cell.split()), default=1)
        longest = max(min(longest, _TEXT), min(word, _WORD))
    return max(longest, *map(len, table.headings[place].split()))


def _widths(table: Table, room: int) -> list[int]:
    """Of all columns; in a table that is too wide the widest ones give way, as far as they can."""
    cells = [table.headings, *table.texts()]
    widths = [max(len(row[place]) for row in cells) for place in range(len(table.columns))]
    spare = [width - _least_width(table, place) for place, width in enumerate(widths)]
    while sum(widths) + _PADDING * len(widths) >= room and any(spare):
        widest = max((place for place, left in enumerate(spare) if left), key=widths.__getitem__)
        widths[widest] -= 1
        spare[widest] -= 1
    return widths
