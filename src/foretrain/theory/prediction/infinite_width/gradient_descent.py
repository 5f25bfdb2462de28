"""Networks of infinite width trained by gradient descent: mean and covariance over initialisations (section 10.2).

The loss is half the SUM of squared errors; layer-wise rates are the network's lambda_b and lambda_W. With Theta the
frozen tangent kernel and r(w) what is left of an error along an eigenvector with eigenvalue w of its training block,

    z(t) = z(0) - Theta_BA Theta_AA^-1 [1 - r(Theta_AA)] (z_A(0) - y),

where r is (1 - eta w)^t after t steps, exp(-eta w t) after time t of gradient flow, and 0 at the end (10.31). Steps
with momentum are linear too, and r is an entry of the power of a small matrix (:func:`undone_by_steps`).

Other algorithms end there too (section 10.2.2): every update moves all outputs by -eta Theta_.A kappa epsilon_A
(10.19), (10.20), an element of the span of the columns Theta_.A. Whatever the schedule of rates eta, Newton tensors
kappa and losses, the end is therefore fixed by the condition that the training error is zero (10.33)-(10.35).

How much one step moves the last hidden layer: nothing at infinite width, 1/n before it.

To first order in eta, averaged over networks, for every neuron of layer L - 1 ((10.11), and (10.12) completed by the
variance of the tangent kernel, which is of the same order where there are two hidden layers or more).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import eigvalsh

from foretrain.support.answers import Result, labelled
from foretrain.support.arguments import Array
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.memory import require_memory
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, generator
from foretrain.theory.architecture import MLP, check_network
from foretrain.theory.arguments import check_learning_rate, check_targets, whole
from foretrain.theory.flow import flow
from foretrain.theory.prediction.algorithms import Algorithm, Descent, GradientFlow, LearningRates
from foretrain.theory.prediction.cholesky import (
    CholeskyFactor,
    Modes,
    factorise_tangent,
    spectrum_of,
    square_root,
)
from foretrain.theory.prediction.infinite_width.losses import SQUARED_ERROR, Loss
from foretrain.theory.prediction.kernels import OutputKernels, Spread, output_kernels
from foretrain.theory.prediction.predicted_outputs import Prediction, prediction
from foretrain.theory.recursions.expectations import PairExpectations, next_kernel

if TYPE_CHECKING:
    import xarray as xr


Solver = Callable[[Array], Array]  # of columns (A, k)

_STILL = 1e-12  # of the largest eigenvalue: along smaller ones nothing moves, or all is rounding


@dataclass(frozen=True, repr=False, eq=False)
class GradientDescent(Result):
    """Training on given targets, with every factor computed once: ask it for as many times as you like.

    Examples
    --------
    >>> import foretrain as ft
    >>> mlp = ft.MLP("relu", depth=3, width=100, C_W=2.0)
    >>> training = GradientDescent.of(mlp, [[1.0], [-1.0]], [1.0, 0.0], [[2.0]])
    >>> training.end().mean.values.round(4)
    array([[1.5329]])
    >>> training.after(Descent(0.1, steps=5, momentum=0.9)).mean.values.round(4)
    array([[1.8697]])
    """

    kernels: OutputKernels
    targets: Array  # (training, outputs)

    @classmethod
    def of(
        cls,
        mlp: MLP,
        X_train: ArrayLike,
        Y_train: ArrayLike,
        X_test: ArrayLike,
        spread: Spread = "covariance",
    ) -> GradientDescent:
        """From a network, training inputs and targets, and test inputs."""
        kernels = output_kernels(mlp, X_train, X_test, spread=spread)
        return cls(kernels, check_targets(Y_train, kernels.training, mlp.n_out, "Y_train"))

    @cached_property
    def factor(self) -> CholeskyFactor:
        """Cholesky factor of Theta_AA, for the end of training."""
        return factorise_tangent(self.kernels.Theta_train)

    @cached_property
    def modes(self) -> Modes:
        """Eigenvalues and eigenvectors of Theta_AA, for finite times."""
        return Modes(*spectrum_of(self.kernels.Theta_train))

    @cached_property
    def rates(self) -> LearningRates:
        """Which learning rates converge, from the extreme eigenvalues of Theta_AA.

        Directions without any signal (repeated inputs) never move and do not count.
        """
        known = "modes" in self.__dict__
        values = self.modes.values if known else eigvalsh(self.kernels.Theta_train)
        if not values[-1] > 0:
            raise InputError(
                "the tangent kernel is zero, so that nothing is learned: give positive learning rates."
            )
        resolved = values[values > _STILL * values[-1]]
        return LearningRates(float(resolved[0]), float(values[-1]))

    def __post_init__(self) -> None:
        if self.targets.ndim != 2 or len(self.targets) != self.kernels.training:
            raise InputError(
                f"targets have shape {self.targets.shape}: give ({self.kernels.training}, outputs), one row for each "
                "training input."
            )

    def end(self) -> Prediction:
        """The end of training, whatever the algorithm (10.40), (10.41); on training inputs mean y, variance 0."""
        return self._predict(self.factor.solve, "at the end of training", jitter=self.factor.jitter)

    def at_step(self, step: int, eta: float | None = None) -> Prediction:
        """After this many plain steps; the best constant rate by default."""
        return self.after(Descent(eta, whole(step)))

    def at_time(self, time: float, eta: float = 1.0) -> Prediction:
        """After a time of gradient flow, of which eta is the speed."""
        return self.after(GradientFlow(time, eta))

    def after(self, algorithm: Algorithm) -> Prediction:
        """At the time of an algorithm, or at the end, where all that converge are alike (10.33)."""
        if algorithm.time is None:
            return self.end()
        way, undone = self._undone(algorithm)
        return self._predict(partial(self.modes.apply, undone), way.statement, way.eta, way.time)

    def training_at_step(self, step: int, eta: float | None = None) -> Prediction:
        """Outputs on the training inputs themselves after some plain steps."""
        return self._training_after(Descent(eta, whole(step)))

    def training_at_time(self, time: float, eta: float = 1.0) -> Prediction:
        """Outputs on the training inputs themselves after a time of gradient flow."""
        return self._training_after(GradientFlow(time, eta))

    def _training_after(self, algorithm: Descent | GradientFlow) -> Prediction:
        """Outputs on the training inputs themselves at the time of an algorithm."""
        way, undone = self._undone(algorithm)
        vectors = self.modes.vectors
        remaining = (vectors * (1 - self.modes.values * undone)) @ vectors.T
        covariance = remaining @ self.kernels.K_train @ remaining
        mean = self.targets - remaining @ self.targets
        return prediction(mean, covariance, f"on training inputs {way.statement}", way.eta, way.time)

    def _undone(self, algorithm: Descent | GradientFlow) -> tuple[Descent | GradientFlow, Array]:
        """The algorithm with its rate, and [1 - r(w)] / w at every eigenvalue, right to all digits at small w too."""
        values = self.modes.values
        if isinstance(algorithm, Descent):
            descent = replace(algorithm, eta=algorithm.rate(self.rates))
            return descent, undone_by_steps(values, descent)
        flow = replace(algorithm, eta=algorithm.speed)
        time = flow.speed * (flow.time or 0.0)
        safe = np.where(values > 0, values, 1.0)
        return flow, np.where(values > 0, -np.expm1(-safe * time) / safe, time)

    def network(self, outputs_train: ArrayLike, outputs_test: ArrayLike) -> Array:
        """Final test outputs of the one network that starts with these outputs (10.31): (tests, outputs)."""
        outputs = self.targets.shape[1]
        z_train = check_targets(outputs_train, self.kernels.training, outputs, "outputs_train")
        z_test = check_targets(outputs_test, self.kernels.tests, outputs, "outputs_test")
        return np.asarray(z_test - self.kernels.Theta_cross @ self.factor.solve(z_train - self.targets))

    def _predict(
        self,
        solver: Solver,
        statement: str,
        eta: float | None = None,
        time: float | None = None,
        jitter: float = 0.0,
    ) -> Prediction:
        mean = np.asarray(self.kernels.Theta_cross @ solver(self.targets))
        spread = trained_spread(self.kernels, solver)
        return prediction(mean, spread, statement, eta, time, jitter)


def undone_by_steps(values: Array, descent: Descent) -> Array:
    """[1 - r(w)] / w at eigenvalues w, where r is what the steps leave of an error: its sum over steps, times eta.

    With s this sum so far and v the velocity, a step is linear in (s, v, 1): the error is e = 1 - w s, v becomes
    v' = m v + e, and s becomes s + eta v', or s + eta (e + m v') with Nesterov's momentum. Squaring takes the step
    1 + E to its powers. As (1 + E)^2 = 1 + (2 E + E^2), directions that hardly move keep all digits of E.
    """
    eta, m = descent.eta, descent.momentum
    assert eta is not None
    error = np.stack([-values, np.zeros_like(values), np.ones_like(values)], axis=-1)
    velocity = error + np.array([0.0, m, 0.0])
    step = np.zeros((len(values), 3, 3))
    step[:, 0] = eta * (error + m * velocity if descent.nesterov else velocity)
    step[:, 1] = velocity - np.array([0.0, 1.0, 0.0])
    steps, power = whole(descent.steps or 0), np.zeros_like(step)
    while steps:
        if steps % 2:
            power = power + step + power @ step
        step, steps = 2 * step + step @ step, steps // 2
    return np.asarray(power[:, 0, 2])


def trained_spread(kernels: OutputKernels, solver: Solver) -> Array | None:
    """Q K Q^T with Q = (-P, 1): K_BB - P K_AB - K_BA P^T + P K_AA P^T (10.41), or its diagonal.

    With P^T = f(Theta_AA) Theta_AB nothing larger than (A, B) is made on the way.
    """
    if kernels.K_test is None:
        return None
    require_memory(
        8.0 * (4 * kernels.K_cross.size + 3 * kernels.K_test.size),
        f"the spread of {kernels.tests:,} outputs",
        "predict fewer test inputs at a time, or ask for spread='variance'",
    )
    weights = solver(kernels.Theta_cross.T)
    # What P leaves of K_AB: P K_AA P^T - K_BA P^T = -left^T P^T.
    left = kernels.K_cross.T - kernels.K_train @ weights
    if kernels.K_test.ndim == 1:
        removed = np.einsum("ba,ab->b", kernels.K_cross, weights) + np.einsum("ab,ab->b", left, weights)
        return np.asarray(kernels.K_test - removed)
    covariance = kernels.K_test - kernels.K_cross @ weights - weights.T @ left
    return np.asarray((covariance + covariance.T) / 2)


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


def train_outputs(
    kernels: OutputKernels, outputs: Outputs, targets: ArrayLike, schedule: Iterable[Update]
) -> Outputs:
    """Outputs of one network after a whole schedule of updates."""
    y = check_targets(targets, *outputs.train.shape)
    train, test = outputs.train, outputs.test
    for update in track(
        schedule, "steps"
    ):  # each a second-order step (10.19): z - eta Theta_.A kappa epsilon
        error = update.error(train, y)
        if update.kappa is not None:
            error = update.kappa @ error if update.kappa.ndim == 2 else update.kappa[:, None] * error
        change = update.eta * error
        train, test = train - kernels.Theta_train @ change, test - kernels.Theta_cross @ change
    return Outputs(train, test)


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


class LossMoments(NamedTuple):
    """Over initial outputs, summed over outputs, on training inputs (A, A)."""

    curvature: Array  # sum_i <d^2 L / dz_i;a dz_i;b>
    products: Array  # sum_i <epsilon_i;a epsilon_i;b>


@dataclass(frozen=True, repr=False, eq=False)
class HiddenUpdate(Result):
    """Change of a neuron of the last hidden layer in one step: training inputs first, then the others."""

    mean: Array  # (inputs,) (10.11)
    covariance: Array  # (inputs, inputs), of each neuron; different neurons are uncorrelated
    covariance_without_ntk_variance: Array  # (10.12) as printed
    eta: float
    width: int


def hidden_update(
    mlp: MLP,
    X_train: ArrayLike,
    Y_train: ArrayLike,
    X_test: ArrayLike | None = None,
    eta: float = 1.0,
    loss: Loss = SQUARED_ERROR,
    draws: int = 20_000,
    seed: Seed = 0,
) -> HiddenUpdate:
    """Mean and covariance of dz^(L-1) of one neuron, at leading order in 1/width.

    Squared errors are exact; for another loss its moments over initial outputs are sampled with ``draws``.
    """
    check_network(mlp)
    if mlp.depth < 2:
        raise InputError("the network has no hidden layer: give depth 2 or more.")
    if mlp.is_residual:
        raise NotSupportedError(
            "updates of hidden layers are known without skip connections only: drop gamma."
        )
    train = mlp.check_inputs(X_train, "X_train")
    mlp, training = mlp.with_inputs(train), len(train)
    inputs = train if X_test is None else np.concatenate([train, mlp.check_inputs(X_test, "X_test")])
    targets = check_targets(Y_train, training, mlp.n_out, "Y_train")
    eta, width, last = check_learning_rate(eta), mlp.hidden_widths[-1], mlp.layers[-1]
    # The network whose output is the last hidden layer.
    hidden, rates = mlp.depth - 1, (mlp.C_b, mlp.C_W, mlp.lambda_b, mlp.lambda_W)
    widths = list(mlp.hidden_widths[:-1]) if hidden > 1 else None
    below = MLP(mlp.activation, hidden, widths, mlp.n_in, width, *(list(values[:-1]) for values in rates))
    names = ["K", "Theta"] + ["B"] * (below.depth > 1)
    at = {name: tensor.sel(layer=below.depth).values for name, tensor in flow(below, inputs, names).items()}
    seen = slice(None, training)
    expectations = PairExpectations(mlp.activation, at["K"][seen, seen])
    output = next_kernel(expectations, last)
    if loss is SQUARED_ERROR:
        curvature, products = mlp.n_out * np.eye(training), mlp.n_out * output + targets @ targets.T
        moments = LossMoments(curvature, products)
    else:
        moments = sampled_moments(output, targets, loss, draws, seed)
    tangent = at["Theta"][:, seen]
    pulled = (moments.curvature * expectations.of(1, 0)).sum(axis=1)
    weights = expectations.of(1, 1) * moments.products
    printed = tangent @ weights @ tangent.T
    whole = printed.copy()
    if below.depth > 1:
        ratio = width / mlp.hidden_widths[-2]
        whole += ratio * np.einsum("deab,ab->de", at["B"][:, :, seen, seen], weights)
    scale = last.C_W / width
    return HiddenUpdate(
        -eta * scale * tangent @ pulled, eta**2 * scale * whole, eta**2 * scale * printed, eta, width
    )


def sampled_moments(K: Array, targets: Array, loss: Loss, draws: int = 20_000, seed: Seed = 0) -> LossMoments:
    """Moments of any loss over initial outputs ~ N(0, K), sampled."""
    loss.check(targets)
    require_memory(40 * draws * targets.size, f"outputs of {draws:,} networks", "use fewer draws")
    noise = generator(seed).standard_normal((draws, *targets.shape))
    z = np.einsum("ab,dbi->dai", square_root(K), noise, optimize=True)
    error = loss.slope(z, targets)
    flat = z.reshape(-1, targets.shape[1])
    curvature = loss.curvature(flat, np.tile(targets, (draws, 1)))
    traces = np.trace(curvature, axis1=1, axis2=2).reshape(draws, -1).mean(axis=0)
    return LossMoments(np.diag(traces), np.einsum("dai,dbi->ab", error, error, optimize=True) / draws)
