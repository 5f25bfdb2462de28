"""Block Lanczos and what is built on it, against dense linear algebra."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from foretrain.empirical.kernel_blocks import BlockKrylov, leading_pairs
from foretrain.empirical.kernel_krylov import conjugate_gradients, lanczos, nystrom_preconditioner
from foretrain.support.errors import NotEnoughMemoryError

Array = NDArray[np.float64]


def symmetric(eigenvalues: Array, seed: int = 0) -> tuple[Array, Array]:
    """A matrix and its modes as columns."""
    size = len(eigenvalues)
    modes = np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))[0]
    matrix = (modes * eigenvalues) @ modes.T
    return (matrix + matrix.T) / 2, modes


def columns(size: int, many: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).normal(size=(size, many))


def converged(values: Array, residuals: Array) -> bool:
    return bool((residuals <= 1e-10 * values[0]).all())


def test_the_basis_is_orthonormal_and_its_relation_holds() -> None:
    matrix, _ = symmetric(1 / np.arange(1.0, 81.0))
    krylov = BlockKrylov(matrix.__matmul__, columns(80, 5), 60)
    for _ in range(7):
        krylov.extend()
    basis = krylov.basis
    assert (krylov.count, krylov.products, krylov.exhausted) == (35, 7, False)
    assert basis.T @ basis == pytest.approx(np.eye(35), abs=1e-13)
    assert basis.T @ krylov.block == pytest.approx(np.zeros((35, 5)), abs=1e-13)
    projected = basis.T @ matrix @ basis
    rest = matrix @ basis - basis @ projected
    assert rest == pytest.approx(krylov.block @ krylov.coupling, abs=1e-13)
    values, vectors, residuals = krylov.eigenpairs()
    assert values == pytest.approx(np.linalg.eigvalsh(projected)[::-1], abs=1e-13)
    ritz = basis @ vectors
    assert np.linalg.norm(matrix @ ritz - ritz * values, axis=0) == pytest.approx(residuals, abs=1e-13)
    assert basis[:, :5] @ krylov.first == pytest.approx(columns(80, 5), abs=1e-12)


def test_a_restart_keeps_what_was_found() -> None:
    matrix, _ = symmetric(1 / np.arange(1.0, 81.0))
    krylov = BlockKrylov(matrix.__matmul__, columns(80, 4), 40)
    for _ in range(8):
        krylov.extend()
    before, _, residuals = krylov.eigenpairs()
    krylov.restart(10)
    after, _, kept_residuals = krylov.eigenpairs()
    assert after == pytest.approx(before[:10], rel=1e-12)
    assert kept_residuals == pytest.approx(residuals[:10], rel=1e-6, abs=1e-14)
    krylov.extend()
    basis = krylov.basis
    assert basis.T @ matrix @ basis == pytest.approx(krylov._matrix[:14, :14], abs=1e-13)


def test_an_exhausted_space_and_its_renewal() -> None:
    matrix, modes = symmetric(np.repeat([2.0, 0.0], [3, 17]))
    krylov = BlockKrylov(matrix.__matmul__, modes[:, :2] @ columns(2, 4), 20)
    krylov.extend()
    assert (krylov.count, krylov.exhausted) == (2, True)
    krylov.renew(np.random.default_rng(0), 5)
    assert krylov.block.shape == (20, 5)
    krylov.extend()
    krylov.extend()
    assert krylov.eigenpairs()[0][:3] == pytest.approx([2, 2, 2])


@pytest.mark.parametrize(
    ("size", "rank", "count"), [(300, 300, 10), (300, 5, 10), (40, 40, 40), (3, 3, 1), (200, 1, 2)]
)
def test_leading_pairs(size: int, rank: int, count: int) -> None:
    eigenvalues = np.where(np.arange(size) < rank, 1 / np.arange(1.0, size + 1) ** 1.5, 0.0)
    matrix, _ = symmetric(eigenvalues)
    found = leading_pairs(matrix.__matmul__, size, count, converged, 0, 100)
    assert found.converged
    assert found.products < 12
    assert found.values == pytest.approx(eigenvalues[:count], abs=1e-14)
    assert np.linalg.norm(matrix @ found.modes - found.modes * found.values, axis=0).max() < 1e-10


def test_leading_pairs_say_when_they_did_not_arrive() -> None:
    matrix, _ = symmetric(np.linspace(1.0, 2.0, 500))
    found = leading_pairs(matrix.__matmul__, 500, 5, converged, 0, 3)
    assert (found.converged, found.products) == (False, 3)
    assert found.residuals.max() > 1e-6


def test_memory_is_asked_for_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETRAIN_MEMORY", "10kB")
    with pytest.raises(NotEnoughMemoryError, match="Lanczos vectors"):
        BlockKrylov(np.eye(500).__matmul__, columns(500, 4), 400)


@pytest.mark.parametrize("many", [1, 3])
def test_conjugate_gradients_and_functions_of_many_columns(many: int) -> None:
    eigenvalues = 1 / np.arange(1.0, 121.0)
    matrix, modes = symmetric(eigenvalues)
    b = columns(120, many)
    b[:, 0] = 0.0 if many > 1 else b[:, 0]
    solved, count, error = conjugate_gradients(matrix.__matmul__, b, 1e-12, 500)
    assert solved == pytest.approx(np.linalg.solve(matrix, b), rel=1e-8, abs=1e-8)
    assert error < 1e-11
    assert count < 150
    found, products, change = lanczos(matrix.__matmul__, b, np.sqrt, 1e-11, 500)
    assert found == pytest.approx(modes @ (np.sqrt(eigenvalues)[:, None] * (modes.T @ b)), abs=1e-9)
    assert products <= -(-120 // (many - (many > 1))) + 1
    assert change < 1e-10


def test_columns_share_products() -> None:
    matrix, _ = symmetric(1 / np.arange(1.0, 201.0))
    b = columns(200, 8)
    calls = 0

    def counted(v: Array) -> Array:
        nonlocal calls
        calls += 1
        return matrix @ v

    _, count, _ = conjugate_gradients(counted, b, 1e-10, 1000)
    alone = [conjugate_gradients(matrix.__matmul__, b[:, i], 1e-10, 1000)[1] for i in range(8)]
    assert calls == count < max(alone) + 10


@pytest.mark.parametrize("rank", [5, 50, 200])
def test_a_preconditioner_is_positive_and_helps(rank: int) -> None:
    eigenvalues = 1 / np.arange(1.0, 201.0) ** 2
    matrix, _ = symmetric(eigenvalues)
    shifted = matrix + 1e-5 * np.eye(200)
    precondition = nystrom_preconditioner(matrix.__matmul__, 200, rank, 1e-5, 1e-16, seed=0)
    inverse = precondition(np.eye(200))
    assert inverse == pytest.approx(inverse.T, abs=1e-12)
    assert np.linalg.eigvalsh(inverse)[0] > 0
    plain = np.linalg.cond(shifted)
    root = np.linalg.cholesky(inverse)
    assert np.linalg.cond(root.T @ shifted @ root) < plain / rank


def test_a_preconditioner_of_a_matrix_that_rounding_made_indefinite() -> None:
    matrix, _ = symmetric(np.repeat([1.0, -1e-8, 1e-8], [3, 50, 47]))
    precondition = nystrom_preconditioner(matrix.__matmul__, 100, 20, 0.01, 1e-7, seed=0)
    b = columns(100, 1)
    solved, count, _ = conjugate_gradients(lambda v: matrix @ v + 0.01 * v, b, 1e-10, 100, precondition)
    assert solved == pytest.approx(np.linalg.solve(matrix + 0.01 * np.eye(100), b), rel=1e-7)
    assert count < 8
