"""The end of training in closed form, to first order in ε: nearly-kernel prediction (11.132), (11.133).

>>> import numpy as np
>>> from foretrain.theory.prediction.nearly_kernel import QuadraticModel
>>> model = QuadraticModel.from_features(
...     lambda x: np.cos(np.outer(x, np.arange(6))),
...     lambda x: np.sin(np.multiply.outer(x, np.add.outer(np.arange(6), np.arange(6)))),
...     epsilon=0.01,
... )
>>> found = solve(model, np.array([0.1, 0.7, 1.5]), [0.5, -0.2, 0.9], "flow")
>>> found.predict(np.array([0.1])).round(9).tolist()
[0.5]

Kernel regression with a kernel that training has moved (11.139)-(11.142): the chapter's symmetric kernel (11.140),
put into (11.142), does not give (11.132) at first order in ε but lies halfway between direct optimisation and the
ridgeless end. The one-sided kernel Σ ½(φ + φ^E) φ does give (11.132).

Quadratic models really trained, to all orders in ε, from W = 0: what the closed form is compared with.

The loss is half the sum of squares (11.109). Gradient descent is run step by step, gradient flow is integrated, the
interpolation of least norm is found by Newton's method; direct optimisation is W^F + W^I (11.115), (11.118) put
into the model.

In the space of samples outputs and effective kernel move, and parameters are not needed: z ← z − η k^E e + η²/2 μ e
e, k^E ← k^E − η (μ_{δ1δ2α} + μ_{δ2δ1α}) e, exact to first order in ε, for kernels as for features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from scipy.integrate import solve_ivp

from foretrain.support.answers import Answer, Result, fields_answer, labelled
from foretrain.support.arguments import Array, real_array
from foretrain.support.errors import InputError, NotSupportedError, unknown_name
from foretrain.support.memory import require_memory
from foretrain.support.progress import track
from foretrain.support.user_warnings import warn_user
from foretrain.theory.prediction.algorithms import Clock, LearningRates, pair_projectors
from foretrain.theory.prediction.cholesky import Modes
from foretrain.theory.prediction.nearly_kernel.models import (
    FeatureModel,
    FeaturePoints,
    Model,
    Points,
    effective_features_at,
    outputs_at,
    same,
)

if TYPE_CHECKING:
    import xarray


ALGORITHMS = ("gradient_descent", "flow", "direct", "ridgeless")

NEARLY_SINGULAR = 1e10  # condition number from which the inverse is reported: the correction holds its square
_JITTER = 10.0  # in units of the rounding of the largest eigenvalue times the number of rows
SMALL = 0.3  # expansion parameter from which a warning is given: about a tenth is then left out


def spectrum(kernel: Array) -> Modes:
    """The eigenbasis of k̃; a nearly singular one is reported, and one that cannot be inverted gets a jitter."""
    if not same(kernel, kernel.T):
        raise InputError("the kernel of the training samples is not symmetric: return k(x1, x2) = k(x2, x1).")
    values, modes = np.linalg.eigh(0.5 * (kernel + kernel.T))
    rounding = len(values) * np.finfo(float).eps * float(values[-1])
    if values[-1] <= 0 or values[0] < -1e3 * rounding:
        raise InputError(
            f"the kernel of the training samples has eigenvalues from {values[0]:.3g} to {values[-1]:.3g}: give "
            "one that is positive."
        )
    if values[0] <= rounding:
        jitter = _JITTER * rounding - min(0.0, float(values[0]))
        warn_user(
            f"the kernel of the training samples is singular (smallest eigenvalue {values[0]:.2g}), so {jitter:.2g} "
            "was added to its diagonal: leave out repeated samples or add features."
        )
        return Modes(values + jitter, modes, jitter)
    found = Modes(values, modes)
    if found.condition_number > NEARLY_SINGULAR:
        warn_user(
            f"the kernel of the training samples is nearly singular (condition number "
            f"{found.condition_number:.2g}): the correction holds the square of its inverse and may be off."
        )
    return found


@dataclass(frozen=True, eq=False)
class Projectors:
    """Z_A and Z_B at the pairs of eigenvalues (w_1, w_2): (rows, rows) each."""

    A: Array
    B: Array


def projectors(algorithm: str, values: Array, eta: float | None = None) -> Projectors:
    """Z_A and Z_B (11.132)-(11.136) for the eigenvalues of k̃, in whose eigenbasis they are diagonal.

    Z^{α1α2α3α4}: α1, α3 go with the eigenvalue w_1, α2, α4 with w_2. All algorithms start at W = 0 and share the
    symmetric part of Z_B, ½ k̃⁻¹⊗k̃⁻¹; they differ in Z_A. Gradient descent needs its ``eta``.
    """
    inverse = 1 / np.multiply.outer(values, values)
    if algorithm == "direct":
        return Projectors(np.zeros_like(inverse), inverse / 2)
    if algorithm == "ridgeless":
        return Projectors(inverse, inverse / 2)
    require_algorithm(algorithm)
    rate = 0.0 if algorithm == "flow" else checked_rate(eta, values)
    return Projectors(*pair_projectors(Clock(rate), values))


def require_algorithm(name: Any) -> None:
    """Refuse a name that is none of the four, before anything is computed."""
    if name not in ALGORITHMS:
        raise unknown_name("`algorithm`", str(name), ALGORITHMS)


def checked_rate(eta: float | None, values: Array) -> float:
    """A learning rate at which gradient descent on k̃ converges, 0 < η < 2 / w_max; 1 / w_max if none is given."""
    rates = LearningRates(float(values.min()), float(values.max()))
    return 1 / rates.largest if eta is None else rates.check(eta)


@dataclass(frozen=True, eq=False)
class Targets:
    """What is learned, as rows of a model: targets minus outputs before training, (rows, outputs)."""

    residual: Array
    samples: int
    outputs: int  # of the model, wired or not
    one_dimensional: bool

    def shaped(self, rows: Array, samples: int) -> Array:
        """(rows, columns) as (samples, outputs)."""
        return rows.reshape(samples, self.outputs)

    def as_given(self, values: Array) -> Array:
        """(samples, outputs), or (samples,) if targets came so."""
        return values[:, 0] if self.one_dimensional else values


@dataclass(frozen=True, eq=False, repr=False)
class Solution(Result):
    """A trained quadratic model to first order in ε: :meth:`predict`, :meth:`effective_kernel` and what they rest on.

    ``coefficients`` are λ = k̃⁻¹ y, (rows, outputs); ``expansion_parameter`` is |k̃^-½ ε ψ W^F|, how far training moves
    the features in their own units: the prediction leaves out about its square.
    """

    model: Model = field(repr=False)
    algorithm: str
    eta: float | None  # of gradient descent
    train: Points = field(repr=False)
    targets: Targets = field(repr=False)
    spectrum: Modes = field(repr=False)
    coefficients: Array
    middle: Array  # Z_A y y, (outputs, rows, rows)
    front: Array  # Z_B y y, (outputs, rows, rows)

    @cached_property
    def expansion_parameter(self) -> float:
        """ε |ψ| |k̃⁻¹ y| without units, of the worst output; from kernels, inside the training features only."""
        return self.train.movement(self.coefficients.T, self.spectrum.inverse_root())

    @cached_property
    def _interpolating(self) -> tuple[Array, Array]:
        """k̃⁻¹ of the A and B terms on the training rows, which [A] and [B] subtract: (rows, outputs) each."""
        middle = self.train.in_the_middle(self.train, self.middle).T
        front = self.train.in_front(self.train, self.front).T
        return self.spectrum.solve(middle), self.spectrum.solve(front)

    def _terms(self, x: Any) -> tuple[Array, Array, Array]:
        """Kernel prediction R y, A term and B term: (N, outputs) each."""
        points = self.model.points(x)
        kernel = points.kernel(self.train)
        middle, front = self._interpolating
        found = (
            kernel @ self.coefficients,
            points.in_the_middle(self.train, self.middle).T - kernel @ middle,
            points.in_front(self.train, self.front).T - kernel @ front,
        )
        first, second, third = (self.targets.shaped(term, len(x)) for term in found)
        return first, second, third

    def predict(self, x: Any) -> Array:
        """Outputs after training (11.133): (N, outputs), or (N,) if the targets had one axis."""
        start = self.model.start(x, self.targets.outputs)
        return self.targets.as_given(start + sum(self._terms(x)))

    def predict_linear(self, x: Any) -> Array:
        """Outputs after training of the linear model, by its kernel alone (11.127)."""
        return self.targets.as_given(self.model.start(x, self.targets.outputs) + self._terms(x)[0])

    def parts(self, x: Any) -> xarray.Dataset:
        """Where a prediction comes from: outputs before training, kernel, A and B terms, and their sum."""
        names = ("start", "kernel", "A", "B")
        values = (self.model.start(x, self.targets.outputs), *self._terms(x))
        found = labelled(
            {name: ("input output", value) for name, value in zip(names, values)},
            {
                "algorithm": self.algorithm,
                "eta": np.nan if self.eta is None else self.eta,
                "expansion_parameter": self.expansion_parameter,
                "condition_number": self.spectrum.condition_number,
            },
            input=np.arange(len(x)),
            output=np.arange(self.targets.outputs),
        )
        found["prediction"] = sum(found[name] for name in names)
        return found

    def effective_kernel(self, x1: Any, x2: Any | None = None) -> Array:
        """k^E at the end of training (11.138), the same for all algorithms at this order.

        (outputs, rows, rows); one kernel, with pairs (sample, output) as rows, where outputs are wired.
        """
        first = self.model.points(x1)
        second = first if x2 is None else self.model.points(x2)
        there = first.shift(second, self.train, self.coefficients.T)
        back = second.shift(first, self.train, self.coefficients.T)
        return np.asarray(first.kernel(second) + there + back.swapaxes(1, 2))

    @cached_property
    def weights(self) -> Array:
        """Parameters at the end of training, to first order: W^F + W^I (11.115), (11.118) for direct optimisation."""
        train = self._features()
        middle, front = self._interpolating
        inside = (self.coefficients - middle - front).T @ train.features
        return np.asarray(inside + train.pull(train, self.middle))

    def effective_features(self, x: Any) -> Array:
        """φ^E at the end of training to first order, φ + ε Σ W^F ψ (11.107): (outputs, rows, P)."""
        moved = self.coefficients.T @ self._features().features
        return effective_features_at(cast("FeaturePoints", self.model.points(x)), moved)

    def answer(self) -> Answer:
        """How far it can be trusted."""
        return fields_answer(
            self,
            f"{self.algorithm} on {self.targets.samples} samples to first order in epsilon: expansion parameter "
            f"{self.expansion_parameter:.3g}, about its square is left out; condition number "
            f"{self.spectrum.condition_number:.3g}, jitter {self.spectrum.jitter:.2g}.",
        )

    def _features(self) -> FeaturePoints:
        if not isinstance(self.train, FeaturePoints):
            raise NotSupportedError(
                "a model made from kernels has no parameters: ask for predict or effective_kernel, or give features."
            )
        return self.train


def solve(
    model: Model, x: Any, y: Any, algorithm: str = "gradient_descent", eta: float | None = None
) -> Solution:
    """Train a quadratic model from W = 0 on half the sum of squares, in closed form to first order in ε.

    ``algorithm`` is "gradient_descent" at rate ``eta`` (by default 1 / w_max), "flow", "direct" optimisation, or
    "ridgeless", the interpolation of least norm. ``y``: (N,) or (N, outputs).
    """
    require_algorithm(algorithm)
    train = model.points(x)
    targets = as_targets(model, train, x, y)
    columns = targets.residual.shape[1]
    require_memory(
        8 * (4.0 + 4 * columns) * train.rows**2, f"a kernel of {train.rows} rows", "give fewer samples"
    )
    modes = spectrum(train.kernel(train))
    rate = checked_rate(eta, modes.values) if algorithm == "gradient_descent" else None
    Z = projectors(algorithm, modes.values, rate)
    along = (modes.vectors.T @ targets.residual).T
    pairs = along[:, :, None] * along[:, None, :]
    found = Solution(
        model=model,
        algorithm=algorithm,
        eta=rate,
        train=train,
        targets=targets,
        spectrum=modes,
        coefficients=modes.solve(targets.residual),
        middle=modes.vectors @ (Z.A * pairs) @ modes.vectors.T,
        front=modes.vectors @ (Z.B * pairs) @ modes.vectors.T,
    )
    if found.expansion_parameter > SMALL:
        warn_user(
            f"training moves the features by {found.expansion_parameter:.2g} of themselves, which is not small, so "
            "first order in epsilon may be far off: lower epsilon or the targets."
        )
    return found


def as_targets(model: Model, train: Points, x: Any, y: Any) -> Targets:
    """Check the targets, and put them into the rows of the model."""
    values = real_array("y", y)
    shaped = values[:, None] if values.ndim == 1 else values
    if shaped.ndim != 2 or len(shaped) != len(x) or not shaped.size:
        raise InputError(f"y has shape {values.shape} for {len(x)} samples: give (N,) or (N, outputs).")
    if train.wires > 1 and shaped.shape[1] != train.wires:
        raise InputError(
            f"y has {shaped.shape[1]} outputs, but the model has {train.wires} that share its parameters."
        )
    if isinstance(train, FeaturePoints) and train.features.shape[1] < train.rows:
        raise InputError(
            f"there are {train.features.shape[1]} features for {train.rows} training outputs: give at least "
            "as many features as outputs."
        )
    residual = shaped - model.start(x, shaped.shape[1])
    rows = residual if train.wires == 1 else residual.reshape(-1, 1)
    return Targets(rows, len(x), shaped.shape[1], values.ndim == 1)


def symmetric_kernel_as_printed(solution: Solution, x1: Any, x2: Any) -> Array:
    """½ (k + k^E) as (11.140) is printed: (outputs, rows, rows)."""
    first, second = solution.model.points(x1), solution.model.points(x2)
    return 0.5 * (first.kernel(second) + solution.effective_kernel(x1, x2))


def one_sided_kernel(solution: Solution, x1: Any, x2: Any) -> Array:
    """Σ ½ (φ + φ^E)(x1) φ(x2) = k + ½ μ λ, which is not symmetric: (outputs, rows, rows)."""
    return _one_sided(solution, solution.model.points(x1), solution.model.points(x2))


def predict_as_printed(solution: Solution, x: Any) -> Array:
    """(11.142) with the symmetric kernel, which differs from (11.132) at first order in ε."""
    there, train = solution.model.points(x), solution.train
    moved = _one_sided(solution, there, train) + _one_sided(solution, train, there).swapaxes(1, 2)
    own = _one_sided(solution, train, train)
    return _regression(
        solution, x, moved - there.kernel(train), own + own.swapaxes(1, 2) - train.kernel(train)
    )


def predict_one_sided(solution: Solution, x: Any) -> Array:
    """Regression with the one-sided kernel: direct optimisation (11.132), up to second order in ε."""
    there, train = solution.model.points(x), solution.train
    return _regression(solution, x, _one_sided(solution, there, train), _one_sided(solution, train, train))


def _one_sided(solution: Solution, first: Points, second: Points) -> Array:
    half = 0.5 * first.shift(second, solution.train, solution.coefficients.T)
    return np.asarray(first.kernel(second) + half)


def _regression(solution: Solution, x: Any, kernel: Array, train_kernel: Array) -> Array:
    """k♯ (k̃♯)⁻¹ y for each output, plus the outputs before training."""
    targets = solution.targets
    jitter = solution.spectrum.jitter * np.eye(train_kernel.shape[1])
    dual = np.linalg.solve(train_kernel + jitter, targets.residual.T[:, :, None])
    found = targets.shaped((kernel @ dual)[:, :, 0].T, len(x))
    return targets.as_given(found + solution.model.start(x, targets.outputs))


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
