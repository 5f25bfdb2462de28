"""What a worker must know: model, samples and options in one file of the run, which processes map into memory."""

from __future__ import annotations

import hashlib
import io
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from foretrain.empirical.stored_kernel.contents import Job
from foretrain.empirical.stored_kernel.folder import Run
from foretrain.support.errors import EngineError, NotSupportedError

_FILE = "job.pt"
_BLOCK = 1 << 24


def refuse_unsendable(job: Job) -> None:
    """Models can refuse to be pickled in any way: that is found out before anything is touched."""
    _pickle(job, _Nowhere())


def send(job: Job, run: Run) -> str:
    """Write the job where workers find it; gives the digest by which they know that it is the right one."""
    _pickle(job, run.place / _FILE)
    return _digest(run.place / _FILE)


class _Nowhere(io.RawIOBase):
    """Takes any bytes and keeps none."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return len(memoryview(data).cast("B"))


def _pickle(job: Job, target: Path | _Nowhere) -> None:
    try:
        torch.save(job, target, pickle_module=import_module("cloudpickle"))  # type: ignore[arg-type]
    except OSError:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0].rstrip(".:") or type(error).__name__
        raise NotSupportedError(
            f"the model or its inputs cannot be sent to other processes ({reason}): "
            "pass `engine='threads'`, or `workers=1`."
        ) from error


def received(run: Run, digest: str) -> Job:
    """The job that was sent; data stay on disk until they are used."""
    path = run.place / _FILE
    if _digest(path) != digest:
        raise EngineError(
            f"{path} is not what was sent: do not touch the folder of a run, and run the same again."
        )
    try:
        job: Job = torch.load(path, mmap=True, weights_only=False)
    except (ImportError, AttributeError) as error:
        raise NotSupportedError(
            f"a worker cannot load the model ({error}): install the code that defines it on all machines."
        ) from error
    return job


def _digest(path: Path) -> str:
    """Only what this run wrote is unpickled."""
    found = hashlib.blake2b(digest_size=16)
    with path.open("rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            found.update(block)
    return found.hexdigest()
