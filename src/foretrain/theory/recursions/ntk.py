"""The tangent kernel Theta at infinite width, and the responses of which its finite-width statistics are made.

Everything is integrated by parts, so that no inverse of K occurs and an entry depends on its own inputs only. With s
the activation and Omega_12 = lambda_W s_1 s_2 + C_W Theta_12 s'_1 s'_2 (8.74), three responses carry fluctuations
from layer to layer: dF/dK of F = <s s>, dOmega/dK, and the mixed <d(s_1 s'_2)/dz> (:class:`MixedResponse`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.activations import Activation
from foretrain.theory.architecture import MLP, Layer
from foretrain.theory.recursions.kinks import slope_jumps
from foretrain.theory.recursions.preactivation import PairExpectations, Response, Step

Array = NDArray[np.float64]
Indices = NDArray[np.intp]


class TangentExpectations(PairExpectations):
    """Two-input expectations of one layer, with the tangent kernel of that layer."""

    def __init__(self, activation: Activation, K: Array, Theta: Array, tolerance: float = 1e-10) -> None:
        super().__init__(activation, K, tolerance)
        self.Theta = Theta

    def among(self, inputs: Indices) -> TangentExpectations:
        """The same for some of the inputs only."""
        chosen = np.ix_(inputs, inputs)
        return TangentExpectations(self.activation, self.K[chosen], self.Theta[chosen], self.tolerance)

    def tangent_rows(self, a: Indices, b: Indices, step: Step) -> tuple[Array, Array, Array]:
        """dOmega_ab with respect to K_aa, K_ab and K_bb, for every pair (a, b)."""
        weight = step.C_W * self.Theta[a, b]
        value, slope = self.rows(a, b), self.rows(a, b, 1)
        first, cross, second = (step.lambda_W * v + weight * s for v, s in zip(value, slope, strict=True))
        return first, cross, second

    def tangent_response(self, step: Step) -> Response:
        """dOmega/dK on pairs."""
        pairs = self.response.pairs
        return Response(pairs, *self.tangent_rows(pairs.first, pairs.second, step))

    @cached_property
    def mixed_response(self) -> MixedResponse:
        """<d(s_a s'_b)/dz> of all ordered pairs.

        Where the slope jumps, <s_a s''_b> of an input b that is always zero may be infinite, and all that it then
        multiplies vanishes with z_b.
        """
        bend = self.of(0, 2)
        if slope_jumps(self.activation):
            bend = np.where(np.diagonal(self.K) > 0, bend, 0.0)
        return MixedResponse(self.of(1, 1), bend)


@dataclass(frozen=True)
class MixedResponse:
    """<d_i (s_a s'_b)> for ordered pairs (a, b): ``own`` for i = a, ``other`` for i = b (they add up where a = b)."""

    own: Array
    other: Array

    def push(self, tensor: Array) -> Array:
        """sum_i <d_i (s_a s'_b)> tensor[i, b, ...] for all a, b."""
        extra = (...,) + (None,) * (tensor.ndim - 2)
        twice = np.arange(len(self.own))
        return np.asarray(self.own[extra] * tensor + self.other[extra] * tensor[twice, twice][None])

    def sandwich(self, tensor: Array) -> Array:
        """The same on the first two and on the last two of four indices."""
        half = self.push(tensor).transpose(2, 3, 0, 1)
        return self.push(half).transpose(2, 3, 0, 1)

    def pull_back(self, forms: Array) -> Array:
        """The transpose of :meth:`push` on stacks of matrices (..., N, N)."""
        diagonal = (forms * self.other).sum(axis=-2)
        return np.asarray(forms * self.own + diagonal[..., None] * np.eye(len(self.own)))

    def blocks(self, a: Indices, b: Indices) -> Array:
        """Matrices (Q, 2, 2) that take tensor[a, b], tensor[b, b] to the same entries of the next layer.

        Where a = b the two are one entry: both then follow the second, lest their rounding grow apart.
        """
        apart = a != b
        result = np.zeros((len(a), 2, 2))
        result[:, 0, 0] = apart * self.own[a, b]
        result[:, 0, 1] = self.other[a, b] + ~apart * self.own[a, b]
        result[:, 1, 1] = self.own[b, b] + self.other[b, b]
        return result


def first_tangent_kernel(mlp: MLP, X: ArrayLike) -> Array:
    """Theta of layer 1: lambda_b + lambda_W x.x' / n_0 (8.23)."""
    inputs = mlp.check_inputs(X)
    kernel: Array = mlp.lambda_b[0] + mlp.lambda_W[0] * (inputs @ inputs.T) / inputs.shape[1]
    return kernel


def next_tangent_kernel(old: PairExpectations, Theta: Array, layer: Layer) -> Array:
    """Theta' = lambda_b + lambda_W <s s> + (gamma^2 + C_W <s' s'>) Theta (8.63), entry by entry and in place."""
    inherited: Array = layer.C_W * old.of(1, 1)
    inherited += layer.gamma**2
    inherited *= Theta
    fresh: Array = layer.lambda_W * old.of(0, 0)
    fresh += layer.lambda_b
    fresh += inherited
    return fresh
