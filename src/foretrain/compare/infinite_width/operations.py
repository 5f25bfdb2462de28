"""What each operation of torch does to a signal: layers with weights, norms, pooling, views, arithmetic."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from foretrain.activations import Activation, activation
from foretrain.compare.infinite_width.graph import module_of
from foretrain.compare.infinite_width.laws import Law, Row, bias_law, weight_law
from foretrain.compare.infinite_width.reader import (
    Atom,
    Known,
    Parameter,
    Reader,
    Value,
    operation_name,
    permuted,
    regrouped,
    rule,
)
from foretrain.support.errors import NotSupportedError
from foretrain.theory.layers import Signal, concatenated, joined, table, tokens, windows
from foretrain.theory.layers.positions import AxisMap, Weights
from foretrain.theory.layers.windowed import adaptive_max_windows

Node = torch.fx.Node


# Layers with weights


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
    value = _channels_second(reader, node, reader.as_value(node, given["input"], 1), axes)
    kernel = list(weight.tensor.shape[2:])
    stride, dilation = (_each(given.get(name, 1), axes) for name in ("stride", "dilation"))
    pads = _paddings(given.get("padding", 0), kernel, dilation)
    groups, out, channels = given.get("groups", 1), weight.tensor.shape[0], weight.tensor.shape[1]
    narrow = groups > 1 and (channels == 1 or reader.wide(weight.name, 1) is False) and not first
    if narrow and channels > 1:
        raise reader.refusal(
            node, f"groups of {channels} channels that do not grow with the width have no Gaussian limit"
        )
    fan_in = channels * math.prod(kernel)
    law = _law(
        reader,
        node,
        "depthwise convolution" if narrow else "convolution" + (f", {groups} groups" if groups > 1 else ""),
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
    signal = value.signal.mapped(taps, depthwise=narrow, name=module_of(node) or "convolution", **law)
    return Value(signal, _image(reader.batch, out, signal.positions))


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _transposed(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    names = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
    given = {**dict(zip(names, args)), **kwargs}
    weight = given["weight"]
    first = not isinstance(given["input"], Value)
    axes = weight.tensor.ndim - 2
    value = _channels_second(reader, node, reader.as_value(node, given["input"], 1), axes)
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
    settings = [_each(given.get(name, default), axes) for name, default in zip(names[3:6], (1, 0, 0))]
    dilation = _each(given.get("dilation", 1), axes)
    taps = [
        windows.transposed_convolution(n, k, stride=s, padding=p, output_padding=o, dilation=d)
        for n, k, s, p, o, d in zip(value.signal.positions, kernel, *settings, dilation, strict=True)
    ]
    signal = value.signal.mapped(taps, name=module_of(node) or "transposed convolution", **law)
    return Value(signal, _image(reader.batch, out, signal.positions))


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


# Norms


def _norm_rates(reader: Reader, node: Node, taken_for: str, weight: Any, bias: Any) -> dict[str, float]:
    """Gain and shift of a norm, equal in all channels, and their rates."""
    module, hyper = module_of(node), reader.hyperparameters
    constants = []
    for one, plain, word in ((weight, 1.0, "gains"), (bias, 0.0, "shifts")):
        constants.append(plain if one is None else _equal(reader, node, one, word))
        if isinstance(one, Parameter):
            reader.use(node, one)
    rates = hyper.learning_rates(module, 1.0, 0.0, 0.0, (reader.trains(weight), reader.trains(bias)))
    hyper.rows.append(Row(module, taken_for, 1, 0.0, 0.0, *rates, "gain and shift: constants of the module"))
    return {"weight": constants[0], "bias": constants[1], "gain": rates[0], "shift": rates[1]}


def _equal(reader: Reader, node: Node, given: Any, word: str) -> float:
    """The value that all channels have in common."""
    values = given.tensor if isinstance(given, Parameter) else given
    first = float(values.flatten()[0])
    if not torch.allclose(values, torch.full_like(values, first), rtol=1e-6, atol=1e-12):
        raise reader.refusal(
            node, f"{word} differ from channel to channel, as after training, which has no limit"
        )
    return first


@rule("batch_norm")
def _batch_norm(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    value, weight, bias, mean, variance, training, _, epsilon = args[:8]
    if training or mean is None:
        raise reader.refusal(
            node, "a BatchNorm in train mode couples the samples of a batch (call model.eval())"
        )
    value = reader.as_value(node, value, 1)
    rates = _norm_rates(reader, node, "BatchNorm, eval", weight, bias)
    statistics = {
        "mean": _equal(reader, node, mean, "running means"),
        "variance": _equal(reader, node, variance, "running variances"),
    }
    return Value(value.signal.batch_norm(epsilon=epsilon, **statistics, **rates), value.dims)


@rule("layer_norm", "rms_norm")
def _layer_norm(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    root = operation_name(node.target) == "rms_norm"
    value, shape, weight, *rest = (*args, None, None, None)[:6] if root else (*args, None, None, 1e-5)[:6]
    bias, epsilon = (None, rest[0]) if root else (rest[0], rest[1])
    if epsilon is None:
        epsilon = float(torch.finfo(torch.get_default_dtype()).eps)
    value = reader.as_value(node, value, -1)
    normed = [atom.kind for dim in value.dims[-len(shape) :] for atom in dim]
    if normed.count("channel") != 1 or "batch" in normed:
        raise reader.refusal(node, "a norm runs over axes that do not hold the channels")
    everywhere = normed.count("position")
    if everywhere not in (0, len(value.signal.positions)):
        raise reader.refusal(node, "a norm runs over channels and some of several axes of positions")
    rates = _norm_rates(reader, node, "RMSNorm" if root else "LayerNorm", weight, bias)
    if root:
        if everywhere:
            raise reader.refusal(node, "an RMSNorm over channels and positions")
        return Value(value.signal.rms_norm(epsilon=epsilon, **rates), value.dims)
    signal = value.signal.layer_norm(
        epsilon=epsilon, over_positions=bool(everywhere), own_position=bool(everywhere), **rates
    )
    return Value(signal, value.dims)


@rule("group_norm")
def _group_norm(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    value, groups, weight, bias, epsilon = (*args, None, None, 1e-5)[:5]
    value = reader.as_value(node, value, 1)
    channels = value.shape[1]
    if channels // groups < 2:
        raise reader.refusal(node, "a norm of single channels (InstanceNorm) has statistics that stay random")
    if groups > 1 and len(value.signal.blocks) > 1:
        raise reader.refusal(node, "a GroupNorm of concatenated channels")
    rates = _norm_rates(reader, node, f"GroupNorm, {groups} groups", weight, bias)
    return Value(value.signal.layer_norm(epsilon=epsilon, over_positions=True, **rates), value.dims)


# Nonlinearities

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

    return Value(_try(reader, node, cut), value.dims)


@rule("prelu")
def _prelu(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    value, slope = args
    own = _equal(reader, node, slope, "slopes")
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
        _taken(reader, node, value, axis, list(range(start, start + half)), keep=True) for start in (0, half)
    )
    return Value(first.signal * second.signal.activation("sigmoid"), first.dims)


# Arithmetic


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
    return Value(_try(reader, node, lambda: one.signal + term), one.dims)


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
    return Value(_try(reader, node, lambda: one.signal * two.signal), one.dims)


@rule("neg")
def _negative(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return Value(-1.0 * args[0].signal, args[0].dims)


def _try(reader: Reader, node: Node, compute: Any) -> Signal:
    """A sum or product, with the place named if it has no rule."""
    try:
        result: Signal = compute()
    except NotSupportedError as error:
        raise reader.refusal(node, re.split(": (?:this|only)", str(error))[0]) from error
    return result


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
            one, two = _one_axis(one, axis), _one_axis(two, axis)
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
        return Value(_random_table(reader, node, constant, positions), tuple(dims))
    values = sign * tensor.reshape(shape).movedim(channel, -1).double().numpy().reshape(
        *positions, shape[channel]
    )
    return Value(table(positions, values=values), tuple(dims))


def _random_table(reader: Reader, node: Node, parameter: Parameter, positions: list[int]) -> Signal:
    """Trained numbers at positions: their variance and rate."""
    reader.use(node, parameter)
    hyper = reader.hyperparameters
    own = weight_law(parameter.tensor, 1, 1)
    C_W, _ = hyper.constants(parameter.name, own, Law(0.0, "none"))
    rate, _ = hyper.learning_rates(parameter.name, 1, C_W.C, 0.0, (reader.trains(parameter), False))
    hyper.rows.append(Row(parameter.name, "table", 1, C_W.C, 0.0, rate, 0.0, f"entries: {C_W.how}"))
    return table(positions, variance=C_W.C, rate=rate)


def _times_constant(reader: Reader, node: Node, value: Value, constant: Tensor | Parameter) -> Value:
    """A gain of each channel, or weights of positions."""
    tensor = constant.tensor if isinstance(constant, Parameter) else constant
    shape = (1,) * (len(value.dims) - tensor.ndim) + tuple(tensor.shape)
    over = [k for k, size in enumerate(shape) if size > 1]
    kinds = {atom.kind for k in over for atom in value.dims[k]}
    if len(torch.unique(tensor)) == 1 or kinds == {"channel"}:
        weight = _equal(reader, node, constant, "gains")
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


# Pooling and other maps of positions


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _average_pool(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    names = ("input", "kernel", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
    given = {**dict(zip(names, args)), **kwargs}
    axes = int(operation_name(node.target)[-2])
    value = _channels_second(reader, node, reader.as_value(node, given["input"], 1), axes)
    kernel = _each(given["kernel"], axes)
    divisor = given.get("divisor_override")
    signal = value.signal.average_pool(
        kernel,
        stride=_each(given.get("stride") or kernel, axes),
        padding=_each(given.get("padding", 0), axes),
        ceil_mode=given.get("ceil_mode", False),
        count_include_pad=given.get("count_include_pad", True),
    )
    if divisor is not None:
        plain = [
            windows.average(n, k, stride=s, padding=p, ceil_mode=given.get("ceil_mode", False), divisor=1)
            for n, k, s, p in zip(
                value.signal.positions,
                kernel,
                _each(given.get("stride") or kernel, axes),
                _each(given.get("padding", 0), axes),
                strict=True,
            )
        ]
        signal = (1 / divisor) * value.signal.over_positions(plain)
    return Value(signal, _image(reader.batch, value.shape[1], signal.positions))


@rule("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def _adaptive_pool(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    axes = int(operation_name(node.target)[-2])
    value = _channels_second(reader, node, reader.as_value(node, args[0], 1), axes)
    maps = [
        windows.adaptive_average(n, n if out is None else out)
        for n, out in zip(value.signal.positions, _each(args[1], axes), strict=True)
    ]
    signal = value.signal.over_positions(maps)
    return Value(signal, _image(reader.batch, value.shape[1], signal.positions))


@rule("max_pool1d", "max_pool2d", "max_pool3d")
def _max_pool(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    names = ("input", "kernel", "stride", "padding", "dilation", "ceil_mode")
    given = {**dict(zip(names, args)), **kwargs}
    axes = int(operation_name(node.target)[-2])
    value = _channels_second(reader, node, reader.as_value(node, given["input"], 1), axes)
    padding, dilation = _each(given.get("padding", 0), axes), _each(given.get("dilation", 1), axes)
    kernel = _each(given["kernel"], axes)
    stride = _each(given.get("stride") or kernel, axes)
    ceil = given.get("ceil_mode", False)
    signal = _try(
        reader,
        node,
        lambda: value.signal.max_pool(
            kernel, stride=stride, padding=padding, dilation=dilation, ceil_mode=ceil
        ),
    )
    return Value(signal, _image(reader.batch, value.shape[1], signal.positions))


@rule("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def _adaptive_max_pool(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    axes = int(operation_name(node.target)[-2])
    value = _channels_second(reader, node, reader.as_value(node, args[0], 1), axes)
    found = [
        adaptive_max_windows(n, out or n) for n, out in zip(value.signal.positions, _each(args[1], axes))
    ]
    signal = _try(reader, node, lambda: value.signal.maxima(found))
    return [Value(signal, _image(reader.batch, value.shape[1], signal.positions)), None]


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
    return Value(signal, _image(reader.batch, value.shape[1], signal.positions))


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


# Views


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
            grown = _one_axis(grown, axis)
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
    return _taken(reader, node, value, axis, list(range(start, stop, step)), keep=True)


@rule("select")
def _selected(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    value, axis, index = args
    if isinstance(value, Parameter):
        return reader.of_parameters(node, args, kwargs)
    axis %= len(value.dims)
    return _taken(reader, node, value, axis, [index % value.shape[axis]], keep=False)


def _taken(reader: Reader, node: Node, value: Value, axis: int, indices: list[int], keep: bool) -> Value:
    """Some entries along an axis of positions or channels."""
    dim, size = value.dims[axis], value.shape[axis]
    if indices == list(range(size)) and keep:
        return value
    kinds = [atom.kind for atom in dim]
    if kinds == ["channel"] and keep and indices == list(range(indices[0], indices[-1] + 1)):
        part = value.signal.channels(indices[0] / size, (indices[-1] + 1) / size)
        dims = list(value.dims)
        dims[axis] = (Atom("channel", len(indices)),)
        return Value(part, tuple(dims))
    if not kinds or set(kinds) != {"position"}:
        raise reader.refusal(
            node, f"entries are taken along an axis of {kinds[0] if kinds else 'size 1'} atoms"
        )
    signal, places = value.signal, value.positions_in(axis)
    if len(places) > 1:
        groups = [1] * len(signal.positions)
        groups[places[0] : places[-1] + 1] = [len(places)]
        signal = signal.arranged(range(len(signal.positions)), groups)
    taken = signal.take(places[0], indices if keep else indices[0])
    dims = list(value.dims)
    dims[axis] = (Atom("position", len(indices)),)
    return Value(taken, tuple(dims if keep else dims[:axis] + dims[axis + 1 :]))


@rule("chunk", "split", "split_with_sizes", "tensor_split")
def _split(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    value = args[0]
    axis = (args[2] if len(args) > 2 else kwargs.get("dim", 0)) % len(value.dims)
    sizes = [part.shape[axis] for part in node.meta["val"]]
    start, found = 0, []
    for size in sizes:
        found.append(_taken(reader, node, value, axis, list(range(start, start + size)), keep=True))
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
        lined = [_one_axis(one, axis) for one in made]
        place = Value(lined[0].signal, lined[0].dims).positions_in(axis)[0]
        dims[axis] = (Atom("position", total),)
        signal = _try(reader, node, lambda: joined([one.signal for one in lined], place))
        return Value(signal, tuple(dims))
    raise reader.refusal(
        node, "tensors are concatenated along the batch, or along channels and positions together"
    )


def _one_axis(value: Value, axis: int) -> Value:
    """The value with the positions of an axis as one axis of the signal."""
    places = value.positions_in(axis)
    count = len(value.signal.positions)
    groups = [1] * count
    if not places:
        before = sum(a.kind == "position" for dim in value.dims[:axis] for a in dim)
        groups.insert(before, 0)
    else:
        groups[places[0] : places[-1] + 1] = [len(places)]
    dims = list(value.dims)
    dims[axis] = (Atom("position", value.shape[axis]),)
    return Value(value.signal.arranged(range(count), groups), tuple(dims))


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
    return Value(_random_table(reader, node, Parameter(given.name, tensor), positions), tuple(dims))


# Helpers


def _each(value: Any, count: int) -> list[int]:
    values = [value] * count if isinstance(value, int) else list(value)
    return values * count if len(values) == 1 and count > 1 else values


def _paddings(padding: Any, kernel: list[int], dilation: list[int]) -> list[tuple[int, int]]:
    if padding == "valid":
        return [(0, 0)] * len(kernel)
    if padding == "same":
        totals = [d * (k - 1) for k, d in zip(kernel, dilation)]
        return [(one // 2, one - one // 2) for one in totals]
    return [(p, p) for p in _each(padding, len(kernel))]


def _image(batch: int, channels: int, positions: Sequence[int]) -> tuple[tuple[Atom, ...], ...]:
    """Axes (batch, channels, positions...)."""
    return (
        (Atom("batch", batch),),
        (Atom("channel", channels),),
        *((Atom("position", n),) for n in positions),
    )


def _channels_second(reader: Reader, node: Node, value: Value, axes: int) -> Value:
    """A value whose axes are batch, channels, and one axis of positions each."""
    kinds = [[atom.kind for atom in dim] for dim in value.dims]
    if len(kinds) != axes + 2 or kinds[0] != ["batch"] or kinds[1] != ["channel"]:
        raise reader.refusal(node, "a layer for images reads axes that are not batch, channels and positions")
    signal, groups = value.signal, []
    for k in range(2, len(value.dims)):
        count = len(value.positions_in(k))
        if any(kind != "position" for kind in kinds[k]):
            raise reader.refusal(node, "a layer for images reads channels as positions")
        groups.append(count)
    signal = signal.arranged(range(len(signal.positions)), groups)
    return Value(signal, _image(reader.batch, value.shape[1], signal.positions))
