"""V, D, A, F and B contracted with matrices, without their N^4 entries: how each recursion is pulled back.

V, D and A are blocks of one covariance, J = [[V, D], [D^T, A]] of preactivations and tangent kernel on pairs of
inputs, with J' = S + r R J R^T and R = [[C_W M, 0], [M_Omega, C_W P]]: a form has two rows, one for each. F and B are
contracted in the order in which they are stored: X with the indices 1, 3 and Y with 2, 4 of (8.67), (8.82).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from foretrain.gaussian import factor
from foretrain.support.seeds import Seed
from foretrain.theory.recursions.contraction import (
    Estimates,
    FormCovariance,
    Samples,
    derivative,
    exactly,
    pulled_back,
)
from foretrain.theory.recursions.ntk import TangentExpectations
from foretrain.theory.recursions.preactivation import Step

Array = NDArray[np.float64]

SIDES = {"V": (0, 0), "D": (0, 1), "A": (1, 1)}
"""Which row of a joint form each side of a tensor is: 0 preactivations, 1 tangent kernel."""


def joint_forms(forms: Array, row: int) -> Array:
    """Forms (C, P) as joint forms (C, 2, P) with the other row zero."""
    joint = np.zeros((len(forms), 2, forms.shape[-1]))
    joint[:, row] = forms
    return joint


class JointPullBack:
    """V, D and A together (4.119), (8.77), (8.97), forms (2, P)."""

    def __init__(self, covariance: FormCovariance) -> None:
        self._covariance = covariance

    def source(self, layer: TangentExpectations, step: Step, left: Array, right: Array) -> Estimates:
        """Covariance of the forms of C_W s s and Omega = lambda_W s s + C_W Theta s' s'."""
        weight = step.C_W * layer.response.pairs.vector(layer.Theta)
        weighed = (
            {0: step.C_W * forms[:, 0] + step.lambda_W * forms[:, 1], 1: weight * forms[:, 1]}
            for forms in (left, right)
        )
        return self._covariance(layer, *weighed)

    def pull(self, layer: TangentExpectations, step: Step, forms: Array) -> Array:
        """R^T."""
        growth = step.C_W * layer.response.pairs.vector(layer.of(1, 1))
        values, tangents = forms[..., 0, :], forms[..., 1, :]
        moved = step.C_W * pulled_back(layer.response, values)
        moved += pulled_back(layer.tangent_response(step), tangents)
        return np.stack([moved, growth * tangents], axis=-2)


class CrossSource(Protocol):
    """A way to compute what a layer adds to F or B, for stacks (Q, N, N) of matrices."""

    def __call__(self, layer: TangentExpectations, left: Array, right: Array) -> Estimates:
        """What is added, (Q,)."""


class _CrossTerm:
    """The first term of F' or B', which a layer adds by itself."""

    def __init__(self, source: CrossSource) -> None:
        self._source = source

    def source(self, layer: TangentExpectations, step: Step, left: Array, right: Array) -> Estimates:
        """C_W^2 times what the source computes."""
        return self._source(layer, step.C_W * left, step.C_W * right)


class CrossPullBack(_CrossTerm):
    """F'_1324 = C_W^2 [<s_1 s_2 s'_3 s'_4> Theta_34 + r <d(s_1 s'_3)> <d(s_2 s'_4)> F] (8.79)."""

    def pull(self, layer: TangentExpectations, step: Step, forms: Array) -> Array:
        """The transposed mixed response."""
        return step.C_W * layer.mixed_response.pull_back(forms)


class CrossVariancePullBack(_CrossTerm):
    """B'_1324 = C_W^2 [<s'_1 s'_2 s'_3 s'_4> Theta_12 Theta_34 + r <s'_1 s'_3> <s'_2 s'_4> B] (8.89)."""

    def pull(self, layer: TangentExpectations, step: Step, forms: Array) -> Array:
        """Multiplies by C_W <s' s'>."""
        return step.C_W * layer.of(1, 1) * forms


def exact_cross(layer: TangentExpectations, left: Array, right: Array) -> Estimates:
    """sum X_13 Y_24 <s_1 s_2 s'_3 s'_4> Theta_34 through all four-input expectations: for few inputs."""
    products = layer.response.pairs.tensor(layer.fourfold(0, 1))
    found = np.einsum("qac,abcd,cd,qbd->q", left, products, layer.Theta, right, optimize=True)
    return exactly(found)


def exact_cross_variance(layer: TangentExpectations, left: Array, right: Array) -> Estimates:
    """sum X_13 Y_24 <s'_1 s'_2 s'_3 s'_4> Theta_12 Theta_34, likewise."""
    products = layer.response.pairs.tensor(layer.fourfold(1, 1))
    Theta = layer.Theta
    found = np.einsum("qac,abcd,ab,cd,qbd->q", left, products, Theta, Theta, right, optimize=True)
    return exactly(found)


def diagonal_cross(layer: TangentExpectations, left: Array, right: Array) -> Estimates:
    """For diagonal matrices: two-input expectations."""
    both = factor(layer.activation) * factor(layer.activation, 1)
    return exactly(_diagonal(left, layer.product(both, both) * layer.Theta, right))


def diagonal_cross_variance(layer: TangentExpectations, left: Array, right: Array) -> Estimates:
    """For diagonal matrices: two-input expectations."""
    square = factor(layer.activation, 1) ** 2
    return exactly(_diagonal(left, layer.product(square, square) * layer.Theta**2, right))


def _diagonal(left: Array, matrix: Array, right: Array) -> Array:
    return np.asarray(np.einsum("qaa,ab,qbb->q", left, matrix, right, optimize=True))


class SampledCross:
    """Monte Carlo over z: one draw costs N^2."""

    def __init__(self, draws: int, seed: Seed) -> None:
        self._samples = Samples(draws, seed)

    def __call__(self, layer: TangentExpectations, left: Array, right: Array) -> Estimates:
        """u^T Theta w with u_3 = s'_3 sum_1 X_13 s_1 and w_4 = s'_4 sum_2 Y_24 s_2."""

        def products(z: Array) -> Iterator[Array]:
            s, slope = (derivative(layer.activation, z, order) for order in (0, 1))
            for X, Y in zip(left, right, strict=True):
                yield np.einsum("nc,nc->n", (slope * (s @ X)) @ layer.Theta, slope * (s @ Y))

        return self._samples.means(layer.K, len(left), products)


class SampledCrossVariance:
    """Monte Carlo over z: one draw costs N^3."""

    def __init__(self, draws: int, seed: Seed) -> None:
        self._samples = Samples(draws, seed)

    def __call__(self, layer: TangentExpectations, left: Array, right: Array) -> Estimates:
        """tr(Theta X~ Theta Y~^T), X~ and Y~ the matrices times s' s'."""

        def products(z: Array) -> Iterator[Array]:
            slope = derivative(layer.activation, z, 1)
            for X, Y in zip(left, right, strict=True):
                scaled = ((u[:, None] * X * u, u[:, None] * Y * u) for u in slope)
                yield np.array([np.vdot(layer.Theta @ x @ layer.Theta, y) for x, y in scaled])

        return self._samples.means(layer.K, len(left), products)
