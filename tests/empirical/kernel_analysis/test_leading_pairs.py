"""Leading eigenpairs of matrices that are known by products, against dense linear algebra."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from symmetric_matrices import Array, symmetric
from torch import Tensor

from foretrain.empirical.kernel_analysis.modes import leading_pairs


def converged(values: Array, residuals: Array) -> bool:
    return bool((residuals <= 1e-10 * values[0]).all())


def on_rows(matrix: Array) -> Callable[[Tensor], Tensor]:
    whole = torch.from_numpy(matrix)
    return lambda rows: rows @ whole


@pytest.mark.parametrize(
    ("size", "rank", "count"), [(300, 300, 10), (300, 5, 10), (40, 40, 40), (3, 3, 1), (200, 1, 2)]
)
def test_leading_pairs(size: int, rank: int, count: int) -> None:
    eigenvalues = np.where(np.arange(size) < rank, 1 / np.arange(1.0, size + 1) ** 1.5, 0.0)
    matrix, _ = symmetric(eigenvalues)
    found = leading_pairs(on_rows(matrix), size, count, converged, 0, 100)
    assert found.converged
    assert found.products < 12
    assert found.values == pytest.approx(eigenvalues[:count], abs=1e-14)
    assert np.linalg.norm(matrix @ found.modes - found.modes * found.values, axis=0).max() < 1e-10


@pytest.mark.parametrize("count", [5, 20, 45])
@pytest.mark.parametrize("copies", [3, 30])
def test_all_copies_of_an_eigenvalue_are_found(copies: int, count: int) -> None:
    eigenvalues = np.repeat(1 / np.arange(1.0, 21.0), copies)
    matrix, _ = symmetric(eigenvalues)
    found = leading_pairs(on_rows(matrix), len(eigenvalues), count, converged, 0, 100, width=4)
    assert found.converged
    assert found.values == pytest.approx(eigenvalues[:count], rel=1e-10)


def test_leading_pairs_say_when_they_did_not_arrive() -> None:
    matrix, _ = symmetric(np.linspace(1.0, 2.0, 500))
    found = leading_pairs(on_rows(matrix), 500, 5, converged, 0, 3)
    assert (found.converged, found.products) == (False, 3)
    assert found.residuals.max() > 1e-6
