"""``foretrain ntk``: the tangent kernel of a model, in memory or on disk, and what it says."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import typer

from foretrain.cli.frame import Answer, Command, Seed
from foretrain.cli.model_inputs import as_inputs
from foretrain.cli.output import Table
from foretrain.support.errors import ForetrainError, InputError, NotEnoughMemoryError
from foretrain.support.memory import human_bytes, parse_bytes

if TYPE_CHECKING:
    import xarray
    from torch import Tensor, nn

    from foretrain.empirical.kernel_regression import KernelRegression
    from foretrain.empirical.stored_kernel.reading import StoredKernel
    from foretrain.empirical.stored_kernel.summary import KernelSummary
    from foretrain.empirical.tangent_kernel import TangentKernel
    from foretrain.support.loading import Samples

    Found = TangentKernel | StoredKernel

_MOST_LAYERS = 24  # in the table; the picture and --json have all

# Arguments of ``ntk`` in messages, and what they are called on the command line.
_WORDS = (
    ("outputs=, output=, parameters=, rates=, by= or", "--outputs, --trace, --by, --dtype or"),
    ("the same ntk(..., store=)", "the same command"),
    ("ntk(..., store=)", "this command"),
    ("pass overwrite=True", "add --anew"),
    ("outputs='trace'", "--trace"),
    ("engine='threads'", "--engine threads"),
    ("workers=1", "--workers 1"),
    ("overwrite=", "--anew"),
    ("store=", "-o"),
    ("outputs=", "--outputs"),
    ("by=", "--by"),
    ("batch_size=", "--batch-size"),
    ("memory=", "--memory"),
    ("workers=", "--workers"),
    ("engine=", "--engine"),
)


@dataclass(frozen=True)
class _Work:
    """How kernels are computed: into a store, or in memory without one."""

    outputs: Any
    by: Literal["layer", "parameter"] | None
    store: Path | None
    engine: str | None
    workers: int | None
    batch_size: int | None
    memory: str | None
    anew: bool


def ntk(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="model.py:make, a function that returns the torch model.")],
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
    engine: Annotated[
        str | None, typer.Option("--engine", help="local, threads, dask://host:port or ray://host:port.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", help="Processes [default: one for each core].")
    ] = None,
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
    from foretrain.empirical.kernel_analysis import checked_ridge
    from foretrain.empirical.stored_kernel.summary import summarise, trace_shares
    from foretrain.report.kernels import draw_summary
    from foretrain.support.loading import load_model, load_samples

    work = _Work(_outputs(outputs, trace), _by(by), store, engine, workers, batch_size, memory, anew)
    _refuse_what_needs_a_store(work)
    _refuse_one_folder_for_both(store, context.params.get("save"))
    if ridge is not None:
        checked_ridge(ridge)
    found = load_samples(data)
    if ridge is not None and found.y is None:
        raise InputError(f"{data} has no y: add targets, or leave out --ridge.")
    if test and found.x_test is None:
        raise InputError(f"{data} has no x_test: add it, or leave out --test.")
    network = _cast(load_model(model), dtype)
    x = _inputs(found, "x", network)
    x_test = _inputs(found, "x_test", network) if test else None
    with _own_words():
        kernel = _kernel(network, x, None, work)
        across = None if x_test is None else _kernel(network, x_test, x, _beside(work))
        y, misfit = _targets(found.y if outputs is None else _columns(found.y, work.outputs), kernel)
        shares = None if store is not None or by == "layer" else trace_shares(network, x, work.outputs)
        summary = summarise(kernel, y, top, seed, layer_shares=shares)
        fit = None if ridge is None else _regression(kernel, across, y, ridge, misfit)
    error = None if fit is None or across is None else _test_error(fit, found, work.outputs)
    return Answer(
        _document(summary, kernel, fit, error, misfit, seed),
        _text(summary, kernel, fit, error, misfit),
        data=_data(summary, fit),
        figure=partial(draw_summary, summary, f"Tangent kernel of {model}"),
    )


def _outputs(text: str | None, trace: bool) -> Any:
    if text is None:
        return "trace" if trace else "full"
    if trace:
        raise InputError("--outputs picks outputs and --trace sums over all: leave one out.")
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(
            f"--outputs is {text!r}: give whole numbers separated by commas, such as 0,1."
        ) from None


def _by(text: str | None) -> Literal["layer", "parameter"] | None:
    if text is None:
        return None
    if text == "layer":
        return "layer"
    if text == "parameter":
        return "parameter"
    raise InputError(f"--by is {text!r}: choose layer or parameter.")


def _refuse_what_needs_a_store(work: _Work) -> None:
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


def _refuse_one_folder_for_both(store: Path | None, answer: Any) -> None:
    if store is not None and answer is not None and store.resolve() == Path(answer).resolve():
        raise InputError(f"-o and --save both name {store}: give the answer another folder than the kernel.")


def _cast(model: nn.Module, dtype: str | None) -> nn.Module:
    import torch

    known = {"float32": torch.float32, "float64": torch.float64}
    if dtype is None:
        return model
    if dtype not in known:
        raise InputError(f"--dtype is {dtype!r}: choose float32 or float64.")
    return model.to(known[dtype])


def _inputs(data: Samples, name: str, model: nn.Module) -> Tensor:
    """An array of the data file as the model takes it; what it does not take is refused in one sentence."""
    import torch

    from foretrain.empirical.tangent_kernel.model import unchanged

    x = as_inputs(getattr(data, name), model)
    try:
        with unchanged(model), torch.random.fork_rng(devices=[]), torch.no_grad():
            model(x[:2])
    except ForetrainError:
        raise
    except Exception as error:  # whatever the user's model stumbles over
        said = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise InputError(
            f"the model does not take samples of shape {tuple(x.shape[1:])}, which {name} of the data has ({said}): "
            "change the data or the model."
        ) from error
    return x


@contextmanager
def _own_words() -> Iterator[None]:
    """What is said of arguments in Python, said of the command's options."""
    try:
        yield
    except ForetrainError as error:
        said = str(error)
        for word, option in _WORDS:
            # Not inside of longer words, nor before a value, which may be a part of a path.
            said = re.sub(rf"(?<![\w/-]){re.escape(word)}(?![\w/'\"])", option, said)
        raise type(error)(said) from error


def _kernel(model: nn.Module, x: Tensor, x2: Tensor | None, work: _Work) -> Found:
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
            f"{str(error).rstrip('.')}, or give -o out.zarr, which keeps the kernel on disk."
        ) from error


def _beside(work: _Work) -> _Work:
    from dataclasses import replace

    if work.store is None:
        return work
    return replace(work, store=work.store.with_name(f"{work.store.stem}-test{work.store.suffix}"))


def _columns(y: Any, chosen: list[int]) -> Any:
    """Targets of the chosen outputs, if there is one column for each output."""
    return (
        y[:, chosen] if y is not None and y.ndim == 2 and y.shape[1] > max(chosen) and min(chosen) >= 0 else y
    )


def _targets(y: Any, kernel: Found) -> tuple[Any, str | None]:
    """y as it fits the outputs of the kernel, or why it does not: the kernel is worth its summary without."""
    from foretrain.empirical.kernel_analysis import directed_targets
    from foretrain.empirical.kernel_matrices import layout_of

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
    from foretrain.empirical.kernel_regression import regression

    if y is None:
        raise InputError(f"--ridge needs targets that fit the outputs. {misfit}")
    return regression(kernel, y, ridge, across)


def _test_error(fit: KernelRegression, data: Samples, outputs: Any) -> float | None:
    """Mean squared error of the test predictions, or for labels the share of wrong ones."""
    chosen = outputs if isinstance(outputs, list) else None
    if data.y_test is None:
        return None
    if fit.one_hot:
        best = np.argmax(fit.predictions, axis=1)
        return float(np.mean((best if chosen is None else np.take(chosen, best)) != data.y_test))
    wanted = data.y_test if chosen is None else _columns(data.y_test, chosen)
    return float(np.mean((fit.predictions - np.reshape(wanted, fit.predictions.shape)) ** 2))


def _data(summary: KernelSummary, fit: KernelRegression | None) -> xarray.Dataset:
    found = summary.to_dataset()
    if fit is None:
        return found
    fitted = (
        fit.to_xarray().rename(input="test_input")
        if len(fit.predictions) != summary.samples
        else fit.to_xarray()
    )
    return found.merge(fitted.drop_attrs()).assign_attrs(ridge=fit.ridge, fit_residual=fit.residual)


def _ways(kernel: Found) -> str:
    ways = Counter(str(route).partition(":")[0] for route in kernel.routes.values())
    return ", ".join(f"{count} by {way}" for way, count in ways.items())


def _text(
    summary: KernelSummary,
    kernel: Found,
    fit: KernelRegression | None,
    error: float | None,
    misfit: str | None,
) -> list[str | Table]:
    rank = summary.effective_rank
    plus = f" ± {rank.standard_error:.2g}" if rank.standard_error > 0 else ""
    form = "summed over" if summary.traced else "of"
    parts: list[str | Table] = [
        f"Tangent kernel of {summary.samples} samples, {form} {len(summary.outputs)} outputs: {summary.size} x "
        f"{summary.size} in {summary.dtype}, {human_bytes(summary.bytes)}.\nParameters: {_ways(kernel)}.",
        f"Trace {summary.trace:.6g}. Effective rank {summary.participation_ratio:.4g} (trace² / sum of squares), "
        f"{rank.value:.4g}{plus} (by entropy).",
        _mode_table(summary),
    ]
    if summary.layer_shares:
        parts.append(_layer_table(summary))
    above = summary.density.counts([summary.density.resolution, np.inf])
    parts.append(
        f"Eigenvalues above {summary.density.resolution:.3g}: {above.value[0]:.4g}"
        + (f" ± {above.standard_error[0]:.2g}" if above.standard_error[0] > 0 else "")
        + f" of {summary.size}."
    )
    if summary.alignment is not None:
        needed = summary.alignment.modes_for(0.9)
        reach = (
            f"{needed} modes hold" if needed else f"more than {len(summary.eigenvalues)} modes are needed for"
        )
        parts.append(
            f"Alignment with the targets {summary.alignment.alignment:.4g}, centred {summary.alignment.centred:.4g}; "
            f"{reach} 90 % of their energy."
        )
    if misfit is not None:
        parts.append(misfit)
    if fit is not None:
        parts.append(_fit_text(fit, error))
    if summary.path is not None:
        parts.append(
            f"In {summary.path}, computed in {summary.seconds:.3g} s of work and read {summary.readings} times in "
            f"{summary.summary_seconds:.3g} s. In Python: foretrain.load({summary.path!r})."
        )
    return parts


def _mode_table(summary: KernelSummary) -> Table:
    columns = ["mode", "eigenvalue", "share of the trace", "residual"]
    values = [summary.eigenvalues, summary.eigenvalues / summary.trace, summary.residuals]
    if summary.alignment is not None:
        columns.append("energy of y")
        values.append(summary.alignment.energies)
    rows = [[number, *map(float, row)] for number, row in enumerate(zip(*values, strict=True), start=1)]
    return Table(tuple(columns), rows)


def _layer_table(summary: KernelSummary) -> Table:
    shares = list(summary.layer_shares.items())
    rows: list[Sequence[Any]] = [[name or "(whole model)", share] for name, share in shares[:_MOST_LAYERS]]
    if len(shares) > _MOST_LAYERS:
        rows.append(
            [f"{len(shares) - _MOST_LAYERS} others", sum(share for _, share in shares[_MOST_LAYERS:])]
        )
    return Table(("layer", "share of the trace"), rows)


def _fit_text(fit: KernelRegression, error: float | None) -> str:
    how = (
        fit.method
        if fit.iterations is None
        else f"{fit.method}, {fit.iterations} products to {fit.tolerance:.1g}"
    )
    kind = "share of wrong labels" if fit.one_hot else "mean squared error"
    tested = "" if error is None else f" On the test samples: {kind} {error:.4g}."
    return f"Kernel regression with ridge {fit.ridge:g} ({how}) leaves {fit.residual:.3g} of the targets.{tested}"


def _document(
    summary: KernelSummary,
    kernel: Found,
    fit: KernelRegression | None,
    error: float | None,
    misfit: str | None,
    seed: int,
) -> dict[str, Any]:
    density = summary.density.to_xarray()
    document: dict[str, Any] = {
        "samples": summary.samples,
        "outputs": list(summary.outputs),
        "traced": summary.traced,
        "size": summary.size,
        "dtype": summary.dtype,
        "bytes": summary.bytes,
        "store": summary.path,
        "trace": summary.trace,
        "participation_ratio": summary.participation_ratio,
        "effective_rank": summary.effective_rank.value,
        "effective_rank_error": summary.effective_rank.standard_error,
        "eigenvalues": summary.eigenvalues,
        "residuals": summary.residuals,
        "layer_shares": dict(summary.layer_shares),
        "density": {name: density[name].values for name in ("lower", "upper", "count", "count_error")}
        | {"below": density.attrs["below"], "probes": summary.density.probes},
        "routes": {name: str(route) for name, route in kernel.routes.items()},
        "seconds": summary.seconds,
        "readings": summary.readings,
        "summary_seconds": summary.summary_seconds,
        "seed": seed,
        "note": misfit,
    }
    if summary.alignment is not None:
        found = summary.alignment
        document["alignment"] = {
            "plain": found.alignment,
            "centred": found.centred,
            "energies": found.energies,
        }
    if fit is not None:
        document["regression"] = {
            "ridge": fit.ridge,
            "residual": fit.residual,
            "method": fit.method,
            "products": fit.iterations,
            "tolerance": fit.tolerance,
            "labels": fit.one_hot,
            "test_error": error,
        }
    return document


COMMAND = Command(
    ntk,
    examples=(
        "foretrain ntk model.py:make data.npz --plot kernel.png",
        "foretrain ntk model.py:make data.npz -o kernel.zarr --trace --workers 8",
        "foretrain ntk model.py:make data.npz -o kernel.zarr --engine dask://scheduler:8786 --ridge 0.01 --test",
    ),
    saves=True,
    draws=True,
)
