"""Traces against the truth: values, stated errors over seeds, stopping, structure, bad input."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from spectral_operators import Matrix, Spectral, random_matrix, spectrum, symmetric_matrix

from foretrain.operators import Space, from_functions
from foretrain.operators.estimators import effective_rank, frobenius_norm, trace
from foretrain.support.errors import AccuracyWarning, InputError

SIZE = 600
METHODS = ("hutchinson", "hutch++", "xtrace", "xnystrace")


def quiet(operator: Matrix | Spectral, method: str, products: int, seed: int, accuracy: float = 1e-12):  # type: ignore[no-untyped-def]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AccuracyWarning)
        return trace(operator, method=method, products=products, seed=seed, accuracy=accuracy)


def binomial_bounds(rate: float, count: int) -> tuple[float, float]:
    """Three standard deviations around the nominal rate."""
    spread = 3 * math.sqrt(rate * (1 - rate) / count)
    return rate - spread, rate + spread


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", ["power 1", "stretched"])
def test_hutchinsons_errors_cover_the_truth_at_the_nominal_rate(name: str) -> None:
    values = spectrum(name, SIZE)
    operator, truth = Spectral(values), float(values.sum())
    found = [quiet(operator, "hutchinson", products=64, seed=seed) for seed in range(200)]
    scores = np.array([(estimate.value - truth) / estimate.standard_error for estimate in found])
    for width, rate in ((1.0, 0.6827), (2.0, 0.9545)):
        low, high = binomial_bounds(rate, 200)
        assert low <= (np.abs(scores) <= width).mean() <= high
    assert all(estimate.products == 64 for estimate in found)


def test_stopping_when_the_error_is_small_keeps_the_coverage() -> None:
    values = spectrum("power 0.5", SIZE)
    operator, truth = Spectral(values), float(values.sum())
    found = [trace(operator, method="hutchinson", accuracy=0.008, seed=seed) for seed in range(200)]
    assert all(estimate.relative_error <= 0.008 for estimate in found)
    assert len({estimate.products for estimate in found}) > 1
    scores = np.array([(estimate.value - truth) / estimate.standard_error for estimate in found])
    for width, rate in ((1.0, 0.6827), (2.0, 0.9545)):
        low, high = binomial_bounds(rate, 200)
        assert low <= (np.abs(scores) <= width).mean() <= high


MORE_SPECTRA = ("power 0.5", "power 1", "exponential 30", "stretched")


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    "name", ["power 2", *(pytest.param(name, marks=pytest.mark.statistical) for name in MORE_SPECTRA)]
)
@pytest.mark.parametrize("method", ["hutch++", "xtrace", "xnystrace"])
def test_stated_errors_are_within_twice_the_true_rms(method: str, name: str) -> None:
    values = spectrum(name, SIZE)
    operator, truth = Spectral(values), float(values.sum())
    found = [quiet(operator, method, products=48, seed=seed) for seed in range(100)]
    errors = np.array([estimate.value - truth for estimate in found])
    rms = float(np.sqrt(np.mean(errors**2)))
    stated = float(np.sqrt(np.mean([estimate.standard_error**2 for estimate in found])))
    assert 0.5 <= stated / rms <= 2
    assert abs(errors.mean()) <= 4 * errors.std() / 10  # unbiased


@pytest.mark.slow
def test_sketches_beat_hutchinson_where_the_spectrum_decays() -> None:
    values = spectrum("power 2", SIZE)
    operator, truth = Spectral(values), float(values.sum())
    rms = {
        method: np.sqrt(
            np.mean([(quiet(operator, method, 48, seed).value - truth) ** 2 for seed in range(20)])
        )
        for method in METHODS
    }
    assert rms["hutch++"] < rms["hutchinson"] / 10
    assert rms["xtrace"] < rms["hutch++"]
    assert rms["xnystrace"] < rms["hutch++"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["power 0.5", "power 1", "ramp", "rank 12"])
def test_the_requested_accuracy_is_reached(method: str, name: str, dtype: torch.dtype) -> None:
    values = spectrum(name, SIZE)
    operator, truth = Spectral(values.to(dtype)), float(values.sum())
    estimate = trace(operator, method=method, accuracy=0.05, seed=3)
    assert estimate.method == method
    assert estimate.standard_error <= 0.05 * estimate.value
    assert abs(estimate.value - truth) <= 4 * estimate.standard_error + 1e-4 * truth
    assert estimate.products == operator.calls


def test_exhausted_budgets_warn_with_what_was_reached() -> None:
    operator = Spectral(spectrum("power 1", SIZE))
    with pytest.warns(AccuracyWarning, match=r"standard error of 0\.\d+ after 40 products"):
        estimate = trace(operator, method="hutchinson", products=40, accuracy=1e-3)
    assert estimate.products == operator.calls == 40


def test_structure_chooses_the_method() -> None:
    values = spectrum("power 1", SIZE)
    assert trace(Spectral(values)).method == "xnystrace"
    assert trace(Spectral(-values, positive=False)).method == "xtrace"
    assert trace(Spectral(spectrum("ramp", SIZE), positive=False)).method == "hutchinson"
    assert trace(Spectral(values[:200])).method == "exact"
    assert trace(Spectral(values), products=SIZE).method == "exact"


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_operators_without_symmetry(sign: float) -> None:
    matrix = sign * (torch.diag(spectrum("power 1", 400)) + random_matrix(400, 400) / 400)
    for method in ("auto", "hutchinson", "hutch++", "xtrace"):
        estimate = trace(Matrix(matrix), method=method, accuracy=0.05, seed=1)
        assert abs(estimate.value - float(matrix.trace())) <= 4 * estimate.standard_error


def test_low_rank_is_found_exactly() -> None:
    operator = Spectral(spectrum("rank 12", SIZE))
    for method, products in (("xnystrace", 24), ("xtrace", 48), ("hutch++", 72)):
        assert quiet(operator, method, products, seed=0).value == pytest.approx(12, rel=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_zero_has_no_trace_and_no_error(method: str) -> None:
    estimate = trace(Spectral(torch.zeros(SIZE, dtype=torch.float64)), method=method)
    assert estimate.value == 0
    assert estimate.standard_error == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_multiples_of_one_cost_nothing(dtype: torch.dtype) -> None:
    estimate = trace(Spectral(torch.full((SIZE,), 3.0, dtype=dtype)), method="xnystrace")
    assert estimate.value == pytest.approx(3 * SIZE, rel=1e-5)
    assert estimate.products == 16


def test_small_operators_are_exact() -> None:
    one = trace(Matrix(torch.tensor([[-2.5]], dtype=torch.float64), symmetric=True))
    assert (one.value, one.standard_error, one.products, one.method) == (-2.5, 0.0, 1, "exact")
    matrix = random_matrix(40, 40)
    assert float(trace(Matrix(matrix))) == pytest.approx(float(matrix.trace()), rel=1e-12)


def test_the_same_seed_gives_the_same_estimate_and_another_another() -> None:
    operator = Spectral(spectrum("power 1", SIZE))
    first, again, other = (trace(operator, seed=seed) for seed in (5, 5, 6))
    assert first == again
    assert first.value != other.value


def test_the_repr_says_value_error_and_cost() -> None:
    operator = Spectral(spectrum("power 1", SIZE))
    assert repr(trace(operator, accuracy=0.02)).startswith("Estimate(")
    assert "xnystrace" in repr(trace(operator, accuracy=0.02))
    assert "exact up to rounding; 200 products" in repr(trace(Spectral(spectrum("power 1", 200))))


def test_bad_input_is_refused_with_a_way_out() -> None:
    operator = Spectral(spectrum("power 1", SIZE))
    with pytest.raises(InputError, match="did you mean 'xtrace'"):
        trace(operator, method="xtrac")
    with pytest.raises(InputError, match="1 %"):
        trace(operator, accuracy=0.0)
    with pytest.raises(InputError, match="from 1 on"):
        trace(operator, products=0)
    with pytest.raises(InputError, match="use A\\* A"):
        trace(Matrix(random_matrix(3, 4)))
    with pytest.raises(InputError, match="declared positive"):
        trace(Matrix(symmetric_matrix(spectrum("power 1", 300)), symmetric=True), method="xnystrace")
    with pytest.raises(InputError, match="has negative eigenvalues"):
        trace(Spectral(-spectrum("power 1", SIZE)))
    with pytest.raises(InputError, match="takes at least 6"):
        trace(operator, method="hutch++", products=5)


@pytest.mark.parametrize("positive", [True, False])
@pytest.mark.parametrize("method", ["auto", "hutchinson", "hutch++", "xtrace"])
@pytest.mark.parametrize("products", [6, 30, 45])
def test_budgets_are_kept(products: int, method: str, positive: bool) -> None:
    operator = Spectral(spectrum("power 1", SIZE), positive=positive)
    estimate = quiet(operator, method, products, seed=0)
    assert operator.calls == estimate.products <= products
    assert math.isfinite(estimate.standard_error)


@pytest.mark.parametrize("size", [24, 400])
def test_products_that_are_not_finite_are_named(size: int) -> None:
    broken = from_functions(
        Space.of(unit=size), None, lambda flat: flat * torch.nan, symmetric=True, positive=True
    )
    questions = (
        broken.trace,
        broken.frobenius_norm,
        broken.effective_rank,
        broken.spectral_density,
        lambda: broken.effective_rank(kind="entropy"),
        lambda: broken.top_modes(2),
        lambda: broken.inner(broken),
        lambda: broken.cosine(broken),
    )
    for question in questions:
        with pytest.raises(InputError, match="nan or infinite"):
            question()


@pytest.mark.slow
def test_traces_are_exact_rather_than_with_more_products_than_dimensions() -> None:
    ramp = spectrum("ramp", SIZE)
    traceless = Spectral(ramp - ramp.mean(), positive=False)
    found = trace(traceless)
    assert (found.method, found.standard_error) == ("exact", 0.0)
    assert found.value == pytest.approx(0, abs=1e-10)
    assert traceless.calls == found.products <= 1.2 * SIZE  # that the terms cancel shows early
    sharp = trace(Spectral(spectrum("power 0.5", 300)), accuracy=1e-7)
    assert sharp.method == "exact"
    assert sharp.products < 2 * 300
    with pytest.warns(AccuracyWarning):
        assert trace(traceless, products=SIZE - 1).products < SIZE
    assert trace(traceless, method="hutchinson", accuracy=10).method == "hutchinson"


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", ["rank 1", "rank 5", "rank 12"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_errors_of_low_ranks_cover_what_rounding_does(dtype: torch.dtype, name: str) -> None:
    values = spectrum(name, SIZE)
    rank = float(values.sum())
    truths = {trace: rank, frobenius_norm: rank**0.5, effective_rank: rank}
    for question, truth in truths.items():
        found = [question(Spectral(values.to(dtype)), accuracy=0.05, seed=seed) for seed in range(16)]
        scores = np.array([(estimate.value - truth) / estimate.standard_error for estimate in found])
        assert np.abs(scores).max() < 4
        assert np.sqrt(np.mean(scores**2)) < 1.5
        assert max(estimate.relative_error for estimate in found) < (1e-5 if dtype == torch.float64 else 0.01)
