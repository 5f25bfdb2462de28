"""Leading eigenmodes of kernels that are known by products alone, and norms with the leading modes taken out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from foretrain.empirical.kernel_products import NTKOperator
from foretrain.support.errors import NotSupportedError
from foretrain.support.seeds import Seed, generator

Array: TypeAlias = NDArray[np.float64]
Apply: TypeAlias = Callable[[Array], Array]  # columns (size, many) to columns

_ROOM_ABOVE_ROUNDING = 100.0  # how close to the rounding of products Lanczos vectors can come
_RESTARTS = 1000  # of Lanczos, each about twenty products


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


def standard_error(draws: NDArray[Any]) -> float:
    """Of the mean of independent draws."""
    return float(np.std(draws, ddof=1) / np.sqrt(len(draws)))
