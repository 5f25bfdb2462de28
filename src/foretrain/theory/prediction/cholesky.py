"""The factors of a training kernel, Cholesky's and its modes: solves, determinants, and the jitter needed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import LinAlgError, cho_solve, cholesky, eigh, norm, solve_triangular
from scipy.linalg.lapack import dpocon

from foretrain.gaussian.grams import square_tiles
from foretrain.support.arguments import Array, real_array
from foretrain.support.errors import InputError
from foretrain.support.memory import require_memory
from foretrain.support.user_warnings import warn_user
from foretrain.theory.prediction.algorithms import LearningRates

RESOLVED = 1e-13
"""Of the reciprocal condition: below it rounding in the kernel decides, even if the algorithm goes through."""

# Rounding in directions without signal is divided by the jitter, and the rest is moved by it.
_JITTERS = tuple(10.0**power for power in range(-10, -5))


@dataclass(frozen=True, eq=False)
class CholeskyFactor:
    """K + noise + jitter = lower lower^T; ``jitter`` is zero unless the kernel was singular to rounding."""

    lower: Array
    jitter: float

    @property
    def log_determinant(self) -> float:
        """log |K|."""
        return 2 * float(np.log(np.diagonal(self.lower)).sum())

    def solve(self, values: Array) -> Array:
        """K^-1 times columns."""
        return np.asarray(cho_solve((self.lower, True), values, check_finite=False))

    def whiten(self, values: Array) -> Array:
        """lower^-1 times columns, whose squares are those of K^-1."""
        return np.asarray(solve_triangular(self.lower, values, lower=True, check_finite=False))


def factorise(K: ArrayLike, noise: float = 0.0) -> CholeskyFactor:
    """The factor of K + noise, with a warning if that needed a jitter.

    The jitter is the smallest power of ten that works, from 1e-10 to 1e-6 of the mean variance; else it is an error.
    """
    found = factorise_quietly(K, noise)
    if found.jitter:
        warn_user(
            f"the kernel is singular to rounding, so {found.jitter:.3g} was added to its diagonal: leave out "
            "repeated inputs, or give a noise."
        )
    return found


def factorise_quietly(K: ArrayLike, noise: float = 0.0) -> CholeskyFactor:
    """The same for callers that report the jitter themselves."""
    kernel = check_kernel(K)
    require_memory(
        32.0 * kernel.size, f"the Cholesky factor of {len(kernel):,} inputs", "use fewer training inputs"
    )
    noise = check_noise(noise)
    scale = float(np.diagonal(kernel).mean()) + noise
    if not scale > 0:
        raise InputError("the kernel is zero on the training inputs: give a noise, or C_b > 0.")
    for jitter in (0.0, *(relative * scale for relative in _JITTERS)):
        lower = _try(kernel, noise + jitter)
        if lower is not None:
            return CholeskyFactor(lower, jitter)
    raise InputError(
        f"the kernel of the training inputs is not positive definite even with a jitter of {_JITTERS[-1]:g} of "
        "its diagonal: check that it is a covariance, or give a noise."
    )


def _try(kernel: Array, added: float) -> Array | None:
    """The factor, or None where there is none or it has no digits."""
    shifted = kernel.copy()
    shifted[np.diag_indices_from(shifted)] += added
    size = float(norm(shifted, 1, check_finite=False))
    try:
        # The transpose, which is the same matrix, lies in memory as LAPACK wants it.
        lower = np.asarray(cholesky(shifted.T, lower=True, overwrite_a=True, check_finite=False))
    except LinAlgError:
        return None
    reciprocal, _ = dpocon(lower, size, uplo="L")
    return lower if reciprocal > RESOLVED else None


def check_kernel(K: ArrayLike) -> Array:
    """A symmetric matrix of finite numbers."""
    kernel = real_array("the kernel", K)
    if kernel.ndim != 2 or kernel.shape[0] != kernel.shape[1] or not len(kernel):
        raise InputError(f"the kernel has shape {kernel.shape}: give (N, N).")
    # Tile by tile: a transposed sweep of the whole would miss the cache all the time.
    tiles = square_tiles(kernel.shape, symmetric=True)
    gaps = (np.abs(kernel[t.rows, t.columns] - kernel[t.columns, t.rows].T).max() for t in tiles)
    if max(gaps) > 1e-8 * max(kernel.max(), -kernel.min()):
        raise InputError("the kernel is not symmetric: give K_ab = K_ba.")
    return kernel


def check_noise(noise: float) -> float:
    """The variance of the output noise, or an error."""
    number = real_array("noise", noise)
    if number.ndim or number < 0:
        raise InputError(f"`noise` is {noise!r}: give one variance, zero or positive.")
    return float(number)


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
            "its diagonal: leave out repeated inputs, or give fewer than the network can tell apart."
        )
    return found


@dataclass(frozen=True, eq=False)
class Modes:
    """Eigenvalues (M,), rising, and eigenvectors (A, M) of a training kernel along which training moves.

    ``jitter`` is what was added to the eigenvalues to make them positive.
    """

    values: Array
    vectors: Array
    jitter: float = 0.0

    @property
    def rates(self) -> LearningRates:
        """Which learning rates converge."""
        return LearningRates(float(self.values[0]), float(self.values[-1]))

    @property
    def condition_number(self) -> float:
        """Largest over smallest eigenvalue."""
        return float(self.values[-1] / self.values[0])

    def apply(self, factors: Array, columns: Array) -> Array:
        """f(kernel) times columns, for f given at the eigenvalues."""
        return np.asarray(self.vectors @ (factors[:, None] * (self.vectors.T @ columns)))

    def solve(self, columns: Array) -> Array:
        """The inverse of the kernel times columns."""
        return np.asarray(self.vectors @ ((self.vectors.T @ columns) / self.values[:, None]))

    def inverse_root(self) -> Array:
        """The kernel to the power -1/2."""
        return np.asarray((self.vectors / np.sqrt(self.values)) @ self.vectors.T)


def spectrum_of(matrix: Array) -> tuple[Array, Array]:
    """Eigenvalues, rising and not below zero, and eigenvectors of a positive semidefinite matrix."""
    require_memory(32 * matrix.size, f"the spectrum of {len(matrix):,} inputs", "use fewer of them")
    values, vectors = eigh(matrix)
    return np.maximum(values, 0.0), np.asarray(vectors)


def square_root(matrix: Array) -> Array:
    """The symmetric R with R R = matrix, positive semidefinite up to rounding: for drawing Gaussian outputs.

    It hardly moves where the matrix hardly does, so that the same normal numbers draw the same outputs.
    """
    values, vectors = spectrum_of(matrix)
    return np.asarray((vectors * np.sqrt(values)) @ vectors.T)
