"""Kernels of the output layer on the blocks that a prediction needs, without those of the layers before.

A square block is one run of the recursion; a rectangular one goes tile by tile through small squares, since an entry
depends on its own two inputs only. So K_AB of many test inputs never holds all of K_BB.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.memory import require_memory
from foretrain.support.progress import Progress, track
from foretrain.theory.architecture import MLP
from foretrain.theory.flow.entry import inputs_on_kinks, warn_of_kinks
from foretrain.theory.recursions.ntk import first_tangent_kernel, next_tangent_kernel
from foretrain.theory.recursions.preactivation import PairExpectations
from foretrain.theory.recursions.residual import next_kernel

Array = NDArray[np.float64]

EXPLODED = 1e30
_TILE = 1000
_MATRICES = 6  # of the size of the result, that the recursion holds at once


def kernel(mlp: MLP, X: ArrayLike) -> Array:
    """K^(L) of all pairs of inputs (4.118), (B.11): (N, N)."""
    inputs = mlp.check_inputs(X)
    _require(len(inputs), len(inputs), _MATRICES)
    K = mlp.first_kernel(inputs)
    for layer in track(mlp.layers[1:], "layers"):
        _refuse_exploded(K, layer.number - 1)
        K = next_kernel(PairExpectations(mlp.activation, K), layer)
    _refuse_exploded(K, mlp.depth)
    return K


def tangent_kernel(mlp: MLP, X: ArrayLike) -> Array:
    """Theta^(L) of all pairs of inputs (9.5): (N, N)."""
    inputs = mlp.check_inputs(X)
    _check_slopes(mlp)
    warn_of_kinks(mlp, inputs_on_kinks(mlp, inputs))
    return _tangent_kernel(mlp, inputs)


def _tangent_kernel(mlp: MLP, inputs: Array) -> Array:
    _require(len(inputs), len(inputs), _MATRICES + 2)
    return last_layer(mlp, inputs)[1]


def last_layer(mlp: MLP, inputs: Array, tolerance: float = 1e-10) -> tuple[Array, Array]:
    """K^(L) and Theta^(L) of all pairs of inputs together, the layers before forgotten."""
    K, Theta = mlp.first_kernel(inputs), first_tangent_kernel(mlp, inputs)
    for layer in track(mlp.layers[1:], "layers"):
        _refuse_exploded(K, layer.number - 1)
        old = PairExpectations(mlp.activation, K, tolerance)
        Theta, K = next_tangent_kernel(old, Theta, layer), next_kernel(old, layer)
    return K, Theta


def cross_kernel(mlp: MLP, X1: ArrayLike, X2: ArrayLike) -> Array:
    """K^(L) between two sets of inputs: (N1, N2)."""
    return between(lambda X: kernel(mlp, X), mlp.check_inputs(X1), mlp.check_inputs(X2))


def cross_tangent_kernel(mlp: MLP, X1: ArrayLike, X2: ArrayLike) -> Array:
    """Theta^(L) between two sets of inputs: (N1, N2)."""
    first, second = mlp.check_inputs(X1), mlp.check_inputs(X2)
    _check_slopes(mlp)
    for inputs in (first, second):
        warn_of_kinks(mlp, inputs_on_kinks(mlp, inputs))
    return between(lambda X: _tangent_kernel(mlp, X), first, second)


def kernel_diagonal(mlp: MLP, X: ArrayLike) -> Array:
    """K^(L) of each input with itself: (N,)."""
    inputs = mlp.check_inputs(X)
    parts = range(0, len(inputs), _TILE)
    return np.concatenate([np.diagonal(kernel(mlp, inputs[start : start + _TILE])) for start in parts])


def training_blocks(
    mlp: MLP, train: Array, test: Array, spread: str = "covariance"
) -> tuple[Array, Array, Array | None]:
    """K_AA, K_AB and, for ``spread`` "covariance" or "variance", K_BB or its diagonal.

    A few inputs go together, so that a test input that is also a training input has the same entries to rounding.
    """
    size = len(train)
    if size + len(test) <= _TILE:
        whole = kernel(mlp, np.concatenate([train, test]))
        own = {"covariance": whole[size:, size:], "variance": np.diagonal(whole)[size:]}.get(spread)
        return whole[:size, :size], whole[:size, size:], own
    of_tests = {"covariance": kernel, "variance": kernel_diagonal}.get(spread)
    cross = cross_kernel(mlp, train, test)
    return kernel(mlp, train), cross, None if of_tests is None else of_tests(mlp, test)


def between(square: Callable[[Array], Array], X1: Array, X2: Array, tile: int = _TILE) -> Array:
    """The off-diagonal block of a kernel that is known for squares, from tiles of both sets together."""
    if X1.shape[1] != X2.shape[1]:
        raise InputError(
            f"the two sets of inputs have {X1.shape[1]} and {X2.shape[1]} components: give the same number."
        )
    _require(len(X1), len(X2), 1)
    found = np.empty((len(X1), len(X2)))
    tiles = list(product(range(0, len(X1), tile), range(0, len(X2), tile)))
    with Progress("tiles of the kernel", total=len(tiles)) as bar:
        for i, j in tiles:
            first, second = X1[i : i + tile], X2[j : j + tile]
            both = square(np.concatenate([first, second]))
            found[i : i + tile, j : j + tile] = both[: len(first), len(first) :]
            bar.advance()
    return found


def _check_slopes(mlp: MLP) -> None:
    if not mlp.activation.is_continuous:
        raise NotSupportedError(
            f"the tangent kernel of {mlp.activation.label} is infinite, since the activation jumps: use K, or a "
            "continuous activation."
        )


def _require(rows: int, columns: int, matrices: int) -> None:
    require_memory(
        8.0 * matrices * rows * columns, f"the kernel of {rows:,} x {columns:,} inputs", "use fewer inputs"
    )


def _refuse_exploded(K: Array, layer: int) -> None:
    if not K.diagonal().max() < EXPLODED:
        raise InputError(
            f"the kernel exceeds {EXPLODED:g} at layer {layer}: choose a smaller C_W, fewer layers or smaller inputs."
        )
