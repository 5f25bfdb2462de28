"""One thread per test process: two processes with two threads each only get in each other's way.

Ctrl-C acts in tests even where the shell that started them in the background has it ignored.
"""

import math
import os
import signal
from collections import Counter

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

from foretrain.support import acceleration  # noqa: E402 - after the number of threads is set

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=["numpy", "numba"])
def loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every job done by sweeps of numpy, then every job by loops that numba compiles."""
    if request.param == "numba":
        pytest.importorskip("numba")
    monkeypatch.setattr(acceleration, "ENOUGH_PAIRS", 0 if request.param == "numba" else math.inf)
    return str(request.param)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Take the mark ``slow(after=n)`` from the first n parametrisations of a test, which represent it."""
    counts: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("slow")
        if mark is not None and "after" in mark.kwargs:
            test = item.nodeid.partition("[")[0]
            counts[test] += 1
            if counts[test] <= mark.kwargs["after"]:
                item.own_markers.remove(mark)
