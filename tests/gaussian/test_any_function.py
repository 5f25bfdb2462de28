"""Functions of all inputs at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from reference_integrals import line, normal, random_covariance, two
from scipy import special

from foretrain.gaussian import Expectation, expectation, expectation_of
from foretrain.support.errors import AccuracyWarning, InputError


def honest(found: Expectation, true: float, tolerance: float) -> None:
    off = abs(float(found) - true)
    assert off <= tolerance
    assert off <= float(found.error) + 1e-14


class TestQuadrature:
    @pytest.mark.parametrize("n", [1, 2, 3])
    def test_gaussians_and_waves(self, n: int) -> None:
        K = random_covariance(np.random.default_rng(n), n)
        tolerance = 1e-10 if n < 3 else 1e-8
        damped = expectation_of(lambda z: np.exp(-0.15 * (z**2).sum(axis=1)), K)
        honest(damped, np.linalg.det(np.eye(n) + 0.3 * K) ** -0.5, tolerance)
        honest(expectation_of(lambda z: np.cos(z.sum(axis=1)), K), math.exp(-K.sum() / 2), tolerance)
        honest(expectation_of(lambda z: (z**2).sum(axis=1), K), np.trace(K), 3 * tolerance)

    def test_a_function_that_is_no_product(self) -> None:
        found = expectation_of(lambda z: np.exp(z[:, 0] * z[:, 1] / 4), np.eye(2))
        honest(found, 1 / math.sqrt(1 - 1 / 16), 1e-9)

    @pytest.mark.slow(after=2)
    @pytest.mark.parametrize("n", [1, 2, 3])
    def test_declared_kinks(self, n: int) -> None:
        K = random_covariance(np.random.default_rng(n), n)
        true = float(expectation(["relu"] * n, K))
        for kinks in ((0.0,), [(0.0,)] * n):
            found = expectation_of(lambda z: np.maximum(z, 0).prod(axis=1), K, kinks=kinks)
            assert found.rule == "panels"
            honest(found, true, 1e-8)

    def test_kinks_of_one_input_only(self) -> None:
        K = two(1.0, 0.5, 1.2)
        found = expectation_of(lambda z: np.abs(z[:, 1] - 1), K, kinks=[(), (1.0,)])
        c = 1 / 1.2
        honest(found, float(1.2 * (2 * normal(c) + c * (2 * special.ndtr(c) - 1))), 1e-10)

    def test_singular_covariances(self) -> None:
        K = np.array([[1.0, 1.0, -1.0], [1.0, 1.0, -1.0], [-1.0, -1.0, 1.0]])
        honest(expectation_of(lambda z: z[:, 0] * z[:, 1] * z[:, 2] ** 2, K), 3.0, 1e-9)
        ramp = expectation_of(lambda z: np.maximum(z[:, 0], 0) * np.maximum(z[:, 1], 0), K, kinks=(0.0,))
        honest(ramp, 0.5, 1e-10)
        assert float(expectation_of(lambda z: 1 + z.sum(axis=1), np.zeros((2, 2)))) == 1.0
        honest(expectation_of(lambda z: 1 + z[:, 0] ** 2 + z[:, 1], np.diag([2.0, 0.0])), 3.0, 1e-9)

    def test_inputs_come_in_the_order_given(self) -> None:
        """The largest variance is integrated first inside; outside nothing shows of it."""
        K = np.array([[0.5, 0.2, 0.1], [0.2, 3.0, -0.4], [0.1, -0.4, 1.0]])
        for i in range(3):
            for j in range(3):
                honest(expectation_of(lambda z, i=i, j=j: z[:, i] * z[:, j], K), K[i, j], 1e-7)

    def test_growth(self) -> None:
        found = expectation_of(lambda z: np.where(z[:, 0] > 0, np.exp(z[:, 0]), 1.0), [[30.0]], kinks=(0.0,))
        true = 0.5 + math.exp(15) * float(special.ndtr(math.sqrt(30)))
        assert float(found) == pytest.approx(true, rel=1e-8)

    def test_a_narrow_feature_along_a_diagonal(self) -> None:
        rho = -(0.5**0.5)
        found = expectation_of(lambda z: z[:, 0] * np.tanh(20 * z[:, 1]), two(1.0, rho))
        honest(found, rho * line(lambda t: t * np.tanh(20 * t), 1.0), 1e-9)

    def test_undeclared_kinks_are_in_the_estimate(self) -> None:
        true = 1 / math.sqrt(2 * math.pi)
        with pytest.warns(AccuracyWarning, match="declare kinks"):
            found = expectation_of(lambda z: np.maximum(z[:, 0], 0), [[1.0]])
        assert abs(float(found) - true) <= 2 * float(found.error)


class TestSampling:
    def test_more_than_three_directions_are_sampled(self) -> None:
        K = random_covariance(np.random.default_rng(4), 5)
        found = expectation_of(lambda z: np.cos(z.sum(axis=1)), K, seed=1)
        assert "Sobol" in found.rule
        assert 0 < float(found.error) < 2e-3
        assert abs(float(found) - math.exp(-K.sum() / 2)) <= 5 * float(found.error)

    def test_a_seed_repeats_and_more_points_help(self) -> None:
        K = np.eye(4)

        def f(z: np.ndarray) -> np.ndarray:
            return np.maximum(z.sum(axis=1), 0)

        a, b, c = (expectation_of(f, K, seed=seed, points=2**12) for seed in (3, 3, 4))
        assert float(a) == float(b) != float(c)
        assert float(expectation_of(f, K, points=2**18).error) < float(a.error) / 4

    def test_rank_decides_not_the_number_of_inputs(self) -> None:
        V = np.random.default_rng(5).standard_normal((6, 2))
        found = expectation_of(lambda z: np.cos(z.sum(axis=1)), V @ V.T)
        honest(found, math.exp(-(V @ V.T).sum() / 2), 1e-9)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: expectation_of(lambda z: z, np.eye(2)), r"one real number .*\(\d+, 2\)"),
        (lambda: expectation_of(lambda z: z.sum(), np.eye(2)), "one real number"),
        (lambda: expectation_of(lambda z: 1j * z[:, 0], np.eye(2)), "complex128"),
        (lambda: expectation_of(lambda z: z[:, 0] * np.nan, np.eye(2)), "finite"),
        (lambda: expectation_of(3, np.eye(2)), "must be callable"),
        (lambda: expectation_of(lambda z: z[:, 0], [[1, 2], [2, 1]]), "not positive semidefinite"),
        (lambda: expectation_of(lambda z: z[:, 0], np.ones((2, 1, 1))), r"one covariance \(n, n\)"),
        (lambda: expectation_of(lambda z: z[:, 0], np.eye(2), kinks=[(0.0,)]), "for each of 2 inputs"),
        (lambda: expectation_of(lambda z: z[:, 0], np.eye(2), kinks=(math.nan,)), "kinks"),
        (lambda: expectation_of(lambda z: z[:, 0], np.eye(2), kinks="x"), "kinks"),
        (lambda: expectation_of(lambda z: z[:, 0], np.eye(5), points=0), "points"),
        (lambda: expectation_of(lambda z: z[:, 0], np.eye(2), tolerance=1.0), "tolerance"),
    ],
)
def test_bad_input_gives_one_clear_sentence(call: Callable[[], object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()


@pytest.mark.parametrize("kinks", [np.array([0]), 0.0, [0], [[0.0], []]], ids=str)
def test_ways_to_declare_a_kink(kinks: Any) -> None:
    found = expectation_of(lambda z: np.abs(z[:, 0]), np.eye(2), kinks=kinks)
    assert found.rule == "panels"
    honest(found, math.sqrt(2 / math.pi), 1e-10)
