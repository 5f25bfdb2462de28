"""Many products on shared grids: against oracles, against each other, and how the ladder of grids behaves."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from reference_integrals import (
    SMOOTH,
    one_factor,
    one_factor_covariance,
    pair,
    random_covariance,
    sines,
    size,
)

from foretrain.activations import Activation
from foretrain.gaussian import expectation, factor, z
from foretrain.gaussian.covariance import staircase
from foretrain.gaussian.factors import Factor, one, values_of
from foretrain.gaussian.grids import _COUNTS, _GAUSS, _axis, grid_expectation
from foretrain.gaussian.panels import Table
from foretrain.gaussian.quadrature import Stack

TANH, SLOPE = factor("tanh"), factor("tanh", 1)


def on_grids(products: list[list[Factor]], K: np.ndarray, tolerance: float = 1e-8) -> tuple[Any, Any]:
    """Values and errors (P,) at one covariance, in the order of its inputs."""
    lower = np.linalg.cholesky(K)[None]
    factors = list(dict.fromkeys(f for row in products for f in row))
    which = np.array([[[factors.index(f) for f in row] for row in products]])
    value, error = grid_expectation(
        factors, which, lower, np.zeros((1, len(K))), np.ones(which.shape[:2]), tolerance
    )
    return value[0], error[0]


class TestAxes:
    @pytest.mark.parametrize("rung", range(1, len(_COUNTS)))
    def test_moments_of_one_variable(self, rung: int) -> None:
        axis = _axis(rung, 1e-10)
        for power, true in ((0, 1.0), (1, 0.0), (2, 1.0), (4, 3.0), (6, 15.0)):
            assert axis.weights @ axis.points**power == pytest.approx(true, abs=1e-8 if axis.step else 1e-12)

    @pytest.mark.parametrize("rung", range(1, len(_COUNTS)))
    @pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6])
    def test_moments_of_two_variables(self, rung: int, correlation: float) -> None:
        axis = _axis(rung, 1e-10)
        weights = axis.pair_weights(np.array([correlation]))[0]
        x = axis.points
        for powers, true in (((0, 0), 1), ((1, 1), correlation), ((2, 2), 1 + 2 * correlation**2)):
            found = x ** powers[0] @ weights @ x ** powers[1]
            assert found == pytest.approx(true, abs=1e-8)

    @pytest.mark.parametrize("rung", [3, len(_GAUSS) + 1])
    def test_one_variable_twice(self, rung: int) -> None:
        axis = _axis(rung, 1e-10)
        assert axis.pair_weights(np.ones(1))[0] == pytest.approx(np.diag(axis.weights), abs=1e-13)

    @pytest.mark.parametrize("rung", range(len(_GAUSS), len(_COUNTS)))
    @pytest.mark.parametrize("own", [1e-14, 1e-7, 1e-3, 0.03, 0.2])
    def test_moments_of_variables_that_differ_by_less_than_a_step(self, rung: int, own: float) -> None:
        axis, correlation = _axis(rung, 1e-12), 1 - own
        weights = axis.pair_weights(np.array([correlation]))[0]
        for wave in (0.5, 1.1):
            x = axis.points
            found = np.cos(wave * x) @ weights @ np.cos(wave * x)
            true = math.exp(-(wave**2)) * math.cosh(wave**2 * correlation)
            assert found == pytest.approx(true, abs=1e-9)


class TestAgainstOracles:
    @pytest.mark.parametrize("variance", [0.02, 0.5, 3.0, 20.0])
    @pytest.mark.parametrize("correlation", [0.0, 0.6, -0.95, 0.9999])
    def test_two_inputs(self, variance: float, correlation: float) -> None:
        K = variance * np.array([[1.0, correlation], [correlation, 1.0]])
        value, error = on_grids([[TANH, TANH], [SLOPE, SLOPE]], K)
        for order in (0, 1):
            f = SMOOTH["tanh"][order]
            assert abs(value[order] - pair(f, f, K)) <= min(error[order], 1e-8)

    @pytest.mark.slow(after=2)
    @pytest.mark.parametrize("inputs", [3, 4])
    @pytest.mark.parametrize("name", ["tanh", "gelu", "swish", "softplus"])
    @pytest.mark.parametrize("variance", [0.05, 0.7, 3.0])
    def test_three_and_four_inputs(self, name: str, inputs: int, variance: float) -> None:
        common = math.sqrt(variance) * np.array([0.8, -0.5, 0.4, 0.7])[:inputs]
        own = math.sqrt(variance) * np.array([0.6, 0.7, 0.9, 0.3])[:inputs]
        K = one_factor_covariance(common, own)
        orders = [(0,) * inputs, (1,) * inputs, (0, 1, 1, 0)[:inputs]]
        products = tuple(tuple(factor(name, k) for k in row) for row in orders)
        found, error = Stack(K[None], np.zeros((1, inputs)), 1e-8).totals(products)
        for k, row in enumerate(orders):
            f = [SMOOTH[name][order] for order in row]
            true, scale = one_factor(f, common, own), size(f, K)
            assert abs(found[k, 0] - true) <= 1e-8 * scale
            assert abs(found[k, 0] - true) <= error[k, 0] + 1e-13 * scale

    def test_sines_of_four_inputs(self) -> None:
        K = random_covariance(np.random.default_rng(3), 4, 2.0)
        s, c = factor("sin"), factor("cos")
        value, _ = on_grids([[s] * 4, [s, c, c, s], [c] * 4], K, 1e-10)
        true = [sines([f == s for f in row], K) for row in ([s] * 4, [s, c, c, s], [c] * 4)]
        assert value == pytest.approx(true, abs=1e-10)

    def test_polynomials(self) -> None:
        K = random_covariance(np.random.default_rng(4), 4)
        value, _ = on_grids([[z] * 4, [z**2, z**2, z**2, z**2]], K)
        assert value[0] == pytest.approx(K[0, 1] * K[2, 3] + K[0, 2] * K[1, 3] + K[0, 3] * K[1, 2], abs=1e-9)
        assert value[1] == pytest.approx(float(expectation([z**2] * 4, K)), abs=1e-8)


class TestManyAtOnce:
    def test_what_stands_where_follows_the_pivots(self) -> None:
        """Different factors at every input, many covariances whose pivots come in different orders."""
        rng = np.random.default_rng(0)
        K = np.stack([random_covariance(rng, 4, 1.0) for _ in range(12)])
        assert len(np.unique(staircase(K).order, axis=0)) > 4
        products = (TANH, SLOPE, TANH * SLOPE, TANH**2), (SLOPE, SLOPE, TANH**2, factor("gelu"))
        value, error = Stack(K, np.zeros((12, 4)), 1e-8).totals(products)
        for b, k in itertools.product(range(12), range(2)):
            true = expectation(products[k], K[b], tolerance=1e-11)
            assert abs(value[k, b] - float(true)) <= error[k, b] + float(true.error)

    def test_symmetric_products_of_permuted_inputs(self) -> None:
        K = random_covariance(np.random.default_rng(5), 4, 1.5)
        orders = list(itertools.permutations(range(4)))
        stack = np.stack([K[np.ix_(order, order)] for order in orders])
        value, _ = Stack(stack, np.zeros((24, 4)), 1e-10).totals(((TANH,) * 4, (SLOPE,) * 4))
        assert np.ptp(value, axis=1) == pytest.approx(0, abs=1e-14)

    def test_means(self) -> None:
        K = random_covariance(np.random.default_rng(6), 3)
        mean = np.array([0.4, -0.7, 0.1])
        shifted, _ = Stack(K[None], mean[None], 1e-9).totals(((TANH, TANH, TANH), (SLOPE, TANH, TANH)))
        one_by_one = [float(expectation(f, K, mean=mean)) for f in ([TANH] * 3, [SLOPE, TANH, TANH])]
        assert shifted[:, 0] == pytest.approx(one_by_one, abs=1e-8)

    def test_inputs_that_never_move_and_constants(self) -> None:
        K = np.zeros((2, 3, 3))
        K[:, :2, :2] = [[1.0, 0.3], [0.3, 0.5]]
        K[1, 2, 2] = 0.8
        value, _ = Stack(K, np.zeros((2, 3)), 1e-9).totals(((TANH, TANH, SLOPE), (TANH, TANH, one)))
        alone = float(expectation([TANH, TANH], K[0, :2, :2]))
        assert value[0, 0] == pytest.approx(alone, rel=1e-8)
        assert value[0, 1] == pytest.approx(alone * float(expectation([SLOPE], [[0.8]])), rel=1e-7)
        assert value[1] == pytest.approx([alone, alone], rel=1e-8)

    @pytest.mark.parametrize("variance", [0.3, 1.5])
    @pytest.mark.parametrize("rank", [1, 2, 3])
    def test_dependent_inputs(self, rank: int, variance: float) -> None:
        A = np.random.default_rng(rank).standard_normal((4, rank))
        K = variance * A @ A.T / rank
        value, error = Stack(K[None], np.zeros((1, 4)), 1e-8).totals(((TANH,) * 4, (SLOPE,) * 4))
        for order in (0, 1):
            f = [factor("tanh", order)] * 4
            true = Stack(K[None], np.zeros((1, 4)), 1e-10)
            (found,), (doubt,) = true._directly((tuple(f),), np.arange(1), true.scales((tuple(f),)))
            assert abs(value[order] - found) <= error[order] + doubt


class TestLadder:
    def test_too_wide_for_any_grid(self) -> None:
        """The error says that nothing was found; the rules for one product then take over."""
        K = 2000.0 * random_covariance(np.random.default_rng(1), 4)
        _, error = on_grids([[TANH] * 4], K)
        assert np.isinf(error).all()

    def test_a_function_less_smooth_than_it_says_is_not_believed(self) -> None:
        """Successive grids disagree, and the error shows it."""
        rough = Activation(
            "rough", "|z|", lambda t, _: np.abs(t), ("rough",), strip=1.0, strip_is_measured=True
        )
        K = random_covariance(np.random.default_rng(2), 3)
        value, error = on_grids([[factor(rough)] * 3], K)
        assert abs(value[0] - float(expectation(["abs"] * 3, K))) <= error[0]
        assert error[0] > 1e-8

    def test_growth_in_the_tails(self) -> None:
        grown = factor(np.exp)
        K = random_covariance(np.random.default_rng(7), 3)
        value, error = on_grids([[grown] * 3], K)
        assert abs(value[0] - math.exp(K.sum() / 2)) <= error[0]


def test_values_of_several_factors() -> None:
    x = np.linspace(-2, 2, 7).reshape(1, 7)
    factors = [TANH, SLOPE, TANH * SLOPE**2, z * TANH, z**2, one]
    for f, value in zip(factors, values_of(factors, x), strict=True):
        assert np.array_equal(value, f(x))


def test_a_table_that_cannot_reach_its_tolerance_says_so() -> None:
    table = Table(np.abs, np.linspace(-1.1, 1.0, 4), 1e-15)
    points = np.linspace(-1, 1, 41)
    assert np.abs(table(points) - np.abs(points)).max() < 0.02
    assert table.error > 1e-6
