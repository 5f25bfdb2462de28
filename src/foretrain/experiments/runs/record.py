"""How one experiment of a run ended, and the file that keeps it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from foretrain.support.answers import Answer, Result, fields_answer, picked
from foretrain.support.atomic import new_file
from foretrain.support.errors import FileError

if TYPE_CHECKING:
    from foretrain.experiments import experiment

_FINISHED, _ANSWER = "finished.json", "answer.json"


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
    try:
        facts, answer = (
            dict(json.loads((folder / name).read_text(encoding="utf-8"))) for name in (_FINISHED, _ANSWER)
        )
        rows = tuple(Difference(**row) for row in facts["differences"])
        record = Record(**facts | {"differences": rows, "warnings": tuple(facts["warnings"])})
        complete = len(answer["rows"]) == record.rows
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise _damaged(folder) from error
    if not complete:
        raise _damaged(folder)
    return record


def _damaged(folder: Path) -> FileError:
    return FileError(f"what is kept in {folder} is damaged: remove that folder and run again.")
