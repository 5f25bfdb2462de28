"""One experiment's result as the answer of a command: document, table, data and picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from foretrain.cli.frame import Answer
from foretrain.cli.output import Cell, Table

if TYPE_CHECKING:
    from foretrain.experiments.registry import Experiment, Result, Scale

_COLUMNS = {
    "quantity": "quantity",
    "published or theory": "expected",
    "here": "here",
    "standard error": "standard_error",
    "z": "z",
    "agrees": "agrees",
    "note": "note",
}
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
            table_of(rows),
            result.verdict,
        ],
        data=result.data.assign_attrs(facts | {"scale": str(scale), "seed": seed, "verdict": result.verdict}),
        figure=result.figure,
        holds=result.agrees,
    )


def table_of(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Rows of the document as a table; columns in which nothing stands are left out."""
    shown: list[dict[str, Cell]] = [
        {
            **row,
            "z": None if row["z"] is None else round(row["z"], 2),
            "agrees": KNOWN if row["disputed"] and row["agrees"] is False else row["agrees"],
        }
        for row in rows
    ]
    used = {name: key for name, key in _COLUMNS.items() if any(row[key] not in (None, "") for row in shown)}
    return Table(tuple(used), [tuple(row[key] for key in used.values()) for row in shown])
