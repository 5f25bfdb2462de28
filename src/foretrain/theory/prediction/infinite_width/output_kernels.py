"""Kernel and tangent kernel of the output layer on training and test inputs, and no more of them than is used."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.memory import require_memory
from foretrain.theory.architecture import MLP
from foretrain.theory.flow.entry import check_network, inputs_on_kinks, warn_of_kinks
from foretrain.theory.prediction.kernels import last_layer

Array = NDArray[np.float64]

_MATRICES = 9  # of all inputs, held at once in the step from one layer to the next


@dataclass(frozen=True, repr=False, eq=False)
class OutputKernels:
    """K and Theta of the output layer in blocks: A training inputs, B test inputs."""

    K_train: Array  # (A, A)
    K_cross: Array  # (B, A)
    K_test: Array  # (B, B)
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

    def __repr__(self) -> str:
        return (
            f"OutputKernels(K and Theta of the output, {self.training} training and {self.tests} test inputs)"
        )


def output_kernels(
    mlp: MLP, X_train: ArrayLike, X_test: ArrayLike | None = None, *, tolerance: float = 1e-10
) -> OutputKernels:
    """The blocks for a network: (10.44), (10.45); only the last layer is kept, whatever the depth."""
    check_network(mlp)
    train = mlp.check_inputs(X_train)
    mlp = mlp.with_inputs(train)
    inputs = train if X_test is None else np.concatenate([train, mlp.check_inputs(X_test)])
    if not mlp.activation.is_continuous:
        raise NotSupportedError(
            f"the tangent kernel of {mlp.activation.label} is infinite, since the activation jumps: choose a "
            "continuous one, or Bayesian inference, which needs K alone."
        )
    require_memory(
        8 * _MATRICES * len(inputs) ** 2,
        f"the kernels of {len(inputs):,} inputs",
        "use fewer training inputs, or predict fewer test inputs at a time",
    )
    warn_of_kinks(mlp, inputs_on_kinks(mlp, inputs))
    return OutputKernels.from_matrices(*last_layer(mlp, inputs, tolerance), len(train))
