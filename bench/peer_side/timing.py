"""How both sides are timed: one untimed call, then calls in a row until enough time has passed."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

BURST_SECONDS = 0.08
LONG_CALL_SECONDS = 0.5
MOST_CALLS = 1000


def burst(call: Callable[[], object], last: float | None) -> list[float]:
    """Seconds of each call of one burst; `last` is what a call took before, None if that is not known.

    The untimed call brings caches and worker threads back after the other side has run; a call
    longer than `LONG_CALL_SECONDS` does that for itself.
    """
    if last is None or last < LONG_CALL_SECONDS:
        call()
    seconds: list[float] = []
    end = perf_counter() + BURST_SECONDS
    while not seconds or (len(seconds) < MOST_CALLS and perf_counter() < end):
        start = perf_counter()
        call()
        seconds.append(perf_counter() - start)
    return seconds
