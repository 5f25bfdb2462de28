"""What a benchmark offers (`Job`), and how a job is run: both sides in turn on the same arrays, medians."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.harness.link import Links, PeerError, PeerMissingError
from bench.harness.rates import Rates, Work
from bench.peer_side.timing import burst

Arrays = Mapping[str, npt.NDArray[Any]]

FEWEST_ROUNDS = 3
# Worker threads of a linear-algebra library spin for tens of milliseconds after a call.
PAUSE_SECONDS = 0.05


@dataclass(frozen=True)
class PeerCall:
    """A job for a peer's process: its environment, the name of the call there, what it is given."""

    peer: str
    call: str
    arrays: Arrays
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Scaling:
    """The same job at several sizes of one parameter, for the exponent of its cost."""

    parameter: str
    calls: Mapping[int, Callable[[], Arrays]]


@dataclass(frozen=True)
class Job:
    """One row of the table.

    `peer` is a call in another environment, or a function to be compared with in this one. `aim` is
    the ratio peer / ours to reach; `tolerance` the error that ours may have. The `error` functions take
    a side's arrays and give one number; they run outside the clock. `work` None: no arithmetic limit is known.
    `scalings` are timed after the row itself, for the exponents of its cost.
    """

    name: str
    how: str
    ours: Callable[[], Arrays]
    work: Work | None = None
    peer: PeerCall | Callable[[], Arrays] | None = None
    aim: float | None = None
    tolerance: float | None = None
    error: Callable[[Arrays], float] | None = None
    peer_error: Callable[[Arrays], float] | None = None
    scalings: tuple[Scaling, ...] = ()


@dataclass
class Row:
    """What came out of a job; None where there is nothing to say."""

    name: str
    how: str
    ours: float | None = None
    peer: float | None = None
    ours_best: float | None = None
    peer_best: float | None = None
    limit: float | None = None
    error: float | None = None
    peer_error: float | None = None
    aim: float | None = None
    tolerance: float | None = None
    rounds: int = 0
    exponents: dict[str, float] = field(default_factory=dict)
    peer_missing: str | None = None
    trouble: str | None = None

    @property
    def ratio(self) -> float | None:
        return self.peer / self.ours if self.peer and self.ours else None

    @property
    def share(self) -> float | None:
        """Share of the limit reached: 1 is as fast as the machine's arithmetic."""
        return self.limit / self.ours if self.limit and self.ours else None


class LocalSide:
    """A side that runs in this process."""

    def __init__(self, call: Callable[[], Arrays]) -> None:
        self._call = call
        self._last: float | None = None

    def seconds(self) -> list[float]:
        seconds = burst(self._call, self._last)
        self._last = seconds[-1]
        return seconds

    def arrays(self) -> Arrays:
        return self._call()

    def close(self) -> None:
        """Nothing is held."""


class RemoteSide:
    """A side that runs in a peer's process."""

    def __init__(self, call: PeerCall, links: Links) -> None:
        self._link = links.to(call.peer)
        self._key = self._link.prepare(call.call, call.arrays, call.options)

    def seconds(self) -> list[float]:
        return self._link.time(self._key)

    def arrays(self) -> Arrays:
        return self._link.result(self._key)

    def close(self) -> None:
        self._link.drop(self._key)


def run(job: Job, links: Links, rates: Rates, rounds: int, budget: float) -> Row:
    """Time both sides and all sizes, and ask both sides for their errors; trouble on a side stays in its row."""
    row = _run_sides(job, links, rates, rounds, budget)
    if row.trouble is None:
        row.exponents = {scaling.parameter: _exponent(scaling) for scaling in job.scalings}
    return row


def _exponent(scaling: Scaling) -> float:
    """Slope of log time against log size by least squares; of each size the best of a few calls counts."""
    sides = {size: LocalSide(call) for size, call in scaling.calls.items()}
    best = [min(min(side.seconds()) for _ in range(FEWEST_ROUNDS)) for side in sides.values()]
    return float(np.polyfit(np.log(list(sides)), np.log(best), 1)[0])


def _run_sides(job: Job, links: Links, rates: Rates, rounds: int, budget: float) -> Row:
    """Both sides of one row, in turn."""
    row = Row(job.name, job.how, aim=job.aim, tolerance=job.tolerance)
    ours = LocalSide(job.ours)
    try:
        first = ours.arrays()
        row.error = job.error(first) if job.error else None
        row.limit = rates.seconds(job.work) if job.work else None
    except Exception as error:
        row.trouble = f"ours: {type(error).__name__}: {error}"
        return row
    if job.peer is None:
        _time_in_turn(row, {"ours": ours}, rounds, budget)
        return row
    try:
        with closing(_side(job.peer, links)) as peer:
            row.peer_error = job.peer_error(peer.arrays()) if job.peer_error else None
            _time_in_turn(row, {"ours": ours, "peer": peer}, rounds, budget)
            return row
    except PeerMissingError as error:
        row.peer_missing = str(error)
    except PeerError as error:
        row.trouble = f"peer: {error}"
    _time_in_turn(row, {"ours": ours}, rounds, budget)
    return row


def _side(peer: PeerCall | Callable[[], Arrays], links: Links) -> LocalSide | RemoteSide:
    return RemoteSide(peer, links) if isinstance(peer, PeerCall) else LocalSide(peer)


def _time_in_turn(row: Row, sides: Mapping[str, LocalSide | RemoteSide], rounds: int, budget: float) -> None:
    """Bursts of ours and of the peer alternate, so that a change of the machine's load meets both."""
    bursts: dict[str, list[float]] = {name: [] for name in sides}
    start = time.perf_counter()
    row.rounds = 0
    while row.rounds < rounds and (row.rounds < FEWEST_ROUNDS or time.perf_counter() - start < budget):
        for name, side in sides.items():
            time.sleep(PAUSE_SECONDS)
            bursts[name].append(median(side.seconds()))
        row.rounds += 1
    row.ours, row.ours_best = median(bursts["ours"]), min(bursts["ours"])
    if "peer" in bursts:
        row.peer, row.peer_best = median(bursts["peer"]), min(bursts["peer"])
