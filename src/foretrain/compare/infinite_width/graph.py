"""A torch module as a graph of operations, captured by torch.export without computing anything."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from foretrain.support.errors import InputError, NotSupportedError

_ADVICE = "Measure it with ft.ensemble, which takes any module."


@dataclass(frozen=True)
class Captured:
    """Operations in order, and the tensors that are not computed: parameters, buffers, constants, inputs."""

    nodes: list[torch.fx.Node]
    tensors: dict[str, Tensor]
    parameters: dict[str, str]  # the name of the parameter, by that of its node
    inputs: list[str]
    output: torch.fx.Node


def capture(model: nn.Module, arguments: tuple[Any, ...]) -> Captured:
    """The operations of a call of the model."""
    _refuse_modes(model)
    with _explained(model), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(model, arguments, strict=False)
    signature = program.graph_signature
    parameters = dict(signature.inputs_to_parameters)
    tensors: dict[str, Tensor] = {}
    for name, target in parameters.items():
        tensors[name] = program.state_dict[target]
    for name, target in signature.inputs_to_buffers.items():
        tensors[name] = (
            program.state_dict[target] if target in program.state_dict else program.constants[target]
        )
    for name, target in signature.inputs_to_lifted_tensor_constants.items():
        tensors[name] = program.constants[target]
    nodes = list(program.graph.nodes)
    results = next(node for node in nodes if node.op == "output").args[0]
    flat = (
        [one for one in results if isinstance(one, torch.fx.Node)]
        if isinstance(results, tuple | list)
        else [results]
    )
    if len(flat) != 1:
        raise InputError(
            f"the model returns {len(flat)} tensors: pass `output=`, a name, a number or a function that picks one."
        )
    return Captured(nodes, tensors, parameters, list(signature.user_inputs), flat[0])


def module_of(node: torch.fx.Node) -> str:
    """The name of the module in whose forward an operation stands."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    return str(stack[-1][0]) if stack else ""


def _refuse_modes(model: nn.Module) -> None:
    """Sample-coupled or random layers have no kernel."""
    for name, module in model.named_modules():
        kind = type(module).__name__
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and (
            module.training or module.running_mean is None
        ):
            raise NotSupportedError(
                f"{name or 'the model'} is a {kind} in train mode, which couples the samples of a batch: "
                "call model.eval()."
            )
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p > 0:
            raise NotSupportedError(
                f"{name or 'the model'} is a {kind} in train mode, which is random: call model.eval()."
            )


@contextmanager
def _explained(model: nn.Module) -> Iterator[None]:
    """Errors of the capture in one sentence."""
    try:
        yield
    except (InputError, NotSupportedError):
        raise
    except Exception as error:
        text = str(error).strip()
        first = text.splitlines()[0] if text else type(error).__name__
        if any(
            word in text for word in ("data-dependent", "GuardOnDataDependent", "Could not guard", "item()")
        ):
            raise NotSupportedError(
                f"{type(model).__name__} decides what to compute from the values of its inputs, so that it has no "
                f"description in advance. {_ADVICE}"
            ) from error
        raise InputError(f"{type(model).__name__} cannot be called on these inputs: {first[:300]}") from error
