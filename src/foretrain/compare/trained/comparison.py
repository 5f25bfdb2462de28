"""Predictions beside really trained networks: mean and covariance of their outputs at several widths, and the limit.

Entries are extrapolated to infinite width with a quadratic in 1/n and judged as in
:mod:`foretrain.compare.comparison`; deviations at finite width are of order 1/n and are given with their power of n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
from numpy.typing import ArrayLike

from foretrain.compare.comparison import Comparison
from foretrain.compare.judging.ladder import Asked, BatchValues, Keeper, Ladder
from foretrain.compare.judging.powers import Slope, power_of
from foretrain.compare.pictures import trained_figure
from foretrain.compare.trained.goal import Goal, Lesson, goal_of
from foretrain.compare.trained.statistics import (
    Entries,
    TrainedEntry,
    entries_of,
    measure,
    sampled_law,
    values_of,
)
from foretrain.compare.trained.training import Algorithm
from foretrain.support.answers import Column, Part, Table
from foretrain.support.errors import InputError
from foretrain.support.seeds import Seed, spawn
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.prediction.predict import Learner, LossName

if TYPE_CHECKING:
    import xarray


_BATCHES = 200
_FEWEST_BATCHES = 20
ENTRIES_SHOWN = 30
_NO_OUTPUT = -1


@dataclass(frozen=True, eq=False, repr=False)
class TrainedComparison(Comparison):
    """Mean and covariance of trained outputs at every width, their limit, the theory, and how far they are apart.

    ``theory``, ``measured``, ``limit``, ``standard_error`` and ``z`` belong to ``entries``, see ``rows()``.
    """

    compared: ClassVar[tuple[str, str]] = ("the prediction", "trained networks")
    rows_have_widths: ClassVar[bool] = True
    still: ClassVar[float] = 1e-6  # outputs on training inputs at the end fluctuate less

    goal: Goal
    learner: str
    sampled_theory: BatchValues | None = None  # where the law has no closed form

    @property
    def widths(self) -> FloatArray:
        """Of the first hidden layer."""
        return np.array([network.hidden_widths[0] for network in self.ladder.networks])

    @cached_property
    def covariance(self) -> FloatArray:
        """Of the limits, with that of the theory where it had to be sampled: (entries, entries)."""
        sampled = self.sampled_theory
        own = super().covariance
        return own if sampled is None else own + sampled.covariance

    @property
    def scaled_deviation(self) -> FloatArray:
        """n (measured − theory), constant for wide networks: (widths, entries)."""
        return np.asarray(self.widths[:, None] * (self.measured - self.theory))

    @property
    def scaled_deviation_error(self) -> FloatArray:
        """Standard errors of it: (widths, entries)."""
        return np.asarray(self.widths[:, None] * self.measured_error)

    def power(self, observable: str) -> Slope | None:
        """The power of n with which the deviation falls: −1 for wide networks; None if noise hides it."""
        return power_of(self.widths, self.sizes(observable))

    def rows(self) -> list[dict[str, object]]:
        """One dictionary per entry."""
        entries = (cast("TrainedEntry", entry) for entry in self.entries)
        return [
            row | {"tests": list(e.inputs), "output": e.output} for row, e in zip(super().rows(), entries)
        ]

    def to_dataset(self) -> xarray.Dataset:
        """What every comparison holds, with data, prediction, deviations times n, their sizes and powers of n."""
        base = super().to_dataset().drop_vars(["corrected", "layer"])
        goal, names, training = self.goal, self.observables, self.goal.training
        sizes, powers = [self.sizes(name) for name in names], [self.power(name) for name in names]
        outputs = [cast("TrainedEntry", entry).output for entry in self.entries]
        by_size = ("kind", "width")
        added = {
            "x_train": (("train", "feature"), goal.X_train),
            "y_train": (("train", "output"), training.targets),
            "x_test": (("test", "feature"), goal.X_test),
            "predicted_mean": (("test", "output"), goal.law.mean),
            "predicted_covariance": (("test", "test_2"), goal.law.covariance),
            "scaled_deviation": (("width", "entry"), self.scaled_deviation),
            "scaled_deviation_error": (("width", "entry"), self.scaled_deviation_error),
            "size": (by_size, np.stack([each.root for each in sizes])),
            "size_error": (by_size, np.stack([each.root_error for each in sizes])),
            "power": (("kind",), [np.nan if power is None else power.value for power in powers]),
            "power_error": (
                ("kind",),
                [np.nan if power is None else power.standard_error for power in powers],
            ),
            "steps": (("width",), self.steps),
        }
        labels = {
            "kind": names,
            "entry": [entry.label for entry in self.entries],
            "output_of_entry": (("entry",), [_NO_OUTPUT if output is None else output for output in outputs]),
        }
        attributes = {
            "learner": self.learner,
            "algorithm": training.algorithm,
            "loss": training.loss,
            "eta": training.eta,
            "noise": training.noise,
            "prediction": goal.law.statement,
        }
        return base.assign_coords(labels).assign(added).assign_attrs(attributes)

    draw = staticmethod(trained_figure)

    def _parts(self) -> list[Part]:
        deviations = [f"n x rms deviation of {name}" for name in self.observables]
        columns = [Column(name, error=f"error of {name}") for name in deviations]
        sizes = [self.sizes(name) for name in self.observables]
        rows = [
            (
                width,
                self.ladder.draws[place],
                round(float(self.steps[place])),
                *(width * float(size.root[place]) for size in sizes),
                *(width * float(size.root_error[place]) for size in sizes),
            )
            for place, width in enumerate(self.widths.tolist())
        ]
        errors = [column.error for column in columns]
        return [
            f"They are trained {self.goal.law.statement}.",
            Table(("width", "networks", "steps", *columns, *errors), rows),
            self._entries_table("entry", most=ENTRIES_SHOWN),
            f"Power of the width: {self.power_text()}.",
        ]

    def power_text(self) -> str:
        """With which power of n deviations fall."""
        powers = {name: self.power(name) for name in self.observables}
        seen = [f"{name} n^({power})" for name, power in powers.items() if power is not None]
        hidden = [name for name, power in powers.items() if power is None]
        parts = [f"deviations at finite width fall as: {', '.join(seen)} (-1 is expected)"] if seen else []
        parts += [f"deviations of {', '.join(hidden)} are hidden by noise"] if hidden else []
        return "; ".join(parts)

    def _record(self) -> dict[str, Any]:
        powers = {name: self.power(name) for name in self.observables}
        return super()._record() | {
            "regime": "infinite",
            "learner": self.learner,
            "trained": self.goal.law.statement,
            "eta": self.goal.training.eta,
            "steps": self.steps.tolist(),
            "powers": {name: power and power.value for name, power in powers.items()},
            "power_errors": {name: power and power.standard_error for name, power in powers.items()},
        }


def compare_trained(
    mlp: MLP,
    X_train: ArrayLike,
    Y_train: ArrayLike,
    X_test: ArrayLike,
    *,
    learner: Learner = "gradient_descent",
    algorithm: Algorithm = "gradient_descent",
    eta: float | None = None,
    time: float | None = None,
    loss: LossName = "squared_error",
    label_smoothing: float | None = None,
    noise: float = 0.0,
    widths: Sequence[int] | None = None,
    scales: Sequence[float] | None = None,
    draws: int | Sequence[int] = 400,
    seed: Seed = 0,
    keeper: Keeper | None = None,
) -> TrainedComparison:
    """Train real networks of several widths and put their outputs on test inputs beside the prediction for them.

    Parameters
    ----------
    learner
        ``gradient_descent`` trains all layers at the network's own rates; ``bayes`` the last layer alone, at rates
        by which its ensemble becomes the posterior (10.46)-(10.49).
    algorithm
        ``gradient_descent`` in steps, or ``flow`` in continuous time.
    eta
        Overall learning rate; half of the largest that is stable by default, 1 for the flow.
    time
        Steps or flow time; None is the end. The prediction is exact at any time, so give one if the end is far.
    loss
        ``squared_error`` (half the SUM over samples) or ``cross_entropy``, with probabilities as targets, or with
        whole numbers 0, 1, ... that name classes.
    label_smoothing
        Share of a class's probability that goes to the others: training on hard labels has no end without it, so
        give a time there.
    noise
        Variance of noise on the targets, for ``bayes``.
    widths, scales
        Hidden widths to train, or multipliers of the network's own, at least three; by default
        (1/4, 1/2, 1), (1/2, 1, 2) or (1, 2, 4) times the own ones.
    draws
        Networks per width, on average, or a number for each, from narrow to wide. They come in mirrored pairs.
    keeper
        Called with the name of a width and a function that measures it, gives back what that returns, or what it
        kept of it: see :class:`foretrain.experiments.parts.Parts`.

    Examples
    --------
    >>> import foretrain as ft
    >>> mlp = ft.MLP("tanh", depth=3, width=32, C_b=0.1)
    >>> found = ft.compare(mlp, [[1.0], [-0.5]], [1.0, 0.0], [[0.2]], trained=True, draws=200)
    >>> found.agrees
    True
    """
    theory_seed, measuring_seed = spawn(seed, 2)
    lesson = Lesson(learner, algorithm, eta, time, loss, label_smoothing, noise)
    goal = goal_of(mlp, X_train, Y_train, X_test, lesson, theory_seed)
    asked = Asked(draws, widths, scales, seed, keeper)
    case = _TrainedCase(goal, entries_of(goal.law, goal.mlp.depth))
    return TrainedComparison.run(
        goal.mlp,
        case,
        _plan(goal.mlp, asked),
        asked,
        measuring_seed,
        goal=goal,
        learner=learner,
        sampled_theory=sampled_law(goal.law, _BATCHES, case.entries),
    )


@dataclass(frozen=True, eq=False)
class _TrainedCase:
    """What is compared of trained networks, what the theory says of it, and how they are trained and read."""

    goal: Goal
    entries: Entries

    @property
    def estimator(self) -> str:
        """Whether what is known of the random part is taken out."""
        return "control variates" if self.goal.law.weights is not None else "plain"

    def values(self) -> FloatArray:
        """What the theory says, by entry."""
        return values_of(self.goal.law, self.entries)

    def units(self) -> FloatArray:
        """Natural sizes: of the outputs and of their variances."""
        spread = float(self.goal.law.covariance.diagonal().max())
        size = float(np.abs(self.goal.law.mean).max() + np.abs(self.goal.training.targets).max())
        units = {"mean": size + spread**0.5}
        return np.array([units.get(entry.observable, size**2 + spread) for entry in self.entries])

    def measure(self, mlp: MLP, draws: int, batches: int, seed: Seed) -> tuple[BatchValues, float]:
        """Networks of one width, trained and read."""
        return measure(self.goal, self.entries, mlp, draws, batches, seed)


def _plan(mlp: MLP, asked: Asked) -> Ladder:
    """Widths, and mirrored pairs of networks of each, in batches."""
    rungs, draws = asked.rungs(mlp), asked.draws
    # A wide network takes longer, by its parameters, but differs less from the others, by 1 / √n.
    costs = np.array([network.parameter_count / own for network, own in zip(rungs.networks, rungs.inverse)])
    counts = asked.counts(rungs.inverse, costs)
    if isinstance(draws, int | np.integer):
        counts = [max(min(int(draws), 2 * _FEWEST_BATCHES), count) for count in counts]
    batches = min(_BATCHES, min(counts) // 2)
    if batches < _FEWEST_BATCHES:
        raise InputError(
            f"`draws` is {draws}, but standard errors need more networks: give at least {2 * _FEWEST_BATCHES} for "
            "each width."
        )
    return Ladder.of(rungs, counts, batches, step=2)
