"""Smooth factors: closed forms and grids against oracles that share no code with them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import settings
from numpy.polynomial import Polynomial
from reference_integrals import (
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
from foretrain.support.errors import InputError

quick = settings(deadline=None, max_examples=15)
# The oracles resolve no oscillation at large variance; sines have exact formulas of their own.
PLAIN = sorted(set(SMOOTH) - {"sin", "cos"})
TANH = SMOOTH["tanh"][0]


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
    @pytest.mark.slow(after=11)
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

    @pytest.mark.slow(after=8)
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
    @pytest.mark.slow(after=23)
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
        def f(t: np.ndarray) -> np.ndarray:
            return np.sin(t) ** 6

        K = two(0.5, 0.3)
        found = expectation([factor("sin") ** 6, factor("sin") ** 6], K)
        check(found, pair(f, f, K), size([f, f], K), 1e-10)


class TestThreeAndFourInputs:
    @pytest.mark.slow(after=1)
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
    with np.errstate(all="ignore"), pytest.raises(InputError, match=words) as raised:
        call()
    assert str(raised.value).count(". ") == 0
