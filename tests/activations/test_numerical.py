"""Numerical derivatives do not promise more than they keep."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from foretrain.activations import activation
from foretrain.activations._callables.cells import Features
from foretrain.activations._callables.numerical import (
    Method,
    chebyshev_interpolation,
    complex_contour,
    multiprecision,
    numerical_rule,
)
from foretrain.activations._callables.pointwise import pointwise

NOWHERE = Features(np.array([]), np.array([]))
CASES: list[tuple[str, Callable[..., Any], tuple[float, ...]]] = [
    ("tanh", np.tanh, ()),
    ("swish", lambda z: z / (1.0 + np.exp(-z)), ()),
    ("mish", lambda z: z * np.tanh(np.logaddexp(0.0, z)), ()),
    ("softsign", lambda z: z / (1.0 + np.abs(z)), (0.0,)),
    ("elu", lambda z: np.where(z > 0, z, np.expm1(np.minimum(z, 0.0))), (0.0,)),
]


@pytest.mark.parametrize("method", [complex_contour, chebyshev_interpolation])
@pytest.mark.parametrize(("name", "function", "places"), CASES)
def test_the_estimated_error_covers_the_error(
    name: str, function: Callable[..., Any], places: tuple[float, ...], method: Method
) -> None:
    rule = numerical_rule(pointwise(function, name), places, NOWHERE)
    query = rule.right_of(np.concatenate([np.linspace(-7.0, 7.0, 57), [1e-5, -1e-5, 3e-3, -3e-3]]))
    for order in range(1, 7):
        found = method(rule.function, query, order, rule.scale)
        known = np.isfinite(found.error)
        expected = activation(name).derivative(query.z, order)
        assert np.all(np.abs(found.value - expected)[known] <= found.error[known])
        if method is chebyshev_interpolation:
            assert known.all()


def test_methods_are_tried_in_the_right_order() -> None:
    def methods(function: Callable[..., Any], *places: float) -> tuple[Method, ...]:
        return numerical_rule(pointwise(function, "f"), places, NOWHERE).methods

    assert methods(np.tanh)[0] is complex_contour
    assert methods(math.tanh) == (chebyshev_interpolation,)
    assert methods(lambda z: z / (1.0 + np.abs(z)), 0.0) == (chebyshev_interpolation, multiprecision)
    assert methods(lambda z: z / (1.0 + (z * z if z > 0 else -z)), 0.0)[0] is multiprecision


def test_a_function_that_lies_about_complex_numbers_is_found_out() -> None:
    def two_faced(z: Any) -> Any:
        return np.tanh(z) if np.iscomplexobj(z) else np.sin(z)

    rule = numerical_rule(pointwise(two_faced, "two_faced"), (), NOWHERE)
    assert complex_contour not in rule.methods
    np.testing.assert_allclose(rule(np.array([0.3, 2.0]), 1), np.cos([0.3, 2.0]), atol=1e-13)


def test_multiprecision_distrusts_singularities() -> None:
    function = pointwise(lambda z: np.abs(z) ** 2.5, "power")
    query = numerical_rule(function, (0.0,), NOWHERE).right_of(np.array([0.0, 1.0]))
    found = multiprecision(function, query, 3, 1.0)
    assert found.error[0] > 1e-3 * abs(found.value[0])
    assert found.value[1] == pytest.approx(2.5 * 1.5 * 0.5, rel=1e-12)
    assert found.error[1] < 1e-12
