"""The learning problem: a network without biases, a teacher that is a sum of single units, and a sample of inputs.

Slopes of elementwise functions come from automatic differentiation of the function itself. The points of a sample
stand for the Gaussian law of the inputs: the population average is a weighted sum over them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError, unknown_name
from foretrain.support.memory import require_memory
from foretrain.support.seeds import Seed, generator

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
_COPIES = 4  # of all points, while a sample is made


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


@dataclass(frozen=True, eq=False)
class Sample:
    """Inputs (inputs, points), their weights (points), which sum to one, and the teacher's answers (1, points)."""

    points: Tensor
    weights: Tensor
    targets: Tensor
    meaning: str

    def __repr__(self) -> str:
        return f"Sample({self.meaning}: {self.size} points in {self.points.shape[-2]} dimensions)"

    @property
    def size(self) -> int:
        """The number of points."""
        return self.points.shape[-1]

    def to(self, dtype: torch.dtype) -> Sample:
        """The same points in another precision."""
        return Sample(self.points.to(dtype), self.weights.to(dtype), self.targets.to(dtype), self.meaning)


def gaussian_sample(problem: Problem, size: int = 1024, seed: Seed = 0) -> Sample:
    """Quasi-random points with the symmetries and the second moments of the Gaussian law.

    Scrambled Sobol points have one coordinate in each of n equally likely strata, for every axis; it is put at the
    root mean square of the Gaussian inside its stratum, so that single coordinates are integrated as by a fine rule.
    Points are reflected in the directions that the teacher does not see, which makes those uncorrelated with the
    targets, and, if σ is not odd, through the origin (for an odd σ that changes no average of the problem). A last
    linear map makes the covariance exactly one. ``size`` counts all points and is rounded up to a power of two.
    """
    from scipy.stats import norm, qmc

    if size < 4 * problem.inputs:
        raise InputError(
            f"size is {size}: {problem.inputs} inputs need at least {4 * problem.inputs} points."
        )
    signs = [np.ones(problem.inputs)]
    if problem.inputs > problem.modes:
        signs.append(np.where(np.arange(problem.inputs) < problem.modes, 1.0, -1.0))
    z = torch.linspace(0.1, 3.0, 30, dtype=torch.float64)
    if not torch.allclose(problem.nonlinearity.value(-z), -problem.nonlinearity.value(z), rtol=1e-12, atol=0):
        signs += [-sign for sign in signs]
    power = max(1, math.ceil(math.log2(size / len(signs))))
    require_memory(
        _COPIES * 8 * len(signs) * 2**power * problem.inputs,
        f"a sample of {len(signs) * 2**power:,} points in {problem.inputs} dimensions",
        "take a smaller size",
    )
    count = 2**power
    uniform = qmc.Sobol(problem.inputs, rng=generator(seed)).random_base2(power)
    edges = norm.ppf(np.arange(count // 2, count) / count)  # of the strata of the positive half
    below = edges * norm.pdf(edges)
    half = np.sqrt(1 + count * (below - np.append(below[1:], 0.0)))
    drawn = np.concatenate([-half[::-1], half])[np.floor(uniform * count).astype(int)]
    points = np.concatenate([drawn * sign for sign in signs])
    # The nearest points with unit covariance about the origin.
    values, vectors = np.linalg.eigh(points.T @ points / len(points))
    whitened = points @ (vectors / np.sqrt(values)) @ vectors.T
    return given_sample(problem, whitened, meaning="quasi-random Gaussian sample")


def product_sample(problem: Problem, rule: tuple[NDArray[np.floating], NDArray[np.floating]]) -> Sample:
    """The product of a rule for a standard normal variable, its points and weights, such as Gauss-Hermite's.

    It is exact for polynomials, and nodes^inputs points large.
    """
    nodes = len(rule[0])
    if nodes**problem.inputs > 2_000_000:
        raise InputError(
            f"{nodes} nodes in {problem.inputs} dimensions make {float(nodes) ** problem.inputs:.3g} points: take "
            "fewer nodes or gaussian_sample."
        )
    points, weights = (np.array(list(product(each, repeat=problem.inputs))) for each in rule)
    return given_sample(problem, points, weights.prod(axis=1), meaning="product rule")


def given_sample(
    problem: Problem,
    points: NDArray[np.floating],
    weights: NDArray[np.floating] | None = None,
    meaning: str = "given sample",
) -> Sample:
    """Your own inputs (points, inputs), weighted equally unless weights are given; float64."""
    array = np.asarray(points, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] != problem.inputs or not np.isfinite(array).all():
        raise InputError(f"points have shape {array.shape}: give finite numbers (points, {problem.inputs}).")
    share = np.full(len(array), 1 / len(array)) if weights is None else np.asarray(weights, dtype=np.float64)
    if share.shape != (len(array),) or not np.isclose(share.sum(), 1, rtol=1e-9, atol=0):
        raise InputError(f"weights have shape {share.shape}: give one for each point, with sum 1.")
    columns = torch.from_numpy(np.ascontiguousarray(array.T))
    return Sample(columns, torch.from_numpy(share), problem.teacher(columns), meaning)
