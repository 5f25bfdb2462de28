"""Which course of training is meant by an algorithm, a learning rate and a time, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from foretrain.support.arguments import not_negative, positive, real_array
from foretrain.support.errors import InputError
from foretrain.theory.arguments import whole
from foretrain.theory.prediction.finite_width.clock import Clock
from foretrain.theory.prediction.finite_width.projectors import (
    Algorithm,
    Array,
    Course,
    Projectors,
    course_of,
    course_to_the_end,
    given_projectors,
    require_algorithm,
    two_step_projectors,
)
from foretrain.theory.prediction.infinite_width.gradient_descent import LearningRates


@dataclass(frozen=True, eq=False)
class Plan:
    """Steps or flow by a ``clock``, or an algorithm known by its ``projectors`` at the end of training only."""

    statement: str
    eta: float | None
    time: float | None
    values: Array  # eigenvalues of the training kernel
    clock: Clock | None = None
    projectors: Projectors | None = None
    leaps: bool = False  # in one move, so that nothing happens on the way

    def course(self, output: float = 0.0) -> Course:
        """What training makes of errors, as an output sees it that returns to its target at this rate."""
        if self.clock is not None:
            return course_of(self.clock, self.values, output)
        assert self.projectors is not None
        return course_to_the_end(self.projectors, self.values)


def plan_of(algorithm: Any, eta: float | None, time: float | None, values: Array) -> Plan:
    """The plan, or an error that says what is wrong with the rate or the time."""
    require_algorithm(algorithm)
    if algorithm == "gradient_descent":
        rate = LearningRates(float(values[0]), float(values[-1])).check(eta)
        steps = None if time is None else whole(time)
        when = "to the end of" if steps is None else f"after {steps} steps of"
        return Plan(f"{when} gradient descent at eta {rate:.6g}", rate, steps, values, Clock(rate, steps))
    if algorithm == "flow":
        speed = 1.0 if eta is None else positive("eta", eta)
        until = None if time is None else not_negative("time", time)
        when = "to the end of" if until is None else f"after time {until:g} at speed {speed:g} of"
        clock = Clock(0.0, None if until is None else speed * until)
        return Plan(f"{when} gradient flow", None if eta is None else speed, until, values, clock)
    name = "two-step training" if algorithm == "two_step" else "an algorithm given by its projectors"
    if eta is not None or time is not None:
        raise InputError(f"{name} has no rate and is known at its end only: leave `eta` and `time` out.")
    if algorithm == "two_step":
        leap = two_step_projectors(values)
        return Plan(f"to the end of {name}", None, None, values, projectors=leap, leaps=True)
    return Plan(f"to the end of {name}", None, None, values, projectors=given_projectors(algorithm, values))


def algorithm_projectors(
    algorithm: Algorithm, eigenvalues: ArrayLike, eta: float | None = None
) -> Projectors:
    """The projectors of an algorithm at the end of training for eigenvalues (M,) of a training kernel.

    Examples
    --------
    >>> algorithm_projectors("flow", [2.0]).IIB  # -1 / (2 H^3) for one sample (∞.168)
    array([[[-0.0625]]])
    """
    values = np.sort(real_array("eigenvalues", eigenvalues))
    if values.ndim != 1 or not len(values) or not values[0] > 0:
        raise InputError(f"eigenvalues are {eigenvalues!r}: give a list of positive numbers.")
    return plan_of(algorithm, eta, None, values).course().projectors
