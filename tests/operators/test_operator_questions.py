"""The questions an operator answers about itself, against its matrix; the estimators have tests of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from random_operators import assert_close, positive_operator, random_operator, symmetric_operator

from foretrain.operators import Space, SumSpace
from foretrain.support.errors import InputError

X = Space.of(time=2, unit=3)
TURNED = Space.of(unit=3, time=2)
SUM = SumSpace({"hidden": X, "cell": Space.of(unit=4)})


def test_numbers_of_small_operators_are_exact() -> None:
    A, B = positive_operator(X), symmetric_operator(X)
    a, b = A.matrix, B.matrix
    assert float(A.trace()) == pytest.approx(float(a.trace()), rel=1e-10)
    assert float(A.frobenius_norm()) == pytest.approx(float(a.norm()), rel=1e-10)
    assert float(A.inner(B)) == pytest.approx(float((a * b).sum()), rel=1e-10)
    participation = float(a.trace() ** 2 / (a * a).sum())
    assert float(A.effective_rank()) == pytest.approx(participation, rel=1e-10)
    values = torch.linalg.eigvalsh(a)
    shares = values / values.sum()
    entropy = float(torch.exp(-(shares * shares.log()).sum()))
    assert float(A.effective_rank(kind="entropy")) == pytest.approx(entropy, rel=1e-6)
    assert A.spectral_density(points=50).points.shape == (50,)


def test_the_cosine_of_small_operators_is_exact() -> None:
    A, B = positive_operator(X), symmetric_operator(X)
    a, b = A.matrix, B.matrix
    assert float(A.cosine(B)) == pytest.approx(float((a * b).sum() / (a.norm() * b.norm())), rel=1e-10)
    assert float(A.cosine(A)) == pytest.approx(1, rel=1e-12)


def test_modes_have_the_form_of_vectors() -> None:
    A = symmetric_operator(X)
    modes = A.top_modes(2, tolerance=1e-10)
    values = torch.linalg.eigvalsh(A.matrix)
    assert_close(modes.values, values[values.abs().argsort(descending=True)][:2])
    assert modes.vectors.shape == (2, 2, 3)
    assert modes.left is modes.vectors
    assert_close(A @ modes.vectors, modes.values[:, None, None] * modes.vectors, 1e-8)


def test_singular_modes_have_the_form_of_both_sides() -> None:
    J = random_operator(SUM, X)
    modes = J.top_modes(2, tolerance=1e-8)
    assert_close(modes.values, torch.linalg.svdvals(J.matrix)[:2], 1e-7)
    assert {name: tuple(part.shape) for name, part in modes.vectors.items()} == {
        "hidden": (2, 2, 3),
        "cell": (2, 4),
    }
    assert modes.left.shape == (2, 2, 3)
    assert_close(J @ modes.vectors, modes.values[:, None, None] * modes.left, 1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: random_operator(X, TURNED).trace(), "bring both sides together"),
        (lambda: random_operator(X).inner(random_operator(TURNED)), "different spaces"),
        (lambda: random_operator(X).cosine(random_operator(TURNED)), "different spaces"),
    ],
)
def test_equal_sizes_are_not_equal_spaces(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
