"""What the rules of several operations use: axes of images, parts of axes, tables of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from foretrain.compare.infinite_width.graph import module_of
from foretrain.compare.infinite_width.laws import weight_law
from foretrain.compare.infinite_width.reader import Atom, Node, Parameter, Reader, Value
from foretrain.support.errors import NotSupportedError
from foretrain.theory.layers import Signal, table
from foretrain.theory.layers.positions import Weights

TOKEN_MIXING = (
    "a layer mixes positions with the same weights for all channels (token mixing), so that one random function of a "
    "fixed number of positions acts on every channel, and the kernel stays random however many channels and hidden "
    "units there are"
)


def each(value: Any, count: int) -> list[int]:
    """One number for each of so many axes."""
    values = [value] * count if isinstance(value, int) else list(value)
    return values * count if len(values) == 1 and count > 1 else values


def as_images(reader: Reader, node: Node, given: Any, axes: int) -> Value:
    """A value whose last axes hold one axis of positions each, after the batch and channels."""
    value = reader.as_value(node, given, 1)
    fitting = len(value.dims) == axes + 2 and value.kinds(0)[0] == "batch"
    if set(value.kinds(1)) == {"position"}:
        raise NotSupportedError(TOKEN_MIXING)
    if not fitting or sum(kind in ("channel", "unit") for kind in value.kinds(1)) != 1:
        raise NotSupportedError("a layer for images reads axes that are not batch, channels and positions")
    if any(kind != "position" for k in range(2, axes + 2) for kind in value.kinds(k)):
        raise NotSupportedError("a layer for images reads channels as positions")
    for axis in range(2, axes + 2):
        value = one_axis(value, axis)
    return value


def with_positions(value: Value, signal: Signal, axes: int) -> Value:
    """The value of a map of the last axes of positions."""
    return Value(signal, (*value.dims[:-axes], *((Atom("position", n),) for n in signal.positions[-axes:])))


def mapped_images(value: Value, maps: Sequence[Weights], name: str = "pooling") -> Value:
    """Maps along the last axes of positions."""
    before = [None] * (len(value.signal.positions) - len(maps))
    return with_positions(value, value.signal.over_positions([*before, *maps], name=name), len(maps))


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


def along(value: Value, axis: int, weights: Weights, name: str) -> Value:
    """A fixed map along one axis of positions."""
    if any(kind != "position" for kind in value.kinds(axis)):
        raise NotSupportedError(f"{name} along channels or along the batch has no rule")
    value = one_axis(value, axis)
    maps: list[Weights | None] = [None] * len(value.signal.positions)
    maps[value.positions_in(axis)[0]] = weights
    signal = value.signal.over_positions(maps, name=name)
    size = weights.matrix_of_positions.shape[0]
    return Value(signal, (*value.dims[:axis], (Atom("position", size),), *value.dims[axis + 1 :]))


def narrow(value: Value) -> Value:
    """The value itself; what reads few channels that do not grow has no limit."""
    count = [atom.size for atom in value.atoms if atom.kind == "unit"]
    if count:
        raise NotSupportedError(
            f"{count[0]} channels that do not grow with the width are read: what they hold stays random, so that "
            "the kernel has no deterministic limit",
        )
    return value


def taken(value: Value, axis: int, indices: list[int], keep: bool) -> Value:
    """Some entries along an axis of positions or channels."""
    dim, size, kinds = value.dims[axis], value.shape[axis], value.kinds(axis)
    if keep and indices == list(range(size)):
        return value
    if kinds in (["channel"], ["unit"]) and indices == list(range(indices[0], indices[-1] + 1)):
        part = value.signal.channels(indices[0] / size, (indices[-1] + 1) / size)
        atom = Atom(dim[0].kind if len(indices) > 1 else "unit", len(indices))
        return Value(part, (*value.dims[:axis], *([(atom,)] if keep else []), *value.dims[axis + 1 :]))
    if not kinds or set(kinds) != {"position"}:
        raise NotSupportedError(
            f"entries are taken along an axis of {' and '.join(kinds) or 'size 1'}, which has no rule here",
        )
    value = one_axis(value, axis)
    signal = value.signal.take(value.positions_in(axis)[0], indices if keep else indices[0])
    kept = [(Atom("position", len(indices)),)] if keep else []
    return Value(signal, (*value.dims[:axis], *kept, *value.dims[axis + 1 :]))


def equal_value(given: Any, word: str) -> float:
    """The value that all channels have in common."""
    values = given.tensor if isinstance(given, Parameter) else given
    first = float(values.flatten()[0])
    if not torch.allclose(values, torch.full_like(values, first), rtol=1e-6, atol=1e-12):
        raise NotSupportedError(
            f"{word} differ from channel to channel, as after training, which has no limit"
        )
    return first


def row_name(node: Node, weight: Any) -> str:
    """What a layer is called in the reading: the module whose ``weight`` it uses, else the name of its parameter."""
    if not isinstance(weight, Parameter):
        return module_of(node)
    owner, _, own = weight.name.rpartition(".")
    return owner if own == "weight" else weight.name


def random_table(reader: Reader, node: Node, parameter: Parameter, positions: list[int]) -> Signal:
    """Trained numbers at positions: their variance and rate."""
    reader.use(node, parameter)
    trained = (reader.trains(parameter), False)
    law = reader.hyperparameters.read(
        parameter.name, "table", 1, weight_law(parameter.tensor, 1, 1), None, trained
    )
    reader.learns(parameter, law["lambda_W"])
    return table(positions, variance=law["C_W"], rate=law["lambda_W"])
