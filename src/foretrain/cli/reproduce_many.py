"""Several experiments in one run: it goes on after failures, keeps what is finished, and ends with one table."""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretrain.cli.frame import Answer
from foretrain.cli.output import Table, write_folder
from foretrain.cli.reproduce_answer import answer_of
from foretrain.experiments import registry
from foretrain.support.atomic import new_file
from foretrain.support.errors import FileError, ForetrainError
from foretrain.support.progress import Progress

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

    from foretrain.experiments.registry import Experiment, Result, Scale

_FINISHED, _PARTS, _TRACE = "finished.json", "parts", "error.txt"
_COLUMNS = ("experiment", "rows", "agree", "disagree", "of these explained", "seconds", "verdict")


@dataclass(frozen=True)
class Record:
    """How one experiment ended; its rows that test nothing are in ``rows`` only."""

    name: str
    rows: int = 0
    agree: int = 0
    disagree: int = 0
    explained: int = 0  # of the rows that disagree: claims that are known not to hold, with a note why
    seconds: float = 0.0
    verdict: str = ""
    error: str = ""  # empty unless the experiment failed
    differences: tuple[
        tuple[str, float | str, float | str, str], ...
    ] = ()  # rows that disagree, with their notes

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


@dataclass(frozen=True)
class _Task:
    name: str
    scale: Scale
    seed: int
    folder: Path | None  # of this experiment


def run_many(
    experiments: Sequence[Experiment], scale: Scale, seed: int, keep: Path | None, jobs: int
) -> Answer:
    """Run them, some at a time, and put their verdicts into one table; what ``keep`` has finished is not repeated."""
    if keep is not None:
        from foretrain.experiments.parts import Parts

        keep = keep.expanduser()
        Parts(
            keep, {"experiment": "several", "scale": str(scale), "seed": seed}
        )  # refuses another run's folder
    folders = {entry.name: keep and keep / entry.name for entry in experiments}
    found = {name: record for name, folder in folders.items() if (record := _finished(folder))}
    left = [entry for entry in experiments if entry.name not in found]
    if found:
        _say(f"{len(found)} of {len(experiments)} experiments are finished already.")
    tasks = [_Task(entry.name, scale, seed, folders[entry.name]) for entry in left]
    for record in _performed(tasks, jobs):
        found[record.name] = record
    records = [found[entry.name] for entry in experiments]
    answer = _answer(records, scale, seed)
    if keep is None:
        return answer
    from foretrain.cli.reproduce_page import write_index

    return _pointing_to(answer, write_index(keep, answer.text[0], records))


def _performed(tasks: Sequence[_Task], jobs: int) -> list[Record]:
    """All of them, told one by one on stderr; the longest start first if several run at a time."""
    from foretrain.support import engines

    cost = {task.name: registry.get(task.name).seconds for task in tasks}
    ordered = sorted(tasks, key=lambda task: -cost[task.name]) if jobs > 1 else tasks
    start, records, done = time.perf_counter(), [], 0.0
    with Progress("experiments", total=sum(cost.values())) as bar:
        for record in engines.run(_perform, ordered, workers=jobs, ordered=False):
            records.append(record)
            done += cost[record.name]
            bar.advance(cost[record.name])
            left = (sum(cost.values()) - done) / done * (time.perf_counter() - start)
            _say(
                f"{len(records)} of {len(tasks)}: {record.name} {record.ending} ({record.seconds:.0f} s)"
                + (f"; about {_duration(left)} left" if len(records) < len(tasks) else "")
            )
    return records


def _perform(task: _Task) -> Record:
    """Run one experiment and write what it found; an error becomes part of the record."""
    experiment, start = registry.get(task.name), time.perf_counter()
    parts = task.folder / _PARTS if task.folder is not None and experiment.resumable else None
    try:
        result = experiment.run(task.scale, task.seed, keep=parts)
        record = _record(task.name, result, time.perf_counter() - start)
        if task.folder is not None:
            write_folder(task.folder, answer_of(experiment, task.scale, task.seed, result), overwrite=True)
            _write(task.folder / _FINISHED, json.dumps(asdict(record), indent=2))
    except Exception as error:
        if task.folder is not None:
            _write(task.folder / _TRACE, traceback.format_exc())
        return Record(task.name, seconds=time.perf_counter() - start, error=_sentence(error))
    return record


def _record(name: str, result: Result, seconds: float) -> Record:
    wrong = [row for row in result.table if row.agrees is False]
    return Record(
        name,
        rows=len(result.table),
        agree=sum(row.agrees is True for row in result.table),
        disagree=len(wrong),
        explained=sum(row.disputed for row in wrong),
        seconds=seconds,
        verdict=result.verdict,
        differences=tuple((row.quantity, row.expected, row.here, row.note) for row in wrong),
    )


def _finished(folder: Path | None) -> Record | None:
    """What was found before, if it is there; a failed experiment is tried again."""
    if folder is None or not (folder / _FINISHED).exists():
        return None
    try:
        facts = json.loads((folder / _FINISHED).read_text(encoding="utf-8"))
        return Record(**facts | {"differences": tuple(map(tuple, facts["differences"]))})
    except (ValueError, TypeError, KeyError) as error:
        raise FileError(f"{folder / _FINISHED} is damaged: remove {folder} and run again.") from error


def _sentence(error: Exception) -> str:
    told = " ".join(str(error).split())
    return told if isinstance(error, ForetrainError) else f"unexpected {type(error).__name__} ({told})"


def _write(path: Path, content: str) -> None:
    with new_file(path, overwrite=True) as partial_file:
        partial_file.write_text(content + "\n", encoding="utf-8")


def _answer(records: Sequence[Record], scale: Scale, seed: int) -> Answer:
    holds = all(record.holds for record in records)
    rows = [
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
    ]
    count = {
        key: sum(getattr(record, key) for record in records) for key in ("agree", "disagree", "explained")
    }
    failed = sum(bool(record.error) for record in records)
    verdict = (
        f"{count['agree']} tested rows of {len(records)} experiments agree, {count['disagree']} disagree"
        + (f" ({count['explained']} of them with an explanation)" if count["disagree"] else "")
        + (f"; {failed} experiments failed." if failed else ".")
    )
    document = [{**asdict(record), "holds": record.holds} for record in records]
    return Answer(
        {"scale": scale, "seed": seed, "verdict": verdict, "holds": holds, "experiments": document},
        [Table(_COLUMNS, rows), *_differences(records), verdict],
        data=_dataset(records, scale, seed, verdict),
        figure=partial(_draw, tuple(records)),
        holds=holds,
    )


def _differences(records: Sequence[Record]) -> list[str | Table]:
    """The rows that disagree, with what is known about them."""
    rows = [(record.name, *difference) for record in records for difference in record.differences]
    columns = ("experiment", "quantity", "published or theory", "here", "note")
    return ["Rows that disagree:", Table(columns, rows)] if rows else []


def _pointing_to(answer: Answer, page: Path) -> Answer:
    """The answer with a word on where everything is shown."""
    document = {**answer.document, "page": str(page)}
    text = [*answer.text, f"Tables and pictures: {page}"]
    return Answer(document, text, answer.data, answer.figure, answer.holds)


def _dataset(records: Sequence[Record], scale: Scale, seed: int, verdict: str) -> xarray.Dataset:
    import xarray

    columns: dict[str, Any] = {
        key: ("experiment", [getattr(record, key) for record in records])
        for key in ("rows", "agree", "disagree", "explained", "seconds", "verdict", "error", "holds")
    }
    return xarray.Dataset(
        columns,
        coords={"experiment": [record.name for record in records]},
        attrs={"scale": str(scale), "seed": seed, "verdict": verdict},
    )


def _draw(records: Sequence[Record]) -> Figure:
    """Tested rows of every experiment by how they ended, and how long it took."""
    from foretrain.support.drawing import FAINT, GREEN, ORANGE, RED, new_figure

    figure, (counts, times) = new_figure("Experiments", 1, 2, (13, 1.6 + 0.26 * len(records)))
    place = list(range(len(records)))
    left = [0] * len(records)
    parts = {
        "agree": ([record.agree for record in records], GREEN),
        "disagree, explained": ([record.explained for record in records], ORANGE),
        "disagree": ([record.disagree - record.explained for record in records], RED),
    }
    for label, (values, colour) in parts.items():
        counts.barh(place, values, left=left, color=colour, label=label)
        left = [a + b for a, b in zip(left, values, strict=True)]
    for index, record in enumerate(records):
        if record.error:
            counts.text(0.2, index, "failed", color=RED, va="center", fontsize=9)
    times.barh(place, [record.seconds for record in records], color=FAINT)
    for panel, label in ((counts, "tested rows"), (times, "seconds")):
        panel.set(xlabel=label, ylim=(len(records) - 0.5, -0.5))
    counts.set_yticks(place, [record.name for record in records], fontsize=9)
    times.set_yticks(place, [""] * len(records))
    counts.legend(frameon=False, fontsize=9, ncol=3, loc="lower left", bbox_to_anchor=(0, 1))
    return figure


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s"


def _say(sentence: str) -> None:
    print(f"foretrain: {sentence}", file=sys.stderr, flush=True)
