"""The exact flow of block-symmetric networks: a network of one neuron per mode on K Gaussian inputs.

f = sqrt(N_B) A_L sigma(A_{L-1} ... sigma(A_1 g)), y = sum_k beta_k sigma(g_k). In the normalized metric (rate 1 for
W_1, 1/N_B above) every A_l obeys dA_l/ds = -(1/N_B) dLoss/dA_l: the metric's factors cancel the numbers of neurons.
Rates here are per reduced time t = s / N_B, where the flow is plain: dA/dt = -dLoss/dA.

A row of W_1 in block k is sum_m A_1[k, m] v_m, an entry of a middle W_l between blocks is A_l[k, k'] / N_B and an
entry of W_L in block k is A_L[k] / sqrt(N_B). The diagonals are the scales X_l of the modes, off-diagonal entries
of A_1 are rotations eta, those of the middle layers off-block entries C.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.activations import Activation
from foretrain.activations import activation as find_activation
from foretrain.saddle.modes.gaussian_grid import GaussianGrid, gaussian_grid
from foretrain.saddle.parameters import Array, check_beta, check_depth, check_width
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


class Passage(NamedTuple):
    """One pass: h_0 .. h_{L-1} and sigma'(z_1) .. (..., K, points), sqrt(N_B) w (f - y) (..., 1, points), loss."""

    hidden: list[Array]
    inputs: list[Array]
    slopes: list[Array]
    error: Array
    loss: Array


@dataclass(frozen=True, eq=False)
class BlockField:
    """The right side of the block-symmetric flow, for states (..., size) as ``layout`` orders them."""

    activation: Activation
    depth: int
    block_width: int
    betas: tuple[float, ...]
    grid: GaussianGrid

    @property
    def layout(self) -> BlockLayout:
        """Where each number is in a state."""
        return BlockLayout(self.depth, len(self.betas))

    @cached_property
    def teacher(self) -> Array:
        """Y at the points, (1, points)."""
        signals = np.asarray(self.activation.value(self.grid.points), dtype=np.float64)
        return (np.array(self.betas) @ signals)[None]

    def passage(self, state: Array) -> Passage:
        """Forward through all layers."""
        matrices = self.layout.matrices(state)
        hidden, inputs, slopes = [self.grid.points], [], []
        for matrix in matrices[:-1]:
            inputs.append(matrix @ hidden[-1])
            hidden.append(np.asarray(self.activation.value(inputs[-1]), dtype=np.float64))
            slopes.append(np.asarray(self.activation.derivative(inputs[-1], 1), dtype=np.float64))
        scale = math.sqrt(self.block_width)
        residual = scale * (matrices[-1] @ hidden[-1]) - self.teacher
        weighted = residual * self.grid.weights
        loss = 0.5 * (residual * weighted).sum(axis=(-2, -1))
        return Passage(hidden, inputs, slopes, scale * weighted, loss)

    def rates(self, state: Array) -> Array:
        """dA/dt = -dLoss/dA per reduced time."""
        way, matrices = self.passage(state), self.layout.matrices(state)
        delta, found = way.error, []
        for layer in range(self.depth - 1, 0, -1):
            found.append(-delta @ way.hidden[layer].mT)
            delta = (matrices[layer].mT @ delta) * way.slopes[layer - 1]
        found.append(-delta @ way.hidden[0].mT)
        return self.layout.joined(found[::-1])

    def tangent(self, state: Array, direction: Array) -> Array:
        """The derivative of the rates along a direction; minus the Hessian of the loss, hence symmetric."""
        way = self.passage(state)
        matrices, moves = self.layout.matrices(state), self.layout.matrices(direction)
        hidden, bends = [np.zeros_like(self.grid.points)], []
        for layer in range(self.depth - 1):
            moved = moves[layer] @ way.hidden[layer] + matrices[layer] @ hidden[-1]
            bends.append(self.activation.derivative(way.inputs[layer], 2) * moved)
            hidden.append(way.slopes[layer] * moved)
        change = moves[-1] @ way.hidden[-1] + matrices[-1] @ hidden[-1]
        delta, shift, found = way.error, self.block_width * change * self.grid.weights, []
        for layer in range(self.depth - 1, 0, -1):
            found.append(-shift @ way.hidden[layer].mT - delta @ hidden[layer].mT)
            pulled = matrices[layer].mT @ delta
            moved = moves[layer].mT @ delta + matrices[layer].mT @ shift
            shift = moved * way.slopes[layer - 1] + pulled * bends[layer - 1]
            delta = pulled * way.slopes[layer - 1]
        found.append(-shift @ way.hidden[0].mT)
        return self.layout.joined(found[::-1])

    def loss(self, state: Array) -> Array:
        """E[(f - y)^2] / 2."""
        return self.passage(state).loss

    def alignments(self, state: Array) -> Array:
        """|W_1 v_k| / sqrt(N) of every mode (..., K): how much of it the first layer sees, in any block."""
        return np.asarray(np.sqrt(np.mean(self.layout.matrices(state)[0] ** 2, axis=-2)))


def block_field(
    activation: Any, depth: int, betas: Sequence[float], block_width: int, grid: GaussianGrid | None = None
) -> BlockField:
    """The flow of a network of K = len(betas) blocks of ``block_width`` neurons, on the usual grid unless given.

    >>> field = block_field("tanh", depth=4, betas=(1.0, 0.3, 0.08), block_width=20)
    >>> field.layout.size
    30
    """
    act, strengths = find_activation(activation), tuple(check_beta(beta) for beta in betas)
    if not strengths:
        raise InputError("betas are empty: give the strength of at least one mode of the teacher.")
    chosen = gaussian_grid(act, len(strengths)) if grid is None else grid
    if len(chosen.points) != len(strengths):
        raise InputError(f"the grid is for {len(chosen.points)} modes, but there are {len(strengths)} betas.")
    return BlockField(act, check_depth(depth), check_width(block_width), strengths, chosen)
