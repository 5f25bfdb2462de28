"""Engines: the same tasks on the processes of one machine, on threads, or on a Dask or Ray cluster.

- ``None`` or ``"local"``: processes of this machine (joblib's loky), each with its share of the cores
- ``"threads"``: threads of this process, for work that releases the interpreter lock
- ``"dask://host:port"``: the Dask cluster with that scheduler; an open ``distributed.Client`` also does
- ``"ray://host:port"``: the Ray cluster with that client server; ``"ray://auto"`` for one on this machine

On a cluster the number of threads inside a task is the cluster's own setting (one per task by default).
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from importlib import import_module
from itertools import islice
from typing import Any, TypeAlias, TypeVar
from urllib.parse import urlsplit

from foretrain.support.arguments import whole_number
from foretrain.support.errors import EngineError, InputError, NotSupportedError
from foretrain.support.processes import begin_worker, safe_path
from foretrain.support.progress import track

T = TypeVar("T")
R = TypeVar("R")
Call: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]  # as joblib.delayed makes them
Execute: TypeAlias = Callable[[Iterable[Call]], Iterable[Any]]

_ANSWER_SECONDS = 5.0  # how long a cluster may take to answer before it counts as absent
_AHEAD = 64  # tasks that a cluster is given at least, so that it may grow
_AHEAD_PER_THREAD = 4
_POLL_SECONDS = 0.005
_LOOK_SECONDS = 5.0  # between looks at the workers
_ABSENT_SECONDS = 60.0  # without any worker, after which nobody waits for them


class WorkerDiedError(EngineError):
    """A worker died at a task, which may be the cause: the engine itself is there."""


def run(
    function: Callable[[T], R],
    tasks: Iterable[T],
    *,
    engine: object = None,
    workers: int | None = None,
    description: str | None = None,
    ordered: bool = True,
) -> Generator[R, None, None]:
    """Yield ``function(task)`` for every task, in order or as they finish; a description asks for a bar.

    One task or one worker on this machine runs in this process. Results arrive one by one, except from Ray,
    which hands them over at the end.
    """
    jobs = list(tasks)
    session = _session(engine, workers, len(jobs), "generator" if ordered else "generator_unordered")
    return _results(session, function, jobs, description)


def check(engine: object, workers: int | None) -> None:
    """Refuse what ``run`` would refuse, before long preparations."""
    _session(engine, workers, 1, "generator")


def capacity(engine: object, workers: int | None = None) -> int:
    """How many tasks the engine runs at a time; a cluster is asked."""
    import joblib

    check(engine, workers)
    if workers is not None:
        return workers
    if engine is None or engine in ("local", "threads"):
        return int(joblib.cpu_count())
    if isinstance(engine, str) and engine.startswith("ray://"):
        with _ray_connection(engine) as ray:
            return int(ray.cluster_resources().get("CPU", 1))
    with _dask_client(engine) as client:
        return sum(client.nthreads().values())


def _results(
    session: AbstractContextManager[Execute],
    function: Callable[[T], R],
    jobs: list[T],
    description: str | None,
) -> Generator[R, None, None]:
    import joblib

    with session as execute:
        outputs: Iterable[R] = execute(joblib.delayed(function)(job) for job in jobs)
        yield from outputs if description is None else track(outputs, description, total=len(jobs))


def _session(
    engine: object, workers: int | None, count: int, return_as: str
) -> AbstractContextManager[Execute]:
    """The session of an engine, not yet opened; an engine that cannot exist is refused here."""
    workers = None if workers is None else whole_number("workers", workers)
    if engine is None or engine in ("local", "threads"):
        return _local_session("threading" if engine == "threads" else "loky", workers, count, return_as)
    if isinstance(engine, str) and engine.startswith("ray://"):
        if engine != "ray://auto":
            _host_and_port(engine)
        return _ray_session(engine, workers)
    address = isinstance(engine, str) and engine.startswith("dask://")
    if address or ("distributed" in sys.modules and isinstance(engine, sys.modules["distributed"].Client)):
        if workers is not None:
            raise InputError(
                "`workers` cannot be set for a Dask cluster, which uses all it has: leave it out."
            )
        if isinstance(engine, str):
            _host_and_port(engine)
        elif engine.status in ("closing", "closed"):  # type: ignore[attr-defined]
            raise EngineError("the Dask client is closed: open it again, or give the scheduler's address.")
        return _dask_session(engine, return_as)
    raise InputError(
        f"`engine` {engine!r} is not known: use 'local', 'threads', 'dask://host:port', 'ray://host:port', "
        "'ray://auto' or an open distributed.Client."
    )


@contextmanager
def _local_session(backend: str, workers: int | None, count: int, return_as: str) -> Iterator[Execute]:
    import joblib

    cores = joblib.cpu_count()
    used = min(workers or cores, count)
    if used <= 1:
        yield partial(map, _call)
        return
    inner: dict[str, Any] = {}
    if backend == "loky":
        # A worker that was started, but given no task before its parent was killed, would wait for minutes.
        inner = {"initializer": begin_worker, "initargs": (os.getpid(),)}
        inner["inner_max_num_threads"] = max(1, cores // used)
    # The configuration is left before results are awaited, so that it does not reach the caller's own joblib.
    with joblib.parallel_config(backend=backend, **inner):
        execute = joblib.Parallel(n_jobs=used, return_as=return_as)
    try:
        with safe_path():
            yield execute
    except BrokenProcessPool as error:
        raise WorkerDiedError(
            "a worker process was killed, most likely for lack of memory: use fewer workers or smaller tasks."
        ) from error


@contextmanager
def _dask_client(engine: object) -> Iterator[Any]:
    """The client that was given, which stays open, or one of the scheduler at an address."""
    if not isinstance(engine, str):
        yield engine
        return
    host, port = _host_and_port(engine)
    distributed = _extra("distributed")
    _knock(host, port, "Dask scheduler")
    address = f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"

    async def greet() -> None:
        connection = distributed.core.connect(address)
        await (await asyncio.wait_for(connection, _ANSWER_SECONDS)).close()

    # A client would wait for ever for the greeting of a server that is not a scheduler; this does not. It happens in
    # a thread of its own, because in a notebook this one already runs an event loop.
    with ThreadPoolExecutor(1) as pool:
        try:
            pool.submit(asyncio.run, greet()).result()
        except Exception as error:  # what another protocol answers can fail in any way
            raise EngineError(
                f"what answers at {host}:{port} is not a Dask scheduler of a matching version: "
                "check the address."
            ) from error
    with distributed.Client(address, timeout=_ANSWER_SECONDS, set_as_default=False) as client:
        yield client


@contextmanager
def _dask_session(engine: object, return_as: str) -> Iterator[Execute]:
    distributed = _extra("distributed")
    execute = _in_order if return_as == "generator" else _as_they_finish
    with _dask_client(engine) as client:
        try:
            client.wait_for_workers(1, timeout=_ANSWER_SECONDS)
        except TimeoutError as error:
            raise EngineError("the Dask cluster has no workers: start some and try again.") from error
        try:
            yield partial(execute, client)
        except distributed.KilledWorker as error:
            raise WorkerDiedError(
                "workers of the Dask cluster were killed, most likely for lack of memory: use smaller tasks."
            ) from error
        except (distributed.CancelledError, asyncio.CancelledError) as error:
            raise EngineError("the Dask cluster is gone: start it again and run this once more.") from error


def _call(call: Call) -> Any:
    function, arguments, options = call
    return function(*arguments, **options)


# joblib's backend for Dask never hands over that a task has killed its workers, and waits for ever; nor does it see
# that all workers are gone. So tasks go to a Dask cluster by its own client.


def _in_order(client: Any, calls: Iterable[Call]) -> Iterator[Any]:
    """Results in the order of the calls."""
    early: dict[int, Any] = {}
    expected = 0
    for number, result in _numbered(client, calls):
        early[number] = result
        while expected in early:
            yield early.pop(expected)
            expected += 1


def _as_they_finish(client: Any, calls: Iterable[Call]) -> Iterator[Any]:
    """Results in whatever order."""
    return (result for _, result in _numbered(client, calls))


def _numbered(client: Any, calls: Iterable[Call]) -> Iterator[tuple[int, Any]]:
    """Results with the numbers of their calls; the cluster holds a few tasks for each thread at a time."""
    running = import_module("distributed").as_completed(loop=client.loop, with_results=True)
    waiting, at_work = enumerate(calls), dict[str, tuple[int, Any]]()

    def hand_over(count: int) -> None:
        for number, call in islice(waiting, count):
            future = client.submit(_call, call, pure=False)
            at_work[future.key] = number, future
            running.add(future)

    try:
        hand_over(max(_AHEAD, _AHEAD_PER_THREAD * sum(client.nthreads().values())))
        while not running.is_empty():
            _wait_for_one(client, running)
            future, result = next(running)
            number, _ = at_work.pop(future.key)
            future.release()  # or the cluster would keep all results to the end
            hand_over(1)
            yield number, result
    finally:
        if client.status == "running":
            client.cancel([future for _, future in at_work.values()])


def _wait_for_one(client: Any, running: Any) -> None:
    seen = looked = time.monotonic()
    while not running.has_ready():
        time.sleep(_POLL_SECONDS)
        now = time.monotonic()
        if now - looked < _LOOK_SECONDS:
            continue
        looked = now
        if client.nthreads():
            seen = now
        elif now - seen > _ABSENT_SECONDS:
            raise EngineError("the Dask cluster has lost all its workers: start some and run this again.")


@contextmanager
def _ray_session(engine: str, workers: int | None) -> Iterator[Execute]:
    import joblib

    with _ray_connection(engine):
        _extra("ray.util.joblib").register_ray()
        with joblib.parallel_config(backend="ray"):
            execute = joblib.Parallel(n_jobs=workers or -1)
        try:
            yield execute
        except _lost_on_ray() as error:
            raise WorkerDiedError(
                "workers of the Ray cluster were killed, most likely for lack of memory: use smaller tasks."
            ) from error


@contextmanager
def _ray_connection(engine: str) -> Iterator[Any]:
    """Ray, connected to the cluster; a connection that was there before stays."""
    ray = _extra("ray")
    if ray.is_initialized():
        if engine != "ray://auto":
            raise InputError(
                "this process is already connected to Ray: use engine 'ray://auto' for that connection."
            )
        yield ray
        return
    address, options = engine, dict[str, Any]()
    if engine == "ray://auto":
        address, options = "auto", {"log_to_driver": False, "logging_level": logging.ERROR}
    else:
        _knock(*_host_and_port(engine), "Ray client server")
    try:
        ray.init(address, **options)
    except Exception as error:  # Ray has many ways to say that it could not connect
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise EngineError(
            f"Ray could not connect to {engine} ({reason}): start the cluster or check the address."
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _lost_on_ray() -> tuple[type[Exception], ...]:
    """What Ray raises when a worker is gone; what a task raises on its own comes as it is."""
    errors = _extra("ray.exceptions")
    return errors.RayActorError, errors.WorkerCrashedError, errors.OutOfMemoryError


def _host_and_port(engine: str) -> tuple[str, int]:
    try:
        parts = urlsplit(engine)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or port is None:
        raise InputError(f"`engine` {engine!r} is not an address: write it like 'dask://192.168.0.7:8786'.")
    return host, port


def _knock(host: str, port: int, what: str) -> None:
    """The clusters' own clients wait long and log much before they give up; a bare connection does not."""
    try:
        socket.create_connection((host, port), timeout=_ANSWER_SECONDS).close()
    except OSError as error:
        raise EngineError(
            f"no {what} answers at {host}:{port} ({error.strerror or error}): start it or check the address."
        ) from error


def _extra(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise NotSupportedError(
            f"this engine needs {module.partition('.')[0]}, which is not installed: "
            "pip install 'foretrain[cluster]'."
        ) from error
