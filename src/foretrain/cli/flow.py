"""``foretrain flow``: statistics of a random network's preactivations, layer by layer."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from foretrain.cli.activation import find
from foretrain.cli.frame import Answer, Command
from foretrain.cli.options import BiasVariance, DataFile, SkipConnection, WeightVariance
from foretrain.cli.output import Table
from foretrain.support.errors import AccuracyWarning, InputError

if TYPE_CHECKING:
    import xarray

    from foretrain.activations import Activation
    from foretrain.theory.architecture import MLP
    from foretrain.theory.flow import Flow

Array = NDArray[np.float64]

_ALL_SHOWN = 24  # layers; of deeper networks the table shows about so many
_FULL_VERTEX = 4  # inputs up to which all entries of V are computed unasked
_DEEP = 1000  # layers
_ANGLE = 60.0


@dataclass(frozen=True)
class _Inputs:
    """Input rows and where they are from, in words."""

    rows: Array
    origin: str


def flow(
    name: Annotated[str, typer.Argument(help="The activation: a name, or file.py:function.")],
    depth: Annotated[int, typer.Option("--depth", help="Layers of weights, L.")],
    width: Annotated[str, typer.Option("--width", help="Hidden width, or one for each layer: 100,50,100.")],
    c_b: BiasVariance = None,
    c_w: WeightVariance = None,
    gamma: SkipConnection = 0.0,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=NUMBER", help="A parameter of the activation, such as slope=0.2."),
    ] = None,
    inputs: Annotated[
        str | None, typer.Option("--inputs", metavar="ROWS", help="Inputs, such as '1,0;0.5,0.8'.")
    ] = None,
    data: DataFile = None,
    samples: Annotated[int, typer.Option("--samples", help="How many inputs of the data file.")] = 8,
    observables: Annotated[
        str | None, typer.Option("--observables", help="Names such as K,V,G1 [default: all that are known].")
    ] = None,
    quadruples: Annotated[
        str | None,
        typer.Option("--quadruples", metavar="ABCD", help="Entries of V to show: '0,1,0,1;0,0,1,1'."),
    ] = None,
    layers: Annotated[
        str | None, typer.Option("--layers", help="Layers to show, such as 1,2,10-20 [default: all or some].")
    ] = None,
) -> Answer:
    """Follow kernel, correlations and fluctuations of a random network from layer to layer.

    K is the variance of a preactivation at infinite width, G1/n its first correction, V/(nK²) the relative variance
    of the metric from network to network: the small parameter of everything at finite width.
    """
    from foretrain.report.flow import draw_flow, flow_summary, with_laws
    from foretrain.theory.flow import flow as run

    act = find(name, settings or [])
    given = _read_inputs(inputs, data, samples)
    mlp = _network(act, depth, width, c_b, c_w, gamma, given)
    shown = _chosen_layers(layers, depth)
    _refuse_minutes(mlp.depth, len(given.rows), observables)
    names = _names(observables, mlp)
    asked = _rows("--quadruples", quadruples) if quadruples else None
    found = run(mlp, given.rows, names, quadruples=_vertices(names, asked, len(given.rows)))
    summary = with_laws(flow_summary(found), mlp, given.rows[0])
    return Answer(
        _document(mlp, given, found, summary, asked, shown),
        _text(mlp, given, found, summary, asked, shown),
        data=summary.assign({key: found[key] for key in found}).assign_attrs(network=repr(mlp)),
        figure=lambda: draw_flow(summary, _headline(mlp)),
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

        if samples < 1:
            raise InputError(f"--samples is {samples}: give a positive number of inputs.")
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


def _whole_numbers(option: str, values: Array) -> NDArray[np.intp]:
    if (values != np.round(values)).any():
        raise InputError(f"{option} must be whole numbers.")
    return values.astype(np.intp)


def _network(
    act: Activation,
    depth: int,
    width: str,
    c_b: float | None,
    c_w: float | None,
    gamma: float,
    given: _Inputs,
) -> MLP:
    from foretrain.theory.architecture import MLP

    try:
        widths = [int(part) for part in width.split(",")]
    except ValueError:
        raise InputError(
            f"--width is {width!r}: give a whole number, or one for each hidden layer."
        ) from None
    plain = MLP(
        act,
        depth,
        widths[0] if len(widths) == 1 else widths,
        n_in=given.rows.shape[1],
        gamma=gamma if gamma else None,
    )
    return plain.replace(C_b=_variances(plain, "C_b", c_b), C_W=_variances(plain, "C_W", c_w))


def _variances(mlp: MLP, name: str, asked: float | None) -> list[float]:
    """One variance per layer: the one asked for, or the critical one of a layer with its skip connection."""
    from foretrain.theory.criticality import criticality

    if asked is not None:
        return [asked] * mlp.depth
    option = name.lower().replace("_", "-")
    found = {gamma: criticality(mlp.activation, gamma) for gamma in sorted(set(mlp.gamma))}
    values = []
    for gamma in mlp.gamma:
        value = getattr(found[gamma], name)
        if value is None:
            raise InputError(
                f"{mlp.activation.label} has no critical initialisation ({found[gamma].reason}): "
                f"give --{option} yourself."
            )
        values.append(float(value))
    return values


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
    """The observables; K is always among them, since all others are measured by it."""
    if text is None:
        return ["K", "V"] if mlp.is_residual else ["K", "V", "G1"]
    return list(dict.fromkeys(["K", *(part.strip() for part in text.split(","))]))


def _vertices(names: Sequence[str], asked: Array | None, inputs: int) -> NDArray[np.intp] | None:
    """The entries of V to compute: those of each input alone, then those asked for; None for all of them."""
    if "V" not in names:
        if asked is not None:
            raise InputError("--quadruples are entries of V: add V to --observables.")
        return None
    alone = np.repeat(np.arange(inputs)[:, None], 4, axis=1)
    if asked is not None:
        if asked.shape[1] != 4:
            raise InputError(f"--quadruples names {asked.shape[1]} inputs in a row: give four.")
        return np.concatenate([alone, _whole_numbers("--quadruples", asked)])
    return alone if inputs > _FULL_VERTEX else None


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
    parts: list[str | Table] = [f"{_headline(mlp)}\nInputs: {given.origin}.", _table(summary, shown)]
    if asked is not None:
        parts.append(_quadruple_table(found, asked, shown))
    if others := _others(found):
        parts.append(
            Table(("layer", *others), [[n, *(float(v[n - 1]) for v in others.values())] for n in shown])
        )
    law = f"In depth: {summary.attrs['statement']}"
    parts.append(law if law.endswith(".") else f"{law}.")
    if asked is None and "V" in set(found) and "quadruple" in found["V"].dims:
        parts.append("Of V only the entries of each input alone were computed: name others in --quadruples.")
    return [*parts, _verdict(mlp, summary)]


def _others(found: Flow) -> dict[str, Array]:
    """Tensors without a column of their own, by their entry of input 0 alone; all entries are in the saved data."""
    names = [name for name in found if name not in ("K", "V", "G1")]
    return {f"{name} of input 0": found[name].values.reshape(found.mlp.depth, -1)[:, 0] for name in names}


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
    rows = [[layer, *(_cell(values[layer - 1]) for _, values in columns)] for layer in shown]
    return Table(("layer", *(heading for heading, _ in columns)), rows)


def _law_column(summary: xarray.Dataset, name: str) -> list[tuple[str, Array]]:
    return [("its law", summary[name].values)] if name in summary else []


def _cell(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _pair_correlations(summary: xarray.Dataset) -> Array:
    first, second = np.triu_indices(summary.sizes["input"], 1)
    return np.asarray(summary["correlation"].values[:, first, second])


def _quadruple_table(found: Flow, asked: Array, shown: list[int]) -> Table:
    values = _asked_vertices(found, asked)
    names = [f"V_({a:g},{b:g})({c:g},{d:g})" for a, b, c, d in asked]
    return Table(("layer", *names), [[layer, *map(float, values[layer - 1])] for layer in shown])


def _asked_vertices(found: Flow, asked: Array) -> Array:
    return np.asarray(found["V"].values[:, -len(asked) :])


def _document(
    mlp: MLP, given: _Inputs, found: Flow, summary: xarray.Dataset, asked: Array | None, shown: list[int]
) -> dict[str, Any]:
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
        "others": {name: values[np.array(shown) - 1] for name, values in _others(found).items()},
        "layers": [
            {"layer": layer, **{str(name): rows[name].values[index] for name in rows}}
            for index, layer in enumerate(shown)
        ],
    }
    if asked is not None:
        V = _asked_vertices(found, asked)[np.array(shown) - 1]
        document["quadruples"] = {"inputs": asked.astype(int), "V": V}
    return document


COMMAND = Command(
    flow,
    examples=(
        "foretrain flow tanh --depth 20 --width 100",
        "foretrain flow relu --depth 50 --width 500 --inputs '1,0;0.6,0.8' --plot relu.png",
        "foretrain flow gelu --depth 10 --width 64 --data data.npz --quadruples '0,1,0,1' --json",
    ),
    saves=True,
    draws=True,
)
