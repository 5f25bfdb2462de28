"""Functions of matrices by conjugate gradients and Lanczos, against dense linear algebra."""

from __future__ import annotations

import numpy as np
import pytest
from small_kernels import Array, random_kernel
from symmetric_matrices import columns, symmetric

from foretrain.empirical.kernel_analysis.matrix_functions import (
    conjugate_gradients,
    lanczos,
    nystrom_preconditioner,
)


def test_krylov_functions_on_a_known_matrix() -> None:
    matrix = random_kernel(30, 30) / 30 + np.eye(30)
    v = np.random.default_rng(1).normal(size=30)
    solved, count, error = conjugate_gradients(matrix.__matmul__, v, 1e-12, 500)
    assert solved == pytest.approx(np.linalg.solve(matrix, v))
    assert error < 1e-10
    assert 5 < count < 60
    values, modes = np.linalg.eigh(matrix)
    found, count, _ = lanczos(matrix.__matmul__, v, np.sqrt, 1e-12, 500)
    assert found == pytest.approx(modes @ (np.sqrt(values) * (modes.T @ v)))
    assert count <= 30
    assert lanczos(matrix.__matmul__, np.zeros(30), np.sqrt, 1e-12, 5)[0] == pytest.approx(np.zeros(30))
    _, count, error = lanczos(matrix.__matmul__, v, np.sqrt, 1e-12, 4)
    assert (count, error > 1e-6) == (4, True)


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


@pytest.mark.parametrize("tolerance", [1e-5, 1e-8])
@pytest.mark.parametrize("seed", range(6))
def test_small_changes_are_no_reason_to_stop(seed: int, tolerance: float) -> None:
    """Large eigenvalues are found at once; small ones, which count in the end, take many steps of little change."""
    rng = np.random.default_rng(seed)
    eigenvalues = np.concatenate([rng.uniform(0.5, 1.0, 75), 2e-6 * 10 ** rng.uniform(-3, 0, 125)])
    matrix, modes = symmetric(eigenvalues, seed)
    weights = np.concatenate([rng.normal(size=75), 0.02 * rng.normal(size=125)])
    time = 2e6

    def response(values: Array) -> Array:
        return -np.expm1(-values * time) / values

    b = modes @ weights
    found, products, error = lanczos(matrix.__matmul__, b, response, tolerance, 500)
    misfit = matrix @ found - modes @ (eigenvalues * response(eigenvalues) * weights)
    assert error < tolerance
    assert np.linalg.norm(misfit) < 5 * tolerance * np.linalg.norm(b)
    assert products < 200
