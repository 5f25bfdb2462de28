"""Pages as sequences of cells: text and code, from Markdown or from a Python file in percent format."""

from __future__ import annotations

import re
from dataclasses import dataclass

FENCE = re.compile(r"^```python[ \t]*\n(.*?)^```[ \t]*$\n?", re.MULTILINE | re.DOTALL)
TITLE = re.compile(r'\A"""(.*?)"""', re.DOTALL)
MARK = re.compile(r"^# %%(.*)$\n?", re.MULTILINE)


@dataclass(frozen=True)
class Cell:
    """A stretch of a page: Markdown, or Python to be run."""

    text: str
    code: bool


def markdown_cells(markdown: str) -> list[Cell]:
    """The cells of a Markdown page: what is fenced as ``python`` is code, everything else text."""
    cells, start = [], 0
    for fence in FENCE.finditer(markdown):
        cells.append(Cell(markdown[start : fence.start()], code=False))
        cells.append(Cell(fence.group(1), code=True))
        start = fence.end()
    return [*cells, Cell(markdown[start:], code=False)]


def percent_cells(source: str) -> list[Cell]:
    """The cells of a Python file whose docstring is the title and whose cells begin with ``# %%``."""
    title = TITLE.match(source)
    if title is None:
        raise ValueError('a tutorial begins with its title as a docstring, """Like this."""')
    cells = [Cell(f"# {title.group(1).strip().rstrip('.')}\n", code=False)]
    pieces = MARK.split(source[title.end() :])
    if pieces[0].strip():
        raise ValueError("between the title and the first '# %%' there must be nothing.")
    for label, body in zip(pieces[1::2], pieces[2::2], strict=True):
        if "[markdown]" in label:
            cells.append(Cell(_uncommented(body), code=False))
        elif body.strip():
            cells.append(Cell(body.strip("\n") + "\n", code=True))
    return cells


def _uncommented(body: str) -> str:
    lines = body.strip("\n").split("\n")
    for line in lines:
        if line and not line.startswith("#"):
            raise ValueError(f"a markdown cell holds comments only, not {line!r}")
    return "\n".join(re.sub(r"^# ?", "", line) for line in lines) + "\n"
