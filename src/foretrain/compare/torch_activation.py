"""An activation as a differentiable torch function: native where torch has it, else its own numpy rule."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from foretrain.activations import Activation
from foretrain.support.errors import NotSupportedError

TensorFunction = Callable[[Tensor], Tensor]


def torch_activation(act: Activation) -> TensorFunction:
    """The torch function of an activation; what came from torch is given back, a module as a frozen copy."""
    if act.identity[0] == "callable":
        origin = getattr(getattr(act.identity[1], "subject", None), "function", None)
        if isinstance(origin, nn.Module):  # its parameters are part of the function, not of what is trained
            return copy.deepcopy(origin).requires_grad_(False)
        return _from_numpy(act) if origin is None else cast("TensorFunction", origin)
    build = _NATIVE.get(act.name)
    return _from_numpy(act) if build is None else build(act.parameters)


def _from_numpy(act: Activation) -> TensorFunction:
    def function(z: Tensor) -> Tensor:
        return cast("Tensor", _NumpyRule.apply(z, act, 0))  # type: ignore[no-untyped-call]

    return function


class _NumpyRule(torch.autograd.Function):
    """sigma^(k) by the activation's numpy rule; its derivative is sigma^(k+1) by the same."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, act: Activation, order: int) -> Tensor:
        """Values in float64, handed back in the type and on the device of the argument."""
        ctx.save_for_backward(z)
        ctx.act, ctx.order = act, order
        values = act.derivative(z.detach().to("cpu", torch.float64).numpy(), order)
        return torch.as_tensor(values).to(z)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Chain rule, itself differentiable as often as the activation is."""
        (z,) = ctx.saved_tensors
        if ctx.order >= ctx.act.max_order:
            raise NotSupportedError(
                f"derivative {ctx.order + 1} of {ctx.act.label} is not offered: "
                f"the highest order is {ctx.act.max_order}."
            )
        slope = _NumpyRule.apply(z, ctx.act, ctx.order + 1)  # type: ignore[no-untyped-call]
        return gradient * slope, None, None


def _step(z: Tensor) -> Tensor:
    """1 for z >= 0, else 0, with the derivative zero that autograd would not see in a comparison."""
    return (z >= 0).to(z.dtype) + 0.0 * z.clamp(-1.0, 1.0)


def _two_slopes(minus: float, plus: float) -> TensorFunction:
    return lambda z: torch.where(z < 0, minus * z, plus * z)


def _always(function: TensorFunction) -> Callable[[Mapping[str, float]], TensorFunction]:
    return lambda parameters: function


# functional.softplus is linear beyond 20, an error of 2e-9 that the theory does not make.
_NATIVE: dict[str, Callable[[Mapping[str, float]], TensorFunction]] = {
    "perceptron": _always(_step),
    "sign": _always(lambda z: 2.0 * _step(z) - 1.0),
    "sigmoid": _always(torch.sigmoid),
    "tanh": _always(torch.tanh),
    "erf": _always(torch.erf),
    "softsign": _always(functional.softsign),
    "sin": _always(torch.sin),
    "cos": _always(torch.cos),
    "linear": lambda parameters: lambda z: parameters["slope"] * z,
    "relu": _always(torch.relu),
    "leaky_relu": lambda parameters: _two_slopes(parameters["slope"], 1.0),
    "scale_invariant": lambda parameters: _two_slopes(parameters["minus"], parameters["plus"]),
    "abs": _always(torch.abs),
    "monomial": lambda parameters: lambda z: z ** int(parameters["power"]),
    "softplus": _always(lambda z: torch.logaddexp(z, torch.zeros_like(z))),
    "swish": lambda parameters: lambda z: z * torch.sigmoid(parameters["beta"] * z),
    "gelu": _always(functional.gelu),
    "gelu_tanh": _always(lambda z: functional.gelu(z, approximate="tanh")),
    "mish": _always(functional.mish),
    "elu": lambda parameters: lambda z: functional.elu(z, alpha=parameters["alpha"]),
    "selu": _always(functional.selu),
}
