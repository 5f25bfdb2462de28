"""Leading modes against dense decompositions, where it is easy and where it is not."""

from __future__ import annotations

import pytest
import torch
from spectral_operators import Matrix, Spectral, random_matrix, spectrum, symmetric_matrix
from torch import Tensor

from foretrain.operators import Space, diagonal
from foretrain.operators.estimators import Modes, top_modes
from foretrain.support.errors import AccuracyWarning, InputError

SIZE = 300
DTYPES = (torch.float64, torch.float32)


def by_magnitude(values: Tensor) -> Tensor:
    return values[values.abs().argsort(descending=True)]


def check(modes: Modes, matrix: Tensor, truth: Tensor) -> None:
    """Values, orthonormality, and residuals that are those of the operator."""
    rounding = 1e-12 if modes.vectors.dtype == torch.float64 else 1e-5
    vectors, left = modes.vectors.double(), modes.left.double()
    largest = float(truth.abs().max())
    assert modes.converged
    torch.testing.assert_close(
        modes.values, truth[: len(modes)], atol=1e-6 * largest + rounding * largest, rtol=0
    )
    unit = torch.eye(len(modes), dtype=torch.float64)
    torch.testing.assert_close(vectors @ vectors.T, unit, atol=rounding, rtol=0)
    torch.testing.assert_close(left @ left.T, unit, atol=rounding, rtol=0)
    forward = (vectors @ matrix.T - modes.values[:, None] * left).norm(dim=1)
    backward = (left @ matrix - modes.values[:, None] * vectors).norm(dim=1)
    true = torch.maximum(forward, backward)
    torch.testing.assert_close(modes.residuals, true, atol=rounding * max(largest, 1e-300), rtol=1e-3)


SPECTRA = {
    "power law": spectrum("power 1", SIZE),
    "flat": 1 - torch.arange(SIZE, dtype=torch.float64) / 400,
    "negative": -spectrum("power 1", SIZE),
    "both signs": torch.where(torch.arange(SIZE) % 2 == 0, 1.0, -1.0) * spectrum("power 0.5", SIZE),
    "degenerate": torch.cat(
        [torch.full((4,), 5.0), torch.full((7,), 3.0), torch.linspace(1, 0, SIZE - 11)]
    ).double(),
    "kronecker with 1": torch.repeat_interleave(1 / torch.arange(1.0, 7.0), SIZE // 6).double(),
    "cluster": torch.cat([1 + 1e-7 * torch.arange(6.0).double(), torch.linspace(0.8, 0, SIZE - 6).double()]),
    "low rank": 3 * spectrum("rank 3", SIZE),
    "zero": torch.zeros(SIZE, dtype=torch.float64),
    "one": torch.ones(SIZE, dtype=torch.float64),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SPECTRA)
def test_eigenpairs_of_symmetric_operators(name: str, dtype: torch.dtype) -> None:
    values = SPECTRA[name]
    matrix = symmetric_matrix(values).to(dtype)
    operator = Matrix(matrix, symmetric=True)
    modes = top_modes(operator, 5)
    check(modes, matrix.double(), by_magnitude(values))
    assert modes.products == operator.calls
    assert modes.left is modes.vectors


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(80, 120), (120, 80), (90, 90)])
def test_singular_triples_of_others(shape: tuple[int, int], dtype: torch.dtype) -> None:
    matrix = random_matrix(*shape).to(dtype)
    operator = Matrix(matrix)
    modes = top_modes(operator, 6)
    check(modes, matrix.double(), torch.linalg.svdvals(matrix.double()))
    assert modes.products == operator.calls


def test_singular_modes_beyond_the_rank_are_zero() -> None:
    matrix = random_matrix(60, 3) @ random_matrix(3, 50, seed=1)
    modes = top_modes(Matrix(matrix), 6)
    check(modes, matrix, torch.linalg.svdvals(matrix))
    assert modes.values[3:].max() < 1e-6 * modes.values[0]


def test_tight_tolerances_and_all_modes() -> None:
    values = spectrum("power 0.5", SIZE)
    operator = Matrix(symmetric_matrix(values), symmetric=True)
    assert top_modes(operator, 5, tolerance=1e-10).relative_residuals.max() <= 1e-10
    everything = top_modes(operator, SIZE)
    torch.testing.assert_close(everything.values, values, atol=1e-12, rtol=0)


def test_more_modes_than_fit_without_a_restart() -> None:
    values = 1 - torch.arange(2000, dtype=torch.float64) / 2500
    operator = Spectral(values, positive=False)
    modes = top_modes(operator, 12)
    torch.testing.assert_close(modes.values, values[:12], atol=1e-6, rtol=0)
    assert modes.converged
    assert modes.products > 100  # more than the space holds: it was restarted


@pytest.mark.parametrize(("size", "k"), [(1, 1), (2, 1), (2, 2), (3, 3)])
def test_tiny_operators(size: int, k: int) -> None:
    values = torch.arange(size, 0, -1).double()
    matrix = symmetric_matrix(values)
    check(top_modes(Matrix(matrix, symmetric=True), k), matrix, values)
    other = random_matrix(size, size)
    check(top_modes(Matrix(other), k), other, torch.linalg.svdvals(other))


def test_five_modes_of_a_flat_spectrum_take_few_products() -> None:
    """A spectrum without gaps: subspace iteration would take hundreds of products for the same residuals."""
    values = spectrum("stretched", 20_000)
    modes = top_modes(Spectral(values.float()), 5)
    assert modes.relative_residuals.max() <= 1e-4
    assert modes.products <= 80
    torch.testing.assert_close(modes.values, values[:5], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["gaps", "clustered", "degenerate", "low rank", "zero", "flat"])
def test_large_states_in_single_precision_are_right_to_its_rounding(name: str) -> None:
    """Where modes have entries of one size, sums in single precision would be wrong by 1e-5."""
    place = torch.arange(100_000, dtype=torch.float64)
    values = 1 / (1 + place / 1000)
    top = {
        "gaps": [4, 3, 2],
        "clustered": [4, 3.999, 3.998],
        "degenerate": [4, 4, 4],
        "flat": [0.95, 0.9, 0.85],
    }
    values[:3] = torch.tensor(top.get(name, [4, 3, 2]), dtype=torch.float64)
    values[3:] *= 0.0 if name == "low rank" else 0.5
    values *= 0.0 if name == "zero" else 1.0
    for operator in (
        diagonal(Space.of(unit=len(values)), values.float()),
        Spectral(values.float()),
    ):
        modes = top_modes(operator, 3)
        rows = modes.vectors.double()
        assert modes.converged
        assert modes.products <= 60
        torch.testing.assert_close(rows @ rows.T, torch.eye(3).double(), atol=3e-7, rtol=0)
        torch.testing.assert_close(modes.values, values[:3], atol=2e-6, rtol=0)


def test_singular_triples_of_large_states_in_single_precision_are_right_to_its_rounding() -> None:
    values = 1 / (1 + torch.arange(50_000, dtype=torch.float64) / 1000)
    values[:2], values[2:] = torch.tensor([4.0, 3.0]), values[2:] / 2
    scaled = Spectral(values.float(), positive=False)
    flips = diagonal(Space.of(entry=len(values)), torch.tensor([1.0, -1.0]).repeat(len(values) // 2))
    modes = (flips @ scaled).top_modes(2)  # not symmetric, with the same singular values
    assert modes.left is not modes.vectors
    for rows in (modes.vectors.double(), modes.left.double()):
        torch.testing.assert_close(rows @ rows.T, torch.eye(2).double(), atol=3e-7, rtol=0)
    torch.testing.assert_close(modes.values, values[:2], atol=2e-6, rtol=0)


def test_exhausted_budgets_warn_and_say_so() -> None:
    operator = Spectral(spectrum("stretched", 2000))
    with pytest.warns(AccuracyWarning, match="after 10 products") as warned:
        modes = top_modes(operator, 3, products=10)
    assert warned[0].filename == __file__
    assert not modes.converged
    assert modes.products == operator.calls == 10
    assert "not converged" in repr(modes)


def test_seeds_repeat() -> None:
    operator = Spectral(spectrum("power 1", 500))
    first, again = top_modes(operator, 3, seed=4), top_modes(operator, 3, seed=4)
    assert torch.equal(first.vectors, again.vectors)
    assert len(first) == 3
    assert repr(first).startswith("3 leading eigenvalues, converged")
    assert "0.333333" in repr(first)
    assert first.plot().axes[0].get_lines()[0].get_ydata() == pytest.approx(first.values)


def test_bad_input_is_refused() -> None:
    operator = Matrix(random_matrix(4, 6))
    for k in (0, 5, 1.5):
        with pytest.raises(InputError, match="from 1 to 4 modes"):
            top_modes(operator, k)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="relative residual"):
        top_modes(operator, 1, tolerance=-1.0)


def cheap(matrix: Tensor, *, symmetric: bool) -> Matrix:
    operator = Matrix(matrix, symmetric=symmetric)
    operator.flops = 2.0 * matrix.numel()
    return operator


@pytest.mark.parametrize("symmetric", [True, False])
def test_small_operators_are_decomposed_to_rounding(symmetric: bool) -> None:
    values = spectrum("power 0.5", SIZE)
    matrix = symmetric_matrix(values) if symmetric else random_matrix(SIZE, SIZE - 20)
    operator = cheap(matrix, symmetric=symmetric)
    modes = top_modes(operator, 5)
    check(modes, matrix, torch.linalg.svdvals(matrix))
    assert modes.relative_residuals.max() < 1e-12
    assert modes.products == operator.calls == matrix.shape[1]
    truth = torch.linalg.svd(matrix)[2][:5]
    overlaps = (modes.vectors * truth).sum(1).abs()
    torch.testing.assert_close(overlaps, torch.ones(5).double(), atol=1e-12, rtol=0)


def test_modes_unpack_into_values_and_vectors() -> None:
    modes = top_modes(cheap(symmetric_matrix(spectrum("power 1", SIZE)), symmetric=True), 2)
    values, vectors = modes
    assert (values is modes.values, vectors is modes.vectors, len(modes)) == (True, True, 2)
