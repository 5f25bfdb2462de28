"""The four-point vertex on chosen quadruples of inputs only, at a cost that does not depend on N.

V_(12)(34) needs the block of V between {11, 12, 22} and {33, 34, 44} and nothing else: marginalisation over the
other inputs is exact.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from foretrain.gaussian import expectations_at
from foretrain.theory.recursions.pair_blocks import response_blocks
from foretrain.theory.recursions.preactivation import PairExpectations, Step

Array = NDArray[np.float64]
Indices = NDArray[np.intp]


class QuadrupleVertices:
    """Blocks (Q, 3, 3) of V for Q quadruples (a, b, c, d): pairs aa, ab, bb against cc, cd, dd."""

    def __init__(self, quadruples: Indices) -> None:
        self._used, places = np.unique(quadruples, return_inverse=True)
        own = places.reshape(quadruples.shape)
        self._sides = [pairs_of(own[:, :2]), pairs_of(own[:, 2:])]
        self.blocks = np.zeros((len(quadruples), 3, 3))

    def now(self) -> dict[str, Array]:
        """V_(ab)(cd) of every quadruple."""
        return {"V": self.blocks[:, 1, 1]}

    def step(self, old: PairExpectations, step: Step) -> None:
        """V' = C_W^2 [Cov + (n_l / n_{l-1}) M V M^T] (4.119), block by block."""
        layer = old.among(self._used)
        left, right = (response_blocks(layer, side[:, 1, 0], side[:, 1, 1]) for side in self._sides)
        grown = step.ratio * left @ self.blocks @ right.transpose(0, 2, 1)
        self.blocks = step.C_W**2 * (self._source(layer) + grown)
        # aa, ab and bb of one input are one entry; kept apart, their rounding would grow by chi_perp a layer.
        left_alone, right_alone = (side[:, 1, 0] == side[:, 1, 1] for side in self._sides)
        self.blocks[left_alone] = self.blocks[left_alone, :1]
        self.blocks[right_alone] = self.blocks[right_alone][:, :, :1]

    def _source(self, layer: PairExpectations) -> Array:
        first, second = self._sides
        shape = (len(first), 3, 3, 2)
        both = np.concatenate(
            [np.broadcast_to(first[:, :, None], shape), np.broadcast_to(second[:, None], shape)], axis=-1
        )
        product = np.asarray(expectations_at([layer.activation] * 4, layer.K, both).value)
        square = layer.of(0, 0)
        means = [square[side[..., 0], side[..., 1]] for side in self._sides]
        return np.asarray(product - means[0][:, :, None] * means[1][:, None, :])


def pairs_of(two: Indices) -> Indices:
    """(Q, 3, 2): the pairs aa, ab, bb."""
    a, b = two[:, 0], two[:, 1]
    return np.stack([np.stack([a, a], 1), np.stack([a, b], 1), np.stack([b, b], 1)], axis=1)
