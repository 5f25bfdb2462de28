"""``foretrain flow``: statistics of a random network's preactivations, layer by layer."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import numpy as np
import typer
from numpy.typing import NDArray

from foretrain.cli.flow.tensors import (
    asked_entries,
    cell,
    computed_in_part,
    entries_to_compute,
    entry_table,
    measures_table,
    others,
)
from foretrain.cli.frame import Command, command_answer
from foretrain.cli.networks import (
    ActivationName,
    BiasVariance,
    Depth,
    Settings,
    SkipConnection,
    WeightVariance,
    Width,
    activation_of,
    network_of,
)
from foretrain.cli.options import DataFile, Samples, names_in, spelt
from foretrain.support.answers import Answer, Table
from foretrain.support.errors import AccuracyWarning, InputError

if TYPE_CHECKING:
    import xarray

    from foretrain.theory.architecture import MLP
    from foretrain.theory.flow import Flow
    from foretrain.theory.recursions.kinks import Kinks

Array = NDArray[np.float64]

_ALL_SHOWN = 24  # layers; of deeper networks the table shows about so many
_DEEP = 1000  # layers
_ANGLE = 60.0


@dataclass(frozen=True)
class _Inputs:
    """Input rows and where they are from, in words."""

    rows: Array
    origin: str


def flow(
    name: ActivationName,
    depth: Depth,
    width: Width,
    c_b: BiasVariance = None,
    c_w: WeightVariance = None,
    gamma: SkipConnection = 0.0,
    settings: Settings = None,
    inputs: Annotated[
        str | None, typer.Option("--inputs", metavar="ROWS", help="Inputs, such as '1,0;0.5,0.8'.")
    ] = None,
    data: DataFile = None,
    samples: Samples = 8,
    observables: Annotated[
        str | None,
        typer.Option(
            "--observables",
            help="Names of preactivations (K,V,G1), tangent kernel at rates 1 (Theta,H1,D,F,A,B), its first (P,Q) "
            "and second differentials (R,S,T,U) [default: K,V,G1].",
        ),
    ] = None,
    quadruples: Annotated[
        str | None,
        typer.Option(
            "--quadruples", metavar="ABCD", help="Entries of V and other tensors to show: '0,1,0,1;0,0,1,1'."
        ),
    ] = None,
    kinks: Annotated[
        str,
        typer.Option(
            "--kinks", help="Second derivatives at kinks, for P and Q: delta, or almost_everywhere for none."
        ),
    ] = "delta",
    layers: Annotated[
        str | None, typer.Option("--layers", help="Layers to show, such as 1,2,10-20 [default: all or some].")
    ] = None,
) -> Answer:
    """Follow kernel, correlations and fluctuations of a random network from layer to layer.

    K is the variance of a preactivation at infinite width, G1/n its first correction, V/(nK²) the relative variance
    of the metric from network to network: the small parameter of everything at finite width. P to U say how far
    training moves the tangent kernel: P/(nΘ²), RK/(nΘ³) and the like are 0 where a network learns no representation.
    """
    from foretrain.report.flow import flow_figure, flow_summary, with_laws
    from foretrain.theory.flow import flow as run

    act = activation_of(name, settings)
    given = _read_inputs(inputs, data, samples)
    rates = {"lambda_b": 1.0, "lambda_W": 1.0}
    mlp = network_of(act, depth, width, c_b, c_w, gamma, n_in=given.rows.shape[1], **rates)
    shown = _chosen_layers(layers, depth)
    _refuse_minutes(mlp.depth, len(given.rows), observables)
    names = _names(observables, mlp)
    asked = None if quadruples is None else _rows("--quadruples", quadruples)
    entries = entries_to_compute(names, asked, len(given.rows))
    found = run(mlp, given.rows, names, quadruples=entries, kinks=cast("Kinks", spelt(kinks)))
    summary = with_laws(flow_summary(found), mlp, given.rows[0])
    return command_answer(
        _document(mlp, given, found, summary, asked, shown),
        _text(mlp, given, found, summary, asked, shown),
        data=summary.assign({key: found[key] for key in found}).assign_attrs(network=repr(mlp)),
        figure=lambda: flow_figure(summary, _headline(mlp)),
    )


def _refuse_minutes(depth: int, inputs: int, observables: str | None) -> None:
    """What nobody asked for in so many words does not take minutes."""
    if depth > _DEEP and inputs > 1 and observables is None:
        raise InputError(
            f"fluctuations of {inputs} inputs over {depth} layers take minutes: give one input, such as --inputs 1, "
            "or --observables K, or name all that is wanted, such as --observables K,V,G1."
        )


def _read_inputs(inputs: str | None, data: Path | None, samples: int) -> _Inputs:
    if inputs is not None and data is not None:
        raise InputError("--inputs and --data both give inputs: leave one out.")
    if inputs is not None:
        rows = _rows("--inputs", inputs)
        return _Inputs(rows, f"{len(rows)} given")
    if data is not None:
        from foretrain.support.loading import load_inputs

        x = load_inputs(data)
        rows = x[:samples]
        return _Inputs(rows, f"the first {len(rows)} of {len(x)} in {data} (see --samples)")
    angle = np.radians(_ANGLE)
    pair = np.sqrt(2.0) * np.array([[1.0, 0.0], [np.cos(angle), np.sin(angle)]])
    return _Inputs(pair, f"none given, so two of mean square 1 (x·x/n_0) with an angle of {_ANGLE:g} degrees")


def _rows(option: str, text: str) -> Array:
    """Numbers in rows, written 1,2;3,4."""
    try:
        rows = [[float(cell) for cell in row.split(",")] for row in text.split(";") if row.strip()]
    except ValueError:
        rows = []
    if not rows or len({len(row) for row in rows}) > 1:
        raise InputError(f"{option} is {text!r}: give rows of numbers of one length, such as '1,0;0.5,0.8'.")
    return np.array(rows)


def _chosen_layers(text: str | None, depth: int) -> list[int]:
    if text is None:
        if depth <= _ALL_SHOWN:
            return list(range(1, depth + 1))
        return sorted({round(layer) for layer in np.geomspace(1, depth, _ALL_SHOWN)})
    chosen: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.strip().isdigit() or not (last or first).strip().isdigit():
            raise InputError(f"--layers is {text!r}: give numbers and ranges, such as 1,2,10-20.")
        chosen |= set(range(int(first), int(last or first) + 1))
    if not chosen or min(chosen) < 1 or max(chosen) > depth:
        raise InputError(f"--layers is {text!r}: choose from 1 to {depth}.")
    return sorted(chosen)


def _names(text: str | None, mlp: MLP) -> list[str]:
    """The observables; K is always among them, and Theta with what is measured by it."""
    from foretrain.report.flow import MEASURES

    if text is None:
        return ["K", "V"] if mlp.is_residual else ["K", "V", "G1"]
    asked = names_in("--observables", text)
    return list(dict.fromkeys(["K", *(["Theta"] if {*MEASURES} & {*asked} else []), *asked]))


def _headline(mlp: MLP) -> str:
    widths = sorted(set(mlp.hidden_widths))
    size = "no hidden layer" if not widths else f"width {widths[0]}"
    if len(widths) > 1:
        size = f"widths {widths[0]} to {widths[-1]}"
    skip = f", gamma = {max(mlp.gamma, key=abs):g}" if mlp.is_residual else ""
    inner = mlp.layers[min(1, mlp.depth - 1)]
    return f"{mlp.activation.label}, depth {mlp.depth}, {size}, C_b = {inner.C_b:.6g}, C_W = {inner.C_W:.6g}{skip}"


def _text(
    mlp: MLP, given: _Inputs, found: Flow, summary: xarray.Dataset, asked: Array | None, shown: list[int]
) -> list[str | Table]:
    from foretrain.report.flow import measures

    parts: list[str | Table] = [f"{_headline(mlp)}\nInputs: {given.origin}.", _table(summary, shown)]
    if asked is not None:
        parts.append(entry_table(found, asked, shown))
    if more := others(found):
        parts.append(Table(("layer", *more), [[n, *(float(v[n - 1]) for v in more.values())] for n in shown]))
    parts += measures_table(measures(found), shown)
    law = f"In depth: {summary.attrs['statement']}"
    parts.append(law if law.endswith(".") else f"{law}.")
    if asked is None and (names := computed_in_part(found)):
        parts.append(
            f"Of {names} only entries of each input alone were computed: name others in --quadruples."
        )
    return [*parts, _verdict(mlp, summary)]


def _verdict(mlp: MLP, summary: xarray.Dataset) -> str:
    from foretrain.theory.finite_width import expansion_parameter, verdict_on

    if "fluctuation" not in summary:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AccuracyWarning)  # the verdict says the same
            found = expansion_parameter(mlp)
        return f"L/n = {found.depth_to_width:.4g}: {found.verdict}."
    worst = float(summary["fluctuation"].isel(layer=-1).max())
    return f"L/n = {mlp.depth_to_width:.4g}, V/(nK²) of the output = {worst:.4g}: {verdict_on(worst)}."


def _table(summary: xarray.Dataset, shown: list[int]) -> Table:
    """One row per layer: what belongs to one input is that of input 0."""
    several = summary.sizes["input"] > 1
    mark = " of input 0" if several else ""
    columns: list[tuple[str, Array]] = [(f"K{mark}", summary["kernel"].values[:, 0])]
    columns += _law_column(summary, "kernel_law")
    if several:
        kernel, correlation = summary["kernel"].values, _pair_correlations(summary)
        if np.ptp(kernel, axis=1).max() > 1e-9 * kernel.max():
            columns += [("lowest K", kernel.min(axis=1)), ("highest K", kernel.max(axis=1))]
        one = correlation.shape[1] == 1
        columns.append(("correlation" if one else "mean correlation", correlation.mean(axis=1)))
        columns.append(("angle" if one else "mean angle", np.degrees(np.arccos(correlation)).mean(axis=1)))
    if "fluctuation" in summary:
        columns += [
            ("V/(nK²)", summary["fluctuation"].values[:, 0]),
            *_law_column(summary, "fluctuation_law"),
        ]
    if "correction" in summary:
        columns += [("G1/n", summary["correction"].values[:, 0]), *_law_column(summary, "correction_law")]
    rows = [[layer, *(cell(values[layer - 1]) for _, values in columns)] for layer in shown]
    return Table(("layer", *(heading for heading, _ in columns)), rows)


def _law_column(summary: xarray.Dataset, name: str) -> list[tuple[str, Array]]:
    return [("its law", summary[name].values)] if name in summary else []


def _pair_correlations(summary: xarray.Dataset) -> Array:
    first, second = np.triu_indices(summary.sizes["input"], 1)
    return np.asarray(summary["correlation"].values[:, first, second])


def _document(
    mlp: MLP, given: _Inputs, found: Flow, summary: xarray.Dataset, asked: Array | None, shown: list[int]
) -> dict[str, Any]:
    from foretrain.report.flow import measures

    rows = summary.sel(layer=shown)
    document: dict[str, Any] = {
        "activation": mlp.activation.label,
        "depth": mlp.depth,
        "hidden_widths": mlp.hidden_widths,
        "C_b": mlp.C_b,
        "C_W": mlp.C_W,
        "gamma": mlp.gamma,
        "inputs": given.rows,
        "inputs_from": given.origin,
        "depth_to_width": mlp.depth_to_width,
        "verdict": _verdict(mlp, summary),
        "statement": summary.attrs["statement"],
        "laws": {name: dict(rows[name].attrs) for name in rows if str(name).endswith("_law")},
        "others": {name: values[np.array(shown) - 1] for name, values in others(found).items()},
        "measures": {name: values[np.array(shown) - 1] for name, values in measures(found).items()},
        "layers": [
            {"layer": layer, **{str(name): rows[name].values[index] for name in rows}}
            for index, layer in enumerate(shown)
        ],
    }
    if asked is not None:
        entries = {name: values[np.array(shown) - 1] for name, values in asked_entries(found, asked).items()}
        document["quadruples"] = {"inputs": asked.astype(int), **entries}
    return document


COMMAND = Command(
    flow,
    examples=(
        "foretrain flow tanh --depth 20 --width 100",
        "foretrain flow relu --depth 50 --width 500 --inputs '1,0;0.6,0.8' --plot relu.png",
        "foretrain flow gelu --depth 10 --width 64 --data data.npz --quadruples '0,1,0,1' --json",
        "foretrain flow tanh --depth 20 --width 100 --inputs 1 --observables K,Theta,P,Q,R,S,T,U",
    ),
    saves=True,
    draws=True,
    aliases={"x": "--inputs"},
)
