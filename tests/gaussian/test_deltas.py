"""Delta functions of kinked activations, against integration by parts and limits of smooth functions."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.polynomial import hermite_e
from reference_integrals import (
    FUNCTIONS,
    KINKED,
    SMOOTH,
    Function,
    check,
    line,
    normal,
    pair,
    plane,
    random_covariance,
    two,
)

from foretrain.activations import activation
from foretrain.gaussian import expectation, factor, gram, z
from foretrain.support.errors import NotSupportedError

quick = settings(deadline=None, max_examples=15)
RELU, SOFTSIGN, SELU = (KINKED[name][0] for name in ("relu", "softsign", "selu"))
HARD_TANH = activation(lambda t: np.clip(t, -1, 1), name="hard_tanh")


def derivative_by_parts(f: Function, variance: float, order: int, kinks: tuple[float, ...] = (0.0,)) -> float:
    """<f^(n)> = <f He_n(z / sqrt K)> / K^(n/2): holds for distributions."""
    d = math.sqrt(variance)
    weight = [0.0] * order + [1.0]
    return line(lambda t: f(t) * hermite_e.hermeval(t / d, weight) / d**order, variance, 0.0, kinks)


def pair_by_parts(f: Function, g: Function, m: int, n: int, K: np.ndarray) -> float:
    """<f^(m)(z_1) g^(n)(z_2)> with all derivatives moved to the Gaussian, a polynomial in z_1, z_2."""
    inverse = np.linalg.inv(K)
    terms = {(0, 0): 1.0}
    for i in [0] * m + [1] * n:
        moved: dict[tuple[int, int], float] = {}
        for powers, c in terms.items():
            if powers[i]:
                lowered = (powers[0] - (i == 0), powers[1] - (i == 1))
                moved[lowered] = moved.get(lowered, 0.0) - c * powers[i]
            for j in (0, 1):
                raised = (powers[0] + (j == 0), powers[1] + (j == 1))
                moved[raised] = moved.get(raised, 0.0) + c * inverse[i, j]
        terms = moved
    return sum(
        c * pair(lambda t, a=a: f(t) * t**a, lambda t, b=b: g(t) * t**b, K) for (a, b), c in terms.items()
    )


class TestOneInput:
    @pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
    @pytest.mark.parametrize("name", sorted(KINKED))
    def test_derivatives_of_every_order(self, name: str, order: int) -> None:
        for variance in (0.3, 1.0, 7.0):
            true = derivative_by_parts(KINKED[name][0], variance, order)
            check(expectation([(name, order)], [[variance]]), true, max(1.0, abs(true)), 1e-11)

    @pytest.mark.parametrize("order", [1, 2, 3, 4])
    def test_kinks_away_from_zero(self, order: int) -> None:
        for variance in (0.3, 1.0, 7.0):
            true = derivative_by_parts(HARD_TANH, variance, order, (-1.0, 1.0))
            check(
                expectation([factor(HARD_TANH, order=order)], [[variance]]), true, max(1.0, abs(true)), 1e-10
            )

    def test_known_values(self) -> None:
        K = 1.7
        density = 1 / math.sqrt(2 * math.pi * K)
        assert float(expectation([("relu", 2)], [[K]])) == pytest.approx(density, rel=1e-14)
        assert float(expectation([("abs", 2)], [[K]])) == pytest.approx(2 * density, rel=1e-14)
        assert float(expectation([("perceptron", 1)], [[K]])) == pytest.approx(density, rel=1e-14)
        assert float(expectation([("sign", 1)], [[K]])) == pytest.approx(2 * density, rel=1e-14)
        assert float(expectation([("relu", 3)], [[K]])) == pytest.approx(0.0, abs=1e-15)
        assert float(expectation([("relu", 4)], [[K]])) == pytest.approx(-density / K, rel=1e-14)

    def test_with_a_mean(self) -> None:
        for mean in (-1.0, 0.4):
            found = expectation([("relu", 2)], [[2.0]], mean=[mean])
            assert float(found) == pytest.approx(math.exp(-(mean**2) / 4) / math.sqrt(4 * math.pi), rel=1e-13)

    def test_times_a_smooth_function(self) -> None:
        """delta' tests the slope: <g relu'''> = -(g phi)'(0) = -g'(0) phi(0)."""
        density = 1 / math.sqrt(2 * math.pi)
        assert float(expectation([factor("relu", order=2) * factor("cos")], [[1.0]])) == pytest.approx(
            density
        )
        assert float(expectation([factor("relu", order=2) * z], [[1.0]])) == pytest.approx(0.0, abs=1e-16)
        assert float(expectation([factor("relu", order=3) * factor("sin")], [[1.0]])) == pytest.approx(
            -density
        )
        assert float(expectation([factor("relu", order=3) * z], [[1.0]])) == pytest.approx(-density)
        assert float(expectation([factor("relu", order=4) * z**2], [[1.0]])) == pytest.approx(2 * density)

    def test_times_itself(self) -> None:
        density = 1 / math.sqrt(2 * math.pi)
        second = factor("relu", order=2)
        assert float(expectation([second * factor("relu")], [[1.0]])) == pytest.approx(0.0, abs=1e-16)
        assert float(expectation([second * factor("relu", order=1)], [[1.0]])) == pytest.approx(density / 2)
        assert float(expectation([second * factor("relu", order=1, power=2)], [[1.0]])) == pytest.approx(
            density / 3
        )

    def test_the_square_of_a_delta_function_is_infinite(self) -> None:
        assert float(expectation([factor("relu", order=2, power=2)], [[1.0]])) == math.inf
        assert float(expectation([factor("perceptron", order=1, power=2)], [[1.0]])) == math.inf

    def test_what_has_no_value_is_refused(self) -> None:
        with pytest.raises(NotSupportedError, match="delta function"):
            expectation([factor("relu", order=2) * factor("perceptron")], [[1.0]])
        with pytest.raises(NotSupportedError, match="infinite"):
            expectation([factor("relu", order=2, power=2), "tanh"], np.eye(2))

    def test_no_width_left(self) -> None:
        assert float(expectation([("relu", 2)], [[0.0]])) == math.inf
        assert float(expectation([("relu", 2)], [[0.0]], mean=[1.0])) == 0.0


class TestTwoInputs:
    @pytest.mark.slow(after=4)
    @pytest.mark.parametrize("orders", [(2, 0), (2, 1), (2, 2), (3, 0), (3, 1), (3, 2), (4, 1)])
    @pytest.mark.parametrize(
        "names", [("relu", "relu"), ("relu", "tanh"), ("selu", "elu"), ("softsign", "abs"), ("abs", "gelu")]
    )
    def test_by_parts(self, names: tuple[str, str], orders: tuple[int, int]) -> None:
        K = np.array([[1.0, 0.4], [0.4, 1.3]])
        true = pair_by_parts(FUNCTIONS[names[0]][0], FUNCTIONS[names[1]][0], *orders, K)
        found = expectation(list(zip(names, orders)), K)
        check(found, true, max(1.0, abs(true)), 1e-10)

    @pytest.mark.parametrize("correlation", [0.0, 0.9, -0.9, 0.999, 1 - 1e-8])
    @pytest.mark.parametrize("variance", [1e-8, 1e-3, 1.0, 100.0])
    def test_closed_forms(self, variance: float, correlation: float) -> None:
        K = two(variance, correlation, 1.3)
        rest = math.sqrt(K[1, 1]) * math.sqrt((1 - correlation) * (1 + correlation))
        density = 1 / math.sqrt(2 * math.pi * variance)
        delta_delta = 1 / (2 * math.pi * math.sqrt(variance) * rest)
        assert float(expectation([("relu", 2)] * 2, K)) == pytest.approx(delta_delta, rel=1e-7)
        found = expectation([("relu", 2), "relu"], K)
        assert float(found) == pytest.approx(density * rest / math.sqrt(2 * math.pi), rel=1e-7)
        assert float(expectation([("relu", 2), "perceptron"], K)) == pytest.approx(density / 2, rel=1e-12)

    def test_nearly_parallel_inputs_keep_their_digits(self) -> None:
        """<delta delta> = 1 / (2 pi sqrt(K_11 K_22 - K_12^2)): the determinant exactly, not through rho."""
        rho = 1 - 2.0**-40
        exact = 1 / (2 * math.pi * math.sqrt(2.0**-39 - 2.0**-80))
        assert float(expectation([("perceptron", 1)] * 2, two(1.0, rho))) == pytest.approx(exact, rel=1e-13)

    def test_equal_and_opposite_inputs(self) -> None:
        for side in (1.0, -1.0):
            K = two(1.0, side)
            assert float(expectation([("relu", 2), ("relu", 2)], K)) == math.inf
            assert float(expectation([("relu", 2), "relu"], K)) == pytest.approx(0.0, abs=1e-15)
            assert float(expectation([("relu", 2), "cos"], K)) == pytest.approx(normal(0.0), rel=1e-13)
            assert float(expectation([("relu", 2), "softplus"], K)) == pytest.approx(
                normal(0.0) * math.log(2)
            )

    @pytest.mark.parametrize("correlation", [0.0, 0.5, -0.9])
    @pytest.mark.parametrize("variance", [0.3, 1.0, 30.0])
    def test_kinks_away_from_zero(self, variance: float, correlation: float) -> None:
        K = two(variance, correlation)
        density = math.exp(-0.5 / variance) / math.sqrt(2 * math.pi * variance)
        left = variance * (1 - correlation**2)
        second = factor(HARD_TANH, order=2)
        true = density * (line(np.tanh, left, -correlation) - line(np.tanh, left, correlation))
        check(expectation([second, "tanh"], K), true, 1.0, 1e-12)
        inverse = np.linalg.inv(K)
        signs = [np.array([a, b]) for a in (1, -1) for b in (1, -1)]
        weights = sum(s[0] * s[1] * math.exp(-0.5 * s @ inverse @ s) for s in signs)
        true = weights / (2 * math.pi * math.sqrt(np.linalg.det(K)))
        check(expectation([second, second], K), true, 1.0, 1e-12)

    def test_good_results_come_without_warning(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            expectation([factor(HARD_TANH, order=2), "tanh"], two(1.0, 0.5))
            expectation([("relu", 2), "tanh", "gelu"], random_covariance(np.random.default_rng(0), 3))
            expectation([("selu", 2), ("selu", 2)], two(1.0, 0.5))


class TestThreeAndFourInputs:
    def test_given_one_input_the_others_are_gaussian(self) -> None:
        K = random_covariance(np.random.default_rng(1), 3)
        rest = K[1:, 1:] - np.outer(K[1:, 0], K[1:, 0]) / K[0, 0]
        true = pair(np.tanh, SOFTSIGN, rest) / math.sqrt(2 * math.pi * K[0, 0])
        check(expectation([("relu", 2), "tanh", "softsign"], K), true, 1.0, 1e-9)

    def test_two_deltas(self) -> None:
        K = random_covariance(np.random.default_rng(2), 4)
        block, cross = K[:2, :2], K[2:, :2]
        rest = K[2:, 2:] - cross @ np.linalg.solve(block, cross.T)
        density = 1 / (2 * math.pi * math.sqrt(np.linalg.det(block)))
        true = density * pair(SELU, np.tanh, rest)
        check(expectation([("relu", 2), ("abs", 2), "selu", "tanh"], K), 2 * true, 1.0, 1e-9)

    def test_all_deltas(self) -> None:
        K = random_covariance(np.random.default_rng(3), 4)
        true = 1 / (4 * math.pi**2 * math.sqrt(np.linalg.det(K)))
        assert float(expectation([("relu", 2)] * 4, K)) == pytest.approx(true, rel=1e-12)

    def test_dependent_inputs(self) -> None:
        """z_3 = z_1 + z_2: given z_1 = 0, z_3 is z_2."""
        V = np.array([[1.0, 0.0], [0.3, 0.8], [1.3, 0.8]])
        true = 0.8**2 / 2 / math.sqrt(2 * math.pi)
        assert float(expectation([("relu", 2), "relu", "relu"], V @ V.T)) == pytest.approx(true, rel=1e-9)


class TestLimitsOfSmoothFunctions:
    """softplus(beta z) / beta tends to the ReLU; errors fall as beta^-2 (beta^-1 where two of them meet)."""

    @staticmethod
    def soft(beta: float, order: int) -> Function:
        f = SMOOTH["softplus"][order]
        return lambda t: beta ** (order - 1) * f(beta * t)

    @pytest.mark.parametrize("orders", [(2, 0), (2, 1), (2, 2)])
    def test_pairs(self, orders: tuple[int, int]) -> None:
        K = two(1.0, 0.4, 1.2)
        exact = float(expectation([("relu", k) for k in orders], K))
        gaps = []
        for beta in (10.0, 20.0, 40.0):
            smooth = plane([self.soft(beta, k) for k in orders], [1.0, 1.2], [0.0, math.acos(0.4)])
            gaps.append(abs(smooth - exact))
        assert gaps[2] < 2e-3 * max(1.0, abs(exact))
        assert 3.0 < gaps[0] / gaps[1] < 5.0
        assert 3.0 < gaps[1] / gaps[2] < 5.0

    def test_the_product_of_a_step_and_its_delta(self) -> None:
        exact = float(expectation([factor("relu", order=2) * factor("relu", order=1)], [[1.0]]))
        for beta in (20.0, 200.0):
            delta, step = self.soft(beta, 2), self.soft(beta, 1)
            smooth = line(lambda t, f=delta, g=step: f(t) * g(t), 1.0)
            assert smooth == pytest.approx(exact, abs=2.0 / beta**2)


class TestGrams:
    def test_delta_grams_agree_with_single_expectations(self) -> None:
        K = random_covariance(np.random.default_rng(5), 6)
        K[3] = K[1]
        K[:, 3] = K[:, 1]
        K[3, 3] = K[1, 3] = K[3, 1] = K[1, 1]
        results = gram([(("relu", 2), "relu"), (("relu", 2), ("relu", 2)), (("selu", 2), "tanh")], K)
        assert isinstance(results, list)
        for (f, g), result in zip(
            [(("relu", 2), "relu"), (("relu", 2), ("relu", 2)), (("selu", 2), "tanh")], results
        ):
            for i, j in [(0, 1), (1, 0), (1, 3), (2, 5), (5, 2)]:
                alone = expectation([f, g], K[np.ix_([i, j], [i, j])])
                assert result.value[i, j] == pytest.approx(float(alone), rel=1e-10, abs=1e-12)

    def test_diagonals(self) -> None:
        K = random_covariance(np.random.default_rng(6), 3)
        square = gram([(("relu", 2), ("relu", 2))], K)
        assert isinstance(square, list)
        assert np.isinf(np.diagonal(square[0].value)).all()
        assert not np.isnan(square[0].value).any()
        mixed = gram([(("relu", 2), ("relu", 1))], K)
        assert isinstance(mixed, list)
        half = 0.5 / np.sqrt(2 * np.pi * np.diagonal(K))
        assert np.diagonal(mixed[0].value) == pytest.approx(half, rel=1e-12)


@quick
@given(seed=st.integers(0, 200), name=st.sampled_from(["relu", "selu", "softsign", "abs"]))
def test_second_derivatives_by_price(seed: int, name: str) -> None:
    """<f(z_1) g''(z_2)> is twice the derivative in K_22."""
    K = random_covariance(np.random.default_rng(seed), 2)
    step = 1e-4 * K[1, 1]
    bump = np.diag([0.0, step])
    weights = {-2: 1.0, -1: -8.0, 1: 8.0, 2: -1.0}
    slope = sum(
        w * float(expectation(["tanh", name], K + k * bump, tolerance=1e-12)) for k, w in weights.items()
    )
    assert float(expectation(["tanh", (name, 2)], K)) == pytest.approx(2 * slope / (12 * step), abs=2e-7)
