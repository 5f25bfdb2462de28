"""A torch module as a graph of operations, captured by torch.export without computing anything."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from io import StringIO
from typing import Any

import torch
from torch import Tensor, nn

from foretrain.empirical.models.arguments import Batch, leaves, mapped
from foretrain.empirical.models.model import (
    Output,
    call_with,
    explained,
    picked,
    refuse_coupling,
    refuse_ill_defined,
    refuse_random,
)
from foretrain.support.errors import ForetrainError, InputError, NotSupportedError

Node = torch.fx.Node
ADVICE = "measure it with ft.ensemble."


class NoKernelError(NotSupportedError):
    """What has no kernel at any width, so that it cannot be measured either."""


@dataclass(frozen=True)
class Captured:
    """Operations in order, and the tensors that are not computed: parameters, buffers, constants, inputs."""

    nodes: list[Node]
    tensors: dict[str, Tensor]
    parameters: dict[str, str]  # the name of the parameter, by that of its node
    inputs: list[str]
    output: Node


class _Call(nn.Module):
    """A call of a model with tensors in the places they have in its arguments; one tensor comes out."""

    def __init__(self, model: nn.Module, arguments: Any, output: Output) -> None:
        super().__init__()
        self.model, self.arguments, self.output = model, arguments, output

    def forward(self, *tensors: Tensor) -> Tensor:
        given = iter(tensors)
        arguments = mapped(lambda one: next(given) if isinstance(one, Tensor) else one, self.arguments)
        return picked(call_with(self.model, arguments), self.output)


def capture(model: nn.Module, batch: Batch, output: Output = None) -> Captured:
    """The operations of a call of the model that lead to its output, none of which changes a tensor in place."""
    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    _refuse_modules(model)
    arguments = batch.arguments
    call, given = _Call(model, arguments, output), [x for x in leaves(arguments) if isinstance(x, Tensor)]
    with _explained(call, given), warnings.catch_warnings(), torch.inference_mode(False), torch.enable_grad():
        warnings.simplefilter("ignore")
        # torch prints graphs that it cannot follow.
        with _one_capture, redirect_stderr(StringIO()), _plain_derivatives():
            program = torch.export.export(call, tuple(given), strict=False)
        for node in program.graph.nodes:
            if operation_name(node.target) == "wrap_with_set_grad_enabled":
                raise refusal(node, "a part of the network runs without gradients")
        if _writes_into_views(program.graph):
            program = program.run_decompositions({})
    signature = program.graph_signature
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    tensors = {
        name: program.state_dict[target] if target in program.state_dict else program.constants[target]
        for table in (
            signature.inputs_to_parameters,
            signature.inputs_to_buffers,
            signature.inputs_to_lifted_tensor_constants,
        )
        for name, target in table.items()
    }
    parameters = {
        name: names.get(id(tensors[name]), target.removeprefix("model."))
        for name, target in signature.inputs_to_parameters.items()
    }
    graph, once = program.graph, dict[str, Node]()
    for node in graph.nodes:  # what is computed twice from the same tensors is the same
        if node.op == "call_function":
            first = once.setdefault(f"{node.target}{node.args}{node.kwargs}", node)
            if first is not node:
                node.replace_all_uses_with(first)
    end: Any = graph.output_node().args[0]
    needed = {end[0]}
    for node in reversed(graph.nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    nodes = [node for node in graph.nodes if node in needed and node.op in ("call_function", "get_attr")]
    return Captured(nodes, tensors, parameters, list(signature.user_inputs), end[0])


def operation_name(target: Any) -> str:
    """The name of an operation without its overload, such as "conv2d", the same where it acts in place."""
    packet = getattr(target, "overloadpacket", target)
    name = str(getattr(packet, "__name__", packet))
    return name if name.startswith("__") else name.rstrip("_")


def module_of(node: Node) -> str:
    """The name of the module in whose forward an operation stands."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    return str(stack[-1][0]).removeprefix("model").removeprefix(".") if stack else ""


def refusal(node: Node, why: str | NotSupportedError) -> NotSupportedError:
    """An error that names the place, the reason and, unless nothing can be measured, the way out."""
    where = module_of(node)
    text = f"{f'{where}: ' if where else ''}{str(why).removesuffix('.')}"
    return (
        NoKernelError(f"{text}.")
        if isinstance(why, NoKernelError)
        else NotSupportedError(f"{text}: {ADVICE}")
    )


def _refuse_modules(model: nn.Module) -> None:
    """Sample-coupled or random layers have no kernel; scripts and lazy layers cannot be captured."""
    refuse_ill_defined(model)
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise InputError(
                f"{name or 'the model'} is a script, in which operations cannot be followed: give the module it was "
                "made from."
            )
        if any(nn.parameter.is_lazy(one) for one in module.parameters(recurse=False)):
            raise InputError(
                f"{name or 'the model'} ({type(module).__name__}) has no sizes yet: call the model once on a batch."
            )


_one_capture = (
    threading.RLock()
)  # what stands in for a function of torch must be put back before the next one does


@contextmanager
def _plain_derivatives() -> Iterator[None]:
    """Refuse functions with a backward of their own, of which a graph keeps the forward only."""
    thread, plain = threading.get_ident(), torch.autograd.Function.__dict__["apply"]

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == thread and not cls.__module__.startswith("torch."):
            raise NotSupportedError(
                f"{cls.__name__} has a backward of its own, which need not be the derivative of its forward: {ADVICE}"
            )
        return plain.__func__(cls, *args, **kwargs)

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        torch.autograd.Function.apply = plain  # type: ignore[method-assign]


def refuse_hidden_numbers(model: nn.Module, batch: Batch, output: Output) -> None:
    """What is drawn outside of torch, or counts the samples, is a constant of the graph, but not of the model."""

    def outputs(some: Batch) -> Tensor | None:
        try:
            with torch.no_grad():
                return picked(call_with(model, some.arguments), output).nan_to_num()
        except Exception:  # a model may take batches of one size only
            return None

    for some, more in ((batch.pick([0, 1]), batch.pick([0, 1, 0, 1])), (batch, None)):
        first, second = outputs(some), outputs(some)
        if first is None or second is None:
            continue
        refuse_random(first, second)
        twice = None if more is None else outputs(more)
        if twice is not None:
            refuse_coupling(twice[: len(first)], first)
        return


def _writes_into_views(graph: torch.fx.Graph) -> bool:
    """Whether something is changed in place that others share their memory with; else each change is a new tensor."""
    schemas = {
        node: node.target._schema for node in graph.nodes if isinstance(node.target, torch._ops.OpOverload)
    }
    views = {
        node
        for node, schema in schemas.items()
        if (any(one.alias_info for one in schema.returns) and not schema.is_mutable)
        or schema.name == "aten::dropout"
    }
    changed = (node.args[0] for node, schema in schemas.items() if schema.is_mutable)
    return any(one in views or not views.isdisjoint(one.users) for one in changed if isinstance(one, Node))


@contextmanager
def _explained(call: _Call, given: list[Tensor]) -> Iterator[None]:
    """Errors of the capture in one sentence: those of the model itself if it fails, else of torch.export."""
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)  # torch logs tracebacks besides
    try:
        yield
    except ForetrainError:
        raise
    except Exception as error:
        model = type(call.model).__name__
        try:
            with torch.no_grad(), explained(given, call.parameters()):
                call(*given)
        except ForetrainError:
            raise
        except Exception as own:
            raise InputError(f"{model} fails when it is called ({type(own).__name__}: {own}).") from own
        text = str(error).strip() or type(error).__name__
        if any(word in text for word in ("data-dependent", "DataDependent", "Could not guard", "item()")):
            raise NotSupportedError(
                f"{model} decides what to compute from the values of its inputs, so that it has no description in "
                f"advance: {ADVICE}"
            ) from error
        raise NotSupportedError(
            f"torch.export cannot capture {model} ({text.splitlines()[0][:200].rstrip('.')}): {ADVICE}"
        ) from error
    finally:
        logging.disable(level)
