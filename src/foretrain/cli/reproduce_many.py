"""Several experiments in one run: it goes on after failures, keeps what is finished, and ends with one table."""

from __future__ import annotations

import sys
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretrain.cli.frame import Answer
from foretrain.cli.output import write_folder
from foretrain.cli.reproduce_answer import answer_of
from foretrain.cli.reproduce_processes import run_apart
from foretrain.cli.reproduce_record import Record, keep_record, kept_record
from foretrain.cli.reproduce_summary import summary
from foretrain.experiments import registry
from foretrain.support.atomic import new_file
from foretrain.support.errors import ForetrainError
from foretrain.support.progress import Progress

if TYPE_CHECKING:
    from foretrain.experiments.registry import Experiment, Scale

_PARTS, _TRACE = "parts", "error.txt"


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
    if keep is None:
        return summary(_run(experiments, scale, seed, None, jobs), scale, seed)
    from foretrain.cli.reproduce_page import write_index
    from foretrain.experiments.parts import Parts

    keep = keep.expanduser()
    # Refuses the folder of another run, and one in which another process is at work.
    kept = Parts(keep, {"experiment": "several", "scale": str(scale), "seed": seed})
    try:
        records = _run(experiments, scale, seed, keep, jobs)
    except KeyboardInterrupt:
        _say(f"what is finished is kept in {keep}: the same command goes on from there.")
        raise
    finally:
        kept.close()
    answer = summary(records, scale, seed)
    return _pointing_to(answer, write_index(keep, answer, records))


def _run(
    experiments: Sequence[Experiment], scale: Scale, seed: int, keep: Path | None, jobs: int
) -> list[Record]:
    """Records in the order of the experiments."""
    folders = {entry.name: keep and keep / entry.name for entry in experiments}
    found = {name: record for name, folder in folders.items() if (record := kept_record(folder))}
    if found:
        _say(f"{len(found)} of {len(experiments)} experiments are finished already.")
    tasks = [_Task(name, scale, seed, folder) for name, folder in folders.items() if name not in found]
    for record in _performed(tasks, jobs):
        found[record.name] = record
    return [found[entry.name] for entry in experiments]


def _performed(tasks: Sequence[_Task], jobs: int) -> list[Record]:
    """All of them, told one by one on stderr."""
    cost = {task.name: registry.get(task.name).seconds for task in tasks}
    start, records, done = time.perf_counter(), [], 0.0
    with Progress("experiments", total=sum(cost.values())) as bar:
        for record in _as_they_finish(tasks, cost, jobs):
            records.append(record)
            done += cost[record.name]
            bar.advance(cost[record.name])
            left = (sum(cost.values()) - done) / done * (time.perf_counter() - start)
            _say(
                f"{len(records)} of {len(tasks)}: {record.name} {record.ending} ({record.seconds:.0f} s)"
                + (f"; about {_duration(left)} left" if len(records) < len(tasks) else "")
            )
    return records


def _as_they_finish(tasks: Sequence[_Task], cost: dict[str, float], jobs: int) -> Iterable[Record]:
    """One after the other in this process, or several at a time in others: then the longest start first."""
    if jobs == 1 or len(tasks) < 2:
        return map(_perform, tasks)
    ordered = sorted(tasks, key=lambda task: -cost[task.name])
    return run_apart(_perform, ordered, jobs, lambda task, reason: Record(task.name, error=reason))


def _perform(task: _Task) -> Record:
    """Run one experiment and write what it found; an error becomes part of the record."""
    experiment, start = registry.get(task.name), time.perf_counter()
    parts = task.folder / _PARTS if task.folder is not None and experiment.resumable else None
    try:
        with _warnings_of(task.name):
            result = experiment.run(task.scale, task.seed, keep=parts)
            record = Record.of(task.name, result, time.perf_counter() - start)
            if task.folder is not None:
                answer = answer_of(experiment, task.scale, task.seed, result)
                write_folder(task.folder, answer, overwrite=True)
                keep_record(task.folder, record)
                (task.folder / _TRACE).unlink(missing_ok=True)
    except Exception as error:
        if task.folder is not None:
            _write(task.folder / _TRACE, traceback.format_exc())
        return Record(task.name, seconds=time.perf_counter() - start, error=_sentence(error))
    return record


@contextmanager
def _warnings_of(name: str) -> Iterator[None]:
    """Warnings in one line that says which experiment they come from."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        _say(f"warning: {name}: {' '.join(str(message).split())}")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _sentence(error: Exception) -> str:
    told = " ".join(str(error).split())
    if isinstance(error, ForetrainError):
        return told
    return f"unexpected {type(error).__name__} ({told}): run it alone with --debug"


def _write(path: Path, content: str) -> None:
    with new_file(path, overwrite=True) as partial_file:
        partial_file.write_text(content + "\n", encoding="utf-8")


def _pointing_to(answer: Answer, page: Path) -> Answer:
    """The answer with a word on where everything is shown."""
    document = {**answer.document, "page": str(page)}
    text = [*answer.text, f"Tables and pictures: {page}"]
    return Answer(document, text, answer.data, answer.figure, answer.holds)


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s"


def _say(sentence: str) -> None:
    print(f"foretrain: {sentence}", file=sys.stderr, flush=True)
