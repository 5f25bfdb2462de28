"""The function :func:`predict`: one door to all predictions of trained networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from foretrain.support.arguments import Array, positive, real_array, whole_number
from foretrain.support.errors import InputError, unknown_name
from foretrain.support.seeds import Seed, generator
from foretrain.theory.architecture import MLP, check_network
from foretrain.theory.arguments import check_targets
from foretrain.theory.prediction.algorithms import Algorithm, AlgorithmName, named_algorithm
from foretrain.theory.prediction.bayes.posterior import bayes_prediction, condition
from foretrain.theory.prediction.cholesky import check_noise
from foretrain.theory.prediction.infinite_width.cross_entropy import (
    cross_entropy_of_kernels,
    cross_entropy_prediction,
)
from foretrain.theory.prediction.infinite_width.gradient_descent import (
    descent_of_kernels,
    gradient_descent_prediction,
)
from foretrain.theory.prediction.infinite_width.losses import (
    check_classes,
    check_probabilities,
    check_share,
    smooth_labels,
)
from foretrain.theory.prediction.kernels import OutputKernels, Spread, check_spread
from foretrain.theory.prediction.predicted_outputs import PredictedOutputs

Regime = Literal["infinite", "finite"]
Learner = Literal["gradient_descent", "bayes"]
LossName = Literal["squared_error", "cross_entropy"]

_DRAWS = 1000


@dataclass(frozen=True)
class Bayes:
    """Exact inference: variance of independent ``noise`` on every target, and whether predictions include it."""

    noise: float = 0.0
    noisy_labels: bool = False


def predict(
    mlp: MLP,
    X_train: ArrayLike,
    Y_train: ArrayLike,
    X_test: ArrayLike,
    regime: Regime = "infinite",
    learner: Learner | Bayes = "gradient_descent",
    algorithm: AlgorithmName | Algorithm = "gradient_descent",
    eta: float | None = None,
    time: float | None = None,
    *,
    loss: LossName = "squared_error",
    label_smoothing: float | None = None,
    noise: float = 0.0,
    noisy_labels: bool = False,
    spread: Spread = "covariance",
    draws: int | None = None,
    seed: Seed = 0,
    tolerance: float | None = None,
) -> PredictedOutputs:
    """What networks answer on test inputs after training: mean and spread over initialisations, or a posterior.

    Parameters
    ----------
    Y_train
        Targets (inputs, outputs). For the cross-entropy whole numbers 0, 1, ... that name classes, (inputs,) or
        (inputs, 1), or probabilities (inputs, classes).
    regime
        ``infinite`` width, or ``finite``: the mean to first order in 1/width, in ``terms`` of different origin beside
        ``infinite_mean``; of Bayesian inference also covariance and evidence.
    learner
        ``gradient_descent`` of all parameters at the network's rates lambda_b, lambda_W, or exact ``bayes`` inference
        with the initialisation as prior.
    algorithm
        ``gradient_descent`` in steps, ``flow`` in continuous time, ``two_step`` or ``newton``. At infinite width all
        end alike (10.33). A value of :mod:`foretrain.theory.prediction.algorithms`, such as
        ``GradientFlow(time=2.0)``, says its rate and time itself, as ``learner=Bayes(noise=0.1)`` its noise.
    eta
        Overall learning rate: of steps by default the best constant one, of the flow 1. It has no effect on
        ``two_step`` and ``newton``, which end in the same place at every rate.
    time
        Number of steps, or flow time; None is the end of training.
    loss
        ``squared_error``, half the SUM of squares, or ``cross_entropy`` of the softmax.
    label_smoothing
        Share of a class's probability that goes to the others: training on hard labels has no end without it.
    noise, noisy_labels
        Of Bayesian inference: variance of independent noise on every target, and whether predictions include it.
    spread
        "covariance" of all pairs of test inputs, "variance" of each, or "none": for many test inputs.
    draws, seed
        Of initialisations, where no closed form is known: softmax outputs, and the cross-entropy at finite times
        (1000 by default). At finite width of inputs, where there are too many for all sums.
    tolerance
        Of the integrals of training at finite width, 1e-10 by default: training inputs that are nearly alike need
        less, and 1e-7 is several times faster for activations without closed forms.

    Every result has ``mean`` (test, output), ``covariance``, ``variance`` and ``standard_deviation``.

    Examples
    --------
    >>> import foretrain as ft
    >>> mlp = ft.MLP("relu", depth=3, width=100, C_W=2.0)
    >>> found = ft.predict(mlp, [[1.0], [-1.0]], [1.0, 0.0], [[2.0], [0.5]])
    >>> found
    Networks of infinite width at the end of training: 2 test inputs, 1 output.
    <BLANKLINE>
    Outputs on test inputs
    <BLANKLINE>
    test    x     mean  ± spread
    ----  ---  -------  --------
       0    2  1.53286  0.724187
       1  0.5  0.73357  0.362094
    >>> ft.predict(mlp, [[1.0], [-1.0]], [1.0, 0.0], [[2.0]], learner="bayes").mean.values.round(6)
    array([[2.]])
    """
    check_network(mlp)
    if isinstance(learner, Bayes):
        if noise or noisy_labels:
            raise InputError("`learner` says its noise itself: leave `noise` and `noisy_labels` out.")
        noise, noisy_labels, learner = learner.noise, learner.noisy_labels, "bayes"
    _check_words(regime, learner, algorithm, loss)
    spread = check_spread(spread)
    eta = None if eta is None else positive("eta", eta)
    generator(seed)  # refused also where nothing is drawn, as ``draws`` are
    finite = regime == "finite"
    if draws is not None:
        whole_number("draws", draws, least=0 if finite and learner == "bayes" else 2)
    if tolerance is not None and not (finite and learner == "gradient_descent"):
        raise InputError(
            "only training at finite width has integrals of chosen accuracy: leave `tolerance` out, or use "
            "`learner='gradient_descent'` with `regime='finite'`."
        )
    found: PredictedOutputs
    data: tuple[Any, ...] = (X_train, Y_train, X_test)
    # What finite width needs is imported where it is used, so that predictions at infinite width do not wait for it.
    if learner == "bayes":
        _refuse_training(algorithm, eta, time, loss, label_smoothing)
        if finite:
            from foretrain.theory.prediction.bayes import finite_bayes_prediction

            if noisy_labels:
                raise InputError("`noisy_labels` is for infinite width: add the noise to .variance yourself.")
            found = finite_bayes_prediction(mlp, *data, noise=noise, spread=spread, draws=draws, seed=seed)
        else:
            found = bayes_prediction(mlp, *data, noise=noise, noisy_labels=noisy_labels, spread=spread)
    else:
        _refuse_noise(noise, noisy_labels)
        way = named_algorithm(algorithm, eta, time)
        if finite and loss == "cross_entropy":
            raise InputError(
                "`loss` is the cross-entropy, which is known at infinite width only: leave `regime` out, or "
                "train on one output for each class with squared errors."
            )
        task = mlp, X_train, loss_targets(Y_train, mlp.n_out, loss, label_smoothing), X_test, way
        if loss == "cross_entropy":
            count = _DRAWS if draws is None else draws
            found = cross_entropy_prediction(*task, draws=count, seed=seed, spread=spread)
        elif finite:
            from foretrain.theory.prediction.finite_width.training import TOLERANCE, finite_prediction

            accuracy = TOLERANCE if tolerance is None else tolerance
            found = finite_prediction(*task, spread=spread, seed=seed, draws=draws, tolerance=accuracy)
        else:
            found = gradient_descent_prediction(*task, spread=spread)
    network = f"{mlp.activation.label}, depth {mlp.depth}"
    return found.about(*map(np.asarray, data), network=network, loss=loss)


def predict_from_kernels(
    kernels: OutputKernels,
    Y_train: ArrayLike,
    outputs: int,
    *,
    learner: Learner | Bayes = "gradient_descent",
    algorithm: AlgorithmName | Algorithm = "gradient_descent",
    eta: float | None = None,
    time: float | None = None,
    loss: LossName = "squared_error",
    label_smoothing: float | None = None,
    noise: float = 0.0,
    noisy_labels: bool = False,
    spread: Spread = "covariance",
    draws: int | None = None,
    seed: Seed = 0,
) -> PredictedOutputs:
    """The same at infinite width for any network of which only the kernels are known, and the number of outputs."""
    if isinstance(learner, Bayes):
        noise, noisy_labels, learner = learner.noise, learner.noisy_labels, "bayes"
    _check_words("infinite", learner, algorithm, loss)
    if learner == "bayes":
        _refuse_training(algorithm, eta, time, loss, label_smoothing)
        targets = check_targets(Y_train, kernels.training, outputs, "Y_train")
        own = kernels.K_test if check_spread(spread) != "none" else None
        return condition(
            kernels.K_train, targets, kernels.K_cross.T, own, noise=noise, noisy_labels=noisy_labels
        )
    _refuse_noise(noise, noisy_labels)
    way = named_algorithm(algorithm, None if eta is None else positive("eta", eta), time)
    targets = check_targets(
        loss_targets(Y_train, outputs, loss, label_smoothing), kernels.training, outputs, "Y_train"
    )
    if loss == "cross_entropy":
        count = _DRAWS if draws is None else whole_number("draws", draws, least=2)
        return cross_entropy_of_kernels(kernels, targets, way, count, seed).only(spread)
    return descent_of_kernels(kernels, targets, way)


def _check_words(
    regime: Regime, learner: Learner, algorithm: AlgorithmName | Algorithm, loss: LossName
) -> None:
    """An error for a word that is none of those known."""
    for kind, name, known in (
        ("regime", regime, Regime),
        ("learner", learner, Learner),
        ("algorithm", algorithm, AlgorithmName),
        ("loss", loss, LossName),
    ):
        is_value = kind == "algorithm" and isinstance(name, Algorithm)
        if not is_value and name not in get_args(known):
            raise unknown_name(f"`{kind}`", str(name), get_args(known))


def loss_targets(Y: ArrayLike, outputs: int, loss: LossName, smoothing: float | None) -> ArrayLike:
    """Targets as they are given; for the cross-entropy probabilities, from numbers of classes too."""
    if loss == "cross_entropy":
        check_classes(outputs)
        return class_probabilities(Y, outputs, smoothing)
    if smoothing is not None:
        raise InputError("`label_smoothing` is for classes: add `loss='cross_entropy'`, or leave it out.")
    return Y


def class_probabilities(Y: ArrayLike, classes: int, smoothing: float | None = None) -> Array:
    """Targets of the cross-entropy (inputs, classes), from the numbers of classes or from probabilities.

    Numbers are (inputs,) or (inputs, 1). With smoothing e, p becomes (1 - e) p + e (1 - p) / (classes - 1).
    """
    given = real_array("Y_train", Y)
    share = 0.0 if smoothing is None else check_share("label_smoothing", smoothing)
    if given.ndim == 1 or (given.ndim == 2 and given.shape[1] == 1 < classes):
        return smooth_labels(given.ravel(), classes, share)
    p = check_targets(given, len(given), classes, "Y_train")
    check_probabilities(p)
    return np.asarray((1 - share) * p + share * (1 - p) / max(classes - 1, 1))


def _refuse_training(
    algorithm: AlgorithmName | Algorithm,
    eta: float | None,
    time: float | None,
    loss: LossName,
    smoothing: float | None,
) -> None:
    """What only training has."""
    if algorithm != "gradient_descent" or (eta, time) != (None, None):
        raise InputError(
            "Bayesian inference has no algorithm, rate or time: leave `algorithm`, `eta` and `time` out, or use "
            "`learner='gradient_descent'`."
        )
    if loss != "squared_error" or smoothing is not None:
        raise InputError(
            "Bayesian inference is for Gaussian noise on targets: leave `loss` and `label_smoothing` out and give "
            "`noise=`, or use `learner='gradient_descent'`."
        )


def _refuse_noise(noise: float, noisy_labels: bool) -> None:
    """What only Bayesian inference has."""
    if check_noise(noise) or noisy_labels:
        raise InputError(
            f"`{'noise' if noise else 'noisy_labels'}` is for Bayesian inference, and gradient descent fits its "
            "targets whatever their noise: use `learner='bayes'`, which is training of the "
            "output layer with a penalty, or stop early with `time=`."
        )
