"""The learning problem: a network without biases and a teacher that is a sum of single units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError, unknown_name
from foretrain.training.gradient_flow.nonlinearity import ElementwiseFunction, Nonlinearity

Metric: TypeAlias = Literal["uniform", "normalized"] | Sequence[float]


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
                raise unknown_name("metric", metric, ("uniform", "normalized"))
            other = 1.0 if metric == "uniform" else 1 / self.block_width
            return (1.0, *(other,) * (self.depth - 1))
        rates = tuple(float(rate) for rate in metric)
        if len(rates) != self.depth or min(rates) < 0:
            raise InputError(
                f"the metric has {len(rates)} rates for {self.depth} layers, the least {min(rates, default=0):g}: "
                "give one number from zero on for every layer."
            )
        return rates
