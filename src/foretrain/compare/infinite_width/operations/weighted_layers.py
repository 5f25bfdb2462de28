"""Layers with weights: linear, convolutions, transposed ones, embeddings."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from foretrain.compare.infinite_width.graph import module_of
from foretrain.compare.infinite_width.laws import Law, Row, bias_law, weight_law
from foretrain.compare.infinite_width.operations.shared import as_images, each, image_axes
from foretrain.compare.infinite_width.reader import (
    Atom,
    Parameter,
    Reader,
    Value,
    rule,
)
from foretrain.theory.layers import table, tokens, windows
from foretrain.theory.layers.positions import AxisMap

Node = torch.fx.Node


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
    module, hyper = module_of(node), reader.hyperparameters
    own = weight_law(weight.tensor, fan_in, fan_out, matrix, reader.wide.draws(weight))
    C_W, C_b = hyper.constants(
        module, own, bias_law(None if bias is None else reader.wide.draws(bias), fan_in, wide)
    )
    rates = hyper.learning_rates(module, fan_in, C_W.C, C_b.C, (reader.trains(weight), reader.trains(bias)))
    if bias is None:
        C_b, rates = Law(0.0, "none"), (rates[0], 0.0)
    known = f"weight: {C_W.how}" + ("" if bias is None else f"; bias: {C_b.how}")
    if not wide and "uniform" in C_W.how:
        known += f"; uniform weights are Gaussian at no width here, which changes results by about 1/{fan_in}"
    hyper.rows.append(Row(module, taken_for, fan_in, C_W.C, C_b.C, *rates, known))
    return {"C_W": C_W.C, "C_b": C_b.C, "lambda_W": rates[0], "lambda_b": rates[1]}


@rule("linear")
def _linear(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    given, weight, bias = (*args, None)[:3]
    return linear(reader, node, given, weight, bias)


def linear(reader: Reader, node: Node, given: Any, weight: Any, bias: Any) -> Value:
    """A linear layer over the last axis: channels, or channels and positions of a head that flattens."""
    if not isinstance(weight, Parameter):
        raise reader.refusal(node, "a linear map whose weights are no parameter")
    first = not isinstance(given, Value)
    value = reader.as_value(node, given, -1)
    last = value.dims[-1]
    if sum(atom.kind == "channel" for atom in last) != 1 or any(atom.kind == "batch" for atom in last):
        raise reader.refusal(
            node,
            "a linear map mixes positions with the same weights for all channels, which has no deterministic limit "
            "for a fixed number of positions"
            if all(atom.kind == "position" for atom in last)
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
        wide=not first and reader.wide(weight.name, 1) is not False,
    )
    axes: list[AxisMap | None] = [None] * len(value.signal.positions)
    for axis in here:
        axes[axis] = windows.flattened(value.signal.positions[axis])
    signal = value.signal.mapped(axes, removed=here, name=module_of(node) or "linear", **law)
    return Value(signal, (*value.dims[:-1], (Atom("channel", out),)))


@rule("matmul", "mm")
def _matmul(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    given, weight = args
    if not isinstance(weight, Parameter) or weight.tensor.ndim != 2:
        raise reader.refusal(
            node, "a product of two computed tensors (attention and the like) has no rule here"
        )
    return linear(reader, node, given, Parameter(weight.name, weight.tensor.T), None)


@rule("addmm")
def _addmm(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    bias, given, weight = args
    return linear(reader, node, given, Parameter(weight.name, weight.tensor.T), bias)


@rule("conv1d", "conv2d", "conv3d")
def _convolution(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    given = {**dict(zip(names, args)), **kwargs}
    weight = given["weight"]
    first = not isinstance(given["input"], Value)
    axes = weight.tensor.ndim - 2
    value = as_images(reader, node, reader.as_value(node, given["input"], 1), axes)
    kernel = list(weight.tensor.shape[2:])
    stride, dilation = (each(given.get(name, 1), axes) for name in ("stride", "dilation"))
    pads = _paddings(given.get("padding", 0), kernel, dilation)
    groups, out, channels = given.get("groups", 1), weight.tensor.shape[0], weight.tensor.shape[1]
    narrow = groups > 1 and (channels == 1 or reader.wide(weight.name, 1) is False) and not first
    fan_in = channels * math.prod(kernel)
    law = _law(
        reader,
        node,
        ("depthwise convolution" if channels == 1 else f"convolution, groups of {channels} channels")
        if narrow
        else "convolution" + (f", {groups} groups" if groups > 1 else ""),
        weight,
        given.get("bias"),
        fan_in=fan_in,
        fan_out=out // groups * math.prod(kernel),
        matrix=(out, fan_in),
        wide=not first and not narrow and reader.wide(weight.name, 1) is not False,
    )
    taps = [
        windows.convolution(n, k, stride=s, padding=p, dilation=d)
        for n, k, s, p, d in zip(value.signal.positions, kernel, stride, pads, dilation, strict=True)
    ]
    signal = value.signal.mapped(
        taps, group=(channels, out // groups) if narrow else None, name=module_of(node) or "convolution", **law
    )
    return Value(signal, image_axes(reader.batch, out, signal.positions))


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _transposed(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    names = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
    given = {**dict(zip(names, args)), **kwargs}
    weight = given["weight"]
    first = not isinstance(given["input"], Value)
    axes = weight.tensor.ndim - 2
    value = as_images(reader, node, reader.as_value(node, given["input"], 1), axes)
    kernel = list(weight.tensor.shape[2:])
    groups = given.get("groups", 1)
    channels, out = weight.tensor.shape[0] // groups, weight.tensor.shape[1] * groups
    fan_in = channels * math.prod(kernel)
    law = _law(
        reader,
        node,
        "transposed convolution",
        weight,
        given.get("bias"),
        fan_in=fan_in,
        fan_out=weight.tensor.shape[1] * math.prod(kernel),
        matrix=None,
        wide=not first and reader.wide(weight.name, 0) is not False,
    )
    settings = [each(given.get(name, default), axes) for name, default in zip(names[3:6], (1, 0, 0))]
    dilation = each(given.get("dilation", 1), axes)
    taps = [
        windows.transposed_convolution(n, k, stride=s, padding=p, output_padding=o, dilation=d)
        for n, k, s, p, o, d in zip(value.signal.positions, kernel, *settings, dilation, strict=True)
    ]
    signal = value.signal.mapped(taps, name=module_of(node) or "transposed convolution", **law)
    return Value(signal, image_axes(reader.batch, out, signal.positions))


@rule("embedding")
def _embedding(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    weight, indices, padding = (*args, -1)[:3]
    if not isinstance(weight, Parameter):
        raise reader.refusal(node, "an embedding whose table is no parameter")
    module, hyper = module_of(node), reader.hyperparameters
    rows = (
        weight.tensor if padding < 0 else torch.cat([weight.tensor[:padding], weight.tensor[padding + 1 :]])
    )
    own = weight_law(rows, 1, 1)
    C_W, _ = hyper.constants(module, own, Law(0.0, "none"))
    reader.use(node, weight)
    rate, _ = hyper.learning_rates(module, 1, C_W.C, 0.0, (reader.trains(weight), False))
    hyper.rows.append(Row(module, "embedding", 1, C_W.C, 0.0, rate, 0.0, f"table: {C_W.how}"))
    channel = Atom("channel", weight.tensor.shape[1])
    if isinstance(indices, Tensor):  # the same rows for all inputs, such as numbered positions
        if len(torch.unique(indices)) != indices.numel():
            raise reader.refusal(
                node, "an embedding looks up the same row at several positions of all inputs"
            )
        signal = table(tuple(indices.shape), variance=C_W.C, rate=rate)
        return Value(signal, (*((Atom("position", n),) for n in indices.shape), (channel,)))
    known = reader.as_value(node, indices, None)
    values = reader.data.pop(known.signal.field)
    signal = tokens(
        known.signal.positions, variance=C_W.C, rate=rate, padding=padding if padding >= 0 else None
    )
    reader.data[signal.field] = values
    return Value(signal, (*known.dims, (channel,)))


def _paddings(padding: Any, kernel: list[int], dilation: list[int]) -> list[tuple[int, int]]:
    if padding == "valid":
        return [(0, 0)] * len(kernel)
    if padding == "same":
        totals = [d * (k - 1) for k, d in zip(kernel, dilation)]
        return [(one // 2, one - one // 2) for one in totals]
    return [(p, p) for p in each(padding, len(kernel))]
