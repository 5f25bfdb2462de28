"""The benchmarks lie outside of the package: importable for the tests, with rates that nothing has to measure."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from bench.harness import jobs
from bench.harness.rates import Rates, Work
from bench.harness.runs import Task
from bench.peer_side import timing


class FixedRates(Rates):
    """Every rate is a thousand million a second."""

    def _once(self, key: str, measure: Callable[[], float]) -> float:
        return self.measured.setdefault(key, 1e9)


def small() -> Mapping[str, Any]:
    return {"sum": np.arange(200.0).sum()}


@pytest.fixture(autouse=True)
def _short_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short bursts without pauses, and no collection of garbage for the sake of memory."""

    def peak(call: Callable[[], object]) -> int:
        call()
        return 1000

    monkeypatch.setattr(jobs, "peak_increase", peak)
    monkeypatch.setattr(timing, "BURST_SECONDS", 1e-3)
    monkeypatch.setattr(jobs, "PAUSE_SECONDS", 0.0)


@pytest.fixture
def rates() -> Rates:
    return FixedRates()


@pytest.fixture
def task() -> Callable[..., Task]:
    """A task of the benchmark `tiny`, whose limit is one microsecond, beside itself."""

    def make(name: str = "sum", benchmark: str = "tiny", **more: Any) -> Task:
        given: dict[str, Any] = {
            "how": "numpy / numpy again",
            "ours": small,
            "peer": {"numpy": small},
            "work": Work("float64", flops=1e3),
            "sizes": {"numbers": 200},
        }
        return Task(benchmark, jobs.Job(name=name, **given | more))

    return make
