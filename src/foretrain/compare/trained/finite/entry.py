"""The order 1/n beside trained networks: what finite width does to predictions, measured and from theory.

Everything is compared times n, the width of the last hidden layer, and extrapolated to 1/n = 0 with a quadratic in
1/n, where the first order is exact. Verdicts are those of :mod:`foretrain.compare.comparison`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from foretrain.compare.judging.entries import BatchValues
from foretrain.compare.judging.ladder import (
    Keeper,
    Ladder,
    draws_by_width,
    measured_widths,
    rounded_up,
    rungs_of,
    scales_of_widths,
)
from foretrain.compare.trained.finite.comparison import FiniteComparison
from foretrain.compare.trained.finite.entries import values_at
from foretrain.compare.trained.finite.goal import FiniteAlgorithm, FiniteGoal, finite_goal
from foretrain.compare.trained.finite.posterior import PosteriorGoal, measure_posterior, posterior_goal
from foretrain.compare.trained.finite.statistics import measure_trained
from foretrain.compare.trained.goal import check_learner
from foretrain.support.errors import InputError
from foretrain.support.seeds import Seed, seed_text
from foretrain.theory.architecture import MLP, FloatArray, check_network
from foretrain.theory.prediction.predict import Learner


@dataclass(frozen=True)
class _Habit:
    """How many networks a learner needs."""

    draws: int  # by default
    batches: int
    smallest: int  # networks in a batch
    effort: Callable[[MLP], float]  # time that a network takes, over the variance of what it says

    def ladder(self, mlp: MLP, scales: Sequence[float] | None, draws: int | Sequence[int] | None) -> Ladder:
        """Widths, and networks of each in batches."""
        rungs = rungs_of(mlp, scales)
        costs = np.array([self.effort(network) for network in rungs.networks])
        counts = draws_by_width(self.draws if draws is None else draws, rungs.inverse, costs)
        if min(counts) < self.batches * self.smallest:
            raise InputError(
                f"`draws` is {draws}, which leaves {min(counts)} networks for a width: give at least "
                f"{self.batches * self.smallest} for each."
            )
        return Ladder(*rungs, rounded_up(counts, 2 * self.batches), "weights", self.batches)


_HABITS = {
    "gradient_descent": _Habit(4000, 100, 2, lambda mlp: float(mlp.parameter_count)),
    "bayes": _Habit(200_000, 40, 500, lambda mlp: 1.0),
}


def compare_trained_finite(
    mlp: MLP,
    X_train: ArrayLike,
    Y_train: ArrayLike,
    X_test: ArrayLike,
    *,
    learner: Learner = "gradient_descent",
    algorithm: FiniteAlgorithm = "gradient_descent",
    eta: float | None = None,
    noise: float = 0.0,
    widths: Sequence[int] | None = None,
    scales: Sequence[float] | None = None,
    draws: int | Sequence[int] | None = None,
    seed: Seed = 0,
    keeper: Keeper | None = None,
) -> FiniteComparison:
    """Real networks of several widths beside the prediction to order 1/n, split by origin (∞.160)-(∞.165), (6.88).

    Parameters
    ----------
    learner
        ``gradient_descent`` trains networks to the end; ``bayes`` weights networks with the density of the targets,
        which is their exact posterior.
    algorithm
        ``gradient_descent`` in steps, ``flow`` in continuous time, or ``two_step``, a giant leap and a small step. At
        order 1/n the end depends on it.
    eta
        Learning rate of steps, half of the largest that is stable by default, or speed of the flow.
    noise
        Variance of noise on the targets, for ``bayes``.
    widths, scales
        Hidden widths, or multipliers of the network's own, at least three; by default (1/4, 1/2, 1), (1/2, 1, 2) or
        (1, 2, 4) times the own ones.
    draws
        Networks per width, on average, or a number for each width; 4,000 by default, 200,000 for ``bayes``.
    keeper
        Keeps what is finished, width by width, as in ``compare_trained``.

    Examples
    --------
    >>> import foretrain as ft
    >>> mlp = ft.MLP("sin", depth=2, width=128, C_b=0.1, C_W=1.3, lambda_b=0.5)
    >>> data = [[-0.1, -0.7], [2.1, 0.25]], [-0.3, 1.6], [[-1.2, -0.95]]
    >>> found = compare_trained_finite(mlp, *data, widths=(64, 128, 256), draws=1000)
    >>> found.agrees, found.observables
    (True, ['ntk_variance', 'interaction', 'mean', 'ntk_change'])
    """
    check_network(mlp)
    check_learner(learner, noise)
    if learner == "bayes" and (eta is not None or algorithm != "gradient_descent"):
        raise InputError("inference has neither an algorithm nor a rate: leave `algorithm` and `eta` out.")
    mlp = mlp.with_inputs(mlp.check_inputs(X_train))
    ladder = _HABITS[learner].ladder(mlp, scales_of_widths(mlp, widths, scales), draws)
    ladder.warn_if_too_deep()
    data = (ladder.networks[-1], X_train, Y_train, X_test)
    goal = posterior_goal(*data, noise) if learner == "bayes" else finite_goal(*data, algorithm, eta)
    batches, steps = measured_widths(partial(_measure, goal), ladder, seed, keeper)
    return FiniteComparison(
        mlp=mlp,
        entries=tuple(goal.entries),
        ladder=ladder,
        estimator="weighted networks" if learner == "bayes" else "control variates",
        seed=seed_text(seed),
        theory=values_at(goal.entries, goal.theory()),
        unit=_units(goal),
        batches=batches,
        goal=goal,
        learner=learner,
        steps=steps,
    )


def _measure(
    goal: FiniteGoal | PosteriorGoal, network: MLP, draws: int, batches: int, seed: Seed
) -> tuple[BatchValues, float]:
    """Batch values of networks of one width, and the mean number of steps: none where nothing is trained."""
    if isinstance(goal, PosteriorGoal):
        return measure_posterior(goal, network, draws, batches, seed), np.nan
    return measure_trained(goal, network, draws, batches, seed)


def _units(goal: FiniteGoal | PosteriorGoal) -> FloatArray:
    """Natural sizes: for each observable the largest of its entries in theory, or of the mean where all are zero."""
    theory = {name: float(np.abs(values).max()) for name, values in goal.theory().items()}
    whole = float(np.abs(goal.prediction.infinite_mean.values).max())
    return np.array([theory[entry.observable] or whole for entry in goal.entries])
