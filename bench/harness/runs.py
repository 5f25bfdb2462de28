"""A run: jobs one after the other, everything kept after each of them, so that no end of a run loses what it has.

The record of a day holds all its runs. The table shows of every job the newest measurement of all days, except that a
quick one does not stand in the way of a full one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from bench.harness.jobs import Job, grow, run, words
from bench.harness.lines import Line, failed, lines_of
from bench.harness.link import Links
from bench.harness.rates import Rates, cores
from bench.harness.records import RESULTS, keep, latest, machine_facts, path_of, read
from bench.peers import ENVIRONMENTS
from foretrain.support.progress import clear, on_terminal, track

KIND, COMMAND = "bench", "python -m bench"
COMPLETE, INTERRUPTED = "complete", "interrupted"
BANDWIDTH_BYTES = 2.0**28  # more than a cache holds


@dataclass(frozen=True)
class Settings:
    """How long every job is measured: rounds, and seconds after which no new one begins."""

    rounds: int = 7
    budget: float = 6.0
    exponents: bool = True
    long_jobs: bool = True


FULL, QUICK = Settings(), Settings(rounds=3, budget=1.0, exponents=False, long_jobs=False)


@dataclass(frozen=True)
class Task:
    """A job with the name of its benchmark; without a job, what went wrong when the benchmark made them."""

    benchmark: str
    job: Job | None = None
    trouble: str = ""

    @property
    def name(self) -> str:
        return self.job.name if self.job else self.benchmark


@dataclass
class Run:
    """What is known so far of a run."""

    settings: Settings
    facts: dict[str, Any]
    rates: Rates
    left_out: list[str]
    lines: list[Line] = field(default_factory=list)
    minutes: float = 0.0
    ended: str = INTERRUPTED

    def record(self) -> dict[str, Any]:
        """For JSON: what a reader must know of the machine, and all lines."""
        date = self.facts["date"]
        machine = {name: value for name, value in self.facts.items() if name != "date"}
        return {
            "date": date,
            "ended": self.ended,
            "minutes": round(self.minutes, 2),
            "settings": asdict(self.settings),
            "machine": machine | {"threads": cores(), "peers": _peers(), "rates": dict(self.rates.measured)},
            "left out": list(self.left_out),
            "lines": [line.record() for line in self.lines],
        }


def measure(
    tasks: Sequence[Task], settings: Settings, rates: Rates, save: Callable[[Run], object] = lambda run: None
) -> Run:
    """Run the jobs, saving after each; after Ctrl-C what was measured is returned."""
    chosen = [task for task in tasks if settings.long_jobs or not (task.job and task.job.long)]
    left_out = [task.name for task in tasks if task not in chosen]
    found = Run(settings, machine_facts(), rates, left_out)
    start = time.monotonic()
    try:
        with _all_cores(), Links() as links:
            _rates_of_the_machine(rates)
            for task in track(chosen, "benchmarks"):
                if not on_terminal():
                    print(f"{task.benchmark}: {task.name}", file=sys.stderr, flush=True)
                found.lines += _lines(task, links, rates, settings)
                found.minutes = (time.monotonic() - start) / 60
                save(found)
        found.ended = COMPLETE
    except KeyboardInterrupt:
        clear()
    if found.lines:
        save(found)
    return found


def _lines(task: Task, links: Links, rates: Rates, settings: Settings) -> list[Line]:
    """Of one job; whatever it raises becomes a line."""
    if task.job is None:
        return [failed(task.benchmark, task.name, "", cores(), task.trouble)]
    try:
        row = run(task.job, links, rates, settings.rounds, settings.budget)
        if settings.exponents and row.ours.trouble is None:
            grow(row)
        return lines_of(task.benchmark, row, cores())
    except Exception as trouble:
        return [failed(task.benchmark, task.name, task.job.how, cores(), words(trouble))]


def save_in(folder: Path = RESULTS) -> Callable[[Run], Path]:
    """Keep a run in the record of its day, beside the day's other runs."""

    def save(found: Run) -> Path:
        record = found.record()
        target = path_of(KIND, record["date"], folder)
        before = read(target)["runs"] if target.exists() else []
        others = [each for each in before if each["date"] != record["date"]]
        return keep({"runs": [*others, record]}, target)

    return save


def newest_record(folder: Path = RESULTS) -> dict[str, Any]:
    """The runs of all days: few jobs that were measured today leave the others as they were."""
    latest(KIND, COMMAND, folder)  # refuses where nothing was measured
    days = sorted(folder.glob(f"{KIND}-????-??-??.json"))
    return {"runs": [each for day in days for each in read(day)["runs"]]}


def newest_lines(record: Mapping[str, Any]) -> list[tuple[Line, Mapping[str, Any]]]:
    """The lines that the table of a record shows, by benchmark, each with its run."""
    chosen: dict[tuple[str, str], list[tuple[Line, Mapping[str, Any]]]] = {}
    for each in sorted(record["runs"], key=_rank):
        jobs: dict[tuple[str, str], list[tuple[Line, Mapping[str, Any]]]] = {}
        for entry in each["lines"]:
            line = Line.read(entry)
            jobs.setdefault((line.benchmark, line.job), []).append((line, each))
        chosen |= jobs
    pairs = [pair for job in chosen.values() for pair in job]
    return sorted(pairs, key=lambda pair: pair[0].benchmark)


def _rank(each: Mapping[str, Any]) -> tuple[bool, str]:
    """Later ones win: full runs over quick ones, then by date."""
    return each["settings"]["long_jobs"], each["date"]


@contextmanager
def _all_cores() -> Iterator[None]:
    """As many threads for ours as the peers have, whatever the environment says."""
    before = torch.get_num_threads()
    torch.set_num_threads(cores())
    try:
        with threadpool_limits(cores()):
            yield
    finally:
        torch.set_num_threads(before)


def _rates_of_the_machine(rates: Rates) -> None:
    """Those that every record tells, also if no job asks for them."""
    rates.gemm("float32")
    rates.gemm("float64")
    rates.bandwidth(BANDWIDTH_BYTES)


def _peers() -> dict[str, str]:
    """What is installed of every peer."""
    return {
        name: ", ".join((*peer.without_dependencies, *peer.requirements)) if peer.ready else "not installed"
        for name, peer in ENVIRONMENTS.items()
    }
