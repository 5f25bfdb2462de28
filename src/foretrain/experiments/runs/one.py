"""One experiment of a run: its numbers as an answer and in files, or its error, as a record."""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from foretrain.experiments import registry
from foretrain.experiments.experiment import Experiment, Result, Scale
from foretrain.experiments.runs.record import Record, keep_record
from foretrain.support.answers import Answer
from foretrain.support.atomic import new_file
from foretrain.support.errors import FileError, ForetrainError

_PARTS, _TRACE = "parts", "error.txt"


@dataclass(frozen=True)
class Task:
    """What is to be run, and where it is kept."""

    name: str
    scale: Scale
    seed: int
    folder: Path | None  # of this experiment


def perform(task: Task) -> Record:
    """Run one experiment and write what it found; an error becomes part of the record, and so do warnings."""
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as warned:
        try:
            return _performed(task, start, warned)
        except Exception as error:
            if task.folder is not None:
                with suppress(FileError, OSError):  # the record tells why nothing can be written
                    _write(task.folder / _TRACE, traceback.format_exc())
            seconds = time.perf_counter() - start
            return Record(task.name, seconds=seconds, error=_sentence(error), warnings=_texts(warned))


def _performed(task: Task, start: float, warned: Sequence[warnings.WarningMessage]) -> Record:
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


def _sentence(error: Exception) -> str:
    told = " ".join(str(error).split())
    return told if isinstance(error, ForetrainError) else f"unexpected {type(error).__name__} ({told})"


def _write(path: Path, content: str) -> None:
    with new_file(path, overwrite=True) as partial:
        partial.write_text(content + "\n", encoding="utf-8")
