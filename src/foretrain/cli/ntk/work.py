"""How ``foretrain ntk`` gets its kernels: the model and the data as it takes them, in memory or into a store."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from foretrain.cli.model_inputs import as_inputs, check_takes
from foretrain.support.errors import InputError, NotEnoughMemoryError
from foretrain.support.memory import parse_bytes

if TYPE_CHECKING:
    from torch import Tensor, nn

    from foretrain.empirical.stored_kernel.reading import StoredKernel
    from foretrain.empirical.tangent_kernel import TangentKernel
    from foretrain.support.loading import Samples

    Found = TangentKernel | StoredKernel


@dataclass(frozen=True)
class Work:
    """How kernels are computed: into a store, or in memory without one."""

    outputs: Any
    by: Literal["layer", "parameter"] | None
    store: Path | None
    engine: str | None
    workers: int | None
    batch_size: int | None
    memory: str | None
    anew: bool


def refuse_what_needs_a_store(work: Work) -> None:
    """Options that say nothing about a kernel in memory."""
    if work.memory is not None and parse_bytes(work.memory, "--memory") <= 0:
        raise InputError(f"--memory is {work.memory!r}: give a size above 0, such as 2GB.")
    if work.store is not None:
        return
    given = {
        "--engine": work.engine,
        "--workers": work.workers,
        "--memory": work.memory,
        "--anew": work.anew or None,
    }
    for option, value in given.items():
        if value is not None:
            raise InputError(f"{option} is for kernels on disk: add -o out.zarr, or leave it out.")


def in_precision(model: nn.Module, dtype: str | None) -> nn.Module:
    """The model in the precision that is asked for."""
    import torch

    known = {"float32": torch.float32, "float64": torch.float64}
    if dtype is None:
        return model
    if dtype not in known:
        raise InputError(f"--dtype is {dtype!r}: choose float32 or float64.")
    return model.to(known[dtype])


def inputs_of(data: Samples, name: str, model: nn.Module) -> Tensor:
    """An array of the data file as the model takes it; what it does not take is refused in one sentence."""
    x = as_inputs(getattr(data, name), model)
    check_takes(model, x[:2], name)
    return x


def kernel_of(model: nn.Module, x: Tensor, x2: Tensor | None, work: Work) -> Found:
    """The kernel of x with itself, or with other samples."""
    from foretrain.empirical import ntk as compute

    size = work.batch_size or "auto"
    if work.store is not None:
        return compute(
            model,
            x,
            x2,
            work.outputs,
            by=work.by,
            batch_size=size,
            store=work.store,
            engine=work.engine,
            workers=work.workers,
            memory=work.memory,
            overwrite=work.anew,
        )
    try:
        return compute(model, x, x2, work.outputs, by=work.by, batch_size=size)
    except NotEnoughMemoryError as error:
        raise NotEnoughMemoryError(
            f"{error.message.rstrip('.')}, or give -o out.zarr, which keeps the kernel on disk."
        ) from error


def beside(work: Work) -> Work:
    """The same work for the test samples, in a store beside the first."""
    if work.store is None:
        return work
    return replace(work, store=work.store.with_name(f"{work.store.stem}-test{work.store.suffix}"))
