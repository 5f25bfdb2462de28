"""The order 1/n beside networks that learn: what finite width does to predictions, measured and from theory.

Everything is compared times n, the width of the last hidden layer, and extrapolated to 1/n = 0 with a quadratic in
1/n, where the first order is exact. Verdicts are those of :mod:`foretrain.compare.comparison`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from foretrain.compare.comparison import Comparison
from foretrain.compare.judging.ladder import Asked, Keeper, Ladder
from foretrain.compare.pictures import finite_figure
from foretrain.compare.trained.comparison import ENTRIES_SHOWN
from foretrain.compare.trained.finite_goals import (
    POSTERIOR,
    TRAINED,
    FiniteAlgorithm,
    FiniteGoal,
    PosteriorGoal,
    finite_goal,
    posterior_goal,
)
from foretrain.compare.trained.goal import check_learner
from foretrain.support.answers import Part
from foretrain.support.errors import InputError
from foretrain.support.seeds import Seed
from foretrain.theory.architecture import MLP, FloatArray, check_network
from foretrain.theory.prediction.predict import Learner

if TYPE_CHECKING:
    import xarray


_NEAR = 2.0  # standard errors, at the largest width


@dataclass(frozen=True, eq=False, repr=False)
class FiniteComparison(Comparison):
    """n times what finite width changes: measured at every width, the limit, the theory, and how far they are apart.

    ``theory``, ``measured``, ``limit``, ``standard_error`` and ``z`` belong to ``entries``, see ``rows()``.
    """

    compared: ClassVar[tuple[str, str]] = ("the order 1/n", "networks")
    rows_have_widths: ClassVar[bool] = True
    still: ClassVar[float] = 1e-4  # a kernel that never changes fluctuates less, by what is left of training
    equal: ClassVar[float] = 1e-3

    goal: FiniteGoal | PosteriorGoal
    learner: str

    @property
    def widths(self) -> FloatArray:
        """n, of the last hidden layer."""
        return np.array([network.hidden_widths[-1] for network in self.ladder.networks])

    @cached_property
    def scores(self) -> FloatArray:
        """(measured − theory) / standard error at each width, nan where nothing fluctuates: (widths, entries).

        At finite width it holds what is of higher order too, which falls as 1/n.
        """
        error = np.where(self.fluctuates, self.measured_error, np.nan)
        return np.asarray((self.measured - self.theory) / error)

    def _found(self) -> str:
        """What every comparison says, and how many means the widest networks get right by themselves."""
        widest = self.scores[-1, self.of("mean") & self.fluctuates]
        near = f"{(np.abs(widest) <= _NEAR).sum()} of {widest.size} means within {_NEAR:g} standard errors"
        return f"{super()._found()}; at width {self.widths[-1]} {near}"

    def scaled_terms(self) -> dict[str, Any]:
        """n times the terms of the mean."""
        prediction, n = self.goal.prediction, self.widths[-1]
        return {name: n * np.asarray(term.values) for name, term in prediction.terms.items()}

    def to_dataset(self) -> xarray.Dataset:
        """What every comparison holds, with z-scores at each width, and n times the terms of the prediction."""
        base = super().to_dataset().drop_vars(["corrected", "layer"])
        outputs = [" ".join(map(str, getattr(entry, "outputs", ()))) for entry in self.entries]
        added: dict[str, Any] = {
            "score": (("width", "entry"), self.scores),
            "steps": (("width",), self.steps),
            "infinite_mean": (("test", "output"), self.goal.prediction.infinite_mean.values),
            **{f"term_{name}": (("test", "output"), term) for name, term in self.scaled_terms().items()},
        }
        labels = {"entry": [entry.label for entry in self.entries], "outputs": (("entry",), outputs)}
        attributes = {"learner": self.learner, "statement": self.goal.statement}
        whole = base.rename({"score": "direction"}).assign_coords(labels)
        return whole.assign_coords(width=self.widths).assign(added).assign_attrs(attributes)

    draw = staticmethod(finite_figure)

    def _parts(self) -> list[Part]:
        meanings = POSTERIOR if self.learner == "bayes" else TRAINED
        return [
            f"They are {self.goal.statement}; n is the width of the last hidden layer.",
            self._entries_table("entry", [f"n = {width}" for width in self.widths], ENTRIES_SHOWN),
            "\n".join(f"{name}: {meanings[name]}" for name in self.observables),
        ]

    def _record(self) -> dict[str, Any]:
        training = getattr(getattr(self.goal, "goal", None), "training", None)  # a posterior has none
        leaps = getattr(self.goal, "algorithm", "") == "two_step"
        return super()._record() | {
            "regime": "finite",
            "learner": self.learner,
            "trained": self.goal.statement,
            "eta": None if training is None or leaps else training.eta,
            "widths": self.widths.tolist(),
            "steps": self.steps.tolist(),
            "infinite_mean": self.goal.prediction.infinite_mean.values,
            "scaled_terms": self.scaled_terms(),
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
    habit = _HABITS[learner]
    asked = Asked(habit.draws if draws is None else draws, widths, scales, seed, keeper)
    ladder = habit.plan(mlp, asked)
    data = (ladder.networks[-1], X_train, Y_train, X_test)
    goal = posterior_goal(*data, noise) if learner == "bayes" else finite_goal(*data, algorithm, eta)
    return FiniteComparison.run(mlp, goal, ladder, asked, seed, goal=goal, learner=learner)


@dataclass(frozen=True)
class _Habit:
    """How many networks a learner needs."""

    draws: int  # by default
    batches: int
    smallest: int  # networks in a batch
    same_cost: bool  # whether narrow and wide networks are equally worth their time

    def plan(self, mlp: MLP, asked: Asked) -> Ladder:
        """Widths, and networks of each in batches."""
        rungs = asked.rungs(mlp)
        costs = [1.0 if self.same_cost else float(network.parameter_count) for network in rungs.networks]
        counts = asked.counts(rungs.inverse, np.array(costs))
        if min(counts) < self.batches * self.smallest:
            raise InputError(
                f"`draws` is {asked.draws}, which leaves {min(counts)} networks for a width: give at least "
                f"{self.batches * self.smallest} for each."
            )
        return Ladder.of(rungs, counts, self.batches, step=2)


_HABITS = {
    "gradient_descent": _Habit(4000, 100, 2, same_cost=False),
    "bayes": _Habit(200_000, 40, 500, same_cost=True),
}
