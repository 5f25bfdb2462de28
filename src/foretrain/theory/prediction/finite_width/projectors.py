"""What an algorithm makes of the differentials of the tangent kernel: its projectors (∞.142)-(∞.153).

In the eigenbasis of the training kernel they are numbers for two or three eigenvalues: Z^{123456} joins the sample 1
of a tensor and the sample 4 of an error by the first eigenvalue, 2 and 5 by the second, 3 and 6 by the third.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from foretrain.support.answers import Result
from foretrain.support.arguments import real_array
from foretrain.support.errors import InputError, unknown_name
from foretrain.theory.prediction.algorithms import FiniteAlgorithm
from foretrain.theory.prediction.finite_width.clock import Clock

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


def two_step_projectors(values: Array) -> Projectors:
    """A giant leap and a small step (∞.148)."""
    pairs = 1 / np.multiply.outer(values, values)
    triples = np.multiply.outer(pairs, 1 / values)
    none = np.zeros_like(triples)
    return Projectors(np.zeros_like(pairs), pairs / 2, none, -triples / 6, none, none)


def course_to_the_end(projectors: Projectors, values: Array) -> Course:
    """Any algorithm that ends without training error: what does not depend on it, and its projectors (∞.141)."""
    return Course(1 / values, -1 / np.multiply.outer(values, values), projectors)


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
        raise unknown_name("algorithm", algorithm, NAMES)
    if not (isinstance(algorithm, str | Projectors) or callable(algorithm)):
        raise InputError(
            f"`algorithm` is {algorithm!r}: give one of {', '.join(NAMES)}, Projectors, or a function "
            "that gives them."
        )
