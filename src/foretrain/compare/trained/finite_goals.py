"""What the theory says at order 1/n about networks that learn, how they are trained for that, and what they say.

Everything is n times what finite width changes, with n the width of the last hidden layer. :class:`FiniteGoal` is
about trained networks, :class:`PosteriorGoal` about networks weighted with the density of the targets.

With z^F the output that a network would end at if its own tangent kernel stayed, and z^L its part of first order in
Ĥ − Theta, the mean of trained outputs is

    E[z(T)] = E[z(T) − z^F] + E[z^F − z^L] + E[z^L]

The first part is the interaction, the second what the variance of the kernel does; both are of order 1/n, and so is
their scatter once mirrored networks are averaged. The third has a scatter of order n^(-1/2) that would hide them, but
its mean is known: the one at infinite width, and the term of H1, which ``foretrain.compare`` of H1 measures.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement, product
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from foretrain.compare.judging.ladder import BatchValues, Entry
from foretrain.compare.trained.ensemble import (
    InitialEnsemble,
    TrainedEnsemble,
    draw_ensemble,
    train_ensemble,
    two_step_ensemble,
)
from foretrain.compare.trained.goal import Goal, Lesson, goal_of, singular_kernel
from foretrain.support.errors import InputError, unknown_name
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, spawn
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.prediction.algorithms import NAMES, named_algorithm
from foretrain.theory.prediction.bayes import (
    FiniteBayesPrediction,
    ImportancePosterior,
    finite_bayes_prediction,
    importance_posterior,
)
from foretrain.theory.prediction.finite_width import FinitePrediction, FiniteWidth

FiniteAlgorithm = Literal["gradient_descent", "flow", "two_step"]

UNTRAINED = 2  # for each trained network: z^F costs a fraction of training
_CHUNK_BYTES = 2e8  # of kernels held at once
_LEFT = 1e-5  # n times the error that is left at the end, relative to its start

TRAINED = {
    "ntk_variance": "n times the mean of z^F, where a kernel that stays leads, by what is of second order in it",
    "interaction": "n times the mean of z(T) - z^F: what the change of the kernel does to trained outputs",
    "mean": "n times the mean of z(T), less that at infinite width",
    "ntk_change": "n times the mean change of the tangent kernel by training",
}
POSTERIOR = {
    "log_evidence": "n times the log density of the targets, less that at infinite width",
    "mean": "n times the posterior mean, less that at infinite width",
    "covariance": "n times the covariance of an output given the metric, less that at infinite width",
    "wiring": "n times the covariance of means of two outputs over metrics",
}


@dataclass(frozen=True, order=True)
class FiniteEntry(Entry):
    """One number; inputs are numbers of test inputs, in a change of the kernel of training and test inputs."""

    outputs: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """For example ``interaction of output 0 at 2`` or ``ntk_change at 0 1``."""
        of = f" of output{'s' * (len(self.outputs) > 1)} {' '.join(map(str, self.outputs))}"
        at = f" at {' '.join(map(str, self.inputs))}"
        return f"{self.observable}{of * bool(self.outputs)}{at * bool(self.inputs)}"


Entries = list[FiniteEntry]


def _pairs(name: str, depth: int, inputs: int, outputs: int) -> Entries:
    """What is symmetric under a joint exchange of inputs a, b and outputs i, j."""
    legs = [(a, i) for a in range(inputs) for i in range(outputs)]
    return [
        FiniteEntry(name, depth, (a, b), (i, j)) for (a, i), (b, j) in combinations_with_replacement(legs, 2)
    ]


def values_at(entries: Entries, arrays: Mapping[str, FloatArray]) -> FloatArray:
    """(…, entries) from arrays (…, inputs of the entry, outputs of the entry)."""
    places: list[tuple[Any, ...]] = [(..., *entry.inputs, *entry.outputs) for entry in entries]
    return np.stack([arrays[e.observable][place] for e, place in zip(entries, places)], axis=-1)


class OrderGoal(ABC):
    """What both goals are to a comparison; arrays by observable have the inputs and then the outputs of an entry."""

    estimator: ClassVar[str]
    prediction: FinitePrediction | FiniteBayesPrediction

    @property
    @abstractmethod
    def entries(self) -> Entries:
        """What is compared."""

    @abstractmethod
    def theory(self) -> dict[str, FloatArray]:
        """What the entries are, by observable."""

    def values(self) -> FloatArray:
        """What the theory says, by entry."""
        return values_at(self.entries, self.theory())

    def units(self) -> FloatArray:
        """Natural sizes: of an observable its largest entry in theory, or that of the mean where all are zero."""
        theory = {name: float(np.abs(values).max()) for name, values in self.theory().items()}
        whole = float(np.abs(self.prediction.infinite_mean.values).max())
        return np.array([theory[entry.observable] or whole for entry in self.entries])


@dataclass(frozen=True, eq=False)
class FiniteGoal(OrderGoal):
    """Data, the course of training, and the prediction for its end to order 1/n."""

    estimator: ClassVar[str] = "control variates"

    goal: Goal
    algorithm: FiniteAlgorithm
    prediction: FinitePrediction
    inverse: FloatArray = field(repr=False)  # of Theta_AA

    @property
    def statement(self) -> str:
        """What was done."""
        return f"networks trained {self.prediction.statement.partition(f'width {self.prediction.width} ')[2]}"

    @property
    def scaled_terms(self) -> dict[str, FloatArray]:
        """n times every term of the mean, (tests, outputs)."""
        width = self.prediction.width
        return {name: width * np.asarray(term.values) for name, term in self.prediction.terms.items()}

    @property
    def entries(self) -> Entries:
        """Every output on every test, and the change of the tangent kernel of every pair (output, sample) once."""
        depth, (tests, outputs) = self.goal.mlp.depth, self.prediction.mean.shape
        single = [
            FiniteEntry(name, depth, (test,), (output,))
            for name in ("ntk_variance", "interaction", "mean")
            for test in range(tests)
            for output in range(outputs)
        ]
        return single + _pairs("ntk_change", depth, len(self.goal.X_train) + tests, outputs)

    def theory(self) -> dict[str, FloatArray]:
        """What the entries are, by observable."""
        terms = self.scaled_terms
        return {
            "ntk_variance": terms["ntk_variance"],
            "interaction": np.asarray(terms["dntk"] + terms["ddntk_1"] + terms["ddntk_2"]),
            "mean": np.asarray(sum(terms.values())),
            "ntk_change": self.prediction.width * np.asarray(self.prediction.ntk_change.values),
        }

    def measure(self, mlp: MLP, draws: int, batches: int, seed: Seed) -> tuple[BatchValues, float]:
        """Batch values of all entries from networks of one width, and the mean number of steps."""
        first, second = spawn(seed, 2)
        parts, steps = [], 0.0
        for numbers in self.goal.chunks(draws, _CHUNK_BYTES):
            trained = self.train(mlp, numbers, first)
            lost = int(trained.diverged.sum())
            if lost:
                raise InputError(
                    f"{lost} of {trained.draws:,} networks of width {mlp.widths[-2]} did not come to an end of "
                    "training, so that their mean says nothing: give wider networks, smaller targets or a smaller "
                    "`eta`."
                )
            assert trained.free is not None
            assert trained.kernel_before is not None
            assert trained.kernel_after is not None
            change = trained.kernel_after - trained.kernel_before
            parts.append(
                {
                    "interaction": (trained.end - trained.free)[:, trained.trained_inputs :],
                    "ntk_change": change.transpose(0, 3, 4, 1, 2),  # samples before outputs
                }
            )
            steps += float(trained.steps.sum()) / draws
        columns = _by_batch(parts, batches)
        curved = []
        for numbers in self.goal.chunks(UNTRAINED * draws, _CHUNK_BYTES):
            drawn = self.draw(mlp, numbers, second)
            assert drawn.free is not None
            curved.append({"ntk_variance": drawn.free[:, drawn.trained_inputs :] - self.linearised(drawn)})
        columns |= _by_batch(curved, batches)
        known = self.scaled_terms["ntk_mean"] / mlp.widths[-2]
        columns["mean"] = known + columns["interaction"] + columns["ntk_variance"]
        scaled = {name: mlp.widths[-2] * values for name, values in columns.items()}
        return BatchValues(values_at(self.entries, scaled)), steps

    def train(self, mlp: MLP, numbers: range, seed: Seed) -> TrainedEnsemble:
        """Mirrored networks before and after training."""
        own, data = self.goal.training, (self.goal.X_train, self.goal.X_test)
        if self.algorithm == "two_step":
            return two_step_ensemble(mlp, *data, own.targets, numbers, seed=seed)
        how = replace(own, tolerance=_LEFT / mlp.widths[-2])
        kept = ("free", "kernel_before", "kernel_after")
        return train_ensemble(mlp, *data, how, numbers, seed=seed, mirrored=True, keep=kept)

    def draw(self, mlp: MLP, numbers: range, seed: Seed) -> InitialEnsemble:
        """Mirrored networks that are not trained."""
        options: dict[str, Any] = {"seed": seed, "mirrored": True, "keep": ("free", "kernel_before")}
        return draw_ensemble(mlp, self.goal.X_train, self.goal.X_test, self.goal.training, numbers, **options)

    def linearised(self, found: InitialEnsemble) -> FloatArray:
        """z^F to first order in Ĥ − Theta: z_B − P ε − Q Ĥ_DA Theta_AA⁻¹ ε, Q = (−P, 1): (networks, tests, outputs).

        Its mean over networks is the one at infinite width and what H1 adds to it.
        """
        assert found.kernel_before is not None
        assert self.goal.law.weights is not None
        P, size = self.goal.law.weights, found.trained_inputs
        Q = np.concatenate([-P, np.eye(len(P))], axis=1)
        error = found.start[:, :size] - found.training.targets
        moved = np.einsum(
            "bd,nijda,naj->nbi",
            Q,
            found.kernel_before[..., :size],
            self.inverse @ error,
            optimize=True,
        )
        return np.asarray(found.start[:, size:] - P @ error - moved)


def finite_goal(
    mlp: MLP,
    X_train: ArrayLike,
    Y_train: ArrayLike,
    X_test: ArrayLike,
    algorithm: FiniteAlgorithm,
    eta: float | None,
) -> FiniteGoal:
    """The prediction and its training; arguments as in ``compare_trained_finite``."""
    if algorithm not in NAMES:
        raise unknown_name("`algorithm`", str(algorithm), NAMES)
    ensemble = FiniteWidth.of(mlp, X_train, Y_train, X_test, spread="none")
    if len(ensemble.store.modes.values) < len(ensemble.store.train):
        raise singular_kernel()
    if algorithm == "two_step" and eta is not None:
        raise InputError(
            "two-step training has no rate and is known at its end only: leave `eta` and `time` out."
        )
    lesson = Lesson() if algorithm == "two_step" else Lesson(algorithm=algorithm, eta=eta)
    goal = goal_of(mlp, X_train, Y_train, X_test, lesson)
    rate = goal.training.eta if algorithm == "gradient_descent" else eta
    prediction = ensemble.predict(named_algorithm(algorithm, rate))
    inverse = np.asarray(np.linalg.inv(ensemble.store.kernels.Theta_train), dtype=np.float64)
    return FiniteGoal(goal, algorithm, prediction, inverse)


def _by_batch(parts: list[dict[str, FloatArray]], batches: int) -> dict[str, FloatArray]:
    """Means over the networks of each batch."""
    found = {}
    for name in parts[0]:
        values = np.concatenate([part[name] for part in parts])
        found[name] = values.reshape(batches, -1, *values.shape[1:]).mean(axis=1)
    return found


@dataclass(frozen=True, eq=False)
class PosteriorGoal(OrderGoal):
    """Data, and the posterior that they lead to, to order 1/n."""

    estimator: ClassVar[str] = "weighted networks"

    mlp: MLP
    X_train: FloatArray = field(repr=False)
    Y_train: ArrayLike = field(repr=False)
    X_test: FloatArray = field(repr=False)
    prediction: FiniteBayesPrediction

    @property
    def statement(self) -> str:
        """What was done."""
        return "networks weighted with the density of the targets"

    @property
    def entries(self) -> Entries:
        """The evidence, every mean, and covariances of every pair once."""
        depth, (tests, outputs) = self.mlp.depth, self.prediction.mean.shape
        legs = product(range(tests), range(outputs))
        pairs = combinations_with_replacement(range(tests), 2)
        means = [FiniteEntry("mean", depth, (test,), (output,)) for test, output in legs]
        given = [FiniteEntry("covariance", depth, pair) for pair in pairs]
        wiring = _pairs("wiring", depth, tests, outputs)
        return [FiniteEntry("log_evidence", depth, ()), *means, *given, *wiring]

    def theory(self) -> dict[str, FloatArray]:
        """What the entries are, by observable."""
        return self.scaled(self.mlp, self.prediction)

    def scaled(self, mlp: MLP, found: FiniteBayesPrediction | ImportancePosterior) -> dict[str, FloatArray]:
        """n times what finite width changes."""
        own = self.prediction
        values: dict[str, Any] = {name: getattr(found, name) for name in ("mean", "covariance")}
        base: Mapping[str, Any] = {"mean": own.infinite_mean, "covariance": own.infinite_covariance}
        shift = {name: np.asarray(values[name]) - np.asarray(base[name]) for name in values}
        shift["log_evidence"] = np.asarray(found.log_evidence - own.infinite_log_evidence)
        shift["wiring"] = np.asarray(found.wiring).transpose(0, 2, 1, 3)
        return {name: mlp.widths[-2] * part for name, part in shift.items()}

    def measure(self, mlp: MLP, draws: int, batches: int, seed: Seed) -> tuple[BatchValues, float]:
        """Batch values of all entries from networks of one width, weighted with the density of the targets."""
        data, noise, each = (
            (self.X_train, self.Y_train, self.X_test),
            self.prediction.noise,
            draws // batches,
        )
        rows = [
            values_at(
                self.entries,
                self.scaled(mlp, importance_posterior(mlp, *data, draws=each, noise=noise, seed=own)),
            )
            for own in track(spawn(seed, batches), "weighted networks")
        ]
        return BatchValues(np.stack(rows)), np.nan


def posterior_goal(
    mlp: MLP, X_train: ArrayLike, Y_train: ArrayLike, X_test: ArrayLike, noise: float
) -> PosteriorGoal:
    """The prediction; arguments as in ``compare_trained_finite``."""
    train, test = mlp.check_inputs(X_train), mlp.check_inputs(X_test)
    prediction = finite_bayes_prediction(mlp, train, Y_train, test, noise=noise, draws=0)
    return PosteriorGoal(mlp.with_inputs(train), train, Y_train, test, prediction)
