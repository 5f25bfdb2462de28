"""Tables as data: columns with a meaning, cells as numbers or words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, TypeAlias

import numpy as np

Cell: TypeAlias = Any  # a text, a number, a truth value, or None for an empty cell


class Tone(str):
    """How something ended: "critical", "warning", "note" or "good". Pages show it as a badge, in its colour."""

    __slots__ = ()


@dataclass(frozen=True)
class Column:
    """A heading, what stands below it, its unit, and the name of the column that holds its standard error."""

    name: str
    meaning: str = ""
    unit: str = ""
    error: str = ""

    @property
    def heading(self) -> str:
        """Name and unit."""
        return f"{self.name} ({self.unit})" if self.unit else self.name


@dataclass(frozen=True, init=False)
class Table:
    """Rows under headings; ``caption`` says what they are.

    Renderers show numbers with six digits, truth values as yes and no, a value with an error column as value ± error.
    """

    columns: tuple[Column, ...]
    rows: Sequence[Sequence[Cell]]
    caption: str

    def __init__(
        self, columns: Sequence[str | Column], rows: Sequence[Sequence[Cell]], caption: str = ""
    ) -> None:
        headings = tuple(Column(column) if isinstance(column, str) else column for column in columns)
        object.__setattr__(self, "columns", headings)
        object.__setattr__(self, "rows", rows)
        object.__setattr__(self, "caption", caption)

    @classmethod
    def of(cls, columns: Mapping[Any, Any], caption: str = "") -> Table:
        """From columns by their headings; arrays will do, and cells below the end of a short one stay empty."""
        cells = [column.tolist() if hasattr(column, "tolist") else column for column in columns.values()]
        return cls(list(columns), list(zip_longest(*cells)), caption)

    @property
    def headings(self) -> tuple[str, ...]:
        """The headings as they are shown."""
        return tuple(column.heading for column in self.columns)

    def texts(self) -> list[list[str]]:
        """All cells as they are shown."""
        return [[cell_text(cell) for cell in row] for row in self.rows]

    def numeric(self, place: int) -> bool:
        """Whether a column holds numbers, which are set to the right."""
        cells = [row[place] for row in self.rows if row[place] is not None]
        return bool(cells) and all(
            isinstance(c, int | float | np.number) and not isinstance(c, bool) for c in cells
        )

    def select(self, places: Sequence[int]) -> Table:
        """Some columns only."""
        rows = [tuple(row[place] for place in places) for row in self.rows]
        return Table([self.columns[place] for place in places], rows, self.caption)

    def for_people(self) -> Table:
        """With every error behind its value, "1.25 ± 0.03", instead of in a column of its own."""
        names = [column.name for column in self.columns]
        errors = {
            place: names.index(column.error)
            for place, column in enumerate(self.columns)
            if column.error and column.error in names
        }
        if not errors:
            return self
        kept = [place for place in range(len(names)) if place not in errors.values()]
        rows = [
            [with_error(row[place], row[errors[place]]) if place in errors else row[place] for place in kept]
            for row in self.rows
        ]
        return Table([self.columns[place] for place in kept], rows, self.caption)

    def thinned(self, most: int) -> Table:
        """With at most so many rows, evenly spread, the first and the last among them; the caption says so."""
        if len(self.rows) <= most:
            return self
        places = np.unique(np.linspace(0, len(self.rows) - 1, most).round().astype(int))
        caption = f"{self.caption} ({len(places)} of {len(self.rows)} rows, evenly spread)".strip()
        return Table(self.columns, [self.rows[place] for place in places], caption)

    def records(self) -> list[dict[str, Cell]]:
        """Rows as dictionaries by the names of the columns."""
        names = [column.name for column in self.columns]
        return [dict(zip(names, row, strict=True)) for row in self.rows]


def cell_text(cell: Cell) -> str:
    """A cell as it is shown."""
    if cell is None:
        return ""
    if isinstance(cell, bool | np.bool_):
        return "yes" if cell else "no"
    # The sum turns -0 into 0.
    return f"{cell + 0.0:.6g}" if isinstance(cell, int | float | np.number) else str(cell)


def with_others(shares: Mapping[str, float], most: int) -> dict[str, float]:
    """At most so many of the shares, in their order; of more the smallest are put together as "others"."""
    if len(shares) <= most:
        return dict(shares)
    largest = sorted(shares, key=lambda name: -shares[name])[: most - 1]
    kept = {name: share for name, share in shares.items() if name in largest}
    return kept | {f"{len(shares) - len(kept)} others": sum(shares.values()) - sum(kept.values())}


def with_error(value: Cell, error: Cell) -> Cell:
    """A value with its standard error, "1.25 ± 0.03"; the value alone where it has none."""
    if not error or value is None or isinstance(value, str) or not np.isfinite(error):
        return value
    return f"{cell_text(value)} ± {error:.2g}"
