"""Networks of infinite width trained on the cross-entropy (10.36)-(10.38).

Training keeps the mean over outputs of every training output, so targets are logits log p up to a shift c of each
input that depends on the network: c = mean_i (z_i(0) - y_i). Softmax outputs do not feel it. Hard labels have their
minimum at infinity: for them give a time, or smooth them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax

from foretrain.support.arguments import Array
from foretrain.support.errors import InputError
from foretrain.support.seeds import Seed, generator
from foretrain.theory.arguments import check_targets
from foretrain.theory.prediction.algorithms import (
    Algorithm,
    Descent,
    GradientFlow,
)
from foretrain.theory.prediction.infinite_width.drawn_networks import TOLERANCE, train_networks
from foretrain.theory.prediction.infinite_width.gradient_descent import GradientDescent
from foretrain.theory.prediction.infinite_width.losses import (
    CROSS_ENTROPY,
    ExpectedLoss,
    check_probabilities,
    expected_loss,
)
from foretrain.theory.prediction.kernels import OutputKernels, Spread
from foretrain.theory.prediction.predicted_outputs import (
    PredictedOutputs,
    labelled_mean,
    labelled_spread,
    labelled_tests,
)

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class CrossEntropyPrediction(PredictedOutputs):
    """Logits on test inputs of networks trained on the cross-entropy, and their softmax, over ``draws`` networks.

    The shift of a network correlates its logits: ``between_outputs`` is the covariance of two of them, of pairs of
    tests or of each, like that of one. At the end of training logits are exact, and their standard error is zero.
    """

    mean_standard_error: xr.DataArray
    probabilities: xr.DataArray
    probabilities_standard_error: xr.DataArray
    between_outputs: xr.DataArray | None
    draws: int

    def without_shift(self) -> PredictedOutputs:
        """Logits up to what is common to all outputs of an input, which no softmax and no cross-entropy feels."""
        given = self.variance if self.covariance is None else self.covariance
        spread = None
        if given is not None and self.between_outputs is not None:
            spread = given.values - self.between_outputs.values
        covariance, variance = labelled_spread(spread, "covariance of a logit without its shift")
        return PredictedOutputs(self.mean, covariance, variance, self.statement, self.jitter)

    def only(self, spread: Spread) -> CrossEntropyPrediction:
        """The same with no more than this spread kept."""
        found, between = super().only(spread), self.between_outputs
        if spread == "none" or between is None:
            return replace(found, between_outputs=None)
        if spread == "variance" and between.ndim == 2:
            between = labelled_tests("between_outputs", np.diagonal(between.values), between.attrs["meaning"])
        return replace(found, between_outputs=between)

    def notes(self) -> list[str]:
        """How well the probabilities are known."""
        error = float(self.probabilities_standard_error.max())
        return [
            f"Mean probabilities over {self.draws} networks, with a standard error of at most {error:.2g}."
        ]


def target_logits(probabilities: ArrayLike) -> Array:
    """log p with mean zero over outputs; an error for hard labels, whose logits are infinite."""
    p = np.asarray(probabilities, dtype=float)
    check_probabilities(p)
    if (p <= 0).any():
        raise InputError(
            "a target probability is zero, so that training never ends: give a `time`, or soft labels, such as "
            "`label_smoothing=0.1`."
        )
    logits = np.log(p)
    return np.asarray(logits - logits.mean(axis=-1, keepdims=True))


def cross_entropy_of_kernels(
    kernels: OutputKernels,
    probabilities: Array,
    algorithm: Algorithm,
    draws: int = 1000,
    seed: Seed = 0,
    tolerance: float = TOLERANCE,
) -> CrossEntropyPrediction:
    """Test outputs over networks trained on target probabilities (inputs, classes), at infinite width.

    The kernels must hold variances of test inputs. At the end the logits are Gaussian in closed form and only their
    softmax is sampled. At a finite time networks are drawn and trained in function space, as on any other loss.
    """
    if algorithm.time is not None:
        return _sampled(kernels, probabilities, algorithm, draws, seed, tolerance)
    if isinstance(algorithm, Descent) and algorithm.eta is not None:
        check_step(kernels, algorithm)
    return cross_entropy_end(kernels, probabilities, draws, seed)


def cross_entropy_end(
    kernels: OutputKernels, probabilities: Array, draws: int = 1000, seed: Seed = 0
) -> CrossEntropyPrediction:
    """The end for soft labels: logits are Gaussian with mean P y (10.37).

    Differences of logits have the covariance (10.41) of squared errors, S; their mean over outputs is that of the
    initial outputs: Cov(z_i, z_j) = (delta_ij - 1/n) S + K / n.
    """
    logits = target_logits(probabilities)
    trained = GradientDescent(kernels, logits).end()
    deviation = trained.standard_deviation
    if kernels.K_test is None or deviation is None:
        raise InputError("the softmax needs variances: make the kernels with `spread='variance'`.")
    mean, outputs = trained.mean.values, logits.shape[1]
    own = trained.variance if trained.covariance is None else trained.covariance
    between = (kernels.K_test - np.asarray(own)) / outputs
    # Softmax outputs of one test input need the variance of that input alone.
    noise = generator(seed).standard_normal((draws, *mean.shape))
    samples = softmax(mean + deviation.values[:, None] * noise, axis=-1)
    found = _labelled(
        mean, np.zeros_like(mean), np.asarray(own) + between, between, samples, "at the end of training"
    )
    return replace(found, jitter=trained.jitter)


def _labelled(
    mean: Array, error: Array, spread: Array, between: Array, probabilities: Array, statement: str
) -> CrossEntropyPrediction:
    """From logits, their covariances or variances, and samples of probabilities (draws, tests, outputs)."""
    covariance, variance = labelled_spread(spread, "covariance of a logit over initialisations (10.41)")
    draws = len(probabilities)
    doubt = probabilities.std(axis=0, ddof=1) / np.sqrt(draws)
    return CrossEntropyPrediction(
        labelled_mean(mean, "mean logit over initialisations (10.37)"),
        covariance,
        variance,
        f"Networks of infinite width trained on the cross-entropy, {statement}",
        mean_standard_error=labelled_mean(error, "standard error of the mean logit"),
        probabilities=labelled_mean(probabilities.mean(axis=0), "mean softmax output over initialisations"),
        probabilities_standard_error=labelled_mean(doubt, "standard error of the mean softmax output"),
        between_outputs=labelled_tests("between_outputs", between, "covariance of two different logits"),
        draws=draws,
    )


def expected_cross_entropy(kernels: OutputKernels, P_train: Array, P_test: ArrayLike) -> ExpectedLoss:
    """Mean test loss at the end, to second order (10.55).

    Nothing in it feels the shift, so that the law of logits of squared errors with targets log p serves.
    """
    return expected_loss(GradientDescent(kernels, target_logits(P_train)).end(), P_test, CROSS_ENTROPY)


def network_end(
    kernels: OutputKernels, probabilities: Array, outputs_train: ArrayLike, outputs_test: ArrayLike
) -> Array:
    """Final test logits of the one network that starts with these outputs, its shift c included (10.37)."""
    logits = target_logits(probabilities)
    z = check_targets(outputs_train, len(logits), logits.shape[1], "outputs_train")
    shifted = logits + z.mean(axis=1, keepdims=True)
    return GradientDescent(kernels, shifted).network(z, outputs_test)


def _sampled(
    kernels: OutputKernels,
    p: Array,
    algorithm: Descent | GradientFlow,
    draws: int,
    seed: Seed,
    tolerance: float,
) -> CrossEntropyPrediction:
    way = algorithm
    if isinstance(way, Descent):
        way = replace(way, eta=check_step(kernels, way))
    z = train_networks(kernels, CROSS_ENTROPY, p, p.shape[1], way, draws, seed, tolerance).test
    pairs = kernels.K_test is not None and kernels.K_test.ndim == 2
    own, between = _logit_covariances(z - z.mean(axis=0), pairs)
    error = z.std(axis=0, ddof=1) / np.sqrt(draws)
    return _labelled(z.mean(axis=0), error, own, between, softmax(z, axis=-1), way.statement)


def _logit_covariances(centred: Array, pairs: bool) -> tuple[Array, Array]:
    """Covariances of a logit with itself and with another, over networks, of pairs of tests or of each alone."""
    draws, _, outputs = centred.shape
    sums = centred.sum(axis=2)
    if pairs:
        own, whole = np.tensordot(centred, centred, axes=((0, 2), (0, 2))), sums.T @ sums
    else:
        own, whole = np.sum(centred**2, axis=(0, 2)), np.sum(sums**2, axis=0)
    count = outputs * (draws - 1)
    return own / count, (whole - own) / (count * (outputs - 1))


def check_step(kernels: OutputKernels, descent: Descent) -> float:
    """The rate of steps, by default 2 / lambda_max, or an error unless it is stable at the largest curvature, 1/2.

    Plain steps below that limit always lower the loss.
    """
    largest = GradientDescent(kernels, np.zeros((kernels.training, 1))).rates.largest
    rate = 2 / largest if descent.eta is None else descent.eta
    limit = 4 * descent.stretch / largest
    if rate >= limit:
        raise InputError(
            f"`eta` is {rate:g}, but steps on the cross-entropy are sure to be stable only below "
            f"{4 * descent.stretch:.4g} / lambda_max = {limit:.6g}: give a smaller `eta`."
        )
    return rate
