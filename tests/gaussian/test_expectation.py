"""Smooth factors: closed forms and lattices against oracles that share no code with them."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.polynomial import Polynomial
from reference import (
    CORRELATIONS,
    PRODUCTS,
    SMOOTH,
    VARIANCES,
    check,
    line,
    one_factor,
    one_factor_covariance,
    pair,
    plane,
    random_covariance,
    sines,
    size,
    two,
    two_factors,
)

from foretrain.gaussian import Factor, expectation, factor, one, z
from foretrain.gaussian.wick import gaussian_moment
from foretrain.support.errors import AccuracyWarning, InputError

quick = settings(deadline=None, max_examples=15)
# The oracles resolve no oscillation at large variance; sines have exact formulas of their own.
PLAIN = sorted(set(SMOOTH) - {"sin", "cos"})
TANH, GELU, SWISH = (SMOOTH[name][0] for name in ("tanh", "gelu", "swish"))


def product(name: str, kind: str) -> Factor:
    s = factor(name)
    return {
        "s": s,
        "s'": factor(name, order=1),
        "s''": factor(name, order=2),
        "z s'": z * factor(name, order=1),
        "s^2": s**2,
        "s^4": s**4,
    }[kind]


class TestOneInput:
    @pytest.mark.parametrize("name", PLAIN)
    def test_every_product_at_every_variance(self, name: str) -> None:
        for kind, variance in itertools.product(PRODUCTS, VARIANCES):
            f = PRODUCTS[kind](SMOOTH[name])
            found = expectation([product(name, kind)], [[variance]])
            check(found, line(f, variance), size([f], [[variance]]), 1e-10)

    @pytest.mark.parametrize("mean", [-8.0, 0.7, 50.0])
    @pytest.mark.parametrize("name", ["tanh", "softplus", "gelu", "sin"])
    def test_with_a_mean(self, name: str, mean: float) -> None:
        f = SMOOTH[name][0]
        for variance in (1e-8, 1.0, 30.0):
            scale = math.sqrt(line(lambda t: f(t) ** 2, variance, mean))
            check(expectation([name], [[variance]], mean=[mean]), line(f, variance, mean), scale, 1e-10)

    def test_no_variance_leaves_the_value_at_the_mean(self) -> None:
        assert float(expectation(["softplus"], [[0.0]])) == pytest.approx(math.log(2), rel=1e-15)
        assert float(expectation(["tanh"], [[0.0]], mean=[0.3])) == pytest.approx(math.tanh(0.3), rel=1e-15)


class TestTwoInputs:
    @pytest.mark.parametrize("kind", PRODUCTS)
    @pytest.mark.parametrize(("number", "name"), list(enumerate(PLAIN)))
    def test_a_rotating_choice_of_covariances(self, number: int, name: str, kind: str) -> None:
        f = PRODUCTS[kind](SMOOTH[name])
        start = 5 * number + 7 * list(PRODUCTS).index(kind)
        cases = [(r, v) for r in CORRELATIONS for v in VARIANCES]
        for step, ratio in enumerate((1.0, 1.3)):
            correlation, variance = cases[(start + 23 * step) % len(cases)]
            K = two(variance, correlation, ratio)
            found = expectation([product(name, kind)] * 2, K)
            check(found, pair(f, f, K), size([f, f], K), 1e-10)

    @pytest.mark.parametrize("correlation", CORRELATIONS)
    def test_different_activations(self, correlation: float) -> None:
        for variance in (1e-3, 1.0, 30.0):
            K = two(variance, correlation, 1.3)
            found = expectation(["tanh", z * factor("swish", order=1)], K)
            g = PRODUCTS["z s'"](SMOOTH["swish"])
            check(found, pair(TANH, g, K), size([TANH, g], K), 1e-10)

    @pytest.mark.parametrize("variance", VARIANCES)
    @pytest.mark.parametrize("correlation", CORRELATIONS)
    def test_sines_are_exact(self, variance: float, correlation: float) -> None:
        K = two(variance, correlation, 1.3)
        for names in (["sin", "sin"], ["cos", "cos"]):
            f = [SMOOTH[name][0] for name in names]
            true = sines([name == "sin" for name in names], K)
            found = expectation(names, K)
            scale = math.prod(
                math.sqrt(sines([n == "sin"] * 2, [[k, k], [k, k]])) for n, k in zip(names, np.diag(K))
            )
            check(found, true, scale, 1e-13)
            assert found.rule == "closed form"
            by_quadrature = expectation([lambda t, g=g: g(t) for g in f], K)
            check(by_quadrature, true, scale, 1e-10)

    def test_odd_factors_of_independent_inputs(self) -> None:
        for f in (factor("erf", order=2), z * factor("erf", order=1), factor("tanh", order=2)):
            found = expectation([f, f], np.eye(2))
            assert abs(found.value) <= found.error + 1e-15
            assert abs(found.value) < 1e-11


class TestClosedForms:
    @pytest.mark.parametrize("correlation", [0.0, 0.5, -0.9, 0.999, 1.0, -1.0])
    @pytest.mark.parametrize("variance", [1e-3, 1.0, 30.0])
    @pytest.mark.parametrize("name", ["gelu", "erf"])
    @pytest.mark.parametrize("order", [0, 1])
    def test_agree_with_quadrature(self, name: str, order: int, variance: float, correlation: float) -> None:
        K = two(variance, correlation, 0.8)
        f = SMOOTH[name][order]
        found = expectation([(name, order)] * 2, K)
        assert found.rule == "closed form"
        check(found, pair(f, f, K), size([f, f], K), 1e-13)

    def test_slopes_of_erf_at_four_inputs(self) -> None:
        K = random_covariance(np.random.default_rng(0), 4, 3.0)
        true = (4 / math.pi) ** 2 / math.sqrt(np.linalg.det(np.eye(4) + 2 * K))
        found = expectation([("erf", 1)] * 4, K)
        assert found.rule == "closed form"
        check(found, true, true, 1e-13)
        check(
            expectation([lambda t: 2 / math.pi**0.5 * np.exp(-t * t)] * 4, K),
            true,
            size([SMOOTH["erf"][1]] * 4, K),
            1e-8,
        )

    @pytest.mark.parametrize("mean", [None, [0.3, -1.0, 0.2]])
    def test_polynomials_are_exact(self, mean: list[float] | None) -> None:
        K = random_covariance(np.random.default_rng(1), 3, 2.0)
        found = expectation([z**2, Polynomial([1, 0, 2]), z], K, mean=mean)
        powers = [(1.0, (2, 0, 1)), (2.0, (2, 2, 1))]
        true = sum(w * float(gaussian_moment(K, p, mean=mean)) for w, p in powers)
        assert float(found) == pytest.approx(true, rel=1e-13, abs=1e-14)

    @pytest.mark.parametrize("variance", [1e-8, 1e-3, 1.0, 100.0])
    def test_four_sines(self, variance: float) -> None:
        K = variance * random_covariance(np.random.default_rng(2), 4)
        for pattern in ([True] * 4, [True, True, False, False], [False] * 4):
            names = ["sin" if s else "cos" for s in pattern]
            true = sines(pattern, K)
            scale = math.sqrt(
                math.prod(sines([s] * 2, [[k, k], [k, k]]) for s, k in zip(pattern, np.diag(K)))
            )
            check(expectation(names, K), true, scale, 1e-10)

    def test_many_sines_fall_back_to_quadrature(self) -> None:
        K = two(0.5, 0.3)
        found = expectation([factor("sin") ** 6, factor("sin") ** 6], K)
        f = lambda t: np.sin(t) ** 6  # noqa: E731
        check(found, pair(f, f, K), size([f, f], K), 1e-10)


class TestThreeAndFourInputs:
    @pytest.mark.parametrize("name", PLAIN)
    @pytest.mark.parametrize("n", [3, 4])
    def test_one_common_part(self, name: str, n: int) -> None:
        rng = np.random.default_rng(n)
        common, own = rng.uniform(-1, 1, n), rng.uniform(0.4, 1, n)
        grow = 2 / np.sqrt(common**2 + own**2).max()
        K = one_factor_covariance(grow * common, grow * own)
        orders = [0, 1, 0, 0][:n]
        f = [SMOOTH[name][k] for k in orders]
        found = expectation([(name, k) for k in orders], K)
        check(found, one_factor(f, grow * common, grow * own), size(f, K), 1e-8)

    def test_two_common_parts_and_mixed_activations(self) -> None:
        rng = np.random.default_rng(5)
        common, own = rng.uniform(-1, 1, (4, 2)), rng.uniform(0.6, 1.2, 4)
        K = common @ common.T + np.diag(own**2)
        names = ["tanh", "gelu", "swish", "softplus"]
        f = [SMOOTH[name][0] for name in names]
        check(expectation(names, K), two_factors(f, common, own), size(f, K), 1e-8)

    def test_nearly_parallel(self) -> None:
        common, own = [1.2] * 4, [0.1] * 4
        K = one_factor_covariance(common, own)
        check(expectation(["tanh"] * 4, K), one_factor([TANH] * 4, common, own), size([TANH] * 4, K), 1e-8)

    @pytest.mark.parametrize("name", ["tanh", "gelu", "softplus"])
    @pytest.mark.parametrize(
        "vectors",
        [
            [[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.7, 1.3]],
            [[1.0, 0.0], [0.3, 0.8], [1.3, 0.8], [-0.2, 1.0]],
            [[1.0, 0.0], [0.3, 0.8], [1.3, 0.8]],
            [[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0]],
        ],
        ids=["equal and opposite", "sum of two", "three, sum of two", "all equal"],
    )
    def test_singular_covariances(self, name: str, vectors: list[list[float]]) -> None:
        V = np.array(vectors)
        f = [SMOOTH[name][0]] * len(V)
        true = plane(f, np.linalg.norm(V, axis=1), np.arctan2(V[:, 1], V[:, 0]))
        check(expectation([name] * len(V), V @ V.T), true, size(f, V @ V.T), 1e-8)

    def test_inputs_without_variance_are_constants(self) -> None:
        K = np.diag([1.0, 0.0, 2.0, 0.0])
        found = expectation(["softplus", "softplus", "tanh", "cos"], K, mean=[0.0, 0.4, 0.5, 0.1])
        true = line(SMOOTH["softplus"][0], 1.0) * np.logaddexp(0, 0.4) * line(TANH, 2.0, 0.5) * math.cos(0.1)
        assert float(found) == pytest.approx(true, rel=1e-8)

    def test_constant_factors_drop_out(self) -> None:
        K = random_covariance(np.random.default_rng(3), 4)
        pair_only = expectation(["tanh", "tanh"], K[np.ix_([0, 2], [0, 2])])
        found = expectation(["tanh", one, "tanh", 2.0], K)
        assert float(found) == pytest.approx(2 * float(pair_only), rel=1e-9)


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
        assert abs(float(repeated) - float(merged)) <= 2e-8 * size([f for f in factors], K)

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


class TestStacks:
    def test_shapes_follow_the_stack(self) -> None:
        K = np.stack([[two(1.0, r) for r in (0.1, 0.5, 1.0)], [two(3.0, r) for r in (0.0, -0.5, -1.0)]])
        found = expectation(["tanh", "gelu"], K)
        assert found.value.shape == found.error.shape == (2, 3)
        for index in np.ndindex(2, 3):
            alone = expectation(["tanh", "gelu"], K[index])
            assert abs(found.value[index] - alone.value) <= found.error[index] + alone.error + 1e-15

    def test_means_broadcast_over_the_stack(self) -> None:
        found = expectation(["softplus"], np.ones((2, 1, 1)), mean=[[0.0], [1.0]])
        assert found.value == pytest.approx(
            [line(SMOOTH["softplus"][0], 1.0, m) for m in (0.0, 1.0)], rel=1e-10
        )
        assert expectation(["softplus"], np.ones((2, 1, 1)), mean=[1.0]).value == pytest.approx(
            [found.value[1]] * 2
        )

    def test_an_empty_stack(self) -> None:
        assert expectation(["tanh", "tanh"], np.ones((0, 2, 2))).value.shape == (0,)

    def test_zero_variance_inside_a_stack(self) -> None:
        found = expectation(
            ["softplus", "softplus"], np.stack([np.zeros((2, 2)), np.eye(2), np.diag([1.0, 0.0])])
        )
        mean = line(SMOOTH["softplus"][0], 1.0)
        assert found.value == pytest.approx([math.log(2) ** 2, mean**2, mean * math.log(2)], rel=1e-10)


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
        def f(t: np.ndarray) -> np.ndarray:
            return np.tanh(200 * t)

        K = two(30.0, 0.5)
        with pytest.warns(AccuracyWarning, match="reached only an error"):
            found = expectation([f, f], K, tolerance=1e-13)
        true = 2 / math.pi * math.asin(0.5)
        # tanh(200 z) differs from a sign by a smoothing of relative order (1 / 200 sqrt(K))^2.
        assert abs(float(found) - true) <= float(found.error) + 2e-6

    def test_ordinary_results_come_without_warning(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            expectation(["tanh"] * 4, random_covariance(np.random.default_rng(9), 4, 4.0))
            expectation(["swish", ("swish", 2)], two(100.0, 0.999))

    def test_the_repr_teaches(self) -> None:
        text = repr(expectation(["tanh", "tanh"], two(1.0, 0.5)))
        assert text.startswith("Expectation(0.18632441319")
        assert "lattice" in text
        assert "shape (2,)" in repr(expectation(["tanh"], np.ones((2, 1, 1))))

    def test_it_behaves_as_its_value(self) -> None:
        found = expectation(["softplus"], np.ones((2, 1, 1)))
        assert np.asarray(found).shape == (2,)
        assert np.array_equal(np.array(found), found.value)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: expectation([], np.eye(1)), "1 to 4"),
        (lambda: expectation(["tanh"] * 5, np.eye(5)), "1 to 4"),
        (lambda: expectation(["tanh"], np.eye(2)), "2 x 2, but there are 1"),
        (lambda: expectation(["tanh", "tanh"], [[1, 2], [2, 1]]), "not positive semidefinite"),
        (lambda: expectation(["tanh", "tanh"], [[1, 0.5], [0.4, 1]]), "not symmetric"),
        (lambda: expectation(["tanh"], [[np.nan]]), "not finite"),
        (lambda: expectation(["tanh"], [[1.0]], mean=[1.0, 2.0]), "mean has shape"),
        (lambda: expectation(["tanh"], [[1.0]], mean=[np.inf]), "mean has entries"),
        (lambda: expectation(["tanh"], [[1.0]], tolerance=0.0), "tolerance must lie"),
        (lambda: expectation(["tanh"], [[1.0]], tolerance=1.0), "tolerance must lie"),
        (lambda: expectation(["tanh"], [[1.0]], tolerance=math.nan), "tolerance must lie"),
        (lambda: expectation(["nonsense"], [[1.0]]), "unknown activation"),
        (lambda: expectation([lambda t: t.sum()], [[1.0]]), "one value per entry"),
        (lambda: expectation([lambda t: 1 / t], [[1.0]]), "finite"),
        (lambda: expectation([lambda t: 1j * t], [[1.0]]), "real"),
    ],
)
def test_bad_input_gives_one_clear_sentence(call: Callable[[], object], words: str) -> None:
    with (
        warnings.catch_warnings(),
        pytest.raises(InputError, match=words) as raised,
    ):
        warnings.simplefilter("ignore", RuntimeWarning)
        call()
    assert str(raised.value).count(". ") == 0
