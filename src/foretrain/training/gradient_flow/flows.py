"""Adaptive steps of stacks of independent flows, each with its own clock and its own step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretrain.support.errors import unknown_name
from foretrain.training.gradient_flow.methods import (
    BOGACKI_SHAMPINE,
    DORMAND_PRINCE,
    Chebyshev,
    Clock,
    Evaluation,
    Field,
    Method,
    State,
    Tolerance,
    Trial,
    chosen,
    norms,
    picked,
    spectral_radius,
)

_SAFETY, _GROWTH, _SHRINKAGE = 0.9, 5.0, 0.2
_RADIUS_AGE = 15  # accepted steps after which the spectral radius is measured again

_METHODS: dict[str, Callable[[], Method]] = {
    "bogacki_shampine": lambda: BOGACKI_SHAMPINE,
    "chebyshev": Chebyshev,
    "dormand_prince": lambda: DORMAND_PRINCE,
}


def method_named(name: str) -> Method:
    """``dormand_prince``: accurate; ``bogacki_shampine``: loose tolerances; ``chebyshev``: long and stiff flows."""
    if name not in _METHODS:
        raise unknown_name("`method`", name, _METHODS)
    return _METHODS[name]()


@dataclass(frozen=True, eq=False)
class Interval:
    """One attempted step of all flows: where it starts and ends, and for which flows it is good enough."""

    start: Clock
    length: Clock
    before: State
    after: State
    first: Evaluation
    last: Evaluation
    accepted: NDArray[np.bool_]


class Flows:
    """Independent flows under one field, each advanced by its own steps; :meth:`keep` drops finished ones."""

    def __init__(self, field: Field, state: State, method: Method, tolerance: Tolerance) -> None:
        self._field, self._method, self._tolerance = field, method, tolerance
        count = len(state[0])
        self.state = state
        self.now = field(state)
        self.time = np.zeros(count)
        self.step = _first_step(state, self.now)
        self.evaluations = np.ones(count, dtype=int)
        self.steps = np.zeros(count, dtype=int)
        self.rejected = np.zeros(count, dtype=int)
        self._error = np.ones(count)  # of the last accepted step, for the control
        self._shrunk = np.zeros(count, dtype=bool)
        self._radius, self._direction = np.zeros(count), self.now.rates
        self._age = _RADIUS_AGE

    def __len__(self) -> int:
        return len(self.time)

    @property
    def at_rest(self) -> NDArray[np.bool_]:
        """Which flows have no velocity at all."""
        return np.asarray(self.now.loss_rate == 0)

    @property
    def stuck(self) -> NDArray[np.bool_]:
        """Which flows cannot step any more: the step vanishes beside the clock, or is not a number."""
        return ~(self.step > 1e-14 * np.maximum(self.time, 1e-200))

    def attempt(self, longest: Clock) -> Interval:
        """Try one step of every flow, not longer than ``longest``; only good ones are taken."""
        self._measure_radius()
        length = np.minimum(np.minimum(self.step, longest), self._method.longest(self._radius))
        trial = self._method.step(self._field, self.state, self.now, length, self._radius)
        error = self._relative_error(self.state, trial)
        accepted = (error <= 1) & np.isfinite(trial.last.loss)
        interval = Interval(self.time.copy(), length, self.state, trial.state, self.now, trial.last, accepted)
        self.evaluations += trial.evaluations
        self.steps += accepted
        self.rejected += ~accepted
        self.time = np.where(accepted, self.time + length, self.time)
        self._age = self._age + 1 if accepted.all() else _RADIUS_AGE
        self._advance(trial.state, trial.last, accepted)
        self._control(length, error, accepted)
        return interval

    def keep(self, which: NDArray[np.bool_]) -> None:
        """Drop all other flows."""
        index = np.flatnonzero(which)
        self.state, self.now = picked(self.state, index), self.now[index]
        self._direction = picked(self._direction, index)
        for name in ("time", "step", "evaluations", "steps", "rejected", "_error", "_shrunk", "_radius"):
            setattr(self, name, getattr(self, name)[index])

    def land(self, interval: Interval, which: NDArray[np.intp], fractions: Clock) -> tuple[State, Evaluation]:
        """Repeat a step for some flows with a fraction of its length: the state there, as accurate as at its end."""
        start = picked(interval.before, which), interval.first[which]
        length = fractions * interval.length[which]
        trial = self._method.step(self._field, *start, length, self._radius[which])
        self.evaluations[which] += trial.evaluations
        return trial.state, trial.last

    def _relative_error(self, state: State, trial: Trial) -> Clock:
        """The local error beside what is allowed, in the worst tensor of each flow."""
        worst = np.zeros(len(state[0]))
        for old, moved, error in zip(state, trial.state, trial.error):
            size = np.maximum(norms(old), norms(moved))
            made = norms(error)
            allowed = self._tolerance.relative * size + self._tolerance.absolute + 1e-300
            with np.errstate(invalid="ignore"):  # of what has become infinite
                worst = np.fmax(worst, made / allowed)
            worst[~np.isfinite(made)] = np.inf
        return worst

    def _measure_radius(self) -> None:
        if self._method.needs_radius and self._age >= _RADIUS_AGE:
            found = spectral_radius(self._field, self.state, self.now, self._direction)
            self._radius, self._direction, cost = found
            self.evaluations += cost
            self._age = 0

    def _advance(self, new: State, last: Evaluation, accepted: NDArray[np.bool_]) -> None:
        if accepted.all():
            self.state, self.now = new, last
            return
        self.state = chosen(accepted, new, self.state)
        self.now = Evaluation(
            chosen(accepted, last.rates, self.now.rates),
            np.where(accepted, last.loss, self.now.loss),
            np.where(accepted, last.loss_rate, self.now.loss_rate),
        )

    def _control(self, length: Clock, error: Clock, accepted: NDArray[np.bool_]) -> None:
        """Proportional-integral control (Gustafsson 1991), which is smooth where stability limits the step."""
        power = 1 / self._method.order
        with np.errstate(divide="ignore"):
            good = np.maximum(error, 1e-10) ** (-0.7 * power) * self._error ** (0.4 * power)
            bad = error**-power
        factor = np.clip(_SAFETY * np.where(accepted, good, bad), _SHRINKAGE, _GROWTH)
        factor = np.where(self._shrunk | ~accepted, np.minimum(factor, 1.0), factor)
        cut = accepted & (length < self.step)  # a step that was cut short says little about the next one
        self.step = np.where(cut, np.maximum(self.step, length * factor), length * factor)
        self._error = np.where(accepted, np.maximum(error, 1e-4), self._error)
        self._shrunk = ~accepted


def _first_step(state: State, now: Evaluation) -> Clock:
    """A hundredth of the shortest time in which a tensor would change by its own size."""
    shortest = np.full(len(now.loss), np.inf)
    for values, rates in zip(state, now.rates):
        size, speed = norms(values), norms(rates)
        with np.errstate(divide="ignore", invalid="ignore"):
            shortest = np.fmin(shortest, np.where((size > 0) & (speed > 0), size / speed, np.inf))
    return np.where(np.isfinite(shortest), 0.01 * shortest, 1e-3)
