"""How much slower the step after a record is than others.

A record leaves cold caches and idle threads behind, and where it used all cores the system may take time back. The
next step pays for that, at times as much again as the record itself took, so it is part of what recording costs.
"""

from __future__ import annotations

from collections import deque
from statistics import median

_REMEMBERED = 31  # steps without a record before them
_FEWEST = 3  # of these, below which nothing is known of their pace
_MOST = 2.0  # times the record's cost: more than that is the loop's own doing, such as an epoch's end


class Pace:
    """Times of steps, by the clock at the end of each; those after a record apart."""

    def __init__(self) -> None:
        self._usual: deque[float] = deque(maxlen=_REMEMBERED)
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
