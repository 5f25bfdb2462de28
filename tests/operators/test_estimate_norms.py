"""Frobenius norm, inner product and cosine against dense forms; stated errors over seeds."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from spectral_operators import Matrix, Spectral, random_matrix, spectrum, symmetric_matrix

from foretrain.operators.estimators import Estimate, cosine, frobenius_norm, inner
from foretrain.support.errors import AccuracyWarning, InputError

SIZE = 600


def ratio_of_stated_to_true(found: list[Estimate], truth: float) -> float:
    errors = np.array([estimate.value - truth for estimate in found])
    assert abs(errors.mean()) <= 4 * errors.std() / np.sqrt(len(errors))
    return float(np.sqrt(np.mean([e.standard_error**2 for e in found]) / np.mean(errors**2)))


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", ["power 0.5", "power 1", "power 2", "exponential 30", "ramp"])
@pytest.mark.parametrize("positive", [True, False])
def test_norms_reach_their_accuracy_and_state_it(positive: bool, name: str) -> None:
    values = spectrum(name, SIZE)
    operator, truth = Spectral(values, positive=positive), float(values.norm())
    found = [frobenius_norm(operator, accuracy=0.02, seed=seed) for seed in range(30)]
    assert all(estimate.relative_error <= 0.02 for estimate in found)
    assert operator.calls == sum(estimate.products for estimate in found)
    assert 0.5 <= ratio_of_stated_to_true(found, truth) <= 2


def test_norms_of_operators_between_spaces() -> None:
    matrix = random_matrix(300, 8) @ random_matrix(8, 400, seed=1) + 0.1 * random_matrix(300, 400, seed=2)
    operator = Matrix(matrix)
    estimate = frobenius_norm(operator, accuracy=0.005, seed=0)
    assert estimate.method == "tested range"
    assert estimate.products == operator.calls
    assert abs(estimate.value - float(matrix.norm())) <= 4 * estimate.standard_error
    assert frobenius_norm(Matrix(random_matrix(300, 400)), accuracy=0.02).method == "hutchinson"


def test_small_and_vanishing_norms() -> None:
    matrix = random_matrix(5, 7)
    assert float(frobenius_norm(Matrix(matrix))) == pytest.approx(float(matrix.norm()), rel=1e-12)
    for positive in (True, False):
        nothing = frobenius_norm(Spectral(torch.zeros(SIZE, dtype=torch.float64), positive=positive), seed=1)
        assert (nothing.value, nothing.standard_error) == (0.0, 0.0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_inner_products_and_cosines_against_dense_forms(dtype: torch.dtype) -> None:
    first = symmetric_matrix(spectrum("power 0.5", 400))
    second = first + 0.05 * random_matrix(400, 400)
    a, b = Matrix(first.to(dtype), positive=True), Matrix(second.to(dtype))
    product = inner(a, b, accuracy=0.03, seed=2)
    size = float(first.norm() * second.norm())
    assert product.standard_error <= 0.03 * 1.2 * size
    assert abs(product.value - float((first * second).sum())) <= 4 * product.standard_error
    angle = cosine(a, b, accuracy=0.01, seed=2)
    assert angle.standard_error <= 0.01
    assert abs(angle.value - float((first * second).sum()) / size) <= 4 * angle.standard_error
    assert a.calls + b.calls == product.products + angle.products


def test_cosines_state_their_errors() -> None:
    first, second = spectrum("power 0.5", SIZE), spectrum("ramp", SIZE)
    truth = float((first @ second) / (first.norm() * second.norm()))
    a, b = Spectral(first), Spectral(second)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AccuracyWarning)
        found = [cosine(a, b, accuracy=1e-9, products=96, seed=seed) for seed in range(100)]
    assert 0.7 <= ratio_of_stated_to_true(found, truth) <= 1.4


def test_errors_of_cosines_cancel_between_operators_that_are_alike() -> None:
    values = spectrum("power 1", SIZE)
    same = cosine(Spectral(values), Spectral(2 * values))
    assert same.value == pytest.approx(1.0, abs=1e-12)
    assert same.standard_error < 1e-12
    assert cosine(Spectral(values), Spectral(-values, positive=False)).value == pytest.approx(-1.0)


def test_small_pairs_are_exact() -> None:
    a, b = random_matrix(6, 9), random_matrix(6, 9, seed=1)
    product = inner(Matrix(a), Matrix(b))
    assert product.method == "exact"
    assert product.value == pytest.approx(float((a * b).sum()), rel=1e-12)
    angle = cosine(Matrix(a), Matrix(b))
    assert angle.value == pytest.approx(float((a * b).sum() / (a.norm() * b.norm())), rel=1e-12)
    assert angle.standard_error == 0


def test_bad_pairs_are_refused_and_short_budgets_warn() -> None:
    a = Matrix(random_matrix(6, 9))
    with pytest.raises(InputError, match="different spaces"):
        inner(a, Matrix(random_matrix(9, 6)))
    with pytest.raises(InputError, match="different kinds"):
        cosine(a, Matrix(random_matrix(6, 9).float()))
    with pytest.raises(InputError, match="zero is not defined"):
        cosine(a, Matrix(torch.zeros(6, 9, dtype=torch.float64)))
    large = Spectral(spectrum("power 1", SIZE)), Spectral(spectrum("power 0.5", SIZE))
    with pytest.warns(AccuracyWarning, match="after 20 products"):
        assert cosine(*large, accuracy=1e-3, products=20).products == 20


@pytest.mark.slow
def test_norms_and_pairs_are_exact_rather_than_with_more_products_than_dimensions() -> None:
    values, other = spectrum("ramp", 300) - 0.5, spectrum("power 1", 300)
    for operator, truth in (
        (Spectral(values, positive=False), float(values.norm())),
        (Spectral(other), float(other.norm())),
        (Matrix(random_matrix(200, 300)), float(random_matrix(200, 300).norm())),
    ):
        found = frobenius_norm(operator, accuracy=1e-7)
        assert (found.method, found.standard_error) == ("exact", 0.0)
        assert found.value == pytest.approx(truth, rel=1e-12)
        assert operator.calls == found.products < 2 * 300
    a, b = Spectral(values, positive=False), Spectral(other, block=3)
    product = inner(a, b, accuracy=1e-7)
    assert (product.method, product.value) == ("exact", pytest.approx(float(values @ other), rel=1e-10))
    assert a.calls + b.calls == product.products < 4 * 300
    angle = cosine(a, b, accuracy=1e-7)
    assert angle.value == pytest.approx(float(values @ other / values.norm() / other.norm()), rel=1e-10)
    assert angle.method == "exact"
