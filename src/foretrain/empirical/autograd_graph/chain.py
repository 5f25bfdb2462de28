"""Is a torch model a chain of linear layers and elementwise activations, v_l = W_l u_{l-1} + c_l, u_l = sigma_l(v_l)?

Found out by running it: the input of a layer must depend on the preactivations of the layer before alone, unit by
unit, or the model is refused. A chain keeps all that the inputs make in it, and can run its activations again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from foretrain.empirical.autograd_graph.layers import (
    LinearCall,
    dependence,
    is_elementwise,
    linear_calls,
    slopes,
)
from foretrain.empirical.models.model import explained
from foretrain.support.errors import InputError, NotSupportedError

_ELSEWHERE = "the tangent kernel of any model is foretrain.ntk(model, x)"


def find_chain(model: nn.Module, x: Tensor | NDArray[np.floating]) -> Chain:
    """Run the model on x, recognise the chain and keep its fields; what is no chain is refused by name."""
    check_chain_model(model)
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
    return record_run(model, signal).chain()


@dataclass(frozen=True, eq=False)
class Run:
    """One run of a model: the calls of its linear layers, its output, and the leaf that stands for the inputs."""

    model: nn.Module
    x: Tensor
    calls: Sequence[LinearCall]
    output: Tensor
    source: Tensor

    def chain(self, to_the_end: bool = True) -> Chain:
        """The chain of the layers, with their fields; without the end, what follows the last layer does not count."""
        calls, inputs = self.calls, len(self.x)
        layers = tuple(Layer.of(call) for call in calls)
        if not calls:
            raise NotSupportedError(f"the model calls no nn.Linear, so there is no chain: {_ELSEWHERE}.")
        for number, (call, layer) in enumerate(zip(calls, layers)):
            if any(call.module is other.module for other in calls[:number]):
                raise NotSupportedError(
                    f"{call.name} is used more than once, as in a recurrent network: a chain has one layer after "
                    f"another; {_ELSEWHERE}."
                )
            if call.signal.ndim != 2 or len(call.signal) != inputs:
                raise NotSupportedError(
                    f"{call.name} gets a signal of shape {tuple(call.signal.shape)} for {inputs} inputs: the layers "
                    f"of a chain see one vector of each input, so flatten positions; {_ELSEWHERE}."
                )
            if not _same(layer(call.input), call.value.detach()):
                raise NotSupportedError(
                    f"{call.name} ({type(call.module).__name__}) does not give W u + c of its own weight and bias: "
                    f"replace it by a plain nn.Linear; {_ELSEWHERE}."
                )
        ends = [*(call.signal for call in calls[1:]), *([self.output] if to_the_end else [])]
        found = []
        for number, (call, end) in enumerate(zip(calls, ends)):
            after = calls[number + 1].name if number + 1 < len(calls) else None
            earlier = [self.source, *(other.value for other in calls[:number])]
            found.append(_slope(call, end, after, earlier))
        if to_the_end:
            last = self.output.detach().reshape(found[-1].shape).clone()
        else:
            last = calls[-1].value.detach()
            found.append(torch.ones_like(last))
        return Chain(
            model=self.model,
            x=self.x,
            layers=layers,
            activations=(*(call.input for call in calls), last),
            preactivations=tuple(call.value.detach() for call in calls),
            slopes=tuple(found),
        )

    def goes_around(self) -> bool:
        """Whether the output depends on anything but the value of the last linear layer."""
        others = [self.source, *(call.value for call in self.calls[:-1]), *self.model.parameters()]
        return bool(dependence(self.output, others))


def record_run(model: nn.Module, x: Tensor) -> Run:
    """Run the model twice, once with its linear layers watched; what it returns must be the same, and finite."""
    with torch.enable_grad(), linear_calls(model) as calls:
        source = x.clone()
        if source.is_floating_point():
            source.requires_grad_()
        output = _output(model, source.clone())
    with torch.no_grad():
        again = _output(model, x.clone())
    if again.shape != output.shape or not _same(again, output.detach()):
        raise NotSupportedError(
            "two calls of the model gave different outputs: switch its randomness off, for example by model.eval()."
        )
    return Run(model, x, calls, output, source)


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


def _slope(call: LinearCall, end: Tensor, after: str | None, earlier: Sequence[Tensor]) -> Tensor:
    """sigma'(v) from the layer of ``call`` to ``end``, after making sure that it acts unit by unit."""
    place = f"between {call.name} and {after or 'the output'}"
    value = call.value
    if end.numel() != value.numel() or len(end) != len(value):
        hint = (
            "return the activations of the last layer and pass readout='mean' or a matrix"
            if after is None
            else _ELSEWHERE
        )
        raise NotSupportedError(
            f"{place} {value.shape[1]} units become {tuple(end.shape[1:])}, which no elementwise activation does: "
            f"{hint}."
        )
    if not end.requires_grad:
        raise NotSupportedError(f"{place} no gradient flows: remove detach() and no_grad() from the model.")
    slope, *others = slopes(end, [value, *earlier])
    if slope is None or any(other is not None for other in others):
        raise NotSupportedError(
            f"{place} the signal does not come from {call.name} alone: skip connections and parallel branches are no "
            f"chain; {_ELSEWHERE}."
        )
    if not is_elementwise(value, end, slope):
        raise NotSupportedError(
            f"{place} units or inputs are mixed, as by normalisation, softmax or pooling: only elementwise "
            f"activations make a chain; {_ELSEWHERE}."
        )
    return slope.detach()


def check_chain_model(model: nn.Module) -> None:
    """Refuse models that no run can show to be a chain: random ones, and those that learn by other parameters."""
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
    # Every trained parameter is the weight or bias of one linear layer.
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


def _same(first: Tensor, second: Tensor) -> bool:
    tolerance = 1e3 * torch.finfo(first.dtype).eps
    return bool((first - second).abs().max() <= tolerance * max(1e-30, float(second.abs().max())))


@dataclass(frozen=True, eq=False)
class Layer:
    """One ``nn.Linear`` of the chain: copies of its parameters, and which of them learn."""

    name: str
    module: nn.Linear
    weight: Tensor
    bias: Tensor | None
    trains_weight: bool
    trains_bias: bool

    @classmethod
    def of(cls, call: LinearCall) -> Layer:
        """The layer of a call, as it is now."""
        weight, bias = call.module.weight, call.module.bias
        copies = weight.detach().clone(), None if bias is None else bias.detach().clone()
        trains_bias = bias is not None and bias.requires_grad
        return cls(call.name, call.module, *copies, weight.requires_grad, trains_bias)

    def __call__(self, u: Tensor) -> Tensor:
        """W u + c for every row u."""
        v = u @ self.weight.T
        return v if self.bias is None else v + self.bias

    @property
    def learns(self) -> str:
        """Which of its parameters learn, in words."""
        parts = [("weight", self.trains_weight), ("bias", self.trains_bias)]
        return ", ".join(name for name, trains in parts if trains) or "frozen"

    def driven_by(self, overlap: Tensor) -> Tensor:
        """What multiplies S in the kernel of this layer: Q for trained weights, 1 for a trained bias (172)."""
        return self.trains_weight * overlap + float(self.trains_bias)


class _Reached(Exception):  # noqa: N818 - a signal, not an error
    """The signal has arrived at the layer after the one whose activation is wanted."""

    def __init__(self, signal: Tensor) -> None:
        super().__init__()
        self.signal = signal


@dataclass(frozen=True, eq=False)
class Chain:
    """Layers 1..L and the fields u_0..u_L, v_1..v_L and a_l = sigma_l'(v_l) of M inputs, each (M, n_l)."""

    model: nn.Module
    x: Tensor
    layers: tuple[Layer, ...]
    activations: tuple[Tensor, ...]
    preactivations: tuple[Tensor, ...]
    slopes: tuple[Tensor, ...]

    @property
    def depth(self) -> int:
        """The number L of layers."""
        return len(self.layers)

    @property
    def inputs(self) -> int:
        """The number M of inputs."""
        return len(self.activations[0])

    @property
    def widths(self) -> tuple[int, ...]:
        """n_0..n_L."""
        return tuple(u.shape[1] for u in self.activations)

    def layer(self, number: int) -> Layer:
        """Layer l = 1..L."""
        return self.layers[number - 1]

    def u(self, number: int) -> Tensor:
        """Activations of layer l = 0..L."""
        return self.activations[number]

    def v(self, number: int) -> Tensor:
        """Preactivations of layer l = 1..L."""
        return self.preactivations[number - 1]

    def a(self, number: int) -> Tensor:
        """Slopes sigma'(v) of layer l = 1..L: the masks of a ReLU network."""
        return self.slopes[number - 1]

    def activate(self, number: int, v: Tensor) -> Tensor:
        """sigma_l(v) by the model's own code, for v of shape (M, n_l); differentiable."""

        def constant(value: Tensor) -> Callable[..., Tensor]:
            # A copy, because activations that work in place would overwrite the value.
            return lambda *args, **kwargs: value.clone()

        def stop(*args: Any, **kwargs: Any) -> Tensor:
            raise _Reached(args[0] if args else kwargs["input"])

        # Layers answer with what is known instead of their own forward pass.
        answers = {layer.module: constant(known) for layer, known in zip(self.layers, self.preactivations)}
        answers[self.layer(number).module] = constant(v)
        if number < self.depth:
            answers[self.layer(number + 1).module] = stop
        before = {module: vars(module).get("forward") for module in answers}
        try:
            for module, answer in answers.items():
                vars(module)["forward"] = answer
            found = self.model(self.x.clone())
        except _Reached as reached:
            found = reached.signal
        finally:
            for module, own in before.items():
                if own is None:
                    del vars(module)["forward"]
                else:
                    vars(module)["forward"] = own
        return found.reshape(v.shape)  # type: ignore[no-any-return]

    def derivative(self, number: int, v: Tensor) -> tuple[Tensor, Tensor]:
        """sigma_l(v) and sigma_l'(v)."""
        with torch.enable_grad():
            leaf = v.detach().requires_grad_()
            u = self.activate(number, leaf)
            (slope,) = torch.autograd.grad(u.sum(), leaf)
        return u.detach(), slope

    def curvature(self, number: int) -> Tensor:
        """sigma_l''(v_l), zero between the kinks of a piecewise linear activation."""
        with torch.enable_grad():
            leaf = self.v(number).detach().requires_grad_()
            try:
                u = self.activate(number, leaf)
                (slope,) = torch.autograd.grad(u.sum(), leaf, create_graph=True)
                if not slope.requires_grad:
                    return torch.zeros_like(leaf)
                (second,) = torch.autograd.grad(slope.sum(), leaf, allow_unused=True)
            except RuntimeError as error:
                raise NotSupportedError(
                    f"the activation after {self.layer(number).name} has no second derivative "
                    f"({str(error).splitlines()[0]}): the change of conjugate fields needs it; write the activation "
                    "with torch operations."
                ) from error
        return torch.zeros_like(self.v(number)) if second is None else second.detach()

    def check_unchanged(self) -> None:
        """Refuse work that mixes the recorded fields with a model that has been trained since."""
        for layer in self.layers:
            same = torch.equal(layer.weight, layer.module.weight.detach())
            if layer.bias is not None:
                same = same and torch.equal(layer.bias, layer.module.bias.detach())
            if not same:
                raise InputError(
                    f"the parameters of {layer.name} have changed since these fields were computed: "
                    "call fields(model, x) again."
                )
