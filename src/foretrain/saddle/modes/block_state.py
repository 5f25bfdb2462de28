"""The numbers of a block-symmetric network (App. E): one block of neurons for each direction of the teacher.

A row of W_1 in block k is sum_m A_1[k, m] v_m, an entry of a middle W_l between blocks is A_l[k, k'] / N_B and an
entry of W_L in block k is A_L[k] / sqrt(N_B): a network of one neuron per mode. The diagonals are the scales X_l of
the modes, off-diagonal entries of A_1 are rotations eta, those of the middle layers off-block entries C.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.saddle.parameters import Array
from foretrain.support.errors import InputError


@dataclass(frozen=True)
class BlockLayout:
    """How the matrices A_1 .. A_L (the last one row) lie in one vector, for depth L and K modes."""

    depth: int
    modes: int

    @property
    def size(self) -> int:
        """(L - 1) K^2 + K numbers."""
        return (self.depth - 1) * self.modes**2 + self.modes

    def matrices(self, state: Array) -> list[Array]:
        """A_1 .. A_{L-1} (..., K, K) and A_L (..., 1, K), as views of states (..., size)."""
        K = self.modes
        square = state[..., : -K or None].reshape(*state.shape[:-1], self.depth - 1, K, K)
        return [*np.moveaxis(square, -3, 0), state[..., None, -K:]]

    def joined(self, matrices: list[Array]) -> Array:
        """The vector (..., size) of matrices A_1 .. A_L."""
        return np.concatenate([matrix.reshape(*matrix.shape[:-2], -1) for matrix in matrices], axis=-1)

    def from_scales(self, scales: ArrayLike) -> Array:
        """The vector of diagonal matrices with X_l of every mode: (..., L, K) to (..., size)."""
        X = np.asarray(scales, dtype=float)
        if X.shape[-2:] != (self.depth, self.modes) or not np.isfinite(X).all():
            raise InputError(
                f"scales have shape {X.shape}: give finite numbers for {self.depth} layers and {self.modes} modes."
            )
        middle = X[..., :-1, :, None] * np.eye(self.modes)
        return np.concatenate([middle.reshape(*X.shape[:-2], -1), X[..., -1, :]], axis=-1)

    def scales(self, state: Array) -> Array:
        """X_l of every mode (..., L, K): the diagonals."""
        return state[..., self.diagonal].reshape(*state.shape[:-1], self.depth, self.modes)

    @property
    def diagonal(self) -> NDArray[np.intp]:
        """Places of the scales X, layer by layer."""
        K = self.modes
        square = np.arange((self.depth - 1) * K * K).reshape(self.depth - 1, K, K)
        last = np.arange(K) + square.size
        return np.concatenate([np.diagonal(square, axis1=1, axis2=2).ravel(), last])

    def off_diagonal(self, layer: int) -> NDArray[np.intp]:
        """Places of the off-diagonal entries of A_layer: rotations for layer 1, off-block entries above."""
        if not 1 <= layer < self.depth:
            raise InputError(
                f"layer is {layer}: layers 1 to {self.depth - 1} of {self.depth} have entries between the modes."
            )
        K = self.modes
        inside = np.arange(K * K).reshape(K, K)[~np.eye(K, dtype=bool)]
        return np.asarray(inside + (layer - 1) * K * K)
