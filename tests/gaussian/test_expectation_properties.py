"""Functions of the user's own, properties every expectation has, and what error estimates are worth."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_integrals import SMOOTH, check, line, pair, random_covariance, size, two
from scipy import special

from foretrain.gaussian import expectation, factor, z
from foretrain.support.errors import AccuracyWarning

quick = settings(deadline=None, max_examples=15)
PLAIN = sorted(set(SMOOTH) - {"sin", "cos"})
TANH = SMOOTH["tanh"][0]


def exponential(t: np.ndarray) -> np.ndarray:
    return np.exp(t / 2)


class TestUserFunctions:
    @pytest.mark.parametrize("n", [1, 2, 3, 4])
    @pytest.mark.parametrize("largest", [1e-8, 1.0, 4.0])
    def test_exponential_growth(self, n: int, largest: float) -> None:
        K = random_covariance(np.random.default_rng(n), n, largest)
        true, scale = math.exp(K.sum() / 8), math.exp(np.trace(K) / 4)
        check(expectation([exponential] * n, K), true, scale, 1e-10 if n < 3 else 1e-8)

    def test_exponential_growth_at_large_variance(self) -> None:
        for K in ([[100.0]], [[30.0, 20.0], [20.0, 30.0]]):
            n = len(K)
            true, scale = math.exp(np.sum(K) / 8), math.exp(np.trace(K) / 4)
            check(expectation([exponential] * n, K), true, scale, 1e-10)

    @pytest.mark.slow(after=2)
    @pytest.mark.parametrize("steepness", [3, 8, 20])
    def test_a_narrow_feature(self, steepness: int) -> None:
        def f(t: np.ndarray) -> np.ndarray:
            return np.tanh(steepness * t)

        for K in (np.eye(2), two(1.0, 0.5), two(1.0, -0.5), two(1.0, 0.999)):
            check(expectation([f, f], K), pair(f, f, K), 1.0, 1e-10)

    @pytest.mark.parametrize("steepness", [3, 8, 20])
    @pytest.mark.parametrize("correlation", [0.0, -(0.5**0.5), 0.5**0.5, 0.6])
    def test_a_narrow_feature_along_any_direction(self, steepness: int, correlation: float) -> None:
        def f(t: np.ndarray) -> np.ndarray:
            return np.tanh(steepness * t)

        true = correlation * line(lambda t: t * f(t), 1.0)
        check(expectation([z, f], two(1.0, correlation)), true, 1.0, 1e-10)

    @pytest.mark.parametrize("width", [0.3, 0.1, 0.03, 0.01])
    @pytest.mark.filterwarnings("ignore::foretrain.support.errors.AccuracyWarning")
    def test_a_bump_is_not_overlooked(self, width: float) -> None:
        def bump(t: np.ndarray) -> np.ndarray:
            return np.exp(-0.5 * ((t - 1.234) / width) ** 2)

        for variance in (1.0, 100.0):
            total = variance + width**2
            true = width / math.sqrt(total) * math.exp(-0.5 * 1.234**2 / total)
            found = expectation([bump], [[variance]])
            assert abs(float(found) - true) <= float(found.error) + 1e-13
            assert float(found) == pytest.approx(true, rel=1e-6)

    def test_fast_oscillation(self) -> None:
        found = expectation([lambda t: np.sin(30 * t) ** 2], [[1.0]])
        check(found, 0.5 * (1 - math.exp(-1800)), 0.6, 1e-10)


class TestProperties:
    @quick
    @given(
        order=st.permutations(range(3)),
        seed=st.integers(0, 100),
        names=st.lists(st.sampled_from(["tanh", "gelu", "softplus", "sin"]), min_size=3, max_size=3),
    )
    def test_permuting_inputs_changes_nothing(self, order: list[int], seed: int, names: list[str]) -> None:
        K = random_covariance(np.random.default_rng(seed), 3)
        a = expectation(names, K)
        b = expectation([names[i] for i in order], K[np.ix_(order, order)])
        assert abs(float(a) - float(b)) <= float(a.error) + float(b.error) + 1e-14

    @quick
    @given(seed=st.integers(0, 100), flip=st.integers(0, 3))
    def test_flipping_an_input_of_odd_factors_flips_the_sign(self, seed: int, flip: int) -> None:
        K = random_covariance(np.random.default_rng(seed), 4)
        signs = np.where(np.arange(4) == flip, -1.0, 1.0)
        a, b = expectation(["tanh"] * 4, K), expectation(["tanh"] * 4, K * np.outer(signs, signs))
        assert abs(float(a) + float(b)) <= float(a.error) + float(b.error) + 1e-14

    @quick
    @given(variance=st.floats(1e-6, 50), correlation=st.floats(-1, 1), name=st.sampled_from(PLAIN))
    def test_cauchy_schwarz_and_the_diagonal(self, variance: float, correlation: float, name: str) -> None:
        K = np.stack([two(variance, correlation), two(variance, 1.0)])
        pairs = expectation([name, name], K).value
        alone = float(expectation([factor(name) ** 2], [[variance]]))
        assert pairs[1] == pytest.approx(alone, rel=1e-9)
        assert abs(pairs[0]) <= alone * (1 + 1e-9)

    @quick
    @given(seed=st.integers(0, 100), extra=st.integers(0, 2))
    def test_a_repeated_input_is_a_product_of_factors(self, seed: int, extra: int) -> None:
        K = random_covariance(np.random.default_rng(seed), 3)
        chosen = [0, 1, 2, extra]
        repeated = expectation(["tanh", "gelu", "softplus", "swish"], K[np.ix_(chosen, chosen)])
        factors = [factor(name) for name in ("tanh", "gelu", "softplus")]
        factors[extra] = factors[extra] * factor("swish")
        merged = expectation(factors, K)
        assert abs(float(repeated) - float(merged)) <= 2e-8 * size(factors, K)

    @quick
    @given(seed=st.integers(0, 100), name=st.sampled_from(["tanh", "gelu", "swish", "softplus"]))
    def test_stein(self, seed: int, name: str) -> None:
        """<z_1 f(z_2)> = K_12 <f'(z_2)>."""
        K = random_covariance(np.random.default_rng(seed), 2, 3.0)
        left = float(expectation([z, name], K))
        right = K[0, 1] * float(expectation([(name, 1)], [[K[1, 1]]]))
        assert left == pytest.approx(right, abs=1e-9)

    def test_the_limit_of_equal_inputs_is_reached_continuously(self) -> None:
        for name, other in (("tanh", 1.0), ("tanh", -1.0), ("gelu", -1.0), ("softplus", 1.0)):
            angles = np.array([0.0, 1e-8, 1e-7, 1e-6, 1e-5])
            K = np.stack([two(2.0, other * math.cos(a)) for a in angles])
            values = expectation([name, (name, 1)], K).value
            assert np.abs(values - values[0]).max() < 1e-9

    def test_scaling_of_a_user_function(self) -> None:
        K = two(2.0, 0.6, 1.4)
        direct = expectation([lambda t: np.tanh(3 * t)] * 2, K)
        rescaled = expectation(["tanh", "tanh"], 9 * K)
        assert float(direct) == pytest.approx(float(rescaled), abs=2e-10)


class TestAccuracy:
    def test_a_looser_tolerance_is_honest_too(self) -> None:
        K = random_covariance(np.random.default_rng(8), 4, 4.0)
        tight = float(expectation(["tanh"] * 4, K, tolerance=1e-10))
        scale = size([TANH] * 4, K)
        for tolerance in (1e-3, 1e-5, 1e-7):
            found = expectation(["tanh"] * 4, K, tolerance=tolerance)
            assert abs(float(found) - tight) <= min(tolerance * scale, float(found.error) + 1e-10 * scale)

    def test_a_tighter_tolerance_is_reached(self) -> None:
        K = two(1.0, 0.5)
        check(
            expectation(["tanh", "tanh"], K, tolerance=1e-13), pair(TANH, TANH, K), size([TANH] * 2, K), 1e-13
        )

    def test_what_cannot_be_reached_is_said(self) -> None:
        """A step outside the range in which kinks of callables are looked for."""
        with pytest.warns(AccuracyWarning, match="relative error"):
            found = expectation([lambda t: 1.0 * (t > 25.0)], [[100.0]])
        assert abs(float(found) - float(special.ndtr(-2.5))) <= float(found.error)

    def test_ordinary_results_come_without_warning(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            expectation(["tanh"] * 4, random_covariance(np.random.default_rng(9), 4, 4.0))
            expectation(["swish", ("swish", 2)], two(100.0, 0.999))

    def test_the_repr_teaches(self) -> None:
        text = repr(expectation(["tanh", "tanh"], two(1.0, 0.5)))
        assert text.startswith("Expectation(0.1863244132")
        assert "grids" in text
        assert "shape (2,)" in repr(expectation(["tanh"], np.ones((2, 1, 1))))

    def test_it_behaves_as_its_value(self) -> None:
        found = expectation(["softplus"], np.ones((2, 1, 1)))
        assert np.asarray(found).shape == (2,)
        assert np.array_equal(np.array(found), found.value)
