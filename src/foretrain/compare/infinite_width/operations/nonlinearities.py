"""Nonlinearities, among them those that are cut at numbers, and gates."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from foretrain.activations import Activation, activation
from foretrain.compare.infinite_width.graph import NoKernelError, module_of, operation_name
from foretrain.compare.infinite_width.laws import Row
from foretrain.compare.infinite_width.operations.shared import equal_value, taken
from foretrain.compare.infinite_width.reader import Known, Node, Parameter, Reader, Value, rule
from foretrain.support.errors import NotSupportedError

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


@lru_cache(maxsize=256)
def _with_numbers(target: Any, numbers: tuple[Any, ...]) -> Activation:
    """The nonlinearity that an operation with fixed numbers is: the same one for the same numbers."""
    name = operation_name(target)
    if name == "gelu" and numbers == ("none",):
        return activation("gelu")
    if name == "leaky_relu":
        return activation("leaky_relu", slope=float(numbers[0]))
    if name == "pow" and numbers == (2,):
        return activation(torch.square)
    keywords = {"approximate": numbers[0]} if name == "gelu" else {}
    return activation(lambda z: target(z, *(() if keywords else numbers), **keywords), name=name)


@rule(*_PLAIN)
def _plain_activation(reader: Reader, node: Node, args: list[Any]) -> Any:
    return activated(reader, node, args[0], activation(_PLAIN[operation_name(node.target)]))


@rule(*_CALLED)
def _other_activation(reader: Reader, node: Node, args: list[Any]) -> Any:
    if any(isinstance(one, Value | Parameter | Known | Tensor) for one in args[1:]):
        raise NotSupportedError(f"{operation_name(node.target)} with a tensor as its number")
    return activated(reader, node, args[0], _with_numbers(node.target, tuple(args[1:])))


@rule("hardtanh", "relu6", "clamp", "clamp_min", "clamp_max", "hardsigmoid", "hardswish")
def _clamped(reader: Reader, node: Node, args: list[Any]) -> Any:
    """Cut at one or two numbers: a sum of rectified fields, which is faster than a function that nobody knows."""
    name, value = operation_name(node.target), args[0]
    limits = {"relu6": (0.0, 6.0), "hardsigmoid": (-3.0, 3.0), "hardswish": (-3.0, 3.0)}
    given = (None, args[1]) if name == "clamp_max" else (*args[1:], None)[:2]
    low, high = limits.get(name, given)
    if not isinstance(value, Value) or any(not isinstance(one, int | float | None) for one in (low, high)):
        raise NotSupportedError(f"{name} with a tensor as its number")
    x = value.signal
    found = x if low is None else (x + (-low)).activation("relu") + low
    found = found if high is None else found - (x + (-high)).activation("relu")
    if name in ("hardsigmoid", "hardswish"):
        found = (1 / 6) * (found + 3.0)
    return Value(x * found if name == "hardswish" else found, value.dims)


@rule("prelu")
def _prelu(reader: Reader, node: Node, args: list[Any]) -> Any:
    value, slope = args
    own = equal_value(slope, "slopes")
    if reader.trains(slope) and reader.hyperparameters.rates != "ntk":
        raise NotSupportedError(
            "a slope that all channels share and train has no limit (freeze it)"
            if slope.tensor.numel() == 1
            else "slopes that train, one for each channel, have no rule here (freeze them)"
        )
    reader.hyperparameters.rows.append(
        Row(module_of(node), f"PReLU, slope {own:g}", 1, 0.0, 0.0, 0.0, 0.0, "the slope is held fixed")
    )
    return activated(reader, node, value, activation("leaky_relu", slope=own))


@rule("rrelu")
def _random_slope(reader: Reader, node: Node, args: list[Any]) -> Any:
    """In eval mode the mean slope."""
    value, lower, upper, training = args[:4]
    if training:
        raise NoKernelError("an RReLU in train mode draws random slopes (call model.eval())")
    return activated(reader, node, value, activation("leaky_relu", slope=(lower + upper) / 2))


def activated(reader: Reader, node: Node, value: Any, function: Activation) -> Value:
    """The nonlinearity of a signal."""
    if not isinstance(value, Value):
        raise NotSupportedError("a nonlinearity of parameters")
    return Value(value.signal.activation(function), value.dims)


@rule("glu")
def _glu(reader: Reader, node: Node, args: list[Any]) -> Any:
    value, axis = args[0], args[1] % len(args[0].dims)
    half = value.shape[axis] // 2
    first, second = (taken(value, axis, list(range(start, start + half)), keep=True) for start in (0, half))
    return Value(first.signal * second.signal.activation("sigmoid"), first.dims)
