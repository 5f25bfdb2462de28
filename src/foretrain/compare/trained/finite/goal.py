"""What theory says at order 1/n about trained networks, and how they are trained for that."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import ArrayLike

from foretrain.compare.trained.ensemble import InitialEnsemble, TrainedEnsemble, draw_ensemble, train_ensemble
from foretrain.compare.trained.finite.entries import Entries, trained_entries
from foretrain.compare.trained.finite.two_step import two_step_ensemble
from foretrain.compare.trained.goal import Goal, goal_of, singular_kernel
from foretrain.compare.trained.training import Algorithm
from foretrain.support.errors import InputError, unknown_name
from foretrain.support.seeds import Seed
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.prediction.algorithms import NAMES, named_algorithm
from foretrain.theory.prediction.finite_width import FinitePrediction, FiniteWidth

FiniteAlgorithm = Literal["gradient_descent", "flow", "two_step"]

_LEFT = 1e-5  # n times the error that is left at the end, relative to its start


@dataclass(frozen=True, eq=False)
class FiniteGoal:
    """Data, the course of training, and the prediction for its end to order 1/n."""

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
        """What is compared."""
        tests, outputs = self.prediction.mean.shape
        return trained_entries(self.goal.mlp.depth, len(self.goal.X_train), tests, outputs)

    def theory(self) -> dict[str, FloatArray]:
        """What the entries are, by observable."""
        terms = self.scaled_terms
        return {
            "ntk_variance": terms["ntk_variance"],
            "interaction": np.asarray(terms["dntk"] + terms["ddntk_1"] + terms["ddntk_2"]),
            "mean": np.asarray(sum(terms.values())),
            "ntk_change": self.prediction.width * np.asarray(self.prediction.ntk_change.values),
        }

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
    leaps = algorithm == "two_step"
    if leaps and eta is not None:
        raise InputError(
            "two-step training has no rate and is known at its end only: leave `eta` and `time` out."
        )
    steps = cast("Algorithm", "gradient_descent" if leaps else algorithm)
    goal = goal_of(mlp, X_train, Y_train, X_test, algorithm=steps, eta=None if leaps else eta)
    rate = goal.training.eta if algorithm == "gradient_descent" else eta
    prediction = ensemble.predict(named_algorithm(algorithm, rate))
    inverse = np.asarray(np.linalg.inv(ensemble.store.kernels.Theta_train), dtype=np.float64)
    return FiniteGoal(goal, algorithm, prediction, inverse)
