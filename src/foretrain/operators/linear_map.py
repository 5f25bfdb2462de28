"""A map between two spaces that is known by its products with blocks of vectors, and the checks around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

import torch
from torch import Tensor

from foretrain.operators.spaces import Space, Vector, VectorSpace
from foretrain.operators.vectors import adopt
from foretrain.support.answers import Result
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.threads import on_free_cores


class Kind(TypedDict):
    """What an operator that is made of others takes over from them."""

    dtype: torch.dtype
    device: torch.device
    best_block: int


def kind_of(*operators: Any) -> Kind:
    """Of the first, as those that work together share it; it takes as many vectors at once as all of them do."""
    block = min(operator.best_block for operator in operators)
    return {"dtype": operators[0].dtype, "device": operators[0].device, "best_block": block}


class LinearMap(Result):
    """Products with vectors, structured or flat, one or many, cut into blocks that the map takes at once.

    What can be asked of it and made from it is in ``Operator``. ``flops`` is roughly what one product takes, as for
    a matrix unless a kind knows better: it decides how far answers are exact.
    """

    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float64)  # that the kind works in
    most_together: int | None = None  # vectors in one product, if not ``best_block``

    def __init__(
        self,
        domain: VectorSpace,
        codomain: VectorSpace | None = None,
        *,
        dtype: torch.dtype,
        device: str | torch.device = "cpu",
        symmetric: bool = False,
        positive: bool = False,
        best_block: int = 16,
    ) -> None:
        self.domain = domain
        self.codomain = domain if codomain is None else codomain
        self.dtype = dtype
        self.device = torch.empty(0, device=device).device  # "cuda" becomes "cuda:0", as tensors say it
        self.positive = positive
        self.symmetric = symmetric or positive
        self.best_block = best_block
        self.flops = 2.0 * self.domain.size * self.codomain.size
        if self.dtype not in self.dtypes:
            raise NotSupportedError(
                f"an operator in {self.dtype} is not offered: use torch.float64 or torch.float32."
            )
        if self.symmetric and self.domain != self.codomain:
            raise InputError(
                f"an operator from {self.domain.describe()} to {self.codomain.describe()} cannot be symmetric: "
                "symmetric operators stay in one space."
            )
        if self.best_block < 1:
            raise InputError(f"best_block is {self.best_block}, but an operator takes at least one vector.")

    @property
    def size(self) -> int:
        """The dimension of the domain."""
        return self.domain.size

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """The shape of the dense form: (codomain size, domain size)."""
        return self.codomain.size, self.domain.size

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the dense form; of kernels with entries that of their array."""
        return self.matrix_shape

    @property
    def precision(self) -> float:
        """The relative rounding of its numbers."""
        return float(torch.finfo(self.dtype).eps)

    def resolves(self, largest: float) -> float:
        """Below this, eigenvalues are rounding beside the largest one."""
        return self.codomain.size * self.precision * largest

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the domain's axes, such as ("batch", "time", "unit"); a direct sum has ("entry",) alone."""
        return self.domain.names if isinstance(self.domain, Space) else ("entry",)

    @property
    def has_adjoint(self) -> bool:
        """Whether products with the adjoint can be taken."""
        return self.symmetric or type(self)._apply_adjoint is not LinearMap._apply_adjoint

    def _apply(self, flat: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} must define _apply(flat).")

    def _apply_adjoint(self, flat: Tensor) -> Tensor:
        raise NotSupportedError(
            f"this {type(self).__name__} was made without an adjoint: give its adjoint function, "
            "or declare it symmetric if it is."
        )

    def apply(self, flat: Tensor) -> Tensor:
        """Products with a flat block: (k, domain size) to (k, codomain size). No gradient flows through them."""
        return self._in_blocks(self._apply, flat, self.domain, self.codomain)

    def apply_adjoint(self, flat: Tensor) -> Tensor:
        """Products of the adjoint with a flat block: (k, codomain size) to (k, domain size)."""
        function = self._apply if self.symmetric else self._apply_adjoint
        return self._in_blocks(function, flat, self.codomain, self.domain)

    def matvec(self, vector: Vector) -> Vector:
        """The product with one vector, structured or flat; the result is structured."""
        return self.codomain.unflatten(self.apply(self._flat_vector(vector, self.domain)))

    def matmat(self, block: Vector) -> Vector:
        """The products with k vectors, (k, *shape) or (k, size), at once; the result is structured."""
        return self.codomain.unflatten_block(self.apply(self._flat_block(block, self.domain)))

    def rmatvec(self, vector: Vector) -> Vector:
        """The product of the adjoint with one vector of the codomain."""
        return self.domain.unflatten(self.apply_adjoint(self._flat_vector(vector, self.codomain)))

    def rmatmat(self, block: Vector) -> Vector:
        """The products of the adjoint with k vectors of the codomain at once."""
        return self.domain.unflatten_block(self.apply_adjoint(self._flat_block(block, self.codomain)))

    def _in_blocks(
        self, function: Callable[[Tensor], Tensor], flat: Tensor, source: VectorSpace, target: VectorSpace
    ) -> Tensor:
        if flat.ndim != 2 or flat.shape[1] != source.size:
            raise InputError(
                f"a flat block of {source.describe()} has shape (k, {source.size}), "
                f"but this one has shape {tuple(flat.shape)}."
            )
        if flat.dtype != self.dtype or flat.device != self.device:
            raise InputError(
                f"the operator works in {self.dtype} on {self.device}, but the vector is {flat.dtype} on "
                f"{flat.device}: convert it with tensor_like(operator, vector)."
            )
        if not flat.shape[0]:
            return flat.new_empty(0, target.size)
        products = []
        for part in torch.split(flat.detach(), self.most_together or self.best_block):
            with on_free_cores():
                product: Any = function(part)
            shape = part.shape[0], target.size
            found = (tuple(product.shape), product.dtype) if isinstance(product, Tensor) else type(product)
            if found != (shape, self.dtype):
                raise InputError(
                    f"the function behind this {type(self).__name__} must return a tensor of shape {shape} and "
                    f"{self.dtype}, but it returned {found}: k flat vectors go in, k flat vectors come out."
                )
            products.append(product.detach())
        return products[0] if len(products) == 1 else torch.cat(products)

    def _flat_vector(self, vector: Vector, space: VectorSpace) -> Tensor:
        return space.flatten(adopt(self, vector, space))

    def _flat_block(self, block: Vector, space: VectorSpace) -> Tensor:
        return space.flatten_block(adopt(self, block, space))
