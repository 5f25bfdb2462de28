"""Is this torch model a chain of linear layers and elementwise activations? Found out by running it.

Hooks on every ``nn.Linear`` record what goes in and cut the graph behind it, so that autograd shows on what the input
of the next one depends: only on the preactivations of the layer before, unit by unit, or the model is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from foretrain.empirical.fields.chain import Chain, Layer
from foretrain.empirical.models.model import explained
from foretrain.support.errors import InputError, NotSupportedError

_ELSEWHERE = "the tangent kernel of any model is foretrain.ntk(model, x)"


def find_chain(model: nn.Module, x: Tensor | NDArray[np.floating]) -> Chain:
    """Run the model on x, recognise the chain and keep its fields; what is no chain is refused by name."""
    _check_model(model)
    signal = _check_inputs(model, x)
    calls, output, source = _run(model, signal)
    _check_calls(calls, len(signal))
    ends = [*(call.signal for call in calls[1:]), output]
    slopes = []
    for number, (call, end) in enumerate(zip(calls, ends)):
        after = calls[number + 1].name if number + 1 < len(calls) else None
        others = [source, *(earlier.leaf for earlier in calls[:number])]
        slopes.append(_slope(call, end, after, others))
    last = output.detach().reshape(slopes[-1].shape)
    return Chain(
        model=model,
        x=signal,
        layers=tuple(call.layer() for call in calls),
        activations=(*(call.value for call in calls), last.clone()),
        preactivations=tuple(call.leaf.detach() for call in calls),
        slopes=tuple(slopes),
    )


@dataclass(frozen=True, eq=False)
class _Call:
    """One use of a linear layer: what went in (with its graph, and as a copy) and a new leaf for what came out."""

    name: str
    module: nn.Linear
    signal: Tensor
    value: Tensor
    leaf: Tensor

    def layer(self) -> Layer:
        weight, bias = self.module.weight, self.module.bias
        return Layer(
            name=self.name,
            module=self.module,
            weight=weight.detach().clone(),
            bias=None if bias is None else bias.detach().clone(),
            trains_weight=weight.requires_grad,
            trains_bias=bias is not None and bias.requires_grad,
        )


def _run(model: nn.Module, x: Tensor) -> tuple[list[_Call], Tensor, Tensor]:
    """The calls of linear layers in their order, the output, and the leaf that stands for the inputs."""
    calls: list[_Call] = []

    def record(name: str) -> Any:
        def hook(module: nn.Linear, args: tuple[Any, ...], kwargs: dict[str, Any], v: Tensor) -> Tensor:
            signal = args[0] if args else kwargs["input"]
            leaf = v.detach().clone().requires_grad_()
            calls.append(_Call(name, module, signal, signal.detach().clone(), leaf))
            return leaf.clone()  # the copy may be overwritten by an activation that works in place

        return hook

    hooks = [
        module.register_forward_hook(record(name or "the model"), with_kwargs=True)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    try:
        with torch.enable_grad():
            source = x.clone().requires_grad_()
            output = _output(model, source.clone())
    finally:
        for handle in hooks:
            handle.remove()
    with torch.no_grad():
        again = _output(model, x.clone())
    if again.shape != output.shape or not _same(again, output.detach()):
        raise NotSupportedError(
            "two calls of the model gave different outputs: switch its randomness off, for example by model.eval()."
        )
    return calls, output, source


def _output(model: nn.Module, x: Tensor) -> Tensor:
    with explained(x, model.parameters()):
        output = model(x)
    if not isinstance(output, Tensor):
        raise InputError(
            f"the model returned {type(output).__name__}: wrap it in a module that returns one tensor."
        )
    if not torch.isfinite(output).all():
        raise InputError("the model returned values that are not finite: check the inputs and the weights.")
    return output


def _slope(call: _Call, end: Tensor, after: str | None, others: Iterable[Tensor]) -> Tensor:
    """sigma'(v) from the layer of ``call`` to ``end``, after making sure that it acts unit by unit."""
    place = f"between {call.name} and {after or 'the output'}"
    leaf, inputs = call.leaf, len(call.leaf)
    if end.numel() != leaf.numel() or len(end) != inputs:
        hint = (
            "return the activations of the last layer and pass readout='mean' or a matrix"
            if after is None
            else _ELSEWHERE
        )
        raise NotSupportedError(
            f"{place} {leaf.shape[1]} units become {tuple(end.shape[1:])}, which no elementwise activation does: "
            f"{hint}."
        )
    probe = torch.empty_like(leaf).normal_(generator=torch.Generator(leaf.device).manual_seed(0))
    sources = [leaf, *others]
    with torch.enable_grad():
        flat = end.reshape(leaf.shape)
        if not flat.requires_grad:
            raise NotSupportedError(
                f"{place} no gradient flows: remove detach() and no_grad() from the model."
            )
        slope, *foreign = torch.autograd.grad(flat.sum(), sources, retain_graph=True, allow_unused=True)
        (answer,) = torch.autograd.grad((flat * probe).sum(), [leaf], retain_graph=True, allow_unused=True)
    if slope is None or answer is None or any(gradient is not None for gradient in foreign):
        raise NotSupportedError(
            f"{place} the signal does not come from {call.name} alone: skip connections and parallel branches are no "
            f"chain; {_ELSEWHERE}."
        )
    size = float((slope * probe).abs().max())
    if float((answer - slope * probe).abs().max()) > 64 * torch.finfo(leaf.dtype).eps * max(size, 1e-30):
        raise NotSupportedError(
            f"{place} units or inputs are mixed, as by normalisation, softmax or pooling: only elementwise "
            f"activations make a chain; {_ELSEWHERE}."
        )
    return slope.detach()


def _check_model(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise InputError(f"the model is {type(model).__name__}: give a torch module.")
    for name, module in model.named_modules():
        kind = type(module).__name__
        if isinstance(module, _DropoutNd) and module.training and module.p > 0:
            raise NotSupportedError(f"{name} ({kind}) is random in training mode: call model.eval() first.")
        if isinstance(module, _BatchNorm) and (module.training or not module.track_running_stats):
            raise NotSupportedError(
                f"{name} ({kind}) mixes the inputs of a batch: call model.eval() and freeze its parameters, or take "
                f"it out; {_ELSEWHERE}."
            )
    _check_parameters(model)


def _check_parameters(model: nn.Module) -> None:
    """Every trained parameter is the weight or bias of one linear layer."""
    owners: dict[int, str] = {}
    for name, module in model.named_modules():
        for key, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad:
                continue
            place = f"{name}.{key}" if name else key
            plain = isinstance(module, nn.Linear) and key in ("weight", "bias")
            if not plain:
                raise NotSupportedError(
                    f"the trained parameter {place} belongs to {type(module).__name__}, but a chain learns only "
                    f"through the weights and biases of nn.Linear: freeze it with requires_grad_(False), or take "
                    f"foretrain.ntk(model, x), which holds for any model."
                )
            if id(parameter) in owners:
                raise NotSupportedError(
                    f"{place} and {owners[id(parameter)]} are the same parameter: tied layers do not add up "
                    f"separately; {_ELSEWHERE}."
                )
            owners[id(parameter)] = place


def _check_inputs(model: nn.Module, x: Tensor | NDArray[np.floating]) -> Tensor:
    if not isinstance(x, Tensor | np.ndarray):
        raise InputError(f"`x` is {type(x).__name__}: give a tensor of inputs, first axis the batch.")
    given = torch.as_tensor(x)
    if given.ndim < 2 or len(given) == 0 or given.is_complex():
        raise InputError(f"x has shape {tuple(given.shape)} and type {given.dtype}: give (inputs, features).")
    like = next((p for p in model.parameters() if p.is_floating_point()), None)
    if like is None:
        raise NotSupportedError("the model has no parameters: a chain has at least one nn.Linear.")
    signal = given.detach().to(device=like.device, dtype=like.dtype)
    if not torch.isfinite(signal).all():
        raise InputError("x has values that are not finite: clean the inputs first.")
    return signal


def _check_calls(calls: list[_Call], inputs: int) -> None:
    if not calls:
        raise NotSupportedError(f"the model calls no nn.Linear, so there is no chain: {_ELSEWHERE}.")
    seen: set[nn.Module] = set()
    for call in calls:
        if call.module in seen:
            raise NotSupportedError(
                f"{call.name} is used more than once, as in a recurrent network: a chain has one layer after "
                f"another; {_ELSEWHERE}."
            )
        seen.add(call.module)
        if call.signal.ndim != 2 or len(call.signal) != inputs:
            raise NotSupportedError(
                f"{call.name} gets a signal of shape {tuple(call.signal.shape)} for {inputs} inputs: the layers of a "
                f"chain see one vector of each input, so flatten positions; {_ELSEWHERE}."
            )
        if not _same(call.layer()(call.value), call.leaf.detach()):
            raise NotSupportedError(
                f"{call.name} ({type(call.module).__name__}) does not give W u + c of its own weight and bias: "
                f"replace it by a plain nn.Linear; {_ELSEWHERE}."
            )


def _same(first: Tensor, second: Tensor) -> bool:
    tolerance = 1e3 * torch.finfo(first.dtype).eps
    return bool((first - second).abs().max() <= tolerance * max(1e-30, float(second.abs().max())))
