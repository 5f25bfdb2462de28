"""The exact scalar flow on the symmetric manifold: one amplitude X_l for each layer, one Gaussian direction g.

f = sqrt(N) X_L sigma(X_{L-1} sigma(... sigma(X_1 g))) (3), y = beta sigma(g), dX_l/dt = -E[(f - y) df/dX_l] (4), (5).
All rates here are per unit of reduced time t; the matrix flow's time is s = N t. The flow is integrated with LSODA,
on a Gaussian rule that is refined until it no longer matters. ``reduced_time`` is the first time at which X_1 reaches
the threshold. Over a plateau so long that the escape at its end is below the resolution of time, the variable is the
length tau of the path, in units of the state: dX/dtau = |X| rates / |rates|, and time itself is integrated, ds/dtau =
|X| / |rates|.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any, NamedTuple, TypeVar

import numpy as np
from scipy.integrate import solve_ivp
from scipy.optimize import root

from foretrain.activations import Activation
from foretrain.gaussian.nodes import legendre_panels
from foretrain.saddle.parameters import Array
from foretrain.support.errors import NotSupportedError
from foretrain.support.user_warnings import warn_user

_COARSEST_STEP = 0.3
_DIGITS = 38.0  # log of the accuracy that the first step aims at for the teacher, exp(-2 pi strip / step)
_PANEL, _PANEL_NODES = 0.5, 10
RELATIVE_TOLERANCE = 1e-12
_QUADRATURE_TOLERANCE = 1e-10
_WORTH_A_WARNING = 1e-8
_MOST_REFINEMENTS = 5
_SLOW = 0.1  # smooth averages gain more digits with each refinement
_CHECKED_STATES = 12
_MOST_EVALUATIONS = 40_000

Result = TypeVar("Result")


@dataclass(frozen=True)
class GaussianRule:
    """E[F(g)] = weights . F(points); for odd activations F is even, and the points are the positive half."""

    points: Array
    weights: Array


def gaussian_rule(act: Activation, refinement: int) -> GaussianRule:
    """A rule for functions made of sigma(g) and sigma(X g); each refinement halves the step and goes further out.

    Smooth activations: the midpoint rule, exponentially accurate in the width of the strip of analyticity.
    With kinks: Gauss-Legendre panels that end at the kinks of the teacher and at 0.
    """
    radius = 9.5 + 2.0 * refinement
    if act.kinks:
        regular = np.linspace(0.0, radius, math.ceil(radius / _PANEL) * 2**refinement + 1)
        kinks = [abs(kink.location) for kink in act.kinks if 0 < abs(kink.location) < radius]
        points, weights = legendre_panels(np.union1d(regular, kinks), _PANEL_NODES)
    else:
        step = min(_COARSEST_STEP, 2 * math.pi * act.strip / _DIGITS) / 2**refinement
        count = math.ceil(radius / step)
        points, weights = step * (np.arange(count) + 0.5), np.full(count, step)
    weights = weights * np.exp(-0.5 * points**2) / math.sqrt(2 * math.pi)
    if act.parity != "odd":
        points, weights = np.concatenate([-points[::-1], points]), np.concatenate([weights[::-1], weights])
    else:
        weights = 2 * weights
    return GaussianRule(points, weights)


_LARGEST_INPUT = 1e20
_FEW = 256


class Passage(NamedTuple):
    """One pass through the chain at every point g, for states X (..., L)."""

    inputs: Array  # c_1..c_{L-1}, the preactivations that enter an activation: (..., L-1, points)
    outputs: Array  # sigma(c_0) := g, sigma(c_1), ..., sigma(c_{L-1}): (..., L, points)
    above: Array  # sqrt(N) prod_{m>l} sigma'(c_{m-1}) X_m for l = 1..L: (..., L, points)
    residual: Array  # f - y: (..., points)


@dataclass(frozen=True)
class ChainField:
    """The right side of the flow (4) for any activation, on a fixed Gaussian rule."""

    activation: Activation
    width: int
    beta: float
    refinement: int = 0

    @cached_property
    def rule(self) -> GaussianRule:
        """Points and weights of the averages."""
        return gaussian_rule(self.activation, self.refinement)

    @cached_property
    def teacher(self) -> Array:
        """Y = beta sigma(g) at the points."""
        return np.asarray(self.beta * self.activation.value(self.rule.points))

    def refined(self) -> ChainField:
        """The same flow on a finer rule that also reaches further out."""
        return ChainField(self.activation, self.width, self.beta, self.refinement + 1)

    def passage(self, X: Array) -> Passage:
        """Everything that the flow, the loss and the imbalances are averages of."""
        layers = X.shape[-1]
        points = self.rule.points
        inputs = np.empty((*X.shape[:-1], layers - 1, len(points)))
        outputs = np.empty((*X.shape[:-1], layers, len(points)))
        outputs[..., 0, :] = points
        for layer in range(layers - 1):
            inputs[..., layer, :] = X[..., layer, None] * outputs[..., layer, :]
            if not np.abs(inputs[..., layer, :]).max() < _LARGEST_INPUT:
                raise NotSupportedError(
                    f"the Gaussian averages of the flow of {self.activation.label} overflow: through so many layers "
                    "a growing polynomial is dominated by inputs that never occur; use a bounded activation or less "
                    "depth."
                )
            outputs[..., layer + 1, :] = self.activation.value(inputs[..., layer, :])
        slopes = self._slopes(inputs)
        above = np.empty_like(outputs)
        above[..., -1, :] = math.sqrt(self.width)
        for layer in range(layers - 1, 0, -1):
            above[..., layer - 1, :] = above[..., layer, :] * X[..., layer, None] * slopes[..., layer - 1, :]
        f = math.sqrt(self.width) * X[..., -1, None] * outputs[..., -1, :]
        return Passage(inputs, outputs, above, f - self.teacher)

    def rates(self, X: Array) -> Array:
        """dX/dt per reduced time (4), for states (..., L)."""
        way = self.passage(X)
        return self._correlate(-way.residual, way.outputs * way.above)

    def drive(self, X: Array) -> Array:
        """E[y df/dX_l], the part of the rates that the teacher drives: the measure of their rounding errors."""
        way = self.passage(X)
        return self._correlate(np.broadcast_to(self.teacher, way.residual.shape), way.outputs * way.above)

    def loss(self, X: Array) -> Array:
        """E[(f - y)^2] / 2."""
        return np.asarray(0.5 * self.passage(X).residual ** 2 @ self.rule.weights)

    def imbalance_rates(self, X: Array) -> Array:
        """d(X_{l+1}^2 - X_l^2)/dt, l = 1..L-1, by the identity (2): 2 E[(f - y) above_{l+1} X_{l+1} phi(c_l)]."""
        way = self.passage(X)
        phi = way.inputs * self._slopes(way.inputs) - way.outputs[..., 1:, :]
        return 2 * X[..., 1:] * self._correlate(way.residual, way.above[..., 1:, :] * phi)

    def quadrature_error(self, X: Array) -> float:
        """How far the rates are from those on a finer rule, relative to what drives them."""
        finer = self.refined()
        wrong = np.abs(self.rates(X) - finer.rates(X))
        size = np.abs(finer.drive(X)) + np.abs(finer.rates(X))
        moving = size > 1e-14 * size.max(axis=-1, keepdims=True)
        return float(np.max(np.where(moving, wrong / np.maximum(size, np.finfo(float).tiny), 0.0)))

    def _slopes(self, inputs: Array) -> Array:
        """sigma' at the inputs; a user's function is differentiated much faster at more than 256 points."""
        copies = 1 + _FEW // inputs.size if self.activation.strip_is_measured else 1
        return np.asarray(self.activation.derivative(np.broadcast_to(inputs, (copies, *inputs.shape)), 1)[0])

    def _correlate(self, error: Array, slopes: Array) -> Array:
        return np.asarray((slopes * error[..., None, :]) @ self.rule.weights)


class StalledError(NotSupportedError):
    """The integrator takes ever more steps without getting on: what moves is at the level of rounding."""

    def __init__(self, field: ChainField, time: float, state: Array) -> None:
        super().__init__(
            f"the flow of {field.activation.label} makes no progress at s = {time:g}, where X is "
            f"{np.round(state, 6).tolist()}: end it earlier, or choose larger scales."
        )
        self.time, self.state = time, state


class End:
    """An event of scipy's integrators that ends them where a function of the state changes its sign."""

    terminal = True

    def __init__(self, gap: Callable[[Array], float], *, rising: bool) -> None:
        self.gap = gap
        self.direction = 1.0 if rising else -1.0

    def __call__(self, _: float, state: Array) -> float:
        """The number whose sign is watched."""
        return self.gap(state)


@dataclass(frozen=True)
class Trajectory:
    """The steps of the integrator, in matrix time s; ``crossed`` where the last one is at the threshold."""

    times: Array
    states: Array  # (steps, L)
    crossed: bool


def follow(
    field: ChainField,
    start: Array,
    begin: float,
    end: float,
    *,
    threshold: float | None = None,
    times: Array | None = None,
    tolerance: float = RELATIVE_TOLERANCE,
) -> Trajectory:
    """The flow from matrix time ``begin`` to ``end``, or until X_1 = threshold; at its own steps or at ``times``."""
    unit = end - begin
    limit = evaluation_limit(field)

    def slopes(now: float, X: Array) -> Array:
        limit(begin + unit * now, X)
        return field.rates(X) * (unit / field.width)

    wanted = None if times is None else (times - begin) / unit
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="lsoda")  # a failure is reported below
        found: Any = solve_ivp(
            slopes,
            (0.0, 1.0),
            start,
            method="LSODA",
            t_eval=wanted,
            events=None if threshold is None else End(lambda X: float(X[0]) - threshold, rising=True),
            rtol=tolerance,
            atol=0.1 * tolerance * smallest_scale(start),
        )
    if not found.success or not np.isfinite(found.y).all():
        raise NotSupportedError(
            f"the flow of {field.activation.label} could not be followed from s = {begin:g} to {end:g} "
            f"({found.message}): end it earlier."
        )
    return Trajectory(begin + unit * found.t, found.y.T, found.status == 1)


def evaluation_limit(field: ChainField) -> Callable[[float, Array], None]:
    """To be called with matrix time and state at every evaluation: gives up after very many of them."""
    evaluations = count()

    def check(time: float, X: Array) -> None:
        if next(evaluations) > _MOST_EVALUATIONS:
            raise StalledError(field, time, X)

    return check


def smallest_scale(start: Array) -> float:
    """The smallest scale that is not zero, at most 1."""
    size = np.abs(start)
    return float(size[size > 0].min(initial=1.0))


def with_accuracy(
    field: ChainField, run: Callable[[ChainField], tuple[Result, Array]]
) -> tuple[Result, ChainField]:
    """Runs on finer and finer rules until the rates at the states that were visited are accurate."""
    error = math.inf
    for _ in range(_MOST_REFINEMENTS):
        result, states = run(field)
        chosen = np.unique(np.linspace(0, len(states) - 1, _CHECKED_STATES).astype(int))
        before, error = error, field.quadrature_error(states[chosen])
        if error <= _QUADRATURE_TOLERANCE:
            return result, field
        if error > _SLOW * before:
            break
        field = field.refined()
    if error <= _WORTH_A_WARNING:
        return result, field
    warn_user(
        f"the Gaussian averages of the flow of {field.activation.label} are accurate to {error:.1e} only: kinks that "
        "move through the average, or very large scales, converge slowly."
    )
    return result, field


# Times to follow, in units of the estimate, each with its tolerance: late times matter only where the flow creeps.
_HORIZONS = ((3.0, 1e-12), (30.0, 1e-12), (300.0, 1e-11), (3e3, 1e-10), (3e4, 1e-9))
_AT_REST = 1e-12
_NEARLY_AT_REST = 1e-8
_NEAR = 0.02
_LONG = 1e6  # plateaus this much longer than the escape at their end are followed separately
_DRIVEN = 0.9  # share of the rates that the teacher alone makes, on a plateau
_CREEPING = 1e-3
_NOTHING = 1e-100


def reduced_time(
    act: Activation, scales: Array, width: int, beta: float, threshold: float, estimate: float
) -> float:
    """Matrix time s at which X_1 first reaches the threshold, infinite if the flow comes to rest before.

    ``estimate`` is the expected order of the time. Where the flow neither arrives nor comes to rest within
    30,000 times as long, the answer is infinite with an AccuracyWarning.
    """
    if scales[0] >= threshold:
        return 0.0
    field = ChainField(act, width, beta)
    if not field.rates(scales).any():
        return math.inf
    time, _ = with_accuracy(field, lambda finer: _in_stages(finer, scales, threshold, estimate))
    return time


def _in_stages(field: ChainField, scales: Array, threshold: float, estimate: float) -> tuple[float, Array]:
    """A very long plateau first by itself, then what follows it in a time of its own; with the states visited.

    With an offset the last layer fits the mean of the teacher at once, and the others stay on a plateau.
    """
    # How fast X_1 passes the threshold, if all squares have grown by as much until then.
    there = np.sqrt(scales**2 + threshold**2 - scales[0] ** 2)
    end = threshold * field.width / float(np.linalg.norm(field.drive(there)))
    offset = float(field.activation.value(0.0)) != 0.0
    if offset or estimate < _LONG * end or driven_share(field, scales) < _DRIVEN:
        return _arrival(field, scales, threshold, estimate)
    plateau = cross_plateau(field, scales, threshold, estimate)
    passed = float(plateau.times[-1])
    if plateau.crossed:
        return passed, plateau.states
    rest, visited = _arrival(field, plateau.states[-1], threshold, end)
    return passed + rest, np.concatenate([plateau.states, visited])


def _arrival(field: ChainField, scales: Array, threshold: float, estimate: float) -> tuple[float, Array]:
    """The time of arrival, and the states that were visited."""
    begin, state = 0.0, scales
    visited = [scales[None]]
    for horizon, tolerance in _HORIZONS:
        end = horizon * estimate
        try:
            path = follow(field, state, begin, end, threshold=threshold, tolerance=tolerance)
        except StalledError as stalled:
            begin, state = stalled.time, stalled.state
            break
        except NotSupportedError:
            if begin > 0 and driven_share(field, state) < _CREEPING:
                break  # the valley of small loss is too steep for the integrator, and has been entered long ago
            raise
        visited.append(path.states)
        state = path.states[-1]
        if path.crossed:
            return _crossing(field, path, threshold), np.concatenate(visited)
        if _never_arrives(field, state, threshold):
            return math.inf, np.concatenate(visited)
        begin = end
    warn_user(
        f"X_1 is {state[0]:.6g} at s = {begin:.3g} and still moves slowly: the threshold {threshold:g} was not "
        "reached within the longest time that is followed, and the escape time is given as infinite."
    )
    return math.inf, np.concatenate(visited)


def _crossing(field: ChainField, path: Trajectory, threshold: float) -> float:
    """The crossing without the error of interpolation: the last step again, then Newton's correction."""
    rate = field.rates(path.states[-1])[0] / field.width
    if rate * field.width <= _NEARLY_AT_REST * abs(field.drive(path.states[-1])[0]):
        return math.inf  # a fixed point at the threshold itself, which rounding has stepped over
    begin, end = float(path.times[-2]), float(path.times[-1])
    step = end - begin

    def slopes(_: float, X: Array) -> Array:
        return field.rates(X) * (step / field.width)

    again = solve_ivp(
        slopes,
        (0.0, 1.0),
        path.states[-2],
        method="DOP853",
        rtol=RELATIVE_TOLERANCE,
        atol=RELATIVE_TOLERANCE * float(path.states[-2].max()),
    )
    arrived = again.y[:, -1]
    return end + (threshold - float(arrived[0])) * field.width / float(field.rates(arrived)[0])


def _never_arrives(field: ChainField, state: Array, threshold: float) -> bool:
    """Whether the flow is at rest, or about to be at a stable fixed point, below the threshold."""
    drive = np.abs(field.drive(state))
    size = np.maximum(drive, _NOTHING * drive.max())  # by layer: one may be at rest long before the others
    if (np.abs(field.rates(state)) <= _AT_REST * size).all():
        return True

    def scaled(X: Array) -> Array:
        return np.asarray(field.rates(X) / size)

    found = root(scaled, state, tol=1e-12)
    distance = float(np.abs(found.x - state).max())
    if not found.success or distance > _NEAR * float(np.abs(state).max()):
        return False
    if threshold - float(found.x[0]) <= 10 * distance - 1e-9 * threshold:
        return False
    # Stable where all eigenvalues of the Jacobian, minus the Hessian of the loss, are negative or zero.
    step = 1e-6 * float(np.abs(found.x).max())
    shifts = step * np.eye(len(state))
    jacobian = (field.rates(found.x + shifts) - field.rates(found.x - shifts)) / (2 * step)
    values = np.linalg.eigvalsh((jacobian + jacobian.T) / 2)
    return bool(values.max() <= 1e-6 * np.abs(values).max())


_SHARE = 0.5  # the plateau ends where the network's own output halves what drives it
_LONGEST = 1e3


def cross_plateau(field: ChainField, start: Array, threshold: float, estimate: float) -> Trajectory:
    """The flow until X_1 = threshold, or until the output of the network is no longer small."""
    limit = evaluation_limit(field)

    def slopes(_: float, extended: Array) -> Array:
        X = extended[:-1]
        rates = field.rates(X) / field.width
        limit(float(extended[-1]) * estimate, X)
        pace = float(np.linalg.norm(X) / np.linalg.norm(rates))
        return np.append(rates * pace, pace / estimate)

    crossing = End(lambda extended: float(extended[0]) - threshold, rising=True)
    slowing = End(lambda extended: driven_share(field, extended[:-1]) - _SHARE, rising=False)
    small = 0.1 * RELATIVE_TOLERANCE * smallest_scale(start)
    found: Any = solve_ivp(
        slopes,
        (0.0, _LONGEST),
        np.append(start, 0.0),
        method="LSODA",
        events=(crossing, slowing),
        rtol=RELATIVE_TOLERANCE,
        atol=np.append(np.full(len(start), small), 0.1 * RELATIVE_TOLERANCE),
    )
    if found.status != 1 or not np.isfinite(found.y).all():
        raise StalledError(field, float(found.y[-1, -1]) * estimate, found.y[:-1, -1])
    return Trajectory(found.y[-1] * estimate, found.y[:-1].T, len(found.t_events[0]) > 0)


def driven_share(field: ChainField, X: Array) -> float:
    """The rates as a share of what the teacher alone would make them: one on the plateau, zero at a fixed point."""
    return float(np.linalg.norm(field.rates(X)) / np.linalg.norm(field.drive(X)))
