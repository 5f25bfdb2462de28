"""Sums and products of signals, and of signals with constants: biases, tables, gains, masks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foretrain.compare.infinite_width.graph import operation_name
from foretrain.compare.infinite_width.laws import Law
from foretrain.compare.infinite_width.operations.norms import written_norm
from foretrain.compare.infinite_width.operations.shared import along, equal_value, one_axis, random_table
from foretrain.compare.infinite_width.reader import (
    Atom,
    Known,
    Node,
    Parameter,
    Reader,
    Refused,
    Value,
    rule,
)
from foretrain.support.errors import NotSupportedError
from foretrain.theory.layers import table
from foretrain.theory.layers.positions import Weights


@dataclass(frozen=True)
class Nothing(Refused):
    """What is left of something without a rule under gains that are zero and do not train."""


@rule("add", "sub", "rsub", of_refused=True)
def _sum(reader: Reader, node: Node, args: list[Any]) -> Any:
    first, second, alpha = args
    signs = {"add": (1.0, alpha), "sub": (1.0, -alpha), "rsub": (-alpha, 1.0)}[operation_name(node.target)]
    return added(reader, node, first, second, signs)


def added(
    reader: Reader, node: Node, first: Any, second: Any, signs: tuple[float, float] = (1.0, 1.0)
) -> Any:
    """The sum of two signals, or of a signal and something else, with signs or factors."""
    if isinstance(first, Nothing) or isinstance(second, Nothing):
        return second if isinstance(first, Nothing) else first
    for one in (first, second):
        if isinstance(one, Refused):
            raise one.error
    if isinstance(second, Value) and not isinstance(first, Value):
        first, second, signs = second, first, (signs[1], signs[0])
    if not isinstance(first, Value):
        raise NotSupportedError("a sum of inputs and parameters before the first layer")
    scaled = first if signs[0] == 1 else Value(signs[0] * first.signal, first.dims)
    if isinstance(second, Parameter) and second.tensor.numel() == 1:
        second = _shared_number(reader, node, second)
    number = _number(second)
    if number is not None:
        return scaled if number == 0 else Value(scaled.signal + signs[1] * number, scaled.dims)
    one, two = _broadcast(scaled, _as_signal(reader, node, second, scaled))
    return Value(one.signal + (two.signal if signs[1] == 1 else signs[1] * two.signal), one.dims)


@rule("mul", "div", of_refused=True)
def _product(reader: Reader, node: Node, args: list[Any]) -> Any:
    first, second = args[:2]
    if isinstance(second, Refused) and (normed := written_norm(reader, node)) is not None:
        return normed
    if operation_name(node.target) == "div" and not isinstance(second, Refused):
        number = _number(second)
        if number is None and not isinstance(second, Known):
            raise NotSupportedError("a division by a computed tensor")
        second = second.then(torch.reciprocal) if number is None else 1 / number
    return multiplied(reader, node, first, second)


def multiplied(reader: Reader, node: Node, first: Any, second: Any) -> Any:
    """The product of two signals, or of a signal and something else."""
    if not isinstance(first, Value | Refused):
        first, second = second, first
    for one in (first, second):
        if isinstance(one, Refused):
            if isinstance(second, Parameter) and not second.tensor.any() and not _gain(reader, node, second):
                return Nothing(one.error)
            raise one.error
    number = _number(second)
    if number is not None:
        return Value(number * first.signal, first.dims)
    if isinstance(second, Tensor | Parameter):
        return _times_constant(reader, node, first, second)
    one, two = _broadcast(first, _as_signal(reader, node, second, first))
    return Value(one.signal * two.signal, one.dims)


@rule("addcmul", of_refused=True)
def _added_product(reader: Reader, node: Node, args: list[Any]) -> Any:
    start, first, second, factor = args
    product = multiplied(reader, node, first, second)
    return start if isinstance(product, Nothing) else added(reader, node, start, product, (1.0, factor))


@rule("neg")
def _negative(reader: Reader, node: Node, args: list[Any]) -> Any:
    return Value(-1.0 * args[0].signal, args[0].dims)


@rule("maximum", "minimum")
def larger(reader: Reader, node: Node, args: list[Any]) -> Any:
    """max(a, b) = a + relu(b - a), min(a, b) = a - relu(a - b)."""
    sign = 1.0 if operation_name(node.target) == "maximum" else -1.0
    first, second = args if isinstance(args[0], Value) else args[::-1]
    apart = added(reader, node, second, first, (sign, -sign))
    return added(reader, node, first, Value(apart.signal.activation("relu"), apart.dims), (1.0, sign))


@rule("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full")
def _numbers(reader: Reader, node: Node, args: list[Any]) -> Any:
    """A tensor that is one number everywhere, with the shape of another or its kind of numbers."""
    name = operation_name(node.target)
    number = args[2 if name == "new_full" else 1] if "full" in name else float("ones" in name)
    return torch.full((), number, dtype=torch.float64).expand(reader.shape(node))


def _number(given: Any) -> float | None:
    """The number that a constant is everywhere."""
    if isinstance(given, Tensor) and bool((given == given.flatten()[0]).all()):
        return float(given.flatten()[0])
    return float(given) if isinstance(given, int | float) else None


def _as_signal(reader: Reader, node: Node, given: Any, beside: Value) -> Value:
    """What a signal meets, as a signal; inputs that are the same for all channels count as one more field."""
    if isinstance(given, Value):
        return given
    if isinstance(given, Tensor | Parameter):
        return constant_field(reader, node, given, beside)
    channel = next((k for k in range(len(beside.dims)) if "channel" in beside.kinds(k)), -1)
    shape = given.tensor.shape if isinstance(given, Known) else ()
    if len(shape) != len(beside.dims) or shape[channel] != 1:
        raise NotSupportedError(
            "raw inputs are added to or multiplied with features, which outnumber them as the width grows",
        )
    value = reader.as_value(node, given, channel)
    return Value(value.signal, (*value.dims[:channel], (), *value.dims[channel + 1 :]))


def _broadcast(first: Value, second: Value) -> tuple[Value, Value]:
    """Both with the same axes."""
    count = max(len(first.dims), len(second.dims))
    one, two = (
        Value(value.signal, ((),) * (count - len(value.dims)) + value.dims) for value in (first, second)
    )
    for axis in range(count):
        kinds, sizes = [set(value.kinds(axis)) for value in (one, two)], (one.shape[axis], two.shape[axis])
        wide = [bool(kind & {"channel", "unit"}) for kind in kinds]
        if all(wide) and sizes[0] != sizes[1]:
            raise NotSupportedError(
                f"{max(sizes)} channels meet {min(sizes)}: one random field acts on all of them, so that the kernel "
                "has no deterministic limit",
            )
        if kinds[0] | kinds[1] == {"position"}:
            one, two = one_axis(one, axis), one_axis(two, axis)
        elif (all(kinds) and one.dims[axis] != two.dims[axis] and min(sizes) > 1) or (
            any(wide) and not all(wide) and all(_is_wide(value) for value in (one, two))
        ):
            raise NotSupportedError(
                "two tensors meet whose axes mean different things (channels and positions)"
            )
    positions = np.broadcast_shapes(one.signal.positions, two.signal.positions)
    dims = tuple(
        a if not b or (a and math.prod(x.size for x in a) >= math.prod(x.size for x in b)) else b
        for a, b in zip(one.dims, two.dims)
    )
    return tuple(Value(value.signal.broadcast(positions), dims) for value in (one, two))  # type: ignore[return-value]


def _is_wide(value: Value) -> bool:
    return any(atom.kind in ("channel", "unit") for atom in value.atoms)


def constant_field(reader: Reader, node: Node, constant: Tensor | Parameter, beside: Value) -> Value:
    """A tensor that all inputs have in common, as a field with the axes of the value it meets."""
    tensor = constant.tensor if isinstance(constant, Parameter) else constant
    shape = (1,) * (len(beside.dims) - tensor.ndim) + tuple(tensor.shape)
    dims: list[tuple[Atom, ...]] = []
    channel = None
    for k, (size, dim) in enumerate(zip(shape, beside.dims, strict=True)):
        kinds = beside.kinds(k)
        if size > 1 and "batch" in kinds:
            raise NotSupportedError("a constant differs between the samples of a batch")
        if size > 1 and ("channel" in kinds or "unit" in kinds):
            channel = k
        dims.append(dim if channel == k else (Atom("position", size),) if size > 1 else ())
    positions = [size for k, size in enumerate(shape) if k != channel and size > 1]
    if isinstance(constant, Parameter):
        if channel is None:
            raise NotSupportedError(
                "parameters that all channels share are added to features, which has no limit"
            )
        return Value(random_table(reader, node, constant, positions), tuple(dims))
    values = tensor.reshape(*shape, 1).movedim(len(shape) if channel is None else channel, -1).double().cpu()
    return Value(table(positions, values=values.numpy().reshape(*positions, -1)), tuple(dims))


def _shared_number(reader: Reader, node: Node, parameter: Parameter) -> float:
    """A parameter that is one number for all channels, which may not train."""
    if reader.trains(parameter) and reader.hyperparameters.rates != "ntk":
        raise NotSupportedError("a number that all channels share and train has no limit (freeze it)")
    return float(parameter.tensor)


def _gain(reader: Reader, node: Node, constant: Parameter) -> float:
    """The rate at which a gain of each channel trains."""
    reader.use(node, constant)
    law = Law(0.0, "constants of the module")
    trained = (reader.trains(constant), False)
    rate = reader.hyperparameters.read(constant.name, "gains", 1, law, None, trained)["lambda_W"]
    reader.learns(constant, rate)
    return rate


def _times_constant(reader: Reader, node: Node, value: Value, constant: Tensor | Parameter) -> Value:
    """A gain of each channel, or weights of positions."""
    tensor = constant.tensor if isinstance(constant, Parameter) else constant
    shape = (1,) * (len(value.dims) - tensor.ndim) + tuple(tensor.shape)
    over = [k for k, size in enumerate(shape) if size > 1]
    kinds = {kind for k in over for kind in value.kinds(k)}
    if isinstance(constant, Parameter) and (tensor.numel() == 1 or kinds <= {"channel"}):
        weight = equal_value(constant, "gains")
        if tensor.numel() == 1:
            _shared_number(reader, node, constant)
        return Value(value.signal.trained(weight, gain=_gain(reader, node, constant)), value.dims)
    if kinds == {"position"} and len(over) == 1 and isinstance(constant, Tensor):
        weights = Weights.of(np.diag(tensor.double().flatten().cpu().numpy()))
        return along(value, over[0], weights, "weights of positions")
    if isinstance(constant, Tensor) and not kinds & {"channel", "unit", "batch"}:
        one, two = _broadcast(value, constant_field(reader, node, constant, value))
        return Value(one.signal * two.signal, one.dims)
    raise NotSupportedError("a product with a tensor that differs over channels or several axes")
