"""Verdicts, disagreements and rows of experiments as tables, for a terminal or a page."""

from __future__ import annotations

from collections.abc import Sequence

from foretrain.experiments.runs.record import Record
from foretrain.support.answers import Table

_VERDICTS = ("experiment", "rows", "agree", "disagree", "of these explained", "seconds", "verdict")
_DIFFERENCES = ("experiment", "quantity", "published or theory", "here", "explained", "note")


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
