"""What recording may cost: a share of the time since the start, divided fairly between observables.

An observable is recorded if what was spent, its own cost, and the cost of the last record, which is always made,
stay within the share. A cheap observable that is due all the time would use up what a costly one is saving for; so
each has an equal part of the allowance, and may go beyond it only by what others do not need for their next record.
Until the time has paid for the first and the last record, cheap observables have a quarter of the share: a loss must
not wait for minutes because a kernel beside it is costly.

A record leaves cold caches and idle threads behind, and where it used all cores the system may take time back. The
next step pays for that, at times as much again as the record itself took, so it is part of what recording costs.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from numbers import Real
from statistics import median
from typing import Any

from foretrain.support.errors import InputError

BOOKKEEPING = "bookkeeping"  # copies that protect the training, writing, and slower steps after it
_REMEMBERED = 5  # costs of one observable, whose largest is what the next one is expected to cost
_DECIDING = 0.05  # share of the budget that may go into deciding in vain what fits
_ADVANCE = 0.25  # of the share, for cheap observables before the first and the last record are paid for
_CHEAP = 0.1  # of the cost of all observables: what an advance is for
# Of a budget: the rest is for what slows later steps and cannot be told from the loop's own pace.
_PLANNED = 0.8
_CAUTION = 1.5  # by which the last record, which comes whatever it costs, may exceed that


class Budget:
    """Seconds spent by observable, and what more may be spent; ``share`` None: anything."""

    def __init__(self, share: float | None, names: Iterable[str]) -> None:
        value: Any = share
        number = isinstance(value, Real) and not isinstance(value, bool)
        if share is not None and not (number and 0 < float(value) <= 1):
            raise InputError(
                f"`budget` is {share!r}: give a share of the time such as 0.05, or None for no limit."
            )
        self.share = share
        self.given = share  # what the user asked for, of which less may be planned
        self.spent = dict.fromkeys([*names, BOOKKEEPING], 0.0)
        self._recent: dict[str, deque[float]] = {name: deque(maxlen=_REMEMBERED) for name in self.spent}
        self._start = time.perf_counter()
        self._before: float | None = None  # spent before anything was chosen: the first record
        self._paid = False  # whether the first and the last record were within the share at some time
        self.next_decision = 0.0  # by the clock: before then nothing fits

    @classmethod
    def planned(cls, budget: float | None, names: Iterable[str]) -> Budget:
        """For a budget that the loop as a whole must keep: a little less is planned."""
        found = cls(budget, names)
        if found.share is not None:
            found.share *= _PLANNED
        return found

    def start(self) -> None:
        """The time counts from now."""
        self._start = time.perf_counter()

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._start

    @property
    def total(self) -> float:
        """Seconds spent on everything."""
        return sum(self.spent.values())

    def charge(self, name: str, seconds: float) -> None:
        """Note what something took."""
        self.spent[name] += seconds
        self._recent[name].append(seconds)

    def spend(self, seconds: float) -> None:
        """Count what a step cost beside its record."""
        self.spent[BOOKKEEPING] += seconds

    def expected(self, name: str) -> float:
        """What it may cost next time."""
        return max(self._recent[name], default=0.0)

    def chosen(self, active: Sequence[str]) -> list[str] | None:
        """Those of the observables that fit; None if not even an empty record does."""
        if self.share is None:
            return list(active)
        start = time.perf_counter()
        found = self._fitting(active)
        if not found:
            end = time.perf_counter()
            self.next_decision = end + (end - start) / (_DECIDING * self.share)
        return found

    def _fitting(self, active: Sequence[str]) -> list[str] | None:
        assert self.share is not None
        if self._before is None:
            self._before = self.total
        reserved = _CAUTION * sum(self.expected(name) for name in (*active, BOOKKEEPING))
        allowance = self.share * self.elapsed - reserved - self.expected(BOOKKEEPING)
        room = allowance - self.total
        if room < 0:
            return None if self._paid else self._advanced(active, self.total - self._before)
        self._paid = True
        shared = allowance - self.spent[BOOKKEEPING]
        found = []
        # Those furthest behind their part come first.
        for name in sorted(active, key=lambda name: self.spent[name]):
            cost = self.expected(name)
            if cost <= room and self.spent[name] + cost <= self._part(name, active, shared):
                found.append(name)
                room -= cost
        return [name for name in active if name in found]

    def _advanced(self, active: Sequence[str], spent: float) -> list[str] | None:
        """Cheap ones, from the cheapest on, as far as the advance goes."""
        assert self.share is not None
        writing = self.expected(BOOKKEEPING)
        room = _ADVANCE * self.share * self.elapsed - spent - writing
        cheap = _CHEAP * sum(self.expected(name) for name in active) - writing
        found = []
        for name in sorted(active, key=self.expected):
            cost = self.expected(name)
            if cost <= min(room, cheap):
                found.append(name)
                room -= cost
        return [name for name in active if name in found] or None

    def _part(self, name: str, active: Sequence[str], shared: float) -> float:
        """An equal part of the allowance, and what others leave of theirs beyond their next record."""
        equal = shared / len(active)
        left = (equal - self.spent[other] - self.expected(other) for other in active if other != name)
        return equal + sum(max(0.0, spare) for spare in left)


_STEPS_REMEMBERED = 31  # steps without a record before them
_FEWEST = 3  # of these, below which nothing is known of their pace
_MOST = 2.0  # times the record's cost: more than that is the loop's own doing, such as an epoch's end


class Pace:
    """Times of steps, by the clock at the end of each; those after a record apart."""

    def __init__(self) -> None:
        self._usual: deque[float] = deque(maxlen=_STEPS_REMEMBERED)
        self._left: float | None = None  # when the loop went on after the last step
        self._cost = 0.0  # of a record made then

    def stepped(self, now: float) -> float:
        """A step is over: the seconds that the record before it may have cost it."""
        left, cost, self._left, self._cost = self._left, self._cost, now, 0.0
        if left is None:
            return 0.0
        if not cost:
            self._usual.append(now - left)
            return 0.0
        if len(self._usual) < _FEWEST:
            return 0.0
        return min(max(0.0, now - left - median(self._usual)), _MOST * cost)

    def recorded(self, now: float, cost: float) -> None:
        """The loop goes on now, after a record of this cost."""
        self._left, self._cost = now, cost
