"""Random probes, counted products and inner products: what all estimators are made of.

Probes are drawn on the CPU, so that all devices see the same ones, as flat blocks (count, size) in the operator's
dtype. Inner products are summed in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from foretrain.support.errors import InputError
from foretrain.support.memory import require_memory
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, torch_generator

if TYPE_CHECKING:
    from foretrain.operators.operator import Operator

# Powers of 2 of the largest product whose squares, also those of A* A, are safe in every dtype.
_MODERATE = 16
_CHUNK = 8192  # entries at a time that are made double: what stays in the cache


class ExactIsCheaperError(Exception):
    """Raised in place of products with which an estimate would have taken as many as the exact answer does."""


class Counted:
    """An operator whose products are counted; a product of the adjoint counts like any other.

    With ``up_to_exact`` it gives no more products than there are dimensions, and raises ExactIsCheaperError instead.
    Products are divided by ``unit``, a power of 2, which is not 1 where their squares might leave the range of the
    dtype; the first product that is not zero decides on it.
    """

    def __init__(self, operator: Operator, *, up_to_exact: bool = False) -> None:
        self.operator = operator
        self.size = operator.domain.size
        self.dtype = operator.dtype
        self.epsilon = float(torch.finfo(operator.dtype).eps)  # relative rounding
        self.block = max(1, int(operator.best_block))  # vectors that the operator takes at once
        self.products = 0
        self.up_to_exact = up_to_exact
        self._exponent: int | None = None

    @property
    def before_exact(self) -> float:
        """How many products there are altogether before the exact answer is cheaper."""
        return self.size - 1 if self.up_to_exact else math.inf

    def apply(self, flat: Tensor) -> Tensor:
        """Products with (k, size)."""
        return self._product(self.operator.apply, flat)

    def apply_adjoint(self, flat: Tensor) -> Tensor:
        """Products of the adjoint with (k, codomain size)."""
        return self._product(self.operator.apply_adjoint, flat)

    @property
    def unit(self) -> float:
        """What products are divided by."""
        return 2.0 ** (self._exponent or 0)

    def _product(self, function: Callable[[Tensor], Tensor], flat: Tensor) -> Tensor:
        """Counted, finite, and in units."""
        if self.products + len(flat) > self.before_exact:
            raise ExactIsCheaperError
        self.products += len(flat)
        images = function(flat).detach()
        smallest, largest = map(float, images.aminmax()) if images.numel() else (0.0, 0.0)
        largest = max(-smallest, largest)
        if not math.isfinite(largest):  # both are nan where one entry is
            raise InputError("the operator's products are nan or infinite: mend what it is made of first.")
        if self._exponent is None and largest:
            exponent = math.frexp(largest)[1]
            self._exponent = exponent if abs(exponent) > _MODERATE else 0
        if not self._exponent:
            return images
        half = self._exponent // 2  # the whole power may be none of the dtype's normal numbers
        return images * 2.0**-half * 2.0 ** (half - self._exponent)

    def unit_products(self, block: int | None = None) -> Iterator[tuple[slice, Tensor]]:
        """Products with all unit vectors, block by block; these are the exact answer, and have no limit."""
        self.up_to_exact = False
        block = self.block if block is None else block
        for start in track(range(0, self.size, block), "products with unit vectors"):
            place = slice(start, min(start + block, self.size))
            unit = torch.zeros(place.stop - start, self.size, dtype=self.dtype, device=self.operator.device)
            unit[:, place].fill_diagonal_(1)
            yield place, self.apply(unit)

    def require_vectors(self, count: float, what: str) -> None:
        """Refuse to keep more vectors than the memory holds."""
        bytes_each = self.size * torch.finfo(self.dtype).bits / 8
        require_memory(
            count * bytes_each,
            f"{what} with {count:.0f} vectors of {self.size} entries",
            "allow fewer products, or restrict the operator to a part of its space",
        )


class Source:
    """A reproducible stream of probes for one operator: the first ones do not depend on how many follow."""

    def __init__(self, operator: Operator, seed: Seed) -> None:
        self._size = operator.domain.size
        self._dtype = operator.dtype
        self._device = operator.device
        self._generator = torch_generator(seed)

    def signs(self, count: int) -> Tensor:
        """Entries ±1 with equal chance (Hutchinson 1989): of all independent entries, those of least variance."""
        drawn = torch.empty(count, self._size, dtype=self._dtype)
        for row in drawn:
            row.random_(0, 2, generator=self._generator)
        return (drawn * 2 - 1).to(self._device)

    def normals(self, count: int) -> Tensor:
        """Independent standard normal entries."""
        drawn = torch.empty(count, self._size, dtype=self._dtype)
        for row in drawn:
            row.normal_(generator=self._generator)
        return drawn.to(self._device)

    def sphere(self, count: int) -> Tensor:
        """Uniform on the sphere of squared radius ``size``: multiples of the identity have no variance."""
        drawn = self.normals(count)
        return drawn.mul_((math.sqrt(self._size) / norms(drawn)).to(drawn.dtype)[:, None])


def gram(first: Tensor, second: Tensor) -> Tensor:
    """All inner products of the rows of two blocks, (k1, k2), in double precision.

    Single precision loses 1e-5 in long sums of terms of one size, such as squares of the entries of a flat mode.
    """
    total = torch.zeros(len(first), len(second), dtype=torch.float64, device=first.device)
    for start in range(0, first.shape[1], _CHUNK):
        part = slice(start, start + _CHUNK)
        total.addmm_(first[:, part].double(), second[:, part].double().T)
    return total


def dots(first: Tensor, second: Tensor) -> Tensor:
    """Inner products of the rows of two blocks in pairs, (k,), in double precision."""
    total = torch.zeros(len(first), dtype=torch.float64, device=first.device)
    for start in range(0, first.shape[1], _CHUNK):
        part = slice(start, start + _CHUNK)
        total += (first[:, part].double() * second[:, part]).sum(1)
    return total


def norms(rows: Tensor) -> Tensor:
    """Lengths of the rows, (k,), in double precision."""
    return dots(rows, rows).sqrt()


def combine(weights: Tensor, rows: Tensor) -> Tensor:
    """Sums of rows with the weights (k, rows), in the rows' own precision."""
    return weights.to(rows) @ rows


def orthonormal_rows(rows: Tensor, basis: Tensor, rounds: int = 2) -> Tensor:
    """Orthonormal rows that span, together with an orthonormal basis, what both span.

    They are decomposed in double precision: in single, rows of a hundred thousand entries come out orthogonal to 1e-5
    only. A second round rids them of what the first left along the basis.
    """
    for _ in range(rounds):
        rows = torch.addmm(rows, gram(rows, basis).to(rows), basis, alpha=-1)
        rows = torch.linalg.qr(rows.double().T)[0].T.to(rows.dtype).contiguous()
    return rows


def in_double(operator: Operator) -> Callable[[Tensor], Tensor]:
    """Products with rows in double precision on the CPU, whatever the operator works in."""

    def product(rows: Tensor) -> Tensor:
        return operator.apply(rows.to(dtype=operator.dtype, device=operator.device)).double().cpu()

    return product


def dense(counted: Counted) -> Tensor:
    """The matrix (codomain, domain) in double precision, from products with unit vectors."""
    rows = counted.operator.codomain.size
    in_double = 64 / torch.finfo(counted.dtype).bits
    counted.require_vectors(3 * rows * in_double, "the dense form")
    matrix = torch.zeros(rows, counted.size, dtype=torch.float64, device=counted.operator.device)
    for place, images in counted.unit_products():
        matrix[:, place] = images.T
    return (matrix + matrix.T) / 2 if counted.operator.symmetric else matrix


def squared(counted: Counted) -> Counted:
    """A* A, whose eigenvectors are the right singular vectors of A; its products count twice on A."""
    from foretrain.operators.basic import from_functions

    operator = counted.operator
    found = from_functions(
        operator.domain,
        None,
        lambda flat: counted.apply_adjoint(counted.apply(flat)),
        dtype=counted.dtype,
        device=operator.device,
        positive=True,
        best_block=counted.block,
    )
    found.flops = 2 * operator.flops
    return Counted(found)
