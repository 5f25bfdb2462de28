"""A map between two spaces that is known by its products with blocks of vectors, and its dense forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import torch
from torch import Tensor

from foretrain.operators.spaces import Space, SumSpace, Vector, VectorSpace
from foretrain.operators.vectors import adopt, basis_rows
from foretrain.support.answers import Result
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.memory import require_memory
from foretrain.support.progress import track
from foretrain.support.threads import on_free_cores

if TYPE_CHECKING:
    import scipy.sparse.linalg
    import xarray


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
    scipy_dtype: Any = None  # of the scipy view, if not the map's own

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

    def dense(self) -> Tensor:
        """The matrix (codomain size, domain size), row-major in axis order, as the products give it.

        They are taken with the basis of the smaller side, in blocks. Symmetric operators are not symmetrised: in
        float32 the rounding of the products stays visible.
        """
        rows, columns = self.matrix_shape
        by_rows = rows < columns and self.has_adjoint
        count = rows if by_rows else columns
        block = min(self.best_block, count) * (rows + columns)
        available = torch.cuda.mem_get_info(self.device)[0] if self.device.type == "cuda" else None
        require_memory(
            (rows * columns + block) * torch.finfo(self.dtype).bits // 8,
            f"the dense form of {rows} × {columns} numbers",
            "use products, partial traces or top_modes, or restrict the operator first",
            available=available,
        )
        matrix = torch.empty(rows, columns, dtype=self.dtype, device=self.device)
        starts = range(0, count, self.best_block)
        for start in track(starts, "products for the dense form"):
            stop = min(start + self.best_block, count)
            basis = basis_rows(start, stop, count, dtype=self.dtype, device=self.device)
            if by_rows:
                matrix[start:stop] = self.apply_adjoint(basis)
            else:
                matrix[:, start:stop] = self.apply(basis).T
        return matrix

    def to_xarray(self) -> xarray.DataArray:
        """The dense form with labels: dims of the codomain, then of the domain (``unit``, ``unit_2``).

        A direct sum is one dim ``entry`` with the coordinate ``member``.
        """
        import xarray

        dims: list[str] = []
        coordinates: dict[str, Any] = {}
        shape: list[int] = []
        for space in (self.codomain, self.domain):
            axes = space.axes if isinstance(space, Space) else [("entry", space.size)]
            names = [name for name, _ in axes]
            fresh = [_fresh_name(name, [*dims, *names[:i]]) for i, name in enumerate(names)]
            if isinstance(space, SumSpace):
                members = np.repeat(space.names, [member.size for member in space.members.values()])
                coordinates[_fresh_name("member", [*coordinates])] = (fresh[0], members)
            dims += fresh
            shape += [size for _, size in axes]
        values = self.dense().cpu().numpy().reshape(shape)
        return xarray.DataArray(values, dims=dims, coords=coordinates)

    def linear_operator(self) -> scipy.sparse.linalg.LinearOperator:
        """A scipy view on flat numpy vectors; scipy's blocks have their vectors as columns."""
        from scipy.sparse.linalg import LinearOperator

        own = np.float32 if self.dtype == torch.float32 else np.float64
        kind = np.dtype(self.scipy_dtype or own)

        def on_columns(product: Any) -> Any:
            def columns(block: Any) -> Any:
                flat = torch.as_tensor(np.ascontiguousarray(np.atleast_2d(block.T)))
                result = product(flat.to(dtype=self.dtype, device=self.device))
                return result.to(torch.float64).cpu().numpy().astype(kind).T.reshape(-1, *block.shape[1:])

            return columns

        forward, backward = on_columns(self.apply), on_columns(self.apply_adjoint)
        return LinearOperator(
            shape=self.matrix_shape,
            matvec=forward,
            rmatvec=backward,
            matmat=forward,
            rmatmat=backward,
            dtype=kind,
        )


def _fresh_name(name: str, taken: list[str]) -> str:
    candidate, number = name, 1
    while candidate in taken:
        number += 1
        candidate = f"{name}_{number}"
    return candidate
