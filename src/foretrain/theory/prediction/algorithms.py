"""How a model is trained: in steps, in continuous time or at once, at what rate and until when, as one value.

``Descent``           gradient descent in steps
``GradientFlow``      the same in continuous time
``TwoStep``           a giant leap and a small step (∞.148)
``Newton``            one step of Newton's method (10.25), for infinite width
``named_algorithm``   the value that a name, a rate and a time stand for

At finite width the end depends on the algorithm, by its projectors (∞.142)-(∞.153). In the eigenbasis of the training
kernel they are numbers for two or three eigenvalues: Z^{123456} joins the sample 1 of a tensor and the sample 4 of an
error by the first eigenvalue, 2 and 5 by the second, 3 and 6 by the third.

They are sums over the course of training, for steps and for gradient flow alike. A product of errors along modes
with eigenvalues a, b is multiplied by 1 - eta s in every step, with the combined rate s = a + b - eta a b; eta = 0
is gradient flow, where it falls as exp(-s t). Training adds up such factors over earlier and earlier steps: divided
differences of x^t, or of exp, at the rates involved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, NamedTuple, cast, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import expm

from foretrain.support.answers import Result
from foretrain.support.arguments import Array, not_negative, positive, real_array, whole_number
from foretrain.support.errors import InputError, unknown_name
from foretrain.theory.arguments import steps_in_words, whole

FiniteName = Literal["gradient_descent", "flow", "two_step"]
"""Of the algorithms whose end at finite width is known."""
AlgorithmName = Literal[FiniteName, "newton"]
"""All of them."""
NAMES: tuple[str, ...] = get_args(FiniteName)


class LearningRates(NamedTuple):
    """Between which eigenvalues of Theta_AA training happens, and what rates that allows."""

    smallest: float  # eigenvalue
    largest: float

    @property
    def limit(self) -> float:
        """Steps converge for 0 < eta < 2 / lambda_max."""
        return 2 / self.largest

    @property
    def best(self) -> float:
        """2 / (lambda_min + lambda_max): the constant rate whose slowest direction is fastest."""
        return 2 / (self.smallest + self.largest)

    def check(self, eta: float | None) -> float:
        """The rate of plain steps, the best one by default, or an error if steps would not converge."""
        return Descent(eta).rate(self)


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


def pair_projectors(clock: Clock, values: Array, output: float = 0.0) -> tuple[Array, Array]:
    """A and B (∞.142), (∞.143), which are all that a first differential needs."""
    first, second = values[:, None], values[None, :]
    both = clock.together(first, second)
    Y_2, X_II = clock.nested(output, first, both), clock.nested(output, both)
    return Y_2, Y_2 + clock.eta / 2 * X_II


def _of_descent(clock: Clock, values: Array, output: float) -> Projectors:
    """(∞.142)-(∞.147), with Y_1 .. Y_4 as sums over the steps made so far instead of their limits."""
    eta, a, b, c = clock.eta, values[:, None, None], values[None, :, None], values
    ab, abc = clock.together(a, b), clock.together(a, b, c)
    A, B = pair_projectors(clock, values, output)
    Y_1, Y_4 = clock.nested(output, ab, abc), clock.nested(output, a, abc)
    Y_3, X_III = clock.nested(output, a, ab, abc), clock.nested(output, abc)
    middle = -Y_3 - eta / 2 * Y_4
    return Projectors(
        A=A,
        B=B,
        IA=middle,
        IB=middle - eta / 2 * Y_1 - eta**2 / 6 * X_III,
        IIA=-Y_3,
        IIB=-Y_3 - Y_3.swapaxes(0, 1) - Y_3.swapaxes(1, 2) - eta * (Y_4 + Y_1),
    )


@dataclass(frozen=True, eq=False)
class Plan:
    """Steps or flow by a ``clock``, or an algorithm known by its ``projectors`` at the end of training only."""

    statement: str
    values: Array  # eigenvalues of the training kernel
    eta: float | None = None
    time: float | None = None
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


@dataclass(frozen=True)
class Descent:
    """Gradient descent: ``steps`` at the rate ``eta``, by default the best constant one; None is to the end.

    With ``momentum`` m a velocity v, zero at first, becomes m v + gradient in every step, and parameters move by
    -eta v; with ``nesterov`` by -eta (gradient + m v). That is torch.optim.SGD.
    """

    eta: float | None = None
    steps: int | None = None
    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        if self.eta is not None:
            object.__setattr__(self, "eta", positive("eta", self.eta))
        if self.steps is not None:
            object.__setattr__(self, "steps", whole_number("steps", self.steps, least=0))
        object.__setattr__(self, "momentum", not_negative("momentum", self.momentum))
        if self.momentum >= 1:
            raise InputError(f"`momentum` is {self.momentum:g}: with 1 or more nothing settles, give less.")
        if self.nesterov and not self.momentum:
            raise InputError("`nesterov` is a kind of momentum: give `momentum` too, or leave it out.")

    @property
    def time(self) -> int | None:
        """The steps, which are its time."""
        return self.steps

    @property
    def statement(self) -> str:
        """How far it goes, such as "after 3 steps at eta 0.5"."""
        name = "Nesterov's momentum" if self.nesterov else "momentum"
        ending = f" with {name} {self.momentum:g}" if self.momentum else ""
        return f"after {steps_in_words(self.steps or 0)} at eta {self.eta:.6g}{ending}"

    @property
    def stretch(self) -> float:
        """How many times larger the largest stable rate is than without momentum."""
        return (1 + self.momentum) / (1 + 2 * self.momentum * self.nesterov)

    def rate(self, rates: LearningRates) -> float:
        """The size of its steps, or an error if they would not converge.

        By default it is the best constant one, whose slowest direction is fastest; with Nesterov's momentum, where
        that has no closed form, 1 / lambda_max.
        """
        best = 1 / rates.largest if self.nesterov else self.stretch * rates.best
        limit = self.stretch * rates.limit
        if self.eta is None:
            return best
        if self.eta >= limit:
            above = "2 (1 + momentum)" if self.momentum else "2"
            below = "((1 + 2 momentum) lambda_max)" if self.nesterov else "lambda_max"
            raise InputError(
                f"`eta` is {self.eta:g}, but gradient descent converges only below {above} / {below} = "
                f"{limit:.6g}: give a smaller `eta`; {'a good' if self.nesterov else 'the best'} constant one is "
                f"{best:.6g}."
            )
        return self.eta

    def plan(self, values: Array) -> Plan:
        """The course for the eigenvalues of a training kernel, or an error if steps would not converge."""
        if self.momentum:
            raise InputError(
                "`momentum` is known at infinite width only, and at finite width the end depends on the algorithm: "
                "leave it out."
            )
        rate = self.rate(LearningRates(float(values[0]), float(values[-1])))
        when = "to the end of" if self.steps is None else f"after {self.steps} steps of"
        statement = f"{when} gradient descent at eta {rate:.6g}"
        return Plan(statement, values, rate, self.steps, Clock(rate, self.steps))


@dataclass(frozen=True)
class GradientFlow:
    """Gradient descent in continuous ``time``, of which ``eta`` is the speed, 1 by default; None is to the end."""

    time: float | None = None
    eta: float | None = None

    def __post_init__(self) -> None:
        if self.time is not None:
            object.__setattr__(self, "time", not_negative("time", self.time))
        if self.eta is not None:
            object.__setattr__(self, "eta", positive("eta", self.eta))

    @property
    def speed(self) -> float:
        """The rate, where none is given too."""
        return 1.0 if self.eta is None else self.eta

    @property
    def statement(self) -> str:
        """How far it goes, such as "after flow time 2 at eta 1"."""
        return f"after flow time {self.time:g} at eta {self.speed:g}"

    def plan(self, values: Array) -> Plan:
        """The course for the eigenvalues of a training kernel."""
        when, until = "to the end of", None
        if self.time is not None:
            when, until = f"after time {self.time:g} at speed {self.speed:g} of", self.speed * self.time
        return Plan(f"{when} gradient flow", values, self.eta, self.time, Clock(0.0, until))


@dataclass(frozen=True)
class TwoStep:
    """A giant leap and a small step (∞.148), which end where they end at every rate."""

    time: ClassVar[None] = None

    def plan(self, values: Array) -> Plan:
        """The leap for the eigenvalues of a training kernel."""
        pairs = 1 / np.multiply.outer(values, values)
        triples = np.multiply.outer(pairs, 1 / values)
        none = np.zeros_like(triples)
        leap = Projectors(np.zeros_like(pairs), pairs / 2, none, -triples / 6, none, none)
        return Plan("to the end of two-step training", values, projectors=leap, leaps=True)


@dataclass(frozen=True)
class Newton:
    """One step of Newton's method, after which nothing is left to learn (10.25)."""

    time: ClassVar[None] = None

    def plan(self, values: Array) -> Plan:
        """Refused: its projectors are not known."""
        raise InputError(
            "Newton's method is known at infinite width only, and at finite width the algorithm matters: use "
            "`algorithm='two_step'`, which ends at once too."
        )


@dataclass(frozen=True, eq=False)
class ByProjectors:
    """Any other algorithm, known by its projectors, or by a function of the eigenvalues that gives them."""

    given: Projectors | Callable[[Array], Projectors]

    def plan(self, values: Array) -> Plan:
        """The end of training, or an error if the projectors are none for these eigenvalues."""
        name = "an algorithm given by its projectors"
        given = self.given(values) if callable(self.given) else self.given
        if not isinstance(given, Projectors):
            raise InputError(
                f"algorithm gives {type(given).__name__}: give one of {', '.join(NAMES)}, Projectors, or a function "
                "of eigenvalues that returns Projectors."
            )
        arrays = {}
        for field in fields(Projectors):
            array = real_array(f"the projector {field.name}", getattr(given, field.name))
            wanted = (len(values),) * (2 if field.name in ("A", "B") else 3)
            if array.shape != wanted:
                raise InputError(
                    f"the projector {field.name} has shape {array.shape}: give {wanted}, one number for the "
                    "eigenvalues of the training kernel on each axis."
                )
            arrays[field.name] = array
        return Plan(f"to the end of {name}", values, projectors=Projectors(**arrays))


Algorithm = Descent | GradientFlow | TwoStep | Newton
FiniteAlgorithm = Algorithm | ByProjectors


def named_algorithm(
    algorithm: AlgorithmName | Algorithm,
    eta: float | None = None,
    time: float | None = None,
    momentum: float = 0.0,
) -> Algorithm:
    """The value that a name stands for with this rate, time and momentum, which a value says itself.

    Those that are done after one or two steps have no time, and end in the same place at every rate.

    Examples
    --------
    >>> named_algorithm("flow", time=2)
    GradientFlow(time=2.0, eta=None)
    """
    if isinstance(algorithm, Algorithm):
        if (eta, time, momentum) != (None, None, 0):
            raise InputError(
                "`algorithm` says its rate, time and momentum itself: leave `eta`, `time` and `momentum` out."
            )
        return algorithm
    if algorithm not in get_args(AlgorithmName):
        raise unknown_name("`algorithm`", str(algorithm), get_args(AlgorithmName))
    if algorithm == "gradient_descent":
        return Descent(eta, None if time is None else whole(time), momentum)
    if momentum:
        raise InputError(
            "`momentum` is for `algorithm='gradient_descent'`: smaller and smaller steps with momentum m follow the "
            "flow at the rate eta / (1 - m), which is `algorithm='flow'` with that `eta`."
        )
    if algorithm == "flow":
        return GradientFlow(time, eta)
    if time is not None:
        raise InputError(f"`algorithm` {algorithm!r} ends at once: leave `time` out.")
    return TwoStep() if algorithm == "two_step" else Newton()


def finite_algorithm(algorithm: Any) -> FiniteAlgorithm:
    """An algorithm of known projectors, from a name, a value or its projectors; else an error, before any work."""
    if isinstance(algorithm, Projectors) or (callable(algorithm) and not isinstance(algorithm, type)):
        return ByProjectors(algorithm)
    if isinstance(algorithm, ByProjectors):
        return algorithm
    if isinstance(algorithm, str) and algorithm not in NAMES:
        raise unknown_name("`algorithm`", algorithm, NAMES)
    if not isinstance(algorithm, str | Algorithm):
        raise InputError(
            f"`algorithm` is {algorithm!r}: give one of {', '.join(NAMES)}, Projectors, or a function "
            "that gives them."
        )
    found = named_algorithm(cast("AlgorithmName", algorithm))
    if isinstance(found, Newton):
        found.plan(np.ones(1))
    return found


def algorithm_projectors(algorithm: Any, eigenvalues: ArrayLike) -> Projectors:
    """The projectors of an algorithm at the end of training for eigenvalues (M,) of a training kernel.

    Examples
    --------
    >>> algorithm_projectors("flow", [2.0]).IIB  # -1 / (2 H^3) for one sample (∞.168)
    array([[[-0.0625]]])
    """
    values = np.sort(real_array("eigenvalues", eigenvalues))
    if values.ndim != 1 or not len(values) or not values[0] > 0:
        raise InputError(f"eigenvalues are {eigenvalues!r}: give a list of positive numbers.")
    return finite_algorithm(algorithm).plan(values).course().projectors
