"""`python -m bench.scaling`: how costs grow, measured at small sizes, fitted, kept with a date, and extrapolated.

Each law is a sum of powers of one size with constants that are not negative, fitted to CPU seconds of one core with
equal relative weights. The powers come from reading the code (`bench/laws`), the constants from the measurement. The
exponent of a plain power law through all sizes stands beside them with its standard error, and the one between the
two largest sizes, so that a model that does not fit can be seen.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls
from threadpoolctl import threadpool_limits

from bench.harness import records
from bench.harness.rates import Rates, load
from bench.laws import Job, Law, laws
from foretrain.support.errors import ForetrainError, unknown_name
from foretrain.support.progress import track

KIND = "scaling"
REPEATS = 3
NARROW = "\u202f"  # a narrow space that does not break the line
BUDGET = 1.5  # seconds of the clock after which a size is not repeated


@dataclass(frozen=True)
class Fleet:
    """Machines that share some work: cores, bytes per second and bytes kept by all together, memory of one."""

    name: str
    cores: float
    bandwidth: float
    storage: float
    memory: float


CLUSTER = Fleet("cluster", 1e3, 1e10, 1e15, 256e9)
INTERNET = Fleet("internet", 1e6, 1e6 * 1e7, 1e6 * 700e6, 700e6)


@dataclass(frozen=True)
class Fit:
    """What was measured and when, and the constants of the law in core seconds."""

    name: str
    size: str
    of: str
    sizes: list[int]
    seconds: list[float]
    powers: list[int]
    constants: list[float]
    exponent: float  # of a power law through all sizes
    error: float  # of the exponent, one standard error
    last: float  # exponent between the two largest sizes
    worst: float  # largest relative deviation of the fit from a measurement
    date: str = ""
    load: float = 0.0  # of the machine before the measurement

    def at(self, size: float) -> float:
        """Core seconds at a size."""
        return float(sum(c * size**p for c, p in zip(self.constants, self.powers)))


def core_seconds(job: Job) -> float:
    """The least CPU time of a few calls after a first one."""
    job()
    found: list[float] = []
    end = time.monotonic() + BUDGET
    while len(found) < REPEATS and (not found or time.monotonic() < end):
        start = time.process_time()
        job()
        found.append(time.process_time() - start)
    return min(found)


def fit(law: Law, seconds: Sequence[float]) -> Fit:
    """Constants of the powers, none negative, by least squares of relative deviations."""
    sizes, times = np.array(law.sizes, dtype=float), np.array(seconds)
    columns = np.stack([sizes**power / times for power in law.powers], axis=1)
    scale = columns.max(axis=0)
    constants = nnls(columns / scale, np.ones(len(times)))[0] / scale
    exponent, error = _slope(np.log(sizes), np.log(times))
    return Fit(
        law.name,
        law.size,
        law.of,
        list(law.sizes),
        [float(value) for value in times],
        list(law.powers),
        [float(value) for value in constants],
        exponent,
        error,
        float(np.log(times[-1] / times[-2]) / np.log(sizes[-1] / sizes[-2])),
        float(np.abs(columns @ constants - 1).max()),
    )


def _slope(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Of the straight line through points, with its standard error."""
    centred = x - x.mean()
    slope = float(centred @ y / (centred @ centred))
    rest = y - y.mean() - slope * centred
    return slope, float(np.sqrt(rest @ rest / (len(x) - 2) / (centred @ centred)))


def measure(chosen: Iterable[Law]) -> dict[str, Any]:
    """Measure laws, each kept as soon as it is fitted, beside those that an earlier record holds of the others."""
    facts, threads = records.machine_facts(), torch.get_num_threads()
    kept = {found.name: found for found in _earlier()}
    order = [law.name for law in laws()]
    torch.set_num_threads(1)  # threads that wait for each other would count as work
    with threadpool_limits(1):
        rate = Rates().gemm("float32")
        for law in track(list(chosen), "scaling"):
            busy = load()
            found = fit(law, [core_seconds(law.make(size)) for size in law.sizes])
            kept[law.name] = replace(found, date=facts["date"], load=busy)
            fits = [asdict(kept[name]) for name in order if name in kept]
            record = facts | {"gemm float32 of one core [flop/s]": rate, "fits": fits}
            records.keep(record, records.path_of(KIND, facts["date"]))
    torch.set_num_threads(threads)
    return record


def latest() -> dict[str, Any]:
    """The newest record of the folder of results."""
    return records.latest(KIND, "python -m bench.scaling")


def fits_of(record: dict[str, Any]) -> list[Fit]:
    """Of what a record measured, for laws that are still known and have these sizes."""
    known = {(law.name, law.sizes): law for law in laws()}
    fits = []
    for entry in record["fits"]:
        law = known.get((entry["name"], tuple(entry["sizes"])))
        if law is not None and "load" in entry:
            fits.append(replace(fit(law, entry["seconds"]), date=entry["date"], load=entry["load"]))
    return fits


def _earlier() -> list[Fit]:
    try:
        return fits_of(latest())
    except ForetrainError:
        return []


def fitted_table(record: dict[str, Any]) -> str:
    """Markdown: the laws with their constants, and how well they fit."""
    rows = [
        "| computation | core seconds | measured at | exponent | at the end | worst deviation |",
        "|---|---|---|---|---|---|",
    ]
    for found in fits_of(record):
        terms = [_term(c, found.size, p) for c, p in zip(found.constants, found.powers) if c > 0]
        sizes = f"{found.size} = {found.sizes[0]:,} to {found.sizes[-1]:,} {found.of}"
        exponent = f"{found.exponent:.2f}{NARROW}±{NARROW}{found.error:.2f}"
        cells = (found.name, " + ".join(terms), sizes, exponent, f"{found.last:.2f}", f"{found.worst:.0%}")
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def large_table(record: dict[str, Any]) -> str:
    """Markdown: core time, time on a fleet and bytes of the answer at two large sizes, extrapolated."""
    rows = [
        "| computation | on a cluster | at internet scale | where that is too much |",
        "|---|---|---|---|",
    ]
    known = {law.name: law for law in laws()}
    for found in fits_of(record):
        law = known[found.name]
        cells = [_cell(law, found, size, fleet) for size, fleet in zip(law.large, (CLUSTER, INTERNET))]
        rows.append(f"| {' | '.join((found.name, *cells, law.instead))} |")
    return "\n".join(rows)


def conditions(record: dict[str, Any]) -> str:
    """One line: what a reader must know of the machine and of the day."""
    fits = fits_of(record)
    if not fits:
        return "nothing is measured of what is known today: run python -m bench.scaling."
    loads, days = [found.load for found in fits], sorted(found.date[:16] for found in fits)
    rate = record["gemm float32 of one core [flop/s]"] / 1e9
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    return (
        f"{days[0]} to {days[-1]}; {record['processor']}, {record['cores']} cores, one used; load of the machine "
        f"{min(loads):.1f} to {max(loads):.1f}; matrix products {rate:.0f} Gflop/s; {versions}"
    )


def work(law: Law, found: Fit, size: float) -> float:
    """Core seconds at a size; beyond one strip the linear part is paid again for every strip above the diagonal."""
    linear = sum(c for c, p in zip(found.constants, found.powers) if p == 1)
    again = linear * size**2 / (2 * law.strip) if size > law.strip else 0.0
    return found.at(size) + again


def seconds_on(law: Law, found: Fit, size: float, fleet: Fleet) -> float:
    """Time on the clock: of the work or of what it moves, whichever is longer."""
    if not law.divides:
        return work(law, found, size)
    moved = law.bytes_moved(size) + law.exchanged * fleet.cores
    return max(work(law, found, size) / fleet.cores, moved / fleet.bandwidth)


def _cell(law: Law, found: Fit, size: float, fleet: Fleet) -> str:
    told = f"{law.size} = {_tenfold(size)}: {duration(work(law, found, size))} of a core"
    held, result = law.bytes_held(size), law.result(size)
    if held > fleet.memory:
        return f"{told}; does not fit: {_bytes(held)} in one machine"
    if result > fleet.storage:
        return f"{told}; does not fit: {_bytes(result)} in all"
    alone = "" if law.divides else " on one machine"
    return f"{told}; {duration(seconds_on(law, found, size, fleet))}{alone}; {_bytes(result)}"


def _term(constant: float, letter: str, power: int) -> str:
    """A constant times a power, without a place where the line could break."""
    digits, _, tens = f"{constant:.2g}".partition("e")
    number = f"{digits}·10{_superscript(int(tens))}" if tens else digits
    if power == 0:
        return number
    return f"{number}{NARROW}{letter}{_superscript(power) if power > 1 else ''}"


def _tenfold(size: float) -> str:
    return f"10{_superscript(round(np.log10(size)))}"


def _superscript(number: int) -> str:
    return str(number).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def duration(seconds: float) -> str:
    """In the largest unit that leaves at least one."""
    units = (("years", 3.156e7), ("days", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3))
    for unit, length in units:
        if seconds >= length:
            count = _short(seconds / length)
            return f"{count} {unit.removesuffix('s') if count == '1' and len(unit) > 3 else unit}"
    return f"{seconds * 1e6:.2g} µs"


def _bytes(count: float) -> str:
    units = ("EB", 1e18), ("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)
    for unit, size in units:
        if count >= size:
            return f"{_short(count / size)} {unit}"
    return f"{count:.0f} B"


def _short(value: float) -> str:
    return f"{value:.2g}" if value < 100 else f"{value:,.0f}" if value < 1e6 else f"{value:.1e}"


def _chosen(words: Sequence[str]) -> list[Law]:
    """Laws with one of the words in their name; all without any."""
    known = laws()
    for word in words:
        if not any(word in law.name for law in known):
            raise unknown_name("computation", word, [law.name for law in known])
    return [law for law in known if not words or any(word in law.name for word in words)]


def main() -> int:
    """Measure, keep the record, print both tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.scaling", description=__doc__)
    parser.add_argument("--show", action="store_true", help="show the newest record instead of measuring")
    parser.add_argument(
        "--only", action="append", default=[], metavar="WORD", help="laws with that in their name"
    )
    options = parser.parse_args()
    try:
        record = latest() if options.show else measure(_chosen(options.only))
        print(fitted_table(record), large_table(record), conditions(record), sep="\n\n")
    except ForetrainError as error:
        raise SystemExit(str(error)) from None
    return 0


if __name__ == "__main__":
    sys.exit(main())
