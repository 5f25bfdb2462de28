"""Elementwise functions of torch with their slopes, by automatic differentiation of the function itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from foretrain.support.errors import InputError, unknown_name

ElementwiseFunction: TypeAlias = Callable[[Tensor], Tensor]


def _identity(z: Tensor) -> Tensor:
    return z.clone()


_NAMED: dict[str, ElementwiseFunction] = {
    "elu": functional.elu,
    "erf": torch.erf,
    "gelu": functional.gelu,
    "identity": _identity,
    "linear": _identity,
    "relu": torch.relu,
    "selu": functional.selu,
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    "sin": torch.sin,
    "softplus": functional.softplus,
    "swish": functional.silu,
    "tanh": torch.tanh,
}


class Nonlinearity:
    """σ and σ' of a name, a module without parameters or any function of torch that acts entry by entry."""

    def __init__(self, activation: str | ElementwiseFunction) -> None:
        self.name, self._function = _resolved(activation)
        self._check()
        self.at_zero, self.slope_at_zero = (
            float(found) for found in self(torch.zeros(1, dtype=torch.float64))
        )

    def value(self, z: Tensor) -> Tensor:
        """σ(z)."""
        with torch.no_grad():
            return self._function(z)

    def __call__(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """(σ(z), σ'(z))."""
        return _value_and_pullback(self._function, z, torch.ones_like(z))

    def _check(self) -> None:
        """σ must keep the shape, and any cotangent must come back times the slope."""
        z = torch.linspace(-2.1, 1.9, 12, dtype=torch.float64).reshape(3, 4)
        along = torch.cos(7 * z)
        try:
            value, slope = self(z)
            _, derivative = _value_and_pullback(self._function, z, along)
        except (RuntimeError, TypeError, NotImplementedError) as error:
            raise InputError(
                f"the activation {self.name} cannot be differentiated by torch "
                f"({' '.join(str(error).split())[:120]}): give a function of one tensor made of torch operations."
            ) from error
        if not (torch.isfinite(value).all() and torch.isfinite(slope).all()):
            raise InputError(
                f"the activation {self.name} or its slope is not finite somewhere between -2.1 and 1.9: give one "
                "that is finite on the whole real line."
            )
        if value.shape != z.shape or not torch.allclose(derivative, slope * along, rtol=1e-10, atol=1e-12):
            raise InputError(
                f"the activation {self.name} mixes entries: give one that acts on every entry by itself."
            )


def _value_and_pullback(function: ElementwiseFunction, z: Tensor, cotangent: Tensor) -> tuple[Tensor, Tensor]:
    leaf = z.detach().requires_grad_()
    with torch.enable_grad():
        value = function(leaf)
        (pulled,) = torch.autograd.grad(value, leaf, cotangent)
    return value.detach(), pulled


def _resolved(activation: str | ElementwiseFunction) -> tuple[str, ElementwiseFunction]:
    if isinstance(activation, str):
        if activation not in _NAMED:
            raise unknown_name("activation", activation, _NAMED)
        return activation, _NAMED[activation]
    if isinstance(activation, nn.Module):
        if any(True for _ in activation.parameters()):
            raise InputError(
                f"the activation {activation} has parameters of its own: the flow moves the weights only."
            )
        return type(activation).__name__, activation
    if not callable(activation):
        raise InputError(f"the activation is {activation!r}: give a name, a module or a function of torch.")
    return getattr(activation, "__name__", "custom"), activation
