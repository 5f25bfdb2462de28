"""Factors of kernel matrices for training: with a jitter only where there is no other way, and then reported."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from foretrain.support.errors import InputError
from foretrain.support.memory import require_memory
from foretrain.support.user_warnings import warn_user
from foretrain.theory.prediction.cholesky import CholeskyFactor, factorise_quietly

Array = NDArray[np.float64]


def factorise_tangent(Theta: Array) -> CholeskyFactor:
    """The Cholesky factor of Theta on training inputs.

    Where it is singular to rounding (repeated training inputs, linear networks) a warning says what was added.
    """
    if not np.diagonal(Theta).any():
        raise InputError(
            "the tangent kernel is zero, so that nothing is learned: give positive learning rates."
        )
    found = factorise_quietly(Theta)
    if found.jitter:
        warn_user(
            f"the tangent kernel of the training inputs is singular to rounding, so {found.jitter:.3g} was added to "
            "its diagonal: leave out repeated inputs, or give fewer than the network can tell apart.",
        )
    return found


def spectrum_of(matrix: Array) -> tuple[Array, Array]:
    """Eigenvalues, rising and not below zero, and eigenvectors of a positive semidefinite matrix."""
    require_memory(32 * matrix.size, f"the spectrum of {len(matrix):,} inputs", "use fewer of them")
    values, vectors = eigh(matrix)
    return np.maximum(values, 0.0), np.asarray(vectors)


def square_root(matrix: Array) -> Array:
    """R with R R^T = matrix, positive semidefinite up to rounding: for drawing Gaussian outputs."""
    values, vectors = spectrum_of(matrix)
    return np.asarray(vectors * np.sqrt(values))
