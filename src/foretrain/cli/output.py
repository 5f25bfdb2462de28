"""Printing for people, JSON for machines, and the folder that ``--save`` writes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from foretrain.support.atomic import new_file
from foretrain.support.errors import InputError
from foretrain.support.json_text import json_text
from foretrain.support.store import DATA
from foretrain.support.table import Cell, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from foretrain.cli.frame import Answer

__all__ = [
    "Cell",
    "Table",
    "plain",
    "refuse_taken_folder",
    "refuse_unknown_picture",
    "refuse_unwritable",
    "show",
    "write_folder",
    "write_picture",
]

_PICTURES = (".png", ".pdf", ".svg")
_DATA, _DOCUMENT, _TEXT_FILE, _PICTURE = DATA, "answer.json", "answer.txt", "figure.png"
_PADDING = 3  # between columns on a terminal
_TEXT, _WORD = 16, 32  # letters side by side that texts get at least, and that a word keeps together


def show(parts: Sequence[str | Table]) -> None:
    """Print paragraphs and tables: drawn on a terminal (without colours if NO_COLOR is set), else plain."""
    if not sys.stdout.isatty():
        print(plain(parts), end="")
        return
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    for part in parts:
        if isinstance(part, Table):
            for block in _blocks(part, console.width):
                console.print(_rich(block, console.width), crop=False)
            continue
        for line in part.split("\n"):
            # Prose is broken between words; code and columns are left to the terminal, so that they can be copied.
            console.print(line, soft_wrap=line.startswith(" ") or "  " in line)


def plain(parts: Sequence[str | Table]) -> str:
    """Paragraphs and tables as text, one row per line whatever the width of the screen."""
    return "\n".join(f"{part if isinstance(part, str) else _aligned(part)}\n" for part in parts)


def refuse_taken_folder(folder: Path, *, overwrite: bool) -> None:
    """Raise if ``write_folder`` would not be allowed to write."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: give --save the name of a folder.")
    refuse_unwritable(folder)
    for name in (_DATA, _DOCUMENT, _TEXT_FILE, _PICTURE):
        if (folder / name).exists() and not overwrite:
            raise InputError(
                f"{folder} holds an earlier answer: give --save another folder, or add --overwrite."
            )


def refuse_unwritable(path: Path) -> None:
    """Raise if neither the place of a file or folder nor the nearest folder above it can be written to."""
    there = path if path.exists() else next((one for one in path.absolute().parents if one.exists()), path)
    if not path.exists() and not there.is_dir():
        raise InputError(f"{path} cannot be written: {there} is a file, not a folder.")
    if not os.access(there, os.W_OK):
        raise InputError(f"{path} cannot be written: there is no permission to write to {there}.")


def refuse_unknown_picture(path: Path) -> None:
    """Raise if the file's name does not end like a picture, or cannot be written."""
    if path.is_dir():
        raise InputError(f"{path} is a folder: give --plot the name of a file.")
    if path.suffix.lower() not in _PICTURES:
        raise InputError(
            f"{path} does not say what kind of picture to draw: end it in {', '.join(_PICTURES)}."
        )
    refuse_unwritable(path)


def write_folder(folder: Path, answer: Answer, *, overwrite: bool) -> None:
    """Write the data as a labelled store, the answer as JSON and as text, and the picture."""
    from foretrain.support.store import save

    if answer.data is not None:
        save(answer.data, folder / _DATA, overwrite=overwrite)
    for name, content in (
        (_DOCUMENT, f"{json_text(answer.document)}\n"),
        (_TEXT_FILE, plain(answer.text)),
    ):
        with new_file(folder / name, overwrite=overwrite) as path:
            path.write_text(content, encoding="utf-8")
    if answer.figure is not None:
        write_picture(folder / _PICTURE, answer.figure, overwrite=overwrite)


def write_picture(path: Path, figure: Callable[[], Figure], *, overwrite: bool) -> None:
    """Draw to a file whose ending names the format."""
    with new_file(path, overwrite=overwrite) as partial:
        figure().savefig(partial, format=path.suffix.lower().lstrip("."), bbox_inches="tight")


def _aligned(table: Table) -> str:
    lines = [list(table.columns), *table.texts()]
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.columns))]
    right = [table.numeric(i) for i in range(len(table.columns))]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "  ".join(f"{t:>{w}}" if r else f"{t:<{w}}" for t, w, r in zip(line, widths, right)).rstrip()
        for line in lines
    )


def _blocks(table: Table, width: int) -> Iterator[Table]:
    """The table; of one that is too wide for the screen some columns at a time, the first with all of them."""
    needed = [_least_width(table, column) + _PADDING for column in range(len(table.columns))]
    rest = list(range(1, len(needed)))
    while True:
        chosen, room = [0], width - 1 - needed[0]
        while rest and (len(chosen) == 1 or needed[rest[0]] <= room):
            room -= needed[rest[0]]
            chosen.append(rest.pop(0))
        yield Table(
            tuple(table.columns[i] for i in chosen), [tuple(row[i] for i in chosen) for row in table.rows]
        )
        if not rest:
            return


def _least_width(table: Table, column: int) -> int:
    """Numbers and words of headings are never broken, texts are, between words."""
    cells = [row[column] for row in table.texts()]
    longest = max(map(len, cells), default=1)
    if not table.numeric(column):
        word = max((len(word) for cell in cells for word in cell.split()), default=1)
        longest = max(min(longest, _TEXT), min(word, _WORD))
    return max(longest, *map(len, table.columns[column].split()))


def _widths(table: Table, room: int) -> list[int]:
    """Of all columns; in a table that is too wide the widest ones give way, as far as they can."""
    cells = [table.columns, *table.texts()]
    widths = [max(len(row[column]) for row in cells) for column in range(len(table.columns))]
    spare = [width - _least_width(table, column) for column, width in enumerate(widths)]
    while sum(widths) + _PADDING * len(widths) >= room and any(spare):
        widest = max((column for column, left in enumerate(spare) if left), key=widths.__getitem__)
        widths[widest] -= 1
        spare[widest] -= 1
    return widths


def _rich(table: Table, room: int) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(box=SIMPLE_HEAD)
    for i, (column, width) in enumerate(zip(table.columns, _widths(table, room), strict=True)):
        side: Literal["left", "right"] = "right" if table.numeric(i) else "left"
        drawn.add_column(column, justify=side, header_style="bold", overflow="fold", width=width)
    for row in table.texts():
        drawn.add_row(*map(Text, row))
    return drawn
