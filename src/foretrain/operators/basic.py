"""Operators made from data: identity, zero, diagonal, a matrix, a pair of functions, a scipy operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foretrain.operators.operator import Operator
from foretrain.operators.spaces import Space, VectorSpace
from foretrain.operators.vectors import holds_one_vector, tensor_like
from foretrain.support.errors import InputError, NotSupportedError

Flat = Callable[[Tensor], Tensor]

_ROUNDING = 1e3  # roundings by which a product V V^T may miss its transpose
_CHEAP_BLOCK = 64  # rows at which a matrix product already runs at full speed


class Identity(Operator):
    """The identity of a space."""

    def __init__(self, space: VectorSpace, *, dtype: torch.dtype, device: str | torch.device = "cpu") -> None:
        super().__init__(space, dtype=dtype, device=device, positive=True, best_block=_CHEAP_BLOCK)

    def _apply(self, flat: Tensor) -> Tensor:
        return flat.clone()  # the result is the caller's to change


class Zero(Operator):
    """The operator that sends everything to zero."""

    def __init__(
        self,
        domain: VectorSpace,
        codomain: VectorSpace | None = None,
        *,
        dtype: torch.dtype,
        device: str | torch.device = "cpu",
    ) -> None:
        stays = codomain is None or codomain == domain
        super().__init__(
            domain, codomain, dtype=dtype, device=device, positive=stays, best_block=_CHEAP_BLOCK
        )

    def _apply(self, flat: Tensor) -> Tensor:
        return flat.new_zeros(flat.shape[0], self.codomain.size)

    def _apply_adjoint(self, flat: Tensor) -> Tensor:
        return flat.new_zeros(flat.shape[0], self.domain.size)


class Diagonal(Operator):
    """Multiplication of every entry by its own number; positive if no number is negative."""

    def __init__(self, space: VectorSpace, values: Any) -> None:
        vector = space.flatten(tensor_like(space, values))[0]
        super().__init__(
            space,
            dtype=vector.dtype,
            device=vector.device,
            symmetric=True,
            positive=bool((vector >= 0).all()),
            best_block=_CHEAP_BLOCK,
        )
        self.values = vector

    def _apply(self, flat: Tensor) -> Tensor:
        return flat * self.values


class DenseMatrix(Operator):
    """A matrix (codomain size, domain size) as an operator, symmetric if it equals its transpose.

    A matrix declared symmetric or positive may miss its transpose by rounding; then the mean of both is kept.
    """

    def __init__(
        self,
        matrix: Tensor,
        domain: VectorSpace,
        codomain: VectorSpace | None = None,
        *,
        symmetric: bool = False,
        positive: bool = False,
    ) -> None:
        target = domain if codomain is None else codomain
        if tuple(matrix.shape) != (target.size, domain.size):
            raise InputError(
                f"a matrix from {domain.describe()} to {target.describe()} has shape "
                f"({target.size}, {domain.size}), but this one has shape {tuple(matrix.shape)}."
            )
        matrix = matrix.detach()
        if (symmetric or positive) and target == domain:
            allowed = _ROUNDING * torch.finfo(matrix.dtype).eps * matrix.abs().max()
            if bool((matrix - matrix.T).abs().max() > allowed):
                raise InputError(
                    "a matrix declared symmetric or positive must equal its transpose: symmetrise it with "
                    "(M + M.T) / 2."
                )
            matrix = (matrix + matrix.T) / 2
        super().__init__(
            domain,
            target,
            dtype=matrix.dtype,
            device=matrix.device,
            symmetric=symmetric or (target == domain and torch.equal(matrix, matrix.T)),
            positive=positive,
            best_block=_CHEAP_BLOCK,
        )
        self.matrix = matrix

    def _apply(self, flat: Tensor) -> Tensor:
        return flat @ self.matrix.T

    def _apply_adjoint(self, flat: Tensor) -> Tensor:
        return flat @ self.matrix


class FunctionOperator(Operator):
    """The operator behind a function on flat blocks and, where it is known, the adjoint's function."""

    def __init__(
        self,
        domain: VectorSpace,
        codomain: VectorSpace | None,
        apply: Flat,
        adjoint: Flat | None,
        **declarations: Any,
    ) -> None:
        super().__init__(domain, codomain, **declarations)
        self._function = apply
        self._adjoint_function = adjoint

    @property
    def has_adjoint(self) -> bool:
        """Whether the adjoint's function was given, or is the same."""
        return self.symmetric or self._adjoint_function is not None

    def _apply(self, flat: Tensor) -> Tensor:
        return self._function(flat)

    def _apply_adjoint(self, flat: Tensor) -> Tensor:
        if self._adjoint_function is None:
            return super()._apply_adjoint(flat)
        return self._adjoint_function(flat)


def identity(
    space: VectorSpace, *, dtype: torch.dtype = torch.float64, device: str | torch.device = "cpu"
) -> Operator:
    """The identity of a space."""
    return Identity(space, dtype=dtype, device=device)


def zero(
    domain: VectorSpace,
    codomain: VectorSpace | None = None,
    *,
    dtype: torch.dtype = torch.float64,
    device: str | torch.device = "cpu",
) -> Operator:
    """The zero operator."""
    return Zero(domain, codomain, dtype=dtype, device=device)


def diagonal(space: VectorSpace, values: Any) -> Operator:
    """The operator that multiplies entry by entry with a vector of the space."""
    return Diagonal(space, values)


def dense_operator(
    matrix: Any,
    domain: VectorSpace,
    codomain: VectorSpace | None = None,
    *,
    symmetric: bool = False,
    positive: bool = False,
) -> Operator:
    """A torch or numpy matrix as an operator; flat forms are row-major in axis order.

    ``symmetric`` is found by itself where the matrix equals its transpose, and allows for rounding where declared.

    >>> import torch
    >>> from foretrain.operators import Space, dense_operator
    >>> A = dense_operator([[2.0, 1.0], [1.0, 2.0]], Space.of(unit=2), positive=True)
    >>> A @ torch.tensor([1.0, 0.0], dtype=torch.float64)
    tensor([2., 1.], dtype=torch.float64)
    """
    tensor = matrix if isinstance(matrix, Tensor) else torch.as_tensor(np.array(matrix))
    if tensor.is_complex():
        raise NotSupportedError(
            "complex operators are not offered: write them as real ones of twice the size."
        )
    if tensor.dtype not in (torch.float32, torch.float64):
        tensor = tensor.to(torch.float64)
    return DenseMatrix(tensor, domain, codomain, symmetric=symmetric, positive=positive)


def span(space: VectorSpace, vectors: Any, *, name: str = "mode") -> Operator:
    """The operator with the given vectors (a block, or one) as columns, from a new axis into their space.

    ``op.compress(span(space, vectors))`` holds <v_i, A v_j>.
    """
    given = tensor_like(space, vectors)
    one = holds_one_vector(space, given)
    flat = space.flatten(given) if one else space.flatten_block(given)
    return DenseMatrix(flat.T.contiguous(), Space((name, flat.shape[0])), space)


def from_functions(
    domain: VectorSpace,
    codomain: VectorSpace | None,
    apply: Flat,
    adjoint: Flat | None = None,
    *,
    dtype: torch.dtype = torch.float64,
    device: str | torch.device = "cpu",
    symmetric: bool = False,
    positive: bool = False,
    best_block: int = 16,
) -> Operator:
    """The operator behind functions on flat blocks, (k, domain size) to (k, codomain size) and back.

    Without ``adjoint`` and not declared symmetric it has no adjoint. ``check`` finds functions that do not fit.
    """
    return FunctionOperator(
        domain,
        codomain,
        apply,
        adjoint,
        dtype=dtype,
        device=device,
        symmetric=symmetric,
        positive=positive,
        best_block=best_block,
    )


def from_scipy(
    view: Any,
    domain: VectorSpace,
    codomain: VectorSpace | None = None,
    *,
    symmetric: bool = False,
    positive: bool = False,
) -> Operator:
    """A scipy LinearOperator, or anything ``aslinearoperator`` takes, between named spaces on the CPU."""
    from scipy.sparse.linalg import aslinearoperator

    source = aslinearoperator(view)
    target = domain if codomain is None else codomain
    if tuple(source.shape) != (target.size, domain.size):
        raise InputError(
            f"the scipy operator has shape {tuple(source.shape)}, but from {domain.describe()} to "
            f"{target.describe()} it must have shape ({target.size}, {domain.size})."
        )
    kind = np.dtype(source.dtype) if source.dtype is not None else np.dtype(np.float64)
    if kind.kind == "c":
        raise NotSupportedError(
            "complex operators are not offered: write them as real ones of twice the size."
        )
    dtype = torch.float32 if kind == np.float32 else torch.float64

    def by(product: Callable[[Any], Any]) -> Flat:
        return lambda flat: torch.as_tensor(np.ascontiguousarray(product(flat.numpy().T).T)).to(dtype)

    return from_functions(
        domain,
        target,
        by(source.matmat),
        by(source.rmatmat),
        dtype=dtype,
        symmetric=symmetric,
        positive=positive,
        best_block=_CHEAP_BLOCK,
    )
