"""Operators with a known matrix behind them, and what every operator must fulfil against its own."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from foretrain.operators import Operator, VectorSpace

DOUBLE = torch.float64


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = DOUBLE) -> Tensor:
    return torch.as_tensor(np.random.default_rng(seed).normal(size=shape)).to(dtype)


def positive_matrix(size: int, rank: int | None = None, seed: int = 0) -> Tensor:
    factor = normal(size, rank or size, seed=seed)
    return factor @ factor.T


class ByMatrix(Operator):
    """An operator with a matrix behind it that takes three vectors at a time, so that blocks are cut."""

    def __init__(
        self,
        matrix: Tensor,
        domain: VectorSpace,
        codomain: VectorSpace | None = None,
        symmetric: bool = False,
        positive: bool = False,
    ) -> None:
        super().__init__(
            domain, codomain, dtype=matrix.dtype, symmetric=symmetric, positive=positive, best_block=3
        )
        self.matrix = matrix
        self.largest_block = 0

    def _apply(self, flat: Tensor) -> Tensor:
        self.largest_block = max(self.largest_block, flat.shape[0])
        return flat @ self.matrix.T

    def _apply_adjoint(self, flat: Tensor) -> Tensor:
        return flat @ self.matrix


def random_operator(domain: VectorSpace, codomain: VectorSpace | None = None, seed: int = 0) -> ByMatrix:
    target = domain if codomain is None else codomain
    return ByMatrix(normal(target.size, domain.size, seed=seed), domain, target)


def positive_operator(space: VectorSpace, seed: int = 0, rank: int | None = None) -> ByMatrix:
    return ByMatrix(positive_matrix(space.size, rank, seed), space, positive=True)


def symmetric_operator(space: VectorSpace, seed: int = 0) -> ByMatrix:
    matrix = normal(space.size, space.size, seed=seed)
    return ByMatrix(matrix + matrix.T, space, symmetric=True)


def assert_close(found: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(
        found, expected, rtol=tolerance, atol=tolerance * (1 + float(expected.abs().max()))
    )


def assert_is_matrix(operator: Operator, matrix: Tensor) -> None:
    """Products, adjoint products and dense forms equal the matrix's; the operator passes its own check."""
    assert operator.shape == tuple(matrix.shape)
    assert_close(operator.dense(), matrix)
    assert_close(operator.T.dense(), matrix.T)
    block, back = normal(5, matrix.shape[1], seed=91), normal(5, matrix.shape[0], seed=92)
    assert_close(operator.apply(block), block @ matrix.T)
    assert_close(operator.apply_adjoint(back), back @ matrix)
    operator.check()
    symmetric = operator.domain == operator.codomain and torch.allclose(matrix, matrix.T)
    assert symmetric or not operator.symmetric
    assert operator.symmetric or not operator.positive
    if operator.positive:
        assert torch.linalg.eigvalsh(matrix)[0] >= -1e-9 * matrix.abs().max()
