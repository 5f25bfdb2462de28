"""`python -m bench`: measure ours beside peers and limits, print one table, keep a dated record in bench/results."""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from bench.harness.jobs import words
from bench.harness.rates import Rates, cores, load
from bench.harness.records import RESULTS
from bench.harness.runs import (
    FULL,
    INTERRUPTED,
    QUICK,
    Run,
    Task,
    measure,
    newest_lines,
    newest_record,
    save_in,
)
from bench.harness.table import show
from foretrain.support.errors import ForetrainError, InputError, unknown_name

T = TypeVar("T")

BUSY = 0.25  # load per core
STOPPED = 130  # the exit code that shells give to Ctrl-C


def all_tasks() -> list[Task]:
    """Of the modules of this folder that have a function `jobs`; one that cannot be had is a task that fails."""
    found: list[Task] = []
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if not module.ispkg and module.name != "__main__":
            found += tasks_of(f"bench.{module.name}")
    return found


def tasks_of(module: str) -> list[Task]:
    """Of one module, none if it is no benchmark."""
    name = module.rpartition(".")[2]
    try:
        make = getattr(importlib.import_module(module), "jobs", None)
        return [Task(name, job) for job in make()] if make else []
    except Exception as trouble:
        return [Task(name, trouble=words(trouble))]


def chosen(items: Sequence[T], key: Callable[[T], tuple[str, str]], names: Sequence[str]) -> list[T]:
    """Those of the benchmarks named, and of other names those that have one in theirs; all if none is given.

    `key` gives the benchmark and the job of an item.
    """
    benchmarks = {key(item)[0] for item in items}

    def has(item: T, name: str) -> bool:
        benchmark, job = key(item)
        return name == benchmark if name in benchmarks else name in job

    for name in names:
        if not any(has(item, name) for item in items):
            raise unknown_name("benchmark", name, benchmarks)
    return [item for item in items if not names or any(has(item, name) for name in names)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0, 1 if ours failed somewhere, 2 for bad input, 130 after Ctrl-C; a peer's failure is only shown."""
    options = _parser().parse_args(arguments)
    try:
        if options.repeats is not None and options.repeats < 1:
            raise InputError(f"--repeats must be at least 1, not {options.repeats}.")
        if options.show:
            return _shown(options)
        tasks = chosen(all_tasks(), lambda task: (task.benchmark, task.name), options.only)
        if options.list:
            print("\n".join(f"{task.benchmark}: {task.name}" for task in tasks))
            return 0
        return _measured(tasks, options)
    except ForetrainError as error:
        print(error, file=sys.stderr)
        return 2


def _shown(options: argparse.Namespace) -> int:
    """The newest record, of which nothing is measured again."""
    record = newest_record(options.results)
    if options.json:
        print(json.dumps(record, indent=1))
        return 0
    show(chosen(newest_lines(record), lambda pair: (pair[0].benchmark, pair[0].job), options.only))
    return 0


def _measured(tasks: Sequence[Task], options: argparse.Namespace) -> int:
    if load() > BUSY * cores():
        print(f"the machine is busy (load {load():.1f}): expect noise", file=sys.stderr)
    settings = QUICK if options.quick else FULL
    if options.repeats is not None:
        settings = replace(settings, rounds=options.repeats)
    save = save_in(options.results)
    found = measure(tasks, settings, Rates(), save)
    if found.lines:
        _told(found, options)
        print(f"kept in {save(found)}", file=sys.stderr)
    if found.ended == INTERRUPTED:
        return STOPPED
    return 1 if any(line.our_trouble for line in found.lines) else 0


def _told(found: Run, options: argparse.Namespace) -> None:
    record = found.record()
    if options.json:
        print(json.dumps(record, indent=1))
    else:
        show(newest_lines({"runs": [record]}))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    add = parser.add_argument
    add(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="a benchmark, or a part of jobs' names; repeatable",
    )
    add("--quick", action="store_true", help="fewer rounds, no exponents, and no job that takes long")
    add("--show", action="store_true", help="the table of the newest record; nothing is measured")
    add("--list", action="store_true", help="list the jobs and stop")
    add("--json", action="store_true", help="print one JSON document instead of the table")
    add("--repeats", type=int, metavar="N", help="rounds of all sides in turn")
    add("--results", type=Path, default=RESULTS, metavar="FOLDER", help="where records are kept")
    return parser


if __name__ == "__main__":
    # Keeps what there is and ends the peers, like Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
