"""What a benchmark offers (`Job`), and how a job is run: all sides in turn on the same arrays, medians."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from bench.harness.link import Links, PeerError
from bench.harness.neighbour import busy_neighbour
from bench.harness.rates import Rates, Work
from bench.peer_side.memory import peak_increase
from bench.peer_side.timing import burst

Arrays = Mapping[str, npt.NDArray[Any]]

FEWEST_ROUNDS = 3
# A peer whose call takes longer is timed once.
SLOW_CALL_SECONDS = 10.0
# Worker threads of a linear-algebra library spin for tens of milliseconds after a call.
PAUSE_SECONDS = 0.05


@dataclass(frozen=True)
class PeerCall:
    """A job for a peer's process: its environment, the name of the call there, what it is given."""

    peer: str
    call: str
    arrays: Arrays
    options: Mapping[str, Any] = field(default_factory=dict)


# A call in another environment, or a function to be compared with in this one.
Peer = PeerCall | Callable[[], Arrays]


@dataclass(frozen=True)
class Scaling:
    """The same job at several sizes of one parameter, for the exponent of its cost."""

    parameter: str
    calls: Mapping[int, Callable[[], Arrays]]


@dataclass(frozen=True)
class Job:
    """One row of the table.

    `peer` is what ours is compared with, or several of them by name. `aim` is the ratio peer / ours to reach, of
    every peer or by their names; `memory_aims` the same for memory; `share_aim` the share of the limit to reach;
    `tolerance` the error that ours may have. The `error` functions take a side's arrays and give one number; they
    run outside the clock. `work` None: no arithmetic limit is known. `scalings` are timed after the row itself,
    for the exponents of its cost. `sizes` by what they count, `precision` of ours (that of `work` if it is not said)
    and `peer_precision` where it is another one are labels of the record. A `long` job takes more than half a minute,
    and a quick run leaves it out. With a `neighbour`, another process keeps a core busy while all sides take turns.
    """

    name: str
    how: str
    ours: Callable[[], Arrays]
    sizes: Mapping[str, int] = field(default_factory=dict)
    precision: str = ""
    peer_precision: str = ""
    long: bool = False
    neighbour: bool = False
    work: Work | None = None
    peer: Peer | Mapping[str, Peer] | None = None
    aim: float | Mapping[str, float] | None = None
    share_aim: float | None = None
    memory_aims: Mapping[str, float] = field(default_factory=dict)
    tolerance: float | None = None
    error: Callable[[Arrays], float] | None = None
    peer_error: Callable[[Arrays], float] | None = None
    scalings: tuple[Scaling, ...] = ()

    @property
    def peers(self) -> dict[str, Peer]:
        """By name, also if there is only one."""
        if self.peer is None:
            return {}
        if isinstance(self.peer, Mapping):
            return dict(self.peer)
        return {self.peer.peer if isinstance(self.peer, PeerCall) else "in this process": self.peer}

    @property
    def aims(self) -> dict[str, float]:
        """Of every peer that has one."""
        if isinstance(self.aim, Mapping):
            return dict(self.aim)
        return {} if self.aim is None else dict.fromkeys(self.peers, self.aim)


@dataclass
class Measured:
    """What came out of one side: median seconds of a call, those of each round, bytes at its peak; None if not known.

    A side that is too slow for rounds has the seconds of one call.
    """

    seconds: float | None = None
    rounds: list[float] = field(default_factory=list)
    memory: int | None = None
    error: float | None = None
    trouble: str | None = None

    @property
    def slow(self) -> bool:
        return self.seconds is not None and self.seconds > SLOW_CALL_SECONDS


@dataclass
class Row:
    """What came out of a job; `trouble` is that of the sizes timed after it."""

    job: Job
    ours: Measured = field(default_factory=Measured)
    peers: dict[str, Measured] = field(default_factory=dict)
    limit: float | None = None
    exponents: dict[str, float] = field(default_factory=dict)
    trouble: str | None = None


class Side(Protocol):
    """Something that can be called again and again on the arrays of its job."""

    def arrays(self) -> Arrays:
        """What a call gives."""

    def memory(self) -> tuple[int | None, float]:
        """Bytes that one call needs at its peak, None if not known, and the seconds it took."""

    def seconds(self) -> list[float]:
        """Of each call of one burst."""

    def close(self) -> None:
        """Let go of what is held."""


class LocalSide:
    """A side that runs in this process."""

    def __init__(self, call: Callable[[], Arrays]) -> None:
        self._call = call
        self._last: float | None = None

    def arrays(self) -> Arrays:
        return self._call()

    def memory(self) -> tuple[int | None, float]:
        start = time.perf_counter()
        return peak_increase(self._call), time.perf_counter() - start

    def seconds(self) -> list[float]:
        seconds = burst(self._call, self._last)
        self._last = seconds[-1]
        return seconds

    def close(self) -> None:
        """Nothing is held."""


class RemoteSide:
    """A side that runs in a peer's process."""

    def __init__(self, call: PeerCall, links: Links) -> None:
        self._link = links.to(call.peer)
        self._key = self._link.prepare(call.call, call.arrays, call.options)

    def arrays(self) -> Arrays:
        return self._link.result(self._key)

    def memory(self) -> tuple[int | None, float]:
        return self._link.memory(self._key)

    def seconds(self) -> list[float]:
        return self._link.time(self._key)

    def close(self) -> None:
        self._link.drop(self._key)


def run(job: Job, links: Links, rates: Rates, rounds: int, budget: float) -> Row:
    """Time all sides, and ask them for their errors; trouble on a side stays with that side."""
    row = Row(job)
    with ExitStack() as held:
        if job.neighbour:
            held.enter_context(busy_neighbour())
        ours = _opened(row.ours, lambda: LocalSide(job.ours), job.error, held)
        if ours is None:
            return row
        in_turn = [(row.ours, ours)]
        row.limit = rates.seconds(job.work) if job.work else None
        for name, peer in job.peers.items():
            measured = row.peers[name] = Measured()
            side = _opened(measured, partial(_side, peer, links), job.peer_error, held)
            if side is not None and not measured.slow:
                in_turn.append((measured, side))
        _time_in_turn(in_turn, rounds, budget)
    return row


def grow(row: Row) -> None:
    """Time the job at all its sizes, for the exponents of its cost; trouble is written into the row."""
    try:
        for scaling in row.job.scalings:
            row.exponents[scaling.parameter] = _exponent(scaling)
    except Exception as trouble:
        row.trouble = words(trouble)


def _side(peer: Peer, links: Links) -> Side:
    return RemoteSide(peer, links) if isinstance(peer, PeerCall) else LocalSide(peer)


def _opened(
    measured: Measured, make: Callable[[], Side], error: Callable[[Arrays], float] | None, held: ExitStack
) -> Side | None:
    """All but the turns: error, memory and, for sides that are too slow for turns, the time of that call."""
    try:
        side = make()
        held.enter_context(closing(side))
        first = side.arrays()
        measured.error = error(first) if error else None
        del first
        measured.memory, seconds = side.memory()
    except Exception as trouble:
        measured.trouble = words(trouble)
        return None
    measured.seconds, measured.rounds = seconds, [seconds]
    return side


def words(trouble: Exception) -> str:
    """A peer's trouble names itself already."""
    return str(trouble) if isinstance(trouble, PeerError) else f"{type(trouble).__name__}: {trouble}"


def _time_in_turn(sides: list[tuple[Measured, Side]], rounds: int, budget: float) -> None:
    """Bursts of all sides alternate, so that a change of the machine's load meets all of them."""
    bursts: dict[int, list[float]] = {index: [] for index in range(len(sides))}
    start = time.perf_counter()
    done = 0
    while done < rounds and (done < FEWEST_ROUNDS or time.perf_counter() - start < budget):
        for index, (measured, side) in enumerate(sides):
            if measured.trouble:
                continue
            time.sleep(PAUSE_SECONDS)
            try:
                bursts[index].append(median(side.seconds()))
            except Exception as trouble:
                measured.trouble, measured.seconds = words(trouble), None
        done += 1
    for index, (measured, _) in enumerate(sides):
        if not measured.trouble:
            measured.seconds, measured.rounds = median(bursts[index]), bursts[index]


def _exponent(scaling: Scaling) -> float:
    """Slope of log time against log size by least squares; of each size the best of a few calls counts."""
    sides = {size: LocalSide(call) for size, call in scaling.calls.items()}
    best = [min(min(side.seconds()) for _ in range(FEWEST_ROUNDS)) for side in sides.values()]
    return float(np.polyfit(np.log(list(sides)), np.log(best), 1)[0])
