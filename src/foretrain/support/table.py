"""A table for people, wherever it is shown: its cells as texts, and which columns hold numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

Cell: TypeAlias = str | float | bool | None


@dataclass(frozen=True)
class Table:
    """Rows under headings; numbers are shown with six digits, truth values as yes and no."""

    columns: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]

    def texts(self) -> list[list[str]]:
        """All cells as they are shown."""
        return [[_text(cell) for cell in row] for row in self.rows]

    def numeric(self, column: int) -> bool:
        """Whether a column holds numbers, which are set to the right."""
        cells = [row[column] for row in self.rows if row[column] is not None]
        return bool(cells) and all(isinstance(c, int | float) and not isinstance(c, bool) for c in cells)


def _text(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return cell if isinstance(cell, str) else f"{cell + 0.0:.6g}"  # the sum turns -0 into 0
