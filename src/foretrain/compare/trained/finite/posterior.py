"""The posterior of networks of finite width: to order 1/n, and by weighted networks, in batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from foretrain.compare.judging.entries import BatchValues
from foretrain.compare.trained.finite.entries import Entries, posterior_entries, values_at
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, spawn
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.prediction.bayes.finite_width import (
    FiniteBayesPrediction,
    ImportancePosterior,
    finite_bayes_prediction,
    importance_posterior,
)


@dataclass(frozen=True, eq=False)
class PosteriorGoal:
    """Data, and the posterior that they lead to, to order 1/n."""

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
        """What is compared."""
        return posterior_entries(self.mlp.depth, *self.prediction.mean.shape)

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


def posterior_goal(
    mlp: MLP, X_train: ArrayLike, Y_train: ArrayLike, X_test: ArrayLike, noise: float
) -> PosteriorGoal:
    """The prediction; arguments as in ``compare_trained_finite``."""
    train, test = mlp.check_inputs(X_train), mlp.check_inputs(X_test)
    prediction = finite_bayes_prediction(mlp, train, Y_train, test, noise=noise, draws=0)
    return PosteriorGoal(mlp.with_inputs(train), train, Y_train, test, prediction)


def measure_posterior(goal: PosteriorGoal, mlp: MLP, draws: int, batches: int, seed: Seed) -> BatchValues:
    """Batch values of all entries from networks of one width, weighted with the density of the targets."""
    data, noise = (goal.X_train, goal.Y_train, goal.X_test), goal.prediction.noise
    rows = [
        values_at(
            goal.entries,
            goal.scaled(mlp, importance_posterior(mlp, *data, draws=draws // batches, noise=noise, seed=own)),
        )
        for own in track(spawn(seed, batches), "weighted networks")
    ]
    return BatchValues(np.stack(rows))
