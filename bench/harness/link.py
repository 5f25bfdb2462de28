"""Our end of the link to a peer's process: it is started once, kept for the whole run, and asked in turn."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from bench.harness.rates import cores
from bench.peers import ROOT, Environment, environment


class PeerError(RuntimeError):
    """The peer's process could not do what it was asked."""


class PeerMissingError(PeerError):
    """The peer's environment is not there or is out of date."""


class Link:
    """One peer's process; arrays travel as .npy files in a temporary folder."""

    def __init__(self, peer: Environment) -> None:
        if not peer.ready:
            raise PeerMissingError(f"{peer.name} is not installed: {peer.remedy}")
        self.peer = peer
        self._folder = tempfile.TemporaryDirectory(prefix="bench-")
        self._log = (Path(self._folder.name) / "log").open("w+")
        self._keys = 0
        self._waiting = True
        self._process = subprocess.Popen(
            [str(peer.python), "-m", "bench.peer_side.serve", peer.server],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=ROOT,
            env=_peer_environment(),
            start_new_session=True,  # Ctrl-C is for us, and we close the peers
        )
        self._read()

    def prepare(self, call: str, arrays: Mapping[str, npt.NDArray[Any]], options: Mapping[str, Any]) -> str:
        """Hand over the arrays and let the peer compile; returns the key of the prepared call."""
        self._keys += 1
        key = f"call{self._keys}"
        paths = {name: str(Path(self._folder.name) / f"{key}-in-{name}.npy") for name in arrays}
        for name, path in paths.items():
            np.save(path, arrays[name])
        self._ask(do="prepare", key=key, call=call, arrays=paths, options=dict(options))
        return key

    def time(self, key: str) -> list[float]:
        """Seconds of each call of one burst, by the peer's own clock."""
        return [float(seconds) for seconds in self._ask(do="time", key=key)["seconds"]]

    def memory(self, key: str) -> tuple[int | None, float]:
        """Bytes that one call needs at its peak, None if the system does not say, and the seconds it took."""
        answer = self._ask(do="memory", key=key)
        return answer["bytes"], float(answer["seconds"])

    def result(self, key: str) -> dict[str, npt.NDArray[Any]]:
        """What the call gave when it was prepared; asked for once."""
        paths = self._ask(do="result", key=key, folder=self._folder.name)["arrays"]
        return {name: np.load(path, allow_pickle=False) for name, path in paths.items()}

    def drop(self, key: str) -> None:
        """Forget a prepared call and its arrays; after an interruption the process may still be at the last one."""
        if self.alive and not self._waiting:
            self._ask(do="drop", key=key)
        for path in Path(self._folder.name).glob(f"{key}-*.npy"):
            path.unlink()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """The peer ends when its stdin closes; one that still owes an answer is not waited for."""
        if self._waiting:
            self._process.kill()
        self._process.communicate()
        self._log.close()
        self._folder.cleanup()

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._waiting = True
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._died() from None
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self._waiting = False
        if not line:
            raise self._died()
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerError(f"{self.peer.name}: {answer['error']}")
        return answer

    def _died(self) -> PeerError:
        code = self._process.wait()
        self._log.seek(0)
        last = " | ".join(self._log.read().strip().splitlines()[-3:])
        return PeerError(f"the process of {self.peer.name} ended with code {code}: {last}")


class Links:
    """The processes of a run, started when first needed and closed together."""

    def __init__(self) -> None:
        self._links: dict[str, Link] = {}

    def to(self, name: str) -> Link:
        if name in self._links and not self._links[name].alive:
            self._links.pop(name).close()
        if name not in self._links:
            self._links[name] = Link(environment(name))
        return self._links[name]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for link in self._links.values():
            link.close()


def _peer_environment() -> dict[str, str]:
    """The caller's variables, without what points Python elsewhere, and as many threads as ours has."""
    dropped = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return kept | dict.fromkeys(threads, str(cores())) | {"JAX_PLATFORMS": "cpu"}
