"""Leading eigenmodes of kernels that are known by products alone, and norms with the leading modes taken out."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from foretrain.empirical.kernel_blocks import Leading, leading_pairs
from foretrain.empirical.kernel_products import NTKOperator
from foretrain.empirical.stored_kernel.reading import StoredKernel
from foretrain.support.errors import AccuracyWarning, NotSupportedError
from foretrain.support.seeds import Seed, generator

Array: TypeAlias = NDArray[np.float64]
Apply: TypeAlias = Callable[[Array], Array]  # columns (size, many) to columns

_ROOM_ABOVE_ROUNDING = 100.0  # how close to the rounding of products Lanczos vectors can come
_RESTARTS = 1000  # of Lanczos, each about twenty products
_RESIDUAL = 1e-10  # of modes of stored kernels, in units of the largest eigenvalue
_SMALLEST_RESIDUAL = 1e-4  # of their smallest eigenvalue with the ridge, in units of itself
_READINGS = 300


@dataclass(frozen=True)
class Extremes:
    """The ends of a spectrum."""

    largest: float
    smallest: float


def leading_modes(operator: NTKOperator, count: int, seed: Seed) -> tuple[Array, Array]:
    """The largest eigenvalues from the largest down, and their modes as columns, by Lanczos."""
    return _largest(operator, operator.linear_operator(), count, seed)


def smallest_eigenvalue(operator: NTKOperator, largest: float, seed: Seed) -> float:
    """From the leading mode u of largest - Theta, as u . Theta u, which is never negative."""
    from scipy.sparse import eye_array
    from scipy.sparse.linalg import aslinearoperator

    shift = aslinearoperator(largest * eye_array(operator.shape[0]))
    _, modes = _largest(operator, shift - operator.linear_operator(), 1, seed)
    return operator.quadratic(modes[:, 0])


def _largest(operator: NTKOperator, matrix: Any, count: int, seed: Seed) -> tuple[Array, Array]:
    from scipy.sparse.linalg import ArpackNoConvergence, eigsh

    size = operator.shape[0]
    start = generator(seed).normal(size=size)
    rounding = _ROOM_ABOVE_ROUNDING * torch.finfo(operator.dtype).eps
    try:
        values, modes = eigsh(matrix, k=count, which="LA", v0=start, tol=rounding, maxiter=_RESTARTS)
    except ArpackNoConvergence as error:
        raise NotSupportedError(
            f"Lanczos did not find all {count} eigenvalues of the {size} x {size} kernel that are wanted: ask for "
            "fewer, use a model in double precision, or form the kernel with ntk(...)."
        ) from error
    order = np.argsort(values)[::-1]
    return np.asarray(values[order]), np.asarray(modes[:, order])


def stored_modes(kernel: StoredKernel, count: int, seed: Seed) -> Leading:
    """The largest eigenvalues with their modes as columns, to a residual of 1e-10 of the largest."""

    def good(values: Array, residuals: Array) -> bool:
        return bool((residuals <= _RESIDUAL * values[0]).all())

    size = kernel.matrix_shape[0]
    found = leading_pairs(kernel.matmat, size, count, good, seed, _READINGS)
    if not found.converged:
        warnings.warn(
            f"block Lanczos left a residual of {found.residuals.max():.2g} in {found.products} readings: the last "
            f"of the {count} modes are mixed with others; ask for fewer, or for more of their neighbours.",
            AccuracyWarning,
            stacklevel=4,
        )
    return found


def stored_extremes(
    kernel: StoredKernel, ridge: float, resolves: Callable[[float], float], seed: Seed
) -> Extremes:
    """Largest and smallest eigenvalue; the smallest until its error with the ridge is below 1e-4, or it is zero.

    The smallest is the largest of (largest - K), and at most what is found.
    """
    size = kernel.matrix_shape[0]
    largest = float(stored_modes(kernel, 1, seed).values[0])

    def good(values: Array, residuals: Array) -> bool:
        smallest = largest - float(values[0])
        zero = ridge == 0 and smallest <= resolves(largest)
        return zero or float(residuals[0]) <= _SMALLEST_RESIDUAL * (smallest + ridge)

    def shifted(columns: Array) -> Array:
        return largest * columns - kernel.matmat(columns)

    found = leading_pairs(shifted, size, 1, good, seed, _READINGS)
    if not found.converged:
        warnings.warn(
            f"the smallest eigenvalue was not resolved in {found.products} readings: the condition number is at "
            "least what is given; pass ridge= for that of the regularised kernel.",
            AccuracyWarning,
            stacklevel=4,
        )
    return Extremes(largest, largest - float(found.values[0]))


def rest_of_norms(apply: Apply, basis: Array, probes: int, seed: Seed) -> tuple[Array, Array]:
    """z . A z and |A z|^2 of random signs z without their part in the basis (Meyer et al. 2021).

    Their means are the trace and the squared norm of A on what is orthogonal to the basis.
    """
    size = len(basis)
    signs = generator(seed).integers(0, 2, size=(size, probes)) * 2.0 - 1.0
    rest = signs - basis @ (basis.T @ signs)
    applied = apply(rest)
    return np.sum(rest * applied, axis=0), np.sum(applied**2, axis=0)


def centred(columns: Array, samples: int) -> Array:
    """Columns over (sample, output) without their mean over samples."""
    split = columns.reshape(samples, -1, *columns.shape[1:])
    return np.asarray((split - split.mean(axis=0)).reshape(columns.shape))


def standard_error(draws: NDArray[Any]) -> Any:
    """Of the mean of independent draws along the first axis."""
    return np.std(draws, axis=0, ddof=1) / np.sqrt(len(draws))
