"""Many experiments in one run: each in a process of its own, what is finished is kept, failures end nothing else.

>>> run = run_many(["parameter-count", "critical-lines"], keep="results")
>>> run.holds, run.verdict, run.records
"""

from __future__ import annotations

import json
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from foretrain.experiments import registry
from foretrain.experiments.parts import Parts
from foretrain.experiments.registry import Experiment, Scale
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
from foretrain.support.errors import FileError, ForetrainError, ForetrainWarning, InputError
from foretrain.support.processes import run_apart
from foretrain.support.progress import Progress
from foretrain.support.user_warnings import warn_user

if TYPE_CHECKING:
    import xarray

    from foretrain.experiments import registry


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
    def of(cls, name: str, result: registry.Result, seconds: float, warnings: tuple[str, ...] = ()) -> Record:
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
        columns = ("experiment", "rows", "agree", "disagree", "of these explained", "seconds", "verdict")
        endings = [
            (one.name, one.rows, one.agree, one.disagree, one.explained, round(one.seconds, 1), one.ending)
            for one in self.records
        ]
        parts: list[Part] = [Table(columns, endings)]
        # Rows that disagree, with what is known about them; those without an explanation come first.
        wrong = [
            (record.name, row.quantity, row.expected, row.here, row.explained, row.note)
            for record in self.records
            for row in record.differences
        ]
        if wrong:
            about = ("experiment", "quantity", "expected", "here", "explained", "note")
            parts += ["Rows that disagree:", Table(about, sorted(wrong, key=lambda row: row[4]))]
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


WORKERS = 2  # most experiments keep one core busy
Tell = Callable[[str], object]

_PARTS, _TRACE = "parts", "error.txt"


def run_many(
    names: Iterable[str] | None = None,
    scale: Scale | str = Scale.QUICK,
    seed: int = 0,
    *,
    keep: str | Path | None = None,
    workers: int = WORKERS,
    tell: Tell | None = None,
) -> Run:
    """Run experiments, all of them unless ``names`` says which, and say how each of them ended.

    An experiment that fails or disagrees ends nothing but itself; its record says why. ``workers`` experiments
    run at a time, each in a process of its own; with one worker they run in this process.

    ``keep`` is a folder in which every experiment gets one with its data, its table and its picture as soon as it is
    finished: the same call goes on from there after any interruption, and tries again what has failed.
    ``foretrain.report.experiments_page.write_experiments_page(run)`` makes a page of that folder.

    ``tell`` is called with a sentence whenever an experiment has ended.
    """
    if scale not in tuple(Scale):
        raise InputError(f"scale {scale!r} is not known: choose 'quick' or 'paper'.")
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise InputError(f"`workers` is {workers!r}: give a whole number from 1 on.")
    wanted = registry.names() if names is None else [names] if isinstance(names, str) else list(names)
    if not wanted:
        raise InputError("names is empty: name experiments, or leave names out for all of them.")
    chosen, scale = [registry.get(name).name for name in dict.fromkeys(wanted)], Scale(scale)
    folder = None if keep is None else Path(keep).expanduser()
    # Refuses the folder of another run, and one in which another one is at work.
    kept = Parts(folder, {"experiment": "several", "scale": str(scale), "seed": seed})
    try:
        tasks = [Task(name, scale, seed, None if folder is None else folder / name) for name in chosen]
        return Run(_records(tasks, workers, tell or (lambda _: None)), scale, seed, folder)
    finally:
        kept.close()


@dataclass(frozen=True)
class Task:
    """What is to be run, and where it is kept."""

    name: str
    scale: Scale
    seed: int
    folder: Path | None  # of this experiment


def _records(tasks: Sequence[Task], workers: int, tell: Tell) -> tuple[Record, ...]:
    """In the order of the tasks, told one by one; what is finished already is not repeated."""
    found = {task.name: record for task in tasks if (record := kept_record(task.folder))}
    if found:
        tell(f"{len(found)} of {len(tasks)} experiments are finished already.")
    left = [task for task in tasks if task.name not in found]
    cost = {task.name: registry.get(task.name).seconds for task in left}
    results: Iterable[Record] = map(perform, left)
    if workers > 1 and len(left) > 1:  # the longest start first
        ordered = sorted(left, key=lambda task: -cost[task.name])
        results = run_apart(perform, ordered, workers, lambda task, reason: Record(task.name, error=reason))
    start, finished = time.perf_counter(), list[Record]()
    with Progress("experiments", total=sum(cost.values())) as bar:
        for record in results:
            finished.append(record)
            bar.advance(cost[record.name])
            for text in record.warnings:
                warn_user(f"{record.name}: {text}", ForetrainWarning)
            tell(
                f"{len(finished)} of {len(left)}: {record.name} {record.ending} ({record.seconds:.0f} s)"
                + _time_left(finished, cost, workers, time.perf_counter() - start)
            )
    found |= {record.name: record for record in finished}
    return tuple(found[task.name] for task in tasks)


def _time_left(finished: Sequence[Record], cost: dict[str, float], workers: int, elapsed: float) -> str:
    """How long it will take, if the others are as much slower or faster than expected as the finished ones."""
    timed = [record for record in finished if record.seconds]  # others were lost
    if len(finished) == len(cost) or not timed:
        return ""
    pace = sum(record.seconds for record in timed) / sum(cost[record.name] for record in timed)
    whole = pace * sum(cost.values()) / min(workers, len(cost))
    left = max(whole - elapsed, 1.0)
    return f"; about {f'{left / 60:.0f} min' if left > 90 else f'{left:.0f} s'} left"


def perform(task: Task) -> Record:
    """Run one experiment and write what it found; an error becomes part of the record, and so do warnings."""
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as warned:
        try:
            experiment = registry.get(task.name)
            parts = task.folder / _PARTS if task.folder is not None and experiment.resumable else None
            result = experiment.run(task.scale, task.seed, keep=parts)
            seconds = time.perf_counter() - start
            if task.folder is None:
                return Record.of(task.name, result, seconds, _texts(warned))
            # This imports numpy, which the list of experiments does without.
            from foretrain.support.answers.folder import write_folder

            write_folder(task.folder, answer_of(experiment, task.scale, task.seed, result), overwrite=True)
            record = Record.of(task.name, result, seconds, _texts(warned))
            # This is the last file of a finished experiment.
            text = json.dumps(
                asdict(record), indent=2, default=lambda value: value.tolist()
            )  # numpy's numbers
            with new_file(task.folder / _FINISHED, overwrite=True) as path:
                path.write_text(f"{text}\n", encoding="utf-8")
            (task.folder / _TRACE).unlink(missing_ok=True)
            return record
        except Exception as error:
            if task.folder is not None:
                with (
                    suppress(FileError, OSError),  # the record tells why nothing can be written
                    new_file(task.folder / _TRACE, overwrite=True) as path,
                ):
                    path.write_text(traceback.format_exc() + "\n", encoding="utf-8")
            told = " ".join(str(error).split())
            if not isinstance(error, ForetrainError):
                told = f"unexpected {type(error).__name__} ({told})"
            seconds = time.perf_counter() - start
            return Record(task.name, seconds=seconds, error=told, warnings=_texts(warned))


def answer_of(experiment: Experiment, scale: Scale, seed: int, result: registry.Result) -> Answer:
    """The answer of a result with title and source, and in its data scale, seed and verdict."""
    facts = {"name": experiment.name, "title": experiment.title, "source": experiment.source}
    run = {"scale": str(scale), "seed": seed}
    answer = result.answer()
    table, *pictures = answer.parts
    return replace(
        answer,
        statement=experiment.title,
        parts=[experiment.source, table, result.verdict, *pictures],
        data=result.data.assign_attrs(facts | run | {"verdict": result.verdict}),
        record={**facts, **run, **answer.document()},
    )


def _texts(warned: Sequence[warnings.WarningMessage]) -> tuple[str, ...]:
    """Each in one line, and once."""
    return tuple(dict.fromkeys(" ".join(str(one.message).split()) for one in warned))
