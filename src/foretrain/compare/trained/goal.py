"""What the theory says about an ensemble, and how the ensemble must be trained for that: exact at infinite width."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import get_args

import numpy as np
from numpy.typing import ArrayLike

from foretrain.compare.trained.networks import groups_of
from foretrain.compare.trained.training import Algorithm, Training
from foretrain.support.arguments import positive
from foretrain.support.errors import InputError, unknown_name
from foretrain.support.seeds import Seed
from foretrain.theory.architecture import MLP, FloatArray, check_network
from foretrain.theory.arguments import check_targets
from foretrain.theory.prediction.algorithms import Descent, named_algorithm
from foretrain.theory.prediction.bayes import bayes_equivalent_rates, condition
from foretrain.theory.prediction.cholesky import check_noise
from foretrain.theory.prediction.infinite_width import (
    CROSS_ENTROPY,
    GradientDescent,
    LearningRates,
    OutputKernels,
    output_kernels,
    target_logits,
)
from foretrain.theory.prediction.infinite_width.other_losses import check_step, check_way, train_networks
from foretrain.theory.prediction.predict import Learner, LossName, loss_targets

_STRIDE = 0.25  # of the integrator of the flow, in units of 1 / λ_max: the fastest error is right to 1e-5
_SAMPLES = 40_000  # of networks of infinite width, where their law has no closed form


@dataclass(frozen=True, eq=False)
class Law:
    """Mean (tests, outputs), covariance of one output and of two different ones (tests, tests) of trained outputs.

    Where trained outputs are a linear function z_B − P (z_A − y) of the initial ones at infinite width, ``weights``
    is P. With the cross-entropy they are so at the end only, and there the mean over outputs of each training output
    stays what it was: P acts on what is left without it (``centred``). Else the law comes from ``samples``
    (networks, tests, outputs).
    """

    mean: FloatArray = field(repr=False)
    covariance: FloatArray = field(repr=False)
    between: FloatArray = field(repr=False)
    statement: str
    weights: FloatArray | None = field(default=None, repr=False)
    centred: bool = False
    samples: FloatArray | None = field(default=None, repr=False)


@dataclass(frozen=True, eq=False)
class Goal:
    """A law, and the training by which networks come to obey it as their width grows."""

    mlp: MLP  # with the learning rates of the learner
    X_train: FloatArray = field(repr=False)
    X_test: FloatArray = field(repr=False)
    training: Training
    law: Law

    def chunks(self, draws: int, held: float) -> list[range]:
        """Numbers of networks whose kernels fit in ``held`` bytes together, mirrored ones side by side."""
        legs = self.training.targets.shape[1] * (len(self.X_train) + len(self.X_test))
        return groups_of(range(draws), 2 * max(1, int(held / (64 * legs**2))))

    @property
    def has_free_end(self) -> bool:
        """Whether training is linear as long as the kernel stays, so that a network's own kernel tells its end."""
        return self.training.loss == "squared_error"


def check_learner(learner: Learner, noise: float) -> None:
    """Refuse names that mean nothing, and noise where no learner makes use of it."""
    if learner not in get_args(Learner):
        raise unknown_name("`learner`", str(learner), get_args(Learner))
    if learner != "bayes" and noise:
        raise InputError("`noise` is a matter of Bayesian learning: use `learner='bayes'`, or leave it out.")


@dataclass(frozen=True)
class Lesson:
    """How networks learn: the options of ``compare_trained`` that say so, with its defaults."""

    learner: Learner = "gradient_descent"
    algorithm: Algorithm = "gradient_descent"
    eta: float | None = None
    time: float | None = None
    loss: LossName = "squared_error"
    label_smoothing: float | None = None
    noise: float = 0.0

    def __post_init__(self) -> None:
        check_learner(self.learner, self.noise)
        if self.learner == "bayes" and (self.time is not None or self.loss != "squared_error"):
            raise InputError(
                "Bayesian learning is the end of training on squared errors: leave `time` and `loss` out."
            )


def goal_of(
    mlp: MLP,
    X_train: ArrayLike,
    Y_train: ArrayLike,
    X_test: ArrayLike,
    lesson: Lesson = Lesson(),
    seed: Seed = 0,
) -> Goal:
    """The prediction at infinite width, and the training that it is about."""
    check_network(mlp)
    train, test = mlp.check_inputs(X_train), mlp.check_inputs(X_test)
    mlp = mlp.with_inputs(train)
    trained = bayes_equivalent_rates(mlp) if lesson.learner == "bayes" else mlp
    kernels, noise = output_kernels(trained, train, test), check_noise(lesson.noise)
    given = loss_targets(Y_train, mlp.n_out, lesson.loss, lesson.label_smoothing)
    targets = check_targets(given, len(train), mlp.n_out, "Y_train")
    training = _training(kernels, targets, lesson, noise)
    if training.loss == "cross_entropy":
        ends = training.time is None
        law = _soft_labels(kernels, training) if ends else _sampled(kernels, training, seed)
    else:
        law = _posterior(kernels, training) if training.noise else _squared_error(kernels, training)
    return Goal(trained, train, test, training, law)


def _training(kernels: OutputKernels, targets: FloatArray, lesson: Lesson, noise: float) -> Training:
    """With a rate at which narrow networks, whose kernels fluctuate, are safe too: half of what is stable."""
    eta, time, loss = lesson.eta, lesson.time, lesson.loss
    rates = LearningRates(*(value + noise for value in GradientDescent(kernels, targets).rates))
    if lesson.algorithm == "flow":
        speed = 1.0 if eta is None else positive("eta", eta)
        return Training(targets, speed, "flow", time, loss, _STRIDE / (speed * rates.largest), noise)
    if loss == "cross_entropy":
        rate = check_step(kernels, Descent(eta))
    else:
        rate = 1 / rates.largest if eta is None else rates.check(eta)
    return Training(targets, rate, lesson.algorithm, time, loss, None, noise)


def _squared_error(kernels: OutputKernels, training: Training) -> Law:
    """(10.40), (10.41), or at a finite time; the mean for unit targets is P."""
    found, unit = (
        GradientDescent(kernels, targets).after(
            named_algorithm(training.algorithm, training.eta, training.time)
        )
        for targets in (training.targets, np.eye(kernels.training))
    )
    if training.time is None and found.jitter:
        raise singular_kernel()
    covariance = np.asarray(found.covariance, dtype=np.float64)
    weights = unit.mean.values
    return Law(found.mean.values, covariance, np.zeros_like(covariance), _when(training), weights)


def singular_kernel() -> InputError:
    """Of networks that are trained to an end which there is not."""
    return InputError(
        "the tangent kernel of the training inputs is singular, so that no network takes all targets: leave out "
        "repeated inputs, or give positive learning rates."
    )


def _when(training: Training) -> str:
    if training.time is None:
        return "to the end"
    unit = "steps" if training.algorithm == "gradient_descent" else "units of flow time"
    return f"for {training.time:g} {unit} at eta {training.eta:.4g}"


def _posterior(kernels: OutputKernels, training: Training) -> Law:
    """(6.64), (6.57) with noise: last layers trained at the rates of Bayes have Theta = K."""
    cross = kernels.K_cross.T
    found = condition(kernels.K_train, training.targets, cross, kernels.K_test, noise=training.noise)
    unit = condition(kernels.K_train, np.eye(kernels.training), cross, noise=training.noise)
    covariance = np.asarray(found.covariance, dtype=np.float64)
    statement = f"to the end, with noise {training.noise:g} on the targets"
    return Law(found.mean.values, covariance, np.zeros_like(covariance), statement, unit.mean.values)


def _soft_labels(kernels: OutputKernels, training: Training) -> Law:
    """(10.37): the end of training on probabilities, none of them zero.

    Differences of outputs end as with squared errors, S; their mean over outputs is not trained and keeps K.
    """
    logits = target_logits(training.targets)
    end = _squared_error(kernels, replace(training, targets=logits, loss="squared_error"))
    between = (np.asarray(kernels.K_test, dtype=np.float64) - end.covariance) / logits.shape[1]
    return replace(end, covariance=end.covariance + between, between=between, centred=True)


def _sampled(kernels: OutputKernels, training: Training, seed: Seed) -> Law:
    """Cross-entropy at a finite time: networks of infinite width, trained in function space."""
    targets = training.targets
    way = check_way(named_algorithm(training.algorithm, training.eta, training.time))
    z = train_networks(kernels, CROSS_ENTROPY, targets, targets.shape[1], way, _SAMPLES, seed).test
    own, between = moments(z - z.mean(axis=0))
    return Law(z.mean(axis=0), own.mean(axis=0), between.mean(axis=0), _when(training), samples=z)


def moments(e: FloatArray) -> tuple[FloatArray, FloatArray]:
    """For each network the mean over outputs i of e_i e_i, and over i ≠ j of e_i e_j: (networks, tests, tests)."""
    outputs = e.shape[2]
    own = np.einsum("dbi,dci->dbc", e, e, optimize=True)
    total = e.sum(axis=2)
    between = (total[:, :, None] * total[:, None, :] - own) / max(1, outputs * (outputs - 1))
    return own / outputs, between
