"""Pooling, means over positions, resizing, padding, rolling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from foretrain.compare.infinite_width.operations.shared import as_images, attempted, each, image_axes
from foretrain.compare.infinite_width.reader import (
    Atom,
    Reader,
    Value,
    operation_name,
    rule,
)
from foretrain.theory.layers import windows
from foretrain.theory.layers.positions import Weights

Node = torch.fx.Node


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _average_pool(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    names = ("input", "kernel", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
    given = {**dict(zip(names, args)), **kwargs}
    axes = int(operation_name(node.target)[-2])
    value = as_images(reader, node, reader.as_value(node, given["input"], 1), axes)
    kernel = each(given["kernel"], axes)
    divisor = given.get("divisor_override")
    signal = value.signal.average_pool(
        kernel,
        stride=each(given.get("stride") or kernel, axes),
        padding=each(given.get("padding", 0), axes),
        ceil_mode=given.get("ceil_mode", False),
        count_include_pad=given.get("count_include_pad", True),
    )
    if divisor is not None:
        plain = [
            windows.average(n, k, stride=s, padding=p, ceil_mode=given.get("ceil_mode", False), divisor=1)
            for n, k, s, p in zip(
                value.signal.positions,
                kernel,
                each(given.get("stride") or kernel, axes),
                each(given.get("padding", 0), axes),
                strict=True,
            )
        ]
        signal = (1 / divisor) * value.signal.over_positions(plain)
    return Value(signal, image_axes(reader.batch, value.shape[1], signal.positions))


@rule("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def _adaptive_pool(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    axes = int(operation_name(node.target)[-2])
    value = as_images(reader, node, reader.as_value(node, args[0], 1), axes)
    maps = [
        windows.adaptive_average(n, n if out is None else out)
        for n, out in zip(value.signal.positions, each(args[1], axes), strict=True)
    ]
    signal = value.signal.over_positions(maps)
    return Value(signal, image_axes(reader.batch, value.shape[1], signal.positions))


@rule("max_pool1d", "max_pool2d", "max_pool3d")
def _max_pool(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    names = ("input", "kernel", "stride", "padding", "dilation", "ceil_mode")
    given = {**dict(zip(names, args)), **kwargs}
    axes = int(operation_name(node.target)[-2])
    value = as_images(reader, node, reader.as_value(node, given["input"], 1), axes)
    padding, dilation = each(given.get("padding", 0), axes), each(given.get("dilation", 1), axes)
    kernel = each(given["kernel"], axes)
    stride = each(given.get("stride") or kernel, axes)
    ceil = given.get("ceil_mode", False)
    signal = attempted(
        reader,
        node,
        lambda: value.signal.max_pool(
            kernel, stride=stride, padding=padding, dilation=dilation, ceil_mode=ceil
        ),
    )
    return Value(signal, image_axes(reader.batch, value.shape[1], signal.positions))


@rule("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def _adaptive_max_pool(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    axes = int(operation_name(node.target)[-2])
    value = as_images(reader, node, reader.as_value(node, args[0], 1), axes)
    found = [
        windows.adaptive_maxima(n, out or n) for n, out in zip(value.signal.positions, each(args[1], axes))
    ]
    signal = attempted(reader, node, lambda: value.signal.maxima(found))
    return [Value(signal, image_axes(reader.batch, value.shape[1], signal.positions)), None]


@rule("mean", "sum")
def _reduced(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    value = args[0]
    axes = args[1] if len(args) > 1 else kwargs.get("dim")
    keep = args[2] if len(args) > 2 else kwargs.get("keepdim", False)
    if not axes or not isinstance(value, Value):
        raise reader.refusal(node, "a mean or sum over all axes, the batch included")
    chosen = {axis % len(value.dims) for axis in ([axes] if isinstance(axes, int) else axes)}
    if any(atom.kind != "position" for k in chosen for atom in value.dims[k]):
        raise reader.refusal(node, "a mean or sum over channels or over the batch has no rule")
    here = [axis for k in sorted(chosen) for axis in value.positions_in(k)]
    take = value.signal.mean if operation_name(node.target) == "mean" else value.signal.sum
    dims = tuple(() if k in chosen else dim for k, dim in enumerate(value.dims) if keep or k not in chosen)
    return Value(take(here), dims)


@rule(
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "_upsample_bilinear2d_aa",
    "upsample_bicubic2d",
    "upsample_trilinear3d",
    "_upsample_nearest_exact2d",
)
def _resized(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    value = reader.as_value(node, args[0], 1)
    maps: list[Weights] = []
    target: Any = node.target
    for axis, size in enumerate(value.signal.positions):
        # One axis at a time: unit vectors along it, constant along the others.
        done = target(_unit_fields(size, axis, value.signal.positions), *args[1:], **kwargs)
        column = done.movedim(axis + 2, -1).reshape(size, -1, done.shape[axis + 2])[:, 0]
        maps.append(Weights.of(column.T.numpy()))
    signal = value.signal.over_positions(maps, name="resize")
    return Value(signal, image_axes(reader.batch, value.shape[1], signal.positions))


def _unit_fields(size: int, axis: int, positions: Sequence[int]) -> Tensor:
    """(size, 1, positions...): for each position along an axis, 1 there and at all positions of the other axes."""
    shape = [size if k == axis else 1 for k in range(len(positions))]
    return (
        torch.eye(size, dtype=torch.float64).reshape(size, 1, *shape).expand(size, 1, *positions).contiguous()
    )


@rule("pad")
def _padded(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    value, amounts, mode, fill = (*args, "constant", None)[:4] if len(args) < 4 else args[:4]
    if mode == "constant" and fill not in (None, 0, 0.0):
        raise reader.refusal(node, f"padding with {fill}")
    value = reader.as_value(node, value, 1)
    axes: list[Weights | None] = [None] * len(value.signal.positions)
    dims = list(value.dims)
    for number in range(len(amounts) // 2):
        axis = len(dims) - 1 - number
        before, after = amounts[2 * number], amounts[2 * number + 1]
        if before == after == 0:
            continue
        if [atom.kind for atom in dims[axis]] != ["position"]:
            raise reader.refusal(node, "padding of channels or of the batch")
        (place,) = value.positions_in(axis)
        size = value.signal.positions[place]
        taps = windows.convolution(
            size, 1, padding=(before, after), mode="zeros" if mode == "constant" else mode
        )
        axes[place] = windows.chosen(size, taps.source[0])
        dims[axis] = (Atom("position", taps.source.shape[1]),)
    return Value(value.signal.over_positions(axes, name="padding"), tuple(dims))


@rule("roll", "flip")
def _rolled(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    value, target = args[0], node.target
    maps: list[Weights | None] = [None] * len(value.signal.positions)
    is_roll = operation_name(target) == "roll"
    dims = args[2] if is_roll else args[1]
    for number, dim in enumerate(dims):
        axis = dim % len(value.dims)
        if [atom.kind for atom in value.dims[axis]] != ["position"]:
            raise reader.refusal(node, "a roll or flip of channels or of the batch")
        (place,) = value.positions_in(axis)
        order = torch.arange(value.shape[axis])
        moved = torch.roll(order, args[1][number]) if is_roll else order.flip(0)
        maps[place] = windows.chosen(len(order), moved.numpy())
    return Value(value.signal.over_positions(maps, name=operation_name(target)), value.dims)
