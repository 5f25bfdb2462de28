"""Functions of a symmetric positive matrix that is known by its products, for one vector or many columns.

Columns share products: a matrix that is expensive to reach is reached as often as for the slowest of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from foretrain.operators.estimators.krylov import BlockKrylov
from foretrain.support.progress import Progress
from foretrain.support.seeds import Seed, generator

Array: TypeAlias = NDArray[np.float64]
Product: TypeAlias = Callable[[Array], Array]


def conjugate_gradients(
    product: Product, columns: Array, tolerance: float, iterations: int, precondition: Product | None = None
) -> tuple[Array, int, float]:
    """A^-1 B, the number of products, and the largest true relative residual |b - A x| / |b|.

    Each column has its own steps; it ends when all residuals are below the tolerance. ``precondition``
    multiplies by an approximate inverse.
    """
    found = np.zeros_like(columns)
    sizes = np.linalg.norm(columns, axis=0)
    if not np.any(sizes):
        return found, 0, 0.0
    solve = precondition or np.array
    rest, count = columns.copy(), 0
    better = solve(rest)
    direction, overlap = better, np.sum(rest * better, axis=0)
    with Progress("conjugate gradients", total=iterations) as bar:
        while count < iterations and np.any(np.linalg.norm(rest, axis=0) > tolerance * sizes):
            applied = product(direction)
            count += 1
            bar.advance()
            step = _quotient(overlap, np.sum(direction * applied, axis=0))
            found = found + step * direction
            rest = rest - step * applied
            better = solve(rest)
            before, overlap = overlap, np.sum(rest * better, axis=0)
            direction = better + _quotient(overlap, before) * direction
    residuals = np.linalg.norm(columns - product(found), axis=0)
    return found, count + 1, float(np.max(_quotient(residuals, sizes)))


def lanczos(
    product: Product, columns: Array, function: Callable[[Array], Array], tolerance: float, iterations: int
) -> tuple[Array, int, float]:
    """x = function(A) B in the Krylov space of B, the number of products, and the error, 0 if the space is exhausted.

    All directions are kept and made orthogonal anew, so that no eigenvalue comes twice. The error is the larger of
    the last relative change of x and of what A x has outside the space, relative to B: the residual of the equation
    x' = B - A x that (1 - exp(-A t)) / A and 1 / A solve. A change can be small long before x is right, where small
    eigenvalues have yet to be found; the residual is not. It ends when two errors in a row are below the tolerance.
    """
    if not np.any(columns):
        return np.zeros_like(columns), 0, 0.0
    start = columns.reshape(len(columns), -1)
    sizes = np.linalg.norm(start, axis=0)
    krylov = krylov_of(product, columns, iterations * start.shape[1])
    found, error = np.zeros((0, start.shape[1])), np.inf
    with Progress("Lanczos", total=iterations) as bar:
        while krylov.products < iterations and not krylov.exhausted and krylov.has_room:
            krylov.extend()
            bar.advance()
            values, vectors, _ = (part.numpy() for part in krylov.ritz())
            before = np.vstack([found, np.zeros((krylov.count - len(found), start.shape[1]))])
            first = krylov.first.numpy()
            found = vectors @ (function(values)[:, None] * (vectors[: len(first)].T @ first))
            outside = krylov.outside(torch.from_numpy(found)).numpy()
            moved, lengths = np.linalg.norm(found - before, axis=0), np.linalg.norm(found, axis=0)
            change = max(float(np.max(_relative(moved, lengths))), float(np.max(_relative(outside, sizes))))
            last, error = error, change
            if max(last, error) < tolerance:
                break
    result = (krylov.basis.numpy().T @ found).reshape(columns.shape)
    return result, krylov.products, 0.0 if krylov.exhausted else error


def krylov_of(product: Product, columns: Array, most: int) -> BlockKrylov:
    """The Krylov space of one column (size,) or several, with products of the same form."""

    def on_rows(rows: torch.Tensor) -> torch.Tensor:
        given = np.ascontiguousarray(rows.numpy().T)
        found = product(given[:, 0])[:, None] if columns.ndim == 1 else product(given)
        return torch.from_numpy(np.ascontiguousarray(found.T))

    start = np.ascontiguousarray(columns.reshape(len(columns), -1).T)
    return BlockKrylov(on_rows, torch.from_numpy(start), most)


def nystrom_preconditioner(
    product: Product, size: int, rank: int, ridge: float, precision: float, seed: Seed
) -> Product:
    """An approximate inverse of A + ridge, up to a factor, from one product with ``rank`` columns.

    The randomised Nyström approximation of Frangella, Tropp & Udell (2023): with it, conjugate gradients see
    only what is below the largest ``rank`` eigenvalues. ``precision``: relative rounding of the entries of A.
    """
    probes = np.linalg.qr(generator(seed).normal(size=(size, rank)))[0]
    applied = product(probes)
    rounding = precision * size**0.5 * float(np.linalg.norm(applied))
    gram = probes.T @ applied
    weights, turns = np.linalg.eigh((gram + gram.T) / 2)
    kept = weights > rounding
    modes, lengths, _ = np.linalg.svd(
        applied @ (turns[:, kept] / np.sqrt(weights[kept])), full_matrices=False
    )
    values = lengths**2 + ridge
    smallest = max(float(values.min(initial=np.inf)), rounding)
    damped = (smallest / np.maximum(values, smallest) - 1.0)[:, None]

    def precondition(columns: Array) -> Array:
        return np.asarray(columns + modes @ (damped * (modes.T @ columns)))

    return precondition


def _quotient(above: Array, below: Array) -> Array:
    """Zero where a column is finished, or where rounding made the matrix look negative."""
    positive = below > 0
    return np.where(positive, above / np.where(positive, below, 1.0), 0.0)


def _relative(lengths: Array, sizes: Array) -> Array:
    """Lengths of columns relative to sizes that may be zero."""
    return np.asarray(lengths / np.where(sizes > 0, sizes, 1.0))
