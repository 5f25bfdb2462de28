"""Block Lanczos against dense linear algebra."""

from __future__ import annotations

import numpy as np
import pytest
from symmetric_matrices import Array, columns, symmetric

from foretrain.empirical.kernel_analysis.block_lanczos import BlockKrylov, leading_pairs
from foretrain.support.errors import NotEnoughMemoryError


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


@pytest.mark.parametrize("count", [5, 20, 45])
@pytest.mark.parametrize("copies", [3, 30])
def test_all_copies_of_an_eigenvalue_are_found(copies: int, count: int) -> None:
    eigenvalues = np.repeat(1 / np.arange(1.0, 21.0), copies)
    matrix, _ = symmetric(eigenvalues)
    found = leading_pairs(matrix.__matmul__, len(eigenvalues), count, converged, 0, 100, width=4)
    assert found.converged
    assert found.values == pytest.approx(eigenvalues[:count], rel=1e-10)


def test_leading_pairs_say_when_they_did_not_arrive() -> None:
    matrix, _ = symmetric(np.linspace(1.0, 2.0, 500))
    found = leading_pairs(matrix.__matmul__, 500, 5, converged, 0, 3)
    assert (found.converged, found.products) == (False, 3)
    assert found.residuals.max() > 1e-6


def test_memory_is_asked_for_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETRAIN_MEMORY", "10kB")
    with pytest.raises(NotEnoughMemoryError, match="Lanczos vectors"):
        BlockKrylov(np.eye(500).__matmul__, columns(500, 4), 400)
