"""Several experiments in one run: it goes on after failures, and keeps what is finished."""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from foretrain.experiments import registry
from foretrain.experiments.experiment import Experiment, Result, Scale
from foretrain.experiments.parts import Parts
from foretrain.experiments.runs.outcome import Record, Run, keep_record, kept_record
from foretrain.support.answers import Answer
from foretrain.support.atomic import new_file
from foretrain.support.errors import FileError, ForetrainError, ForetrainWarning, InputError
from foretrain.support.processes import run_apart
from foretrain.support.progress import Progress
from foretrain.support.user_warnings import warn_user

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
            return _perform(task, start, warned)
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


def _perform(task: Task, start: float, warned: Sequence[warnings.WarningMessage]) -> Record:
    experiment = registry.get(task.name)
    parts = task.folder / _PARTS if task.folder is not None and experiment.resumable else None
    result = experiment.run(task.scale, task.seed, keep=parts)
    seconds = time.perf_counter() - start
    if task.folder is None:
        return Record.of(task.name, result, seconds, _texts(warned))
    # With numpy, which the list of experiments does without.
    from foretrain.support.answers.folder import write_folder

    write_folder(task.folder, answer_of(experiment, task.scale, task.seed, result), overwrite=True)
    record = Record.of(task.name, result, seconds, _texts(warned))
    keep_record(task.folder, record)
    (task.folder / _TRACE).unlink(missing_ok=True)
    return record


def answer_of(experiment: Experiment, scale: Scale, seed: int, result: Result) -> Answer:
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
