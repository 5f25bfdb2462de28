"""Tensors of four inputs in ``foretrain flow``: which entries are computed, and how they are shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from foretrain.support.answers import Table
from foretrain.support.errors import InputError

if TYPE_CHECKING:
    from foretrain.theory.flow import Flow

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

_ALL_ENTRIES = 4  # inputs up to which all entries are computed unasked


def entries_to_compute(names: Sequence[str], asked: Array | None, inputs: int) -> Indices | None:
    """Those of each input alone, then those asked for; None for all of them."""
    from foretrain.theory.flow.request import TENSORS

    if not {*TENSORS} & {*names}:
        if asked is not None:
            raise InputError(
                f"--quadruples are entries of {', '.join(TENSORS)}: add V or another to --observables."
            )
        return None
    alone = np.repeat(np.arange(inputs)[:, None], 4, axis=1)
    if asked is not None:
        return np.concatenate([alone, _whole_quadruples(asked)])
    return alone if inputs > _ALL_ENTRIES else None


def _whole_quadruples(asked: Array) -> Indices:
    if asked.shape[1] != 4:
        raise InputError(f"--quadruples names {asked.shape[1]} inputs in a row: give four.")
    if (asked != np.round(asked)).any():
        raise InputError("--quadruples must be whole numbers.")
    return asked.astype(np.intp)


def asked_entries(found: Flow, asked: Array) -> dict[str, Array]:
    """Values (layers, Q) of the entries asked for, by tensor."""
    return {name: found[name].values[:, -len(asked) :] for name in _on_quadruples(found)}


def entry_table(found: Flow, asked: Array, shown: list[int]) -> Table:
    """One column for each tensor and quadruple, its inputs in the order in which the tensor is stored."""
    columns: dict[str, Array] = {}
    for name, values in asked_entries(found, asked).items():
        for (a, b, c, d), column in zip(asked, values.T, strict=True):
            label = f"V_({a:g},{b:g})({c:g},{d:g})" if name == "V" else f"{name}_{a:g},{b:g},{c:g},{d:g}"
            columns[label] = column
    return Table(("layer", *columns), [[n, *(float(v[n - 1]) for v in columns.values())] for n in shown])


def others(found: Flow) -> dict[str, Array]:
    """Tensors without a column of their own, by their entry of input 0 alone; all entries are in the saved data."""
    names = [name for name in found if name not in ("K", "V", "G1")]
    return {f"{name} of input 0": found[name].values.reshape(found.mlp.depth, -1)[:, 0] for name in names}


def computed_in_part(found: Flow) -> str:
    """Which tensors have their entries of each input alone only, in words."""
    return ", ".join(_on_quadruples(found))


def measures_table(measures: dict[str, Array], shown: list[int]) -> list[Any]:
    """Dimensionless sizes of what differs between networks and what training moves, of input 0."""
    if not measures:
        return []
    rows = [[n, *(cell(values[n - 1]) for values in measures.values())] for n in shown]
    return [
        "Over n, in units of K and Theta, of input 0 (small compared with 1 where the first order is enough):",
        Table(("layer", *measures), rows),
    ]


def _on_quadruples(found: Flow) -> list[str]:
    return [name for name in found if "quadruple" in found[name].dims]


def cell(value: float) -> float | None:
    """A number of a table; what is not finite leaves its place empty."""
    return float(value) if np.isfinite(value) else None
