"""Sums and products of signals, and of signals with constants: biases, tables, gains."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foretrain.compare.infinite_width.laws import Row
from foretrain.compare.infinite_width.operations.shared import attempted, equal_value, one_axis, random_table
from foretrain.compare.infinite_width.reader import (
    Atom,
    Parameter,
    Reader,
    Value,
    operation_name,
    rule,
)
from foretrain.theory.layers import table
from foretrain.theory.layers.positions import Weights

Node = torch.fx.Node


@rule("add", "sub", "rsub")
def _sum(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    first, second = args[0], args[1]
    alpha = float(kwargs.get("alpha", args[2] if len(args) > 2 else 1))
    signs = {"add": (1.0, alpha), "sub": (1.0, -alpha), "rsub": (-alpha, 1.0)}[operation_name(node.target)]
    if isinstance(second, Value) and not isinstance(first, Value):
        first, second, signs = second, first, signs[::-1]
    if not isinstance(first, Value):
        raise reader.refusal(node, "a sum of inputs and parameters before the first layer")
    scaled = first if signs[0] == 1 else Value(signs[0] * first.signal, first.dims)
    if isinstance(second, int | float):
        return Value(scaled.signal + signs[1] * second, scaled.dims)
    if isinstance(second, Tensor | Parameter):
        return _plus_constant(reader, node, scaled, second, signs[1])
    other = _as_signal(reader, node, second)
    one, two = _broadcast(reader, node, scaled, other)
    term = two.signal if signs[1] == 1 else signs[1] * two.signal
    return Value(attempted(reader, node, lambda: one.signal + term), one.dims)


@rule("mul", "div")
def _product(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    first, second = args[0], args[1]
    if operation_name(node.target) == "div":
        if isinstance(second, Tensor) and second.numel() == 1:
            second = float(second)
        if not isinstance(second, int | float) or not isinstance(first, Value):
            raise reader.refusal(node, "a division by a computed tensor")
        return Value((1 / second) * first.signal, first.dims)
    if isinstance(second, Value) and not isinstance(first, Value):
        first, second = second, first
    if isinstance(second, Tensor) and second.numel() == 1:
        second = float(second)
    if isinstance(second, int | float):
        return Value(float(second) * first.signal, first.dims)
    if isinstance(second, Tensor | Parameter):
        return _times_constant(reader, node, first, second)
    one, two = _broadcast(reader, node, first, _as_signal(reader, node, second))
    return Value(attempted(reader, node, lambda: one.signal * two.signal), one.dims)


@rule("neg")
def _negative(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return Value(-1.0 * args[0].signal, args[0].dims)


def _as_signal(reader: Reader, node: Node, given: Any) -> Value:
    if isinstance(given, Value):
        return given
    raise reader.refusal(
        node, "raw inputs are added to or multiplied with features; their share vanishes with the width"
    )


def _broadcast(reader: Reader, node: Node, first: Value, second: Value) -> tuple[Value, Value]:
    """Both with the same axes."""
    count = max(len(first.dims), len(second.dims))
    one, two = (
        Value(value.signal, ((),) * (count - len(value.dims)) + value.dims) for value in (first, second)
    )
    for axis in range(count):
        kinds = [{atom.kind for atom in value.dims[axis] if atom.size > 1} for value in (one, two)]
        if any("channel" in kind for kind in kinds) and any("channel" not in kind for kind in kinds):
            raise reader.refusal(node, "a tensor without channels meets one with channels")
        if kinds[0] | kinds[1] <= {"position"} and _holds_positions(one, axis) | _holds_positions(two, axis):
            one, two = one_axis(one, axis), one_axis(two, axis)
        elif kinds[0] and kinds[1] and one.dims[axis] != two.dims[axis]:
            raise reader.refusal(
                node, "two tensors meet whose axes mean different things (channels and positions)"
            )
    positions = np.broadcast_shapes(one.signal.positions, two.signal.positions)
    dims = tuple(
        max(a, b, key=lambda dim: math.prod(atom.size for atom in dim)) for a, b in zip(one.dims, two.dims)
    )
    dims = tuple(
        a if a and not b else b if b and not a else dim for a, b, dim in zip(one.dims, two.dims, dims)
    )
    return tuple(Value(value.signal.broadcast(positions), dims) for value in (one, two))  # type: ignore[return-value]


def _holds_positions(value: Value, axis: int) -> bool:
    return any(atom.kind == "position" for atom in value.dims[axis])


def _plus_constant(
    reader: Reader, node: Node, value: Value, constant: Tensor | Parameter, sign: float
) -> Value:
    """A bias, a positional table, or a fixed table."""
    tensor = constant.tensor if isinstance(constant, Parameter) else constant
    if tensor.numel() == 1 and not isinstance(constant, Parameter):
        return Value(value.signal + sign * float(tensor), value.dims)
    if isinstance(constant, Tensor) and len(torch.unique(tensor)) == 1:
        return Value(value.signal + sign * float(tensor.flatten()[0]), value.dims)
    other = constant_field(reader, node, constant, value, sign)
    one, two = _broadcast(reader, node, value, other)
    return Value(one.signal + two.signal, one.dims)


def constant_field(
    reader: Reader, node: Node, constant: Tensor | Parameter, beside: Value, sign: float = 1.0
) -> Value:
    """A tensor that all inputs have in common, as a field with the axes of the value it meets."""
    tensor = constant.tensor if isinstance(constant, Parameter) else constant
    shape = (1,) * (len(beside.dims) - tensor.ndim) + tuple(tensor.shape)
    dims: list[tuple[Atom, ...]] = []
    channel = None
    for k, (size, dim) in enumerate(zip(shape, beside.dims, strict=True)):
        if size > 1 and any(atom.kind == "batch" for atom in dim):
            raise reader.refusal(node, "a constant differs between the samples of a batch")
        if any(atom.kind == "channel" for atom in dim):
            channel = k
            dims.append((Atom("channel", size),))
        elif size == 1:
            dims.append(())
        else:
            dims.append((Atom("position", size),))
    if channel is None or shape[channel] == 1:
        raise reader.refusal(node, "a tensor that is the same in all channels is added to features")
    positions = [size for k, size in enumerate(shape) if k != channel and size > 1]
    if isinstance(constant, Parameter):
        return Value(random_table(reader, node, constant, positions), tuple(dims))
    values = sign * tensor.reshape(shape).movedim(channel, -1).double().numpy().reshape(
        *positions, shape[channel]
    )
    return Value(table(positions, values=values), tuple(dims))


def _times_constant(reader: Reader, node: Node, value: Value, constant: Tensor | Parameter) -> Value:
    """A gain of each channel, or weights of positions."""
    tensor = constant.tensor if isinstance(constant, Parameter) else constant
    shape = (1,) * (len(value.dims) - tensor.ndim) + tuple(tensor.shape)
    over = [k for k, size in enumerate(shape) if size > 1]
    kinds = {atom.kind for k in over for atom in value.dims[k]}
    if len(torch.unique(tensor)) == 1 or kinds == {"channel"}:
        weight = equal_value(reader, node, constant, "gains")
        if not isinstance(constant, Parameter):
            return Value(weight * value.signal, value.dims)
        if tensor.numel() == 1 and reader.trains(constant) and reader.hyperparameters.rates != "ntk":
            raise reader.refusal(node, "a factor that all channels share and train has no limit (freeze it)")
        reader.use(node, constant)
        hyper = reader.hyperparameters
        rate, _ = hyper.learning_rates(constant.name, 1.0, 0.0, 0.0, (reader.trains(constant), False))
        hyper.rows.append(Row(constant.name, "gains", 1, 0.0, 0.0, rate, 0.0, "constants of the module"))
        return Value(value.signal.trained(weight, gain=rate), value.dims)
    if kinds == {"position"} and len(over) == 1 and isinstance(constant, Tensor):
        axes: list[Weights | None] = [None] * len(value.signal.positions)
        (place,) = value.positions_in(over[0])
        axes[place] = Weights.of(np.diag(tensor.double().flatten().numpy()))
        return Value(value.signal.over_positions(axes, name="weights of positions"), value.dims)
    raise reader.refusal(node, "a product with a tensor that differs over channels or several axes")
