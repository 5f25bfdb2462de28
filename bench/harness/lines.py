"""The form that every result has: one `Line` for each thing that a job of ours is compared with.

A ratio is always other / ours, of seconds. Beside a peer, above one means that ours is faster; beside the arithmetic
limit it is the share of the limit that is reached.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from bench.harness.jobs import Job, Measured, Row

LIMIT = "arithmetic limit"


@dataclass(frozen=True)
class Line:
    """Ours beside one peer or the limit; None and "" where there is nothing to say.

    `lowest` and `highest` are the ratios of single rounds, in which all sides take turns. `exponents` say how our
    cost grows with the sizes.
    """

    benchmark: str
    job: str
    what: str
    beside: str = ""
    our_seconds: float | None = None
    other_seconds: float | None = None
    ratio: float | None = None
    lowest: float | None = None
    highest: float | None = None
    aim: float | None = None
    measured: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)
    precision: str = ""
    threads: int = 1
    our_error: float | None = None
    other_error: float | None = None
    tolerance: float | None = None
    our_bytes: float | None = None
    other_bytes: float | None = None
    memory_aim: float | None = None
    exponents: Mapping[str, float] = field(default_factory=dict)
    our_trouble: str | None = None
    other_trouble: str | None = None

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> Self:
        """What `record` wrote; numbers that are not finite were kept as words."""
        numbers = {each.name for each in fields(cls) if each.type == "float | None"}
        values: dict[str, Any] = dict(entry)
        for name in numbers & values.keys():
            values[name] = None if values[name] is None else float(values[name])
        return cls(**values)


def failed(benchmark: str, job: str, what: str, threads: int, trouble: str) -> Line:
    """In place of results that there are none of."""
    return Line(benchmark, job, what, threads=threads, our_trouble=trouble)


def lines_of(benchmark: str, row: Row, threads: int) -> list[Line]:
    """One line a peer and one for the limit, or a single one if there is neither."""
    return [Line(**_ours(benchmark, row, threads) | other) for other in _others(row) or [_alone(row)]]


def _ours(benchmark: str, row: Row, threads: int) -> dict[str, Any]:
    job = row.job
    return {
        "benchmark": benchmark,
        "job": job.name,
        "what": job.how,
        "our_seconds": row.ours.seconds,
        "sizes": dict(job.sizes),
        "precision": _precision(job),
        "threads": threads,
        "our_error": row.ours.error,
        "tolerance": job.tolerance,
        "our_bytes": row.ours.memory,
        "exponents": row.exponents,
        "our_trouble": row.ours.trouble or row.trouble,
    }


def _others(row: Row) -> list[dict[str, Any]]:
    peers = [_peer(row, name, peer) for name, peer in row.peers.items()]
    if row.limit is None:
        return peers
    limit = Measured(seconds=row.limit, rounds=[row.limit])
    aim = {"aim": row.job.share_aim, "measured": _measured(row.ours, "work over the rates of the machine")}
    return [*peers, {"beside": LIMIT, "other_seconds": row.limit} | aim | _ratios(row.ours, limit)]


def _peer(row: Row, name: str, peer: Measured) -> dict[str, Any]:
    once = row.ours.rounds[1:] and not peer.rounds[1:]
    own, other = _precision(row.job), row.job.peer_precision
    return {
        "beside": name,
        "other_seconds": peer.seconds,
        "aim": row.job.aims.get(name),
        "measured": _measured(row.ours, "the peer timed once" if once else "sides in turn"),
        "precision": own if other in ("", own) else f"{own} / {other}",
        "other_error": peer.error,
        "other_bytes": peer.memory,
        "memory_aim": row.job.memory_aims.get(name),
        "other_trouble": peer.trouble,
    } | _ratios(row.ours, peer)


def _alone(row: Row) -> dict[str, Any]:
    return {"measured": _measured(row.ours, "alone")}


def _precision(job: Job) -> str:
    return job.precision or (job.work.dtype if job.work else "")


def _measured(ours: Measured, how: str) -> str:
    count = len(ours.rounds)
    return f"one call, {how}" if count == 1 else f"median of {count} rounds, {how}" if count else ""


def _ratios(ours: Measured, other: Measured) -> dict[str, Any]:
    """Of the medians, and the lowest and highest of single rounds."""
    if not ours.seconds or not other.seconds or ours.trouble or other.trouble:
        return {}
    single = list(_single_ratios(ours.rounds, other.rounds))
    return {"ratio": other.seconds / ours.seconds, "lowest": min(single), "highest": max(single)}


def _single_ratios(ours: list[float], other: list[float]) -> Iterator[float]:
    """Round by round; what was timed once stands beside every round."""
    for index in range(max(len(ours), len(other))):
        yield other[min(index, len(other) - 1)] / ours[min(index, len(ours) - 1)]
