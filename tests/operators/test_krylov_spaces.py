"""Krylov spaces against dense linear algebra."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from foretrain.operators import Space, diagonal, zero
from foretrain.operators.estimators.krylov import BlockKrylov, largest_eigenvalue
from foretrain.support.errors import NotEnoughMemoryError

Array = NDArray[np.float64]


def symmetric(eigenvalues: Array) -> tuple[Tensor, Tensor]:
    """A matrix with these eigenvalues, and its modes as columns."""
    size = len(eigenvalues)
    modes = np.linalg.qr(np.random.default_rng(0).normal(size=(size, size)))[0]
    return torch.from_numpy((modes * eigenvalues) @ modes.T), torch.from_numpy(modes)


def rows(many: int, size: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(1).normal(size=(many, size)))


def space(matrix: Tensor, start: Tensor, capacity: int, **options: Any) -> BlockKrylov:
    return BlockKrylov(lambda block: block @ matrix, start, capacity, **options)


def test_the_basis_is_orthonormal_and_its_relation_holds() -> None:
    matrix, _ = symmetric(1 / np.arange(1.0, 81.0))
    start = rows(5, 80)
    krylov = space(matrix, start, 60, keeps_images=True)
    for _ in range(7):
        krylov.extend()
    basis = krylov.basis
    assert (krylov.count, krylov.products, krylov.exhausted) == (35, 7, False)
    assert (basis @ basis.T).numpy() == pytest.approx(np.eye(35), abs=1e-13)
    assert (basis @ krylov.block.T).numpy() == pytest.approx(np.zeros((35, 5)), abs=1e-13)
    projected = basis @ matrix @ basis.T
    rest = basis @ matrix - projected @ basis
    assert rest.numpy() == pytest.approx((krylov.coupling.T @ krylov.block).numpy(), abs=1e-13)
    values, coordinates, residuals = krylov.ritz()
    assert values.numpy() == pytest.approx(np.linalg.eigvalsh(projected.numpy())[::-1], abs=1e-13)
    vectors = krylov.vectors(coordinates)
    true = (vectors @ matrix - values[:, None] * vectors).norm(dim=1)
    assert true.numpy() == pytest.approx(residuals.numpy(), abs=1e-13)
    assert krylov.modes(values, coordinates)[1].numpy() == pytest.approx(true.numpy(), abs=1e-13)
    assert (krylov.first.T @ basis[:5]).numpy() == pytest.approx(start.numpy(), abs=1e-12)


def test_a_restart_keeps_what_was_found() -> None:
    matrix, _ = symmetric(1 / np.arange(1.0, 81.0))
    krylov = space(matrix, rows(4, 80), 40)
    for _ in range(8):
        krylov.extend()
    before, coordinates, residuals = krylov.ritz()
    krylov.restart(coordinates[:, :10])
    after, _, kept_residuals = krylov.ritz()
    assert after.numpy() == pytest.approx(before[:10].numpy(), rel=1e-12)
    assert kept_residuals.numpy() == pytest.approx(residuals[:10].numpy(), rel=1e-6, abs=1e-14)
    krylov.extend()
    basis = krylov.basis
    assert (basis @ matrix @ basis.T).numpy() == pytest.approx(krylov._projected[:14, :14].numpy(), abs=1e-13)


def test_an_exhausted_space_and_one_that_draws() -> None:
    matrix, modes = symmetric(np.repeat([2.0, 0.0], [3, 17]))
    start = rows(4, 2) @ modes[:, :2].T
    krylov = space(matrix, start, 20)
    krylov.extend()
    assert (krylov.count, krylov.exhausted) == (2, True)
    drawing = space(matrix, start, 20, draw=lambda many: rows(many, 20))
    drawing.extend()
    assert drawing.block.shape == (4, 20)
    drawing.extend()
    drawing.extend()
    assert drawing.ritz()[0][:3].numpy() == pytest.approx([2, 2, 2])


def test_large_spaces_keep_their_orthogonality_in_single_precision() -> None:
    """Where directions were orthogonal to 1e-5 only, the first eigenvalue was 4.00007 after 1060 products."""
    values = 1 / (1 + torch.arange(100_000, dtype=torch.float64) / 1000)
    values[:3] = torch.tensor([4.0, 3.0, 2.0])
    double, single = (
        diagonal(Space.of(unit=100_000), values.to(dtype)).top_modes(3)
        for dtype in (torch.float64, torch.float32)
    )
    assert double.converged
    assert single.converged
    assert single.products <= 1.25 * double.products
    assert single.values.numpy() == pytest.approx([4, 3, 2], rel=1e-6)
    overlaps = single.vectors.double() @ single.vectors.double().T
    assert overlaps.numpy() == pytest.approx(np.eye(3), abs=1e-6)


def test_the_largest_eigenvalue_by_three_vectors() -> None:
    close = torch.linspace(0.1, 1.0, 400).double()
    close[-1] = 1.05
    start = torch.randn(400, generator=torch.Generator().manual_seed(0)).double()
    found, products = largest_eigenvalue(diagonal(Space.of(unit=400), close), start, 0.005, 100)
    assert found == pytest.approx(1.05, rel=5e-3)
    assert products < 60
    assert largest_eigenvalue(zero(Space.of(unit=400)), start, 0.005, 100) == (0.0, 1)
    huge = diagonal(Space.of(unit=3), 1e25 * torch.tensor([3.0, 2.0, 1.0]))  # their squares are no numbers
    assert largest_eigenvalue(huge, torch.ones(3), 0.005, 100)[0] == pytest.approx(3e25, rel=0.01)


def test_memory_is_asked_for_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETRAIN_MEMORY", "10kB")
    with pytest.raises(NotEnoughMemoryError, match="Lanczos vectors"):
        space(torch.eye(500, dtype=torch.float64), rows(4, 500), 400)
