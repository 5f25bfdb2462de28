"""Methods of one step: embedded Runge-Kutta pairs, and the error that a step may make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from foretrain.support.errors import InputError
from foretrain.training.gradient_flow.states import Clock, Evaluation, Field, State, per_flow


@dataclass(frozen=True, eq=False)
class Trial:
    """One step: the new state with its field, the estimated local error, and the gradients it took."""

    state: State
    last: Evaluation
    error: State
    evaluations: int


class Method(Protocol):
    """What makes a step; ``order`` is that of the local error estimate, the exponent of the step control."""

    @property
    def order(self) -> int:
        """Power of the step in the local error."""
        ...

    @property
    def needs_radius(self) -> bool:
        """Whether the spectral radius of the Jacobian must be known."""
        ...

    def longest(self, radius: Clock) -> Clock:
        """The longest step that is allowed."""
        ...

    def step(self, field: Field, state: State, now: Evaluation, length: Clock, radius: Clock) -> Trial:
        """Move every flow by its own length."""
        ...


@dataclass(frozen=True)
class EmbeddedPair:
    """An explicit pair: rows of stages, of which the last is the new state, and weights of the error."""

    stages: tuple[tuple[float, ...], ...]
    error: tuple[float, ...]
    order: int
    needs_radius: bool = False

    def longest(self, radius: Clock) -> Clock:
        """No limit: where stability ends, the error estimate grows."""
        return np.full(len(radius), np.inf)

    def step(self, field: Field, state: State, now: Evaluation, length: Clock, radius: Clock) -> Trial:
        """All stages; the first one is the last one of the step before."""
        slopes, new, last = [now.rates], state, now
        for row in self.stages:
            new = tuple(
                base + per_flow(length, base) * _combined(row, layer)
                for base, layer in zip(state, zip(*slopes))
            )
            last = field(new)
            slopes.append(last.rates)
        error = tuple(per_flow(length, layer[0]) * _combined(self.error, layer) for layer in zip(*slopes))
        return Trial(new, last, error, len(self.stages))


# Bogacki & Shampine, Appl. Math. Lett. 2 (1989) 321: third order, error of second order.
BOGACKI_SHAMPINE = EmbeddedPair(
    ((1 / 2,), (0.0, 3 / 4), (2 / 9, 1 / 3, 4 / 9)), (-5 / 72, 1 / 12, 1 / 9, -1 / 8), order=3
)
# Dormand & Prince, J. Comput. Appl. Math. 6 (1980) 19: fifth order, error of fourth order.
DORMAND_PRINCE = EmbeddedPair(
    (
        (1 / 5,),
        (3 / 40, 9 / 40),
        (44 / 45, -56 / 15, 32 / 9),
        (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
        (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
        (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
    ),
    (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40),
    order=5,
)


@dataclass(frozen=True)
class Tolerance:
    """Local error allowed in each tensor: relative to its norm, plus absolute."""

    relative: float
    absolute: float

    def __post_init__(self) -> None:
        if not 0 < self.relative < 1 or not self.absolute >= 0:
            raise InputError(
                f"tolerances are {self.relative} and {self.absolute}: give a relative one between 0 and 1, and an "
                "absolute one that is not negative."
            )


def _combined(coefficients: tuple[float, ...], slopes: tuple[Tensor, ...]) -> Tensor:
    pairs = [(c, slope) for c, slope in zip(coefficients, slopes) if c != 0]
    total = pairs[0][0] * pairs[0][1]
    for coefficient, slope in pairs[1:]:
        total.add_(slope, alpha=coefficient)
    return total
