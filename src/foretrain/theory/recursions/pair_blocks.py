"""The four-point vertex inside every pair of inputs: all that G1 and the variances of the metric need.

For the pair (a, b) the 3 x 3 block of V on {aa, ab, bb} flows by itself, with two-input expectations only: O(N^2)
work and memory, where the full tensor has N^4 entries.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from foretrain.theory.recursions.pairs import Pairs
from foretrain.theory.recursions.preactivation import PairExpectations, Step, next_metric_correction

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
