"""Predictions beside really trained networks: mean and covariance of their outputs at several widths, and the limit.

Entries are extrapolated to infinite width with a quadratic in 1/n and judged as in
:mod:`foretrain.compare.comparison`; deviations at finite width are of order 1/n and are given with their power of n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
from numpy.typing import ArrayLike

from foretrain.compare.comparison import Comparison
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
from foretrain.compare.judging.powers import Slope, power_of
from foretrain.compare.trained.columns import Entries, TrainedEntry, entries_of, values_of
from foretrain.compare.trained.goal import Goal, goal_of
from foretrain.compare.trained.pictures import trained_figure
from foretrain.compare.trained.statistics import measure, sampled_law
from foretrain.compare.trained.training import Algorithm
from foretrain.support.answers import Column, Part, Table
from foretrain.support.errors import InputError
from foretrain.support.seeds import Seed, seed_text, spawn
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
    steps: FloatArray  # (widths,), mean number until the end
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
    theory_seed, *seeds = spawn(seed, 2)
    goal = goal_of(
        mlp,
        X_train,
        Y_train,
        X_test,
        learner=learner,
        algorithm=algorithm,
        eta=eta,
        time=time,
        loss=loss,
        label_smoothing=label_smoothing,
        noise=noise,
        seed=theory_seed,
    )
    ladder = _ladder(goal.mlp, widths, scales, draws)
    ladder.warn_if_too_deep()
    entries = entries_of(goal.law, goal.mlp.depth)
    batches, steps = measured_widths(partial(measure, goal, entries), ladder, seeds[0], keeper)
    return TrainedComparison(
        goal.mlp,
        tuple(entries),
        ladder,
        "control variates" if goal.law.weights is not None else "plain",
        seed_text(seed),
        values_of(goal.law, entries),
        _units(goal, entries),
        batches,
        goal,
        learner,
        steps,
        sampled_law(goal.law, _BATCHES, entries),
    )


def _units(goal: Goal, entries: Entries) -> FloatArray:
    """Natural sizes: of the outputs and of their variances."""
    spread = float(goal.law.covariance.diagonal().max())
    size = float(np.abs(goal.law.mean).max() + np.abs(goal.training.targets).max())
    return np.array(
        [size + spread**0.5 if entry.observable == "mean" else size**2 + spread for entry in entries]
    )


def _ladder(
    mlp: MLP, widths: Sequence[int] | None, scales: Sequence[float] | None, draws: int | Sequence[int]
) -> Ladder:
    """Widths, and mirrored pairs of networks of each, in batches."""
    rungs = rungs_of(mlp, scales_of_widths(mlp, widths, scales))
    counts = _counts(rungs.networks, rungs.inverse, draws)
    batches = min(_BATCHES, min(counts) // 2)
    if batches < _FEWEST_BATCHES:
        raise InputError(
            f"`draws` is {draws}, but standard errors need more networks: give at least {2 * _FEWEST_BATCHES} for "
            "each width."
        )
    return Ladder(*rungs, rounded_up(counts, 2 * batches), "weights", batches)


def _counts(networks: Sequence[MLP], inverse: FloatArray, draws: int | Sequence[int]) -> list[int]:
    """Networks of each width: as given, or shared out so that the limit is sharpest.

    A wide network takes longer, by its parameters, but differs less from the others, by 1 / √n.
    """
    costs = np.array([network.parameter_count / own for network, own in zip(networks, inverse)])
    counts = draws_by_width(draws, inverse, costs)
    if isinstance(draws, int | np.integer):
        fewest = min(int(draws), 2 * _FEWEST_BATCHES)
        return [max(fewest, count) for count in counts]
    return counts
