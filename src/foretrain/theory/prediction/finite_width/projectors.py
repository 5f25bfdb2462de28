"""What an algorithm makes of the differentials of the tangent kernel: its projectors (∞.142)-(∞.153).

In the eigenbasis of the training kernel they are numbers for two or three eigenvalues: Z^{123456} joins the sample
1 of a tensor and the sample 4 of an error by the first eigenvalue, 2 and 5 by the second, 3 and 6 by the third.

They are sums over the course of training, for steps and for gradient flow alike. A product of errors along modes
with eigenvalues a, b is multiplied by 1 - eta s in every step, with the combined rate s = a + b - eta a b; eta = 0
is gradient flow, where it falls as exp(-s t). Training adds up such factors over earlier and earlier steps: divided
differences of x^t, or of exp, at the rates involved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import expm

from foretrain.support.answers import Result
from foretrain.support.arguments import not_negative, positive, real_array
from foretrain.support.errors import InputError, unknown_name
from foretrain.theory.arguments import whole
from foretrain.theory.prediction.infinite_width.gradient_descent import LearningRates
from foretrain.theory.prediction.predicted_outputs import FiniteAlgorithm


@dataclass(frozen=True)
class Clock:
    """Steps of size ``eta``, or gradient flow if it is zero, until ``time``; None is the end of training."""

    eta: float
    time: float | None = None

    def together(self, *rates: Array) -> Array:
        """The rate at which a product of errors falls: 1 - eta s = (1 - eta a)(1 - eta b).. ."""
        found = rates[0]
        for rate in rates[1:]:
            found = found + rate - self.eta * found * rate
        return found

    def left(self, rate: ArrayLike) -> Array:
        """What one step leaves of an error, 1 - eta s."""
        return np.asarray(1 - self.eta * np.asarray(rate, dtype=np.float64))

    def sums(self, output: float, *rates: Array) -> Array:
        """eta^m times the divided difference of x^t at 1 - eta s, for ``output`` and the m ``rates`` (broadcast).

        ``output`` is the rate at which the output that is looked at returns to its target: zero for a test output.
        """
        if self.time is None:
            product = np.prod(np.broadcast_arrays(*rates), axis=0)
            return np.zeros_like(product) if output else np.asarray(1 / product)
        knots = np.broadcast_arrays(np.float64(output), *rates)
        generator = np.zeros((*knots[0].shape, len(knots), len(knots)))
        for place, knot in enumerate(knots):
            generator[..., place, place] = -knot
            if place:
                generator[..., place - 1, place] = 1.0
        if self.eta:
            one = np.eye(len(knots))
            power = np.linalg.matrix_power(one + self.eta * generator, int(self.time))
        else:
            power = np.asarray(expm(self.time * generator))
        return np.asarray(power[..., 0, -1])

    def nested(self, output: float, *rates: Array) -> Array:
        """The same for sums that nest strictly: every earlier sum ends one step before the later."""
        found = self.sums(output, *rates)
        for rate in rates[:-1]:
            found = found * self.left(rate)
        return found


Array = NDArray[np.float64]
NAMES: tuple[str, ...] = get_args(FiniteAlgorithm)


@dataclass(frozen=True, eq=False, repr=False)
class Projectors(Result):
    """The six of (∞.141) at all pairs (M, M) or triples (M, M, M) of eigenvalues.

    ``A`` and ``B`` are those of the dNTK, ``IA`` and ``IB`` of the first ddNTK, ``IIA`` and ``IIB`` of the second.
    """

    A: Array
    B: Array
    IA: Array
    IB: Array
    IIA: Array
    IIB: Array

    @property
    def modes(self) -> int:
        """How many eigenvalues they are for."""
        return len(self.A)


Algorithm = FiniteAlgorithm | Projectors | Callable[[Array], Projectors]


@dataclass(frozen=True, eq=False)
class Course:
    """Everything that a course of training makes of an error, for one rate of the output looked at.

    ``mean`` (M,) goes with a shift of the mean tangent kernel, ``variance`` (M, M) with the product of two of its
    fluctuations, the projectors with its differentials.
    """

    mean: Array
    variance: Array
    projectors: Projectors


def course_of(clock: Clock, values: Array, output: float = 0.0) -> Course:
    """Gradient descent or flow for the eigenvalues of the training kernel, at any time (∞.92)-(∞.140)."""
    a, b = values[:, None], values[None, :]
    return Course(
        mean=clock.sums(output, values),
        variance=-clock.sums(output, a, b),
        projectors=_of_descent(clock, values, output),
    )


def _of_descent(clock: Clock, values: Array, output: float) -> Projectors:
    """(∞.142)-(∞.147), with Y_1 .. Y_4 as sums over the steps made so far instead of their limits."""
    eta, a, b, c = clock.eta, values[:, None, None], values[None, :, None], values
    ab, abc = clock.together(a, b), clock.together(a, b, c)
    first, second = values[:, None], values[None, :]
    both = clock.together(first, second)
    Y_2, X_II = clock.nested(output, first, both), clock.nested(output, both)
    Y_1, Y_4 = clock.nested(output, ab, abc), clock.nested(output, a, abc)
    Y_3, X_III = clock.nested(output, a, ab, abc), clock.nested(output, abc)
    middle = -Y_3 - eta / 2 * Y_4
    return Projectors(
        A=Y_2,
        B=Y_2 + eta / 2 * X_II,
        IA=middle,
        IB=middle - eta / 2 * Y_1 - eta**2 / 6 * X_III,
        IIA=-Y_3,
        IIB=-Y_3 - Y_3.swapaxes(0, 1) - Y_3.swapaxes(1, 2) - eta * (Y_4 + Y_1),
    )


def given_projectors(algorithm: Any, values: Array) -> Projectors:
    """Projectors that a user supplies, as arrays or as a function of the eigenvalues, checked."""
    found = algorithm(values) if callable(algorithm) else algorithm
    if not isinstance(found, Projectors):
        raise InputError(
            f"algorithm gives {type(found).__name__}: give one of {', '.join(NAMES)}, Projectors, or a function of "
            "eigenvalues that returns Projectors."
        )
    arrays = {}
    for field in fields(Projectors):
        array = real_array(f"the projector {field.name}", getattr(found, field.name))
        wanted = (len(values),) * (2 if field.name in ("A", "B") else 3)
        if array.shape != wanted:
            raise InputError(
                f"the projector {field.name} has shape {array.shape}: give {wanted}, one number for the eigenvalues "
                "of the training kernel on each axis."
            )
        arrays[field.name] = array
    return Projectors(**arrays)


def require_algorithm(algorithm: Any) -> None:
    """Refuse a name that is none of the three, before anything is computed."""
    if isinstance(algorithm, str) and algorithm not in NAMES:
        raise unknown_name("`algorithm`", algorithm, NAMES)
    if not (isinstance(algorithm, str | Projectors) or callable(algorithm)):
        raise InputError(
            f"`algorithm` is {algorithm!r}: give one of {', '.join(NAMES)}, Projectors, or a function "
            "that gives them."
        )


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
        # Any algorithm that ends without training error: what does not depend on it, and its projectors (∞.141).
        return Course(1 / self.values, -1 / np.multiply.outer(self.values, self.values), self.projectors)


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
        # A giant leap and a small step (∞.148).
        pairs = 1 / np.multiply.outer(values, values)
        triples = np.multiply.outer(pairs, 1 / values)
        none = np.zeros_like(triples)
        leap = Projectors(np.zeros_like(pairs), pairs / 2, none, -triples / 6, none, none)
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
