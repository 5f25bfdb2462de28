"""BatchNorm in eval mode, LayerNorm, RMSNorm, GroupNorm, InstanceNorm, also where they are written out."""

from __future__ import annotations

from typing import Any

import torch

from foretrain.compare.infinite_width.graph import NoKernelError, module_of, operation_name
from foretrain.compare.infinite_width.laws import Row
from foretrain.compare.infinite_width.operations.shared import equal_value, narrow, row_name
from foretrain.compare.infinite_width.reader import (
    Node,
    Parameter,
    Reader,
    Value,
    rule,
)
from foretrain.support.errors import NotSupportedError


def _norm_rates(reader: Reader, node: Node, taken_for: str, weight: Any, bias: Any) -> dict[str, float]:
    """Gain and shift of a norm, equal in all channels, and their rates."""
    module, hyper = row_name(node, weight), reader.hyperparameters
    constants = [
        plain if one is None else equal_value(one, word)
        for one, plain, word in ((weight, 1.0, "gains"), (bias, 0.0, "shifts"))
    ]
    rates = hyper.learning_rates(module, 1.0, 0.0, 0.0, (reader.trains(weight), reader.trains(bias)))
    for one, rate in zip((weight, bias), rates):
        reader.learns(one, rate)
        if isinstance(one, Parameter) and rate:
            reader.use(node, one)
    hyper.rows.append(Row(module, taken_for, 1, 0.0, 0.0, *rates, "gain and shift: constants of the module"))
    return {"weight": constants[0], "bias": constants[1], "gain": rates[0], "shift": rates[1]}


@rule("batch_norm", "_native_batch_norm_legit_no_training")
def _batch_norm(reader: Reader, node: Node, args: list[Any]) -> Any:
    value, weight, bias, mean, variance, *rest = args
    plain = operation_name(node.target) == "batch_norm"
    if plain and (rest.pop(0) or mean is None):
        raise NoKernelError("a BatchNorm in train mode couples the samples of a batch (call model.eval())")
    epsilon = rest[1]
    value = reader.as_value(node, value, 1)
    rates = _norm_rates(reader, node, "BatchNorm, eval", weight, bias)
    statistics = {
        "mean": equal_value(mean, "running means"),
        "variance": equal_value(variance, "running variances"),
    }
    found = Value(value.signal.batch_norm(epsilon=epsilon, **statistics, **rates), value.dims)
    return found if plain else [found]


@rule("layer_norm", "rms_norm")
def _layer_norm(reader: Reader, node: Node, args: list[Any]) -> Any:
    root = operation_name(node.target) == "rms_norm"
    value, shape, weight, bias, epsilon = (*args[:3], None, args[3]) if root else args[:5]
    if epsilon is None:
        epsilon = float(torch.finfo(torch.get_default_dtype()).eps)
    value = narrow(reader.as_value(node, value, -1))
    normed = [atom.kind for dim in value.dims[-len(shape) :] for atom in dim]
    if normed.count("channel") != 1 or "batch" in normed:
        raise NotSupportedError("a norm runs over axes that do not hold the channels")
    everywhere = normed.count("position")
    if everywhere not in (0, len(value.signal.positions)):
        raise NotSupportedError("a norm runs over channels and some of several axes of positions")
    rates = _norm_rates(reader, node, "RMSNorm" if root else "LayerNorm", weight, bias)
    if root:
        if everywhere:
            raise NotSupportedError("an RMSNorm over channels and positions")
        return Value(value.signal.rms_norm(epsilon=epsilon, **rates), value.dims)
    signal = value.signal.layer_norm(
        epsilon=epsilon, over_positions=bool(everywhere), own_position=bool(everywhere), **rates
    )
    return Value(signal, value.dims)


@rule("group_norm")
def _group_norm(reader: Reader, node: Node, args: list[Any]) -> Any:
    value, groups, weight, bias, epsilon = args[:5]
    value = narrow(reader.as_value(node, value, 1))
    each = value.shape[1] // groups
    if groups > 1 and len(value.signal.blocks) > 1:
        raise NotSupportedError("a GroupNorm of concatenated channels")
    if len(value.dims[0]) > 1:
        raise NotSupportedError("a GroupNorm of each of several inputs to which the same weights are applied")
    if each == 1 or f"{module_of(node)}.num_groups" in reader.wide.grown:
        return _norm_of_few(reader, node, value, each, (weight, bias), epsilon)
    rates = _norm_rates(reader, node, f"GroupNorm, {groups} groups", weight, bias)
    return Value(value.signal.layer_norm(epsilon=epsilon, over_positions=True, **rates), value.dims)


@rule("instance_norm")
def _instance_norm(reader: Reader, node: Node, args: list[Any]) -> Any:
    value, weight, bias, _, _, of_inputs, _, epsilon = args[:8]
    if not of_inputs:
        raise NotSupportedError("an InstanceNorm with running statistics")
    value = narrow(reader.as_value(node, value, 1))
    if len(value.dims[0]) > 1:
        raise NotSupportedError("an InstanceNorm of several inputs to which the same weights are applied")
    return _norm_of_few(reader, node, value, 1, (weight, bias), epsilon)


def _norm_of_few(
    reader: Reader, node: Node, value: Value, channels: int, affine: tuple[Any, Any], epsilon: float
) -> Value:
    """A norm of groups of channels that stay few, over their positions."""
    taken_for = "InstanceNorm" if channels == 1 else f"GroupNorm, {channels} channels in each group"
    rates = _norm_rates(reader, node, taken_for, *affine)
    return Value(value.signal.group_norm(channels, epsilon=epsilon, **rates), value.dims)


def written_norm(reader: Reader, node: Node) -> Value | None:
    """LayerNorm or RMSNorm where it is written out, (x - mean) / sqrt(mean square + epsilon); None for else."""
    first, scale = (_source(one) for one in node.args[:2])
    name, last, epsilon = operation_name(node.target), operation_name(scale.target), 0.0

    # 1. The root, and what is added to the mean square.
    if (name, last) not in (("div", "sqrt"), ("mul", "rsqrt")):
        return None
    mean = _source(scale.args[0])
    if operation_name(mean.target) == "add" and isinstance(mean.args[1], int | float):
        mean, epsilon = _source(mean.args[0]), float(mean.args[1])

    # 2. A variance, or the mean of the square of the same as is divided, with or without its mean.
    x, variance = first, operation_name(mean.target) == "var"
    square = _source(mean.args[0])
    if operation_name(first.target) == "sub":
        x, centre = (_source(one) for one in first.args[:2])
        if operation_name(centre.target) != "mean" or _source(centre.args[0]) is not x:
            return None
        axes = [centre.args[1], mean.args[1]]
    elif variance:
        return None
    else:
        axes = [mean.args[1]]
    same = {_source(one) for one in square.all_input_nodes} == {first} and (
        square.args[1:] in ((2,), ()) or operation_name(square.target) == "mul"
    )
    value = reader.resolved(reader.values[x.name])
    if not (square is x if variance else same and operation_name(mean.target) == "mean"):
        return None
    if not isinstance(value, Value) or any([value.kinds(k) for k in one] != [["channel"]] for one in axes):
        return None
    narrow(value)
    kind = "RMSNorm" if x is first else "LayerNorm"
    reader.hyperparameters.rows.append(Row(module_of(node), kind, 1, 0.0, 0.0, 0.0, 0.0, "written out"))
    norm = value.signal.rms_norm if x is first else value.signal.layer_norm
    return Value(norm(epsilon=epsilon), value.dims)


def _source(node: Any) -> Any:
    """The operation that made a tensor, before copies of it."""
    while isinstance(node, Node) and operation_name(node.target) in ("_to_copy", "clone", "alias"):
        node = node.args[0]
    return node
