"""Cholesky factors of kernel matrices: as they are, or with a shift of the diagonal that is always reported."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve, eigh
from scipy.linalg.lapack import dpocon

from foretrain.support.errors import AccuracyWarning, InputError
from foretrain.support.memory import require_memory

Array = NDArray[np.float64]

_RESOLVED = 1e-14  # of the reciprocal condition: below it no digit of a solution is left
# Rounding in directions without signal is divided by the shift, the rest is moved by it: about sqrt(epsilon) is best.
_FIRST_SHIFT = 1e-9


@dataclass(frozen=True, repr=False, eq=False)
class Factor:
    """A matrix that can be divided by: its Cholesky factor, and what was added to the diagonal (normally nothing)."""

    triangle: Array
    shift: float

    def solve(self, right: Array) -> Array:
        """M^-1 right, by two triangular solves."""
        return np.asarray(cho_solve((self.triangle, True), right, check_finite=False))


def factorise(matrix: Array, name: str) -> Factor:
    """The Cholesky factor of a symmetric matrix that should be positive definite.

    Where it is singular to rounding (repeated training inputs, linear networks) the smallest shift of the diagonal
    that helps is added, and a warning says how much.
    """
    require_memory(
        24 * matrix.size, f"the factors of {len(matrix):,} x {len(matrix):,}", "use fewer training inputs"
    )
    scale = float(np.mean(np.diagonal(matrix)))
    if not scale > 0:
        raise InputError(f"{name} is zero on all training inputs: nothing is learned; give positive rates.")
    for shift in (0.0, *(scale * _FIRST_SHIFT * 10.0**power for power in range(6))):
        triangle = _cholesky(matrix, shift)
        if triangle is not None:
            if shift:
                _warn_of_shift(name, shift, scale)
            return Factor(triangle, shift)
    raise InputError(f"{name} is not positive semidefinite: check the kernel, or raise its accuracy.")


def _cholesky(matrix: Array, shift: float) -> Array | None:
    """The lower factor of matrix + shift, or None where it has no digits."""
    shifted = matrix.copy(order="F")
    shifted.ravel(order="K")[:: len(matrix) + 1] += shift
    norm = float(np.abs(shifted).sum(axis=0).max())
    try:
        triangle, _ = cho_factor(shifted, lower=True, overwrite_a=True, check_finite=False)
    except LinAlgError:
        return None
    reciprocal, _ = dpocon(triangle, norm, uplo="L")
    return np.asarray(triangle) if reciprocal > _RESOLVED else None


def _warn_of_shift(name: str, shift: float, scale: float) -> None:
    warnings.warn(
        f"{name} is singular to rounding, so {shift:.3g} ({shift / scale:.1g} of its mean diagonal) was added to the "
        "diagonal: remove repeated training inputs, or take fewer than the network can tell apart.",
        AccuracyWarning,
        stacklevel=4,
    )


def square_root(matrix: Array) -> Array:
    """R with R R^T = matrix, positive semidefinite up to rounding: for drawing Gaussian outputs."""
    require_memory(
        32 * matrix.size, f"the spectrum of {len(matrix):,} x {len(matrix):,}", "use fewer inputs"
    )
    values, vectors = eigh(matrix)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))
