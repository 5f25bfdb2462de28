"""Numbers of a network whose passing of a threshold is called its escape; each comes with its rate of change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretrain.support.errors import InputError, unknown_name
from foretrain.training.gradient_flow.methods import Clock, Evaluation, State
from foretrain.training.gradient_flow.problem import Problem

Measure = Callable[[Problem, State, Evaluation], tuple[Clock, Clock]]


@dataclass(frozen=True)
class EscapeObservable:
    """A number of each network with its rate; an escape makes it fall, or rise, through the threshold."""

    name: str
    falls: bool
    measure: Measure

    def passed(self, values: Clock, level: float) -> NDArray[np.bool_]:
        """Whether values are beyond the threshold."""
        return np.asarray(values <= level if self.falls else values >= level)

    def fractions(
        self, ends: tuple[Clock, Clock], rates: tuple[Clock, Clock], length: Clock, level: float
    ) -> Clock:
        """When the threshold is passed inside a step: a fraction of its length, nan where it is not."""
        there = ~self.passed(ends[0], level) & self.passed(ends[1], level)
        return np.where(there, crossing(ends, rates, length, level), np.nan)


def loss_observable() -> EscapeObservable:
    """The loss ½ E (f - y)², which falls."""
    return EscapeObservable("loss", True, lambda problem, state, now: (now.loss, now.loss_rate))


def amplitude_observable(mode: int = 0) -> EscapeObservable:
    """X_1 of a mode, which rises: the mean of W_1 v_k over the neurons of its block."""

    def measure(problem: Problem, state: State, now: Evaluation) -> tuple[Clock, Clock]:
        block = problem.block_width
        rows = slice(_mode(problem, mode) * block, (mode + 1) * block)
        value, rate = (_numbers(w[0][:, rows, mode].mean(dim=1)) for w in (state, now.rates))
        return value, rate

    return EscapeObservable("amplitude", False, measure)


def alignment_observable(mode: int = 0) -> EscapeObservable:
    """‖W_1 v_k‖ / √N of a mode, which rises: its size in the first layer, wherever the neurons are."""

    def measure(problem: Problem, state: State, now: Evaluation) -> tuple[Clock, Clock]:
        rows, moving = (w[0][:, :, _mode(problem, mode)].double() for w in (state, now.rates))
        norms = rows.norm(dim=1).clamp_min(1e-300)
        scale = problem.width**-0.5
        return _numbers(scale * norms), _numbers(scale * (rows * moving).sum(dim=1) / norms)

    return EscapeObservable("alignment", False, measure)


_NAMED: dict[str, Callable[[], EscapeObservable]] = {
    "alignment": alignment_observable,
    "amplitude": amplitude_observable,
    "loss": loss_observable,
}


def observable_named(observable: str | EscapeObservable) -> EscapeObservable:
    """An observable by name, of the first mode; or the one that is given."""
    if isinstance(observable, EscapeObservable):
        return observable
    if observable not in _NAMED:
        raise unknown_name("observable", observable, _NAMED)
    return _NAMED[observable]()


def _mode(problem: Problem, mode: int) -> int:
    if not 0 <= mode < problem.modes:
        raise InputError(f"mode is {mode}: the teacher has modes 0 to {problem.modes - 1}.")
    return mode


def _numbers(values: object) -> Clock:
    return np.asarray(values, dtype=np.float64)


def hermite(ends: tuple[Clock, Clock], rates: tuple[Clock, Clock], length: Clock, at: Clock) -> Clock:
    """The cubic with the given values and rates at both ends of a step of this length, at a fraction of it."""
    return (
        (1 + 2 * at) * (1 - at) ** 2 * ends[0]
        + at * (1 - at) ** 2 * length * rates[0]
        + at**2 * (3 - 2 * at) * ends[1]
        + at**2 * (at - 1) * length * rates[1]
    )


def crossing(ends: tuple[Clock, Clock], rates: tuple[Clock, Clock], length: Clock, level: float) -> Clock:
    """The fraction of the step at which a quantity passes a level that lies between its ends, by bisection."""
    low, high = np.zeros(len(length)), np.ones(len(length))
    rising = ends[1] > ends[0]
    for _ in range(50):
        middle = 0.5 * (low + high)
        before = (hermite(ends, rates, length, middle) < level) == rising
        low, high = np.where(before, middle, low), np.where(before, high, middle)
    return 0.5 * (low + high)
