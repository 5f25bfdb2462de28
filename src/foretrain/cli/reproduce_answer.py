"""One experiment's result as the answer of a command: document, table, data and picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from foretrain.cli.frame import Answer
from foretrain.cli.output import Cell, Table

if TYPE_CHECKING:
    from foretrain.experiments.registry import Experiment, Result, Scale

_KEYS = ("quantity", "expected", "here", "standard_error", "z", "agrees", "note")
COLUMNS = ("quantity", "published or theory", "here", "standard error", "z", "agrees", "note")
KNOWN = "no, known"  # a claim of the source that is known not to hold


def answer_of(experiment: Experiment, scale: Scale, seed: int, result: Result) -> Answer:
    """What is printed, saved and drawn; it holds if no tested row disagrees."""
    rows: list[dict[str, Any]] = [
        {
            "quantity": row.quantity,
            "expected": row.expected,
            "here": row.here,
            "standard_error": row.standard_error,
            "z": row.z,
            "agrees": row.agrees,
            "note": row.note,
            "disputed": row.disputed,
        }
        for row in result.table
    ]
    facts = {"name": experiment.name, "title": experiment.title, "source": experiment.source}
    noted, cells = any(row.note for row in result.table), cells_of(rows)
    return Answer(
        {
            **facts,
            "scale": scale,
            "seed": seed,
            "verdict": result.verdict,
            "agrees": result.agrees,
            "rows": rows,
        },
        [
            experiment.title,
            experiment.source,
            Table(COLUMNS, cells) if noted else Table(COLUMNS[:-1], [cell[:-1] for cell in cells]),
            result.verdict,
        ],
        data=result.data.assign_attrs(facts | {"scale": str(scale), "seed": seed, "verdict": result.verdict}),
        figure=result.figure,
        holds=result.agrees,
    )


def cells_of(rows: Sequence[Mapping[str, Any]]) -> list[tuple[Cell, ...]]:
    """Rows of the document as those of a table, under its columns."""
    shown = [
        {
            **row,
            "z": None if row["z"] is None else round(row["z"], 2),
            "agrees": KNOWN if row["disputed"] and row["agrees"] is False else row["agrees"],
        }
        for row in rows
    ]
    return [tuple(row[key] for key in _KEYS) for row in shown]
