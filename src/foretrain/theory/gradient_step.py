"""What one step of gradient descent changes, to first order in eta: outputs, losses, any observable (chapter 7).

``kernel_step``    from a tangent kernel and initial outputs (7.14), (7.19), (7.20)
``mean_step``      the same with the infinite-width kernel Theta of a network's architecture
``ensemble_step``  mean and covariance over networks, whose initial outputs are N(0, K) at infinite width
``network_steps``  for actual networks, each with its own exact kernel

The loss is half the SUM of squared errors over training inputs; eta is not inside the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from foretrain.support.answers import Result, labelled
from foretrain.support.arguments import Array, real_array
from foretrain.support.errors import InputError
from foretrain.theory.architecture import MLP, check_network
from foretrain.theory.arguments import check_learning_rate, check_targets
from foretrain.theory.ensembles import Parameters, forward
from foretrain.theory.flow import flow
from foretrain.theory.network_tangent_kernel import LayerRates, output_kernel

if TYPE_CHECKING:
    import xarray as xr


_ASYMMETRY = 1e-6  # what single precision leaves of symmetry


@dataclass(frozen=True, repr=False, eq=False)
class GradientStep(Result):
    """Changes of first order in eta; rows of outputs are inputs, training ones first."""

    also = ("loss_after",)
    eta: float
    training: int  # how many inputs are trained on
    outputs: Array  # before the step (inputs, outputs)
    change: Array  # of them (7.20)
    loss: float  # before the step
    loss_change: float  # (7.14), never positive

    @property
    def outputs_after(self) -> Array:
        """z + dz."""
        return np.asarray(self.outputs + self.change)

    @property
    def loss_after(self) -> float:
        """L + dL, to first order (the loss at ``outputs_after`` has part of the second order too)."""
        return self.loss + self.loss_change

    def change_of(self, slope: ArrayLike) -> float:
        """Change of an observable O of the outputs, from dO/dz (inputs, outputs) before the step (7.19)."""
        given = real_array("dO/dz", slope)
        if given.shape != self.change.shape:
            raise InputError(f"dO/dz has shape {given.shape} but the outputs have {self.change.shape}.")
        return float(np.sum(given * self.change))

    def test_loss_change(self, Y_test: ArrayLike) -> float:
        """Change of half the sum of squared errors on the inputs that are not trained on; of either sign."""
        rows, outputs = self.outputs[self.training :], self.outputs.shape[1]
        targets = check_targets(Y_test, len(rows), outputs, "Y_test")
        return float(np.sum((rows - targets) * self.change[self.training :]))


def kernel_step(H: ArrayLike, outputs: ArrayLike, Y: ArrayLike, eta: float) -> GradientStep:
    """One step with tangent kernel H, (D, D) for one that is the same for all outputs, or (n, n, D, D).

    ``outputs`` are those of all D inputs (D, n), the first of which have the targets ``Y`` (A, n).
    """
    eta, z, targets = check_learning_rate(eta), real_array("outputs", outputs), real_array("targets", Y)
    z = z[:, None] if z.ndim == 1 else z
    training = len(np.atleast_1d(targets))
    if z.ndim != 2 or training > len(z):
        raise InputError(
            f"outputs have shape {z.shape} for {training} targets: give (inputs, outputs), trained first."
        )
    kernel = _check_kernel(H, *z.shape)
    error = z[:training] - check_targets(targets, training, z.shape[1])
    if kernel.ndim == 2:
        change = -eta * kernel[:, :training] @ error
    else:
        change = -eta * np.einsum("ijda,aj->di", kernel[..., :training], error)
    terms = error * change[:training]
    if terms.sum() > _ASYMMETRY * np.abs(terms).sum():
        raise InputError(
            "the kernel is not positive semidefinite, since the loss would rise with it: give J lambda J^T."
        )
    return GradientStep(eta, training, z, np.asarray(change), float(np.sum(error**2) / 2), float(terms.sum()))


def _check_kernel(H: ArrayLike, inputs: int, outputs: int) -> Array:
    """A tangent kernel of either shape, symmetric under the exchange of (i_1, a_1) and (i_2, a_2)."""
    kernel = real_array("the kernel", H)
    shapes = ((inputs,) * 2, (outputs,) * 2 + (inputs,) * 2)
    if kernel.shape not in shapes:
        raise InputError(f"the kernel has shape {kernel.shape}: give {shapes[0]} or {shapes[1]}.")
    exchanged = kernel.T if kernel.ndim == 2 else kernel.transpose(1, 0, 3, 2)
    if np.abs(kernel - exchanged).max(initial=0.0) > _ASYMMETRY * np.abs(kernel).max(initial=0.0):
        raise InputError(
            "the kernel is not symmetric under the exchange of its two outputs and inputs: give J lambda J^T with "
            "the indices (i_1, i_2, a_1, a_2)."
        )
    return kernel


def mean_step(
    mlp: MLP, X: ArrayLike, Y: ArrayLike, eta: float, outputs: ArrayLike, X_test: ArrayLike | None = None
) -> GradientStep:
    """One step of a network whose initial outputs on training, then test inputs are given, at infinite width."""
    inputs, eta = _all_inputs(mlp, X, X_test), check_learning_rate(eta)
    targets = check_targets(Y, len(mlp.check_inputs(X)), mlp.n_out, "Y")
    z = check_targets(outputs, len(inputs), mlp.n_out, "outputs")
    Theta = flow(mlp, inputs, ["Theta"])["Theta"].sel(layer=mlp.depth).values
    return kernel_step(Theta, z, targets, eta)


def ensemble_step(
    mlp: MLP, X: ArrayLike, Y: ArrayLike, eta: float, X_test: ArrayLike | None = None
) -> xr.Dataset:
    """Mean and covariance over initial outputs ~ N(0, K) of one step at infinite width, outputs independent.

    ``mean`` and ``covariance`` are of the outputs after the step; the mean before it is zero, so ``mean`` is also the
    mean change, whose covariance is ``change_covariance``. ``loss`` and ``loss_change`` (7.14) have their
    ``_variance``, all exact for the Gaussian ensemble.
    """
    inputs, eta = _all_inputs(mlp, X, X_test), check_learning_rate(eta)
    training = len(mlp.check_inputs(X))
    targets = check_targets(Y, training, mlp.n_out, "Y")
    found = flow(mlp, inputs, ["K", "Theta"])
    K, Theta = (found[name].sel(layer=mlp.depth).values for name in ("K", "Theta"))
    mean = eta * Theta[:, :training] @ targets
    moved = np.eye(len(inputs))
    moved[:, :training] -= eta * Theta[:, :training]
    own, kernel = K[:training, :training], Theta[:training, :training]
    loss, loss_variance = _quadratic_form(0.5 * np.eye(training), own, targets)
    fall, fall_variance = _quadratic_form(-eta * kernel, own, targets)
    changed = eta**2 * Theta[:, :training] @ own @ Theta[:training]
    is_training, pair = np.arange(len(inputs)) < training, "input_1 input_2"
    return labelled(
        {
            "mean": ("input output", mean, "mean output after the step, mean change (7.20)"),
            "covariance": (pair, moved @ K @ moved.T, "covariance of each output after the step"),
            "change_covariance": (pair, changed, "covariance of the change of each output"),
            "loss": ("", loss, "mean of half the sum of squares before the step"),
            "loss_variance": ("", loss_variance, "its variance over networks"),
            "loss_change": ("", fall, "mean change to first order in eta (7.14)"),
            "loss_change_variance": ("", fall_variance, "its variance over networks"),
        },
        {"eta": eta, "network": repr(mlp)},
        training=("input", is_training),
    )


def network_steps(
    parameters: Parameters,
    X: ArrayLike,
    Y: ArrayLike,
    eta: float,
    X_test: ArrayLike | None = None,
    rates: Sequence[LayerRates] | None = None,
) -> list[GradientStep]:
    """One step of each of some actual networks, with its own exact tangent kernel."""
    mlp, eta = parameters.mlp, check_learning_rate(eta)
    inputs = _all_inputs(mlp, X, X_test)
    targets = check_targets(Y, len(mlp.check_inputs(X)), mlp.n_out, "Y")
    kernels, z = output_kernel(parameters, inputs, rates), forward(parameters, inputs)[mlp.depth]
    return [kernel_step(H, outputs.T, targets, eta) for H, outputs in zip(kernels, z, strict=True)]


def _all_inputs(mlp: MLP, X: ArrayLike, X_test: ArrayLike | None) -> Array:
    """Training inputs, then test inputs."""
    check_network(mlp)
    training = mlp.check_inputs(X)
    if X_test is None:
        return training
    return np.concatenate([training, mlp.with_inputs(training).check_inputs(X_test, "X_test")])


def _quadratic_form(M: Array, K: Array, Y: Array) -> tuple[float, float]:
    """Mean and variance of sum_i e_i^T M e_i with errors e_i ~ N(-y_i, K) of independent outputs, M symmetric."""
    spread, pulled = M @ K, M @ Y
    outputs = Y.shape[1]
    mean = outputs * np.trace(spread) + np.sum(Y * pulled)
    variance = 2 * outputs * np.sum(spread * spread.T) + 4 * np.sum(pulled * (K @ pulled))
    return float(mean), float(variance)
