"""Quadratic models really trained, to all orders in ε, from W = 0: what the closed form is compared with.

The loss is half the sum of squares (11.109). Gradient descent is run step by step, gradient flow is integrated, the
interpolation of least norm is found by Newton's method; direct optimisation is W^F + W^I (11.115), (11.118) put
into the model.

In the space of samples outputs and effective kernel move, and parameters are not needed: z ← z − η k^E e + η²/2 μ e
e, k^E ← k^E − η (μ_{δ1δ2α} + μ_{δ2δ1α}) e, exact to first order in ε, for kernels as for features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.integrate import solve_ivp

from foretrain.support.answers import Result, labelled
from foretrain.support.arguments import Array
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.memory import require_memory
from foretrain.support.progress import track
from foretrain.theory.prediction.cholesky import Modes
from foretrain.theory.prediction.nearly_kernel.models import (
    FeatureModel,
    effective_features_at,
    outputs_at,
)
from foretrain.theory.prediction.nearly_kernel.points import FeaturePoints, Model
from foretrain.theory.prediction.nearly_kernel.solution import (
    ALGORITHMS,
    Targets,
    as_targets,
    checked_rate,
    require_algorithm,
    solve,
    spectrum,
)

if TYPE_CHECKING:
    import xarray

_NEWTON_STEPS = 50
_ADVICE = "lower epsilon or the targets"


@dataclass(frozen=True, eq=False, repr=False)
class TrainedModel(Result):
    """A quadratic model at the parameters where an algorithm ended: ``weights`` (outputs, P)."""

    model: FeatureModel = field(repr=False)
    weights: Array
    algorithm: str
    eta: float | None
    steps: int | None  # of gradient descent or Newton's method
    residual: float  # the largest training error that is left
    targets: Targets = field(repr=False)

    def predict(self, x: Any) -> Array:
        """Outputs (N, outputs), or (N,) if the targets had one axis."""
        return self.targets.as_given(self.model.outputs(x, self.weights))

    def effective_features(self, x: Any) -> Array:
        """φ^E at the end (11.107): (outputs, rows, P)."""
        return self.model.effective_features(x, self.weights)

    def effective_kernel(self, x1: Any, x2: Any | None = None) -> Array:
        """k^E at the end (11.137): (outputs, rows, rows)."""
        return self.model.effective_kernel(x1, x1 if x2 is None else x2, self.weights)


def train(
    model: Model,
    x: Any,
    y: Any,
    algorithm: str = "gradient_descent",
    eta: float | None = None,
    *,
    tolerance: float = 1e-12,
    steps: int = 1_000_000,
) -> TrainedModel:
    """Train the model itself with one of the algorithms of :func:`solve`.

    ``tolerance`` is the largest training error in units of the largest target at which training ends, ``steps`` the
    most steps of gradient descent.
    """
    if not isinstance(model, FeatureModel):
        raise NotSupportedError(
            "a model made from kernels or a network has no parameters to train here: use solve, or "
            "descend_in_sample_space."
        )
    require_algorithm(algorithm)
    points = model.points(x)
    targets = as_targets(model, points, x, y)
    modes = spectrum(points.kernel(points))
    rate, count = None, None
    goal = tolerance * max(float(np.abs(targets.residual).max()), np.finfo(float).tiny)
    if algorithm == "direct":
        weights = solve(model, x, y, "direct").weights
    elif algorithm == "flow":
        weights = _flow(points, targets.residual.T, modes, tolerance)
    elif algorithm == "ridgeless":
        # Minimum of ½|W|² with z = y, output by output.
        ends = [_newton(points, target, goal) for target in targets.residual.T]
        weights, count = np.stack([found for found, _ in ends]), max(steps for _, steps in ends)
    else:
        rate = checked_rate(eta, modes.values)
        require_steps(modes.values, rate, tolerance, steps)
        weights, count = _descend(points, targets.residual.T, rate, goal, steps)
    left = float(np.abs(outputs_at(points, weights) - targets.residual.T).max())
    return TrainedModel(model, weights, algorithm, rate, count, left, targets)


def require_steps(values: Array, rate: float, tolerance: float, most: int) -> None:
    """Refuse gradient descent that the smallest eigenvalue makes too slow."""
    if not 0 < tolerance < 1:
        raise InputError(f"`tolerance` is {tolerance}: give a share of the targets, between 0 and 1.")
    slowest = float(np.abs(1 - rate * values).max())
    needed = np.log(tolerance) / np.log(slowest) if 0 < slowest < 1 else (1.0 if slowest == 0 else np.inf)
    if needed > most:
        raise InputError(
            f"gradient descent at eta {rate:.3g} needs about {needed:.2g} steps for eigenvalues from {values[0]:.2g} "
            f"to {values[-1]:.2g}, more than `steps=`{most}: raise steps or tolerance, or leave out samples "
            "that are nearly equal."
        )


def _descend(points: FeaturePoints, y: Array, rate: float, goal: float, most: int) -> tuple[Array, int]:
    """W ← W − η Σ (z − y) φ^E, until no error is above the goal."""
    weights = np.zeros((len(y), points.features.shape[1]))
    best, since = np.inf, 0
    for step in track(range(most), "gradient descent"):
        error = outputs_at(points, weights) - y
        largest = float(np.abs(error).max())
        if largest <= goal:
            return weights, step
        if not np.isfinite(largest):
            raise InputError(f"gradient descent at eta {rate:.3g} diverges: {_ADVICE}, or eta.")
        # Rounding may stop the error a little above the goal: a thousand steps without gain are the end.
        best, since = (largest, 0) if largest < best else (best, since + 1)
        if since > 1000:
            if best > 1e3 * goal:
                raise InputError(
                    f"gradient descent at eta {rate:.3g} stays at error {best:.2g}: {_ADVICE}, or eta."
                )
            return weights, step
        weights = weights - rate * np.einsum("in,inj->ij", error, effective_features_at(points, weights))
    raise InputError(
        f"gradient descent did not end in {most} steps (error {largest:.2g}): raise steps or tolerance."
    )


def _flow(points: FeaturePoints, y: Array, modes: Modes, tolerance: float) -> Array:
    """dW/dt = −Σ (z − y) φ^E, integrated until the slowest mode has decayed to the tolerance."""
    shape = (len(y), points.features.shape[1])

    def velocity(_: float, flat: Array) -> Array:
        weights = flat.reshape(shape)
        error = outputs_at(points, weights) - y
        return np.asarray(-np.einsum("in,inj->ij", error, effective_features_at(points, weights)).ravel())

    time = 1.5 * np.log(1 / tolerance) / float(modes.values[0])
    scale = float(np.linalg.norm(y)) / np.sqrt(float(modes.values[-1]))
    found = solve_ivp(
        velocity,
        (0, time),
        np.zeros(shape).ravel(),
        method="LSODA",
        rtol=1e-11,
        atol=1e-13 * max(scale, 1e-300),
    )
    if not found.success or not np.isfinite(found.y[:, -1]).all():
        raise InputError(f"gradient flow does not reach its end ({found.message}): {_ADVICE}.")
    return np.asarray(found.y[:, -1].reshape(shape))


def _newton(points: FeaturePoints, target: Array, goal: float) -> tuple[Array, int]:
    """The interpolation of least norm W = Σ ν φ^E by Newton's method from the linear model's one."""
    rows, size = points.features.shape
    require_memory(
        24.0 * (rows + size) ** 2, f"Newton's method for {size} features", 'choose algorithm "direct"'
    )
    multipliers = np.linalg.solve(points.features @ points.features.T, target)
    weights = points.features.T @ multipliers
    for step in range(_NEWTON_STEPS):
        slopes = effective_features_at(points, weights[None])[0]
        force = weights - slopes.T @ multipliers
        error = outputs_at(points, weights[None])[0] - target
        if np.abs(error).max() <= goal and np.abs(force).max() <= 1e-12 * np.abs(weights).max(initial=1e-300):
            return weights, step
        curved = np.eye(size) - np.tensordot(multipliers, points.meta_features, axes=1)
        system = np.block([[curved, -slopes.T], [slopes, np.zeros((rows, rows))]])
        change = np.linalg.solve(system, -np.concatenate([force, error]))
        weights, multipliers = weights + change[:size], multipliers + change[size:]
    raise InputError(
        f"the interpolation of least norm was not found in {_NEWTON_STEPS} Newton steps: {_ADVICE}."
    )


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


def order_of_error(
    model: FeatureModel,
    x: Any,
    y: Any,
    x_test: Any,
    *,
    epsilons: Sequence[float] = (0.04, 0.02, 0.01),
    algorithms: Sequence[str] = ALGORITHMS,
    eta: float | None = None,
) -> xarray.Dataset:
    """Formula and training for each algorithm and ε, whatever that of the model.

    By (algorithm, epsilon): ``error`` and ``kernel_error``, the largest differences of predictions and effective
    kernels on the tests; ``correction`` and ``kernel_correction``, how much the formula adds to the linear model;
    ``expansion_parameter``. By algorithm: ``order`` and ``kernel_order``, the slope of log error against log ε.
    """
    sizes = np.asarray(epsilons, dtype=float)
    if sizes.ndim != 1 or len(sizes) < 2 or not (sizes > 0).all() or len(set(sizes)) < len(sizes):
        raise InputError(f"epsilons are {epsilons}: give at least two different positive numbers.")
    names = ("error", "correction", "kernel_error", "kernel_correction", "expansion_parameter")
    found = np.empty((len(names), len(algorithms), len(sizes)))
    jobs = [(row, column) for row in range(len(algorithms)) for column in range(len(sizes))]
    for row, column in track(jobs, "formula against training"):
        own = replace(model, epsilon=float(sizes[column]))
        formula = solve(own, x, y, algorithms[row], eta)
        trained = train(own, x, y, algorithms[row], eta)
        prediction, kernel = formula.predict(x_test), formula.effective_kernel(x_test)
        found[:, row, column] = (
            np.abs(trained.predict(x_test) - prediction).max(),
            np.abs(prediction - formula.predict_linear(x_test)).max(),
            np.abs(trained.effective_kernel(x_test) - kernel).max(),
            np.abs(kernel - own.kernel(x_test, x_test)).max(),
            formula.expansion_parameter,
        )
    dims = ("algorithm", "epsilon")
    data = labelled(
        {name: (dims, values) for name, values in zip(names, found)},
        algorithm=list(algorithms),
        epsilon=sizes,
    )
    for name in ("error", "kernel_error"):
        slopes = np.polyfit(np.log(sizes), np.log(np.maximum(data[name].values.T, 1e-300)), 1)[0]
        data[name.replace("error", "order")] = ("algorithm", slopes)
    return data
