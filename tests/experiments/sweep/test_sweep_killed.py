"""kill -9 at random moments, of the sweep or of a worker: nothing is lost, computed twice or changed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from swept import content, write_drawn, written

import foretrain as ft
from foretrain.experiments.sweep import sweep

pytestmark = pytest.mark.statistical

KILLS, POINTS = 5, 200


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The data of a run that nothing interrupts, in one process."""
    spec = write_drawn(tmp_path_factory.mktemp("whole"))
    sweep(spec, workers=1)
    return content(spec.with_suffix(".sweep"))


def wait_for(condition: Callable[[], bool], seconds: float = 240.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def start(spec: Path, engine: str) -> subprocess.Popen[bytes]:
    options = [str(spec), "--workers", "2", "--engine", engine]
    command = [sys.executable, "-m", "foretrain.cli.main", "sweep", *options]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, env=os.environ | {"PAUSE": "0.02"}, **quiet)  # type: ignore[call-overload]


def test_a_sweep_killed_five_times(tmp_path: Path, expected: dict[str, bytes]) -> None:
    """By turns on threads, which start fast, and on processes, which must not outlive it."""
    spec = write_drawn(tmp_path)
    store = spec.with_suffix(".sweep")
    chance = random.Random(5)
    ends, workers = sorted(chance.sample(range(5, POINTS - 20), KILLS)), []
    for end, engine in zip(ends, ("threads", "local", "threads", "threads", "local"), strict=True):
        run = start(spec, engine)
        assert wait_for(lambda end=end: written(store).total() >= end)  # type: ignore[misc]
        time.sleep(chance.uniform(0, 0.05))
        workers += psutil.Process(run.pid).children(recursive=True)
        run.send_signal(signal.SIGKILL)
        assert run.wait() == -signal.SIGKILL
    before = written(store)
    assert ends[-1] <= before.total() < POINTS
    assert start(spec, "threads").wait(timeout=240) == 0
    after = written(store)
    assert set(after.values()) == {1}
    assert after.total() == POINTS
    assert before <= after
    assert content(store) == expected
    assert ft.load(store)["value"].notnull().all()
    assert wait_for(lambda: not any(worker.is_running() for worker in workers), 30)


@pytest.fixture
def dask() -> Iterator[Any]:
    """A cluster of two processes on this machine, which the client starts."""
    distributed = pytest.importorskip("distributed")
    crew = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    with distributed.Client(**crew, set_as_default=False) as client:
        yield client


def test_a_dask_worker_killed_at_work(dask: Any, tmp_path: Path, expected: dict[str, bytes]) -> None:
    spec = write_drawn(tmp_path)
    store = spec.with_suffix(".sweep")
    dask.run(os.environ.update, {"PAUSE": "0.02"})
    victim = next(iter(dask.run(os.getpid).values()))

    def kill() -> None:
        if wait_for(lambda: written(store).total() > 20):
            os.kill(victim, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    found = sweep(spec, engine=dask)
    killer.join()
    assert victim not in dask.run(os.getpid).values()
    assert found.computed == POINTS
    assert set(written(store).values()) == {1}
    assert content(store) == expected


def test_a_local_worker_killed_at_work(tmp_path: Path, expected: dict[str, bytes]) -> None:
    spec = write_drawn(tmp_path)
    store = spec.with_suffix(".sweep")
    run = start(spec, "local")
    assert wait_for(lambda: written(store).total() > 20)
    victims = [
        child for child in psutil.Process(run.pid).children() if "popen_loky" in " ".join(child.cmdline())
    ]
    victims[-1].kill()
    assert run.wait(timeout=240) == 0
    assert content(store) == expected
    assert set(written(store).values()) == {1}
