"""Long names in tables: lines may end between their words, and nowhere else (assets/style.css)."""

from __future__ import annotations

import re

CELL = re.compile(r"<td.*?</td>", re.DOTALL)
CODE = re.compile(r"(?<=<code>)[^<]{25,}(?=</code>)")
BETWEEN = re.compile(r"([/._:=]+)(?=\w)")


def with_breaks(content: str) -> str:
    """The HTML of a page with places for breaks in the long code of its tables."""
    return CELL.sub(lambda cell: CODE.sub(lambda code: BETWEEN.sub(r"\1<wbr>", code[0]), cell[0]), content)
