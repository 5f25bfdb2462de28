"""Several experiments in one run: it goes on after failures, and keeps what is finished."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from foretrain.experiments import registry
from foretrain.experiments.experiment import Scale
from foretrain.experiments.parts import Parts
from foretrain.experiments.runs.one import Task, perform
from foretrain.experiments.runs.outcome import Run
from foretrain.experiments.runs.record import Record, kept_record
from foretrain.support.errors import ForetrainWarning, InputError
from foretrain.support.processes import run_apart
from foretrain.support.progress import Progress
from foretrain.support.user_warnings import warn_user

WORKERS = 2  # most experiments keep one core busy
Tell = Callable[[str], object]


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
    chosen, scale, tell = _chosen(names), Scale(scale), tell or (lambda _: None)
    if keep is None:
        records = _records([Task(name, scale, seed, None) for name in chosen], workers, tell)
        return Run(records, scale, seed)
    folder = Path(keep).expanduser()
    # Refuses the folder of another run, and one in which another process is at work.
    kept = Parts(folder, {"experiment": "several", "scale": str(scale), "seed": seed})
    try:
        records = _records([Task(name, scale, seed, folder / name) for name in chosen], workers, tell)
    finally:
        kept.close()
    return Run(records, scale, seed, folder)


def _chosen(names: Iterable[str] | None) -> tuple[str, ...]:
    if names is None:
        return registry.names()
    wanted = tuple(dict.fromkeys([names] if isinstance(names, str) else names))
    if not wanted:
        raise InputError("names is empty: name experiments, or leave names out for all of them.")
    return tuple(registry.get(name).name for name in wanted)


def _records(tasks: Sequence[Task], workers: int, tell: Tell) -> tuple[Record, ...]:
    """In the order of the tasks; what is finished already is not repeated."""
    found = {task.name: record for task in tasks if (record := kept_record(task.folder))}
    if found:
        tell(f"{len(found)} of {len(tasks)} experiments are finished already.")
    for record in _performed([task for task in tasks if task.name not in found], workers, tell):
        found[record.name] = record
    return tuple(found[task.name] for task in tasks)


def _performed(tasks: Sequence[Task], workers: int, tell: Tell) -> list[Record]:
    """All of them, told one by one."""
    cost = {task.name: registry.get(task.name).seconds for task in tasks}
    start, records = time.perf_counter(), list[Record]()
    with Progress("experiments", total=sum(cost.values())) as bar:
        for record in _as_they_finish(tasks, cost, workers):
            records.append(record)
            bar.advance(cost[record.name])
            for text in record.warnings:
                warn_user(f"{record.name}: {text}", ForetrainWarning)
            tell(
                f"{len(records)} of {len(tasks)}: {record.name} {record.ending} ({record.seconds:.0f} s)"
                + _left(records, cost, workers, time.perf_counter() - start)
            )
    return records


def _left(finished: Sequence[Record], cost: dict[str, float], workers: int, elapsed: float) -> str:
    """How long it will take, if the others are as much slower or faster than expected as the finished ones."""
    timed = [record for record in finished if record.seconds]  # others were lost
    if len(finished) == len(cost) or not timed:
        return ""
    pace = sum(record.seconds for record in timed) / sum(cost[record.name] for record in timed)
    whole = pace * sum(cost.values()) / min(workers, len(cost))
    left = max(whole - elapsed, 1.0)
    return f"; about {f'{left / 60:.0f} min' if left > 90 else f'{left:.0f} s'} left"


def _as_they_finish(tasks: Sequence[Task], cost: dict[str, float], workers: int) -> Iterable[Record]:
    """One after the other in this process, or several at a time in others: then the longest start first."""
    if workers == 1 or len(tasks) < 2:
        return map(perform, tasks)
    ordered = sorted(tasks, key=lambda task: -cost[task.name])
    return run_apart(perform, ordered, workers, lambda task, reason: Record(task.name, error=reason))
