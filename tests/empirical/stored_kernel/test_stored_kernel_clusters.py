from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from stored_models import Slow, content, inputs, leftovers, records, stored

from foretrain.support.errors import FileError

SAMPLES, SIDE = 100, 5  # 210 tiles


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    path = tmp_path_factory.mktemp("whole") / "k.zarr"
    stored(path, Slow(0.0), inputs(SAMPLES), side=SIDE, workers=1)
    return content(path)


def when_at_work(path: Path, act: Callable[[], None]) -> threading.Thread:
    """Do something once a few tiles are finished."""

    def wait() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if (path / ".tiles").is_dir() and len(os.listdir(path / ".tiles")) > 5:
                act()
                return
            time.sleep(0.01)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.fixture
def dask() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed")
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=":0"
    )
    with cluster, distributed.Client(cluster, set_as_default=False) as client:
        yield client


@pytest.mark.slow
def test_a_dask_cluster_gives_the_same_bits(dask: Any, expected: dict[str, bytes], tmp_path: Path) -> None:
    address = dask.scheduler.address.replace("tcp://", "dask://")
    stored(tmp_path / "k.zarr", Slow(), inputs(SAMPLES), side=SIDE, engine=address)
    assert content(tmp_path / "k.zarr") == expected
    assert len({record["worker"] for record in records(tmp_path / "k.zarr").values()}) == 2


@pytest.mark.slow
def test_a_dask_worker_killed_at_work(dask: Any, expected: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "k.zarr"
    victim = next(iter(dask.run(os.getpid).values()))
    killer = when_at_work(path, lambda: os.kill(victim, signal.SIGKILL))
    stored(path, Slow(), inputs(SAMPLES), side=SIDE, engine=dask)
    killer.join()
    assert victim not in dask.run(os.getpid).values()
    assert content(path) == expected
    assert leftovers(path) == []


@pytest.mark.slow
def test_workers_that_do_not_see_the_store(dask: Any, tmp_path: Path) -> None:
    dask.run(_blind_to, str(tmp_path))
    with pytest.raises(FileError, match=r"worker on .*file system"):
        stored(tmp_path / "k.zarr", Slow(), inputs(SAMPLES), side=SIDE, engine=dask)


def _blind_to(path: str) -> None:
    """As on another machine: there the path leads elsewhere."""
    from foretrain.empirical.stored_kernel import tasks

    tasks.is_stored_kernel = lambda where: not str(where).startswith(path)  # type: ignore[assignment]


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    module = pytest.importorskip("ray")
    options: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    module.init(num_cpus=2, runtime_env={"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}}, **options)
    yield module
    module.shutdown()


@pytest.mark.statistical
def test_a_ray_cluster_gives_the_same_bits(ray: Any, expected: dict[str, bytes], tmp_path: Path) -> None:
    stored(tmp_path / "k.zarr", Slow(), inputs(SAMPLES), side=SIDE, engine="ray://auto")
    assert content(tmp_path / "k.zarr") == expected


@pytest.mark.statistical
def test_a_ray_worker_killed_at_work(ray: Any, expected: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "k.zarr"
    killed: list[int] = []

    def kill() -> None:
        at_work = next(iter(records(path).values()))["worker"]
        killed.append(int(at_work.split("-")[-2]))
        os.kill(killed[0], signal.SIGKILL)

    killer = when_at_work(path, kill)
    stored(path, Slow(), inputs(SAMPLES), side=SIDE, engine="ray://auto")
    killer.join()
    assert not psutil.pid_exists(killed[0])
    assert content(path) == expected
    assert leftovers(path) == []
