"""Kernels of the output layer on the blocks that a prediction needs, without those of the layers before.

A square block is one run of the recursion. A rectangular one is cut out of a square where that is little larger, else
it goes tile by tile through small squares, since an entry depends on its own two inputs only: many test inputs never
make all of K_BB unless their covariance is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Literal, NamedTuple, TypeVar, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.gaussian import Expectation, factor, gram
from foretrain.support.errors import InputError, NotSupportedError, unknown_name
from foretrain.support.memory import require_memory
from foretrain.support.progress import Progress, track
from foretrain.theory.architecture import MLP, Layer
from foretrain.theory.flow.entry import inputs_on_kinks, warn_of_kinks
from foretrain.theory.recursions.ntk import first_tangent_kernel

Array = NDArray[np.float64]
Stack = tuple[Array, ...]
Spread = Literal["covariance", "variance", "none"]

EXPLODED = 1e30
_TILE = 1000
_SMALLEST_TILE = 128  # below, calls cost more than entries
_ALONE = 64  # inputs of a square of which only the diagonal is used
_MATRICES = 4  # of the size of the result, that the recursion of K holds at once
_WITH_TANGENT = 7  # the same with Theta
_WAY_OUT = "use fewer training inputs, or predict fewer test inputs at a time"
_K = TypeVar("_K", bound=Stack)


class Blocks(NamedTuple):
    """One kernel on training inputs A and test inputs B."""

    train: Array  # (A, A)
    cross: Array  # (A, B)
    test: Array | None  # (B, B) for the spread "covariance", (B,) for "variance"


def kernel(mlp: MLP, X: ArrayLike) -> Array:
    """K^(L) of all pairs of inputs (4.118), (B.11): (N, N)."""
    inputs = mlp.check_inputs(X)
    _require(len(inputs), len(inputs), _MATRICES)
    K = mlp.first_kernel(inputs)
    for layer in track(mlp.layers[1:], "layers"):
        _refuse_exploded(K, layer.number - 1)
        (signal,) = _expectations(mlp, K, (0,), 1e-10)
        K = _next_kernel(K, signal, layer)
    _refuse_exploded(K, mlp.depth)
    return K


def tangent_kernel(mlp: MLP, X: ArrayLike) -> Array:
    """Theta^(L) of all pairs of inputs (9.5): (N, N)."""
    inputs = mlp.check_inputs(X)
    check_slopes(mlp)
    warn_of_kinks(mlp, inputs_on_kinks(mlp, inputs))
    return last_layer(mlp, inputs)[1]


def last_layer(mlp: MLP, inputs: Array, tolerance: float = 1e-10) -> tuple[Array, Array]:
    """K^(L) and Theta^(L) of all pairs of inputs together (10.44), (10.45), the layers before forgotten."""
    _require(len(inputs), len(inputs), _WITH_TANGENT)
    K, Theta = mlp.first_kernel(inputs), first_tangent_kernel(mlp, inputs)
    for layer in track(mlp.layers[1:], "layers"):
        _refuse_exploded(K, layer.number - 1)
        signal, slope = _expectations(mlp, K, (0, 1), tolerance)
        _grow_tangent_kernel(Theta, signal, slope, layer)
        K = _next_kernel(K, signal, layer)
    _refuse_exploded(K, mlp.depth)
    return K, Theta


def cross_kernel(mlp: MLP, X1: ArrayLike, X2: ArrayLike) -> Array:
    """K^(L) between two sets of inputs: (N1, N2)."""
    (found,) = between(lambda X: (kernel(mlp, X),), mlp.check_inputs(X1), mlp.check_inputs(X2))
    return found


def cross_tangent_kernel(mlp: MLP, X1: ArrayLike, X2: ArrayLike) -> Array:
    """Theta^(L) between two sets of inputs: (N1, N2)."""
    first, second = mlp.check_inputs(X1), mlp.check_inputs(X2)
    check_slopes(mlp)
    for inputs in (first, second):
        warn_of_kinks(mlp, inputs_on_kinks(mlp, inputs))
    (found,) = between(lambda X: last_layer(mlp, X)[1:], first, second)
    return found


def kernel_diagonal(mlp: MLP, X: ArrayLike) -> Array:
    """K^(L) of each input with itself: (N,)."""
    inputs = mlp.check_inputs(X)
    parts = range(0, len(inputs), _ALONE)
    return np.concatenate([np.diagonal(kernel(mlp, inputs[start : start + _ALONE])) for start in parts])


def training_blocks(mlp: MLP, train: Array, test: Array, spread: Spread = "covariance") -> Blocks:
    """K on training and test inputs, and no more of it than ``spread`` needs."""
    (found,) = _blocks(lambda X: (kernel(mlp, X),), mlp, train, test, spread)
    return found


def tangent_blocks(
    mlp: MLP, train: Array, test: Array, spread: Spread = "covariance", tolerance: float = 1e-10
) -> tuple[Blocks, Blocks]:
    """The same of K and of Theta; no prediction needs the latter between test inputs."""
    K, Theta = _blocks(lambda X: last_layer(mlp, X, tolerance), mlp, train, test, spread)
    return K, Theta


def _blocks(
    square: Callable[[Array], Stack], mlp: MLP, train: Array, test: Array, spread: Spread
) -> list[Blocks]:
    """Blocks of all kernels that ``square`` gives, the first of which is K."""
    size = len(train)
    if _fit_together(size, len(test), spread):
        # In one run, a test input that is also a training input has the same entries to rounding. Copies, so that
        # the whole is not kept.
        wholes = square(np.concatenate([train, test]))
        return [
            Blocks(M[:size, :size].copy(), M[:size, size:].copy(), _own(M[size:, size:], spread))
            for M in wholes
        ]
    crosses = between(square, train, test)
    own = None
    if spread != "none":
        own = kernel(mlp, test) if spread == "covariance" else kernel_diagonal(mlp, test)
    wholes = square(train)
    return [
        Blocks(whole, cross, None if number else own)
        for number, (whole, cross) in enumerate(zip(wholes, crosses, strict=True))
    ]


def _fit_together(train: int, test: int, spread: Spread) -> bool:
    """Whether one square of all inputs costs less than tiles, and K_BB in it is small or asked for."""
    return train + test <= _TILE or test <= (2 * train if spread == "covariance" else train / 2)


def _own(tests: Array, spread: Spread) -> Array | None:
    if spread == "none":
        return None
    return tests.copy() if spread == "covariance" else np.diagonal(tests).copy()


def check_spread(spread: str) -> Spread:
    """What is asked about the spread of outputs, or an error."""
    if spread not in get_args(Spread):
        raise unknown_name("spread", str(spread), get_args(Spread))
    return cast("Spread", spread)


def between(square: Callable[[Array], _K], X1: Array, X2: Array, tile: int | None = None) -> list[Array]:
    """The off-diagonal blocks of kernels that are known for squares, from tiles of both sets together.

    A tile has as many inputs of one set as of the other, because then the least of a square is thrown away.
    """
    if X1.shape[1] != X2.shape[1]:
        raise InputError(
            f"the two sets of inputs have {X1.shape[1]} and {X2.shape[1]} components: give the same number."
        )
    _require(len(X1), len(X2), 2)
    tile = tile or min(_TILE, max(_SMALLEST_TILE, min(len(X1), len(X2))))
    found: list[Array] = []
    tiles = list(product(range(0, len(X1), tile), range(0, len(X2), tile)))
    with Progress("tiles of the kernel", total=len(tiles)) as bar:
        for i, j in tiles:
            first, second = X1[i : i + tile], X2[j : j + tile]
            parts = square(np.concatenate([first, second]))
            found = found or [np.empty((len(X1), len(X2))) for _ in parts]
            for whole, part in zip(found, parts, strict=True):
                whole[i : i + tile, j : j + tile] = part[: len(first), len(first) :]
            bar.advance()
    return found


def check_slopes(mlp: MLP) -> None:
    """An error where the tangent kernel is infinite."""
    if not mlp.activation.is_continuous:
        raise NotSupportedError(
            f"the tangent kernel of {mlp.activation.label} is infinite, since the activation jumps: use a continuous "
            "activation, or Bayesian inference, which needs K alone."
        )


def _expectations(mlp: MLP, K: Array, orders: tuple[int, ...], tolerance: float) -> list[Array]:
    """<s s> of derivatives of these orders, with what they share computed once."""
    same = [factor(mlp.activation, order) for order in orders]
    found = cast("list[Expectation]", gram([(f, f) for f in same], K, tolerance=tolerance))
    return [np.asarray(item.value) for item in found]


def _next_kernel(K: Array, signal: Array, layer: Layer) -> Array:
    """K' = C_b + C_W <s s> + gamma^2 K (B.11), written over <s s>, since matrices may be large."""
    signal *= layer.C_W
    signal += layer.C_b
    if layer.gamma:
        K *= layer.gamma**2
        signal += K
    return signal


def _grow_tangent_kernel(Theta: Array, signal: Array, slope: Array, layer: Layer) -> None:
    """Theta' = lambda_b + lambda_W <s s> + (gamma^2 + C_W <s' s'>) Theta (8.63), written over Theta."""
    slope *= layer.C_W
    slope += layer.gamma**2
    Theta *= slope
    np.multiply(signal, layer.lambda_W, out=slope)
    Theta += slope
    Theta += layer.lambda_b


def _require(rows: int, columns: int, matrices: int) -> None:
    require_memory(8.0 * matrices * rows * columns, f"the kernel of {rows:,} x {columns:,} inputs", _WAY_OUT)


def _refuse_exploded(K: Array, layer: int) -> None:
    if not K.diagonal().max() < EXPLODED:
        raise InputError(
            f"the kernel exceeds {EXPLODED:g} at layer {layer}: choose a smaller C_W, fewer layers or smaller inputs."
        )
