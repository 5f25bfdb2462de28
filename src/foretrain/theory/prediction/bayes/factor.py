"""The Cholesky factor of a training kernel: solves, determinants, and the jitter that was needed, if any."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import LinAlgError, cho_solve, cholesky, solve_triangular

from foretrain.support.errors import AccuracyWarning, InputError
from foretrain.support.memory import require_memory
from foretrain.theory.network_tangent_kernel import real_array

Array = NDArray[np.float64]

_FIRST_JITTER = 1e-14
_LAST_JITTER = 1e-6


@dataclass(frozen=True, eq=False, repr=False)
class Factor:
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

    def __repr__(self) -> str:
        added = f"with jitter {self.jitter:.3g}" if self.jitter else "without jitter"
        return f"Cholesky factor of a kernel of {len(self.lower):,} inputs, {added}"


def factorise(K: ArrayLike, noise: float = 0.0) -> Factor:
    """The factor of K + noise, with a warning if that needed a jitter.

    The jitter is the smallest power of ten that works, from 1e-14 of the mean variance on; past 1e-6 it is an error.
    """
    found = factorise_quietly(K, noise)
    if found.jitter:
        warnings.warn(
            f"the kernel is singular to rounding, so {found.jitter:.3g} was added to its diagonal: leave out "
            "repeated inputs, or give a noise.",
            AccuracyWarning,
            stacklevel=2,
        )
    return found


def factorise_quietly(K: ArrayLike, noise: float = 0.0) -> Factor:
    """The same for callers that report the jitter themselves."""
    kernel = check_kernel(K)
    require_memory(
        16.0 * kernel.size, f"the Cholesky factor of {len(kernel):,} inputs", "use fewer training inputs"
    )
    noise = check_noise(noise)
    scale = float(np.diagonal(kernel).mean()) + noise
    if not scale > 0:
        raise InputError("the kernel is zero on the training inputs: give a noise, or C_b > 0.")
    lower = _try(kernel, noise)
    relative = _FIRST_JITTER
    while lower is None and relative <= _LAST_JITTER:
        lower = _try(kernel, noise + relative * scale)
        relative *= 10
    if lower is None:
        raise InputError(
            f"the kernel of the training inputs is not positive definite even with a jitter of {_LAST_JITTER:g} of its "
            "diagonal: check that it is a covariance, or give a noise."
        )
    used = 0.0 if relative == _FIRST_JITTER else relative / 10 * scale
    return Factor(lower, used)


def _try(kernel: Array, added: float) -> Array | None:
    """The factor, or None: round-off may also leave a pivot that is positive but means nothing."""
    shifted = kernel.copy()
    shifted[np.diag_indices_from(shifted)] += added
    diagonal = np.diagonal(shifted).copy()
    try:
        lower = np.asarray(cholesky(shifted, lower=True, overwrite_a=True, check_finite=False))
    except LinAlgError:
        return None
    pivots = np.diagonal(lower) ** 2
    return lower if (pivots > np.finfo(float).eps * diagonal).all() else None


def check_kernel(K: ArrayLike) -> Array:
    """A symmetric matrix of finite numbers."""
    kernel = real_array("the kernel", K)
    if kernel.ndim != 2 or kernel.shape[0] != kernel.shape[1] or not len(kernel):
        raise InputError(f"the kernel has shape {kernel.shape}: give (N, N).")
    if not np.allclose(kernel, kernel.T, rtol=1e-8, atol=1e-10 * np.abs(kernel).max()):
        raise InputError("the kernel is not symmetric: give K_ab = K_ba.")
    return kernel


def check_noise(noise: float) -> float:
    """The variance of the output noise, or an error."""
    number = real_array("noise", noise)
    if number.ndim or number < 0:
        raise InputError(f"noise is {noise!r}: give one variance, zero or positive.")
    return float(number)
