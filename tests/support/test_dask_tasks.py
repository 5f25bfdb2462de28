"""Tasks on a Dask cluster: in order or not, a few at a time, and what is said when workers die or are gone."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from foretrain.support import engines
from foretrain.support.engines import WorkerDiedError, run
from foretrain.support.errors import EngineError

distributed = pytest.importorskip("distributed")


@pytest.fixture
def client() -> Iterator[Any]:
    """A cluster of two threads in this process."""
    crew = {"n_workers": 1, "threads_per_worker": 2, "processes": False, "dashboard_address": ":0"}
    with distributed.Client(**crew, set_as_default=False) as found:
        yield found


def late(number: int) -> int:
    time.sleep(0.05 if number == 0 else 0.0)
    return number


def test_results_come_in_order_or_as_they_finish(client: Any) -> None:
    """More of them than the cluster is given at a time."""
    calls = [(late, (number,), {}) for number in range(150)]
    assert list(engines._in_order(client, calls)) == list(range(150))
    found = list(engines._as_they_finish(client, calls))
    assert sorted(found) == list(range(150))
    assert found[0] != 0


def test_only_a_few_tasks_are_made_ahead(client: Any) -> None:
    made: list[int] = []

    def calls() -> Iterator[Any]:
        for number in range(1000):
            made.append(number)
            yield late, (number,), {}

    results = engines._in_order(client, calls())
    assert next(results) == 0
    assert len(made) < 200
    results.close()  # type: ignore[attr-defined]
    assert len(made) < 200


def test_a_cluster_that_lost_its_workers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nobody:
        def nthreads(self) -> dict[str, int]:
            return {}

        def has_ready(self) -> bool:
            return False

    monkeypatch.setattr(engines, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(engines, "_ABSENT_SECONDS", 0.05)
    with pytest.raises(EngineError, match="all its workers"):
        engines._wait_for_one(Nobody(), Nobody())


def deadly(number: int) -> int:
    if number == 1:
        os._exit(3)
    return number


@pytest.mark.statistical
def test_a_task_that_kills_its_workers_is_told() -> None:
    crew = {"n_workers": 1, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    options = {"set_as_default": False, "silence_logs": 50}
    with (
        distributed.Client(**crew, **options) as found,
        pytest.raises(WorkerDiedError, match=r"Dask cluster .*killed"),
    ):
        list(run(deadly, [1], engine=found, ordered=False))
