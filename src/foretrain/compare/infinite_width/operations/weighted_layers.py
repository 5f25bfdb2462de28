"""Layers with weights: linear, convolutions, transposed ones, embeddings; products with fixed matrices."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from foretrain.compare.infinite_width.graph import module_of, operation_name
from foretrain.compare.infinite_width.laws import bias_law, weight_law
from foretrain.compare.infinite_width.operations.position_maps import over_positions
from foretrain.compare.infinite_width.operations.shared import (
    TOKEN_MIXING,
    along,
    as_images,
    each,
    narrow,
    row_name,
    with_positions,
)
from foretrain.compare.infinite_width.reader import (
    Atom,
    Dims,
    Node,
    Parameter,
    Reader,
    Value,
    permuted,
    rule,
    seen_as,
)
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory.layers import Signal, concatenated, tokens, windows
from foretrain.theory.layers.positions import AxisMap, Weights


def _law(
    reader: Reader,
    node: Node,
    taken_for: str,
    weight: Parameter,
    bias: Parameter | None,
    *,
    fan_in: int,
    fan_out: int,
    matrix: tuple[int, int] | None,
    wide: bool,
) -> dict[str, Any]:
    """C_W, C_b and the rates of a layer, and its line in the reading."""
    reader.use(node, weight)
    reader.use(node, bias)
    own = weight_law(weight.tensor, fan_in, fan_out, matrix, reader.wide.draws(weight))
    shift = None if bias is None else bias_law(reader.wide.draws(bias), fan_in, wide)
    note = f"; uniform weights are Gaussian at no width here, which changes results by about 1/{fan_in}"
    if reader.streams > 1:
        taken_for += f", of {reader.streams} inputs"
    law = reader.hyperparameters.read(
        row_name(node, weight),
        taken_for,
        fan_in,
        own,
        shift,
        (reader.trains(weight), reader.trains(bias)),
        note if not wide and "uniform" in own.how else "",
    )
    reader.learns(weight, law["lambda_W"], fan_in)
    reader.learns(bias, law["lambda_b"])
    return law


@rule("linear")
def _linear(reader: Reader, node: Node, args: list[Any]) -> Any:
    return linear(reader, node, *args)


def linear(reader: Reader, node: Node, given: Any, weight: Any, bias: Any) -> Value:
    """A linear layer over the last axis: channels, or channels and positions of a head that flattens."""
    if not isinstance(weight, Parameter):
        raise NotSupportedError("a linear map whose weights are no parameter")
    first = not isinstance(given, Value)
    value = narrow(reader.as_value(node, given, -1))
    kinds = value.kinds(-1)
    if kinds.count("channel") != 1 or "batch" in kinds:
        raise NotSupportedError(
            TOKEN_MIXING
            if set(kinds) == {"position"}
            else "a linear map reads an axis that is not made of channels and positions",
        )
    out, fan_in = weight.tensor.shape
    here = value.positions_in(len(value.dims) - 1)
    law = _law(
        reader,
        node,
        "flatten and linear" if any(value.signal.positions[k] > 1 for k in here) else "linear",
        weight,
        bias,
        fan_in=fan_in,
        fan_out=out,
        matrix=(out, fan_in),
        wide=not first and reader.wide(weight, 1) is not False,
    )
    axes: list[AxisMap | None] = [None] * len(value.signal.positions)
    for axis in here:
        axes[axis] = windows.flattened(value.signal.positions[axis])
    signal = value.signal.mapped(axes, removed=here, name=module_of(node) or "linear", **law)
    return Value(signal, (*value.dims[:-1], (reader.wide.channels(weight, 0, out),)))


@rule("addmm")
def _addmm(reader: Reader, node: Node, args: list[Any]) -> Any:
    bias, given, weight = args[:3]
    return linear(reader, node, given, Parameter(weight.name, weight.tensor.T), bias)


@rule("matmul", "mm", "bmm")
def _matmul(reader: Reader, node: Node, args: list[Any]) -> Any:
    first, second = args
    if isinstance(second, Parameter) and second.tensor.ndim == 2:
        return linear(reader, node, first, Parameter(second.name, second.tensor.T), None)
    value, matrix, axis = (first, second, -1) if isinstance(first, Value) else (second, first, -2)
    if not isinstance(matrix, Tensor) or matrix.numel() > matrix.shape[-1] * matrix.shape[-2]:
        raise NotSupportedError("a product of two computed tensors (attention and the like) has no rule here")
    matrix = matrix.reshape(matrix.shape[-2:])
    return _weighted(value, axis % len(value.dims), matrix.T if axis == -1 else matrix)


def _weighted(value: Value, axis: int, matrix: Tensor) -> Value:
    """A fixed matrix (new, old positions) along an axis."""
    return along(value, axis, Weights.of(matrix.double().cpu().numpy()), "matrix of positions")


@rule("einsum")
def _einsum(reader: Reader, node: Node, args: list[Any]) -> Any:
    """A permutation of axes, a linear map, or a fixed matrix along an axis of positions."""
    terms, _, result = args[0].replace(" ", "").partition("->")
    both = sorted(zip(terms.split(","), args[1]), key=lambda one: isinstance(one[1], Parameter | Tensor))
    (own, given), (other, weight) = (*both, ("", None))[:2]
    kept, gone = [c for c in own if c in result], [c for c in own if c not in result]
    new = [c for c in other if c not in own]
    fits = set(result) == {*kept, *new} and set(other) == {*gone, *new} and len(new) < 2
    if "." in terms or len(both) > 2 or not fits or (weight is None) != (not gone):
        raise NotSupportedError(f"einsum {args[0]!r} is neither a linear map nor a permutation of axes")
    if weight is None:
        return permuted(given, [own.index(c) for c in result])
    fixed = not isinstance(weight, Parameter)
    matrix = (weight if fixed else weight.tensor).permute([other.index(c) for c in (*new, *gone)]).flatten(1)
    if fixed:
        axis = own.index(gone[0])
        made, letters = _weighted(given, axis, matrix), [*own[:axis], *new, *own[axis + 1 :]]
    else:
        value = permuted(
            reader.as_value(node, given, own.index(gone[0])), [own.index(c) for c in (*kept, *gone)]
        )
        flat = seen_as(value, (*value.shape[: len(kept)], matrix.shape[1]))
        made, letters = linear(reader, node, flat, Parameter(weight.name, matrix), None), [*kept, *new]
    return permuted(made, [letters.index(c) for c in result])


@rule("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _convolution(reader: Reader, node: Node, args: list[Any]) -> Any:
    transposed = "transpose" in operation_name(node.target)
    given, weight, bias, stride, padding, *rest = args
    more, groups, dilation = rest if transposed else (0, rest[1], rest[0])
    if not isinstance(weight, Parameter):
        raise NotSupportedError("a convolution whose weights are no parameter")
    kernel, axes = list(weight.tensor.shape[2:]), weight.tensor.ndim - 2
    channels = weight.tensor.shape[0] // groups if transposed else weight.tensor.shape[1]
    out = weight.tensor.shape[1] * groups if transposed else weight.tensor.shape[0]

    # 1. What it reads: images, or words whose channels are an axis of the kernel.
    first = not isinstance(given, Value)
    for k in range(2, 0 if first or given.dims[1] else axes + 2):
        if given.kinds(k) == ["channel"] and kernel[k - 2] == given.shape[k]:
            order = list(range(axes + 2))
            order[1], order[k], channels, kernel[k - 2] = k, 1, kernel[k - 2], 1
            given = permuted(given, order)
            break
    value = narrow(as_images(reader, node, given, axes))
    flat = value.positions_in(1)  # positions that a view made channels of
    few = groups > 1 and not first and (channels == 1 or reader.wide(weight, 1) is False)
    if few and transposed:
        raise NotSupportedError("a transposed convolution of groups of channels that stay few")

    # 2. Its weights.
    fan_in = channels * math.prod(kernel)
    kind = "transposed convolution" if transposed else "convolution"
    if few:
        kind = "depthwise convolution" if channels == 1 else f"convolution, groups of {channels} channels"
    law = _law(
        reader,
        node,
        kind + (f", {groups} groups" if groups > 1 and not few else ""),
        weight,
        bias,
        fan_in=fan_in,
        fan_out=out // groups * math.prod(kernel),
        matrix=None if transposed else (out, fan_in),
        wide=not first and not few and reader.wide(weight, 0 if transposed else 1) is not False,
    )

    # 3. The map of each axis.
    strides, dilations, extra = (each(one, axes) for one in (stride, dilation, more))
    sizes = zip(value.shape[2:], kernel, strides, dilations, extra, _paddings(padding, kernel, dilations))
    taps = [
        windows.transposed_convolution(n, k, stride=s, padding=p[0], output_padding=o, dilation=d)
        if transposed
        else windows.convolution(n, k, stride=s, padding=p, dilation=d)
        for n, k, s, d, o, p in sizes
    ]
    maps: list[AxisMap | None] = [None] * len(value.positions_in(0))
    maps += [windows.flattened(value.signal.positions[k]) for k in flat]

    group = (channels, out // groups) if few else None

    def made(signal: Signal) -> Signal:
        name = module_of(node) or kind
        return signal.mapped([*maps, *taps], removed=flat, group=group, name=name, **law)

    # 4. Groups of channels with different laws go on apart.
    parts = [value.signal]
    if groups > 1 and first:
        halves = (given.then(lambda one, k=k: one.chunk(groups, 1)[k]) for k in range(groups))
        parts = [as_images(reader, node, half, axes).signal for half in halves]
    elif groups > 1 and len(value.signal.blocks) > 1 and not few:
        parts = [value.signal.channels(k / groups, (k + 1) / groups) for k in range(groups)]
    signal = made(parts[0]) if len(parts) == 1 else concatenated([made(one) for one in parts])
    channel = reader.wide.channels(weight, 1 if transposed and groups == 1 else 0, out)
    return with_positions(Value(signal, (value.dims[0], (channel,), *value.dims[2:])), signal, axes)


@rule("embedding")
def _embedding(reader: Reader, node: Node, args: list[Any]) -> Any:
    weight, indices, padding = args[:3]
    if not isinstance(weight, Parameter):
        raise NotSupportedError("an embedding whose table is no parameter")
    reader.use(node, weight)
    rows = weight.tensor if padding < 0 else weight.tensor[torch.arange(len(weight.tensor)) != padding]
    trained = (reader.trains(weight), False)
    name = row_name(node, weight)
    law = reader.hyperparameters.read(name, "embedding", 1, weight_law(rows, 1, 1), None, trained)
    reader.learns(weight, law["lambda_W"])
    if isinstance(indices, Tensor):  # the same rows for all inputs, such as numbered positions
        dims: Dims = tuple((Atom("position", n),) for n in indices.shape)
        numbers = indices.cpu().numpy()[None].repeat(reader.batch, axis=0)
    else:
        known = reader.as_value(node, indices, None)
        dims, numbers = known.dims, reader.data.pop(known.signal.field)
        if not 0 <= numbers.min() <= numbers.max() < len(weight.tensor):
            raise InputError(
                f"`x` holds tokens outside of 0 to {len(weight.tensor) - 1}, the rows of the table."
            )
    skipped = padding if padding >= 0 else None
    signal = tokens(numbers.shape[1:], variance=law["C_W"], rate=law["lambda_W"], padding=skipped)
    reader.data[signal.field] = numbers
    return Value(signal, (*dims, (reader.wide.channels(weight, 1, weight.tensor.shape[1]),)))


@rule("embedding_bag")
def _embedding_bag(reader: Reader, node: Node, args: list[Any]) -> Any:
    """Sums, means or maxima of the rows of as many tokens for each sample."""
    weight, indices, offsets, _, mode, _, weights, _, padding = args
    bags = len(offsets) * reader.streams if isinstance(offsets, Tensor) else 1
    size = indices.tensor.numel() // bags
    even = isinstance(offsets, Tensor) and torch.equal(offsets, size * torch.arange(len(offsets)).to(offsets))
    if not even or weights is not None or (padding is not None and padding >= 0 and mode == 1):
        raise NotSupportedError("an EmbeddingBag with weights, or with bags of different sizes")
    apart = indices.then(lambda one: one.reshape(bags, size))
    rows = _embedding(reader, node, [weight, apart, -1 if padding is None else padding])
    return [over_positions(rows, [1], ("sum", "mean", "amax")[mode], keep=False)]


def _paddings(padding: Any, kernel: list[int], dilation: list[int]) -> list[tuple[int, int]]:
    if padding == "valid":
        return [(0, 0)] * len(kernel)
    if padding == "same":
        totals = [d * (k - 1) for k, d in zip(kernel, dilation)]
        return [(one // 2, one - one // 2) for one in totals]
    return [(p, p) for p in each(padding, len(kernel))]
