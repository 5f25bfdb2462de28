from __future__ import annotations

import numpy as np
import pytest

import foretrain as ft
from foretrain.compare.initial.preactivations import pair_means, single_means
from foretrain.gaussian import expectation, factor

CASES = [
    ("tanh", 0.3),
    ("tanh", 1.0),
    ("swish", 14.0),
    ("gelu", 3.0),
    ("relu", 1.0),
    ("sigmoid", 1.0),
    ("elu", 1.0),
]


def covariances(size: float, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    source = np.random.default_rng(0)
    first, second = size * np.exp(0.4 * source.standard_normal((2, count)))
    rho = np.clip(0.5 + 0.2 * source.standard_normal(count), -0.95, 0.95)
    return first, 0.6 * second, rho * np.sqrt(first * 0.6 * second)


@pytest.mark.parametrize(("name", "size"), CASES)
def test_pairs_are_the_direct_expectations(name: str, size: float) -> None:
    act = ft.activation(name)
    first, second, cross = covariances(size, 2000)
    found = pair_means(act, first, second, cross)
    some = slice(0, None, 40)
    K = np.moveaxis(np.array([[first, cross], [cross, second]]), -1, 0)[some]
    exact = np.asarray(expectation([act, act], K, tolerance=1e-13).value)
    np.testing.assert_allclose(found[some], exact, rtol=0, atol=3e-14 * size)


@pytest.mark.parametrize(("name", "size"), CASES)
def test_single_variances_are_the_direct_expectations(name: str, size: float) -> None:
    act = ft.activation(name)
    variance = covariances(size, 60)[0].reshape(20, 3)
    found = single_means(act, variance)
    square = factor(act) * factor(act)
    exact = np.asarray(expectation([square], variance[..., None, None], tolerance=1e-13).value)
    np.testing.assert_allclose(found, exact, rtol=0, atol=3e-14 * size)


@pytest.mark.slow
def test_nearly_parallel_pairs_of_a_kinked_activation() -> None:
    act = ft.activation("elu")
    first, second = np.full(120, 1.0), np.linspace(0.95, 1.05, 120)
    cross = (1 - 1e-7) * np.sqrt(first * second)
    found = pair_means(act, first, second, cross)
    K = np.moveaxis(np.array([[first, cross], [cross, second]]), -1, 0)[::30]
    exact = np.asarray(expectation([act, act], K, tolerance=1e-12).value)
    np.testing.assert_allclose(found[::30], exact, rtol=1e-9)


def test_zero_variances_are_allowed() -> None:
    act = ft.activation("tanh")
    zero, one = np.zeros(3), np.ones(3)
    assert not pair_means(act, zero, one, zero).any()
    assert single_means(act, np.array([0.0, 1.0]))[0] == 0.0
