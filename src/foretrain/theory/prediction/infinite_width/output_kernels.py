"""Kernel and tangent kernel of the output layer on training and test inputs, and no more of them than is used."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.answers import Result
from foretrain.support.errors import InputError
from foretrain.theory.architecture import MLP, check_network
from foretrain.theory.flow.kinks import inputs_on_kinks, warn_of_kinks
from foretrain.theory.prediction.kernels import Spread, check_slopes, check_spread, tangent_blocks

Array = NDArray[np.float64]


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
