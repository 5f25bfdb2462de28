"""All pairs at once: every route against the rules for two inputs and against oracles."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import FUNCTIONS, KINKED, SMOOTH, line, pair, random_covariance

from foretrain.gaussian import Expectation, expectation, factor, gram, grams, z
from foretrain.gaussian.factors import as_factor
from foretrain.gaussian.rules import hermite
from foretrain.support.errors import InputError

quick = settings(deadline=None, max_examples=12)


def inputs(size: int, kind: str, seed: int = 0, dimension: int = 40) -> np.ndarray:
    """Covariances of random inputs: spread, nearly parallel, wide, tiny, or with repeated ones."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((size, dimension))
    common = rng.standard_normal((1, dimension))
    if kind == "spread":
        X *= np.exp(0.5 * rng.standard_normal((size, 1)))
    elif kind == "near":
        X = common + 0.05 * X
    elif kind == "wide":
        X *= 10
    elif kind == "tiny":
        X *= 1e-4
    elif kind == "repeated":
        X[size // 2] = X[0]
        X[-1] = -1.5 * X[1]
        X[2] = 0.0
    return np.asarray(X @ X.T / dimension)


def single(products: Any, K: np.ndarray, **options: Any) -> Expectation:
    result = gram([products] if isinstance(products, tuple) else products, K, **options)
    return result[0] if isinstance(result, list) else result


def entry(f: Any, g: Any, K: np.ndarray, i: int, j: int) -> Expectation:
    f, g = as_factor(f), as_factor(g)
    if i == j:
        return expectation([f * g], K[i : i + 1, i : i + 1], tolerance=1e-12)
    return expectation([f, g], K[np.ix_([i, j], [i, j])], tolerance=1e-12)


def norms(f: Any, K: np.ndarray) -> np.ndarray:
    square = as_factor(f).pointwise() ** 2
    return np.sqrt(expectation([square], np.diagonal(K)[:, None, None], tolerance=1e-6).value)


def compare(f: Any, g: Any, K: np.ndarray, found: Expectation, tolerance: float, entries: int = 12) -> None:
    """Entry by entry against the rules for one and two inputs; the error estimate is honest."""
    size = len(K)
    scale = np.multiply.outer(norms(f, K), norms(g, K))
    rng = np.random.default_rng(1)
    chosen = {
        (0, 0),
        (0, size // 2),
        (size - 1, min(1, size - 1)),
        (min(2, size - 1), 0),
        (min(2, size - 1),) * 2,
    }
    chosen |= {(int(a), int(b)) for a, b in rng.integers(0, size, (entries, 2))}
    assert found.value.shape == found.error.shape == (size, size)
    for i, j in sorted(chosen):
        alone = entry(f, g, K, i, j)
        off = abs(found.value[i, j] - float(alone))
        assert off <= 2 * tolerance * scale[i, j], f"({i}, {j}): off by {off:.1e}"
        assert off <= found.error[i, j] + float(alone.error) + 1e-13 * scale[i, j], (
            f"({i}, {j}) is not honest"
        )


class TestRoutes:
    @pytest.mark.parametrize("kind", ["plain", "spread", "near", "wide", "tiny", "repeated"])
    @pytest.mark.parametrize("name", ["relu", "leaky_relu(slope=0.1)", "gelu", "erf", "sin", "cos"])
    def test_closed_forms(self, name: str, kind: str) -> None:
        K = inputs(9, kind)
        results = gram([(name, name), ((name, 1), (name, 1))], K)
        assert isinstance(results, list)
        for order, found in enumerate(results):
            assert found.rule == "closed form"
            if kind != "repeated" or order == 0:
                compare((name, order), (name, order), K, found, 1e-12)

    @pytest.mark.parametrize("name", ["perceptron", "sign"])
    def test_steps(self, name: str) -> None:
        for kind in ("plain", "spread", "wide"):
            K = inputs(9, kind)
            compare(name, name, K, single((name, name), K), 1e-12)

    @pytest.mark.parametrize("kind", ["plain", "spread", "near", "wide", "tiny", "repeated"])
    @pytest.mark.parametrize("name", ["tanh", "swish", "softplus"])
    def test_hermite_series(self, name: str, kind: str) -> None:
        K = inputs(8, kind)
        s, slope = factor(name), factor(name, order=1)
        products = [(s, s), (slope, slope), (s, slope), (s**2, z * slope), (factor(name, order=2), s)]
        results = gram(products, K)
        assert isinstance(results, list)
        for (f, g), found in zip(products, results):
            assert "Hermite series" in found.rule
            compare(f, g, K, found, 1e-10, entries=6)

    @pytest.mark.parametrize("name", ["selu", "softsign", "elu"])
    @pytest.mark.parametrize("kind", ["plain", "repeated", "wide"])
    def test_kinked_series(self, name: str, kind: str) -> None:
        K = inputs(4, kind)
        products = [(factor(name),) * 2, (factor(name), factor(name, order=1))]
        if kind != "wide":
            products.append((factor(name, order=1),) * 2)
        results = gram(products, K)
        assert isinstance(results, list)
        for (f, g), found in zip(products, results):
            compare(f, g, K, found, 1e-10, entries=2)

    def test_kinks_are_split_off_nearly_parallel_pairs(self) -> None:
        K = inputs(12, "near")
        for f, g in [("selu", "selu"), (("elu", 1), "elu"), (factor("selu") ** 2, ("selu", 1))]:
            found = single((f, g), K)
            assert "split kinks" in found.rule
            compare(f, g, K, found, 1e-10, entries=12)

    def test_few_nearly_parallel_pairs_go_one_by_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(grams, "split_pairs", lambda *_: None)
        K = inputs(5, "near")
        found = single(("selu", "selu"), K)
        assert "two-input rules" in found.rule
        compare("selu", "selu", K, found, 1e-10)

    def test_wide_and_nearly_parallel(self) -> None:
        K = 50 * inputs(4, "near")
        compare("tanh", ("tanh", 2), K, single(("tanh", ("tanh", 2)), K), 1e-10, entries=4)

    def test_piecewise_polynomials_and_deltas(self) -> None:
        K = inputs(6, "spread")
        for f, g in [
            ("relu", ("relu", 1)),
            (factor("relu") ** 2, "abs"),
            (("relu", 2), "relu"),
            ("relu", "sign"),
        ]:
            compare(f, g, K, single((f, g), K), 1e-11)

    def test_kinks_away_from_zero(self) -> None:
        def hard_tanh(t: np.ndarray) -> np.ndarray:
            return np.clip(t, -1, 1)

        f = factor(hard_tanh)
        for kind in ("spread", "repeated"):
            K = inputs(6, kind)
            compare(f, f, K, single((f, f), K), 1e-10)
            compare(f, "tanh", K, single((f, "tanh"), K), 1e-10)

    def test_mixed_activations(self) -> None:
        K = inputs(7, "repeated")
        for f, g in [("tanh", "gelu"), ("relu", "tanh"), (z, "swish"), ("erf", "erf"), (z**3, z**2)]:
            compare(f, g, K, single((f, g), K), 1e-10)

    def test_constants(self) -> None:
        K = inputs(4, "plain")
        assert single((2.0, 3.0), K).value == pytest.approx(6.0)
        mean = np.array([line(SMOOTH["softplus"][0], k) for k in np.diagonal(K)])
        assert single((1.0, "softplus"), K).value == pytest.approx(np.tile(mean, (4, 1)), rel=1e-10)


class TestAgainstOracles:
    @pytest.mark.parametrize("name", ["tanh", "swish", "gelu", "relu", "selu", "softsign", "mish"])
    def test_values(self, name: str) -> None:
        K = inputs(4, "spread", seed=3)
        values, slopes = (r.value for r in gram([(name, name), ((name, 1), (name, 1))], K))
        for i in range(4):
            for j in range(i, 4):
                block = K[np.ix_([i, j], [i, j])]
                for order, matrix in enumerate((values, slopes)):
                    f = FUNCTIONS[name][order]
                    if i == j:
                        true = line(lambda t, f=f: f(t) ** 2, K[i, i])
                    else:
                        true = pair(f, f, block)
                    assert matrix[i, j] == pytest.approx(true, abs=1e-10)
                    assert matrix[j, i] == pytest.approx(matrix[i, j], rel=1e-13, abs=1e-15)

    def test_nearly_parallel_slopes_keep_their_digits(self) -> None:
        angle = 1e-6
        K = np.array([[1.0, math.cos(angle)], [math.cos(angle), 1.0]])
        exact = float(np.arctan2(math.sqrt((1 - K[0, 1]) * (1 + K[0, 1])), K[0, 1]))
        slope = single((("relu", 1), ("relu", 1)), K).value[0, 1]
        assert slope == pytest.approx(0.5 - exact / (2 * math.pi), abs=1e-14)

    def test_zero_inputs_of_a_jumping_factor(self) -> None:
        """The limit of vanishing width is the mean of both sides."""
        K = np.diag([0.0, 1.0, 2.0])
        K[1, 2] = K[2, 1] = 0.5
        for name in ("selu", "relu", "leaky_relu(slope=0.1)"):
            slope = KINKED[name][1]
            sides = slope(np.array([-1e-300, 1e-300]))
            found = single(((name, 1), (name, 1)), K).value
            true = sides.mean() * line(slope, 1.0)
            assert found[0, 1] == found[1, 0] == pytest.approx(true, rel=1e-9)
            assert found[0, 0] == pytest.approx((sides**2).mean(), rel=1e-12)


class TestManyInputs:
    @pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 300])
    @pytest.mark.parametrize("name", ["relu", "tanh"])
    def test_tiles_meet(self, size: int, name: str) -> None:
        K = inputs(size, "spread", dimension=30)
        symmetric = single((name, name), K)
        compare(name, name, K, symmetric, 1e-10)
        assert np.allclose(symmetric.value, symmetric.value.T, rtol=1e-12, atol=1e-14)
        mixed = single((name, (name, 1)), K)
        compare(name, (name, 1), K, mixed, 1e-10)

    def test_many_nearly_parallel_pairs_are_interpolated(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(grams, "split_pairs", lambda *_: None)
        rng = np.random.default_rng(4)
        X = rng.standard_normal((1, 40)) + 0.02 * rng.standard_normal((90, 40))
        K = X @ X.T / 40
        found = single(("elu", "elu"), K)
        assert "interpolated" in found.rule
        compare("elu", "elu", K, found, 1e-10, entries=25)
        alone = expectation([factor("elu") ** 2], np.diagonal(K)[:, None, None])
        assert (
            np.abs(np.diagonal(found.value) - alone.value) <= np.diagonal(found.error) + alone.error
        ).all()

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
        f = hermite.series(factor("swish"), np.linspace(0.5, 2, 40), 64, 1e-12)
        rng = np.random.default_rng(2)
        for low, high in ((0.5, 0.52), (-0.3, -0.29), (-0.9, 0.9)):
            rho = rng.uniform(low, high, (40, 40))
            tile, direct = np.empty((40, 40)), np.empty((40, 40))
            hermite.sum_tile(f, f, slice(0, 40), slice(0, 40), rho, 1e-12, tile)
            k = np.arange(64)[:, None, None]
            direct = np.sum(f.coefficients[:, :, None] * f.coefficients[:, None, :] * rho**k, axis=0)
            scale = np.multiply.outer(f.norm, f.norm)
            assert (np.abs(tile - direct) <= 3e-12 * scale).all()

    def test_coefficients_of_the_relu(self) -> None:
        """a_k = (-1)^(k/2+1) (k-3)!! / sqrt(2 pi k!) for even k, 0 for odd k >= 3."""
        found = hermite.series(factor("relu"), np.ones(1), 12, 1e-12).coefficients[:, 0]
        double = {2: 1, 4: 1, 6: 3, 8: 15, 10: 105}
        exact = [1 / math.sqrt(2 * math.pi), 0.5]
        for k in range(2, 12):
            sign = (-1) ** (k // 2 + 1)
            exact.append(0.0 if k % 2 else sign * double[k] / math.sqrt(2 * math.pi * math.factorial(k)))
        assert found == pytest.approx(exact, abs=1e-13)

    def test_parseval(self) -> None:
        s = hermite.series(factor("tanh"), np.array([0.3, 1.0]), 128, 1e-12)
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


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: gram("tanh", [[1.0, 2.0], [2.0, 1.0]]), "not positive semidefinite"),
        (lambda: gram("tanh", [[1.0, 0.5], [0.4, 1.0]]), "not symmetric"),
        (lambda: gram("tanh", [[np.nan]]), "not finite"),
        (lambda: gram("tanh", np.ones((2, 2, 2))), r"\(N, N\)"),
        (lambda: gram("tanh", np.ones(3)), "square"),
        (lambda: gram(["tanh"], np.eye(2)), "each product must be a pair"),
        (lambda: gram([("tanh", "tanh", "tanh")], np.eye(2)), "each product must be a pair"),
        (lambda: gram("tanh", np.eye(2), tolerance=1.0), "tolerance"),
        (lambda: gram("unknown", np.eye(2)), "unknown activation"),
    ],
)
def test_bad_input_gives_one_clear_sentence(call: Callable[[], object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()
