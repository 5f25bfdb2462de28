"""Pooling, means over positions, resizing, padding, rolling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foretrain.compare.infinite_width.graph import NoKernelError, operation_name
from foretrain.compare.infinite_width.operations.arithmetic import larger
from foretrain.compare.infinite_width.operations.shared import (
    along,
    as_images,
    each,
    mapped_images,
    one_axis,
    with_positions,
)
from foretrain.compare.infinite_width.reader import Node, Reader, Value, rule
from foretrain.support.errors import NotSupportedError
from foretrain.theory.layers import windows
from foretrain.theory.layers.positions import Indices, Weights


def _axes(node: Node) -> int:
    """How many axes an operation of images has, such as 2 for avg_pool2d."""
    return next(int(letter) for letter in operation_name(node.target) if letter.isdigit())


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _average_pool(reader: Reader, node: Node, args: list[Any]) -> Any:
    given, kernel, stride, padding, ceil_mode, include, divisor = (*args, None)[:7]
    value = as_images(reader, node, given, axes := _axes(node))
    settings = (each(one, axes) for one in (kernel, stride or kernel, padding))
    divisors = [divisor] + [divisor and 1] * (axes - 1)
    maps = [
        windows.average(n, k, stride=s, padding=p, ceil_mode=ceil_mode, count_include_pad=include, divisor=d)
        for n, k, s, p, d in zip(value.shape[2:], *settings, divisors, strict=True)
    ]
    return mapped_images(value, maps)


@rule("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def _adaptive_pool(reader: Reader, node: Node, args: list[Any]) -> Any:
    value = as_images(reader, node, args[0], axes := _axes(node))
    sizes = zip(value.shape[2:], each(args[1], axes), strict=True)
    return mapped_images(value, [windows.adaptive_average(n, n if out is None else out) for n, out in sizes])


@rule("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices")
def _max_pool(reader: Reader, node: Node, args: list[Any]) -> Any:
    given, kernel, stride, padding, dilation, ceil_mode = args
    value = as_images(reader, node, given, axes := _axes(node))
    settings = (each(one, axes) for one in (kernel, stride or kernel, padding, dilation))
    sizes = zip(value.shape[2:], *settings, strict=True)
    pooled = _maxima(value, [windows.maxima(n, k, s, p, d, ceil_mode) for n, k, s, p, d in sizes])
    return [pooled, None] if operation_name(node.target).endswith("indices") else pooled


@rule("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def _adaptive_max_pool(reader: Reader, node: Node, args: list[Any]) -> Any:
    value = as_images(reader, node, args[0], axes := _axes(node))
    sizes = zip(value.shape[2:], each(args[1], axes), strict=True)
    return [_maxima(value, [windows.adaptive_maxima(n, n if out is None else out) for n, out in sizes]), None]


def _maxima(value: Value, found: list[Indices]) -> Value:
    """Maxima over windows along the last axes of positions."""
    before = [np.arange(n)[None] for n in value.signal.positions[: -len(found)]]
    return with_positions(value, value.signal.maxima([*before, *found]), len(found))


@rule("mean", "sum", "amax", "max")
def _reduced(reader: Reader, node: Node, args: list[Any]) -> Any:
    value, axes, keep = (*args, None, False)[:3]
    name = operation_name(node.target)
    if name == "max" and len(args) == 2:
        return larger(reader, node, args)
    if axes is None or axes == []:
        raise NoKernelError(f"{name} over all axes, the batch included")
    axes = [axis % len(value.dims) for axis in ([axes] if isinstance(axes, int) else axes)]
    if name == "mean" and [value.kinds(k) for k in axes] == [["channel"]]:
        raise NotSupportedError(
            "a mean over channels has no rule but in x / sqrt(mean square + epsilon), as norms are"
        )
    kinds = {kind for k in axes for kind in value.kinds(k)}
    if "batch" in kinds:
        raise NoKernelError(f"{name} over the batch couples its samples")
    if kinds - {"position"}:
        raise NotSupportedError(f"{name} over channels has no rule")
    result = over_positions(value, axes, name, keep)
    return [result, None] if name == "max" else result


def over_positions(value: Value, axes: list[int], name: str, keep: bool) -> Value:
    """The mean, sum or maximum over some axes of positions, which stay with size 1 or go."""
    for axis in axes:
        value = one_axis(value, axis)
    here = [value.positions_in(axis)[0] for axis in axes]
    if name in ("mean", "sum"):
        signal = (value.signal.mean if name == "mean" else value.signal.sum)(here)
    else:
        sizes = enumerate(value.signal.positions)
        signal = value.signal.maxima(
            [np.arange(n)[:, None] if k in here else np.arange(n)[None] for k, n in sizes]
        )
        for k in sorted(here, reverse=True):
            signal = signal.take(k, 0)
    dims = tuple(() if k in axes else dim for k, dim in enumerate(value.dims) if keep or k not in axes)
    return Value(signal, dims)


@rule("cumsum")
def _running_sum(reader: Reader, node: Node, args: list[Any]) -> Any:
    value, axis = args[0], args[1] % len(args[0].dims)
    return along(value, axis, Weights.of(np.tri(value.shape[axis])), "running sum")


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
def _resized(reader: Reader, node: Node, args: list[Any]) -> Any:
    value = as_images(reader, node, args[0], node.meta["val"].ndim - 2)
    maps: list[Weights] = []
    target: Any = node.target
    for axis, size in enumerate(value.shape[2:]):
        # One axis at a time: unit vectors along it, constant along the others.
        done = target(_unit_fields(size, axis, value.shape[2:]), *args[1:])
        column = done.movedim(axis + 2, -1).reshape(size, -1, done.shape[axis + 2])[:, 0]
        maps.append(Weights.of(column.T.numpy()))
    return mapped_images(value, maps, "resize")


def _unit_fields(size: int, axis: int, positions: Sequence[int]) -> Tensor:
    """(size, 1, positions...): for each position along an axis, 1 there and at all positions of the other axes."""
    shape = [size if k == axis else 1 for k in range(len(positions))]
    return (
        torch.eye(size, dtype=torch.float64).reshape(size, 1, *shape).expand(size, 1, *positions).contiguous()
    )


@rule("pad", "constant_pad_nd")
def _padded(reader: Reader, node: Node, args: list[Any]) -> Any:
    value, amounts, mode, fill = args if len(args) == 4 else (*args[:2], "constant", args[2])
    if mode == "constant" and fill:
        raise NotSupportedError(f"padding with {fill}")
    for number in range(len(amounts) // 2):
        axis, sides = len(value.dims) - 1 - number, (amounts[2 * number], amounts[2 * number + 1])
        if any(sides):
            kind = "zeros" if mode == "constant" else mode
            taps = windows.convolution(value.shape[axis], 1, padding=sides, mode=kind)
            value = along(value, axis, windows.chosen(value.shape[axis], taps.source[0]), "padding")
    return value


@rule("roll", "flip")
def _rolled(reader: Reader, node: Node, args: list[Any]) -> Any:
    value, name = args[0], operation_name(node.target)
    for number, dim in enumerate(args[-1]):
        axis = dim % len(value.dims)
        order = torch.arange(value.shape[axis])
        moved = order.roll(args[1][number]) if name == "roll" else order.flip(0)
        value = along(value, axis, windows.chosen(len(order), moved.numpy()), name)
    return value
