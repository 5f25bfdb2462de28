"""The four-point vertex on chosen quadruples of inputs only, at a cost that does not depend on N.

V_(12)(34) needs the block of V between {11, 12, 22} and {33, 34, 44} and nothing else: marginalisation over the
other inputs is exact.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from foretrain.gaussian import expectations_at
from foretrain.theory.recursions.preactivation import PairExpectations

Array = NDArray[np.float64]
Indices = NDArray[np.intp]


class QuadrupleVertices:
    """Blocks (Q, 3, 3) of V for Q quadruples (a, b, c, d): pairs aa, ab, bb against cc, cd, dd."""

    def __init__(self, quadruples: Indices) -> None:
        self._sides = [_pairs(quadruples[:, :2]), _pairs(quadruples[:, 2:])]
        self.blocks = np.zeros((len(quadruples), 3, 3))

    @property
    def values(self) -> Array:
        """V_(ab)(cd) of every quadruple."""
        return self.blocks[:, 1, 1]

    def step(self, layer: PairExpectations, C_W: float, ratio: float) -> None:
        """V' = C_W^2 [Cov + (n_l / n_{l-1}) M V M^T] (4.119), block by block."""
        left, right = (_response(layer, side) for side in self._sides)
        grown = ratio * left @ self.blocks @ right.transpose(0, 2, 1)
        self.blocks = C_W**2 * (self._source(layer) + grown)

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


def _pairs(two: Indices) -> Indices:
    """(Q, 3, 2): the pairs aa, ab, bb."""
    a, b = two[:, 0], two[:, 1]
    return np.stack([np.stack([a, a], 1), np.stack([a, b], 1), np.stack([b, b], 1)], axis=1)


def _response(layer: PairExpectations, pairs: Indices) -> Array:
    """dF/dK between the three pairs: (Q, 3, 3)."""
    a, b = pairs[:, 1, 0], pairs[:, 1, 1]
    bend, cross = layer.of(2, 0), layer.of(1, 1)
    M = np.zeros((len(pairs), 3, 3))
    M[:, 0, 0] = bend[a, a] + cross[a, a]
    M[:, 2, 2] = bend[b, b] + cross[b, b]
    M[:, 1, 0], M[:, 1, 1], M[:, 1, 2] = 0.5 * bend[a, b], cross[a, b], 0.5 * bend[b, a]
    return M
