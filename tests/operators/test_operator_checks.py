"""Operators compared with each other, and operators checked against what they claim."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from random_operators import (
    DOUBLE,
    ByMatrix,
    normal,
    positive_operator,
    random_operator,
    symmetric_operator,
)

from foretrain.operators import OperatorComparison, Space, compare, from_functions, identity, zero
from foretrain.support.errors import InputError

X = Space.of(time=2, unit=3)
LARGE = Space.of(unit=300)


def test_small_operators_are_compared_column_by_column() -> None:
    A, B = random_operator(X), random_operator(X, seed=1)
    found = compare(A, B)
    a, b = A.matrix, B.matrix
    assert found.relative_difference == pytest.approx(float((a - b).norm() / b.norm()), rel=1e-12)
    assert found.cosine == pytest.approx(float((a * b).sum() / (a.norm() * b.norm())), rel=1e-12)
    assert found.norm_ratio == pytest.approx(float(a.norm() / b.norm()), rel=1e-12)
    assert (found.exact, found.probes, found.agree) == (True, 6, False)
    assert found.relative_difference_error == found.cosine_error == 0
    assert compare(A, A + zero(X)).agree
    assert compare(A, 1.001 * A, tolerance=0.01).agree
    assert "differ at tolerance 1e-08 (all 6 columns)" in repr(found)


def test_large_operators_are_sampled_with_error_bars() -> None:
    B = positive_operator(LARGE, rank=40)
    A = ByMatrix(B.matrix + 0.1 * positive_operator(LARGE, seed=1, rank=40).matrix, LARGE, positive=True)
    true_difference = float((A.matrix - B.matrix).norm() / B.matrix.norm())
    true_cosine = float((A.matrix * B.matrix).sum() / (A.matrix.norm() * B.matrix.norm()))
    differences, cosines = [], []
    for seed in range(200):
        found = compare(A, B, seed=seed)
        differences.append((found.relative_difference - true_difference) / found.relative_difference_error)
        cosines.append((found.cosine - true_cosine) / found.cosine_error)
    assert (found.exact, found.probes) == (False, 32)
    for z in (differences, cosines):
        assert abs(np.mean(z)) < 0.4
        assert 0.85 < np.std(z) < 1.25
        share = np.mean(np.abs(z) < 1)
        assert abs(share - 0.675) < 3 * np.sqrt(0.675 * 0.325 / 200)


def test_agreement_of_large_operators_leaves_room_for_the_error() -> None:
    A = positive_operator(LARGE)
    assert compare(A, A + 1e-12 * identity(LARGE)).agree
    assert not compare(A, 1.01 * A, tolerance=0.0098).agree
    assert compare(A, 1.01 * A, tolerance=0.0100).agree
    assert compare(A, A, seed=5).cosine == pytest.approx(1)


def test_two_errors_must_fit_below_the_tolerance() -> None:
    near = OperatorComparison(0.1, 0.04, 1.0, 0.0, 1.0, 0.2, 32, False)
    assert near.agree
    assert not replace(near, relative_difference_error=0.06).agree


def test_comparing_with_zero() -> None:
    assert compare(zero(X), zero(X)).agree
    assert compare(zero(X), zero(X)).cosine == 1
    assert compare(identity(X), zero(X)).relative_difference == np.inf
    assert compare(zero(X), identity(X)).relative_difference == 1
    assert compare(zero(X), identity(X)).cosine == 0
    assert not compare(identity(LARGE), zero(LARGE)).agree


def test_check_passes_what_is_right() -> None:
    for operator in (random_operator(X), symmetric_operator(X), positive_operator(X, rank=1), zero(X)):
        found = operator.check()
        assert found.linearity < 1e-12
        assert (found.symmetry is None) != operator.symmetric
        assert (found.negativity is None) != operator.positive
    single = ByMatrix(normal(6, 6, dtype=torch.float32), X)
    assert 0 < single.check().linearity < 1e-5
    assert "adjointness" in repr(random_operator(X).check())
    assert "adjointness" not in repr(symmetric_operator(X).check())


MATRIX = normal(6, 6)
INDEFINITE = torch.diag(torch.tensor([1.0, 1, 1, 1, 1, -1e-3], dtype=DOUBLE))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: from_functions(X, X, lambda f: f - f.mean(0), lambda f: f), "vectors beside it"),
        (lambda: from_functions(X, X, lambda f: f + 1, lambda f: f), "not linear"),
        (lambda: from_functions(X, X, torch.tanh, lambda f: f), "not linear"),
        (lambda: from_functions(X, X, lambda f: f @ MATRIX, lambda f: f @ MATRIX), "adjoint does not fit"),
        (lambda: from_functions(X, X, lambda f: f @ MATRIX, symmetric=True), "symmetric"),
        (lambda: from_functions(X, X, lambda f: -f, positive=True), "negative direction"),
        (lambda: from_functions(X, X, lambda f: f @ INDEFINITE, positive=True), "negative direction"),
        (lambda: from_functions(X, X, lambda f: f / 0, lambda f: f), "not finite"),
    ],
)
def test_check_names_what_is_wrong(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make().check()


def test_a_small_negative_direction_is_found_in_a_large_operator() -> None:
    values = torch.linspace(0, 1, 300, dtype=DOUBLE)
    values[0] = -0.5
    with pytest.raises(InputError, match="negative direction"):
        from_functions(LARGE, LARGE, lambda f: f * values, positive=True).check()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: compare(random_operator(X), random_operator(LARGE)), "tensor_like"),
        (lambda: compare(random_operator(X), identity(X, dtype=torch.float32)), "same dtype"),
        (lambda: compare(random_operator(X), random_operator(X), probes=1), "at least 2"),
    ],
)
def test_bad_input(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
