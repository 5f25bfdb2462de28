"""Block Lanczos for symmetric matrices whose products are expensive to start and cheap per column.

A stored kernel is read once for a whole block of columns, so blocks find in a few products what single
vectors find in hundreds (Golub & Underwood 1977; restarts as of Wu & Simon 2000).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from foretrain.support.memory import available_bytes, require_memory
from foretrain.support.progress import Progress
from foretrain.support.seeds import Seed, generator

Array: TypeAlias = NDArray[np.float64]
Product: TypeAlias = Callable[[Array], Array]  # columns (size, many) to columns

BLOCK = 16
_INVARIANT = 1e-13  # a new direction this short, relative to the products, is rounding
_ROUNDING = 10.0  # times the precision, relative to the largest product: what is left of nothing
_SHARE = 0.3  # of the available memory, for the basis
_MOST_BLOCKS = 24  # in a basis before it is restarted
_COPIES = 4  # of a block, held while it is made orthogonal


class BlockKrylov:
    """An orthonormal basis of the space of B, A B, A^2 B, ..., and A in it; all directions are kept orthogonal.

    ``count`` columns of the basis have been multiplied: A Q = Q H + (block) (coupling), with ``block`` the
    directions that come next. ``first`` = Q^T B.
    """

    def __init__(self, product: Product, start: Array, most: int) -> None:
        self._product = product
        self._size, width = start.shape
        self._most = min(most, self._size)
        require_memory(
            8.0 * self._size * (self._most + _COPIES * width),
            f"{self._most} Lanczos vectors of {self._size} entries",
            "ask for fewer modes, probes= or iterations=",
        )
        self._basis = np.empty((self._size, self._most), order="F")
        self._matrix = np.zeros((self._most, self._most))
        self._scale = 0.0
        self.count = 0
        self.products = 0
        self.block, self.first = _orthonormal(start, _INVARIANT * float(np.linalg.norm(start, axis=0).max()))
        self.coupling = np.zeros((self.block.shape[1], 0))

    @property
    def basis(self) -> Array:
        """Directions that have been multiplied, as columns."""
        return self._basis[:, : self.count]

    @property
    def exhausted(self) -> bool:
        """Whether A leads nowhere else."""
        return bool(self.block.shape[1] == 0)

    @property
    def full(self) -> bool:
        """Whether there is no room for the next block."""
        return bool(self.count + self.block.shape[1] > self._most)

    def extend(self) -> None:
        """Multiply the next block: one product."""
        last = slice(self.count, self.count + self.block.shape[1])
        self._basis[:, last] = self.block
        applied = self._product(self.block)
        self.products += 1
        self.count = last.stop
        self._scale = max(self._scale, float(np.linalg.norm(applied, axis=0).max()))
        inside = self.basis.T @ applied
        rest = applied - self.basis @ inside
        again = self.basis.T @ rest  # once leaves rounding along the kept directions
        rest -= self.basis @ again
        inside += again
        self._matrix[: self.count, last] = inside
        self._matrix[last, : self.count] = inside.T
        self._matrix[last, last] = (inside[last] + inside[last].T) / 2
        self.block, _ = _orthonormal(rest, _INVARIANT * self._scale)
        self.block = self.block[:, : self._size - self.count]
        self.coupling = np.zeros((self.block.shape[1], self.count))
        if not self.exhausted:
            self._make_orthogonal_again()
            self.coupling[:, last] = self.block.T @ rest

    def renew(self, seed: np.random.Generator, width: int) -> None:
        """Go on with random directions where the space is exhausted but not everything."""
        width = min(width, self._size - self.count)
        drawn = seed.normal(size=(self._size, width))
        self.block, _ = _orthonormal(drawn - self.basis @ (self.basis.T @ drawn), _INVARIANT)
        self.coupling = np.zeros((self.block.shape[1], self.count))
        if not self.exhausted:
            self._make_orthogonal_again()

    def eigenpairs(self) -> tuple[Array, Array, Array]:
        """Ritz values from the largest down, their vectors in the basis, and the residuals |A u - value u|.

        Residuals are not below the rounding of products, which they do not see.
        """
        values, vectors = np.linalg.eigh(self._matrix[: self.count, : self.count])
        values, vectors = values[::-1], vectors[:, ::-1]
        residuals = np.linalg.norm(self.coupling @ vectors, axis=0)
        return values, vectors, np.maximum(residuals, np.finfo(np.float64).eps * self._scale)

    def outside(self, coordinates: Array) -> Array:
        """Lengths of what A leads to outside of the space, from vectors in it; zero where it is rounding."""
        lengths = np.linalg.norm(self.coupling @ coordinates, axis=0)
        rounding = _ROUNDING * np.finfo(np.float64).eps * self._scale
        return np.where(lengths > rounding * np.linalg.norm(coordinates, axis=0), lengths, 0.0)

    def restart(self, keep: int) -> None:
        """Keep the leading Ritz vectors, and what leads on from them."""
        values, vectors, _ = self.eigenpairs()
        kept = vectors[:, :keep]
        self._basis[:, :keep] = self.basis @ kept
        self._matrix[:] = 0.0
        self._matrix[:keep, :keep] = np.diag(values[:keep])
        self.coupling = self.coupling @ kept
        self.count = keep

    def _make_orthogonal_again(self) -> None:
        """A short rest has large parts along the basis once its length is 1."""
        corrected = self.block - self.basis @ (self.basis.T @ self.block)
        self.block = np.linalg.qr(corrected)[0]


def _orthonormal(columns: Array, smallest: float) -> tuple[Array, Array]:
    """Q with Q (Q^T columns) = columns and Q^T columns; directions not longer than ``smallest`` are left out."""
    left, lengths, _ = np.linalg.svd(columns, full_matrices=False)
    kept = np.ascontiguousarray(left[:, lengths > smallest])
    return kept, kept.T @ columns


@dataclass(frozen=True)
class Leading:
    """Largest eigenvalues, modes as columns, residuals |A u - value u|, and the number of products."""

    values: Array
    modes: Array
    residuals: Array
    products: int
    converged: bool


def leading_pairs(
    product: Product,
    size: int,
    count: int,
    good: Callable[[Array, Array], bool],
    seed: Seed,
    products: int,
    width: int = BLOCK,
) -> Leading:
    """The largest eigenvalues until ``good(values, residuals)`` says so, or so many products are made."""
    random = generator(seed)
    block = min(size, max(width, count))  # fewer columns would not see all copies of an eigenvalue
    room = int(_SHARE * available_bytes() / (8.0 * size)) - _COPIES * block
    keep = count + block
    most = min(size, max(min(room, max(_MOST_BLOCKS * BLOCK, 4 * keep)), keep + 2 * block))
    krylov = BlockKrylov(product, random.normal(size=(size, block)), most)
    converged = False
    with Progress("eigenmodes") as bar:  # how many products they take is not known before
        while not converged and krylov.products < products:
            if krylov.full and krylov.count > keep:
                krylov.restart(keep)
            krylov.extend()
            bar.advance()
            values, vectors, residuals = krylov.eigenpairs()
            everything = krylov.count == size
            converged = everything or (
                krylov.count >= count
                and not (krylov.exhausted and krylov.count < keep)
                and good(values[:count], residuals[:count])
            )
            if krylov.exhausted and not converged:
                krylov.renew(random, block)
    count = min(count, krylov.count)
    modes = krylov.basis @ vectors[:, :count]
    return Leading(values[:count], modes, residuals[:count], krylov.products, converged)
