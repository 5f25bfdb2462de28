"""Kernels of the output layer on the blocks that a prediction needs, without those of the layers before.

Squares and rectangles are computed as such: many test inputs never make all of K_BB unless their covariance is asked
for, and their variances come from a recursion of single inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast, get_args

import numpy as np
from numpy.typing import ArrayLike

from foretrain.support.answers import Result
from foretrain.support.arguments import Array
from foretrain.support.errors import InputError, NotSupportedError, unknown_name
from foretrain.support.memory import require_memory
from foretrain.theory.architecture import MLP, check_network
from foretrain.theory.prediction.pair_recursion import Inputs, pair_kernels
from foretrain.theory.recursions.kinks import inputs_on_kinks, warn_of_kinks

Spread = Literal["covariance", "variance", "none"]

_ALONE, _WITH_THETA = (0,), (0, 1)  # derivatives of the activation that K alone needs, and K with Theta
_WAY_OUT = "use fewer training inputs, or predict fewer test inputs at a time"


class Blocks(NamedTuple):
    """One kernel on training inputs A and test inputs B."""

    train: Array  # (A, A)
    cross: Array  # (A, B)
    test: Array | None  # (B, B) for the spread "covariance", (B,) for "variance"


def kernel(mlp: MLP, X: ArrayLike) -> Array:
    """K^(L) of all pairs of inputs (4.118), (B.11): (N, N)."""
    inputs = Inputs.of(mlp, mlp.check_inputs(X), orders=_ALONE)
    (found,) = _between(mlp, inputs, inputs, orders=_ALONE)
    return found


def tangent_kernel(mlp: MLP, X: ArrayLike) -> Array:
    """Theta^(L) of all pairs of inputs (9.5): (N, N)."""
    inputs = mlp.check_inputs(X)
    check_slopes(mlp)
    warn_of_kinks(mlp, inputs_on_kinks(mlp, inputs))
    return last_layer(mlp, inputs)[1]


def last_layer(mlp: MLP, inputs: Array, tolerance: float = 1e-10) -> tuple[Array, Array]:
    """K^(L) and Theta^(L) of all pairs of inputs together (10.44), (10.45), the layers before forgotten."""
    every = Inputs.of(mlp, inputs, orders=_WITH_THETA)
    K, Theta = _between(mlp, every, every, orders=_WITH_THETA, tolerance=tolerance)
    return K, Theta


def cross_kernel(mlp: MLP, X1: ArrayLike, X2: ArrayLike) -> Array:
    """K^(L) between two sets of inputs: (N1, N2)."""
    first, second = _two_sets(mlp, mlp.check_inputs(X1), mlp.check_inputs(X2), orders=_ALONE)
    (found,) = _between(mlp, first, second, orders=_ALONE)
    return found


def cross_tangent_kernel(mlp: MLP, X1: ArrayLike, X2: ArrayLike) -> Array:
    """Theta^(L) between two sets of inputs: (N1, N2)."""
    first, second = mlp.check_inputs(X1), mlp.check_inputs(X2)
    check_slopes(mlp)
    for kind, inputs in (("X1 input", first), ("X2 input", second)):
        warn_of_kinks(mlp, inputs_on_kinks(mlp, inputs), kind)
    rows, columns = _two_sets(mlp, first, second, orders=_WITH_THETA)
    return _between(mlp, rows, columns, orders=_WITH_THETA)[1]


def training_blocks(mlp: MLP, train: Array, test: Array, spread: Spread = "covariance") -> Blocks:
    """K on training and test inputs, and no more of it than ``spread`` needs."""
    (found,) = _blocks(mlp, train, test, spread, orders=_ALONE)
    return found


def tangent_blocks(
    mlp: MLP, train: Array, test: Array, spread: Spread = "covariance", tolerance: float = 1e-10
) -> tuple[Blocks, Blocks]:
    """The same of K and of Theta; no prediction needs the latter between test inputs."""
    K, Theta = _blocks(mlp, train, test, spread, orders=_WITH_THETA, tolerance=tolerance)
    return K, Theta


def _blocks(
    mlp: MLP, train: Array, test: Array, spread: Spread, orders: tuple[int, ...], tolerance: float = 1e-10
) -> list[Blocks]:
    """Blocks of K, and of Theta with the order 1; refused before the work where they do not fit together."""
    pairs = len(test) ** 2 if spread == "covariance" else 0
    require_memory(
        8.0 * (len(orders) * len(train) * (len(train) + len(test)) + pairs),
        f"the kernel of {len(train):,} training and {len(test):,} test inputs",
        _WAY_OUT
        if len(train) > len(test) or not pairs
        else f"ask for spread='variance' or 'none', or {_WAY_OUT}",
    )
    rows, columns = _two_sets(mlp, train, test, orders)
    crosses = _between(mlp, rows, columns, orders, tolerance)
    own: dict[Spread, Callable[[], Array | None]] = {
        "covariance": lambda: _between(mlp, columns, columns, orders=_ALONE, tolerance=tolerance)[0],
        "variance": lambda: columns.variances[-1],
        "none": lambda: None,
    }
    tests = [own[spread](), None]
    wholes = _between(mlp, rows, rows, orders, tolerance)
    return [Blocks(*parts) for parts in zip(wholes, crosses, tests, strict=False)]


def _two_sets(mlp: MLP, first: Array, second: Array, orders: tuple[int, ...]) -> tuple[Inputs, Inputs]:
    """Both from one run, so that an input of both has the same variances in them."""
    if first.shape[1] != second.shape[1]:
        raise InputError(
            f"the two sets of inputs have {first.shape[1]} and {second.shape[1]} components: give the same number."
        )
    every = Inputs.of(mlp, np.concatenate([first, second]), orders)
    return every[: len(first)], every[len(first) :]


def _between(
    mlp: MLP, rows: Inputs, columns: Inputs, orders: tuple[int, ...], tolerance: float = 1e-10
) -> list[Array]:
    require_memory(
        8.0 * len(orders) * len(rows) * len(columns),
        f"the kernel of {len(rows):,} x {len(columns):,} inputs",
        _WAY_OUT,
    )
    return pair_kernels(mlp, rows, columns, orders, tolerance)


def check_spread(spread: str) -> Spread:
    """What is asked about the spread of outputs, or an error."""
    if spread not in get_args(Spread):
        raise unknown_name("`spread`", str(spread), get_args(Spread))
    return cast("Spread", spread)


def check_slopes(mlp: MLP) -> None:
    """An error where the tangent kernel is infinite."""
    if not mlp.activation.is_continuous:
        raise NotSupportedError(
            f"the tangent kernel of {mlp.activation.label} is infinite, since the activation jumps: use a continuous "
            "activation, or Bayesian inference, which needs K alone."
        )


@dataclass(frozen=True, repr=False, eq=False)
class OutputKernels(Result):
    """K and Theta of the output layer in blocks: A training inputs, B test inputs."""

    K_train: Array  # (A, A)
    K_cross: Array  # (B, A)
    K_test: Array | None  # (B, B), for variances alone (B,), None if no spread is asked for
    Theta_train: Array  # (A, A)
    Theta_cross: Array  # (B, A)

    @classmethod
    def from_matrices(cls, K: ArrayLike, Theta: ArrayLike, training: int) -> OutputKernels:
        """From matrices of all inputs, the first ``training`` of which are trained on."""
        kernel, tangent = np.asarray(K, dtype=np.float64), np.asarray(Theta, dtype=np.float64)
        if kernel.ndim != 2 or kernel.shape[0] != kernel.shape[1] or kernel.shape != tangent.shape:
            raise InputError(
                f"K has shape {kernel.shape} and Theta {tangent.shape}: give two square matrices of all inputs, "
                "training inputs first."
            )
        if not 0 < training <= len(kernel):
            raise InputError(f"training is {training}: give a number from 1 to {len(kernel)}.")
        seen, new = slice(None, training), slice(training, None)
        # Copies, so that what is not kept does not stay in memory.
        blocks = (
            kernel[seen, seen],
            kernel[new, seen],
            kernel[new, new],
            tangent[seen, seen],
            tangent[new, seen],
        )
        return cls(*(block.copy() for block in blocks))

    @property
    def training(self) -> int:
        """How many inputs are trained on."""
        return len(self.K_train)

    @property
    def tests(self) -> int:
        """How many are not."""
        return len(self.K_cross)

    @property
    def joint(self) -> Array:
        """K of all inputs, training inputs first, which samples of initial outputs need."""
        if self.K_test is None or self.K_test.ndim != 2:
            raise InputError(
                "the kernel between test inputs is missing: make the kernels with `spread='covariance'`."
            )
        return np.block([[self.K_train, self.K_cross.T], [self.K_cross, self.K_test]])


def output_kernels(
    mlp: MLP,
    X_train: ArrayLike,
    X_test: ArrayLike | None = None,
    *,
    spread: Spread = "covariance",
    tolerance: float = 1e-10,
) -> OutputKernels:
    """The blocks for a network: (10.44), (10.45); only the last layer is kept, whatever the depth."""
    check_network(mlp)
    train = mlp.check_inputs(X_train, "X_train")
    mlp = mlp.with_inputs(train)
    test = train[:0] if X_test is None else mlp.check_inputs(X_test, "X_test")
    check_slopes(mlp)
    for kind, inputs in (("training input", train), ("test input", test)):
        warn_of_kinks(mlp, inputs_on_kinks(mlp, inputs), kind)
    K, Theta = tangent_blocks(mlp, train, test, check_spread(spread), tolerance)
    return OutputKernels(K.train, K.cross.T, K.test, Theta.train, Theta.cross.T)
