"""The peer's end of the link: one JSON request a line on stdin, one JSON answer a line on stdout.

Started as `python -m bench.peer_side.serve MODULE`, where MODULE has `CALLS`: name -> prepare(arrays,
options), and prepare returns a function without arguments that does the whole job and returns named arrays
when they are really there. Arrays travel as .npy files; clocks run in here, so the link is never timed.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from bench.peer_side.memory import peak_increase
from bench.peer_side.timing import burst

Run = Callable[[], Mapping[str, Any]]
Prepare = Callable[[Mapping[str, Any], Mapping[str, Any]], Run]


class Server:
    """Holds the prepared calls of one process."""

    def __init__(self, calls: Mapping[str, Prepare]) -> None:
        self.calls = calls
        self.prepared: dict[str, Run] = {}
        self.first: dict[str, Mapping[str, Any]] = {}
        self.last: dict[str, float] = {}

    def prepare(self, key: str, call: str, arrays: dict[str, str], options: dict[str, Any]) -> dict[str, Any]:
        """Load the arrays and call once; compiling is part of it and is never timed."""
        loaded = {name: np.load(path, allow_pickle=False) for name, path in arrays.items()}
        self.prepared[key] = self.calls[call](loaded, options)
        self.first[key] = self.prepared[key]()
        return {}

    def time(self, key: str) -> dict[str, Any]:
        seconds = burst(self.prepared[key], self.last.get(key))
        self.last[key] = seconds[-1]
        return {"seconds": seconds}

    def memory(self, key: str) -> dict[str, Any]:
        start = perf_counter()
        increase = peak_increase(self.prepared[key])
        self.last[key] = perf_counter() - start
        return {"bytes": increase, "seconds": self.last[key]}

    def result(self, key: str, folder: str) -> dict[str, Any]:
        """Write what the first call gave; it is given out once, so that it takes no memory while timing."""
        paths: dict[str, str] = {}
        for name, value in self.first.pop(key).items():
            paths[name] = str(Path(folder) / f"{key}-{name}.npy")
            np.save(paths[name], np.asarray(value))
        return {"arrays": paths}

    def drop(self, key: str) -> dict[str, Any]:
        for held in (self.prepared, self.first, self.last):
            held.pop(key, None)
        return {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        verbs: dict[str, Callable[..., dict[str, Any]]] = {
            "prepare": self.prepare,
            "time": self.time,
            "memory": self.memory,
            "result": self.result,
            "drop": self.drop,
        }
        try:
            return verbs[request.pop("do")](**request)
        except Exception as error:
            traceback.print_exc()
            return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Serve until stdin closes."""
    # Libraries may print: the answers keep stdout for themselves, all else goes to stderr.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    server = Server(importlib.import_module(sys.argv[1]).CALLS)
    answers.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        answers.write(json.dumps(server.answer(json.loads(line))) + "\n")


if __name__ == "__main__":
    main()
