"""What a worker must know: model, samples and options in one file of the run, which processes map into memory."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foretrain.empirical.models.arguments import Batch
from foretrain.empirical.stored_kernel.folder import Run
from foretrain.empirical.stored_kernel.identity import leaves
from foretrain.empirical.tangent_kernel.engine import Engine, probe
from foretrain.empirical.tangent_kernel.kernel import KernelOptions, prepare
from foretrain.empirical.tangent_kernel.planning import GraphChangedError
from foretrain.support.errors import EngineError, NotSupportedError

_FILE = "job.pt"
_BLOCK = 1 << 24


@dataclass(frozen=True)
class Job:
    """All that ``prepare`` takes, and how large a strip of the kernel may be."""

    model: Any
    options: KernelOptions
    first: Batch
    second: Batch | None
    height: int  # rows of tiles in a strip
    room: float  # bytes for factors that are kept
    aside: Mapping[str, list[str]]

    @staticmethod
    def of(
        tangents: Engine,
        sides: tuple[Batch, Batch | None],
        by: str | None,
        strip: tuple[int, float],
        aside: Mapping[str, list[str]],
    ) -> Job:
        """The job of an engine that has looked at the model; ``strip`` is the height of one and the room for it."""
        model, names, rates = tangents.model, frozenset(tangents.parameters), dict(tangents.rates)
        given = model.given_parameters
        options = KernelOptions(
            "trace" if tangents.job.trace else tuple(tangents.outputs),
            output=model.output,
            parameters=(lambda name, _: name in names) if given is None else given,
            rates=lambda name, _: rates[name],
            # Contributions of layers are kept apart, for the record of their shares.
            by="parameter" if by == "parameter" else "layer",
            batch_axis=sides[0].axis,
        )
        return Job(model.function, options, *sides, *strip, aside)

    def prepared(self) -> tuple[Engine, Batch, Batch | None]:
        """The model looked at anew."""
        tangents, first, second = prepare(self.model, self.first, self.second, self.options)
        if any(self.aside.values()):
            tangents.look_again(GraphChangedError(**self.aside))
        # A plan of its own, from samples that do not depend on which chunk comes first.
        if second is not None:
            tangents.chunk(probe(second))
        return tangents, first, second


def _compact(batch: Batch) -> Batch:
    """Samples that are a small part of a larger tensor are copied: with a tensor, all of its memory is sent."""
    tensors = [leaf for leaf in leaves(batch.arguments) if isinstance(leaf, Tensor)]
    parts = any(value.untyped_storage().nbytes() > 2 * value.nbytes for value in tensors)
    return batch.pick(range(batch.count)) if parts else batch


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
    second = None if job.second is None else _compact(job.second)
    job = replace(job, first=_compact(job.first), second=second)
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
        job = torch.load(path, mmap=True, weights_only=False)
    except (ImportError, AttributeError) as error:
        raise NotSupportedError(
            f"a worker cannot load the model ({error}): install the code that defines it on all machines."
        ) from error
    assert isinstance(job, Job)
    return job


def _digest(path: Path) -> str:
    """Only what this run wrote is unpickled."""
    found = hashlib.blake2b(digest_size=16)
    with path.open("rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            found.update(block)
    return found.hexdigest()
