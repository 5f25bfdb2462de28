"""The function :func:`predict`: one door to all predictions of trained networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import ArrayLike

from foretrain.support.arguments import Array, positive, real_array, whole_number
from foretrain.support.errors import InputError, unknown_name
from foretrain.support.seeds import Seed, generator
from foretrain.theory.architecture import MLP, check_network
from foretrain.theory.arguments import check_targets
from foretrain.theory.prediction.algorithms import (
    Algorithm,
    AlgorithmName,
    Descent,
    GradientFlow,
    named_algorithm,
)
from foretrain.theory.prediction.bayes.posterior import bayes_prediction, condition
from foretrain.theory.prediction.cholesky import check_noise
from foretrain.theory.prediction.infinite_width.gradient_descent import GradientDescent
from foretrain.theory.prediction.infinite_width.losses import (
    Loss,
    check_classes,
    check_probabilities,
    check_share,
    smooth_labels,
)
from foretrain.theory.prediction.infinite_width.other_losses import (
    TOLERANCE,
    check_way,
    cross_entropy_of_kernels,
    sampled_prediction,
    target_logits,
)
from foretrain.theory.prediction.kernels import OutputKernels, Spread, check_spread, output_kernels
from foretrain.theory.prediction.predicted_outputs import PredictedOutputs

Regime = Literal["infinite", "finite"]
Learner = Literal["gradient_descent", "bayes"]
LossName = Literal["squared_error", "cross_entropy"]
LossPair = tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]
"""A value and its gradient in the outputs (inputs, outputs) of one network, both of outputs and targets."""

_DRAWS = 1000


@dataclass(frozen=True)
class Bayes:
    """Exact inference: variance of independent ``noise`` on every target, and whether predictions include it."""

    noise: float = 0.0
    noisy_labels: bool = False


def predict(
    mlp: MLP, X_train: ArrayLike, Y_train: ArrayLike, X_test: ArrayLike, **options: Any
) -> PredictedOutputs:
    """What networks of this kind answer on test inputs: :func:`foretrain.predict` without torch.

    ``options`` are the fields of :class:`Options`.

    Examples
    --------
    >>> import foretrain as ft
    >>> mlp = ft.MLP("relu", depth=3, width=100, C_W=2.0)
    >>> predict(mlp, [[1.0], [-1.0]], [1.0, 0.0], [[2.0]], learner="bayes").mean.values.round(6)
    array([[2.]])
    """
    check_network(mlp)
    asked = Options(**options)
    data: tuple[Any, ...] = (X_train, Y_train, X_test)
    if asked.regime == "finite":
        found = asked.of_finite_width(mlp, *data)
    elif asked.learner == "bayes":
        noise, noisy_labels, spread = asked.noise, asked.noisy_labels, asked.spread
        found = bayes_prediction(mlp, *data, noise=noise, noisy_labels=noisy_labels, spread=spread)
    else:
        targets = asked.targets(Y_train, len(mlp.check_inputs(X_train, "X_train")), mlp.n_out)
        kernels = output_kernels(mlp, X_train, X_test, spread=asked.kernel_spread)
        found = asked.of_kernels(kernels, targets, mlp.n_out)
    network = f"{mlp.activation.label}, depth {mlp.depth}"
    return found.about(*map(np.asarray, data), network=network, loss=asked.loss_name)


@dataclass(kw_only=True)
class Options:
    """What :func:`foretrain.predict` is asked, in its words; what is wrong with it is said before any work."""

    regime: Regime = "infinite"
    learner: Learner | Bayes = "gradient_descent"
    algorithm: AlgorithmName | Algorithm = "gradient_descent"
    eta: float | None = None
    time: float | None = None
    momentum: float = 0.0
    loss: LossName | Loss | LossPair = "squared_error"
    label_smoothing: float | None = None
    noise: float = 0.0
    noisy_labels: bool = False
    spread: Spread = "covariance"
    draws: int | None = None
    seed: Seed = 0
    tolerance: float | None = None
    way: Algorithm = field(init=False)

    def __post_init__(self) -> None:
        if isinstance(self.learner, Bayes):
            if self.noise or self.noisy_labels:
                raise InputError("`learner` says its noise itself: leave `noise` and `noisy_labels` out.")
            self.noise, self.noisy_labels = self.learner.noise, self.learner.noisy_labels
            self.learner = "bayes"
        # An error for a word that is none of those known.
        for kind, name, known in (
            ("regime", self.regime, Regime),
            ("learner", self.learner, Learner),
            ("algorithm", self.algorithm, AlgorithmName),
        ):
            is_value = kind == "algorithm" and isinstance(name, Algorithm)
            if not is_value and name not in get_args(known):
                raise unknown_name(f"`{kind}`", str(name), get_args(known))
        self.loss, self.spread = known_loss(self.loss), check_spread(self.spread)
        self.eta = None if self.eta is None else positive("eta", self.eta)
        generator(self.seed)  # refused also where nothing is drawn, as ``draws`` are
        finite, bayes = self.regime == "finite", self.learner == "bayes"
        if self.draws is not None:
            whole_number("draws", self.draws, least=0 if finite and bayes else 2)
        if bayes:
            # What only training has.
            if self.algorithm != "gradient_descent" or (self.eta, self.time, self.momentum) != (
                None,
                None,
                0,
            ):
                raise InputError(
                    "Bayesian inference has no algorithm, rate or time: leave `algorithm`, `eta`, `time` and "
                    "`momentum` out, or use `learner='gradient_descent'`."
                )
            if self.loss != "squared_error" or self.label_smoothing is not None:
                raise InputError(
                    "Bayesian inference is for Gaussian noise on targets: leave `loss` and `label_smoothing` out and "
                    "give `noise=`, or use `learner='gradient_descent'`."
                )
            if self.tolerance is not None:
                raise InputError(
                    "Bayesian inference has no integrals of chosen accuracy: leave `tolerance` out."
                )
            if finite and self.noisy_labels:
                raise InputError("`noisy_labels` is for infinite width: add the noise to .variance yourself.")
            return
        if check_noise(self.noise) or self.noisy_labels:
            raise InputError(
                f"`{'noise' if self.noise else 'noisy_labels'}` is for Bayesian inference, and gradient descent fits "
                "its targets whatever their noise: use `learner='bayes'`, which is training of the output layer with "
                "a penalty, or stop early with `time=`."
            )
        self.way = named_algorithm(self.algorithm, self.eta, self.time, self.momentum)
        if finite and self.loss != "squared_error":
            raise InputError(
                "`loss` is not that of squared errors, and others are known at infinite width only: leave `regime` "
                "out, or train with squared errors, on one output for each class if there are classes."
            )
        if isinstance(self.loss, Loss):
            check_way(self.way)
        integrates = isinstance(self.way, GradientFlow) and self.way.time is not None
        if self.tolerance is not None and not finite:
            if not integrates or self.loss == "squared_error":
                raise InputError(
                    "`tolerance` is of integrals, of training at finite width and of the flow for a time on another "
                    "loss than squared errors: leave it out."
                )
            if positive("tolerance", self.tolerance) >= 1:
                raise InputError(f"`tolerance` is {self.tolerance!r}: give a number between 0 and 1.")

    @property
    def kernel_spread(self) -> Spread:
        """What kernels must hold of test inputs: variances at least where networks are drawn."""
        return "variance" if self.spread == "none" and self.loss != "squared_error" else self.spread

    @property
    def loss_name(self) -> str:
        """What the loss is called."""
        return self.loss.name if isinstance(self.loss, Loss) else str(self.loss)

    def targets(self, Y: ArrayLike, inputs: int, outputs: int) -> Array:
        """Targets (inputs, outputs), for a loss of one's own also whole numbers (inputs,) that name classes."""
        given = loss_targets(Y, outputs, self.loss, self.label_smoothing)
        if isinstance(self.loss, Loss) and outputs > 1 and real_array("Y_train", Y).size == inputs:
            labels = np.asarray(Y).ravel()
            if labels.dtype.kind in "biu":
                return np.asarray(labels, dtype=np.int64)
        targets = check_targets(given, inputs, outputs, "Y_train")
        if self.loss == "cross_entropy" and self.way.time is None:
            target_logits(targets)  # refuses hard labels
        return targets

    def of_kernels(self, kernels: OutputKernels, targets: Array, outputs: int) -> PredictedOutputs:
        """The prediction at infinite width, for networks of which only these kernels are known."""
        if self.learner == "bayes":
            own = kernels.K_test if self.spread != "none" else None
            data = kernels.K_train, targets, kernels.K_cross.T, own
            return condition(*data, noise=self.noise, noisy_labels=self.noisy_labels)
        if self.loss == "squared_error":
            training = GradientDescent(kernels, targets)
            if isinstance(self.way, Descent) and self.way.eta is not None:
                self.way.rate(training.rates)  # refused also where only the end is asked for
            return training.after(self.way)
        draws = _DRAWS if self.draws is None else self.draws
        sampling = draws, self.seed, TOLERANCE if self.tolerance is None else self.tolerance
        if isinstance(self.loss, Loss):
            drawn = sampled_prediction(kernels, self.loss, targets, outputs, self.way, *sampling)
            return drawn.only(self.spread)
        return cross_entropy_of_kernels(kernels, targets, self.way, *sampling).only(self.spread)

    def of_finite_width(
        self, mlp: MLP, X_train: ArrayLike, Y_train: ArrayLike, X_test: ArrayLike
    ) -> PredictedOutputs:
        """The prediction to order 1/width; what it needs is imported here, so that others do not wait for it."""
        sampling: dict[str, Any] = {"spread": self.spread, "draws": self.draws, "seed": self.seed}
        if self.learner == "bayes":
            from foretrain.theory.prediction.bayes import finite_bayes_prediction

            return finite_bayes_prediction(mlp, X_train, Y_train, X_test, noise=self.noise, **sampling)
        from foretrain.theory.prediction.finite_width.training import TOLERANCE, finite_prediction

        targets = loss_targets(Y_train, mlp.n_out, self.loss, self.label_smoothing)
        accuracy = TOLERANCE if self.tolerance is None else self.tolerance
        return finite_prediction(mlp, X_train, targets, X_test, self.way, tolerance=accuracy, **sampling)


def known_loss(loss: Any) -> LossName | Loss:
    """A loss by its name or as a value, or an error."""
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, tuple) and len(loss) == 2 and all(map(callable, loss)):
        return Loss.of_network(*loss)
    if not isinstance(loss, str):
        raise InputError(
            f"`loss` is {loss!r}: give its name, a torch loss to ft.predict, or a pair (value, gradient) of "
            "functions of outputs and targets."
        )
    if loss not in get_args(LossName):
        raise unknown_name("`loss`", loss, get_args(LossName))
    return cast("LossName", loss)


def loss_targets(
    Y: ArrayLike, outputs: int, loss: LossName | Loss | LossPair, smoothing: float | None
) -> ArrayLike:
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
