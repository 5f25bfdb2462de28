"""Verdicts, disagreements and rows of experiments as tables, for a terminal or a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from foretrain.experiments.runs.record import Record
from foretrain.support.table import Cell, Table

KNOWN = "no, known"  # a claim of the source that is known not to hold
_VERDICTS = ("experiment", "rows", "agree", "disagree", "of these explained", "seconds", "verdict")
_DIFFERENCES = ("experiment", "quantity", "published or theory", "here", "explained", "note")
_ROWS = {
    "quantity": "quantity",
    "published or theory": "expected",
    "here": "here",
    "standard error": "standard_error",
    "z": "z",
    "agrees": "agrees",
    "note": "note",
}


def verdicts(records: Sequence[Record]) -> Table:
    """One row for each experiment."""
    return Table(
        _VERDICTS,
        [
            (
                record.name,
                record.rows,
                record.agree,
                record.disagree,
                record.explained,
                round(record.seconds, 1),
                record.ending,
            )
            for record in records
        ],
    )


def differences(records: Sequence[Record]) -> Table:
    """The rows that disagree, with what is known about them; those without an explanation first."""
    return Table(
        _DIFFERENCES,
        [
            (record.name, row.quantity, row.expected, row.here, row.explained, row.note)
            for explained in (False, True)
            for record in records
            for row in record.differences
            if row.explained == explained
        ],
    )


def rows_of(document: Mapping[str, Any]) -> Table:
    """Rows of one experiment's document; columns in which nothing stands are left out."""
    shown: list[dict[str, Cell]] = [
        {
            **row,
            "z": None if row["z"] is None else round(row["z"], 2),
            "agrees": KNOWN if row["disputed"] and row["agrees"] is False else row["agrees"],
        }
        for row in document["rows"]
    ]
    used = {name: key for name, key in _ROWS.items() if any(row[key] not in (None, "") for row in shown)}
    return Table(tuple(used), [tuple(row[key] for key in used.values()) for row in shown])
