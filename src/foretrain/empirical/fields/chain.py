"""A network seen as a chain: v_l = W_l u_{l-1} + c_l, u_l = sigma_l(v_l), with everything the inputs make in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from foretrain.support.errors import InputError, NotSupportedError


@dataclass(frozen=True, eq=False)
class Layer:
    """One ``nn.Linear`` of the chain: copies of its parameters, and which of them learn."""

    name: str
    module: nn.Linear
    weight: Tensor
    bias: Tensor | None
    trains_weight: bool
    trains_bias: bool

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
        answers: dict[nn.Module, Callable[..., Tensor]] = {
            layer.module: _constant(known) for layer, known in zip(self.layers, self.preactivations)
        }
        answers[self.layer(number).module] = _constant(v)
        if number < self.depth:
            answers[self.layer(number + 1).module] = _stop
        try:
            with _answering(answers):
                found = self.model(self.x.clone())
        except _Reached as reached:
            found = reached.signal
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


def _constant(value: Tensor) -> Callable[..., Tensor]:
    # A copy, because activations that work in place would overwrite the value.
    return lambda *args, **kwargs: value.clone()


def _stop(*args: Any, **kwargs: Any) -> Tensor:
    raise _Reached(args[0] if args else kwargs["input"])


@contextmanager
def _answering(answers: Mapping[nn.Module, Callable[..., Tensor]]) -> Iterator[None]:
    """Let modules answer with given functions instead of their own forward pass."""
    before = {module: vars(module).get("forward") for module in answers}
    for module, answer in answers.items():
        vars(module)["forward"] = answer
    try:
        yield
    finally:
        for module, own in before.items():
            if own is None:
                del vars(module)["forward"]
            else:
                vars(module)["forward"] = own
