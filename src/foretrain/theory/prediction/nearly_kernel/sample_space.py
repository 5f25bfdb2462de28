"""Gradient descent in the space of samples: outputs and effective kernel move, parameters are not needed.

z ← z − η k^E e + η²/2 μ e e, k^E ← k^E − η (μ_{δ1δ2α} + μ_{δ2δ1α}) e: exact to first order in ε, for kernels as for
features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from foretrain.support.answers import Result
from foretrain.support.errors import InputError
from foretrain.support.memory import require_memory
from foretrain.support.progress import track
from foretrain.theory.prediction.nearly_kernel.algorithms import checked_rate, spectrum
from foretrain.theory.prediction.nearly_kernel.points import Array, Model
from foretrain.theory.prediction.nearly_kernel.solution import as_targets
from foretrain.theory.prediction.nearly_kernel.training import require_steps


@dataclass(frozen=True, eq=False, repr=False)
class SampleSpaceDescent(Result):
    """Where gradient descent in sample space ended.

    ``predictions`` (tests, outputs), ``effective_kernel`` (outputs, training and test rows, training rows).
    """

    also = ("steps",)
    predictions: Array
    effective_kernel: Array
    losses: Array  # before each step, and at the end
    eta: float

    @property
    def steps(self) -> int:
        """How many were made."""
        return len(self.losses) - 1


def descend_in_sample_space(
    model: Model,
    x: Any,
    y: Any,
    x_test: Any,
    eta: float | None = None,
    *,
    steps: int | None = None,
    tolerance: float = 1e-12,
) -> SampleSpaceDescent:
    """Gradient descent from W = 0 for a number of ``steps``, or until the training error is ``tolerance`` of y."""
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 0):
        raise InputError(f"`steps` is {steps}: give a whole number, or None for training to the end.")
    train, test = model.points(x), model.points(x_test)
    targets = as_targets(model, train, x, y)
    rows = train.rows + test.rows
    y_rows = targets.residual.T
    require_memory(
        8 * (4.0 + len(y_rows)) * rows * train.rows**2, f"a meta-kernel of {rows} rows", "give fewer tests"
    )
    kernel = train.kernel(train)
    modes = spectrum(kernel)
    rate = checked_rate(eta, modes.values)
    most = 1_000_000 if steps is None else steps
    if steps is None:
        require_steps(modes.values, rate, tolerance, most)
    front = np.concatenate([train.meta_kernel(train, train), test.meta_kernel(train, train)])
    middle = np.concatenate([train.meta_kernel(train, train), train.meta_kernel(test, train)], axis=1)
    moving = front + middle.swapaxes(0, 1)
    effective = np.tile(np.concatenate([kernel, test.kernel(train)]), (len(y_rows), 1, 1))
    z = np.zeros((len(y_rows), rows))
    goal = tolerance * float(np.abs(y_rows).max())
    losses = []
    for _ in track(range(most + 1), "gradient descent"):
        error = z[:, : train.rows] - y_rows
        losses.append(0.5 * float((error**2).sum()))
        if not np.isfinite(losses[-1]):
            raise InputError(
                f"gradient descent at eta {rate:.3g} diverges: lower epsilon, the targets or eta."
            )
        if len(losses) > most or (steps is None and np.abs(error).max() <= goal):
            break
        bent = np.einsum("nab,ia,ib->in", front, error, error, optimize=True)
        z = z - rate * np.einsum("ina,ia->in", effective, error) + rate**2 / 2 * bent
        effective = effective - rate * np.einsum("nab,ib->ina", moving, error)
    shaped = targets.shaped(z[:, train.rows :].T, len(x_test))
    start = model.start(x_test, targets.outputs)
    return SampleSpaceDescent(targets.as_given(start + shaped), effective, np.array(losses), rate)
