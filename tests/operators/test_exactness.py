"""Where answers are exact, and where they are estimated."""

from __future__ import annotations

import pytest
import torch
from spectral_operators import random_matrix

from foretrain.operators import Operator, Space, dense_operator
from foretrain.support.errors import AccuracyWarning

SIZE = 600


@pytest.fixture
def operator() -> Operator:
    rows = random_matrix(SIZE, SIZE)
    return dense_operator(rows @ rows.T, Space.of(time=20, unit=30), positive=True)


def test_answers_are_exact_where_products_cost_little(operator: Operator) -> None:
    matrix = operator.dense()
    values = torch.linalg.eigvalsh(matrix) / matrix.trace()
    expected = {
        operator.trace(): matrix.trace(),
        operator.frobenius_norm(): matrix.norm(),
        operator.effective_rank(): matrix.trace() ** 2 / matrix.square().sum(),
        operator.effective_rank(kind="entropy"): torch.exp(-torch.special.xlogy(values, values).sum()),
        operator.inner(operator): matrix.square().sum(),
        operator.cosine(operator): 1.0,
    }
    for found, truth in expected.items():
        assert (found.method, found.standard_error) == ("exact", 0.0)
        assert found == pytest.approx(float(truth), rel=1e-10)


def test_dear_products_are_estimated(operator: Operator) -> None:
    operator.flops = 1e9
    for found in (operator.trace(), operator.frobenius_norm(), operator.effective_rank()):
        assert found.products < SIZE
        assert found.standard_error > 0


def test_an_accuracy_that_is_asked_for_bounds_the_work(operator: Operator) -> None:
    operator.flops = 1e7
    other = operator * 2.0
    for name, given in {"trace": (), "frobenius_norm": (), "effective_rank": (), "inner": (other,)}.items():
        ask = getattr(operator, name)
        exact, found = ask(*given), ask(*given, accuracy=0.05)
        assert exact.method == "exact"
        assert found.products < SIZE / 4
        assert 0 < found.relative_error <= 0.05
        assert abs(found.value - exact.value) < 4 * found.standard_error
    operator.flops = 1e5
    assert operator.effective_rank(accuracy=0.05).method == "exact"


def test_a_budget_forces_either(operator: Operator) -> None:
    with pytest.warns(AccuracyWarning, match="raise products"):
        assert operator.frobenius_norm(products=100, accuracy=1e-6).standard_error > 0
    operator.flops = 1e9
    assert operator.frobenius_norm(products=SIZE).standard_error == 0


def test_operators_made_of_others_cost_what_their_parts_do(operator: Operator) -> None:
    operator.flops = 1e6
    other = dense_operator(random_matrix(SIZE, SIZE), operator.domain)
    assert (operator + other).flops == 1e6 + 2 * SIZE**2
    assert (operator @ other).flops == 1e6 + 2 * SIZE**2
    assert (operator * 2.0).flops == 1e6
    assert operator.partial_trace(over="unit", method="exact").flops == 30e6
