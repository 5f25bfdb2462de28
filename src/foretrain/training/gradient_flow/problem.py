"""The learning problem: a network without biases and a teacher that is a sum of single units.

Slopes of elementwise functions come from automatic differentiation of the function itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError, unknown_name

Metric: TypeAlias = Literal["uniform", "normalized"] | Sequence[float]
ElementwiseFunction: TypeAlias = Callable[[Tensor], Tensor]

_NAMED: dict[str, ElementwiseFunction] = {
    "elu": functional.elu,
    "erf": torch.erf,
    "gelu": functional.gelu,
    "identity": torch.clone,
    "linear": torch.clone,
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
            raise unknown_name("`activation`", activation, _NAMED)
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


@dataclass(frozen=True)
class Problem:
    """f(x) = W_L σ(W_{L-1} … σ(W_1 x)) learns y = Σ_k β_k σ(v_k·x) for x ~ N(0, 1) in ``inputs`` dimensions.

    ``depth`` is L, the number of weight matrices; ``width`` is N. The loss is ½ E (f - y)². The law of x does not
    change under rotations, so v_k is the k-th unit vector.

    >>> Problem("tanh", depth=4, width=64, inputs=16)
    Problem(tanh, 16 -> 64 x 3 -> 1, betas=(1.0,))
    """

    activation: str | ElementwiseFunction
    depth: int
    width: int
    inputs: int
    betas: Sequence[float] = (1.0,)
    nonlinearity: Nonlinearity = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, least in (("depth", 2), ("width", 1), ("inputs", 1)):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), least))
        betas = tuple(float(beta) for beta in self.betas)
        if not 1 <= len(betas) <= self.inputs:
            raise InputError(
                f"there are {len(betas)} betas for {self.inputs} inputs: give from one up to as many as inputs."
            )
        object.__setattr__(self, "betas", betas)
        object.__setattr__(self, "nonlinearity", Nonlinearity(self.activation))

    def __repr__(self) -> str:
        hidden = f"{self.width} x {self.depth - 1}"
        return f"Problem({self.nonlinearity.name}, {self.inputs} -> {hidden} -> 1, betas={self.betas})"

    @property
    def modes(self) -> int:
        """The number of directions of the teacher."""
        return len(self.betas)

    @property
    def block_width(self) -> int:
        """N_B, the neurons of each mode on the block-symmetric ansatz; N for a single mode."""
        return self.width // self.modes

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """(outputs, inputs) of W_1 .. W_L."""
        inner = ((self.width, self.width),) * (self.depth - 2)
        return ((self.width, self.inputs), *inner, (1, self.width))

    def teacher(self, points: Tensor) -> Tensor:
        """Y (..., 1, points) for inputs (..., inputs, points)."""
        signals = self.nonlinearity.value(points[..., : self.modes, :])
        betas = torch.tensor(self.betas, dtype=points.dtype, device=points.device)
        return (betas @ signals)[..., None, :]

    def rates(self, metric: Metric) -> tuple[float, ...]:
        """ρ_l of Ẇ_l = -ρ_l ∇_l: all one; or, normalized, one for W_1 and 1 / N_B for the others."""
        if isinstance(metric, str):
            if metric not in ("uniform", "normalized"):
                raise unknown_name("`metric`", metric, ("uniform", "normalized"))
            other = 1.0 if metric == "uniform" else 1 / self.block_width
            return (1.0, *(other,) * (self.depth - 1))
        rates = tuple(float(rate) for rate in metric)
        if len(rates) != self.depth or min(rates) < 0:
            raise InputError(
                f"the metric has {len(rates)} rates for {self.depth} layers, the least {min(rates, default=0):g}: "
                "give one number from zero on for every layer."
            )
        return rates
