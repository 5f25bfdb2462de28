"""``foretrain flow``: statistics of a random network's preactivations, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import numpy as np
import typer
from numpy.typing import NDArray

from foretrain.cli.frame import Command
from foretrain.cli.options import (
    ActivationName,
    BiasVariance,
    DataFile,
    Depth,
    Samples,
    Settings,
    SkipConnection,
    WeightVariance,
    Width,
    activation_of,
    names_in,
    network_of,
    spelt,
)
from foretrain.support.answers import Answer
from foretrain.support.errors import InputError

if TYPE_CHECKING:
    from foretrain.theory.recursions.kinks import Kinks

Array = NDArray[np.float64]

_ALL_ENTRIES = 4  # inputs up to which all entries are computed unasked
_DEEP = 1000  # layers
_ANGLE = 60.0


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
        "Names of preactivations (K,V,G1), tangent kernel at rates 1 (Theta,H1,D,F,A,B), its first (P,Q) "
        "and second differentials (R,S,T,U) [default: K,V,G1].",
    ] = None,
    quadruples: Annotated[
        str | None,
        typer.Option(
            "--quadruples", metavar="ABCD", help="Entries of V and other tensors to show: '0,1,0,1;0,0,1,1'."
        ),
    ] = None,
    kinks: Annotated[
        str, "Second derivatives at kinks, for P and Q: delta, or almost_everywhere for none."
    ] = "delta",
    layers: Annotated[str | None, "Layers to show, such as 1,2,10-20 [default: all or some]."] = None,
) -> Answer:
    """Follow kernel, correlations and fluctuations of a random network from layer to layer.

    K is the variance of a preactivation at infinite width, G1/n its first correction, V/(nK²) the relative variance
    of the metric from network to network: the small parameter of everything at finite width. P to U say how far
    training moves the tangent kernel: P/(nΘ²), RK/(nΘ³) and the like are 0 where a network learns no representation.
    """
    from foretrain.theory.flow import flow as run
    from foretrain.theory.flow.presentation import flow_answer
    from foretrain.theory.tensors import FOUR_INPUTS

    act = activation_of(name, settings)
    rows, origin = _read_inputs(inputs, data, samples)
    rates = {"lambda_b": 1.0, "lambda_W": 1.0}
    mlp = network_of(act, depth, width, c_b, c_w, gamma, n_in=rows.shape[1], **rates)
    shown = None if layers is None else _chosen_layers(layers, depth)
    if mlp.depth > _DEEP and len(rows) > 1 and observables is None:
        # What nobody asked for in so many words does not take minutes.
        raise InputError(
            f"fluctuations of {len(rows)} inputs over {depth} layers take minutes: give one input, such as --inputs "
            "1, or --observables K, or name all that is wanted, such as --observables K,V,G1."
        )
    names = ["K", "V"] if mlp.is_residual else ["K", "V", "G1"]
    if observables is not None:  # K is always among them, and Theta with what is measured by it
        wanted = names_in("--observables", observables)
        names = list(
            dict.fromkeys(["K", *(["Theta"] if ({*FOUR_INPUTS} - {"V"}) & {*wanted} else []), *wanted])
        )
    asked = None if quadruples is None else _rows("--quadruples", quadruples)
    entries = _entries_to_compute(names, asked, len(rows))
    found = run(mlp, rows, names, quadruples=entries, kinks=cast("Kinks", spelt(kinks)))
    return flow_answer(found, shown, origin, 0 if asked is None else len(asked))


def _read_inputs(inputs: str | None, data: Path | None, samples: int) -> tuple[Array, str]:
    """Rows of inputs, and where they are from in words."""
    if inputs is not None and data is not None:
        raise InputError("--inputs and --data both give inputs: leave one out.")
    if inputs is not None:
        rows = _rows("--inputs", inputs)
        return rows, f"{len(rows)} given"
    if data is not None:
        from foretrain.support.loading import load_inputs

        x = load_inputs(data)
        rows = x[:samples]
        return rows, f"the first {len(rows)} of {len(x)} in {data} (see --samples)"
    angle = np.radians(_ANGLE)
    pair = np.sqrt(2.0) * np.array([[1.0, 0.0], [np.cos(angle), np.sin(angle)]])
    return pair, f"none given, so two of mean square 1 (x·x/n_0) with an angle of {_ANGLE:g} degrees"


def _rows(option: str, text: str) -> Array:
    """Numbers in rows, written 1,2;3,4."""
    try:
        rows = [[float(cell) for cell in row.split(",")] for row in text.split(";") if row.strip()]
    except ValueError:
        rows = []
    if not rows or len({len(row) for row in rows}) > 1:
        raise InputError(f"{option} is {text!r}: give rows of numbers of one length, such as '1,0;0.5,0.8'.")
    return np.array(rows)


def _chosen_layers(text: str, depth: int) -> list[int]:
    chosen: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.strip().isdigit() or not (last or first).strip().isdigit():
            raise InputError(f"--layers is {text!r}: give numbers and ranges, such as 1,2,10-20.")
        chosen |= set(range(int(first), int(last or first) + 1))
    if not chosen or min(chosen) < 1 or max(chosen) > depth:
        raise InputError(f"--layers is {text!r}: choose from 1 to {depth}.")
    return sorted(chosen)


def _entries_to_compute(names: Sequence[str], asked: Array | None, inputs: int) -> NDArray[np.intp] | None:
    """Those of each input alone, then those asked for; None for all of them."""
    from foretrain.theory.tensors import FOUR_INPUTS

    if not {*FOUR_INPUTS} & {*names}:
        if asked is not None:
            raise InputError(
                f"--quadruples are entries of {', '.join(FOUR_INPUTS)}: add V or another to --observables."
            )
        return None
    alone = np.repeat(np.arange(inputs)[:, None], 4, axis=1)
    if asked is None:
        return alone if inputs > _ALL_ENTRIES else None
    if asked.shape[1] != 4:
        raise InputError(f"--quadruples names {asked.shape[1]} inputs in a row: give four.")
    if (asked != np.round(asked)).any():
        raise InputError("--quadruples must be whole numbers.")
    return np.concatenate([alone, asked.astype(np.intp)])


COMMAND = Command(
    flow,
    examples=(
        "foretrain flow tanh --depth 20 --width 100",
        "foretrain flow relu --depth 50 --width 500 --inputs '1,0;0.6,0.8' --plot relu.png",
        "foretrain flow gelu --depth 10 --width 64 --data data.npz --quadruples '0,1,0,1' --json",
        "foretrain flow tanh --depth 20 --width 100 --inputs 1 --observables K,Theta,P,Q,R,S,T,U",
    ),
    aliases={"x": "--inputs"},
)
