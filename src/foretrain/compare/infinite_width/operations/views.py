"""Views, slices, concatenation: what axes become."""

from __future__ import annotations

from typing import Any

import torch

from foretrain.compare.infinite_width.operations.shared import attempted, one_axis, random_table, taken
from foretrain.compare.infinite_width.reader import (
    Atom,
    Parameter,
    Reader,
    Value,
    operation_name,
    permuted,
    regrouped,
    rule,
)
from foretrain.theory.layers import concatenated, joined

Node = torch.fx.Node


@rule("dropout", "feature_dropout", "alpha_dropout")
def _dropout(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if args[2] and args[1] > 0:
        raise reader.refusal(node, "dropout in train mode is random (call model.eval())")
    return args[0]


@rule(
    "contiguous",
    "clone",
    "alias",
    "to",
    "_to_copy",
    "type_as",
    "identity",
    "lift_fresh_copy",
    "_assert_tensor_metadata",
)
def _same(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return args[0] if args else None


@rule("getitem")
def _item(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return args[0][args[1]]


@rule("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "_unsafe_view", "view_as")
def _viewed(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    value = args[0]
    if isinstance(value, Parameter):
        return reader.of_parameters(node, args, kwargs)
    shape = tuple(node.meta["val"].shape)
    found = regrouped(value, shape)
    if found is None:
        raise reader.refusal(
            node, f"a view from {value.shape} to {shape} cuts across channels, positions and batch"
        )
    return found


@rule("permute", "transpose", "t", "movedim", "swapaxes", "numpy_T")
def _permuted(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    value = args[0]
    if isinstance(value, Parameter):
        return reader.of_parameters(node, args, kwargs)
    count, name = len(value.dims), operation_name(node.target)
    order = list(range(count))
    if name == "permute":
        order = [axis % count for axis in args[1]]
    elif name in ("transpose", "swapaxes"):
        a, b = args[1] % count, args[2] % count
        order[a], order[b] = order[b], order[a]
    elif name == "t":
        order.reverse()
    else:
        raise reader.refusal(node, f"{name} has no rule (use permute)")
    return permuted(value, order)


@rule("expand", "expand_as", "broadcast_to")
def _expanded(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    value = args[0]
    if isinstance(value, Parameter):
        return reader.of_parameters(node, args, kwargs)
    shape = tuple(node.meta["val"].shape)
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


@rule("slice", "narrow")
def _sliced(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    value = args[0]
    if isinstance(value, Parameter):
        return reader.of_parameters(node, args, kwargs)
    axis = (args[1] if len(args) > 1 else 0) % len(value.dims)
    size = value.shape[axis]
    if operation_name(node.target) == "narrow":
        start, stop, step = args[2], args[2] + args[3], 1
    else:
        limits = (*args[2:], None, None, None)[:3]
        start, stop, step = slice(limits[0], limits[1], limits[2]).indices(size)
    return taken(reader, node, value, axis, list(range(start, stop, step)), keep=True)


@rule("select")
def _selected(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    value, axis, index = args
    if isinstance(value, Parameter):
        return reader.of_parameters(node, args, kwargs)
    axis %= len(value.dims)
    return taken(reader, node, value, axis, [index % value.shape[axis]], keep=False)


@rule("chunk", "split", "split_with_sizes", "tensor_split")
def _split(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    value = args[0]
    axis = (args[2] if len(args) > 2 else kwargs.get("dim", 0)) % len(value.dims)
    sizes = [part.shape[axis] for part in node.meta["val"]]
    start, found = 0, []
    for size in sizes:
        found.append(taken(reader, node, value, axis, list(range(start, start + size)), keep=True))
        start += size
    return found


@rule("cat", "concat", "stack")
def _concatenated(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    parts = list(args[0])
    values = [one for one in parts if isinstance(one, Value)]
    if operation_name(node.target) == "stack" or not values:
        raise reader.refusal(node, "tensors are stacked along a new axis")
    like = values[0]
    axis = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % len(like.dims)
    kinds = [atom.kind for atom in like.dims[axis]]
    made = [one if isinstance(one, Value) else _constant_part(reader, node, one, like, axis) for one in parts]
    dims = list(like.dims)
    total = sum(one.shape[axis] for one in made)
    if kinds == ["channel"]:
        dims[axis] = (Atom("channel", total),)
        shares = [one.shape[axis] for one in made]
        return Value(concatenated([one.signal for one in made], shares), tuple(dims))
    if set(kinds) <= {"position"}:
        lined = [one_axis(one, axis) for one in made]
        place = Value(lined[0].signal, lined[0].dims).positions_in(axis)[0]
        dims[axis] = (Atom("position", total),)
        signal = attempted(reader, node, lambda: joined([one.signal for one in lined], place))
        return Value(signal, tuple(dims))
    raise reader.refusal(
        node, "tensors are concatenated along the batch, or along channels and positions together"
    )


def _constant_part(reader: Reader, node: Node, given: Any, like: Value, axis: int) -> Value:
    """A class token beside the others: a parameter that was expanded over the batch."""
    if not isinstance(given, Parameter):
        raise reader.refusal(
            node, "raw inputs are concatenated with features; their share vanishes with the width"
        )
    tensor = given.tensor
    for k, dim in enumerate(like.dims):
        if any(atom.kind == "batch" for atom in dim) and tensor.shape[k] > 1:
            tensor = tensor.select(k, 0).unsqueeze(k)  # one and the same for every sample
    dims, positions = [], []
    for size, dim in zip(tensor.shape, like.dims, strict=True):
        kinds = {atom.kind for atom in dim}
        if kinds == {"batch"} or kinds == {"channel"}:
            dims.append(dim)
        else:
            positions.append(size)
            dims.append((Atom("position", size),))
    return Value(random_table(reader, node, Parameter(given.name, tensor), positions), tuple(dims))
