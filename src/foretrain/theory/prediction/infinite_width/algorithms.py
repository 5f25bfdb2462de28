"""Other algorithms than plain gradient descent, in function space, and why they end alike (section 10.2.2).

Every update moves all outputs by -eta Theta_.A kappa epsilon_A (10.19), (10.20): an element of the span of
the columns Theta_.A. Whatever the schedule of rates eta, Newton tensors kappa and losses, the end is therefore
fixed by the condition that the training error is zero (10.33)-(10.35).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.answers import Result, labelled
from foretrain.support.errors import InputError
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, generator
from foretrain.theory.arguments import check_targets
from foretrain.theory.prediction.cholesky import factorise_tangent
from foretrain.theory.prediction.infinite_width.losses import SQUARED_ERROR
from foretrain.theory.prediction.kernels import OutputKernels

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]
ErrorFactor = Callable[[Array, Array], Array]


@dataclass(frozen=True, eq=False)
class Update:
    """One step of a schedule; ``kappa`` is a matrix (A, A), a diagonal (A,), or None for plain gradient descent."""

    eta: float
    kappa: Array | None = None
    error: ErrorFactor = SQUARED_ERROR.slope


@dataclass(frozen=True, repr=False, eq=False)
class Outputs(Result):
    """Outputs of one network: on training inputs (A, n) and on test inputs (B, n)."""

    train: Array
    test: Array


def update_outputs(kernels: OutputKernels, outputs: Outputs, targets: Array, update: Update) -> Outputs:
    """One second-order step (10.19): z - eta Theta_.A kappa epsilon."""
    error = update.error(outputs.train, targets)
    if update.kappa is not None:
        error = update.kappa @ error if update.kappa.ndim == 2 else update.kappa[:, None] * error
    change = update.eta * error
    return Outputs(outputs.train - kernels.Theta_train @ change, outputs.test - kernels.Theta_cross @ change)


def train_outputs(
    kernels: OutputKernels, outputs: Outputs, targets: ArrayLike, schedule: Iterable[Update]
) -> Outputs:
    """Outputs of one network after a whole schedule of updates."""
    y = check_targets(targets, *outputs.train.shape)
    for update in track(schedule, "steps"):
        outputs = update_outputs(kernels, outputs, y, update)
    return outputs


def newton_update(kernels: OutputKernels) -> Update:
    """eta kappa = Theta_AA^-1 (10.25): zero training error after this one step, from anywhere."""
    factor = factorise_tangent(kernels.Theta_train)
    return Update(1.0, factor.solve(np.eye(kernels.training)))


def newton_step(kernels: OutputKernels, outputs: Outputs, targets: ArrayLike) -> Outputs:
    """Newton's method (10.31), by triangular solves: no inverse is formed."""
    y = check_targets(targets, *outputs.train.shape)
    factor = factorise_tangent(kernels.Theta_train)
    change = factor.solve(outputs.train - y)
    return Outputs(outputs.train - kernels.Theta_train @ change, outputs.test - kernels.Theta_cross @ change)


def generalized_squared_error(outputs: ArrayLike, targets: ArrayLike, kappa: ArrayLike) -> float:
    """sum kappa^(ab) (z - y)_a (z - y)_b / 2: plain gradient descent on it is the second-order update (10.22)."""
    error = np.asarray(outputs, dtype=float) - np.asarray(targets, dtype=float)
    weights = np.asarray(kappa, dtype=float)
    if error.ndim != 2 or weights.shape != (len(error),) * 2:
        raise InputError(
            f"errors have shape {error.shape} and kappa {weights.shape}: give (A, outputs) and (A, A)."
        )
    return float(np.sum(error * (weights @ error)) / 2)


def single_samples(training: int, eta: float, steps: int, seed: Seed = 0) -> Iterator[Update]:
    """Stochastic gradient descent: every step sees one training input, chosen at random."""
    for place in generator(seed).integers(training, size=steps):
        yield Update(eta, (np.arange(training) == place).astype(float))


def end_states(
    kernels: OutputKernels,
    outputs: Outputs,
    targets: ArrayLike,
    schedules: Mapping[str, Iterable[Update]],
) -> xr.Dataset:
    """Where schedules end, beside the common end (10.31) that they must reach if their training error vanishes.

    ``training_error`` is the largest |z - y| left, ``distance`` the largest difference of test outputs from (10.31).
    """
    y = check_targets(targets, *outputs.train.shape)
    common = newton_step(kernels, outputs, y).test
    ends = [train_outputs(kernels, outputs, y, schedule) for schedule in schedules.values()]
    left = [np.abs(end.train - y).max() for end in ends]
    distance = [np.abs(end.test - common).max(initial=0.0) for end in ends]
    return labelled(
        {
            "training_error": ("schedule", left, "largest error left on training inputs"),
            "distance": ("schedule", distance, "largest distance of test outputs from (10.31)"),
        },
        schedule=list(schedules),
    )
