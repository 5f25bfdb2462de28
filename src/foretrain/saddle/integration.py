"""Integrates the scalar flow (4) with LSODA, on a Gaussian rule that is refined until it no longer matters."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

import numpy as np
from scipy.integrate import solve_ivp

from foretrain.saddle.chain_field import ChainField
from foretrain.saddle.parameters import Array
from foretrain.support.errors import NotSupportedError
from foretrain.support.user_warnings import warn_user

RELATIVE_TOLERANCE = 1e-12
_QUADRATURE_TOLERANCE = 1e-10
_WORTH_A_WARNING = 1e-8
_MOST_REFINEMENTS = 5
_SLOW = 0.1  # smooth averages gain more digits with each refinement
_CHECKED_STATES = 12
_MOST_EVALUATIONS = 40_000

Result = TypeVar("Result")


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
