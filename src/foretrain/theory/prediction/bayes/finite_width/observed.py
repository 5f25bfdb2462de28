"""Training data as the posterior of a finite network sees them: P = K_AA^-1, u = P y, M = sum_i u_i u_i^T - n_L P."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory.architecture import MLP, check_network
from foretrain.theory.arguments import check_targets
from foretrain.theory.prediction.bayes.posterior import log_density
from foretrain.theory.prediction.cholesky import CholeskyFactor, check_noise, factorise
from foretrain.theory.prediction.kernels import kernel

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Observed:
    """Training inputs A with targets (A, outputs), and the factor of their kernel, noise included."""

    mlp: MLP
    inputs: Array
    targets: Array
    noise: float
    factor: CholeskyFactor

    @property
    def inverse_width(self) -> float:
        """1 / n_{L-1}; zero without a hidden layer, where infinite width is exact."""
        return 1.0 / self.mlp.hidden_widths[-1] if self.mlp.hidden_widths else 0.0

    @cached_property
    def P(self) -> Array:
        """The inverse of the kernel: (A, A)."""
        inverse = self.factor.solve(np.eye(len(self.inputs)))
        return np.asarray((inverse + inverse.T) / 2)

    @cached_property
    def u(self) -> Array:
        """P y: (A, outputs)."""
        return self.factor.solve(self.targets)

    @cached_property
    def M(self) -> Array:
        """Twice the gradient of the infinite-width log evidence with respect to the kernel: (A, A)."""
        return np.asarray(self.u @ self.u.T - self.mlp.n_out * self.P)

    @property
    def infinite_log_evidence(self) -> float:
        """log p(y_A) at infinite width (6.34)."""
        return log_density(self.factor, self.targets)

    def test_inputs(self, X: ArrayLike) -> Array:
        """Test inputs with as many components as the training inputs, or an error."""
        tests = self.mlp.check_inputs(X, "X_test")
        if tests.shape[1] != self.inputs.shape[1]:
            raise InputError(
                f"training inputs have {self.inputs.shape[1]} components and test inputs {tests.shape[1]}: give the "
                "same number."
            )
        return tests


def observe(mlp: MLP, X: ArrayLike, Y: ArrayLike, noise: float, name: str = "X_train") -> Observed:
    """Checked training data, with their kernel factorised; errors call the inputs ``name``, X or X_train."""
    check_plain(mlp)
    inputs = mlp.check_inputs(X, name)
    targets, noise = check_targets(Y, len(inputs), mlp.n_out, name.replace("X", "Y")), check_noise(noise)
    found = Observed(mlp, inputs, targets, noise, factorise(kernel(mlp, inputs), noise))
    with np.errstate(over="ignore", invalid="ignore"):  # corrections contain fourth powers of targets
        finite = np.isfinite(np.sum(found.M**2))
    if not finite:
        raise InputError(
            f"targets up to {np.abs(targets).max():.1g} are too large for a density of finite numbers: rescale "
            "them, or leave out training inputs that are nearly alike."
        )
    return found


def check_plain(mlp: MLP) -> None:
    """An error if the network is none, or has skip connections."""
    check_network(mlp)
    if mlp.is_residual:
        raise NotSupportedError(
            "Bayesian learning at finite width is known for networks without skip connections only: use "
            "bayes_prediction for infinite width, or leave `gamma` out."
        )
