"""``ntk``: the exact tangent kernel of any torch model, put together from chunks of samples that fit the memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import torch
from torch import Tensor, nn

from foretrain.empirical.models.arguments import (
    Batch,
    Chosen,
    Rates,
    as_batch,
    chosen,
    layer_of,
    numbers_below,
    rate_of_each,
    trainable,
)
from foretrain.empirical.models.model import (
    GradientHooks,
    Model,
    Output,
    explained,
    refuse_ill_defined,
    refused_checkpoints,
    unchanged,
)
from foretrain.empirical.tangent_kernel.engine import Engine, Factors, join, probe
from foretrain.empirical.tangent_kernel.factors import add_products, add_symmetric_products, rows_of
from foretrain.empirical.tangent_kernel.planning import Counted, Job
from foretrain.empirical.tangent_kernel.written_kernel import TangentKernel
from foretrain.support.errors import InputError, unknown_name
from foretrain.support.memory import available_bytes, require_memory
from foretrain.support.progress import Progress
from foretrain.support.threads import on_free_cores

if TYPE_CHECKING:
    from foretrain.empirical.stored_kernel.reading import StoredKernel


Outputs = Literal["full", "trace"] | Sequence[int]
By = Literal["layer", "parameter"] | None

_SHARE = 0.5  # of the available memory that chunks may take
_LIBRARIES = 30e6  # bytes that matrix products and convolutions keep for themselves
_LARGEST_WORKING = 2e9  # bytes; more would not be faster,
_FEWEST = 8  # unless fewer samples than these go through the model together
_JOINING = 1.25  # of the memory of factors, while those of several passes are put together


@overload
def ntk(
    model: Any, x: Any, x2: Any = None, outputs: Outputs = "full", *, store: None = None, **options: Any
) -> TangentKernel: ...
@overload
def ntk(
    model: Any, x: Any, x2: Any = None, outputs: Outputs = "full", *, store: str | Path, **options: Any
) -> StoredKernel: ...
def ntk(  # type: ignore[misc]  # the overloads leave the other options to this signature
    model: Any,
    x: Any,
    x2: Any = None,
    outputs: Outputs = "full",
    *,
    output: Output = None,
    parameters: Any = None,
    rates: Rates = None,
    by: By = None,
    batch_size: int | Literal["auto"] = "auto",
    batch_axis: int = 0,
    shared: Collection[str | int] = (),
    store: str | Path | None = None,
    engine: object = None,
    workers: int | None = None,
    memory: float | str | None = None,
    overwrite: bool = False,
) -> TangentKernel | StoredKernel:
    """The kernel of df_a(x_n)/dtheta . df_b(x2_m)/dtheta, summed over all parameters, without approximation.

    Parameters
    ----------
    model
        Any ``nn.Module``, or a function ``f(parameters, x)`` with ``parameters=`` (tensors that require grad, in
        nested dicts or lists). Its mode, dtype and device stay as they are.
    x, x2
        A tensor, a tuple of tensors (``model(*x)``), a dict (``model(**x)`` if its keys are the model's arguments,
        else ``model(x)``), or a DataLoader. ``x2=None`` means the kernel of ``x`` with itself, of which only one
        triangle is computed.
    outputs
        ``"full"``: (N, N2, C, C), outputs flattened after the batch axis; ``"trace"``: (N, N2), the sum over equal
        outputs; a list of output numbers: the full kernel of these alone.
    output
        Which tensor of what the model returns: a name, a position, or a function of it.
    parameters
        For a module: the parameters that count, as names or patterns (``"encoder.*"``), tensors, or a function
        ``(name, tensor) -> bool``. By default all with ``requires_grad``.
    rates
        Learning rates that weigh the parameters: a number, {pattern: rate}, an optimizer's ``param_groups``, or a
        function ``(name, tensor) -> rate``.
    by
        ``"layer"`` or ``"parameter"``: contributions apart, on a first axis labelled by ``.labels``.
    batch_size
        Samples that go through the model together; "auto" takes what fits the memory. With ``store``, the side of a
        tile.
    batch_axis
        The axis of samples, in the inputs and in the output.
    shared
        Names or positions of arguments in ``x`` that belong to all samples, such as a mask. By default those whose
        length along the batch axis is not the number of samples.
    store
        A folder for a kernel larger than memory: its tiles go there as they finish, and the result reads from it. The
        same call again goes on where an earlier one stopped; ``overwrite=True`` replaces
        an older kernel when the new one is whole.
    engine, workers, memory
        With ``store``: where tiles are computed (``None`` for processes of this machine, ``"dask://host:port"``,
        ``"ray://host:port"``, an open ``distributed.Client``), by how many, and the bytes each may take ("1GB").

    Examples
    --------
    >>> import torch, foretrain as ft
    >>> net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    >>> kernel = ft.ntk(net, torch.randn(5, 3))
    >>> kernel.shape
    (5, 5, 2, 2)
    """
    from foretrain.empirical.stored_kernel import Tangents, asked_of_store, compute

    size = chunk_size(batch_size)
    side = None if store is None else size
    stored = asked_of_store(
        store, engine=engine, workers=workers, memory=memory, side=side, overwrite=overwrite
    )
    options = KernelOptions(outputs, output, parameters, rates, by, batch_axis, shared)
    with unchanged(model), on_free_cores():
        tangents, first, second = look(model, x, x2, options, needs_graph=stored is not None)
        if stored is not None:
            tangents.refuse_company()
            return compute(Tangents(tangents, first, second, by), stored)
        values, working = tangents.until_settled(lambda: assemble(tangents, first, second, size))
    labels = tuple(dict.fromkeys(tangents.labels.values())) if by is not None else None
    return TangentKernel(
        values=values if by is not None else values[0],
        traced=tangents.job.trace,
        outputs=tuple(tangents.outputs),
        labels=labels,
        by=by,
        routes=tangents.routes,
        symmetric=second is None,
        working_bytes=working,
    )


@dataclass(frozen=True)
class KernelOptions:
    """What a kernel is asked for besides its model and samples; meanings are those of ``ntk``."""

    outputs: Outputs = "full"
    output: Output = None
    parameters: Any = None
    rates: Rates = None
    by: By = None
    batch_axis: int = 0
    shared: Collection[str | int] = ()


def prepare(
    model: Any, x: Any, x2: Any = None, options: KernelOptions | None = None
) -> tuple[Engine, Batch, Batch | None]:
    """Check everything that was given, and look at the model with a few samples."""
    engine, first, second = look(model, x, x2, options)
    engine.refuse_company()
    return engine, first, second


def look(
    model: Any, x: Any, x2: Any = None, options: KernelOptions | None = None, needs_graph: bool = True
) -> tuple[Engine, Batch, Batch | None]:
    """The same, but whether samples depend on each other is left to the first chunk."""
    asked = KernelOptions() if options is None else options
    # What torch.compile was given: the compiled graph hides parameters.
    model = getattr(model, "_orig_mod", model)
    first = as_batch(x, asked.batch_axis, asked.shared)
    second = None if x2 is None else as_batch(x2, asked.batch_axis, asked.shared)
    refuse_ill_defined(model)
    everything, choice, given = _parameters(model, asked.parameters)
    own = chosen(everything, choice)
    wrapped = Model(model, everything, asked.output, given)
    few = probe(first)
    with refused_checkpoints(), explained(first.arguments, everything.values()), GradientHooks() as hooks:
        shown = wrapped(few)
    wrapped.has_hooks = hooks.seen or any(value._backward_hooks for value in everything.values())
    if second is not None:
        with explained(second.arguments, everything.values(), "x2"):
            wrapped(probe(second), differentiable=False)
    wanted, trace = _wanted(asked.outputs, shown.shape[1])
    if asked.by not in (None, "layer", "parameter"):
        raise unknown_name("grouping", str(asked.by), ["layer", "parameter"], "by=")
    label: dict[str | None, Callable[[str], str]] = {
        None: lambda name: "",
        "layer": layer_of,
        "parameter": str,
    }
    labels = {name: label[asked.by](name) for name in own}
    job = Job(
        rows=first.count,
        columns=first.count if second is None else second.count,
        outputs=len(wanted),
        trace=trace,
        symmetric=second is None,
    )
    engine = Engine(wrapped, Counted(own, rate_of_each(own, asked.rates), labels), job, wanted, needs_graph)
    engine.look(few, shown)
    return engine, first, second


def _parameters(model: Any, parameters: Any) -> tuple[Mapping[str, Tensor], Chosen, Any]:
    """All trainable parameters, which of them were chosen, and what a functional model takes first."""
    if isinstance(model, nn.Module):
        return trainable(model, None), parameters, None
    if not callable(model):
        raise InputError(
            f"`model` must be an nn.Module or a function f(parameters, x), not {type(model).__name__}."
        )
    if parameters is None:
        raise InputError(
            "a functional model f(parameters, x) needs `parameters=`: tensors that require grad."
        )
    return trainable(model, parameters), None, parameters


def _wanted(outputs: Outputs, count: int) -> tuple[list[int], bool]:
    """Numbers of the outputs that count, and whether they are summed."""
    if isinstance(outputs, str):
        if outputs not in ("full", "trace"):
            raise unknown_name("form of the `outputs`", outputs, ["full", "trace"])
        return list(range(count)), outputs == "trace"
    numbers = numbers_below(count, outputs)
    if not numbers:
        raise InputError(
            f"`outputs=` must be `'full', 'trace' or a list of numbers|numbers` from 0 to {count - 1}, "
            f"not {outputs!r}."
        )
    return numbers, False


def chunk_size(batch_size: int | str) -> int | None:
    """The user's batch_size, None for "auto"."""
    if batch_size == "auto":
        return None
    try:
        size = 0 if isinstance(batch_size, bool | str) else index(batch_size)
    except TypeError:
        size = 0
    if size < 1:
        raise InputError(f"`batch_size` must be a positive number or 'auto', not {batch_size!r}.")
    return size


def assemble(
    engine: Engine, first: Batch, second: Batch | None, batch_size: int | None
) -> tuple[Tensor, float]:
    """The kernel (labels, N, N2, C, C) or (labels, N, N2), and the bytes of working memory that it took at most.

    ``second`` None means the same samples; ``batch_size`` how many go through the model together, None for what fits.
    """
    rows = 1 if engine.job.trace else len(engine.outputs)
    n, m = engine.job.rows, engine.job.columns
    labels = list(dict.fromkeys(engine.labels.values()))
    like = next(iter(engine.parameters.values()))
    result_bytes = len(labels) * n * m * rows * rows * engine.dtype.itemsize
    available = available_bytes()
    size = _chunk_size(engine, batch_size, result_bytes, available)
    shape = (len(labels), n * rows, m * rows)
    if like.device.type == "cpu":  # numpy's zeros cost nothing before they are written to
        kind = {torch.float32: "f4", torch.float64: "f8"}[engine.dtype]
        flat = torch.from_numpy(np.zeros(shape, dtype=kind))
    else:
        flat = torch.zeros(shape, dtype=engine.dtype, device=like.device)
    store = _Store(engine, size, _SHARE * (available - result_bytes))
    _fill(dict(zip(labels, flat)), store, first, second, rows)
    values = flat.view(len(labels), n, rows, m, rows).permute(0, 1, 3, 2, 4)
    return (values.reshape(len(labels), n, m) if engine.job.trace else values), store.most_bytes


def _chunk_size(engine: Engine, batch_size: int | None, result_bytes: float, available: int) -> int:
    """Samples per chunk: as the user said, or as many as fit beside the result, two chunks at a time."""
    per_sample = engine.memory.factors + engine.memory.passes
    count = max(engine.job.rows, engine.job.columns)
    least = 4 * per_sample
    what = f"the kernel of {engine.job.rows} x {engine.job.columns} samples with {engine.job.outputs} outputs"
    fewer = "fewer samples, `outputs='trace'|--trace` or a list of fewer outputs"
    require_memory(result_bytes, f"the result, {what},", f"ask for {fewer}", available=available)
    require_memory(
        result_bytes + least,
        f"{what} with two samples at a time",
        f"ask for `fewer parameters with parameters=, for |`{fewer}`, or use ntk_operator(...)|`",
        available=available,
    )
    if batch_size is not None:
        require_memory(
            result_bytes + 2 * min(batch_size, count) * per_sample,
            f"a chunk of {batch_size} samples",
            "pass a smaller `batch_size=` or 'auto'",
            available=available,
        )
        return batch_size
    room = min(_SHARE * (available - result_bytes), max(_LARGEST_WORKING, 2 * _FEWEST * per_sample))
    return max(2, min(count, int(room / (2 * per_sample + 1))))


class _Store:
    """Factors of chunks: kept as long as they fit, computed anew otherwise.

    ``size``: samples that go through the model together. Where gradients are formed while they are multiplied, a
    chunk is all samples whose factors fit, so that none is formed twice.
    """

    def __init__(self, engine: Engine, size: int, room: float) -> None:
        self._engine, self._passes, self._size, self._room = engine, size, size, room
        if engine.forms_late:
            left, count = room - engine.memory.passes * size, max(engine.job.rows, engine.job.columns)
            fitting = int(left / (_JOINING * engine.memory.factors + 1))
            self._size = max(size, fitting if fitting >= count and engine.job.symmetric else fitting // 2)
        self._kept: dict[tuple[int, int], Factors] = {}
        self._sizes: dict[tuple[int, int], float] = {}
        self.most_bytes = _LIBRARIES

    def chunks(self, batch: Batch) -> list[slice]:
        """The batch in equal parts."""
        return _equal_parts(slice(0, batch.count), self._size)

    def factors(self, batch: Batch, part: slice) -> Factors:
        """The factors of a part of the batch."""
        key = (id(batch), part.start)
        if key in self._kept:
            return self._kept[key]
        samples = part.stop - part.start
        passes = _equal_parts(part, self._passes)
        found = join([(self._engine.chunk(batch.pick(one)), one.stop - one.start) for one in passes])
        size = self._engine.memory.factors * samples
        held = sum(self._sizes.values())
        running = _LIBRARIES + held + size + self._engine.memory.passes * min(samples, self._passes)
        self.most_bytes = max(self.most_bytes, running)
        if held + 2 * size < self._room:
            self._kept[key] = found
            self._sizes[key] = size
        return found


def _equal_parts(whole: slice, size: int) -> list[slice]:
    """A stretch of samples in equal parts of at most so many."""
    samples = whole.stop - whole.start
    parts = -(-samples // size)
    bounds = [whole.start + samples * i // parts for i in range(parts + 1)]
    return [slice(a, b) for a, b in pairwise(bounds)]


def _fill(target: Mapping[str, Tensor], store: _Store, first: Batch, second: Batch | None, rows: int) -> None:
    """All chunks with all; of a kernel of samples with themselves, those on and above the diagonal."""
    columns = first if second is None else second
    mine_parts, their_parts = store.chunks(first), store.chunks(columns)
    count = len(mine_parts)
    with Progress(
        "NTK", total=count * (count + 1) / 2 if second is None else count * len(their_parts)
    ) as bar:
        for i, mine in enumerate(mine_parts):
            left = store.factors(first, mine)
            for theirs in their_parts[i:] if second is None else their_parts:
                on_diagonal = second is None and theirs == mine
                right = left if on_diagonal else store.factors(columns, theirs)
                across, down = rows_of(mine, rows), rows_of(theirs, rows)
                for label, kernel in target.items():
                    block = kernel[across, down]
                    if on_diagonal:
                        add_symmetric_products(block, list(left[label].values()), rows)
                        continue
                    # Where no gradient arrives on one side, the product is zero.
                    shared = [key for key in left[label] if key in right[label]]
                    add_products(
                        block,
                        [left[label][key] for key in shared],
                        [right[label][key] for key in shared],
                        rows,
                    )
                    if second is None:
                        kernel[down, across] = block.t()
                bar.advance()
