"""Krylov spaces of a symmetric operator: one that keeps its basis, and chains of three vectors that keep none.

``BlockKrylov`` is behind every eigenmode, matrix function and density whose basis fits the memory, of operators on
tensors, kernels on disk and matrices alike (Golub & Underwood 1977; thick restarts as of Wu & Simon 2000).
``lanczos`` follows probes by themselves where no basis does, or none is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foretrain.operators.estimators.probes import Counted, combine, dots, gram, norms, orthonormal_rows
from foretrain.support.memory import require_memory
from foretrain.support.progress import Progress

if TYPE_CHECKING:
    from foretrain.operators.operator import Operator

Array: TypeAlias = NDArray[np.float64]
Product: TypeAlias = Callable[[Tensor], Tensor]  # rows (k, size) to rows
Settled: TypeAlias = Callable[
    [Tensor, Tensor, Tensor], bool
]  # of leading Ritz values, coordinates and residuals

_NEGLIGIBLE = 20.0  # times the rounding, but ...
_LEAST_NEGLIGIBLE = 1e-13  # ... not below this: a direction as short, relative to the products, is noise
_ROUNDING = 10.0  # times the rounding, relative to the largest product: what is left of nothing
_COPIES = 4  # of a block, held while it is made orthogonal


class BlockKrylov:
    """An orthonormal basis Q of the space of B, A B, A² B, ..., and A in it; all rows are kept orthogonal.

    ``count`` rows have been multiplied: A Q = Q H + X C with X the rows of ``block``, which come next, and C the
    ``coupling``, also after a restart. Sums are in double precision whatever the rows are, so that large spaces keep
    their orthogonality in single precision too.
    """

    def __init__(
        self,
        product: Product,
        start: Tensor,
        capacity: int,
        *,
        draw: Callable[[int], Tensor] | None = None,
        keeps_images: bool = False,
    ) -> None:
        """Begin with the rows ``start``, and make room for ``capacity`` rows.

        ``draw(count)`` gives random rows in the place of directions that are lost to rounding: then blocks do not
        grow narrower. With ``keeps_images`` the products are kept, for residuals of the operator rather than of the
        recurrence.
        """
        self._product, self._draw = product, draw
        self._width, self.size = start.shape
        self.capacity = min(capacity, self.size)
        require_memory(
            start.element_size() * self.size * ((1 + keeps_images) * self.capacity + _COPIES * self._width),
            f"{self.capacity} Lanczos vectors of {self.size} entries",
            "ask for fewer modes, products=, probes= or iterations=",
        )
        self._basis = start.new_empty(self.capacity, self.size)
        self._images = torch.empty_like(self._basis) if keeps_images else None
        self._projected = torch.zeros(self.capacity, self.capacity, dtype=torch.float64)
        self._epsilon = float(torch.finfo(start.dtype).eps)
        self._negligible = max(_NEGLIGIBLE * self._epsilon, _LEAST_NEGLIGIBLE)
        self._scale = 0.0  # the largest product with a unit vector so far
        self.count = 0
        self.products = 0  # with blocks
        begin = _range(start, self._negligible * float(norms(start).max()))
        self.block = orthonormal_rows(begin, self.basis, rounds=1)
        self.first = gram(self.block, start).cpu()  # B = first^T (first rows of the basis)
        self.coupling = torch.zeros(len(self.block), 0, dtype=torch.float64)

    @property
    def basis(self) -> Tensor:
        """Directions that have been multiplied, (count, size)."""
        return self._basis[: self.count]

    @property
    def images(self) -> Tensor:
        """A times the basis, where images are kept."""
        assert self._images is not None
        return self._images[: self.count]

    @property
    def exhausted(self) -> bool:
        """Whether A leads nowhere else."""
        return len(self.block) == 0

    @property
    def complete(self) -> bool:
        """Whether the basis spans everything."""
        return self.count == self.size

    @property
    def has_room(self) -> bool:
        """Whether the next block fits."""
        return self.count + len(self.block) <= self.capacity

    def extend(self) -> None:
        """Multiply the next block, which is one product, and find the one after it."""
        images = self._product(self.block)
        self.products += 1
        last = slice(self.count, self.count + len(self.block))
        self._basis[last] = self.block
        if self._images is not None:
            self._images[last] = images
        self.count = last.stop
        overlaps = gram(self.basis, images)
        inside = overlaps.cpu()
        self._projected[: self.count, last] = inside
        self._projected[last, : self.count] = inside.T
        self._projected[last, last] = (inside[last] + inside[last].T) / 2
        self._scale = max(self._scale, float(norms(images).max()))
        rest = torch.addmm(images, overlaps.T.to(images), self.basis, alpha=-1)
        block = _range(rest, self._negligible * self._scale)[: self.size - self.count]
        # Without this second look errors grow from step to step by the ratio of products to remainders.
        self.block = orthonormal_rows(block, self.basis, rounds=1)
        self.coupling = torch.zeros(len(self.block), self.count, dtype=torch.float64)
        self.coupling[:, last] = gram(self.block, rest).cpu()
        if self._draw is not None:
            self.widen(self._width - len(self.block))

    def widen(self, more: int) -> None:
        """Add random directions to the next block: they find copies of an eigenvalue that the first could not."""
        more = min(more, self.size - self.count - len(self.block))
        if more > 0:
            assert self._draw is not None
            fresh = orthonormal_rows(self._draw(more), torch.cat([self.basis, self.block]))
            self.block = torch.cat([self.block, fresh])
            self.coupling = torch.nn.functional.pad(self.coupling, (0, 0, 0, more))
            self._width = max(self._width, len(self.block))

    def ritz(self, *, by_magnitude: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Ritz values from the largest down, their coordinates as columns, and the residuals |A u - value u|.

        These are as the recurrence sees them, but not below the rounding of products, which it does not see.
        """
        values, coordinates = torch.linalg.eigh(self._projected[: self.count, : self.count])
        order = (values.abs() if by_magnitude else values).argsort(descending=True)
        values, coordinates = values[order], coordinates[:, order]
        residuals = (self.coupling @ coordinates).norm(dim=0)
        return values, coordinates, residuals.clamp_min(self._epsilon * self._scale)

    def vectors(self, coordinates: Tensor) -> Tensor:
        """Vectors (k, size) with these coordinates as columns."""
        return combine(coordinates.T, self.basis)

    def modes(self, values: Tensor, coordinates: Tensor) -> tuple[Tensor, Tensor]:
        """Ritz vectors u (k, size), and |A u - value u| by the products that were kept."""
        vectors, images = self.vectors(coordinates), combine(coordinates.T, self.images)
        return vectors, norms(images - values.to(images)[:, None] * vectors).cpu()

    def outside(self, coordinates: Tensor) -> Tensor:
        """Lengths of what A leads to outside of the space, from vectors in it; zero where it is rounding."""
        lengths: Tensor = (self.coupling @ coordinates).norm(dim=0)
        rounding = _ROUNDING * self._epsilon * self._scale
        return torch.where(lengths > rounding * coordinates.norm(dim=0), lengths, 0.0)

    def restart(self, coordinates: Tensor) -> None:
        """Shrink to the span of some Ritz vectors; the next block stays, so that nothing is forgotten of them."""
        kept = coordinates.shape[1]
        projected = coordinates.T @ self._projected[: self.count, : self.count] @ coordinates
        self._basis[:kept] = self.vectors(coordinates)
        if self._images is not None:
            self._images[:kept] = combine(coordinates.T, self.images)
        self._projected.zero_()
        self._projected[:kept, :kept] = projected
        self.coupling = self.coupling @ coordinates
        self.count = kept


def lead(
    krylov: BlockKrylov,
    k: int,
    settled: Settled,
    keep: Callable[[], int],
    affordable: Callable[[], bool],
    *,
    by_magnitude: bool = False,
) -> tuple[Tensor, Tensor, Tensor, bool]:
    """Extend a space until its k leading pairs have settled: values, coordinates, residuals and whether they have.

    The space must be able to draw random directions. ``settled`` is asked as soon as there are k pairs; it may widen
    the space to be surer. A space without room restarts with ``keep()`` Ritz vectors; it ends all the same where the
    next block is not ``affordable``.
    """
    with Progress("Krylov products") as bar:  # how many they take is not known before
        while True:
            bar.advance(len(krylov.block))
            krylov.extend()
            found = tuple(part[..., :k] for part in krylov.ritz(by_magnitude=by_magnitude))
            values, coordinates, residuals = found
            done = krylov.complete or (krylov.count >= k and settled(values, coordinates, residuals))
            if done or (krylov.count >= k and not affordable()):
                return values, coordinates, residuals, done
            if not krylov.has_room:
                krylov.restart(krylov.ritz(by_magnitude=by_magnitude)[1][:, : keep()])


def _range(rows: Tensor, smallest: float) -> Tensor:
    """Rows that span what the rows span, orthonormal to the rounding of long sums in their own precision.

    Directions not longer than ``smallest`` are left out.
    """
    columns, upper = torch.linalg.qr(rows.T)
    turns, lengths, _ = torch.linalg.svd(upper)
    if bool((lengths <= smallest).any()):
        columns = columns @ turns[:, lengths > smallest]
    found: Tensor = columns.T.contiguous()
    return found


@dataclass(frozen=True)
class Tridiagonal:
    """Lanczos coefficients of some probes, (probes, depth) each on the CPU; the last coupling leads outside."""

    diagonal: Tensor
    coupling: Tensor

    def eigen(self, depth: int) -> tuple[Tensor, Tensor]:
        """Ritz values (probes, depth) from the smallest up, and their coordinates as columns."""
        coupling = self.coupling[:, : depth - 1]
        matrix = torch.diag_embed(self.diagonal[:, :depth])
        matrix = matrix + torch.diag_embed(coupling, 1) + torch.diag_embed(coupling, -1)
        values, vectors = torch.linalg.eigh(matrix)
        return values, vectors

    def quadrature(self, depth: int) -> tuple[Array, Array]:
        """Nodes and weights of the first ``depth`` steps, (probes, depth); weights of one probe sum to 1.

        With them w f(A) w = |w|² sum(weights f(nodes)), exactly for polynomials up to degree 2 depth - 1 (Golub &
        Meurant 1994; Ubaru, Chen & Saad 2017).
        """
        nodes, vectors = self.eigen(depth)
        return nodes.numpy(), vectors[:, 0].square().numpy()


def lanczos(
    apply: Product, probes: Tensor, depth: int, until: Callable[[Tridiagonal], bool] | None = None
) -> Tridiagonal:
    """Follow every probe for ``depth`` steps of its own, all probes together in one product, or ``until`` it is good.

    Lost orthogonality only splits nodes among close copies of themselves, which leaves sums as they are (Greenbaum
    1989), so that no basis is kept.
    """
    current = probes / norms(probes).to(probes.dtype)[:, None]
    before = torch.zeros_like(current)
    diagonal = torch.zeros(len(probes), depth, dtype=torch.float64, device=probes.device)
    coupling = torch.zeros_like(diagonal)
    rounding = _ROUNDING * float(torch.finfo(probes.dtype).eps)
    for step in range(depth):
        image = apply(current)
        diagonal[:, step] = dots(current, image)
        image = image - diagonal[:, step].to(image)[:, None] * current
        if step:
            image = image - coupling[:, step - 1].to(image)[:, None] * before
        remainder = norms(image)
        scale = torch.maximum(diagonal.abs().amax(1), coupling.amax(1))
        remainder = torch.where(remainder <= rounding * scale, 0.0, remainder)
        coupling[:, step] = remainder
        if until is not None:
            so_far = Tridiagonal(diagonal[:, : step + 1].cpu(), coupling[:, : step + 1].cpu())
            if until(so_far):
                return so_far
        inverse = torch.where(remainder > 0, 1 / remainder, 0.0)  # an ended chain goes on with zeros, unseen
        before, current = current, image * inverse.to(image)[:, None]
    return Tridiagonal(diagonal.cpu(), coupling.cpu())


def largest_eigenvalue(operator: Operator, start: Tensor, accuracy: float, most: int) -> tuple[float, int]:
    """The largest eigenvalue of a positive operator, to a relative residual, and the products that it took.

    It holds three vectors, where ``top_modes`` keeps a basis. Copies of eigenvalues that lost orthogonality lets in
    do not change the largest, and its residual is that of the Ritz vector all the same (Paige 1980).
    """

    def settled(chain: Tridiagonal) -> bool:
        values, vectors = chain.eigen(chain.diagonal.shape[1])
        residual = float(chain.coupling[0, -1] * vectors[0, -1, -1].abs())
        return residual <= accuracy * abs(float(values[0, -1]))

    counted = Counted(operator)
    chain = lanczos(counted.apply, start[None], most, settled)
    steps = chain.diagonal.shape[1]
    return max(float(chain.eigen(steps)[0][0, -1]), 0.0) * counted.unit, steps
