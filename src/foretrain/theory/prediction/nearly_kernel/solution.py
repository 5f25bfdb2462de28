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
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from foretrain.support.answers import Answer, Result, fields_answer, labelled
from foretrain.support.arguments import Array, real_array
from foretrain.support.errors import InputError, NotSupportedError, unknown_name
from foretrain.support.memory import require_memory
from foretrain.support.user_warnings import warn_user
from foretrain.theory.prediction.algorithms import Clock, LearningRates, pair_projectors
from foretrain.theory.prediction.cholesky import Modes
from foretrain.theory.prediction.nearly_kernel.models import effective_features_at
from foretrain.theory.prediction.nearly_kernel.points import FeaturePoints, Model, Points, same

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
