"""BatchNorm in eval mode, LayerNorm, RMSNorm, GroupNorm, InstanceNorm."""

from __future__ import annotations

from typing import Any

import torch

from foretrain.compare.infinite_width.graph import module_of
from foretrain.compare.infinite_width.laws import Row
from foretrain.compare.infinite_width.operations.shared import attempted, equal_value
from foretrain.compare.infinite_width.reader import (
    Parameter,
    Reader,
    Value,
    operation_name,
    rule,
)

Node = torch.fx.Node


def _norm_rates(reader: Reader, node: Node, taken_for: str, weight: Any, bias: Any) -> dict[str, float]:
    """Gain and shift of a norm, equal in all channels, and their rates."""
    module, hyper = module_of(node), reader.hyperparameters
    constants = []
    for one, plain, word in ((weight, 1.0, "gains"), (bias, 0.0, "shifts")):
        constants.append(plain if one is None else equal_value(reader, node, one, word))
        if isinstance(one, Parameter):
            reader.use(node, one)
    rates = hyper.learning_rates(module, 1.0, 0.0, 0.0, (reader.trains(weight), reader.trains(bias)))
    hyper.rows.append(Row(module, taken_for, 1, 0.0, 0.0, *rates, "gain and shift: constants of the module"))
    return {"weight": constants[0], "bias": constants[1], "gain": rates[0], "shift": rates[1]}


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
        "mean": equal_value(reader, node, mean, "running means"),
        "variance": equal_value(reader, node, variance, "running variances"),
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
    each = channels // groups
    if groups > 1 and len(value.signal.blocks) > 1:
        raise reader.refusal(node, "a GroupNorm of concatenated channels")
    if each == 1 or reader.wide(f"{module_of(node)}.num_groups", 0):
        return _norm_of_few(reader, node, value, each, (weight, bias), epsilon)
    rates = _norm_rates(reader, node, f"GroupNorm, {groups} groups", weight, bias)
    return Value(value.signal.layer_norm(epsilon=epsilon, over_positions=True, **rates), value.dims)


@rule("instance_norm")
def _instance_norm(reader: Reader, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    value, weight, bias, _, _, of_inputs, _, epsilon = args[:8]
    if not of_inputs:
        raise reader.refusal(node, "an InstanceNorm with running statistics")
    return _norm_of_few(reader, node, reader.as_value(node, value, 1), 1, (weight, bias), epsilon)


def _norm_of_few(
    reader: Reader, node: Node, value: Value, channels: int, affine: tuple[Any, Any], epsilon: float
) -> Value:
    """A norm of groups of channels that stay few, over their positions."""
    taken_for = "InstanceNorm" if channels == 1 else f"GroupNorm, {channels} channels in each group"
    rates = _norm_rates(reader, node, taken_for, *affine)
    signal = attempted(reader, node, lambda: value.signal.group_norm(channels, epsilon=epsilon, **rates))
    return Value(signal, value.dims)
