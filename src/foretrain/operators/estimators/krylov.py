"""A block Krylov space with its Rayleigh-Ritz problem, fully reorthogonalised and restarted thickly.

Rows of ``basis`` are orthonormal, ``images`` are their products, and the next block is what the last products have
outside the basis: A Q = Q H + X B on the last block, also after a restart (Wu & Simon 2000; Stewart 2002). Products
are kept, so that residuals are those of the operator, not of the recurrence.
"""

from __future__ import annotations

import torch
from torch import Tensor

from foretrain.operators.estimators.probes import Counted, Source, combine, gram, norms

_NEGLIGIBLE = 20.0  # times the rounding: a direction shorter than this, relative to its origin, is noise


class BlockKrylov:
    """The space, grown block by block up to ``capacity`` vectors; the operator must be symmetric."""

    def __init__(self, counted: Counted, source: Source, width: int, capacity: int) -> None:
        self._counted = counted
        self._source = source
        self.capacity = min(capacity, counted.size)
        rows = source.normals(min(width, counted.size))
        self._basis = rows.new_empty(self.capacity, counted.size)
        self._images = torch.empty_like(self._basis)
        self.count = 0
        self.scale = 0.0  # the largest product with a unit vector so far
        self.projected = torch.zeros(0, 0, dtype=torch.float64)
        self.next_block = _orthonormalise(rows)[0]
        self.coupling = torch.zeros(len(self.next_block), 0, dtype=torch.float64)

    @property
    def basis(self) -> Tensor:
        """(count, size)."""
        return self._basis[: self.count]

    @property
    def images(self) -> Tensor:
        """A times the basis, (count, size)."""
        return self._images[: self.count]

    @property
    def full(self) -> bool:
        """Whether the basis spans the whole space."""
        return self.count == self._counted.size

    def room(self) -> bool:
        """Whether the next block fits."""
        return self.count + len(self.next_block) <= self.capacity

    def expand(self) -> None:
        """Take the next block in, and find the one after it."""
        block = self.next_block
        images = self._counted.apply(block)
        start, stop = self.count, self.count + len(block)
        self._basis[start:stop], self._images[start:stop] = block, images
        self.count = stop
        overlaps = gram(self.basis, images)
        columns = overlaps.cpu()
        grown = torch.zeros(stop, stop, dtype=torch.float64)
        grown[:start, :start] = self.projected
        grown[:, start:], grown[start:, :start] = columns, columns[:start].T
        grown[start:, start:] = (columns[start:] + columns[start:].T) / 2
        self.projected = grown
        self.next_block, self.coupling = self._outside(images, overlaps)

    def ritz(self) -> tuple[Tensor, Tensor]:
        """Ritz values by falling magnitude, and their vectors' coordinates as columns."""
        values, vectors = torch.linalg.eigh(self.projected)
        order = values.abs().argsort(descending=True)
        return values[order], vectors[:, order]

    def residual_estimates(self, coordinates: Tensor) -> Tensor:
        """Residual norms as the recurrence sees them: only the last block leaves the space."""
        width = self.coupling.shape[1]
        return (self.coupling @ coordinates[self.count - width :]).square().sum(0).sqrt()

    def residuals(self, values: Tensor, coordinates: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors (k, size) and their true residual norms |A v - value v|."""
        vectors = combine(coordinates.T, self.basis)
        images = combine(coordinates.T, self.images)
        return vectors, norms(images - values.to(images)[:, None] * vectors).cpu()

    def restart(self, coordinates: Tensor) -> None:
        """Shrink to the span of some Ritz vectors; the next block stays, so that nothing is forgotten of them."""
        kept = coordinates.shape[1]
        overlap = self.coupling @ coordinates[self.count - self.coupling.shape[1] :]
        vectors, images = combine(coordinates.T, self.basis), combine(coordinates.T, self.images)
        self._basis[:kept], self._images[:kept] = vectors, images
        self.projected = coordinates.T @ self.projected @ coordinates
        self.count, self.coupling = kept, overlap

    def widen(self, width: int) -> None:
        """Add random directions to the next block: they find copies of an eigenvalue that the first could not."""
        width = min(width, self._counted.size - self.count - len(self.next_block))
        if width > 0:
            fresh = self._orthonormal(self._source.normals(width), self.next_block)
            self.next_block = torch.cat([self.next_block, fresh])
            self.coupling = torch.nn.functional.pad(self.coupling, (0, 0, 0, len(fresh)))

    def _outside(self, rows: Tensor, overlaps: Tensor) -> tuple[Tensor, Tensor]:
        """An orthonormal block X outside the basis and B with rows = (part in the basis) + B^T X.

        Directions that are lost to rounding are replaced by random ones, which B does not know.
        """
        self.scale = max(self.scale, float(norms(rows).max()))
        rows, overlaps = (part[: self._counted.size - self.count] for part in (rows, overlaps.T))
        if not len(rows):
            return rows, torch.zeros(0, 0, dtype=torch.float64)
        left = torch.addmm(rows, overlaps.to(rows), self.basis, alpha=-1)
        block, upper = _orthonormalise(left)
        lost = upper.diagonal().abs() <= _NEGLIGIBLE * self._counted.epsilon * self.scale
        if bool(lost.any()):
            kept = self._orthonormal(block[~lost.to(block.device)], block[:0])
            fresh = self._orthonormal(self._source.normals(int(lost.sum())), kept)
            return torch.cat([kept, fresh]), torch.cat([upper[~lost], torch.zeros_like(upper[lost])])
        # Without this second look errors grow from step to step by the ratio of rows to remainders.
        block, correction = _orthonormalise(self._reduce(block))
        return block, correction @ upper

    def _orthonormal(self, rows: Tensor, others: Tensor) -> Tensor:
        """Rows made orthonormal to the basis and to some more."""
        for _ in range(2):
            rows = self._reduce(rows)
            rows = rows - combine(gram(rows, others), others)
            rows = _orthonormalise(rows)[0]
        return rows

    def _reduce(self, rows: Tensor) -> Tensor:
        return torch.addmm(rows, gram(rows, self.basis).to(rows), self.basis, alpha=-1)


def _orthonormalise(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Orthonormal rows X and upper triangular R with rows = R^T X."""
    orthogonal, upper = torch.linalg.qr(rows.T)
    return orthogonal.T.contiguous(), upper.double().cpu()
