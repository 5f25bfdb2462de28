"""How training ends: the projectors Z_A and Z_B of each algorithm (11.132)-(11.136), in the eigenbasis of k̃.

Z^{α1α2α3α4} is diagonal there: α1, α3 go with the eigenvalue w_1, α2, α4 with w_2. All algorithms start at W = 0 and
share the symmetric part of Z_B, ½ k̃⁻¹⊗k̃⁻¹; they differ in Z_A.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from foretrain.support.errors import InputError, unknown_name
from foretrain.support.user_warnings import warn_user
from foretrain.theory.prediction.algorithms import LearningRates
from foretrain.theory.prediction.nearly_kernel.points import Array, same

Algorithm = Literal["gradient_descent", "flow", "direct", "ridgeless"]
ALGORITHMS: tuple[str, ...] = get_args(Algorithm)

NEARLY_SINGULAR = 1e10  # condition number from which the inverse is reported: the correction holds its square
_JITTER = 10.0  # in units of the rounding of the largest eigenvalue times the number of rows


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Eigenvalues w, increasing, and modes U of the training kernel; ``jitter`` was added to make it invertible."""

    values: Array
    modes: Array
    jitter: float = 0.0

    @property
    def condition_number(self) -> float:
        """Largest over smallest eigenvalue."""
        return float(self.values[-1] / self.values[0])

    def solve(self, right: Array) -> Array:
        """k̃⁻¹ times columns."""
        return np.asarray(self.modes @ ((self.modes.T @ right) / self.values[:, None]))

    def inverse_root(self) -> Array:
        """k̃^-½."""
        return np.asarray((self.modes / np.sqrt(self.values)) @ self.modes.T)


@dataclass(frozen=True, eq=False)
class Projectors:
    """Z_A and Z_B at the pairs of eigenvalues (w_1, w_2): (rows, rows) each."""

    A: Array
    B: Array


def spectrum(kernel: Array) -> Spectrum:
    """The eigenbasis of k̃; a nearly singular one is reported, and one that cannot be inverted gets a jitter."""
    if not same(kernel, kernel.T):
        raise InputError("the kernel of the training samples is not symmetric: return k(x1, x2) = k(x2, x1).")
    values, modes = np.linalg.eigh(0.5 * (kernel + kernel.T))
    rounding = len(values) * np.finfo(float).eps * float(values[-1])
    if values[-1] <= 0 or values[0] < -1e3 * rounding:
        raise InputError(
            f"the kernel of the training samples has eigenvalues from {values[0]:.3g} to {values[-1]:.3g}: give "
            "one that is positive."
        )
    if values[0] <= rounding:
        jitter = _JITTER * rounding - min(0.0, float(values[0]))
        warn_user(
            f"the kernel of the training samples is singular (smallest eigenvalue {values[0]:.2g}), so {jitter:.2g} "
            "was added to its diagonal: leave out repeated samples or add features."
        )
        return Spectrum(values + jitter, modes, jitter)
    found = Spectrum(values, modes)
    if found.condition_number > NEARLY_SINGULAR:
        warn_user(
            f"the kernel of the training samples is nearly singular (condition number "
            f"{found.condition_number:.2g}): the correction holds the square of its inverse and may be off."
        )
    return found


def projectors(algorithm: str, values: Array, eta: float | None = None) -> Projectors:
    """Z_A and Z_B of an algorithm for the eigenvalues of k̃; gradient descent needs its ``eta``."""
    w1, w2 = values[:, None], values[None, :]
    inverse = 1 / (w1 * w2)
    if algorithm == "direct":
        return Projectors(np.zeros_like(inverse), inverse / 2)
    if algorithm == "ridgeless":
        return Projectors(inverse, inverse / 2)
    require_algorithm(algorithm)
    rate = 0.0 if algorithm == "flow" else checked_rate(eta, values)
    X_II = 1 / (w1 + w2 - rate * w1 * w2)
    A = (1 - rate * w1) / w1 * X_II
    return Projectors(A, A + rate / 2 * X_II)


def require_algorithm(name: Any) -> None:
    """Refuse a name that is none of the four, before anything is computed."""
    if name not in ALGORITHMS:
        raise unknown_name("`algorithm`", str(name), ALGORITHMS)


def checked_rate(eta: float | None, values: Array) -> float:
    """A learning rate at which gradient descent on k̃ converges, 0 < η < 2 / w_max; 1 / w_max if none is given."""
    rates = LearningRates(float(values.min()), float(values.max()))
    return 1 / rates.largest if eta is None else rates.check(eta)
