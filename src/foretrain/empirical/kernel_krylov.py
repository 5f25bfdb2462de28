"""Functions of a symmetric positive matrix that is known by its products with vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from foretrain.support.memory import require_memory
from foretrain.support.progress import Progress

Array: TypeAlias = NDArray[np.float64]
Product: TypeAlias = Callable[[Array], Array]

_INVARIANT = 1e-13  # a new direction this short, relative to the product, is rounding


def conjugate_gradients(
    product: Product, vector: Array, tolerance: float, iterations: int
) -> tuple[Array, int, float]:
    """A^-1 v, the number of products, and the true relative residual |v - A x| / |v|."""
    from scipy.sparse.linalg import LinearOperator, cg

    size = float(np.linalg.norm(vector))
    if size == 0:
        return np.zeros_like(vector), 0, 0.0
    count = 0
    with Progress("conjugate gradients", total=iterations) as bar:

        def counted(v: Array) -> Array:
            nonlocal count
            count += 1
            bar.advance()
            return product(np.ravel(v))

        matrix = LinearOperator((len(vector), len(vector)), matvec=counted, dtype=np.dtype(np.float64))
        found, _ = cg(matrix, vector, rtol=tolerance, atol=0.0, maxiter=iterations)
        residual = vector - counted(found)
    return np.asarray(found), count, float(np.linalg.norm(residual)) / size


def lanczos(
    product: Product, vector: Array, function: Callable[[Array], Array], tolerance: float, iterations: int
) -> tuple[Array, int, float]:
    """function(A) v in the Krylov space of v, the number of products, and the last relative change.

    All directions are kept and made orthogonal anew, so that no eigenvalue comes twice. It ends when two changes
    in a row are below the tolerance, or when the space is exhausted.
    """
    size = float(np.linalg.norm(vector))
    if size == 0:
        return np.zeros_like(vector), 0, 0.0
    most = min(iterations, len(vector))
    require_memory(8.0 * most * len(vector), f"{most} Lanczos vectors", "pass fewer iterations=")
    basis = np.zeros((most, len(vector)))
    basis[0] = vector / size
    tridiagonal = np.zeros((most, most))
    found, change = np.zeros(0), np.inf
    with Progress("Lanczos", total=most) as bar:
        for step in range(most):
            new = product(basis[step])
            length = float(np.linalg.norm(new))
            tridiagonal[step, step] = basis[step] @ new
            for _ in range(2):  # once leaves rounding along the kept directions
                new = new - basis[: step + 1].T @ (basis[: step + 1] @ new)
            values, modes = np.linalg.eigh(tridiagonal[: step + 1, : step + 1])
            before, found = np.append(found, 0.0), modes @ (function(values) * modes[0]) * size
            last, change = change, float(np.linalg.norm(found - before) / (np.linalg.norm(found) or 1.0))
            bar.advance()
            across = float(np.linalg.norm(new))
            if across <= _INVARIANT * length or step + 1 == len(vector):
                change = 0.0
                break
            if max(last, change) < tolerance or step + 1 == most:
                break
            tridiagonal[step, step + 1] = tridiagonal[step + 1, step] = across
            basis[step + 1] = new / across
    return found @ basis[: len(found)], len(found), change
