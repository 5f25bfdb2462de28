"""`python -m bench [NAME ...]`: run the benchmarks and print one table of ratios and limits."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path

from bench.harness.jobs import Job, Row, run
from bench.harness.link import Links
from bench.harness.rates import Rates, cores, load
from bench.harness.table import keep, record, show
from foretrain.support.errors import FileError, ForetrainError, InputError, unknown_name
from foretrain.support.progress import track

DEFAULT_REPEATS = 7
DEFAULT_BUDGET = 6.0
BUSY = 0.25  # load per core


def benchmarks() -> dict[str, Callable[[], list[Job]]]:
    """Modules of this folder that have a function `jobs`."""
    found: dict[str, Callable[[], list[Job]]] = {}
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if not module.ispkg and module.name != "__main__":
            jobs = getattr(importlib.import_module(f"bench.{module.name}"), "jobs", None)
            if jobs is not None:
                found[module.name] = jobs
    return found


def chosen(names: list[str]) -> list[Job]:
    """The jobs of the benchmarks named, of all if none is."""
    known = benchmarks()
    for name in names:
        if name not in known:
            raise unknown_name("benchmark", name, known)
    return [job for name in names or known for job in known[name]()]


def main() -> int:
    """Exit code 0, 1 if ours failed in a row, 2 for bad input; a peer's failure is only shown."""
    options = _parser().parse_args()
    try:
        _check(options)
        jobs = [job for job in chosen(options.names) if options.only in job.name]
        if not jobs:
            raise InputError(f"no job has {options.only!r} in its name: --list shows all of them.")
        if options.list:
            print("\n".join(f"{job.name}: {job.how}" for job in jobs))
            return 0
        load_before = load()
        if load_before > BUSY * cores():
            print(f"the machine is busy (load {load_before:.1f}): expect noise", file=sys.stderr)
        rows, rates = _run_all(jobs, options.repeats, options.budget)
    except ForetrainError as error:
        print(error, file=sys.stderr)
        return 2
    show(rows, rates)
    if options.json:
        print(f"kept in {keep(record(rows, rates, load_before), options.json)}")
    return 1 if any(row.ours.trouble for row in rows) else 0


def _check(options: argparse.Namespace) -> None:
    """Before minutes are spent: what could only fail at the end."""
    if options.repeats < 1:
        raise InputError(f"--repeats must be at least 1, not {options.repeats}.")
    if options.json and not options.json.absolute().parent.is_dir():
        raise FileError(f"the folder of {options.json} does not exist: create it or name another file.")


def _run_all(jobs: list[Job], repeats: int, budget: float) -> tuple[list[Row], Rates]:
    rates = Rates()
    with Links() as links:
        rows = [run(job, links, rates, repeats, budget) for job in track(jobs, "benchmarks")]
    return rows, rates


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run; all if none is named")
    parser.add_argument("--only", default="", metavar="TEXT", help="only jobs with this text in their name")
    parser.add_argument("--list", action="store_true", help="list the jobs and stop")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write a record: a file, or a folder")
    parser.add_argument("--repeats", type=int, default=DEFAULT_REPEATS, help="rounds of all sides in turn")
    parser.add_argument(
        "--budget", type=float, default=DEFAULT_BUDGET, help="seconds after which a job starts no new round"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
