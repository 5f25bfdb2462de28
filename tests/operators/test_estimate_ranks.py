"""Effective ranks against the spectrum, and how many products they take."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from spectral_operators import Matrix, Spectral, random_matrix, spectrum, symmetric_matrix
from torch import Tensor

from foretrain.operators.estimators import effective_rank
from foretrain.operators.estimators.ranks import ceiling
from foretrain.support.errors import AccuracyWarning, InputError

SIZE = 5000


def participation(values: Tensor) -> float:
    return float(values.sum() ** 2 / values.square().sum())


def entropy(values: Tensor) -> float:
    shares = values[values > 0] / values.sum()
    return float(torch.exp(-(shares * shares.log()).sum()))


def modes_for(values: Tensor, share: float) -> int:
    held = values.cumsum(0) / values.sum()
    return int((held < share - 1e-12).sum()) + 1


# Products that 1 % took at most over ten seeds. Not below 100: spectra whose effective rank is about 100 with a sharp
# end ("exponential 50", "rank 100"), where 2 / 100 is the relative variance of a plain probe and every approximation
# must hold about as many vectors as the rank before it helps.
QUICK = {
    "power 0.5": 100,
    "power 0.75": 80,
    "power 1": 100,
    "power 1.5": 80,
    "power 2": 60,
    "exponential 10": 70,
    "exponential 500": 30,
    "flat": 30,
    "ramp": 30,
    "rank 30": 60,
    "stretched": 100,
}
SLOW = {"exponential 50": 150, "rank 100": 200}


@pytest.mark.slow(after=3)
@pytest.mark.parametrize(
    ("seeds", "dtype"),
    [
        (2, torch.float32),
        pytest.param(10, torch.float32, marks=pytest.mark.statistical),
        pytest.param(10, torch.float64, marks=pytest.mark.statistical),
    ],
)
@pytest.mark.parametrize(("name", "most"), [*QUICK.items(), *SLOW.items()])
def test_one_percent_of_the_participation_ratio_takes_few_products(
    name: str, most: int, seeds: int, dtype: torch.dtype
) -> None:
    values = spectrum(name, SIZE)
    truth = participation(values)
    for seed in range(seeds):
        operator = Spectral(values.to(dtype))
        estimate = effective_rank(operator, seed=seed)
        assert estimate.relative_error <= 0.01
        assert abs(estimate.value - truth) <= 3.5 * estimate.standard_error + 1e-6 * truth
        assert estimate.products == operator.calls <= most


@pytest.mark.statistical
@pytest.mark.parametrize("name", ["power 1", "stretched", "exponential 50"])
def test_the_stated_error_is_within_twice_the_true_rms(name: str) -> None:
    values = spectrum(name, SIZE)
    truth = participation(values)
    found = [effective_rank(Spectral(values), accuracy=0.03, seed=seed) for seed in range(40)]
    errors = np.array([estimate.value / truth - 1 for estimate in found])
    rms = np.sqrt(np.mean(errors**2))
    stated = np.sqrt(np.mean([estimate.relative_error**2 for estimate in found]))
    assert 0.5 <= stated / rms <= 2
    assert abs(errors.mean()) <= 4 * rms / np.sqrt(40)


@pytest.mark.statistical
@pytest.mark.parametrize("name", ["power 0.5", "power 1", "power 2", "stretched"])
def test_entropy_ranks_and_their_stated_errors(name: str) -> None:
    values = spectrum(name, 2000)
    truth = entropy(values)
    found = [effective_rank(Spectral(values), kind="entropy", accuracy=0.02, seed=seed) for seed in range(10)]
    assert all(estimate.relative_error <= 0.02 for estimate in found)
    rms = np.sqrt(np.mean([(estimate.value - truth) ** 2 for estimate in found]))
    stated = np.sqrt(np.mean([estimate.standard_error**2 for estimate in found]))
    assert 0.5 <= stated / rms <= 2.5


@pytest.mark.parametrize("name", ["rank 30", "ramp", "flat"])
def test_entropy_ranks_of_simple_spectra(name: str) -> None:
    values = spectrum(name, 2000)
    estimate = effective_rank(Spectral(values), kind="entropy", accuracy=0.02)
    assert abs(estimate.value / entropy(values) - 1) <= 4 * estimate.relative_error + 1e-4


@pytest.mark.parametrize(("name", "share"), [("power 2", 0.95), ("power 1.5", 0.5), ("exponential 3", 0.9)])
def test_shares_of_few_modes_are_whole_numbers(name: str, share: float) -> None:
    values = spectrum(name, 2000)
    estimate = effective_rank(Spectral(values), share=share, accuracy=0.02)
    assert estimate.value == modes_for(values, share)
    rough = effective_rank(Spectral(values), share=share, accuracy=0.1)
    assert rough.value == round(rough.value)
    assert abs(rough.value - modes_for(values, share)) <= 3 * rough.standard_error


@pytest.mark.parametrize(("name", "share"), [("power 0.5", 0.95), ("ramp", 0.8), ("stretched", 0.5)])
def test_shares_of_many_modes(name: str, share: float) -> None:
    values = spectrum(name, 2000)
    truth = modes_for(values, share)
    for seed in range(3):
        estimate = effective_rank(Spectral(values), share=share, accuracy=0.03, seed=seed)
        assert estimate.relative_error <= 0.03
        assert abs(estimate.value - truth) <= 4 * estimate.standard_error + 1


@pytest.mark.parametrize("kind", ["participation", "entropy"])
def test_other_operators_are_judged_by_singular_values(kind: str) -> None:
    signs = torch.where(torch.arange(1000) % 3 == 0, -1.0, 1.0)
    values = spectrum("power 0.5", 1000)
    truth = {"participation": participation, "entropy": entropy}[kind](values)
    mixed = effective_rank(Spectral(signs * values, positive=False), kind=kind, accuracy=0.03)
    assert abs(mixed.value - truth) <= 4 * mixed.standard_error

    rotated = symmetric_matrix(values[:400], seed=1) @ torch.linalg.qr(random_matrix(400, 400, seed=2))[0]
    truth = {"participation": participation, "entropy": entropy}[kind](values[:400])
    estimate = effective_rank(Matrix(rotated, block=8), kind=kind, accuracy=0.03, products=399)
    assert estimate.method == "Lanczos quadrature"
    assert abs(estimate.value - truth) <= 4 * estimate.standard_error


def test_small_operators_are_exact() -> None:
    values = spectrum("power 1", 60)
    matrix = symmetric_matrix(values)
    operator = Matrix(matrix, positive=True)
    assert float(effective_rank(operator)) == pytest.approx(participation(values), rel=1e-10)
    assert float(effective_rank(operator, kind="entropy")) == pytest.approx(entropy(values), rel=1e-10)
    assert float(effective_rank(operator, share=0.95)) == modes_for(values, 0.95)
    assert float(effective_rank(Matrix(-matrix, symmetric=True))) == pytest.approx(participation(values))
    other = random_matrix(20, 30)
    assert float(effective_rank(Matrix(other))) == pytest.approx(participation(torch.linalg.svdvals(other)))
    one = effective_rank(Matrix(torch.tensor([[3.0]]), positive=True))
    assert (one.value, one.standard_error, one.method) == (1.0, 0.0, "exact")


@pytest.mark.parametrize("positive", [True, False])
@pytest.mark.parametrize("size", [10, 600])
def test_nothing_has_rank_zero(size: int, positive: bool) -> None:
    operator = Spectral(torch.zeros(size, dtype=torch.float64), positive=positive)
    for options in ({}, {"kind": "entropy"}, {"share": 0.9}):
        found = effective_rank(operator, **options)  # type: ignore[arg-type]
        assert (found.value, found.standard_error) == (0.0, 0.0)


def test_bad_input_and_short_budgets() -> None:
    operator = Spectral(spectrum("power 1", SIZE))
    with pytest.raises(InputError, match="did you mean 'entropy'"):
        effective_rank(operator, kind="entropic")
    with pytest.raises(InputError, match="between 0 and 1"):
        effective_rank(operator, share=95)
    with pytest.warns(AccuracyWarning, match="effective rank") as warned:
        assert effective_rank(operator, products=20).products <= 20
    assert warned[0].filename == __file__
    with pytest.warns(AccuracyWarning, match="effective rank") as warned:
        operator.effective_rank(products=20)
    assert warned[0].filename == __file__
    with pytest.raises(InputError, match="takes at least 100"):
        effective_rank(operator, kind="entropy", products=60)


@pytest.mark.slow(after=6)
@pytest.mark.parametrize("positive", [True, False])
@pytest.mark.parametrize("options", [{}, {"kind": "entropy"}, {"share": 0.9}])
@pytest.mark.parametrize("products", [100, 150, 400])
def test_budgets_are_kept_and_what_is_missing_is_stated(
    products: int, options: dict[str, object], positive: bool
) -> None:
    values = spectrum("power 1", 1000)
    operator = Spectral(values, positive=positive)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AccuracyWarning)
        estimate = effective_rank(operator, products=products, seed=1, accuracy=1e-5, **options)  # type: ignore[arg-type]
    truth = {"kind": entropy, "share": lambda v: modes_for(v, 0.9)}.get(
        next(iter(options), ""), participation
    )
    assert operator.calls == estimate.products <= products
    assert abs(estimate.value - truth(values)) <= 4 * estimate.standard_error


def projector(rank: int, size: int, dtype: torch.dtype) -> Tensor:
    """Dense, so that its other eigenvalues are rounding."""
    columns = torch.linalg.qr(random_matrix(size, size, seed=rank))[0][:, :rank]
    return (columns @ columns.T).to(dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("rank", [1, 2, 5, 12])
def test_where_the_rest_is_rounding_the_resolved_modes_are_the_answer(rank: int, dtype: torch.dtype) -> None:
    matrix = projector(rank, 600, dtype)
    rotated = matrix @ torch.linalg.qr(random_matrix(600, 600, seed=99))[0].to(dtype)
    operators = (
        Matrix(matrix, symmetric=True, positive=True, block=64),
        Matrix(-matrix, symmetric=True),
        Matrix(rotated),
    )
    for operator in operators:
        for seed in range(2):
            assert effective_rank(operator, share=0.9, seed=seed).value == np.ceil(0.9 * rank)
            found = effective_rank(operator, kind="entropy", seed=seed)
            assert found.value == pytest.approx(rank, rel=1e-10 if dtype == torch.float64 else 1e-5)
            assert found.products < 600


def test_answers_are_possible_numbers() -> None:
    one = Matrix(projector(1, 600, torch.float64), symmetric=True, positive=True)
    assert all(effective_rank(one, seed=seed).value >= 1 for seed in range(10))
    full = Spectral(spectrum("flat", 600))
    assert all(effective_rank(full, kind=kind).value <= 600 for kind in ("participation", "entropy"))


@pytest.mark.slow
@pytest.mark.parametrize("size", [600, 2000])
def test_shares_of_nearly_flat_spectra_count_the_mode_that_reaches_them(size: int) -> None:
    values = 1 + 0.1 * torch.rand(size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = values.sort(descending=True).values
    truth = modes_for(values, 0.9)
    found = [effective_rank(Spectral(values, positive=True), share=0.9, seed=seed) for seed in range(6)]
    assert all(estimate.value == round(estimate.value) for estimate in found)
    assert all(abs(estimate.value - truth) <= 3 * estimate.standard_error for estimate in found)


def test_the_step_to_a_whole_number_has_an_error_of_its_own() -> None:
    assert ceiling(537.5, 0.02) == (538.0, 0.02)
    whole, error = ceiling(537.99, 0.02)
    assert whole == 538
    assert error == pytest.approx(np.sqrt(0.5 * math.erfc(0.5 / np.sqrt(2))), rel=1e-6)
    drawn = np.ceil(np.random.default_rng(0).normal(20.3, 1.5, 200_000))
    assert ceiling(20.3, 1.5)[1] == pytest.approx(np.sqrt(np.mean((drawn - 21) ** 2)), rel=0.01)
    assert ceiling(20.3, 0.0) == (21.0, 0.0)
    assert ceiling(2000.5, 80.0) == (2001.0, 80.0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("size", [100, 600])
def test_a_share_that_whole_modes_hold_is_reached_by_them(size: int, dtype: torch.dtype) -> None:
    operator = Matrix(projector(10, size, dtype), symmetric=True, positive=True)
    for seed in range(3):
        found = effective_rank(operator, share=0.5, seed=seed)
        assert found.value == 5
        assert found.standard_error < 1e-3


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("positive", [True, False])
@pytest.mark.parametrize("options", [{}, {"kind": "entropy"}, {"share": 0.9}])
def test_ranks_are_exact_rather_than_with_more_products_than_dimensions(
    options: dict[str, object], positive: bool
) -> None:
    values = spectrum("power 0.5", 300)
    operator = Spectral(values, positive=positive)
    found = effective_rank(operator, accuracy=1e-9, **options)  # type: ignore[arg-type]
    truth = {"kind": entropy, "share": lambda v: modes_for(v, 0.9)}.get(
        next(iter(options), ""), participation
    )
    assert (found.method, found.standard_error) == ("exact", 0.0)
    assert found.value == pytest.approx(truth(values), rel=1e-10)
    assert operator.calls == found.products < 2 * 300
