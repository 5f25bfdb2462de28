"""Tables that scroll inside their own box, and figures with their numbers as such a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretrain.report.page.markup import Markup, element
from foretrain.report.page.numbers import cell

MOST_ROWS = 60


@dataclass(frozen=True)
class Table:
    """Rows under headings; ``caption`` says what they are."""

    caption: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Any]]

    def thinned(self) -> Table:
        """With at most ``MOST_ROWS`` rows, evenly spread, the first and the last among them."""
        if len(self.rows) <= MOST_ROWS:
            return self
        places = np.unique(np.linspace(0, len(self.rows) - 1, MOST_ROWS).round().astype(int))
        caption = f"{self.caption} ({len(places)} of {len(self.rows)} rows, evenly spread)"
        return Table(caption, self.columns, [self.rows[place] for place in places])


def table(told: Table) -> Markup:
    """A table in a box that can be scrolled with the keyboard."""
    right = [_is_numeric(told, column) for column in range(len(told.columns))]
    classes = ["number" if numeric else None for numeric in right]
    head = element(
        "tr", [element("th", c, scope="col", class_=k) for c, k in zip(told.columns, classes, strict=True)]
    )
    body = [_row(row, classes) for row in told.rows]
    inner = element("table", element("caption", told.caption), element("thead", head), element("tbody", body))
    return element("div", inner, class_="box", role="region", tabindex=0, aria_label=told.caption)


def _row(row: Sequence[Any], classes: Sequence[str | None]) -> Markup:
    first, *others = row
    return element(
        "tr",
        element("th", _shown(first), scope="row", class_=classes[0]),
        [element("td", _shown(value), class_=k) for value, k in zip(others, classes[1:], strict=True)],
    )


def _shown(value: Any) -> str:
    return value if isinstance(value, Markup) else cell(value)


def _is_numeric(told: Table, column: int) -> bool:
    values = [row[column] for row in told.rows if row[column] is not None]
    return bool(values) and all(_looks_numeric(value) for value in values)


def _looks_numeric(value: Any) -> bool:
    if isinstance(value, Markup):
        return value.startswith("<strong")
    if isinstance(value, str):
        return (value[:1] in "+−–" and len(value) < 12) or (value.endswith(" %") and value[:1].isdigit())
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)
