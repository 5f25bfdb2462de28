"""The Bayesian posterior of an infinitely wide network: Gaussian, and independent over outputs (6.66), (6.67)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from foretrain.support.arguments import Array, real_array
from foretrain.support.errors import InputError
from foretrain.support.memory import require_memory
from foretrain.theory.architecture import MLP, check_network
from foretrain.theory.arguments import check_targets
from foretrain.theory.prediction.cholesky import CholeskyFactor, check_noise, factorise
from foretrain.theory.prediction.kernels import Spread, check_spread, training_blocks
from foretrain.theory.prediction.predicted_outputs import PredictedOutputs, labelled_mean, labelled_spread


@dataclass(frozen=True, eq=False, repr=False)
class BayesPrediction(PredictedOutputs):
    """What observing the training targets says about the outputs on test inputs.

    Outputs neither depend on each other's targets nor correlate, so that one covariance holds for all.
    """

    log_evidence: float = math.nan
    noise: float = 0.0

    def notes(self) -> list[str]:
        """The evidence."""
        return [f"Log evidence of the training targets: {self.log_evidence:.6g}."]


def bayes_prediction(
    mlp: MLP,
    X_train: ArrayLike,
    Y_train: ArrayLike,
    X_test: ArrayLike,
    *,
    noise: float = 0.0,
    noisy_labels: bool = False,
    spread: Spread = "covariance",
) -> BayesPrediction:
    """Mean (6.64) and covariance (6.57) of the outputs on test inputs, given targets on training inputs.

    Parameters
    ----------
    noise
        Variance of independent noise on every target (6.10): it adds to the diagonal of K on training inputs.
    noisy_labels
        Whether the prediction is of noisy labels, whose variance contains the noise, or of the outputs themselves.
    spread
        "covariance" of all pairs of test inputs, "variance" of each (for many of them), or "none".

    Only K_AA, K_AB and what ``spread`` needs of K_BB are computed; the cost is that of one Cholesky factor.

    Examples
    --------
    >>> import foretrain as ft
    >>> found = bayes_prediction(ft.MLP("relu", 3, 100, C_W=2.0), [[1.0, 0.0]], [1.0], [[1.0, 0.0], [0.0, 1.0]])
    >>> found.mean.values.ravel().round(4)
    array([1.    , 0.4937])
    """
    check_network(mlp)
    spread = check_spread(spread)
    train = mlp.check_inputs(X_train, "X_train")
    test = inputs_like(train, mlp, X_test)
    targets, noise = check_targets(Y_train, len(train), mlp.n_out, "Y_train"), check_noise(noise)
    K = training_blocks(mlp, train, test, spread)
    return _posterior(factorise(K.train, noise), targets, K.cross, K.test, noise, noise * noisy_labels)


def inputs_like(train: Array, mlp: MLP, X: ArrayLike) -> Array:
    """Test inputs with as many components as the training inputs, or an error."""
    tests = mlp.check_inputs(X, "X_test")
    if train.shape[1] != tests.shape[1]:
        raise InputError(
            f"training inputs have {train.shape[1]} components and test inputs {tests.shape[1]}: give the same "
            "number."
        )
    return tests


def condition(
    K: ArrayLike,
    Y: ArrayLike,
    K_train_test: ArrayLike,
    K_test: ArrayLike | None = None,
    *,
    noise: float = 0.0,
    noisy_labels: bool = False,
) -> BayesPrediction:
    """The same for any kernel: K (A, A) and targets (A, outputs), K_train_test (A, B), K_test (B, B) or (B,)."""
    training = factorise(K, check_noise(noise))
    cross = real_array("the kernel between training and test inputs", K_train_test)
    size = len(training.lower)
    if cross.ndim != 2 or len(cross) != size:
        raise InputError(
            f"the kernel between training and test inputs has shape {cross.shape}: give ({size}, tests)."
        )
    tests = cross.shape[1]
    own = None if K_test is None else real_array("the kernel of test inputs", K_test)
    if own is not None and own.shape not in ((tests,), (tests, tests)):
        raise InputError(
            f"the kernel of test inputs has shape {own.shape}: give ({tests}, {tests}) or ({tests},)."
        )
    return _posterior(training, targets_for(Y, size), cross, own, noise, noise * noisy_labels)


def targets_for(Y: ArrayLike, inputs: int, name: str = "targets") -> Array:
    """Targets (inputs, outputs) with any number of outputs; one dimension means one output."""
    targets = real_array(name, Y)
    targets = targets[:, None] if targets.ndim == 1 else targets
    return check_targets(targets, inputs, targets.shape[-1] if targets.ndim else 1, name)


def log_density(training: CholeskyFactor, targets: Array) -> float:
    """Sum over outputs of log N(y_i; 0, K) (6.34)."""
    inputs, outputs = int(targets.shape[0]), int(targets.shape[1])
    square = float((training.whiten(targets) ** 2).sum())
    return -0.5 * (square + outputs * (training.log_determinant + inputs * math.log(2 * math.pi)))


def _posterior(
    training: CholeskyFactor,
    targets: Array,
    cross: Array,
    own: Array | None,
    noise: float,
    label_noise: float,
) -> BayesPrediction:
    require_memory(
        8.0 * (2 * cross.size + (0 if own is None else 2 * own.size)),
        "the posterior",
        "use fewer test inputs",
    )
    spread = None
    if own is not None:
        white = training.whiten(cross)
        if own.ndim == 2:
            spread = own - white.T @ white
            spread = (spread + spread.T) / 2
            spread[np.diag_indices_from(spread)] += label_noise
        else:
            spread = own - np.einsum("ab,ab->b", white, white) + label_noise
    covariance, variance = labelled_spread(spread, "posterior covariance (6.57)")
    return BayesPrediction(
        labelled_mean(cross.T @ training.solve(targets), "posterior mean (6.64)"),
        covariance,
        variance,
        "Bayesian inference at infinite width",
        training.jitter,
        log_density(training, targets),
        noise,
    )


def bayes_equivalent_rates(mlp: MLP) -> MLP:
    """The same network with lambda = C in the output layer and zero in all others, so that Theta = K (10.46)-(10.49).

    Gradient descent then trains the output layer alone, on random features; over initialisations its end has mean
    and covariance of the posterior without noise.

    Examples
    --------
    >>> bayes_equivalent_rates(MLP("tanh", depth=3, width=100, C_b=0.1, C_W=1.5)).lambda_W
    (0.0, 0.0, 1.5)
    """
    check_network(mlp)
    still = (0.0,) * (mlp.depth - 1)
    return mlp.replace(lambda_b=(*still, mlp.C_b[-1]), lambda_W=(*still, mlp.C_W[-1]))
