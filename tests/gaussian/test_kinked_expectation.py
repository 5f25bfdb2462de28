"""Kinked factors: orthant closed forms and panels against oracles that share no code with them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_integrals import (
    CORRELATIONS,
    FUNCTIONS,
    KINKED,
    VARIANCES,
    angle,
    check,
    line,
    normal,
    one_factor,
    one_factor_covariance,
    pair,
    panels,
    plane,
    random_covariance,
    size,
    two,
    two_factors,
)
from scipy import special

from foretrain.gaussian import Factor, expectation, factor, products_at, z
from foretrain.gaussian.quadrature import Stack
from foretrain.support.errors import AccuracyWarning

quick = settings(deadline=None, max_examples=15)
POLYNOMIAL = ("relu", "leaky_relu(slope=0.1)", "abs")
CURVED = ("softsign", "elu", "selu")
RELU, SELU, SOFTSIGN = (KINKED[name][0] for name in ("relu", "selu", "softsign"))


def hard_tanh(t: np.ndarray) -> np.ndarray:
    return np.clip(t, -1, 1)


def products(name: str) -> dict[str, tuple[Factor, Callable[[np.ndarray], np.ndarray]]]:
    """Products without delta functions."""
    s, slope = factor(name), factor(name, order=1)
    f, g = KINKED[name][:2]
    return {
        "s": (s, f),
        "s'": (slope, g),
        "z s'": (z * slope, lambda t: t * g(t)),
        "s^2": (s**2, lambda t: f(t) ** 2),
        "s^4": (s**4, lambda t: f(t) ** 4),
        "s s'": (s * slope, lambda t: f(t) * g(t)),
    }


class TestOneInput:
    @pytest.mark.parametrize("name", POLYNOMIAL + CURVED)
    def test_every_product_at_every_variance(self, name: str) -> None:
        for (f, plain), variance in itertools.product(products(name).values(), VARIANCES):
            check(expectation([f], [[variance]]), line(plain, variance), size([plain], [[variance]]), 1e-10)

    @pytest.mark.parametrize("mean", [-8.0, -0.3, 2.0, 50.0])
    @pytest.mark.parametrize("name", ["relu", "perceptron", "softsign", "selu"])
    def test_with_a_mean(self, name: str, mean: float) -> None:
        f = KINKED[name][0] if name in KINKED else KINKED["relu"][1]
        for variance in (1e-8, 1.0, 30.0):
            scale = max(math.sqrt(line(lambda t: f(t) ** 2, variance, mean)), 1e-300)
            check(expectation([name], [[variance]], mean=[mean]), line(f, variance, mean), scale, 1e-10)

    @pytest.mark.parametrize("place", [0.5, 5.0, 19.0])
    def test_kinks_away_from_zero(self, place: float) -> None:
        for deviation in (1.0, 10.0):
            c = place / deviation
            true = deviation * (normal(c) - c * special.ndtr(-c))
            found = expectation([lambda t: np.maximum(t - place, 0)], [[deviation**2]])
            check(found, float(true), deviation, 1e-10)

    @pytest.mark.filterwarnings("ignore::foretrain.support.errors.AccuracyWarning")
    def test_a_kink_nobody_knows_of_is_in_the_estimate(self) -> None:
        c = 2.5
        true = 10 * (normal(c) - c * special.ndtr(-c))
        found = expectation([lambda t: np.maximum(t - 25.0, 0)], [[100.0]])
        assert abs(float(found) - true) <= float(found.error)

    @pytest.mark.parametrize("variance", [1.0, 4.0, 10.0, 30.0, 100.0])
    def test_growth_beyond_the_usual_range(self, variance: float) -> None:
        def f(t: np.ndarray) -> np.ndarray:
            return np.where(t > 0, np.exp(np.minimum(t, 600)), 1 + t)

        d = math.sqrt(variance)
        true = math.exp(variance / 2) * special.ndtr(d) + 0.5 - d / math.sqrt(2 * math.pi)
        found = expectation([f], [[variance]])
        assert abs(float(found) - true) <= float(found.error) + 1e-13 * true
        assert float(found) == pytest.approx(true, rel=1e-8)


class TestTwoInputs:
    @pytest.mark.slow(after=21)
    @pytest.mark.parametrize("kind", ["s", "s'", "z s'", "s^2", "s^4", "s s'"])
    @pytest.mark.parametrize(("number", "name"), list(enumerate(POLYNOMIAL + CURVED)))
    def test_a_rotating_choice_of_covariances(self, number: int, name: str, kind: str) -> None:
        f, plain = products(name)[kind]
        cases = [(r, v) for r in CORRELATIONS for v in VARIANCES]
        start = 11 * number + 7 * list(products(name)).index(kind)
        for step, ratio in enumerate((1.0, 1.3)):
            correlation, variance = cases[(start + 23 * step) % len(cases)]
            K = two(variance, correlation, ratio)
            check(expectation([f, f], K), pair(plain, plain, K), size([plain, plain], K), 1e-10)

    @pytest.mark.parametrize("correlation", CORRELATIONS)
    @pytest.mark.parametrize(
        "names", [("relu", "tanh"), ("selu", "softsign"), ("gelu", "elu"), ("abs", "sin")]
    )
    def test_different_activations(self, names: tuple[str, str], correlation: float) -> None:
        K = two(1.5, correlation, 0.7)
        f = [FUNCTIONS[name][0] for name in names]
        check(expectation(names, K), pair(*f, K), size(f, K), 1e-10)

    @pytest.mark.parametrize("correlation", [1 - 1e-8, 1 - 1e-10, 1 - 1e-12, -1 + 1e-12])
    def test_no_digits_are_lost_for_nearly_parallel_inputs(self, correlation: float) -> None:
        K = two(1.0, correlation)
        theta = angle(K)
        chance = float((math.pi - theta) / (2 * math.pi))
        check(expectation([("relu", 1), ("relu", 1)], K), chance, 0.5, 1e-13)
        arc = float((math.sin(theta) + (math.pi - theta) * math.cos(theta)) / (2 * math.pi))
        check(expectation(["relu", "relu"], K), arc, 0.5, 1e-14)

    @pytest.mark.slow(after=2)
    @pytest.mark.parametrize("variance", [1e-8, 1.0, 100.0])
    @pytest.mark.parametrize("correlation", [0.0, 0.5, -0.9, 0.999, 1 - 1e-8])
    def test_hard_tanh(self, variance: float, correlation: float) -> None:
        K = two(variance, correlation, 1.3)
        scale = size([hard_tanh, hard_tanh], K, kinks=(-1.0, 1.0))
        check(expectation([hard_tanh, hard_tanh], K), _with_hard_tanh(hard_tanh, K), scale, 1e-10)
        scale = size([np.tanh, hard_tanh], K, kinks=(-1.0, 1.0))
        check(expectation(["tanh", hard_tanh], K), _with_hard_tanh(np.tanh, K), scale, 1e-10)

    def test_powers_that_grow(self) -> None:
        def f(t: np.ndarray) -> np.ndarray:
            return SELU(t) * t**8

        K = two(1.0, 0.8)
        check(expectation([factor("selu") * z**8] * 2, K), pair(f, f, K), size([f, f], K), 1e-10)

    def test_a_smooth_factor_that_grows(self) -> None:
        """E f(z_1) exp(z_2 / 2) = exp(K_22 / 8) E f(z_1 + K_12 / 2)."""
        K = two(30.0, 0.5)
        true = math.exp(30 / 8) * line(SOFTSIGN, 30.0, 7.5)
        check(expectation(["softsign", lambda t: np.exp(t / 2)], K), true, math.exp(7.5), 1e-10)


def _with_hard_tanh(f: Callable[[np.ndarray], np.ndarray], K: np.ndarray) -> float:
    """E f(z_1) hard_tanh(z_2): the second input averaged exactly, given the first."""
    d = math.sqrt(K[0, 0])
    along, across = K[0, 1] / d, math.sqrt(K[1, 1]) * math.sin(angle(K))
    around = [0, 0.5, 1, 2, 3, 4, 6, 8, 10, 14]
    edges = [*np.linspace(-12.5, 12.5, 101), -1 / d, 1 / d]
    if along:
        edges += [(k + s * across * q) / along for k in (-1, 1) for s in (-1, 1) for q in around]
    x, w = panels(np.sort(np.clip(edges, -12.5, 12.5)))
    low, high = (-1 - along * x) / across, (1 - along * x) / across
    inside = special.ndtr(high) - special.ndtr(low)
    mean = (
        special.ndtr(-high) - special.ndtr(low) + along * x * inside - across * (normal(high) - normal(low))
    )
    return float(np.sum(w * normal(x) * f(d * x) * mean))


class TestThreeAndFourInputs:
    @pytest.mark.parametrize("name", POLYNOMIAL)
    @pytest.mark.parametrize("orders", [(0, 0, 0), (0, 0, 0, 0), (1, 1, 1, 1), (0, 0, 1, 1)])
    def test_closed_forms(self, name: str, orders: tuple[int, ...]) -> None:
        n = len(orders)
        rng = np.random.default_rng(n)
        common, own = rng.uniform(-1.5, 1.5, n), rng.uniform(0.4, 1, n)
        K = one_factor_covariance(common, own)
        f = [KINKED[name][k] for k in orders]
        found = expectation([(name, k) for k in orders], K)
        assert found.rule == "closed form"
        check(found, one_factor(f, common, own), size(f, K), 1e-12)

    @pytest.mark.parametrize("names", [("selu",) * 3, ("softsign", "elu", "tanh"), ("relu", "relu", "gelu")])
    def test_three_without_closed_form(self, names: tuple[str, ...]) -> None:
        rng = np.random.default_rng(4)
        common, own = rng.uniform(-1.3, 1.3, 3), rng.uniform(0.4, 1, 3)
        K = one_factor_covariance(common, own)
        f = [FUNCTIONS[name][0] for name in names]
        check(expectation(names, K), one_factor(f, common, own), size(f, K), 1e-8)

    @pytest.mark.slow
    def test_four_without_closed_form(self) -> None:
        names = ("elu", "tanh", "relu", "gelu")
        common, own = np.array([[0.7, 0.2], [-0.5, 0.4], [0.3, -0.6], [0.2, 0.8]]), [0.8, 0.7, 0.9, 0.6]
        K = common @ common.T + np.diag(np.square(own))
        f = [FUNCTIONS[name][0] for name in names]
        check(expectation(names, K), two_factors(f, common, own), size(f, K), 1e-8)

    @pytest.mark.parametrize("names", [("relu",) * 4, ("selu",) * 4, ("softsign", "relu", "tanh", "elu")])
    @pytest.mark.parametrize(
        "vectors",
        [
            [[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.7, 1.3]],
            [[1.0, 0.0], [0.3, 0.8], [1.3, 0.8], [-0.2, 1.0]],
            [[1.0, 0.0], [0.3, 0.8], [1.3, 0.8]],
            [[1.5, 0.0], [1.5, 0.0], [1.5, 0.0], [1.5, 0.0]],
        ],
        ids=["equal and opposite", "sum of two", "three, sum of two", "all equal"],
    )
    def test_singular_covariances(self, names: tuple[str, ...], vectors: list[list[float]]) -> None:
        V = np.array(vectors)
        names = names[: len(V)]
        f = [FUNCTIONS[name][0] for name in names]
        true = plane(f, np.linalg.norm(V, axis=1), np.arctan2(V[:, 1], V[:, 0]))
        check(expectation(names, V @ V.T), true, size(f, V @ V.T), 1e-8)

    def test_ranks_blurred_by_rounding(self) -> None:
        """Gram matrices of dependent inputs carry rounding of order 1e-16 that must not cost time or digits."""
        rng = np.random.default_rng(6)
        for _ in range(4):
            V = rng.standard_normal((4, 2))
            true = plane([SOFTSIGN] * 4, np.linalg.norm(V, axis=1), np.arctan2(V[:, 1], V[:, 0]))
            check(expectation(["softsign"] * 4, V @ V.T), true, size([SOFTSIGN] * 4, V @ V.T), 1e-8)

    @pytest.mark.filterwarnings("ignore::foretrain.support.errors.AccuracyWarning")
    @pytest.mark.parametrize("name", ["perceptron", "relu", "selu"])
    def test_kinks_that_cross_away_from_the_origin(self, name: str) -> None:
        rng = np.random.default_rng(7)
        f = KINKED["relu"][1] if name == "perceptron" else KINKED[name][0]
        for _ in range(3):
            V, mean = rng.standard_normal((3, 2)), rng.standard_normal(3)
            found = expectation([name] * 3, V @ V.T, mean=mean)
            true = _plane_with_mean([f] * 3, V, mean, [(0.0,)] * 3)
            assert abs(float(found) - true) <= float(found.error) + 1e-13
            assert float(found) == pytest.approx(true, abs=1e-6)

    @pytest.mark.filterwarnings("ignore::foretrain.support.errors.AccuracyWarning")
    def test_three_hard_tanh_in_a_plane(self) -> None:
        rng = np.random.default_rng(8)
        for _ in range(3):
            V = rng.standard_normal((3, 2))
            found = expectation([hard_tanh, hard_tanh, lambda t: hard_tanh(t) + 1], V @ V.T)
            true = _plane_with_mean(
                [hard_tanh, hard_tanh, lambda t: hard_tanh(t) + 1], V, np.zeros(3), [(-1.0, 1.0)] * 3
            )
            assert abs(float(found) - true) <= float(found.error) + 1e-13
            assert float(found) == pytest.approx(true, abs=1e-7)


def _plane_with_mean(
    functions: list[Callable[[np.ndarray], np.ndarray]],
    V: np.ndarray,
    mean: np.ndarray,
    kinks: list[tuple[float, ...]],
) -> float:
    """E prod f_i(mean_i + V_i . x): outer panels end where two kink lines cross, inner ones at the lines."""
    lines = [(*V[i], k - mean[i]) for i in range(len(V)) for k in kinks[i]]
    crossings = [
        (c * b2 - c2 * b) / (a * b2 - a2 * b)
        for (a, b, c), (a2, b2, c2) in itertools.combinations(lines, 2)
        if abs(a * b2 - a2 * b) > 1e-12
    ]
    edges = np.concatenate([np.linspace(-10, 10, 81), np.clip(crossings, -10, 10)])
    x, w = panels(np.sort(edges))
    breaks = [np.clip((c - a * x) / b, -10, 10)[:, None] for a, b, c in lines]
    base = np.broadcast_to(np.linspace(-10, 10, 41), (len(x), 41))
    y, inner = panels(np.sort(np.concatenate([base, *breaks], axis=1), axis=1))
    terms = inner * normal(y)
    for f, (a, b), m in zip(functions, V, mean):
        terms = terms * f(m + a * x[:, None] + b * y)
    return float(np.sum(w * normal(x) * terms.sum(axis=1)))


class TestProperties:
    @quick
    @given(seed=st.integers(0, 100), scale=st.floats(1e-6, 1e3), n=st.integers(1, 4))
    def test_homogeneous_factors_scale(self, seed: int, scale: float, n: int) -> None:
        K = random_covariance(np.random.default_rng(seed), n)
        base, scaled = expectation(["relu"] * n, K), expectation(["relu"] * n, scale * K)
        assert float(scaled) == pytest.approx(
            scale ** (n / 2) * float(base), rel=1e-9, abs=1e-13 * scale ** (n / 2)
        )

    @quick
    @given(seed=st.integers(0, 100), order=st.permutations(range(3)))
    def test_permuting_inputs_changes_nothing(self, seed: int, order: list[int]) -> None:
        K = random_covariance(np.random.default_rng(seed), 3)
        names = ["relu", "softsign", "selu"]
        a = expectation(names, K)
        b = expectation([names[i] for i in order], K[np.ix_(order, order)])
        assert abs(float(a) - float(b)) <= float(a.error) + float(b.error) + 1e-14

    @quick
    @given(seed=st.integers(0, 100))
    def test_relu_splits_into_identity_and_absolute_value(self, seed: int) -> None:
        K = random_covariance(np.random.default_rng(seed), 2)
        whole = float(expectation(["relu", "selu"], K))
        parts = float(expectation([z, "selu"], K)) / 2 + float(expectation(["abs", "selu"], K)) / 2
        assert whole == pytest.approx(parts, abs=1e-10)

    @quick
    @given(seed=st.integers(0, 100), name=st.sampled_from(["relu", "softsign", "elu", "selu"]))
    def test_stein(self, seed: int, name: str) -> None:
        K = random_covariance(np.random.default_rng(seed), 2, 3.0)
        left = float(expectation([z, name], K))
        assert left == pytest.approx(K[0, 1] * float(expectation([(name, 1)], [[K[1, 1]]])), abs=1e-9)

    def test_orthant_probabilities_of_all_signs_add_up(self) -> None:
        K = random_covariance(np.random.default_rng(11), 4)
        total = 0.0
        for signs in itertools.product((1.0, -1.0), repeat=4):
            total += float(expectation(["perceptron"] * 4, K * np.outer(signs, signs)))
        assert total == pytest.approx(1.0, abs=1e-12)

    def test_the_limit_of_equal_and_opposite_inputs(self) -> None:
        for name, side in itertools.product(("relu", "selu", "softsign"), (1.0, -1.0)):
            angles = np.array([0.0, 1e-7, 1e-6, 1e-5])
            K = np.stack([two(2.0, side * math.cos(a)) for a in angles])
            values = expectation([name, name], K).value
            assert np.abs(values - values[0]).max() < 1e-9


def test_recognised_callables_have_closed_forms() -> None:
    K = two(1.0, 0.6, 1.4)
    by_name, by_hand = expectation(["relu"] * 2, K), expectation([lambda t: np.maximum(t, 0)] * 2, K)
    assert float(by_hand) == pytest.approx(float(by_name), rel=1e-13)
    slope = expectation([lambda t: np.where(t > 0, t, 0.1 * t)] * 2, K)
    assert float(slope) == pytest.approx(float(expectation(["leaky_relu(slope=0.1)"] * 2, K)), rel=1e-12)


@pytest.mark.slow
def test_a_kink_nobody_knows_of_warns_in_two_dimensions() -> None:
    """Kinks of callables are looked for on [-20, 20] only."""
    c = 2.1
    true = float(10 * (normal(c) - c * special.ndtr(-c))) ** 2
    with pytest.warns(AccuracyWarning, match="relative error"):
        found = expectation([lambda t: np.maximum(t - 21.0, 0)] * 2, np.diag([100.0, 100.0]))
    assert abs(float(found) - true) <= float(found.error)


class TestManyAtOnce:
    """Products that share their panels are the products alone."""

    @pytest.mark.slow(after=1)
    @pytest.mark.parametrize("name", ["selu", "elu", "softsign"])
    def test_on_index_sets_with_copies_and_multiples(self, name: str) -> None:
        K = random_covariance(np.random.default_rng(11), 4, 1.5)
        K[3], K[:, 3] = K[2], K[:, 2]
        K[3, 3] = K[3, 2] = K[2, 3] = K[2, 2]
        rows = np.array([[0, 0, 1, 1], [0, 0, 1, 2], [1, 2, 2, 3], [0, 0, 0, 2]])
        kinds = [[0, 0, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1]]
        found = products_at([([factor(name, k) for k in orders], rows) for orders in kinds], K)
        for orders, item in zip(kinds, found, strict=True):
            for row, value, error in zip(rows, item.value, item.error, strict=True):
                alone = expectation([factor(name, k) for k in orders], K[np.ix_(row, row)])
                assert abs(value - float(alone)) <= error + float(alone.error) + 1e-13
                assert error <= 1e-7

    @pytest.mark.parametrize("correlation", [0.3, -0.9, 0.9999])
    def test_with_delta_functions(self, correlation: float) -> None:
        K = np.array([[1.2, correlation], [correlation, 1.1]])
        orders = [(2, 0), (3, 1), (2, 2), (1, 1)]
        products = tuple((factor("selu", i), factor("selu", j)) for i, j in orders)
        value, error = Stack(K[None], np.zeros((1, 2)), 1e-10).totals(products)
        for k, factors in enumerate(products):
            alone = expectation(factors, K, tolerance=1e-12)
            assert abs(value[k, 0] - float(alone)) <= error[k, 0] + float(alone.error) + 1e-13
