"""Leading eigenmodes of kernels that are known by products alone, and norms with the leading modes taken out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from foretrain.empirical.kernel_analysis.block_lanczos import BLOCK, Leading, leading_pairs
from foretrain.empirical.kernel_analysis.matrices import ByProducts, layout_of, products_of
from foretrain.empirical.kernel_operator import NTKOperator
from foretrain.empirical.stored_kernel.reading import StoredKernel
from foretrain.support.errors import NotSupportedError
from foretrain.support.seeds import Seed, generator
from foretrain.support.user_warnings import warn_user

Array: TypeAlias = NDArray[np.float64]
Apply: TypeAlias = Callable[[Array], Array]  # columns (size, many) to columns

_ROOM_ABOVE_ROUNDING = 100.0  # how close to the rounding of products Lanczos vectors can come
_RESTARTS = 1000  # of Lanczos, each about twenty products
_RESIDUAL = 1e-10  # of modes, in units of the largest eigenvalue
_SMALLEST_RESIDUAL = 1e-4  # of the smallest eigenvalue of a stored kernel with the ridge, in units of itself
_READINGS = 300
_PRODUCTS = 1000  # of an operator with a block
_OPERATOR_BLOCK = 4  # an operator's columns cost one by one, so that depth is better than width


def leading_modes(kernel: ByProducts, count: int, seed: Seed) -> Leading:
    """The largest eigenvalues with their modes as columns, to a residual of 1e-10 of the largest.

    For operators in single precision it is what their rounding allows. The kernel of several outputs may have every
    eigenvalue as many times as there are outputs: blocks of at least ``count`` columns find all that belong here.
    """
    stored = isinstance(kernel, StoredKernel)
    layout = layout_of(kernel)
    tolerance = _RESIDUAL if stored else max(_RESIDUAL, _ROOM_ABOVE_ROUNDING * layout.precision)

    def good(values: Array, residuals: Array) -> bool:
        return bool((residuals <= tolerance * values[0]).all())

    found = leading_pairs(
        products_of(kernel),
        layout.size,
        count,
        good,
        seed,
        _READINGS if stored else _PRODUCTS,
        BLOCK if stored else _OPERATOR_BLOCK,
    )
    if not found.converged:
        warn_user(
            f"block Lanczos left a residual of {found.residuals.max():.2g} in {found.products} "
            f"{'readings' if stored else 'products'}: the last of the {count} modes are mixed with others; ask for "
            "fewer, or for more of their neighbours.",
        )
    return found


def operator_extremes(operator: NTKOperator, seed: Seed) -> tuple[float, float]:
    """Largest and smallest eigenvalue, by Lanczos.

    The smallest comes from the leading mode u of largest - Theta, as u . Theta u, which is never negative.
    """
    from scipy.sparse import eye_array
    from scipy.sparse.linalg import aslinearoperator

    matrix = operator.linear_operator()
    largest, _ = _largest(operator, matrix, seed)
    shift = aslinearoperator(largest * eye_array(operator.shape[0]))
    _, mode = _largest(operator, shift - matrix, seed)
    return largest, operator.quadratic(mode)


def _largest(operator: NTKOperator, matrix: Any, seed: Seed) -> tuple[float, Array]:
    from scipy.sparse.linalg import ArpackNoConvergence, eigsh

    size = operator.shape[0]
    start = generator(seed).normal(size=size)
    rounding = _ROOM_ABOVE_ROUNDING * torch.finfo(operator.dtype).eps
    try:
        values, modes = eigsh(matrix, k=1, which="LA", v0=start, tol=rounding, maxiter=_RESTARTS)
    except ArpackNoConvergence as error:
        raise NotSupportedError(
            f"Lanczos did not find an end of the spectrum of the {size} x {size} kernel: use a model in double "
            "precision, or form the kernel with ntk(...)."
        ) from error
    return float(values[0]), np.asarray(modes[:, 0])


def stored_extremes(
    kernel: StoredKernel, ridge: float, resolves: Callable[[float], float], seed: Seed
) -> tuple[float, float]:
    """Largest and smallest eigenvalue; the smallest until its error with the ridge is below 1e-4, or it is zero.

    The smallest is the largest of (largest - K), and at most what is found.
    """
    size = kernel.matrix_shape[0]
    largest = float(leading_modes(kernel, 1, seed).values[0])

    def good(values: Array, residuals: Array) -> bool:
        smallest = largest - float(values[0])
        zero = ridge == 0 and smallest <= resolves(largest)
        return zero or float(residuals[0]) <= _SMALLEST_RESIDUAL * (smallest + ridge)

    def shifted(columns: Array) -> Array:
        return largest * columns - kernel.matmat(columns)

    found = leading_pairs(shifted, size, 1, good, seed, _READINGS)
    if not found.converged:
        warn_user(
            f"the smallest eigenvalue was not resolved in {found.products} readings: the condition number is at "
            "least what is given; pass `ridge=` for that of the regularised kernel.",
        )
    return largest, largest - float(found.values[0])


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


def all_modes(matrix: Array, *, with_vectors: bool = True) -> tuple[Array, Array]:
    """Eigenvalues from the largest down, and modes as columns (none if they are not wanted)."""
    from scipy.linalg import eigh, eigvalsh

    if not with_vectors:
        return np.asarray(eigvalsh(matrix)[::-1]), np.zeros((len(matrix), 0))
    values, modes = eigh(matrix)
    return np.asarray(values[::-1]), np.asarray(modes[:, ::-1])
