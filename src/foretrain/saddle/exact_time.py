"""Escape time of the exact scalar flow (4): the first time at which X_1 reaches the threshold.

Over a plateau so long that the escape at its end is below the resolution of time, the variable is the length tau of
the path, in units of the state: dX/dtau = |X| rates / |rates|, and time itself is integrated, ds/dtau = |X| /
|rates|.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.integrate import solve_ivp
from scipy.optimize import root

from foretrain.activations import Activation
from foretrain.saddle.chain_flow import (
    RELATIVE_TOLERANCE,
    ChainField,
    End,
    StalledError,
    Trajectory,
    evaluation_limit,
    follow,
    smallest_scale,
    with_accuracy,
)
from foretrain.saddle.parameters import Array
from foretrain.support.errors import NotSupportedError
from foretrain.support.user_warnings import warn_user

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
