"""How the experiments of a run ended: one by one with the files that keep it, and all together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from foretrain.experiments.experiment import Scale
from foretrain.support import answers
from foretrain.support.answers import (
    FAINT,
    GREEN,
    ORANGE,
    RED,
    Answer,
    Figure,
    Part,
    Result,
    Table,
    fields_answer,
    picked,
)
from foretrain.support.atomic import new_file
from foretrain.support.errors import FileError

if TYPE_CHECKING:
    import xarray

    from foretrain.experiments import experiment

_FINISHED, _ANSWER = "finished.json", "answer.json"
_COLUMNS = ("rows", "agree", "disagree", "explained", "seconds", "verdict", "error", "holds")


@dataclass(frozen=True)
class Difference:
    """A row that disagrees; ``explained`` if it tests a claim that is known not to hold, as the note says."""

    quantity: str
    expected: float | str
    here: float | str
    note: str
    explained: bool


@dataclass(frozen=True, repr=False)
class Record(Result):
    """How one experiment ended; its rows that test nothing are in ``rows`` only."""

    name: str
    rows: int = 0
    agree: int = 0
    differences: tuple[Difference, ...] = ()
    seconds: float = 0.0
    verdict: str = ""
    error: str = ""  # empty unless the experiment failed
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, name: str, result: experiment.Result, seconds: float, warnings: tuple[str, ...] = ()
    ) -> Record:
        """The record of an experiment that came to its end."""
        wrong = [row for row in result.table if row.agrees is False]
        return cls(
            name,
            rows=len(result.table),
            agree=sum(row.agrees is True for row in result.table),
            differences=tuple(
                Difference(row.quantity, row.expected, row.here, row.note, row.disputed) for row in wrong
            ),
            seconds=seconds,
            verdict=result.verdict,
            warnings=warnings,
        )

    @property
    def disagree(self) -> int:
        """Tested rows that disagree."""
        return len(self.differences)

    @property
    def explained(self) -> int:
        """Those of them that test claims known not to hold."""
        return sum(row.explained for row in self.differences)

    @property
    def holds(self) -> bool:
        """Whether it came to its end, and every tested row agrees or is explained."""
        return not self.error and self.disagree == self.explained

    @property
    def ending(self) -> str:
        """In a few words."""
        if self.error:
            return f"FAILED: {self.error}"
        if not self.disagree:
            return "agrees"
        return "agrees, but for what is explained" if self.holds else "DISAGREES"

    def answer(self) -> Answer:
        """How it ended."""
        record = {**asdict(self), **picked(self, "disagree explained holds")}
        return fields_answer(self, f"{self.name} {self.ending}.", record=record, holds=self.holds)


def keep_record(folder: Path, record: Record) -> None:
    """Write it as the last file of a finished experiment."""
    text = json.dumps(asdict(record), indent=2, default=lambda value: value.tolist())  # numpy's numbers
    with new_file(folder / _FINISHED, overwrite=True) as path:
        path.write_text(f"{text}\n", encoding="utf-8")


def kept_record(folder: Path | None) -> Record | None:
    """What was found before, if all of it is there; a failed experiment is tried again."""
    if folder is None or not all((folder / name).exists() for name in (_FINISHED, _ANSWER)):
        return None
    damage = FileError(f"what is kept in {folder} is damaged: remove that folder and run again.")
    try:
        facts, answer = (
            dict(json.loads((folder / name).read_text(encoding="utf-8"))) for name in (_FINISHED, _ANSWER)
        )
        rows = tuple(Difference(**row) for row in facts["differences"])
        record = Record(**facts | {"differences": rows, "warnings": tuple(facts["warnings"])})
        complete = len(answer["rows"]) == record.rows
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise damage from error
    if not complete:
        raise damage
    return record


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
