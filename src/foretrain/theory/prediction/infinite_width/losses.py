"""Mean and fluctuation of a loss over trained networks: bias, variance and spread ((10.50)-(10.55)).

Outputs are Gaussian with a mean and one covariance over inputs for every output. Half the sum of squares is a
quadratic form of them, so everything is exact; any other loss is expanded to second order around the mean (10.55).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_softmax, softmax

from foretrain.support.answers import Result
from foretrain.support.arguments import Array, real_array
from foretrain.support.errors import InputError
from foretrain.support.memory import require_memory
from foretrain.support.seeds import Seed, generator
from foretrain.theory.arguments import check_targets
from foretrain.theory.ensembles import check_draws
from foretrain.theory.prediction.cholesky import square_root
from foretrain.theory.prediction.predicted_outputs import PredictedOutputs


def _unknown_curvature(z: Array, y: Array) -> Array:
    raise InputError("the curvature of this loss is not known: give it as the `curvature` of a Loss.")


@dataclass(frozen=True)
class Loss:
    """A loss as functions of outputs (..., inputs, outputs), of one network or of many at once, and of targets.

    Training needs ``slope`` alone. ``curvature`` exists for losses that are sums over inputs.
    """

    name: str
    value: Callable[[Array, Array], Array]  # of all inputs together: (...)
    slope: Callable[[Array, Array], Array]  # the error factor dL/dz (10.4): (..., inputs, outputs)
    curvature: Callable[[Array, Array], Array] = _unknown_curvature  # (inputs, outputs, outputs)
    check: Callable[[Array], None] = lambda targets: None

    @classmethod
    def of_network(
        cls, value: Callable[[Any, Any], Any], gradient: Callable[[Any, Any], Any], name: str = "a given loss"
    ) -> Loss:
        """From a value and its gradient in the outputs (inputs, outputs) of one network, which are asked in turn."""
        return cls(
            name,
            lambda z, y: np.array([value(one, y) for one in z], dtype=np.float64),
            lambda z, y: np.array([gradient(one, y) for one in z], dtype=np.float64),
        )


def _softmax_curvature(z: Array, p: Array) -> Array:
    q = softmax(z, axis=-1)
    return np.asarray(q[..., None] * np.eye(z.shape[-1]) - q[..., :, None] * q[..., None, :])


def check_probabilities(targets: Array) -> None:
    """An error unless every row is a distribution over classes."""
    if (targets < 0).any() or (np.abs(targets.sum(axis=-1) - 1) > 1e-8).any():
        raise InputError("targets of the cross-entropy must be probabilities: each row not negative, sum 1.")


SQUARED_ERROR = Loss(
    "half the sum of squares (10.5)",
    lambda z, y: np.asarray(np.sum((z - y) ** 2, axis=(-2, -1)) / 2),
    lambda z, y: z - y,
    lambda z, y: np.broadcast_to(np.eye(z.shape[-1]), (*z.shape, z.shape[-1])),
)
CROSS_ENTROPY = Loss(
    "cross-entropy (10.36)",
    lambda z, p: np.asarray(-np.sum(p * log_softmax(z, axis=-1), axis=(-2, -1))),
    lambda z, p: np.asarray(softmax(z, axis=-1) - p),
    _softmax_curvature,
    check_probabilities,
)


@dataclass(frozen=True, repr=False)
class ExpectedLoss(Result):
    """Mean of a loss over networks, in two parts, and how much it differs from network to network."""

    also = ("total",)
    bias: float  # the loss of the mean outputs
    variance: float  # what the spread of outputs adds
    fluctuation: float | None  # variance of the loss itself over networks; needs covariances
    name: str

    @property
    def total(self) -> float:
        """Mean loss: bias + variance."""
        return self.bias + self.variance


def expected_loss(
    prediction: PredictedOutputs, targets: ArrayLike, loss: Loss = SQUARED_ERROR
) -> ExpectedLoss:
    """Bias and variance (10.52), (10.55), and the fluctuation of the loss over networks, if covariances are known.

    With g = dL/dz and H its derivative at the mean outputs, and S the covariance over inputs:
    variance = sum_b S_bb tr H_b / 2, fluctuation = sum_bc [S_bc g_b.g_c + S_bc^2 tr(H_b H_c) / 2]. Exact for squares.
    """
    if prediction.variance is None:
        raise InputError(
            "the prediction has no variance, without which a mean loss is not known: predict with "
            "`spread='variance'`."
        )
    mean = prediction.mean.values
    y = check_targets(targets, *mean.shape)
    loss.check(y)
    g, H = loss.slope(mean, y), loss.curvature(mean, y)
    spread = prediction.variance.values  # (tests,), or at finite width (tests, outputs)
    each = spread if spread.ndim == 2 else spread[:, None]
    variance = 0.5 * float(np.sum(each * np.diagonal(H, axis1=1, axis2=2)))
    fluctuation = None
    if prediction.covariance is not None and spread.ndim == 1:
        S, flat = prediction.covariance.values, H.reshape(len(H), -1)
        fluctuation = float(np.sum(S * (g @ g.T)) + 0.5 * np.sum(S**2 * (flat @ flat.T)))
    return ExpectedLoss(float(loss.value(mean, y)), variance, fluctuation, loss.name)


def generalization_error(test: ExpectedLoss, training: ExpectedLoss | None = None) -> float:
    """Mean test loss minus mean training loss (10.50); the training loss is zero at the end of training."""
    return test.total - (0.0 if training is None else training.total)


@dataclass(frozen=True, repr=False)
class SampledLoss(Result):
    """Mean loss and its variance over sampled networks, with standard errors."""

    mean: float
    standard_error: float
    variance: float
    variance_standard_error: float
    draws: int


def sampled_loss(
    prediction: PredictedOutputs,
    targets: ArrayLike,
    loss: Loss = CROSS_ENTROPY,
    draws: int = 10_000,
    seed: Seed = 0,
) -> SampledLoss:
    """The same without expansion: outputs are drawn from the Gaussian law of the prediction."""
    mean = prediction.mean.values
    y = check_targets(targets, *mean.shape)
    loss.check(y)
    draws = check_draws(draws)
    require_memory(24 * draws * y.size, f"outputs of {draws:,} networks", "use fewer draws")
    if prediction.covariance is None:
        raise InputError("the prediction has no covariance to draw from: predict with `spread='covariance'`.")
    root = square_root(prediction.covariance.values)
    noise = generator(seed).standard_normal((draws, *y.shape))
    values = loss.value(mean + np.einsum("bc,dci->dbi", root, noise), y)
    centred = values - values.mean()
    spread = float(np.var(values, ddof=1))
    fourth = max(float(np.mean(centred**4)) - spread**2, 0.0)
    return SampledLoss(
        float(values.mean()), (spread / draws) ** 0.5, spread, (fourth / draws) ** 0.5, int(draws)
    )


def smooth_labels(labels: ArrayLike, classes: int, smoothing: float = 0.1) -> Array:
    """Probabilities 1 - smoothing for the class of each input, smoothing / (classes - 1) for every other."""
    numbers = real_array("labels", labels)
    places = numbers.astype(np.intp)
    if numbers.ndim != 1 or (places != numbers).any() or (places < 0).any() or (places >= classes).any():
        raise InputError(f"labels must be whole numbers from 0 to {classes - 1}, one for each input.")
    check_classes(classes)
    share = check_share("smoothing", smoothing)
    result = np.full((len(places), classes), share / (classes - 1))
    result[np.arange(len(places)), places] = 1 - share
    return result


def check_classes(outputs: int) -> None:
    """Refuse a single output, whose softmax is always 1."""
    if outputs < 2:
        raise InputError(
            "the network has one output: the cross-entropy needs n_out >= 2, one for each class."
        )


def check_share(name: str, value: float) -> float:
    """A share of probability from 0 on and below 1, or an error."""
    share = real_array(name, value)
    if share.ndim or not 0 <= share < 1:
        raise InputError(f"`{name}` is {value!r}: give a share of at least 0 and below 1.")
    return float(share)
