"""``foretrain ntk``: the tangent kernel of a model, in memory or on disk, and what it says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretrain.cli.frame import Command, Seed
from foretrain.cli.models import as_inputs, check_takes, model_from
from foretrain.cli.options import Engine, Model, Workers, whole_numbers_in
from foretrain.support.answers import Answer
from foretrain.support.arguments import not_negative
from foretrain.support.errors import InputError, NotEnoughMemoryError
from foretrain.support.memory import parse_bytes

if TYPE_CHECKING:
    from torch import Tensor, nn


def ntk(
    context: typer.Context,
    model: Model,
    data: Annotated[Path, typer.Argument(help="data.npz with x and y, and x_test for --test.")],
    store: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="OUT.zarr",
            help="Compute tile by tile into this store; goes on if it is there.",
        ),
    ] = None,
    trace: Annotated[bool, "Sum over equal outputs: N x N instead of NC x NC."] = False,
    outputs: Annotated[str | None, "Numbers of the outputs that count, such as 0,1 [default: all]."] = None,
    by: Annotated[str | None, "layer or parameter: keep contributions apart in the store."] = None,
    engine: Engine = None,
    workers: Workers = None,
    dtype: Annotated[str | None, "float32 or float64 [default: that of the model]."] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", min=1, help="Samples that go through the model together.")
    ] = None,
    memory: Annotated[str | None, "What each worker may take, such as 2GB."] = None,
    anew: Annotated[bool, "Replace the store instead of going on with it."] = False,
    top: Annotated[int, typer.Option("--top", min=1, help="How many leading modes.")] = 10,
    ridge: Annotated[float | None, "Also fit y by kernel regression with this ridge."] = None,
    test: Annotated[bool, "Also the kernel of x_test with x, into OUT-test.zarr."] = False,
    seed: Seed = 0,
) -> Answer:
    """Compute the exact tangent kernel of any torch model, and summarise it.

    With -o the kernel may be larger than memory: it is computed tile by tile into a Zarr store, on all cores
    or on a cluster, and goes on where it ended if it is started again. The summary reads the store about ten
    times and never holds it whole: leading eigenvalues, spectral density, effective rank, the layers' shares,
    and how the targets y lie in it.
    """
    from foretrain.empirical.kernel_analysis.summary import summarise, trace_shares
    from foretrain.support.loading import load_samples

    chosen: Any = "trace" if trace else "full"
    if outputs is not None:
        if trace:
            raise InputError("--outputs picks outputs and --trace sums over all: leave one out.")
        chosen = whole_numbers_in("--outputs", outputs)
        if min(chosen) < 0 or len(set(chosen)) < len(chosen):
            raise InputError(f"--outputs is {outputs!r}: give different numbers from 0 on.")
    if by not in (None, "layer", "parameter"):
        raise InputError(f"--by is {by!r}: choose layer or parameter.")
    options: dict[str, Any] = {"outputs": chosen, "by": by, "batch_size": batch_size or "auto"}
    options |= _storage(store, engine, workers, memory, anew, context.params.get("save"))
    found = load_samples(data)
    if ridge is not None:
        not_negative("ridge", ridge)
        if found.y is None:
            raise InputError(f"{data} has no y: add targets, or leave out --ridge.")
    if test and found.x_test is None:
        raise InputError(f"{data} has no x_test: add it, or leave out --test.")
    if dtype not in (None, "float32", "float64"):
        raise InputError(f"--dtype is {dtype!r}: choose float32 or float64.")
    network = model_from(model, seed)
    network = network.float() if dtype == "float32" else network.double() if dtype else network
    x = _inputs(found, "x", network)
    x_test = _inputs(found, "x_test", network) if test else None
    kernel = _kernel(network, x, None, options)
    if store is not None:
        options["store"] = store.with_name(f"{store.stem}-test{store.suffix}")
    across = None if x_test is None else _kernel(network, x_test, x, options)
    y, misfit = _targets(_columns(found.y, chosen), kernel)
    shares = None if store is not None or by == "layer" else trace_shares(network, x, chosen)
    title = f"Tangent kernel of {model}"
    answer = summarise(kernel, y, top, seed, layer_shares=shares, note=misfit, title=title).answer()
    if ridge is None:
        return replace(answer, record={**answer.document(), "regression": None})
    if y is None:
        raise InputError(f"--ridge needs targets that fit the outputs. {misfit}")
    fit = kernel.regression(y, ridge, across)
    if across is not None and found.y_test is not None:
        fit = fit.tested(_columns(found.y_test, chosen), chosen if outputs else None)
    fitted, labelled = fit.to_dataset(), answer.dataset()
    if len(fit.predictions) != len(fit.coefficients):
        fitted = fitted.rename(input="test_input")
    assert labelled is not None
    merged = labelled.merge(fitted.drop_attrs()).assign_attrs(ridge=fit.ridge, fit_residual=fit.residual)
    record = {**answer.document(), "regression": fit.answer().document()}
    return replace(answer, parts=[*answer.parts, fit.answer().statement], data=merged, record=record)


def _storage(
    store: Path | None, engine: str | None, workers: int | None, memory: str | None, anew: bool, save: Any
) -> dict[str, Any]:
    """How a kernel is put on disk, checked; nothing for one in memory, for which these options say nothing."""
    if memory is not None and parse_bytes(memory, "--memory") <= 0:
        raise InputError(f"--memory is {memory!r}: give a size above 0, such as 2GB.")
    if store is None:
        given = {"--engine": engine, "--workers": workers, "--memory": memory, "--anew": anew or None}
        for option in (option for option, value in given.items() if value is not None):
            raise InputError(f"{option} is for kernels on disk: add -o out.zarr, or leave it out.")
        return {}
    if save is not None and store.resolve() == Path(save).resolve():
        raise InputError(f"-o and --save both name {store}: give the answer another folder than the kernel.")
    return {"store": store, "engine": engine, "workers": workers, "memory": memory, "overwrite": anew}


def _inputs(data: Any, name: str, model: nn.Module) -> Tensor:
    """An array of the data file as the model takes it; what it does not take is refused in one sentence."""
    x = as_inputs(getattr(data, name), model)
    check_takes(model, x[:2], name)
    return x


def _kernel(model: nn.Module, x: Any, x2: Any, options: dict[str, Any]) -> Any:
    """The kernel of x with itself, or with other samples."""
    from foretrain.empirical import ntk as compute

    try:
        return compute(model, x, x2, **options)
    except NotEnoughMemoryError as error:
        if "store" in options:
            raise
        raise NotEnoughMemoryError(
            f"{error.message.rstrip('.')}, or give -o out.zarr, which keeps the kernel on disk."
        ) from error


def _columns(y: Any, chosen: Any) -> Any:
    """Targets of the chosen outputs, if some are and there is one column for each output."""
    fits = isinstance(chosen, list) and y is not None and y.ndim == 2 and y.shape[1] > max(chosen)
    return y[:, chosen] if fits else y


def _targets(y: Any, kernel: Any) -> tuple[Any, str | None]:
    """y as it fits the outputs of the kernel, or why it does not: the kernel is worth its summary without."""
    from foretrain.empirical.kernel_analysis.arguments import directed_targets

    if y is None:
        return None, None
    try:
        directed_targets(y, kernel)
    except InputError as error:
        return None, f"No alignment with the targets: {error}"
    return y, None


COMMAND = Command(
    ntk,
    examples=(
        "foretrain ntk model.py:make data.npz --plot kernel.png",
        "foretrain ntk model.py:make data.npz -o kernel.zarr --trace --workers 8",
        "foretrain ntk model.py:make data.npz -o kernel.zarr --engine dask://scheduler:8786 --ridge 0.01 --test",
    ),
    aliases={"overwrite": "--anew", "store": "-o"},
)
