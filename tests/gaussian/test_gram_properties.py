"""Gram matrices of many inputs, in both precisions, and what holds for all of them."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from gram_checks import compare, inputs, single
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_integrals import random_covariance

from foretrain.gaussian import Expectation, expectation, factor, gram, mehler

quick = settings(deadline=None, max_examples=12)


class TestManyInputs:
    @pytest.mark.slow(after=5)
    @pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 300])
    @pytest.mark.parametrize("name", ["relu", "tanh"])
    def test_tiles_meet(self, size: int, name: str) -> None:
        K = inputs(size, "spread", dimension=30)
        symmetric = single((name, name), K)
        compare(name, name, K, symmetric, 1e-10)
        assert np.allclose(symmetric.value, symmetric.value.T, rtol=1e-12, atol=1e-14)
        mixed = single((name, (name, 1)), K)
        compare(name, (name, 1), K, mixed, 1e-10)

    @pytest.mark.slow
    def test_many_nearly_parallel_pairs(self) -> None:
        rng = np.random.default_rng(4)
        X = rng.standard_normal((1, 40)) + 0.05 * rng.standard_normal((90, 40))
        K = X @ X.T / 40
        for f in (factor("elu"), factor("selu", order=1)):
            found = single((f, f), K)
            compare(f, f, K, found, 1e-10, entries=25)
            alone = expectation([f**2], np.diagonal(K)[:, None, None])
            off = np.abs(np.diagonal(found.value) - alone.value)
            assert (off <= np.diagonal(found.error) + alone.error).all()
            assert (off <= 2e-10 * alone.value).all()

    def test_products_of_a_list_share_their_work_but_not_their_values(self) -> None:
        K = inputs(20, "plain")
        products = [
            ("tanh", "tanh"),
            (("tanh", 1), ("tanh", 1)),
            ("relu", "relu"),
            (("relu", 1), ("relu", 1)),
        ]
        together = gram(products, K)
        assert isinstance(together, list)
        for product, found in zip(products, together):
            alone = single(product, K)
            assert np.abs(found.value - alone.value).max() <= 2e-10
        assert gram([], K) == []

    def test_the_same_product_twice(self) -> None:
        first, second = gram([("relu", "relu"), ("relu", "relu")], inputs(3, "plain"))
        assert np.array_equal(first.value, second.value)


class TestSeries:
    def test_matrix_products_and_horner_agree(self) -> None:
        """Both ways to sum the series, on correlations alike and unlike."""
        f = mehler.series(factor("swish"), np.linspace(0.5, 2, 40), 64, 1e-12)
        rng = np.random.default_rng(2)
        for low, high in ((0.5, 0.52), (-0.3, -0.29), (-0.9, 0.9)):
            rho = rng.uniform(low, high, (40, 40))
            tile, direct = np.empty((40, 40)), np.empty((40, 40))
            mehler.sum_tile(f, f, slice(0, 40), slice(0, 40), rho, 1e-12, tile)
            k = np.arange(64)[:, None, None]
            direct = np.sum(f.coefficients[:, :, None] * f.coefficients[:, None, :] * rho**k, axis=0)
            scale = np.multiply.outer(f.norm, f.norm)
            assert (np.abs(tile - direct) <= 3e-12 * scale).all()

    def test_coefficients_of_the_relu(self) -> None:
        """a_k = (-1)^(k/2+1) (k-3)!! / sqrt(2 pi k!) for even k, 0 for odd k >= 3."""
        found = mehler.series(factor("relu"), np.ones(1), 12, 1e-12).coefficients[:, 0]
        double = {2: 1, 4: 1, 6: 3, 8: 15, 10: 105}
        exact = [1 / math.sqrt(2 * math.pi), 0.5]
        for k in range(2, 12):
            sign = (-1) ** (k // 2 + 1)
            exact.append(0.0 if k % 2 else sign * double[k] / math.sqrt(2 * math.pi * math.factorial(k)))
        assert found == pytest.approx(exact, abs=1e-13)

    def test_parseval(self) -> None:
        s = mehler.series(factor("tanh"), np.array([0.3, 1.0]), 128, 1e-12)
        assert (s.coefficients**2).sum(axis=0) == pytest.approx(s.norm**2, rel=1e-10)
        assert (np.diff(s.tail) <= 1e-12).all()


class TestPrecision:
    @pytest.mark.parametrize("name", ["relu", "tanh", "gelu", "selu", "sin", "erf"])
    def test_single_precision(self, name: str) -> None:
        K = inputs(30, "spread")
        exact = gram([(name, name), ((name, 1), (name, 1))], K)
        quickly = gram([(name, name), ((name, 1), (name, 1))], K.astype(np.float32))
        for a, b in zip(exact, quickly):
            assert b.value.dtype == np.float32
            scale = np.sqrt(np.multiply.outer(np.diagonal(a.value), np.diagonal(a.value)))
            assert (np.abs(a.value - b.value) <= 5e-6 * scale).all()

    @pytest.mark.parametrize("name", ["gelu", "erf"])
    def test_single_precision_of_wide_inputs(self, name: str) -> None:
        """On the diagonal 1 - rho^2 of the widened inputs must not cancel."""
        K = inputs(6, "wide").astype(np.float32)
        for order, found in enumerate(gram([(name, name), ((name, 1), (name, 1))], K)):
            square = expectation([factor(name, order=order) ** 2], np.diagonal(K)[:, None, None]).value
            assert np.diagonal(found.value) == pytest.approx(square, rel=3e-6)

    @pytest.mark.parametrize("name", ["tanh", "swish"])
    def test_single_precision_of_parallel_inputs_is_honest(self, name: str) -> None:
        rng = np.random.default_rng(3)
        X = rng.standard_normal((1, 40)) + 1e-5 * rng.standard_normal((6, 40))
        K = (X @ X.T / 40).astype(np.float32)
        found = gram([(name, name)], K)[0]
        i, j = np.triu_indices(6, 1)
        pairs = np.stack([K[np.ix_(p, p)] for p in zip(i, j)])
        off = np.abs(found.value[i, j] - expectation([name, name], pairs).value)
        assert (off <= found.error[i, j]).all()

    def test_dtype_can_be_chosen(self) -> None:
        K = inputs(5, "plain")
        result = gram("tanh", K, dtype=np.float32)
        assert isinstance(result, Expectation)
        assert result.value.dtype == np.float32

    def test_a_looser_tolerance(self) -> None:
        K = inputs(30, "near")
        tight, loose = gram("tanh", K), gram("tanh", K, tolerance=1e-4)
        assert isinstance(tight, Expectation)
        assert isinstance(loose, Expectation)
        off = np.abs(tight.value - loose.value)
        assert (off <= loose.error).all()
        assert (off <= 2e-4 * np.diagonal(tight.value).max()).all()

    def test_ordinary_results_come_without_warning(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            K = inputs(10, "repeated")
            gram([("tanh", "tanh"), ("relu", "relu"), (("relu", 1), ("relu", 1)), ("gelu", ("gelu", 1))], K)


class TestProperties:
    @quick
    @given(seed=st.integers(0, 100), name=st.sampled_from(["tanh", "relu", "gelu", "swish", "selu", "sin"]))
    def test_positive_semidefinite(self, seed: int, name: str) -> None:
        K = inputs(6, "plain", seed)
        result = gram(name, K)
        assert isinstance(result, Expectation)
        assert np.linalg.eigvalsh(result.value).min() >= -1e-9 * np.trace(result.value)

    @quick
    @given(seed=st.integers(0, 100), order=st.permutations(range(5)))
    def test_permuting_the_inputs(self, seed: int, order: list[int]) -> None:
        K = inputs(5, "spread", seed)
        a, b = gram("tanh", K), gram("tanh", K[np.ix_(order, order)])
        assert isinstance(a, Expectation)
        assert isinstance(b, Expectation)
        assert np.allclose(a.value[np.ix_(order, order)], b.value, atol=4e-10)

    @quick
    @given(seed=st.integers(0, 100))
    def test_exchanging_the_factors_transposes(self, seed: int) -> None:
        K = random_covariance(np.random.default_rng(seed), 5)
        a, b = gram([("tanh", "softplus"), ("softplus", "tanh")], K)
        assert np.allclose(a.value, b.value.T, atol=4e-10)

    @quick
    @given(seed=st.integers(0, 100), scale=st.floats(1e-6, 1e3))
    def test_scale_invariance(self, seed: int, scale: float) -> None:
        K = random_covariance(np.random.default_rng(seed), 5)
        a = gram([("relu", "relu"), (("relu", 1), ("relu", 1))], K)
        b = gram([("relu", "relu"), (("relu", 1), ("relu", 1))], scale * K)
        assert np.allclose(b[0].value, scale * a[0].value, rtol=1e-7, atol=1e-14 * scale)
        assert np.allclose(b[1].value, a[1].value, atol=1e-7)
