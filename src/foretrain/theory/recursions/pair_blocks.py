"""What G1, the variances of the metric and H1 need of V, D and F: entries inside every pair of inputs.

For the pair (a, b) the 3 x 3 block of V on {aa, ab, bb} flows by itself, with two-input expectations only: O(N^2)
work and memory, where the full tensor has N^4 entries.

Of D the entries (aa)(ab), (ab)(ab), (bb)(ab), and of F the four entries F_{i a j b}, i and j in {a, b}, flow by
themselves too. Nearly parallel pairs of an activation with a kink are followed in coordinates of their own
(nearly_parallel).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from foretrain.gaussian import factor
from foretrain.theory.recursions.nearly_parallel import (
    NearlyParallelPairs,
    PairState,
    is_covered,
    nearly_parallel,
)
from foretrain.theory.recursions.ntk import TangentExpectations
from foretrain.theory.recursions.pairs import Line, Pairs, are_tied
from foretrain.theory.recursions.preactivation import (
    PairExpectations,
    Step,
    curvature,
    curvature_apart,
    next_metric_correction,
)

Array = NDArray[np.float64]
Indices = NDArray[np.intp]


class PairVertices:
    """Blocks (P, 3, 3) of V for all pairs (a, b) of N inputs: rows and columns aa, ab, bb."""

    def __init__(self, pairs: Pairs) -> None:
        self.pairs = pairs
        self.blocks = np.zeros((len(pairs), 3, 3))

    def now(self) -> dict[str, Array]:
        """V_(aa)(bb) and V_(ab)(ab): (N, N) each."""
        return {
            "norm_covariance": self.pairs.matrix(self.blocks[:, 0, 2]),
            "entry_variance": self.pairs.matrix(self.blocks[:, 1, 1]),
        }

    def step(self, layer: PairExpectations, step: Step) -> None:
        """V' = C_W^2 [Cov + (n_l / n_{l-1}) M V M^T] (4.119), block by block."""
        grown = self.source(layer)
        if self.blocks.any():
            M = response_blocks(layer, self.pairs.first, self.pairs.second)
            grown += step.ratio * M @ self.blocks @ M.transpose(0, 2, 1)
        self.blocks = step.C_W**2 * grown
        # aa, ab and bb of one input are one entry; kept apart, their rounding would grow by chi_perp^2 a layer.
        alone = self.pairs.first == self.pairs.second
        self.blocks[alone] = self.blocks[alone, :1, :1]

    def source(self, layer: PairExpectations) -> Array:
        """Cov(sigma_i sigma_j, sigma_k sigma_l) for i, j, k, l in {a, b}."""
        a, b = self.pairs.first, self.pairs.second
        squares, cubes = layer.powers(2, 2), layer.powers(3, 1)
        S = np.empty((len(a), 3, 3))
        S[:, 0, 0], S[:, 2, 2] = squares[a, a], squares[b, b]
        S[:, 0, 2] = S[:, 2, 0] = S[:, 1, 1] = squares[a, b]
        S[:, 0, 1] = S[:, 1, 0] = cubes[a, b]
        S[:, 1, 2] = S[:, 2, 1] = cubes[b, a]
        F = layer.of(0, 0)
        means = np.stack([F[a, a], F[a, b], F[b, b]], axis=1)
        return np.asarray(S - means[:, :, None] * means[:, None, :])


class MetricCorrection(PairVertices):
    """G1, carried along with the blocks of V that drive it."""

    def __init__(self, pairs: Pairs) -> None:
        super().__init__(pairs)
        self.correction = np.zeros(len(pairs))

    def now(self) -> dict[str, Array]:
        """G1 (N, N), besides what the blocks hold."""
        return {**super().now(), "G1": self.pairs.matrix(self.correction)}

    def step(self, layer: PairExpectations, step: Step) -> None:
        """First G1 with the old V (4.115), then V."""
        self.correction = next_metric_correction(layer, self.correction, self.blocks, step)
        super().step(layer, step)


def response_blocks(layer: PairExpectations, a: Indices, b: Indices) -> Array:
    """dF/dK between the pairs aa, ab and bb: (number of pairs, 3, 3)."""
    M = np.zeros((len(a), 3, 3))
    M[:, 0, 0], M[:, 2, 2] = sum(layer.rows(a, a)), sum(layer.rows(b, b))
    M[:, 1] = np.stack(layer.rows(a, b), axis=1)
    return M


Mask = NDArray[np.bool_]


class TangentCorrection:
    """H1, carried along with G1 and the blocks of V, D and F that drive it."""

    def __init__(self, pairs: Pairs) -> None:
        self._pairs = pairs
        self._metric = MetricCorrection(pairs)
        self._mixed = np.zeros((len(pairs), 3))  # D_(ij)(ab), ij = aa, ab, bb
        self._cross = np.zeros((len(pairs), 2, 2))  # F_{i a j b}, rows i = b, a, columns j = a, b
        self._correction = np.zeros(len(pairs))
        self._near = NearlyParallelPairs()

    def now(self) -> dict[str, Array]:
        """H1 (N, N), besides what the metric's correction holds."""
        return {**self._metric.now(), "H1": self._pairs.matrix(self._correction)}

    def step(self, old: TangentExpectations, step: Step) -> None:
        """First H1, D and F with what the old layer holds, then G1 and V."""
        a, b = self._pairs.first, self._pairs.second
        near = np.zeros(len(a), dtype=bool)
        if is_covered(old.activation):
            # Pairs with a kink that the inputs' own basis cannot resolve, in this layer or after the activation.
            near |= nearly_parallel(old.activation, old.K, a, b)
            near |= nearly_parallel(old.activation, old.of(0, 0), a, b)
        where, sharp = self._near.step(old, step, self._state(), near)
        correction, moments = self._next_correction(old, step, near), self._moments(old)
        correction[where] = sharp
        mixed = self._next_mixed(old, step, moments)
        # F' = C_W^2 [<s_i s_j s'_a s'_b> Theta_ab + r <d(s_i s'_a)> <d(s_j s'_b)> F] (8.79).
        source = moments[:, [[1, 2], [0, 1]]] * old.Theta[a, b][:, None, None]
        left, right = old.mixed_response.blocks(b, a), old.mixed_response.blocks(a, b)
        cross = step.C_W**2 * (source + step.ratio * left @ self._cross @ right.transpose(0, 2, 1))
        self._mixed, self._cross = mixed, cross
        self._correction = correction
        self._metric.step(old, step)

    def _state(self) -> PairState:
        """All pairs in the basis of their inputs."""
        G1, pairs = self._metric.correction, self._pairs
        metric = np.stack([G1[pairs.first_twice], G1, G1[pairs.second_twice]], axis=1)
        return PairState(metric, self._metric.blocks, self._mixed, self._cross[:, ::-1], self._correction)

    def _next_correction(self, old: TangentExpectations, step: Step, near: Mask) -> Array:
        """H1' = r {lambda_W S[s s] + C_W (Theta S[s' s'] + <s' s'> H1 + T' D / 2 + T' F)} + C_W_1 <s' s'> Theta.

        S is the shift of a mean by G1 and V, T' = <d d (s' s')>: (8.59) with (8.71). Pairs ``near`` are left out.
        """
        pairs = self._pairs
        Theta, slopes = pairs.vector(old.Theta), pairs.vector(old.of(1, 1))
        grown = step.C_W_1 * slopes * Theta
        if not self._metric.blocks.any():  # layer 2: nothing fluctuates yet
            return grown
        first, cross, second = old.rows(pairs.first, pairs.second, 1)
        from_mixed = first * self._mixed[:, 0] + cross * self._mixed[:, 1] + second * self._mixed[:, 2]
        F = self._cross
        from_cross = 2 * first * F[:, 1, 0] + cross * (F[:, 1, 1] + F[:, 0, 0]) + 2 * second * F[:, 0, 1]
        # n times the shifts of <s_a s_b> and of <s'_a s'_b> from their values at the kernel.
        G1, V = self._metric.correction, self._metric.blocks
        of_values = old.response @ G1 + curvature(old, V)
        of_slopes = old.response_of(1) @ G1 + _slope_curvature(old, V, near)
        inner = Theta * of_slopes + slopes * self._correction + from_mixed + from_cross
        grown += step.ratio * (step.lambda_W * of_values + step.C_W * inner)
        return grown

    def _moments(self, old: TangentExpectations) -> Array:
        """<s_i s_j s'_a s'_b> for ij = aa, ab, bb: (P, 3)."""
        s, slope = factor(old.activation), factor(old.activation, 1)
        uneven, even = old.product(s * s * slope, slope), old.product(s * slope, s * slope)
        a, b = self._pairs.first, self._pairs.second
        return np.stack([uneven[a, b], even[a, b], uneven[b, a]], axis=1)

    def _next_mixed(self, old: TangentExpectations, step: Step, moments: Array) -> Array:
        """D' = C_W Cov(s s, Omega_ab) + r C_W M [V M_Omega + C_W <s'_a s'_b> D] (8.77)."""
        a, b = self._pairs.first, self._pairs.second
        F, slopes = old.of(0, 0), old.of(1, 1)[a, b]
        means = np.stack([F[a, a], F[a, b], F[b, b]], axis=1)
        weight = step.C_W * old.Theta[a, b]
        source = step.lambda_W * self._metric.source(old)[:, 1]
        source += weight[:, None] * (moments - means * slopes[:, None])
        M_Omega = np.stack(old.tangent_rows(a, b, step), axis=1)
        inner = (self._metric.blocks @ M_Omega[:, :, None])[:, :, 0]
        inner += step.C_W * slopes[:, None] * self._mixed
        grown = (response_blocks(old, a, b) @ inner[:, :, None])[:, :, 0]
        mixed = np.asarray(step.C_W * (source + step.ratio * grown))
        # The entries of one input are one: kept apart, their rounding would grow.
        mixed[a == b] = mixed[a == b, :1]
        return mixed


def _slope_curvature(layer: TangentExpectations, blocks: Array, near: Mask) -> Array:
    """(1/8) <d_i d_j d_k d_l (s'_a s'_b)> V_(ij)(kl) with V in ``blocks`` (P, 3, 3); zero for pairs ``near``."""
    if not is_covered(layer.activation):
        return curvature(layer, blocks, 1)
    pairs = layer.response.pairs
    a, b = pairs.first, pairs.second
    tied = are_tied(layer.K, a, b) & ~near
    apart = ~(tied | near)
    result = np.zeros(len(pairs))
    if apart.any():
        result[apart] = curvature_apart(layer, a[apart], b[apart], blocks[apart], 1)
    line = Line(layer.activation, layer.K, a[tied], b[tied], 1)
    pivot = np.where(line.pivot_is_first, blocks[tied, 0, 0], blocks[tied, 2, 2])
    result[tied] = 0.5 * line.bend() * pivot
    return result
