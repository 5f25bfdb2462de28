"""Views, slices, concatenation: what axes become."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from foretrain.compare.infinite_width.graph import NoKernelError, operation_name
from foretrain.compare.infinite_width.operations.shared import one_axis, random_table, taken
from foretrain.compare.infinite_width.reader import (
    Atom,
    Node,
    Parameter,
    Reader,
    Value,
    permuted,
    rule,
    seen_as,
)
from foretrain.support.errors import NotSupportedError
from foretrain.theory.layers import concatenated, joined


@rule("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout")
def _dropout(reader: Reader, node: Node, args: list[Any]) -> Any:
    if args[1] and args[2]:
        raise NoKernelError("dropout in train mode is random (call model.eval())")
    return args[0]


@rule("contiguous", "clone", "alias", "to", "_to_copy", "type_as", "lift_fresh_copy")
def _same(reader: Reader, node: Node, args: list[Any]) -> Any:
    if not node.meta["val"].is_floating_point():
        raise NotSupportedError("features become whole numbers")
    return args[0]


@rule("getitem")
def _item(reader: Reader, node: Node, args: list[Any]) -> Any:
    return args[0][args[1]]


@rule("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "_unsafe_view", "view_as")
def _viewed(reader: Reader, node: Node, args: list[Any]) -> Any:
    return seen_as(args[0], reader.shape(node))


@rule("permute", "transpose", "t", "movedim", "swapaxes", "numpy_T", "adjoint")
def _permuted(reader: Reader, node: Node, args: list[Any]) -> Any:
    target: Any = node.target
    sizes = range(1, len(args[0].dims) + 1)
    return permuted(args[0], [size - 1 for size in target(torch.empty(*sizes), *args[1:]).shape])


@rule("pixel_shuffle", "pixel_unshuffle")
def _pixels_shuffled(reader: Reader, node: Node, args: list[Any]) -> Any:
    """Channels (c, r, r) become positions (h, r, w, r), or the other way."""
    value, r = args
    batch, channels, height, width = value.shape
    if operation_name(node.target) == "pixel_unshuffle":
        apart = seen_as(value, (batch, channels, height // r, r, width // r, r))
        return seen_as(permuted(apart, [0, 1, 3, 5, 2, 4]), reader.shape(node))
    parts = [value.signal.channels(k / r**2, (k + 1) / r**2) for k in range(r**2)]
    axes = len(value.signal.positions)
    signal = joined([one.arranged(range(axes), (0, *(1,) * axes)) for one in parts])  # (r r, ..., h, w)
    split = (r, r, *value.signal.positions)
    signal = signal.arranged(range(axes + 1), (2, *(1,) * axes), split)
    order = [*range(2, axes), axes, 0, axes + 1, 1]
    signal = signal.arranged(order, [*[1] * (axes - 2), 2, 2])
    positions = ((Atom("position", height * r),), (Atom("position", width * r),))
    return Value(signal, (value.dims[0], (Atom("channel", channels // r**2),), *positions))


@rule("channel_shuffle")
def _channels_shuffled(reader: Reader, node: Node, args: list[Any]) -> Any:
    value, groups = args
    batch, channels, *positions = value.shape
    apart = seen_as(value, (batch, groups, channels // groups, *positions))
    return seen_as(permuted(apart, [0, 2, 1, *range(3, len(apart.dims))]), value.shape)


@rule("expand", "expand_as", "broadcast_to")
def _expanded(reader: Reader, node: Node, args: list[Any]) -> Any:
    value, shape = args[0], reader.shape(node)
    if shape == value.shape:
        return value
    new = len(shape) - len(value.dims)
    grown = Value(value.signal, ((),) * new + value.dims)
    for axis, size in enumerate(shape):
        if size != grown.shape[axis]:
            grown = one_axis(grown, axis)
    dims = tuple(
        dim if grown.shape[k] == shape[k] else (Atom("position", shape[k]),)
        for k, dim in enumerate(grown.dims)
    )
    positions = [atom.size for dim in dims for atom in dim if atom.kind == "position"]
    return Value(grown.signal.broadcast(positions), dims)


@rule("slice", "narrow", "index_select")
def _sliced(reader: Reader, node: Node, args: list[Any]) -> Any:
    value, axis, target = args[0], args[1] % len(args[0].dims), node.target
    numbers: Any = torch.arange(value.shape[axis]).reshape(
        [-1 if k == axis else 1 for k in range(len(value.dims))]
    )
    return taken(value, axis, target(numbers, *args[1:]).flatten().tolist(), keep=True)  # type: ignore[operator]


@rule("select")
def _selected(reader: Reader, node: Node, args: list[Any]) -> Any:
    value, axis, index = args
    axis %= len(value.dims)
    return taken(value, axis, [index % value.shape[axis]], keep=False)


@rule("index")
def _indexed(reader: Reader, node: Node, args: list[Any]) -> Any:
    """Positions given by one constant list of numbers."""
    value, where = args
    given = [(axis, one) for axis, one in enumerate(where) if one is not None]
    if len(given) != 1 or not isinstance(given[0][1], Tensor) or given[0][1].ndim != 1:
        raise NotSupportedError("entries are looked up at numbers that are no constant list along one axis")
    axis, numbers = given[0]
    return taken(value, axis, torch.arange(value.shape[axis])[numbers].tolist(), keep=True)


@rule("chunk", "split", "split_with_sizes", "tensor_split", "unbind")
def _split(reader: Reader, node: Node, args: list[Any]) -> Any:
    value, name = args[0], operation_name(node.target)
    axis = args[-1] % len(value.dims)
    start, found = 0, []
    for part in node.meta["val"]:
        size = 1 if name == "unbind" else part.shape[axis]
        found.append(taken(value, axis, list(range(start, start + size)), keep=name != "unbind"))
        start += size
    return found


@rule("cat", "stack")
def _concatenated(reader: Reader, node: Node, args: list[Any]) -> Any:
    parts, rank = args[0], len(reader.shape(node))
    axis, name = args[1] % rank, operation_name(node.target)
    if name == "stack":
        together = reader.together.get(tuple(node.all_input_nodes))
        if isinstance(together, Value):  # the streams to which one network was applied, as they were before
            (batch, streams, *others), *dims = together.dims
            if axis == 1 and not others:
                return Value(together.signal, ((batch,), (streams,), *dims))
        parts = [
            one_axis(Value(one.signal, (*one.dims[:axis], (), *one.dims[axis:])), axis)
            if isinstance(one, Value)
            else one
            for one in parts
        ]
    like = next(one for one in parts if isinstance(one, Value))
    kinds, dims = like.kinds(axis), list(like.dims)
    made = [one if isinstance(one, Value) else _constant_part(reader, node, one, like) for one in parts]
    total = sum(one.shape[axis] for one in made)
    if all(one.kinds(axis) in (["channel"], ["unit"]) for one in made):
        wide = all(one.kinds(axis) == ["channel"] for one in made)
        dims[axis] = (Atom("channel" if wide else "unit", total),)
        return Value(
            concatenated([one.signal for one in made], [one.shape[axis] for one in made]), tuple(dims)
        )
    if set(kinds) <= {"position"}:
        lined = [one_axis(one, axis) for one in made]
        dims[axis] = (Atom("position", total),)
        return Value(joined([one.signal for one in lined], lined[0].positions_in(axis)[0]), tuple(dims))
    raise NotSupportedError(
        "tensors are concatenated along the batch, or along channels and positions together"
    )


def _constant_part(reader: Reader, node: Node, given: Any, like: Value) -> Value:
    """A class token beside the others: a parameter that was expanded over the batch."""
    if not isinstance(given, Parameter):
        raise NotSupportedError(
            "raw inputs are concatenated with features; their share vanishes with the width"
        )
    tensor = given.tensor
    for k in range(len(like.dims)):
        if "batch" in like.kinds(k):
            tensor = tensor.narrow(k, 0, 1)  # one and the same for every sample
    dims, positions = [], []
    for k, size in enumerate(tensor.shape):
        if {"batch", "channel"} & set(like.kinds(k)):
            dims.append(like.dims[k])
            positions += [1 for kind in like.kinds(k) if kind == "position"]
        else:
            positions.append(size)
            dims.append((Atom("position", size),))
    signal = random_table(reader, node, Parameter(given.name, tensor), positions)
    return Value(signal.broadcast([a.size for dim in dims for a in dim if a.kind == "position"]), tuple(dims))
