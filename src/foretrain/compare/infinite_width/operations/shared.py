"""What the rules of several operations use: axes of images, parts of axes, tables of numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

from foretrain.compare.infinite_width.laws import Law, Row, weight_law
from foretrain.compare.infinite_width.reader import (
    Atom,
    Parameter,
    Reader,
    Value,
)
from foretrain.support.errors import NotSupportedError
from foretrain.theory.layers import Signal, table

Node = torch.fx.Node


def each(value: Any, count: int) -> list[int]:
    """One number for each of so many axes."""
    values = [value] * count if isinstance(value, int) else list(value)
    return values * count if len(values) == 1 and count > 1 else values


def image_axes(batch: int, channels: int, positions: Sequence[int]) -> tuple[tuple[Atom, ...], ...]:
    """Axes (batch, channels, positions...)."""
    return (
        (Atom("batch", batch),),
        (Atom("channel", channels),),
        *((Atom("position", n),) for n in positions),
    )


def as_images(reader: Reader, node: Node, value: Value, axes: int) -> Value:
    """A value whose axes are batch, channels, and one axis of positions each."""
    kinds = [[atom.kind for atom in dim] for dim in value.dims]
    if len(kinds) != axes + 2 or kinds[0] != ["batch"] or kinds[1] != ["channel"]:
        raise reader.refusal(node, "a layer for images reads axes that are not batch, channels and positions")
    signal, groups = value.signal, []
    for k in range(2, len(value.dims)):
        count = len(value.positions_in(k))
        if any(kind != "position" for kind in kinds[k]):
            raise reader.refusal(node, "a layer for images reads channels as positions")
        groups.append(count)
    signal = signal.arranged(range(len(signal.positions)), groups)
    return Value(signal, image_axes(reader.batch, value.shape[1], signal.positions))


def one_axis(value: Value, axis: int) -> Value:
    """The value with the positions of an axis as one axis of the signal."""
    places = value.positions_in(axis)
    count = len(value.signal.positions)
    groups = [1] * count
    if not places:
        before = sum(a.kind == "position" for dim in value.dims[:axis] for a in dim)
        groups.insert(before, 0)
    else:
        groups[places[0] : places[-1] + 1] = [len(places)]
    dims = list(value.dims)
    dims[axis] = (Atom("position", value.shape[axis]),)
    return Value(value.signal.arranged(range(count), groups), tuple(dims))


def taken(reader: Reader, node: Node, value: Value, axis: int, indices: list[int], keep: bool) -> Value:
    """Some entries along an axis of positions or channels."""
    dim, size = value.dims[axis], value.shape[axis]
    if indices == list(range(size)) and keep:
        return value
    kinds = [atom.kind for atom in dim]
    if kinds == ["channel"] and keep and indices == list(range(indices[0], indices[-1] + 1)):
        part = value.signal.channels(indices[0] / size, (indices[-1] + 1) / size)
        dims = list(value.dims)
        dims[axis] = (Atom("channel", len(indices)),)
        return Value(part, tuple(dims))
    if not kinds or set(kinds) != {"position"}:
        raise reader.refusal(
            node, f"entries are taken along an axis of {kinds[0] if kinds else 'size 1'} atoms"
        )
    signal, places = value.signal, value.positions_in(axis)
    if len(places) > 1:
        groups = [1] * len(signal.positions)
        groups[places[0] : places[-1] + 1] = [len(places)]
        signal = signal.arranged(range(len(signal.positions)), groups)
    taken = signal.take(places[0], indices if keep else indices[0])
    dims = list(value.dims)
    dims[axis] = (Atom("position", len(indices)),)
    return Value(taken, tuple(dims if keep else dims[:axis] + dims[axis + 1 :]))


def equal_value(reader: Reader, node: Node, given: Any, word: str) -> float:
    """The value that all channels have in common."""
    values = given.tensor if isinstance(given, Parameter) else given
    first = float(values.flatten()[0])
    if not torch.allclose(values, torch.full_like(values, first), rtol=1e-6, atol=1e-12):
        raise reader.refusal(
            node, f"{word} differ from channel to channel, as after training, which has no limit"
        )
    return first


def random_table(reader: Reader, node: Node, parameter: Parameter, positions: list[int]) -> Signal:
    """Trained numbers at positions: their variance and rate."""
    reader.use(node, parameter)
    hyper = reader.hyperparameters
    own = weight_law(parameter.tensor, 1, 1)
    C_W, _ = hyper.constants(parameter.name, own, Law(0.0, "none"))
    rate, _ = hyper.learning_rates(parameter.name, 1, C_W.C, 0.0, (reader.trains(parameter), False))
    hyper.rows.append(Row(parameter.name, "table", 1, C_W.C, 0.0, rate, 0.0, f"entries: {C_W.how}"))
    return table(positions, variance=C_W.C, rate=rate)


def attempted(reader: Reader, node: Node, compute: Any) -> Signal:
    """A sum or product, with the place named if it has no rule."""
    try:
        result: Signal = compute()
    except NotSupportedError as error:
        raise reader.refusal(node, re.split(": (?:this|only)", str(error))[0]) from error
    return result
