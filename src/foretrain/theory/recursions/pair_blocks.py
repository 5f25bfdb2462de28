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

from foretrain.gaussian import expectation, factor
from foretrain.support.user_warnings import warn_user
from foretrain.theory.recursions.expectations import PairExpectations, Step
from foretrain.theory.recursions.nearly_parallel import (
    NearlyParallelPairs,
    PairState,
    is_covered,
    nearly_parallel,
)
from foretrain.theory.recursions.pairs import JointCovariance, Line, Pairs, are_tied

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
Mask = NDArray[np.bool_]

_NEARLY_PARALLEL = (1e-10, 1e-7)  # of 1 - correlation^2, by order of the derivative: angles below 1e-5, 3e-4


class PairVertices:
    """Blocks of V for all pairs (a, b) of N inputs: rows and columns aa, ab, bb."""

    carried = "V"

    def __init__(self, pairs: Pairs) -> None:
        self.pairs = pairs
        inside = Pairs.inside(pairs.size, pairs.first, pairs.second)
        self._joint = JointCovariance(inside, inside, self.carried, slice(1, 2))

    @property
    def blocks(self) -> Array:
        """V (P, 3, 3)."""
        return self._joint.now()["V"]

    def now(self) -> dict[str, Array]:
        """V_(aa)(bb) and V_(ab)(ab): (N, N) each."""
        return {
            "norm_covariance": self.pairs.matrix(self.blocks[:, 0, 2]),
            "entry_variance": self.pairs.matrix(self.blocks[:, 1, 1]),
        }

    def step(self, layer: PairExpectations, step: Step) -> None:
        """All blocks of the next layer."""
        self._joint.step(layer, step, lambda first, second: self._covariance(layer, second))

    def _covariance(self, layer: PairExpectations, order: int) -> Array:
        """Cov(s_i s_j, s_k s_l) for i, j, k, l in {a, b}, or Cov(s_i s_j, s'_a s'_b) of order 1."""
        a, b = self.pairs.first, self.pairs.second
        F = layer.of(0, 0)
        means = np.stack([F[a, a], F[a, b], F[b, b]], axis=1)
        if order:
            return np.asarray(slope_moments(layer) - means * layer.of(1, 1)[a, b][:, None])[:, :, None]
        s = factor(layer.activation)
        squares, cubes = layer.product(s**2, s**2), layer.product(s**3, s)
        S = np.empty((len(a), 3, 3))
        S[:, 0, 0], S[:, 2, 2] = squares[a, a], squares[b, b]
        S[:, 0, 2] = S[:, 2, 0] = S[:, 1, 1] = squares[a, b]
        S[:, 0, 1] = S[:, 1, 0] = cubes[a, b]
        S[:, 1, 2] = S[:, 2, 1] = cubes[b, a]
        S -= means[:, :, None] * means[:, None, :]
        return S


def slope_moments(layer: PairExpectations) -> Array:
    """<s_i s_j s'_a s'_b> for ij = aa, ab, bb of every pair: (P, 3)."""
    s, slope = factor(layer.activation), factor(layer.activation, 1)
    uneven, even = layer.product(s * s * slope, slope), layer.product(s * slope, s * slope)
    a, b = layer.pairs.first, layer.pairs.second
    return np.stack([uneven[a, b], even[a, b], uneven[b, a]], axis=1)


class MetricCorrection(PairVertices):
    """G1, carried along with the blocks of V that drive it."""

    def __init__(self, pairs: Pairs) -> None:
        super().__init__(pairs)
        self.correction = np.zeros(len(pairs))

    def now(self) -> dict[str, Array]:
        """G1 (N, N), besides what the blocks hold."""
        return {**super().now(), "G1": self.pairs.matrix(self.correction)}

    def step(self, layer: PairExpectations, step: Step) -> None:
        """First G1 with the old V, then V.

        G1' = (n_l / n_{l-1}) C_W [M G1 + V.d^2F/dK^2 / 2] + C_b_1 + C_W_1 F (4.115), (5.140).
        """
        G1, V = self.correction, self.blocks
        grown = np.full_like(G1, step.C_b_1)
        if V.any() or G1.any():
            grown += step.ratio * step.C_W * (layer.response @ G1 + curvature(layer, V))
        if step.C_W_1:
            grown += step.C_W_1 * self.pairs.vector(layer.of(0, 0))
        self.correction = grown
        super().step(layer, step)


class TangentCorrection(MetricCorrection):
    """H1, carried along with G1 and the blocks of V, D and F that drive it."""

    carried = "VD"

    def __init__(self, pairs: Pairs) -> None:
        super().__init__(pairs)
        self._cross = np.zeros((len(pairs), 2, 2))  # F_{i a j b}, rows i = b, a, columns j = a, b
        self._tangent_correction = np.zeros(len(pairs))
        self._near = NearlyParallelPairs()

    @property
    def _mixed(self) -> Array:
        """D_(ij)(ab), ij = aa, ab, bb: (P, 3)."""
        return self._joint.now()["D"][:, :, 0]

    def now(self) -> dict[str, Array]:
        """H1 (N, N), besides what the metric's correction holds."""
        return {**super().now(), "H1": self.pairs.matrix(self._tangent_correction)}

    def step(self, old: PairExpectations, step: Step) -> None:
        """First H1 and F with what the old layer holds, then G1, V and D."""
        a, b = self.pairs.first, self.pairs.second
        near = np.zeros(len(a), dtype=bool)
        if is_covered(old.activation):
            # Pairs with a kink that the inputs' own basis cannot resolve, in this layer or after the activation.
            near |= nearly_parallel(old.activation, old.K, a, b)
            near |= nearly_parallel(old.activation, old.of(0, 0), a, b)
        G1 = self.correction
        metric = np.stack([G1[self.pairs.first_twice], G1, G1[self.pairs.second_twice]], axis=1)
        state = PairState(metric, self.blocks, self._mixed, self._cross[:, ::-1], self._tangent_correction)
        where, sharp = self._near.step(old, step, state, near)
        correction = self._next_correction(old, step, near)
        correction[where] = sharp
        # F' = C_W^2 [<s_i s_j s'_a s'_b> Theta_ab + r <d(s_i s'_a)> <d(s_j s'_b)> F] (8.79).
        source = slope_moments(old)[:, [[1, 2], [0, 1]]] * old.Theta[a, b][:, None, None]
        left, right = old.mixed_response.blocks(b, a), old.mixed_response.blocks(a, b)
        self._cross = step.C_W**2 * (source + step.ratio * left @ self._cross @ right.transpose(0, 2, 1))
        self._tangent_correction = correction
        super().step(old, step)

    def _next_correction(self, old: PairExpectations, step: Step, near: Mask) -> Array:
        """H1' = r {lambda_W S[s s] + C_W (Theta S[s' s'] + <s' s'> H1 + T' D / 2 + T' F)} + C_W_1 <s' s'> Theta.

        S is the shift of a mean by G1 and V, T' = <d d (s' s')>: (8.59) with (8.71). Pairs ``near`` are left out.
        """
        pairs = self.pairs
        Theta, slopes = pairs.vector(old.Theta), pairs.vector(old.of(1, 1))
        grown = step.C_W_1 * slopes * Theta
        G1, V, D, F = self.correction, self.blocks, self._mixed, self._cross
        if not V.any():  # layer 2: nothing fluctuates yet
            return grown
        first, cross, second = old.rows(pairs.first, pairs.second, 1)
        from_mixed = first * D[:, 0] + cross * D[:, 1] + second * D[:, 2]
        from_cross = 2 * first * F[:, 1, 0] + cross * (F[:, 1, 1] + F[:, 0, 0]) + 2 * second * F[:, 0, 1]
        # n times the shifts of <s_a s_b> and of <s'_a s'_b> from their values at the kernel.
        of_values = old.response @ G1 + curvature(old, V)
        of_slopes = old.response_on(old.pairs, 1) @ G1 + curvature(old, V, 1, near)
        inner = Theta * of_slopes + slopes * self._tangent_correction + from_mixed + from_cross
        grown += step.ratio * (step.lambda_W * of_values + step.C_W * inner)
        return grown


def curvature(layer: PairExpectations, blocks: Array, order: int = 0, near: Mask | None = None) -> Array:
    """(1/8) <d_i d_j d_k d_l (s_a s_b)> V_(ij)(kl), summed over i, j, k, l in {a, b}; s is sigma^(order).

    ``blocks`` (P, 3, 3) holds V between the pairs aa, ab and bb of every pair (a, b): nothing else enters. Pairs
    ``near`` are followed in coordinates of their own, and zero here.
    """
    a, b = layer.pairs.first, layer.pairs.second
    smooth, left_out = layer.activation.is_smooth, np.zeros(len(a), dtype=bool)
    if smooth:  # pairs of one and the same input, or of copies, whose F depends on a single variance
        sizes = layer.K[a, a] + layer.K[b, b]
        same = (sizes - 2 * layer.K[a, b] <= 1e-14 * sizes) | (a == b)
    elif near is not None and is_covered(layer.activation):
        same, left_out = are_tied(layer.K, a, b) & ~near, near
    else:
        # Tied, or at so small an angle psi that rounding would exceed what the limit psi -> 0 leaves out: of order
        # psi^2, and psi for derivatives of the activation.
        same = are_tied(layer.K, a, b, _NEARLY_PARALLEL[order])
        if order and (same & ~are_tied(layer.K, a, b)).any():
            warn_user(
                "inputs are nearly parallel: between them H1 of an activation with kinks is good to three "
                "digits only."
            )
    apart = ~(same | left_out)
    result = np.zeros(len(a))
    if apart.any():  # by partial derivatives
        four, three, two = (layer.of(order + k, order + 4 - k) for k in (4, 3, 2))
        i, j, v = a[apart], b[apart], blocks[apart]
        total = four[i, j] * v[:, 0, 0] + 4 * three[i, j] * v[:, 0, 1]
        total += two[i, j] * (2 * v[:, 0, 2] + 4 * v[:, 1, 1])
        total += 4 * three[j, i] * v[:, 1, 2]
        total += four[j, i] * v[:, 2, 2]
        result[apart] = total / 8
    if smooth:
        # d^2<s^2>/dK^2 = <d^4 s^2> / 4
        s, variance = [factor(layer.activation, order + k) for k in range(5)], layer.K[a, a][same, None, None]
        parts = ((2, s[0] * s[4]), (8, s[1] * s[3]), (6, s[2] * s[2]))
        bend = np.asarray(sum(0.25 * weight * expectation([f], variance).value for weight, f in parts))
        result[same] = 0.5 * bend * blocks[same, 0, 0]
    else:
        line = Line(layer.activation, layer.K, a[same], b[same], order)
        pivot = np.where(line.pivot_is_first, blocks[same, 0, 0], blocks[same, 2, 2])
        result[same] = 0.5 * line.bend() * pivot
    return result
