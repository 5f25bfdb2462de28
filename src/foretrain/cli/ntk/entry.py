"""``foretrain ntk``: the tangent kernel of a model, in memory or on disk, and what it says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from foretrain.cli.frame import Command, Seed
from foretrain.cli.model_inputs import model_from
from foretrain.cli.ntk.work import (
    Work,
    beside,
    in_precision,
    inputs_of,
    kernel_of,
    refuse_what_needs_a_store,
)
from foretrain.cli.options import Engine, Model, Workers, whole_numbers_in
from foretrain.support.answers import Answer
from foretrain.support.errors import InputError

if TYPE_CHECKING:
    from foretrain.cli.ntk.work import Found
    from foretrain.empirical.kernel_analysis import KernelRegression


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
    trace: Annotated[
        bool, typer.Option("--trace", help="Sum over equal outputs: N x N instead of NC x NC.")
    ] = False,
    outputs: Annotated[
        str | None,
        typer.Option("--outputs", help="Numbers of the outputs that count, such as 0,1 [default: all]."),
    ] = None,
    by: Annotated[
        str | None, typer.Option("--by", help="layer or parameter: keep contributions apart in the store.")
    ] = None,
    engine: Engine = None,
    workers: Workers = None,
    dtype: Annotated[
        str | None, typer.Option("--dtype", help="float32 or float64 [default: that of the model].")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", min=1, help="Samples that go through the model together.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option("--memory", help="What each worker may take, such as 2GB.")
    ] = None,
    anew: Annotated[
        bool, typer.Option("--anew", help="Replace the store instead of going on with it.")
    ] = False,
    top: Annotated[int, typer.Option("--top", min=1, help="How many leading modes.")] = 10,
    ridge: Annotated[
        float | None, typer.Option("--ridge", help="Also fit y by kernel regression with this ridge.")
    ] = None,
    test: Annotated[
        bool, typer.Option("--test", help="Also the kernel of x_test with x, into OUT-test.zarr.")
    ] = False,
    seed: Seed = 0,
) -> Answer:
    """Compute the exact tangent kernel of any torch model, and summarise it.

    With -o the kernel may be larger than memory: it is computed tile by tile into a Zarr store, on all cores
    or on a cluster, and goes on where it ended if it is started again. The summary reads the store about ten
    times and never holds it whole: leading eigenvalues, spectral density, effective rank, the layers' shares,
    and how the targets y lie in it.
    """
    from foretrain.empirical.kernel_analysis.checks import checked_ridge
    from foretrain.empirical.kernel_analysis.summary import summarise, trace_shares
    from foretrain.support.loading import load_samples

    work = Work(_outputs(outputs, trace), _by(by), store, engine, workers, batch_size, memory, anew)
    refuse_what_needs_a_store(work)
    _refuse_one_folder_for_both(store, context.params.get("save"))
    if ridge is not None:
        checked_ridge(ridge)
    found = load_samples(data)
    if ridge is not None and found.y is None:
        raise InputError(f"{data} has no y: add targets, or leave out --ridge.")
    if test and found.x_test is None:
        raise InputError(f"{data} has no x_test: add it, or leave out --test.")
    network = in_precision(model_from(model, seed), dtype)
    x = inputs_of(found, "x", network)
    x_test = inputs_of(found, "x_test", network) if test else None
    kernel = kernel_of(network, x, None, work)
    across = None if x_test is None else kernel_of(network, x_test, x, beside(work))
    y, misfit = _targets(_columns(found.y, work.outputs), kernel)
    shares = None if store is not None or by == "layer" else trace_shares(network, x, work.outputs)
    title = f"Tangent kernel of {model}"
    answer = summarise(kernel, y, top, seed, layer_shares=shares, note=misfit, title=title).answer()
    if ridge is None:
        return replace(answer, record={**answer.document(), "regression": None})
    fit = _regression(kernel, across, y, ridge, misfit)
    if across is not None and found.y_test is not None:
        fit = fit.tested(_columns(found.y_test, work.outputs), work.outputs if outputs else None)
    return _with_regression(answer, fit)


def _outputs(text: str | None, trace: bool) -> Any:
    if text is None:
        return "trace" if trace else "full"
    if trace:
        raise InputError("--outputs picks outputs and --trace sums over all: leave one out.")
    chosen = whole_numbers_in("--outputs", text)
    if min(chosen) < 0 or len(set(chosen)) < len(chosen):
        raise InputError(f"--outputs is {text!r}: give different numbers from 0 on.")
    return chosen


def _by(text: str | None) -> Literal["layer", "parameter"] | None:
    if text is None:
        return None
    if text == "layer":
        return "layer"
    if text == "parameter":
        return "parameter"
    raise InputError(f"--by is {text!r}: choose layer or parameter.")


def _refuse_one_folder_for_both(store: Path | None, answer: Any) -> None:
    if store is not None and answer is not None and store.resolve() == Path(answer).resolve():
        raise InputError(f"-o and --save both name {store}: give the answer another folder than the kernel.")


def _columns(y: Any, chosen: Any) -> Any:
    """Targets of the chosen outputs, if some are and there is one column for each output."""
    fits = isinstance(chosen, list) and y is not None and y.ndim == 2 and y.shape[1] > max(chosen)
    return y[:, chosen] if fits else y


def _targets(y: Any, kernel: Found) -> tuple[Any, str | None]:
    """y as it fits the outputs of the kernel, or why it does not: the kernel is worth its summary without."""
    from foretrain.empirical.kernel_analysis.matrices import layout_of
    from foretrain.empirical.kernel_analysis.targets import directed_targets

    if y is None:
        return None, None
    try:
        directed_targets(y, layout_of(kernel))
    except InputError as error:
        return None, f"No alignment with the targets: {error}"
    return y, None


def _regression(
    kernel: Found, across: Found | None, y: Any, ridge: float, misfit: str | None
) -> KernelRegression:
    from foretrain.empirical.kernel_analysis import regression

    if y is None:
        raise InputError(f"--ridge needs targets that fit the outputs. {misfit}")
    return regression(kernel, y, ridge, across)


def _with_regression(answer: Answer, fit: KernelRegression) -> Answer:
    """The summary of a kernel with what regression made of it."""
    fitted, data = fit.to_dataset(), answer.dataset()
    if len(fit.predictions) != len(fit.coefficients):
        fitted = fitted.rename(input="test_input")
    assert data is not None
    merged = data.merge(fitted.drop_attrs()).assign_attrs(ridge=fit.ridge, fit_residual=fit.residual)
    record = {**answer.document(), "regression": fit.answer().document()}
    return replace(answer, parts=[*answer.parts, fit.answer().statement], data=merged, record=record)


COMMAND = Command(
    ntk,
    examples=(
        "foretrain ntk model.py:make data.npz --plot kernel.png",
        "foretrain ntk model.py:make data.npz -o kernel.zarr --trace --workers 8",
        "foretrain ntk model.py:make data.npz -o kernel.zarr --engine dask://scheduler:8786 --ridge 0.01 --test",
    ),
    saves=True,
    draws=True,
    aliases={"overwrite": "--anew", "store": "-o"},
)
