"""V, D, A, F and B on chosen quadruples of inputs only, at a cost that does not depend on N.

A quadruple (a, b, c, d) is an entry in the order in which each tensor is stored. For V, D and A the closed set is
{aa, ab, bb of preactivations, ab of the tangent kernel} against the same of (c, d): one matrix 4 x 4 holds 9 entries
of V, 3 + 3 of D and one of A. For F[a, b, c, d] it is F[i, b, j, d], i in {a, b} and j in {c, d}.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from foretrain.gaussian import Factor, expectations_at, factor
from foretrain.theory.recursions.ntk import TangentExpectations
from foretrain.theory.recursions.pair_blocks import response_blocks
from foretrain.theory.recursions.preactivation import Step
from foretrain.theory.recursions.quadruples import pairs_of

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

_PLACES = {"V": (1, 1), "D": (1, 3), "A": (3, 3)}


class QuadrupleTensors:
    """Joint blocks (Q, 4, 4) of V, D, A, blocks (Q, 2, 2) of F and entries (Q,) of B: those that ``names`` need."""

    def __init__(self, quadruples: Indices, names: Iterable[str]) -> None:
        self._used, places = np.unique(quadruples, return_inverse=True)
        self._own = places.reshape(quadruples.shape)
        count, wanted = len(quadruples), {*names}
        self._joint = np.zeros((count, 4, 4)) if wanted & {*_PLACES} else None
        self._cross = np.zeros((count, 2, 2)) if "F" in wanted else None
        self._cross_variance = np.zeros(count) if "B" in wanted else None

    def now(self) -> dict[str, Array]:
        """The entry of every quadruple."""
        found: dict[str, Array] = {}
        if self._joint is not None:
            found |= {name: self._joint[:, *place] for name, place in _PLACES.items()}
        if self._cross is not None:
            found["F"] = self._cross[:, 0, 0]
        if self._cross_variance is not None:
            found["B"] = self._cross_variance
        return found

    def step(self, old: TangentExpectations, step: Step) -> None:
        """All blocks of the next layer."""
        layer = old.among(self._used)
        if self._joint is not None:
            self._joint = self._next_joint(layer, step, self._joint)
        if self._cross is not None:
            self._cross = self._next_cross(layer, step, self._cross)
        if self._cross_variance is not None:
            self._cross_variance = self._next_cross_variance(layer, step, self._cross_variance)

    def _next_joint(self, layer: TangentExpectations, step: Step, joint: Array) -> Array:
        """J' = W Cov W^T + r R J R^T, W making (C_W s s, Omega) of (s s, s' s') and R its response."""
        left, right = (_Side(layer, step, self._own[:, 2 * k], self._own[:, 2 * k + 1]) for k in (0, 1))
        source = left.weights @ self._covariances(layer) @ right.weights.transpose(0, 2, 1)
        return np.asarray(source + step.ratio * left.response @ joint @ right.response.transpose(0, 2, 1))

    def _covariances(self, layer: TangentExpectations) -> Array:
        """Cov between s s of {aa, ab, bb}, s' s' of ab and the same of (c, d): (Q, 4, 4)."""
        s, slope = factor(layer.activation), factor(layer.activation, 1)
        two = [self._own[:, :2], self._own[:, 2:]]
        sides = [pairs_of(two[0]), pairs_of(two[1])]
        values, slopes = layer.of(0, 0), layer.of(1, 1)
        means = [
            np.concatenate([values[side[..., 0], side[..., 1]], slopes[pair[:, :1], pair[:, 1:]]], axis=1)
            for side, pair in zip(sides, two, strict=True)
        ]
        result = np.empty((len(self._own), 4, 4))
        result[:, :3, :3] = _products([s] * 4, layer, sides[0][:, :, None], sides[1][:, None])
        result[:, :3, 3] = _products([s, s, slope, slope], layer, sides[0], two[1][:, None])
        result[:, 3, :3] = _products([slope, slope, s, s], layer, two[0][:, None], sides[1])
        result[:, 3, 3] = _products([slope] * 4, layer, *two)
        return np.asarray(result - means[0][:, :, None] * means[1][:, None, :])

    def _next_cross(self, layer: TangentExpectations, step: Step, cross: Array) -> Array:
        """F' = C_W^2 [<s_i s_j s'_b s'_d> Theta_bd + r <d(s_i s'_b)> <d(s_j s'_d)> F] (8.79)."""
        s, slope = factor(layer.activation), factor(layer.activation, 1)
        a, b, c, d = self._own.T
        rows = np.stack([np.stack([i, j], -1) for i in (a, b) for j in (c, d)], 1).reshape(-1, 2, 2, 2)
        both = np.stack([b, d], -1)
        source = _products([s, s, slope, slope], layer, rows, both[:, None, None])
        left, right = layer.mixed_response.blocks(a, b), layer.mixed_response.blocks(c, d)
        grown = source * layer.Theta[b, d][:, None, None]
        return np.asarray(step.C_W**2 * (grown + step.ratio * left @ cross @ right.transpose(0, 2, 1)))

    def _next_cross_variance(self, layer: TangentExpectations, step: Step, values: Array) -> Array:
        """B' = C_W^2 [<s'_a s'_b s'_c s'_d> Theta_ac Theta_bd + r <s'_a s'_b> <s'_c s'_d> B] (8.89)."""
        a, b, c, d = self._own.T
        slope = factor(layer.activation, 1)
        source = _products([slope] * 4, layer, self._own[:, :2], self._own[:, 2:])
        growth = layer.of(1, 1)
        grown = (
            source * layer.Theta[a, c] * layer.Theta[b, d] + step.ratio * growth[a, b] * growth[c, d] * values
        )
        return np.asarray(step.C_W**2 * grown)


class _Side:
    """One index pair (a, b) of every quadruple: weights W and response R (Q, 4, 4) of (C_W s s, Omega_ab)."""

    def __init__(self, layer: TangentExpectations, step: Step, a: Indices, b: Indices) -> None:
        self.weights = np.zeros((len(a), 4, 4))
        self.weights[:, [0, 1, 2], [0, 1, 2]] = step.C_W
        self.weights[:, 3, 1], self.weights[:, 3, 3] = step.lambda_W, step.C_W * layer.Theta[a, b]
        self.response = np.zeros((len(a), 4, 4))
        self.response[:, :3, :3] = step.C_W * response_blocks(layer, a, b)
        self.response[:, 3, :3] = np.stack(layer.tangent_rows(a, b, step), axis=1)
        # aa, ab and bb of one input are one entry: all follow the first, lest their rounding grow apart.
        alone = a == b
        self.response[alone, :, 0] = self.response[alone].sum(axis=2)
        self.response[alone, :, 1:] = 0.0
        self.response[:, 3, 3] = step.C_W * layer.of(1, 1)[a, b]


def _products(factors: list[Factor], layer: TangentExpectations, first: Indices, second: Indices) -> Array:
    """<f_1 f_2 f_3 f_4> at the input pairs ``first`` and ``second``, broadcast against each other."""
    shape = (*np.broadcast_shapes(first.shape[:-1], second.shape[:-1]), 2)
    both = np.concatenate([np.broadcast_to(first, shape), np.broadcast_to(second, shape)], axis=-1)
    return np.asarray(expectations_at(factors, layer.K, both).value)
