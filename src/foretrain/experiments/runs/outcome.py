"""All records of a run together: its verdict, its tables, its picture and its dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from foretrain.experiments.experiment import Scale
from foretrain.experiments.runs.record import Record
from foretrain.support import answers
from foretrain.support.answers import FAINT, GREEN, ORANGE, RED, Answer, Figure, Part, Result, Table

if TYPE_CHECKING:
    import xarray

_COLUMNS = ("rows", "agree", "disagree", "explained", "seconds", "verdict", "error", "holds")


@dataclass(frozen=True, repr=False)
class Run(Result):
    """How several experiments ended: one record for each, in their order.

    ``folder`` is where they are kept, or None; the folder of an experiment in it has the experiment's name.
    """

    records: tuple[Record, ...]
    scale: Scale
    seed: int
    folder: Path | None = None

    @property
    def holds(self) -> bool:
        """Whether every experiment came to its end, and every row that disagrees is explained."""
        return all(record.holds for record in self.records)

    @property
    def verdict(self) -> str:
        """One sentence."""
        agree, disagree, explained = (
            sum(getattr(record, key) for record in self.records) for key in ("agree", "disagree", "explained")
        )
        failed = sum(bool(record.error) for record in self.records)
        return (
            f"{agree} tested rows of {len(self.records)} experiments agree, {disagree} disagree"
            + (f" ({explained} of them with an explanation)" if disagree else "")
            + (f"; {failed} experiments failed." if failed else ".")
        )

    def to_dataset(self) -> xarray.Dataset:
        """Counts, seconds and endings, labelled by experiment."""
        import xarray

        return xarray.Dataset(
            {key: ("experiment", [getattr(record, key) for record in self.records]) for key in _COLUMNS},
            coords={"experiment": [record.name for record in self.records]},
            attrs={"scale": str(self.scale), "seed": self.seed, "verdict": self.verdict},
        )

    def answer(self) -> Answer:
        """The verdict, all endings, and the rows that disagree."""
        wrong = differences_table(self.records)
        parts: list[Part] = [verdicts_table(self.records)]
        parts += ["Rows that disagree:", wrong] if wrong.rows else []
        if any(record.error for record in self.records):
            parts.append("Run one that failed alone, with --debug on the command line, to see where.")
        facts = {"scale": self.scale, "seed": self.seed, "verdict": self.verdict, "holds": self.holds}
        record = {**facts, "experiments": [record.to_dict() for record in self.records]}
        return Answer(self.verdict, [*parts, self._figure], self.to_dataset, record, self.holds)

    def _figure(self) -> Figure:
        """Tested rows of every experiment by how they ended, and how long it took."""
        count = len(self.records)
        figure = Figure("Experiments", columns=2, size=(13, 1.9 + 0.26 * count))
        names = answers.names_axis(
            [record.name for record in self.records], low=-0.5, high=count - 0.5, reverse=True
        )
        counts = figure.panel(x="tested rows", y=names, legend="right")
        base = np.zeros(count)
        explained = [record.explained for record in self.records]
        unexplained = [record.disagree - record.explained for record in self.records]
        for label, values, color in (
            ("agree", [record.agree for record in self.records], GREEN),
            ("disagree, explained", explained, ORANGE),
            ("disagree", unexplained, RED),
        ):
            counts.bars(range(count), values, label, color, base=base, horizontal=True)
            base = base + values
        for place, record in enumerate(self.records):
            if record.error:
                counts.note(0.2, place, "failed", RED)
        times = figure.panel(x="seconds", y=names)
        times.bars(range(count), [record.seconds for record in self.records], "", FAINT, horizontal=True)
        return figure


def verdicts_table(records: Sequence[Record]) -> Table:
    """One row for each experiment."""
    columns = ("experiment", "rows", "agree", "disagree", "of these explained", "seconds", "verdict")
    rows = [
        (one.name, one.rows, one.agree, one.disagree, one.explained, round(one.seconds, 1), one.ending)
        for one in records
    ]
    return Table(columns, rows)


def differences_table(records: Sequence[Record]) -> Table:
    """The rows that disagree, with what is known about them; those without an explanation first."""
    rows = [
        (record.name, row.quantity, row.expected, row.here, row.explained, row.note)
        for record in records
        for row in record.differences
    ]
    columns = ("experiment", "quantity", "published or theory", "here", "explained", "note")
    return Table(columns, sorted(rows, key=lambda row: row[4]))
