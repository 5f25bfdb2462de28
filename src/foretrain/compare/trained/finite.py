"""The order 1/n beside trained networks: what finite width does to predictions, measured and from theory.

Everything is compared times n, the width of the last hidden layer, and extrapolated to 1/n = 0 with a quadratic in
1/n, where the first order is exact. Verdicts are those of :mod:`foretrain.compare.comparison`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.compare.comparison import Comparison
from foretrain.compare.estimators import BatchValues
from foretrain.compare.ladder import Ladder, warn_if_too_deep
from foretrain.compare.trained.deviations import Sizes, sizes_of
from foretrain.compare.trained.finite_entries import values_at
from foretrain.compare.trained.finite_goal import FiniteAlgorithm, FiniteGoal, finite_goal
from foretrain.compare.trained.finite_posterior import PosteriorGoal, measure_posterior, posterior_goal
from foretrain.compare.trained.finite_statistics import measure_trained
from foretrain.compare.trained.goal import Learner
from foretrain.compare.widths import check_scales, inverse_widths, scaled, share_draws
from foretrain.support.errors import InputError, unknown_name
from foretrain.support.seeds import Seed, spawn
from foretrain.theory.architecture import MLP
from foretrain.theory.flow.entry import check_network

if TYPE_CHECKING:
    import xarray

Array = NDArray[np.float64]
Keeper: TypeAlias = "Callable[[str, Callable[[], xarray.Dataset]], xarray.Dataset]"

_STILL, _EQUAL = 1e-4, 1e-3  # of the natural size: what fluctuates less is still, and then compared to this
_NEAR = 2.0  # standard errors, at the largest width


@dataclass(frozen=True)
class _Habit:
    """How many networks a learner needs."""

    draws: int  # by default
    batches: int
    smallest: int  # networks in a batch
    effort: Callable[[MLP], float]  # time that a network takes, over the variance of what it says

    def ladder(self, mlp: MLP, widths: Sequence[int] | None, draws: int | Sequence[int] | None) -> Ladder:
        """Widths, and networks of each in batches."""
        chosen = check_scales(mlp, _scales(mlp, widths))
        networks = tuple(scaled(mlp, scale) for scale in chosen)
        inverse = inverse_widths(mlp, chosen)
        costs = np.array([self.effort(network) for network in networks])
        counts = _counts(inverse, costs, self.draws if draws is None else draws)
        if min(counts) < self.batches * self.smallest:
            raise InputError(
                f"draws is {draws}, which leaves {min(counts)} networks for a width: give at least "
                f"{self.batches * self.smallest} for each."
            )
        step = 2 * self.batches
        return Ladder(
            chosen,
            inverse,
            networks,
            tuple(-(-count // step) * step for count in counts),
            "weights",
            self.batches,
        )


_HABITS = {
    "gradient_descent": _Habit(4000, 100, 2, lambda mlp: float(mlp.parameter_count)),
    "bayes": _Habit(200_000, 40, 500, lambda mlp: 1.0),
}


@dataclass(frozen=True, eq=False, repr=False)
class FiniteComparison(Comparison):
    """n times what finite width changes: measured at every width, the limit, the theory, and how far they are apart.

    ``theory``, ``measured``, ``limit``, ``standard_error`` and ``z`` belong to ``entries``, see ``rows()``.
    """

    goal: FiniteGoal | PosteriorGoal
    learner: str
    steps: Array  # (widths,), mean number until the end; nan where nothing is trained

    @property
    def widths(self) -> Array:
        """n, of the last hidden layer."""
        return np.array([network.hidden_widths[-1] for network in self.ladder.networks])

    @property
    def observables(self) -> list[str]:
        """Those of the entries, in their order."""
        return list(dict.fromkeys(entry.observable for entry in self.entries))

    def of(self, observable: str) -> NDArray[np.bool_]:
        """Which entries belong to an observable."""
        return np.array([entry.observable == observable for entry in self.entries])

    @cached_property
    def fluctuates(self) -> NDArray[np.bool_]:
        """Entries with noise; the others, such as a kernel that never changes, are compared exactly."""
        return np.asarray(self.standard_error > _STILL * self.unit)

    @property
    def exact_agrees(self) -> bool:
        """Whether entries that do not fluctuate equal the theory."""
        return bool((np.abs(self.limit - self.theory) <= _EQUAL * self.unit)[~self.fluctuates].all())

    @cached_property
    def scores(self) -> Array:
        """(measured − theory) / standard error at each width, nan where nothing fluctuates: (widths, entries).

        At finite width it holds what is of higher order too, which falls as 1/n.
        """
        error = np.where(self.fluctuates, self.measured_error, np.nan)
        return np.asarray((self.measured - self.theory) / error)

    def sizes(self, observable: str) -> Sizes:
        """Root mean square distance from the theory at each width, its noise taken out."""
        chosen = self.of(observable)
        covariances = [batch.covariance[np.ix_(chosen, chosen)] for batch in self.batches]
        return sizes_of((self.measured - self.theory)[:, chosen], covariances)

    @property
    def verdict(self) -> str:
        """One sentence."""
        word = "agrees" if self.agrees else "does NOT agree"
        found = self.judgement.told(exact_agrees=self.exact_agrees)
        widest = self.scores[-1, self.of("mean") & self.fluctuates]
        near = f"{(np.abs(widest) <= _NEAR).sum()} of {widest.size} means within {_NEAR:g} standard errors"
        where = f"at width {self.widths[-1]} {near}"
        return f"{self.mlp.activation.label}: the order 1/n {word} with networks ({found}; {where})."

    def rows(self) -> list[dict[str, object]]:
        """One dictionary per entry."""
        return [
            row
            | {"observable": entry.observable, "measured": values.tolist(), "measured_error": errors.tolist()}
            for row, entry, values, errors in zip(
                super().rows(), self.entries, self.measured.T, self.measured_error.T, strict=True
            )
        ]

    def to_dataset(self) -> xarray.Dataset:
        """Every number, labelled; ``foretrain.save`` stores it."""
        from foretrain.compare.trained.finite_presentation import finite_dataset

        return finite_dataset(self)

    def __repr__(self) -> str:
        from foretrain.compare.trained.finite_presentation import finite_text

        return finite_text(self)


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
    widths
        Hidden widths, at least three; by default (1/4, 1/2, 1), (1/2, 1, 2) or (1, 2, 4) times the own ones.
    draws
        Networks per width, on average, or a number for each width; 4,000 by default, 200,000 for ``bayes``.
    keeper
        Called with the name of a width and a function that measures it, gives back what that returns, or what it
        kept of it: see :class:`foretrain.experiments.parts.Parts`.

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
    _check(learner, algorithm, eta, noise)
    mlp = mlp.with_inputs(mlp.check_inputs(X_train))
    ladder = _HABITS[learner].ladder(mlp, widths, draws)
    warn_if_too_deep(ladder)
    data = (ladder.networks[-1], X_train, Y_train, X_test)
    goal = posterior_goal(*data, noise) if learner == "bayes" else finite_goal(*data, algorithm, eta)
    keeper = keeper or (lambda name, compute: compute())
    found = [
        keeper(
            f"width {network.hidden_widths[-1]}",
            partial(_measured, goal, network, count, ladder.batches, own),
        )
        for network, count, own in zip(
            ladder.networks, ladder.draws, spawn(seed, len(ladder.networks)), strict=True
        )
    ]
    return FiniteComparison(
        mlp,
        tuple(goal.entries),
        ladder,
        "control variates" if learner == "gradient_descent" else "weighted networks",
        " ".join(repr(seed).split()),
        values_at(goal.entries, goal.theory()),
        _units(goal),
        tuple(BatchValues(each["values"].values) for each in found),
        goal,
        learner,
        np.array([float(each["steps"]) for each in found]),
    )


def _check(learner: Learner, algorithm: FiniteAlgorithm, eta: float | None, noise: float) -> None:
    if learner not in get_args(Learner):
        raise unknown_name("learner", str(learner), get_args(Learner))
    if learner == "bayes" and (eta is not None or algorithm != "gradient_descent"):
        raise InputError("inference has neither an algorithm nor a rate: leave algorithm and eta out.")
    if learner != "bayes" and noise:
        raise InputError("noise is a matter of Bayesian learning: use learner='bayes', or leave it out.")


def _measured(
    goal: FiniteGoal | PosteriorGoal, network: MLP, draws: int, batches: int, seed: Seed
) -> xarray.Dataset:
    """Batch values and the number of steps of networks of one width, as a part that can be kept."""
    import xarray

    if isinstance(goal, PosteriorGoal):
        values, steps = measure_posterior(goal, network, draws, batches, seed), np.nan
    else:
        values, steps = measure_trained(goal, network, draws, batches, seed)
    return xarray.Dataset({"values": (("batch", "entry"), values.values), "steps": ((), steps)})


def _units(goal: FiniteGoal | PosteriorGoal) -> Array:
    """Natural sizes: for each observable the largest of its entries in theory, or of the mean where all are zero."""
    theory = {name: float(np.abs(values).max()) for name, values in goal.theory().items()}
    whole = float(np.abs(goal.prediction.infinite_mean.values).max())
    return np.array([theory[entry.observable] or whole for entry in goal.entries])


def _scales(mlp: MLP, widths: Sequence[int] | None) -> list[float] | None:
    if widths is None:
        return None
    if len({*mlp.hidden_widths}) > 1:
        raise InputError(
            f"the hidden widths are {list(mlp.hidden_widths)}: widths can be given for equal ones only, so leave "
            "them out, and all layers grow together."
        )
    return [float(width) / mlp.hidden_widths[0] for width in widths]


def _counts(inverse: Array, costs: Array, draws: int | Sequence[int]) -> list[int]:
    """Networks of each width: as given, or shared out so that the limit is sharpest."""
    if isinstance(draws, int | np.integer):
        return share_draws(inverse, costs, int(draws))
    counts = np.asarray(draws)
    if counts.shape != inverse.shape or counts.dtype.kind != "i":
        raise InputError(
            f"draws is {draws!r}: give a whole number, or one for each of {len(inverse)} widths."
        )
    return [int(count) for count in counts]
