"""Embedded Runge-Kutta pairs, and the error that one step may make."""

from __future__ import annotations

from dataclasses import dataclass

from foretrain.support.errors import InputError, unknown_name


@dataclass(frozen=True)
class Method:
    """A pair of explicit methods: rows of stages (the last row is the new state), and weights of the error."""

    name: str
    stages: tuple[tuple[float, ...], ...]
    error: tuple[float, ...]
    order: int  # of the local error estimate, which sets the exponent of the step control

    @property
    def evaluations(self) -> int:
        """Gradients for one step: the first stage is the last one of the step before."""
        return len(self.stages)


_METHODS = {
    method.name: method
    for method in (
        # Bogacki & Shampine, Appl. Math. Lett. 2 (1989) 321: third order, error of second order.
        Method(
            "bogacki_shampine",
            ((1 / 2,), (0.0, 3 / 4), (2 / 9, 1 / 3, 4 / 9)),
            (-5 / 72, 1 / 12, 1 / 9, -1 / 8),
            3,
        ),
        # Dormand & Prince, J. Comput. Appl. Math. 6 (1980) 19: fifth order, error of fourth order.
        Method(
            "dormand_prince",
            (
                (1 / 5,),
                (3 / 40, 9 / 40),
                (44 / 45, -56 / 15, 32 / 9),
                (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
                (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
                (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
            ),
            (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40),
            5,
        ),
    )
}


def method_named(name: str) -> Method:
    """``dormand_prince`` (accurate) or ``bogacki_shampine`` (fewer gradients at loose tolerances)."""
    if name not in _METHODS:
        raise unknown_name("method", name, _METHODS)
    return _METHODS[name]


@dataclass(frozen=True)
class Tolerance:
    """Local error allowed in each tensor: relative to its norm, plus absolute."""

    relative: float = 1e-5
    absolute: float = 1e-10

    def __post_init__(self) -> None:
        if not 0 < self.relative < 1 or not self.absolute >= 0:
            raise InputError(
                f"tolerances are {self.relative} and {self.absolute}: give a relative one between 0 and 1, and an "
                "absolute one that is not negative."
            )
