"""Nonlinearities, among them those that are cut at numbers, and gates."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from foretrain.activations import Activation, activation
from foretrain.compare.infinite_width.graph import module_of
from foretrain.compare.infinite_width.laws import Row
from foretrain.compare.infinite_width.operations.shared import attempted, equal_value, taken
from foretrain.compare.infinite_width.reader import (
    Known,
    Parameter,
    Reader,
    Value,
    operation_name,
    rule,
)
from foretrain.support.errors import NotSupportedError
from foretrain.theory.layers import Signal

Node = torch.fx.Node


_PLAIN: dict[str, Any] = {
    "relu": functional.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    "mish": functional.mish,
    "selu": functional.selu,
    "erf": torch.erf,
    "sin": torch.sin,
    "cos": torch.cos,
    "abs": torch.abs,
    "square": torch.square,
    "softsign": functional.softsign,
}
# fmt: off
_CALLED = (
    "gelu", "leaky_relu", "elu", "celu", "softplus", "threshold", "exp", "expm1", "log1p", "sqrt", "rsqrt", "pow",
    "atan", "sinh", "cosh", "asinh", "logsigmoid", "log_sigmoid", "softshrink", "hardshrink", "tanhshrink",
)
# fmt: on


def _with_numbers(node: Node, numbers: list[Any], kwargs: dict[str, Any]) -> Activation:
    """The nonlinearity that an operation with fixed numbers is."""
    name = operation_name(node.target)
    if name == "gelu" and kwargs.get("approximate", "none") == "none":
        return activation("gelu")
    if name == "leaky_relu":
        return activation("leaky_relu", slope=float(numbers[0]) if numbers else 0.01)
    if name == "pow" and numbers == [2]:
        return activation(torch.square)
    target: Any = node.target
    return activation(lambda z: target(z, *numbers, **kwargs), name=name)


@rule(*_PLAIN)
def _plain_activation(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return activated(reader, node, args[0], activation(_PLAIN[operation_name(node.target)]))


@rule(*_CALLED)
def _other_activation(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if any(isinstance(one, Value | Parameter | Known | Tensor) for one in args[1:]):
        raise reader.refusal(node, f"{operation_name(node.target)} with a tensor as its number")
    return activated(reader, node, args[0], _with_numbers(node, args[1:], kwargs))


@rule("hardtanh", "relu6", "clamp", "clamp_min", "clamp_max", "hardsigmoid", "hardswish")
def _clamped(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Cut at one or two numbers: a sum of rectified fields, which is faster than a function that nobody knows."""
    name, value = operation_name(node.target), args[0]
    limits = {
        "hardtanh": (-1.0, 1.0),
        "relu6": (0.0, 6.0),
        "hardsigmoid": (-3.0, 3.0),
        "hardswish": (-3.0, 3.0),
    }
    low, high = limits.get(name, (None, None))
    if name == "clamp_max":
        high = args[1]
    elif name in ("hardtanh", "clamp", "clamp_min"):
        given = (*args[1:], None, None)[:2]
        low = given[0] if given[0] is not None else kwargs.get("min", kwargs.get("min_val", low))
        high = given[1] if given[1] is not None else kwargs.get("max", kwargs.get("max_val", high))
    if not isinstance(value, Value) or any(not isinstance(one, int | float | None) for one in (low, high)):
        raise reader.refusal(node, f"{name} with a tensor as its number")

    def cut() -> Signal:
        x = value.signal
        found = x if low is None else (x + (-low)).activation("relu") + low
        found = found if high is None else found - (x + (-high)).activation("relu")
        if name in ("hardsigmoid", "hardswish"):
            found = (1 / 6) * (found + 3.0)
        return x * found if name == "hardswish" else found

    return Value(attempted(reader, node, cut), value.dims)


@rule("prelu")
def _prelu(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    value, slope = args
    own = equal_value(reader, node, slope, "slopes")
    if reader.trains(slope) and reader.hyperparameters.rates != "ntk":
        raise reader.refusal(node, "a slope that all channels share and train has no limit (freeze it)")
    reader.hyperparameters.rows.append(
        Row(module_of(node), f"PReLU, slope {own:g}", 1, 0.0, 0.0, 0.0, 0.0, "the slope is held fixed")
    )
    return activated(reader, node, value, activation("leaky_relu", slope=own))


def activated(reader: Reader, node: Node, value: Any, function: Activation) -> Value:
    """The nonlinearity of a signal."""
    if not isinstance(value, Value):
        raise reader.refusal(node, "a nonlinearity of parameters")
    try:
        return Value(value.signal.activation(function), value.dims)
    except NotSupportedError as error:
        raise reader.refusal(node, str(error).split(": only")[0]) from error


@rule("glu")
def _glu(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    value, axis = (*args, -1)[:2]
    axis %= len(value.dims)
    half = value.shape[axis] // 2
    first, second = (
        taken(reader, node, value, axis, list(range(start, start + half)), keep=True) for start in (0, half)
    )
    return Value(first.signal * second.signal.activation("sigmoid"), first.dims)
