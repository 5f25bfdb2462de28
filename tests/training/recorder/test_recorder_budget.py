"""The budget: what is recorded within it, how it is shared, and that a real loop stays within."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded_runs import data, network, sgd, train
from torch import nn

from foretrain.support.errors import InputError
from foretrain.training.recorder import Recorder, read, recorder, session
from foretrain.training.recorder import budget as module
from foretrain.training.recorder.budget import BOOKKEEPING, Budget, Pace


class Clock:
    """A time that passes only when told."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


def simulate(
    monkeypatch: pytest.MonkeyPatch,
    costs: dict[str, float],
    share: float,
    steps: int,
    step_seconds: float = 1.0,
    writing: float = 0.0,
) -> tuple[dict[str, int], float]:
    """A training in which all observables are due at every step: counts, and the overhead with the last record."""
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    budget = Budget(share, costs)
    counts = dict.fromkeys(costs, 0)

    def record(names: list[str]) -> None:
        for name in names:
            clock.now += costs[name]
            budget.charge(name, costs[name])
            counts[name] += 1
        clock.now += writing
        budget.charge(BOOKKEEPING, writing)

    record(list(costs))
    for _ in range(steps):
        clock.now += step_seconds
        chosen = budget.chosen(list(costs))
        if chosen:
            record(chosen)
    record(list(costs))
    return counts, budget.total / budget.elapsed


@pytest.mark.parametrize("share", [0.01, 0.05, 0.2])
def test_overhead_stays_within_the_share_and_uses_most_of_it(
    monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    counts, overhead = simulate(monkeypatch, {"loss": 0.1, "kernel": 2.0}, share, 3000, writing=0.01)
    assert 0.9 * share < overhead <= share
    assert counts["kernel"] > 2


def test_cheap_observables_leave_the_costly_one_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that are always due have equal parts, whatever they cost."""
    counts, _ = simulate(monkeypatch, {"cheap": 0.01, "costly": 5.0}, 0.05, 20000, step_seconds=0.1)
    assert 5.0 * counts["costly"] == pytest.approx(0.01 * counts["cheap"], rel=0.1)
    assert counts["costly"] >= 10


def test_what_one_does_not_need_the_other_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny cost at every step takes a hundredth of the budget; the rest goes to the costly one."""
    counts, overhead = simulate(monkeypatch, {"tiny": 0.0005, "costly": 1.0}, 0.05, 2000)
    assert counts["tiny"] > 1900
    assert counts["costly"] > 85  # of the 100 that all of the budget would pay
    assert overhead <= 0.05


@pytest.mark.parametrize("steps", [100, 290, 3000])
def test_a_cheap_observable_does_not_wait_until_a_costly_one_is_paid_for(
    monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """First and last record take 20 s, a twentieth of 400: until then a quarter of the share goes to the loss."""
    counts, overhead = simulate(monkeypatch, {"loss": 0.05, "kernel": 10.0}, 0.05, steps, writing=0.01)
    assert overhead <= max(0.05, 20.2 / steps + 0.25 * 0.05)
    if steps < 400:
        assert counts["kernel"] == 2
        assert 0.06 * (counts["loss"] - 2) == pytest.approx(0.25 * 0.05 * (steps + 10), rel=0.1)
    else:
        assert overhead <= 0.05
        assert counts["kernel"] > 2


def test_an_advance_is_for_cheap_observables_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for costs, writing in (
        ({"one": 1.0}, 0.0),
        ({"one": 1.0, "two": 0.5}, 0.0),
        ({"tiny": 0.01, "one": 1.0}, 0.5),
    ):
        counts, _ = simulate(monkeypatch, costs, 0.05, 40, writing=writing)
        assert set(counts.values()) == {2}


def test_without_a_limit_everything_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = Budget(None, ["a", "b"])
    budget.charge("a", 1e9)
    assert budget.chosen(["a", "b"]) == ["a", "b"]
    for wrong in (-0.1, 0, 2):
        with pytest.raises(InputError):
            Budget(wrong, ["a"])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time of all parts of the recorder."""
    found = Clock()
    for part in (module, recorder, session):
        monkeypatch.setattr(part, "time", found)
    return found


def test_a_loop_is_thinned(tmp_path: Path, clock: Clock) -> None:
    def cheap(model: nn.Module, batch: Any) -> float:
        clock.now += 0.01
        return 0.0

    def slow(model: nn.Module, batch: Any) -> float:
        clock.now += 3.0
        return 0.0

    with Recorder(tmp_path / "run", network(), [cheap, slow], every=1, budget=0.2) as found:
        for _ in range(300):
            clock.now += 1.0
            found.step()
    summary = found.summary()
    own = summary.observables["slow"]
    assert 0.14 < found.overhead <= 0.2
    assert own.skipped + own.records == 301 + 1  # skipped at the last step, and then recorded after all
    assert own.seconds == pytest.approx(3.0 * own.records)
    assert own.seconds > 0.85 * found.overhead * summary.seconds
    assert summary.seconds == pytest.approx(300 + found.overhead * summary.seconds)
    records, thinned = read(tmp_path / "run"), read(tmp_path / "run", only="slow")
    assert thinned.sizes["step"] == own.records < records.sizes["step"]
    assert thinned["slow"].notnull().all()
    assert records["slow"].isnull().sum() == records.sizes["step"] - own.records
    np.testing.assert_array_equal(
        records["step"][records["recorded"].sel(observable="slow")], thinned["step"]
    )
    assert {0, 300} <= set(thinned["step"].values.tolist())
    assert records.attrs["skipped"]["slow"] == own.skipped


def test_slower_steps_after_a_record_are_part_of_its_cost(tmp_path: Path, clock: Clock) -> None:
    """A record of 1 s makes the next step take 2 s instead of 1: the loop must wait twice as long between records."""

    def seen(model: nn.Module, batch: Any) -> float:
        clock.now += 1.0
        return 0.0

    with Recorder(tmp_path / "run", network(), seen, every=1, budget=0.1) as found:
        records = found.records
        for _ in range(2000):
            clock.now += 1.0 if found.records == records else 2.0
            records = found.records
            found.step()
    made = found.summary().observables["seen"].records
    true = (made + (made - 2)) / clock.now  # neither the first nor the last one slows a step here
    assert 0.07 < true <= 0.1
    assert found.overhead == pytest.approx(true, rel=0.02)


def test_a_pause_after_a_record_is_the_loops_own() -> None:
    pace = Pace()
    now = 0.0
    for _ in range(5):
        assert pace.stepped(now) == 0
        now += 1.0
    pace.recorded(now, 0.25)
    assert pace.stepped(now + 1.125) == pytest.approx(0.125)
    pace.recorded(now + 1.125, 0.25)
    assert pace.stepped(now + 600) == 0.5  # a validation, say: twice the record at most
    pace.recorded(now + 600, 0.25)
    assert pace.stepped(now + 600.5) == 0  # faster than usual


def test_a_loop_on_the_clock_is_thinned(tmp_path: Path) -> None:
    """Loosely, because the machine may be busy: the bench measures loops with and without."""

    def slow(model: nn.Module, batch: Any) -> float:
        time.sleep(0.02)
        return 0.0

    model = network()
    optimizer = sgd(model)
    with Recorder(
        tmp_path / "run", model, slow, batch=data(), optimizer=optimizer, every=1, budget=0.3
    ) as found:
        start = time.perf_counter()
        while time.perf_counter() - start < 0.5:
            train(model, optimizer, 1)
    own = found.summary().observables["slow"]
    assert own.skipped > own.records >= 2
    assert found.overhead < 0.6


def test_a_run_too_short_for_its_ends_says_so_once(tmp_path: Path, clock: Clock) -> None:
    def slow(model: nn.Module, batch: Any) -> float:
        clock.now += 2.0
        return 0.0

    found = Recorder(tmp_path / "run", network(), slow, every=1, budget=0.01)
    clock.now += 6.0
    found.step()
    words = "the first and the last record took 4 s of 10 s, more than the budget of 0.01"
    with pytest.warns(UserWarning, match=words) as seen:
        found.close()
    assert len(seen) == 1
    assert read(tmp_path / "run").sizes["step"] == 2


def test_first_time_work_is_not_taken_for_the_cost(tmp_path: Path, clock: Clock) -> None:
    calls: list[float] = []

    def imports_first(model: nn.Module, batch: Any) -> float:
        calls.append(0.0)
        clock.now += 100.0 if len(calls) == 1 else 1.0
        return float(len(calls))

    with Recorder(tmp_path / "run", network(), imports_first, every=1, budget=None) as found:
        pass
    assert found.summary().setup_seconds == 100
    assert found.summary().observables["imports_first"].seconds == 1
    np.testing.assert_array_equal(read(tmp_path / "run")["imports_first"], [2.0])
