"""Points one at a time in a worker process of their own: when it dies, it is known at which point."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as TooLong
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from pickle import PicklingError
from typing import Any, Self

from foretrain.experiments.sweep.evaluation import Outcome, Task, evaluate
from foretrain.support.errors import InputError
from foretrain.support.processes import end_with

_EXIT_CODES = re.compile(r"\{(?P<codes>[^}]*)\}")


class LoneWorker:
    """A process that computes one point after another, and is replaced when it dies; used in a ``with`` block."""

    def __init__(self) -> None:
        self._pool: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def outcome(self, task: Task, patience: float | None = None) -> Outcome | None:
        """Of a point; None if it takes longer than so many seconds, and then it is ended."""
        from joblib.externals.loky import ProcessPoolExecutor

        if self._pool is None:
            self._pool = ProcessPoolExecutor(max_workers=1, initializer=end_with, initargs=(os.getpid(),))
        start = time.perf_counter()
        try:
            found: Outcome = self._pool.submit(evaluate, task).result(patience)
        except TooLong:
            self._stop()
            return None
        except BrokenProcessPool as error:
            self._stop()
            return Outcome(task.key, time.perf_counter() - start, error=_death(error))
        except BaseException:
            self._stop()
            raise
        return found

    def _stop(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True, kill_workers=True)


def refuse_unsendable(function: Callable[..., Any], name: str) -> None:
    """Workers get a user's function by value, with all that it refers to."""
    try:
        import_module("cloudpickle").dumps(function)
    except (PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{name} cannot be sent to other processes ({error}): make inside the function what cannot be copied, or "
            "use one worker, which is this process."
        ) from error


def _death(error: BrokenProcessPool) -> str:
    codes = _EXIT_CODES.search(str(error))
    told = f" ({codes['codes']})" if codes else ""
    return f"its worker process died{told}: it was killed, crashed, or ran out of memory."
