from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from foretrain.support import engines
from foretrain.support.engines import capacity, check, run
from foretrain.support.errors import EngineError, InputError, NotSupportedError


def square(x: int) -> int:
    return x * x


def process(_: int) -> int:
    return os.getpid()


def thread(_: int) -> int:
    time.sleep(0.05)
    return threading.get_ident()


def inner_threads(_: int) -> str | None:
    return os.environ.get("OMP_NUM_THREADS")


def slow_first(x: int) -> int:
    time.sleep(1.0 if x == 0 else 0.0)
    return x


def fail(x: int) -> int:
    if x == 2:
        raise InputError("task 2 is wrong: mend it.")
    return x


def die(x: int) -> int:
    if x == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return x


@pytest.mark.slow(after=3)
@pytest.mark.parametrize("engine", [None, "local", "threads"])
@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_order(engine: str | None, workers: int) -> None:
    assert list(run(square, range(20), engine=engine, workers=workers)) == [x * x for x in range(20)]


def test_where_the_work_is_done() -> None:
    here = os.getpid()
    assert set(run(process, range(4), workers=1)) == {here}
    assert set(run(process, [0], workers=2)) == {here}
    assert here not in set(run(process, range(4), workers=2))
    assert set(run(process, range(4), engine="threads", workers=2)) == {here}
    assert len(set(run(thread, range(6), engine="threads", workers=2))) == 2


def test_no_tasks_give_no_results() -> None:
    assert list(run(square, [])) == []


@pytest.mark.slow
def test_unordered_results_come_as_they_finish() -> None:
    outputs = list(run(slow_first, range(4), engine="threads", workers=2, ordered=False))
    assert outputs[0] != 0
    assert sorted(outputs) == [0, 1, 2, 3]


@pytest.mark.slow
def test_results_arrive_before_the_last_task_is_done() -> None:
    start = time.monotonic()
    outputs = run(slow_first, [1, 2, 3, 0], engine="threads", workers=2)
    assert next(outputs) == 1
    assert time.monotonic() - start < 0.9
    assert list(outputs) == [2, 3, 0]


def test_numerical_libraries_share_the_cores_among_workers() -> None:
    import joblib

    workers = 2
    expected = str(max(1, joblib.cpu_count() // workers))
    assert set(run(inner_threads, range(4), workers=workers)) == {expected}


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("workers", [1, 2])
def test_errors_of_tasks_arrive_as_they_are(workers: int) -> None:
    with pytest.raises(InputError, match="task 2 is wrong: mend it"):
        list(run(fail, range(4), workers=workers))


def test_a_killed_worker_is_reported_in_one_sentence() -> None:
    with pytest.raises(EngineError, match=r"killed.*workers"):
        list(run(die, range(4), workers=2))


@pytest.mark.filterwarnings("ignore:.*tasks have been successfully executed  but not used")
def test_abandoned_work_can_be_closed() -> None:
    outputs = run(square, range(100), engine="threads", workers=2)
    assert next(outputs) == 0
    outputs.close()
    assert list(run(square, range(3), engine="threads", workers=2)) == [0, 1, 4]


def test_progress_counts_the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def spy(items: Any, description: str, total: int) -> Any:
        seen.append((description, total))
        return items

    monkeypatch.setattr(engines, "track", spy)
    assert list(run(square, range(3), workers=1, description="squares")) == [0, 1, 4]
    assert seen == [("squares", 3)]


@pytest.mark.parametrize("engine", ["cluster", "dask", "tcp://localhost:1", 3, "Local"])
def test_unknown_engines_are_refused(engine: object) -> None:
    with pytest.raises(InputError, match="'local', 'threads', 'dask://host:port'"):
        run(square, [1], engine=engine)


def test_engines_can_be_checked_before_there_is_work() -> None:
    check("dask://host:1", None)
    check(None, 3)
    with pytest.raises(InputError, match="is not known"):
        check("cluster", None)
    with pytest.raises(InputError, match="positive whole number"):
        check(None, 0)
    with pytest.raises(InputError, match=r"workers .*Dask cluster"):
        check("dask://host:1", 2)


def test_how_many_tasks_run_at_a_time_on_this_machine() -> None:
    import joblib

    assert capacity(None) == capacity("threads") == joblib.cpu_count()
    assert capacity("local", 3) == 3
    with pytest.raises(InputError, match="is not known"):
        capacity("cluster")


@pytest.mark.parametrize(
    "engine", ["dask://", "dask://host", "dask://host:port", "dask://:8786", "ray://host"]
)
def test_malformed_addresses_are_refused(engine: str) -> None:
    with pytest.raises(InputError, match="address"):
        run(square, [1], engine=engine)


@pytest.mark.parametrize("workers", [0, -1, 1.5, True])
def test_bad_numbers_of_workers_are_refused(workers: Any) -> None:
    with pytest.raises(InputError, match="positive whole number"):
        run(square, [1], workers=workers)


@pytest.mark.parametrize(
    ("engine", "module"),
    [("dask://localhost:1", "distributed"), ("ray://localhost:1", "ray"), ("ray://auto", "ray")],
)
def test_a_missing_extra_is_named(engine: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(NotSupportedError, match=rf"{module}.*pip install 'foretrain\[cluster\]'"):
        list(run(square, [1], engine=engine))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_silent_address_is_reported_quickly() -> None:
    start = time.monotonic()
    with pytest.raises(EngineError, match=r"Dask scheduler .*127\.0\.0\.1:"):
        list(run(square, [1], engine=f"dask://127.0.0.1:{free_port()}"))
    assert time.monotonic() - start < 10


def test_something_else_than_a_scheduler_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_ANSWER_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(EngineError, match="Dask scheduler"):
            list(run(square, [1], engine=f"dask://127.0.0.1:{port}"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    import distributed

    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=2, processes=True, host="127.0.0.1", dashboard_address=":0"
    ) as local:
        yield local


def test_a_closed_client_is_refused_before_any_work(cluster: Any) -> None:
    import distributed

    with distributed.Client(address=cluster.scheduler_address, set_as_default=False) as client:
        pass
    for question in (check, capacity):
        with pytest.raises(EngineError, match="client is closed"):
            question(client, None)


def test_a_dask_cluster_by_address_and_by_client(cluster: Any) -> None:
    import distributed

    address = cluster.scheduler_address.replace("tcp://", "dask://")
    assert list(run(square, range(20), engine=address)) == [x * x for x in range(20)]
    assert sorted(run(square, range(20), engine=address, ordered=False)) == [x * x for x in range(20)]
    assert os.getpid() not in set(run(process, range(3), engine=address))
    with distributed.Client(address=cluster.scheduler_address, set_as_default=False) as client:
        assert list(run(square, range(5), engine=client)) == [0, 1, 4, 9, 16]
        assert client.status == "running"


def test_a_dask_cluster_is_asked_how_many_tasks_it_runs(cluster: Any) -> None:
    import distributed

    assert capacity(cluster.scheduler_address.replace("tcp://", "dask://")) == 2
    with distributed.Client(address=cluster.scheduler_address, set_as_default=False) as client:
        assert capacity(client) == 2


def test_errors_of_tasks_arrive_from_a_dask_cluster(cluster: Any) -> None:
    address = cluster.scheduler_address.replace("tcp://", "dask://")
    with pytest.raises(InputError, match="task 2 is wrong"):
        list(run(fail, range(4), engine=address))


def test_workers_of_a_dask_cluster_cannot_be_counted_out(cluster: Any) -> None:
    with pytest.raises(InputError, match=r"workers .*Dask cluster"):
        run(square, [1], engine=cluster.scheduler_address.replace("tcp://", "dask://"), workers=2)


def test_a_dask_cluster_without_workers_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    import distributed

    monkeypatch.setattr(engines, "_ANSWER_SECONDS", 0.5)
    with distributed.LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address=":0") as empty:
        address = empty.scheduler_address.replace("tcp://", "dask://")
        with pytest.raises(EngineError, match="no workers"):
            list(run(square, [1], engine=address))


class FakeRay(ModuleType):
    """Stands in for Ray: records what is asked of it and refuses to connect where there is no cluster."""

    def __init__(self, *, connected: bool, cluster: bool) -> None:
        super().__init__("ray")
        self.connected, self.cluster, self.calls = connected, cluster, list[Any]()

    def is_initialized(self) -> bool:
        return self.connected

    def init(self, address: str, **options: Any) -> None:
        self.calls.append(address)
        if not self.cluster:
            raise ConnectionError("no cluster")
        self.connected = True

    def shutdown(self) -> None:
        self.calls.append("shutdown")

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 6.0, "memory": 1e9}


def install(monkeypatch: pytest.MonkeyPatch, ray: FakeRay) -> None:
    from joblib._parallel_backends import ThreadingBackend
    from joblib.parallel import register_parallel_backend

    adapter = ModuleType("ray.util.joblib")
    vars(adapter)["register_ray"] = lambda: register_parallel_backend("ray", ThreadingBackend)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.util", ModuleType("ray.util"))
    monkeypatch.setitem(sys.modules, "ray.util.joblib", adapter)


def test_ray_is_connected_to_and_left_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay(connected=False, cluster=True)
    install(monkeypatch, ray)
    assert list(run(square, range(4), engine="ray://auto")) == [0, 1, 4, 9]
    assert ray.calls == ["auto", "shutdown"]
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"ray://127.0.0.1:{server.getsockname()[1]}"
        ray.connected = False
        assert list(run(square, range(4), engine=address, workers=2)) == [0, 1, 4, 9]
    assert ray.calls[2:] == [address, "shutdown"]


class ActorError(Exception):
    """What Ray raises when a worker is gone."""


def lose_worker(x: int) -> int:
    raise ActorError("the actor died unexpectedly")


def test_lost_workers_of_ray_are_reported_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeRay(connected=True, cluster=True))
    errors = ModuleType("ray.exceptions")
    vars(errors).update(RayActorError=ActorError, WorkerCrashedError=ActorError, OutOfMemoryError=ActorError)
    monkeypatch.setitem(sys.modules, "ray.exceptions", errors)
    with pytest.raises(EngineError, match=r"Ray cluster .*killed"):
        list(run(lose_worker, range(3), engine="ray://auto"))
    with pytest.raises(InputError, match="task 2 is wrong"):
        list(run(fail, range(4), engine="ray://auto"))


def test_ray_is_asked_how_many_tasks_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay(connected=False, cluster=True)
    install(monkeypatch, ray)
    assert capacity("ray://auto", 2) == 2
    assert ray.calls == []
    assert capacity("ray://auto") == 6
    assert ray.calls == ["auto", "shutdown"]


def test_an_existing_connection_to_ray_is_used_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay(connected=True, cluster=True)
    install(monkeypatch, ray)
    assert list(run(square, range(4), engine="ray://auto")) == [0, 1, 4, 9]
    assert ray.calls == []
    with pytest.raises(InputError, match="'ray://auto'"):
        list(run(square, [1], engine="ray://localhost:1"))


@pytest.mark.slow
def test_a_missing_ray_cluster_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeRay(connected=False, cluster=False))
    with pytest.raises(EngineError, match=r"ray://auto \(no cluster\)"):
        list(run(square, [1], engine="ray://auto"))
    with pytest.raises(EngineError, match=r"Ray .*127\.0\.0\.1"):
        list(run(square, [1], engine=f"ray://127.0.0.1:{free_port()}"))
