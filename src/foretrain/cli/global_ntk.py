"""``foretrain global``: the tangent kernel of everything that a model computes, in space and time."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from foretrain.cli.frame import Command, Seed, command_answer
from foretrain.cli.model_inputs import as_inputs, check_takes, model_from, takes_time_first
from foretrain.cli.options import Model, names_in
from foretrain.support.answers import Answer, Table
from foretrain.support.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from foretrain.empirical.global_ntk import GlobalNTK
    from foretrain.empirical.global_ntk.readout import Readout
    from foretrain.empirical.global_ntk.summary import GlobalSummary, View
    from foretrain.operators.estimators import Estimate

_MOST_PARAMETERS = 24  # in the table; --json has all


def global_ntk(
    model: Model,
    data: Annotated[
        Path, typer.Argument(help="data.npz with x (samples, steps, features), and y for the alignment.")
    ],
    states: Annotated[
        str | None,
        typer.Option(
            "--states",
            help="hidden,cell of a recurrent layer, or paths of modules such as layers.0,layers.1 "
            "[default: what the recurrent layer, or the model, returns].",
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option("--samples", min=1, help="How many samples of x, drawn at random if it has more.")
    ] = 16,
    parameters: Annotated[
        str | None,
        typer.Option("--parameters", help='Patterns of those that count, such as "cell.*" [default: all].'),
    ] = None,
    modes: Annotated[int, typer.Option("--modes", min=1, help="How many leading modes.")] = 5,
    accuracy: Annotated[
        float, typer.Option("--accuracy", help="Relative standard error of traces and ranks.")
    ] = 0.02,
    seed: Seed = 0,
) -> Answer:
    """Show what gradient descent can change in a model's states, in space and time.

    The global-state NTK says how one step of gradient descent changes all states of a batch at all times: in how
    many directions (effective ranks, in all, in time and in space), in which ones (modes), by which weights, and
    how close it is to the Gram matrix of what the weights are applied to (the core). With targets y: which of
    their modes can be learned from here. A linear layer that reads the states is found and used for it; y is
    (samples, steps, outputs), or (samples, outputs) for the last step.
    """
    if not 0 < accuracy < 1:
        raise InputError(
            f"--accuracy is {accuracy:g}, but it is a relative error between 0 and 1, such as 0.02."
        )
    from foretrain.empirical.global_ntk import global_ntk as kernel_of
    from foretrain.empirical.global_ntk.summary import global_summary
    from foretrain.report.global_ntk import global_ntk_figure
    from foretrain.support.loading import load_samples

    found = load_samples(data)
    count = len(found.x)
    chosen = _chosen(count, samples, seed)
    network = model_from(model, seed)
    inputs = _inputs(found.x[chosen], network)
    check_takes(network, inputs)
    wanted = None if states is None else names_in("--states", states)
    counted = None if parameters is None else names_in("--parameters", parameters)
    kernel = kernel_of(network, inputs, wanted, parameters=counted)
    _check_batch(kernel, len(chosen))
    readouts = _readouts(network, inputs, kernel)
    summary = global_summary(
        kernel,
        None if found.y is None else found.y[chosen],
        readouts,
        modes=modes,
        accuracy=accuracy,
        seed=seed,
    )
    return command_answer(
        _document(summary, chosen, count, seed),
        _text(summary, chosen, count, seed),
        data=summary.to_dataset().assign_attrs(samples=chosen.tolist()),
        figure=partial(global_ntk_figure, summary, f"Global-state NTK of {model}"),
    )


def _chosen(count: int, wanted: int, seed: int) -> NDArray[np.intp]:
    """Numbers of the samples, in order."""
    if count <= wanted:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).choice(count, wanted, replace=False))


def _inputs(values: Any, model: nn.Module) -> Tensor:
    found = as_inputs(values, model)
    return found.transpose(0, 1) if takes_time_first(model, found) else found


def _check_batch(kernel: GlobalNTK, count: int) -> None:
    from foretrain.operators import SumSpace

    space = kernel.domain
    for part in [space[name] for name in space.names] if isinstance(space, SumSpace) else [space]:
        axes = part.plain("the command")
        if "batch" in axes.names and axes.shape[axes.names.index("batch")] != count:
            raise InputError(
                f"the states are {axes.describe()}, but x has {count} samples: x is (samples, steps, features), so "
                "let the model take samples first, with `batch_first=True`."
            )


def _readouts(model: nn.Module, inputs: Tensor, kernel: GlobalNTK) -> dict[str, Readout]:
    from foretrain.empirical.global_ntk.readout import find_readout
    from foretrain.empirical.global_ntk.summary import members_of

    found = {name: find_readout(model, inputs, part) for name, part in members_of(kernel).items()}
    return {name: readout for name, readout in found.items() if readout is not None}


def _text(summary: GlobalSummary, chosen: NDArray[np.intp], count: int, seed: int) -> list[str | Table]:
    sampled = (
        f"all {count} samples" if len(chosen) == count else f"{len(chosen)} of {count} samples (seed {seed})"
    )
    rank = summary.effective_rank
    parts: list[str | Table] = [
        f"Global-state NTK on {summary.axes}: {summary.size} states of {sampled}, {summary.parameters} parameters, "
        f"{summary.dtype}.",
        f"Trace {_plus_minus(summary.trace)}. Effective rank {_plus_minus(rank)} of {summary.size}.",
        Table(
            ("mode", "eigenvalue", "share of the trace", "residual"),
            [
                [number, *map(float, row)]
                for number, row in enumerate(
                    zip(summary.eigenvalues, summary.eigenvalue_shares, summary.residuals, strict=True), 1
                )
            ],
        ),
    ]
    for view in summary.views.values():
        parts += _view_text(view, len(summary.views) > 1)
    parts.append(_parameter_table(summary))
    for view in summary.views.values():
        parts += _alignment_text(view, len(summary.views) > 1)
    return [*parts, *summary.notes, f"Computed in {summary.seconds:.3g} s."]


def _view_text(view: View, named: bool) -> list[str | Table]:
    *places, units = view.axes.values()
    count, unit = int(np.prod(places)), list(view.axes)[-1]
    subject = f"The state {view.name} changes" if named else "The states change"
    text = (
        f"{subject} with an effective rank of {_plus_minus(view.temporal_rank)} in {view.along} "
        f"({count} places) and {_plus_minus(view.spatial_rank)} in space ({units} {unit}s)."
    )
    if view.core_cosine is not None:
        text += f" Cosine with the core V V* (x) I: {_plus_minus(view.core_cosine)}."
    shown = range(len(view.temporal_modes))
    columns = [f"mode in {view.along}", "share of the temporal kernel"]
    rows: list[list[Any]] = [[i + 1, float(view.temporal_shares[i])] for i in shown]
    if len(view.core_shares):
        columns.append("share of the core V V*")
        rows = [
            [*row, float(view.core_shares[i]) if i < len(view.core_shares) else None]
            for i, row in enumerate(rows)
        ]
    return [text, Table(tuple(columns), rows)]


def _parameter_table(summary: GlobalSummary) -> Table:
    """Shares of the trace, and of how fast the loss falls where that is known."""
    shares = summary.trace_shares
    falls = {
        name: view.loss_decrease.shares
        for name, view in summary.views.items()
        if view.loss_decrease is not None
    }
    heads = [
        "share of the loss decrease" + (f" through {name}" if len(summary.views) > 1 else "")
        for name in falls
    ]
    order = np.argsort(-shares.values)[:_MOST_PARAMETERS]
    rows = [
        [
            shares.names[i],
            float(shares.values[i]),
            _cell(shares.standard_errors[i]),
            *(fall[shares.names[i]] for fall in falls.values()),
        ]
        for i in order
    ]
    return Table(("parameter", "share of the trace", "±", *heads), rows)


def _alignment_text(view: View, named: bool) -> list[str | Table]:
    found = view.alignment
    if found is None:
        return []
    through = f"through {view.readout}" if view.readout else "under the temporal kernel, without a readout"
    subject = f"the state {view.name}" if named else "the states"
    energies = found.singular_values**2
    fields = [
        energies / energies.sum(),
        found.rayleigh,
        found.standard_error,
        found.cosine,
        found.proxy_rayleigh,
        found.proxy_cosine,
    ]
    rows = [[number, *map(_cell, row)] for number, row in enumerate(zip(*fields, strict=True), 1)]
    columns = ("target mode", "energy", "speed", "±", "cosine", "speed by core", "cosine by core")
    text = (
        f"Modes of the target in {subject}, {through}. Speed is the Rayleigh quotient over the mean eigenvalue: 1 is "
        "what a random direction has."
    )
    return [text, Table(columns, rows), *_slowest(found.rayleigh)]


def _cell(value: Any) -> float | None:
    """Empty for what is exact or not known."""
    return float(value) if value != 0 and np.isfinite(value) else None


def _slowest(rayleigh: NDArray[np.float64]) -> list[str]:
    """What the speeds say, if they differ by much."""
    fast, slow = int(np.argmax(rayleigh)), int(np.argmin(rayleigh))
    if len(rayleigh) < 2 or rayleigh[slow] > rayleigh[fast] / 3:
        return []
    ratio = rayleigh[fast] / rayleigh[slow] if rayleigh[slow] > 0 else np.inf
    return [
        f"From here gradient descent changes mode {slow + 1} of the target {ratio:.3g} times more slowly than mode "
        f"{fast + 1}."
    ]


def _plus_minus(estimate: Estimate) -> str:
    if not estimate.standard_error:
        return f"{estimate.value:.6g}"
    return f"{estimate.value:.4g} ± {estimate.standard_error:.2g}"


def _document(summary: GlobalSummary, chosen: NDArray[np.intp], count: int, seed: int) -> dict[str, Any]:
    shares = summary.trace_shares
    return {
        "axes": summary.axes,
        "size": summary.size,
        "parameters": summary.parameters,
        "dtype": summary.dtype,
        "samples": {"count": count, "used": chosen},
        "trace": _pair(summary.trace),
        "effective_rank": _pair(summary.effective_rank),
        "eigenvalues": summary.eigenvalues,
        "residuals": summary.residuals,
        "trace_shares": {
            name: {"value": value, "standard_error": error}
            for name, value, error in zip(shares.names, shares.values, shares.standard_errors, strict=True)
        },
        "states": {name: _view_document(view) for name, view in summary.views.items()},
        "notes": list(summary.notes),
        "seconds": summary.seconds,
        "seed": seed,
    }


def _view_document(view: View) -> dict[str, Any]:
    document: dict[str, Any] = {
        "axes": dict(view.axes),
        "temporal_rank": _pair(view.temporal_rank),
        "spatial_rank": _pair(view.spatial_rank),
        "temporal_error": view.temporal_error,
        "temporal_shares": view.temporal_shares,
        "temporal_modes": view.temporal_modes,
        "core_shares": view.core_shares,
        "core_cosine": None if view.core_cosine is None else _pair(view.core_cosine),
        "readout": view.readout,
    }
    if view.alignment is not None:
        aligned = view.alignment.to_dataset()
        document["alignment"] = {str(name): aligned[name].values for name in aligned.data_vars}
    if view.loss_decrease is not None:
        document["loss_decrease"] = dict(view.loss_decrease.by_parameter)
    return document


def _pair(estimate: Estimate) -> dict[str, Any]:
    return {
        "value": estimate.value,
        "standard_error": estimate.standard_error,
        "products": estimate.products,
        "method": estimate.method,
    }


COMMAND = Command(
    global_ntk,
    examples=(
        "foretrain global model.py:make data.npz --plot states.png",
        "foretrain global model.py:make data.npz --states hidden,cell --samples 8",
        'foretrain global model.py:make data.npz --parameters "cell.weight_ih*" --accuracy 0.01 --save answer',
    ),
    saves=True,
    draws=True,
)
