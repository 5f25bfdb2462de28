from __future__ import annotations

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from foretrain.gaussian.orthant import (
    orthant_moment,
    orthant_moment_with_error,
    orthant_probability,
    piecewise_polynomial_moment,
)
from foretrain.gaussian.wick import gaussian_moment
from foretrain.support.errors import InputError, NotSupportedError

FOUR = np.array([[1, 0.5, 0.2, -0.3], [0.5, 1.2, 0.4, 0.1], [0.2, 0.4, 0.9, 0.25], [-0.3, 0.1, 0.25, 1.1]])
PAIR = np.array([[1, 0.6], [0.6, 1.4]])
RELU = ([0.0], [0.0, 1.0])
LEAKY = ([0.0, 0.1], [0.0, 1.0])
STEP = ([0.0], [1.0])


def equicorrelated(rho: float, n: int = 4) -> np.ndarray:
    return np.full((n, n), rho) + (1 - rho) * np.eye(n)


def one_dimensional(rho: float, power: int) -> float:
    """E[prod z_i^power theta(z_i)] at equal correlation: independent factors, given the common part."""
    a, b = math.sqrt(rho), math.sqrt(1 - rho)

    def factor(x: float) -> float:
        m = a * x / b
        density, below = stats.norm.pdf(m), stats.norm.cdf(m)
        return float(below if power == 0 else b * (m * below + density))

    value, _ = integrate.quad(
        lambda x: stats.norm.pdf(x) * factor(x) ** 4, -12, 12, epsabs=1e-14, epsrel=1e-13, limit=400
    )
    return float(value)


def conditioned(K: mp.matrix, j: int) -> mp.matrix:
    others = [i for i in range(K.rows) if i != j]
    return mp.matrix([[K[a, b] - K[a, j] * K[j, b] / K[j, j] for b in others] for a in others])


def reference(K: mp.matrix, powers: list[int]) -> mp.mpf:
    """The same recursion with Schur complements in 40 digits, for up to three variables."""
    rho = {
        (i, j): K[i, j] / mp.sqrt(K[i, i] * K[j, j]) for i, j in itertools.combinations(range(len(powers)), 2)
    }
    if not any(powers):
        arcs = sum((mp.asin(r) for r in rho.values()), start=mp.mpf(0))
        return mp.mpf(2) ** -len(powers) + arcs / (mp.pi * (2 if len(powers) == 2 else 4))
    i = next(index for index, power in enumerate(powers) if power)
    rest = [power - (index == i) for index, power in enumerate(powers)]
    total = mp.mpf(0)
    for j, power in enumerate(rest):
        if power:
            total += K[i, j] * power * reference(K, [p - (index == j) for index, p in enumerate(rest)])
        else:
            child = reference(conditioned(K, j), rest[:j] + rest[j + 1 :]) if len(rest) > 1 else mp.mpf(1)
            total += K[i, j] / mp.sqrt(2 * mp.pi * K[j, j]) * child
    return total


def plackett(R: np.ndarray) -> float:
    """Four variables by the path that scales all correlations at once, by scipy's adaptive rule."""

    def integrand(u: float) -> float:
        t, total = math.sin(u), 0.0
        path = np.eye(4) + t * (R - np.eye(4))
        for i, j in itertools.combinations(range(4), 2):
            kept = [k for k in range(4) if k not in (i, j)]
            block = path[np.ix_([i, j], [i, j])]
            cross = path[np.ix_(kept, [i, j])]
            rest = path[np.ix_(kept, kept)] - cross @ np.linalg.solve(block, cross.T)
            inner = 0.25 + math.asin(rest[0, 1] / math.sqrt(rest[0, 0] * rest[1, 1])) / (2 * math.pi)
            total += R[i, j] / (2 * math.pi * math.sqrt(1 - (t * R[i, j]) ** 2)) * inner
        return total * math.cos(u)

    return 1 / 16 + float(integrate.quad(integrand, 0, math.pi / 2, epsabs=1e-13, epsrel=1e-13, limit=400)[0])


@pytest.mark.parametrize(
    ("K", "powers", "expected"),
    [
        (FOUR, [0, 0, 0, 0], 0.1082068001),
        (FOUR, [1, 1, 1, 1], 0.0969781591),
        (FOUR, [1, 1, 0, 0], 0.1086651596),
        (FOUR, [2, 1, 0, 1], 0.1058463888),
        (PAIR, [1, 1], 0.3630907645),
        (PAIR, [0, 0], 0.3346398874),
        (PAIR, [2, 2], 1.0015888591),
        (PAIR, [3, 1], 0.9687015041),
        (equicorrelated(0.9), [0, 0, 0, 0], 0.3693123627),
        (equicorrelated(0.5, 2), [1, 1], 0.3044988905),
        (equicorrelated(0.5, 2), [0, 0], 1 / 3),
        (np.eye(1), [1], 0.3989422804),
        (np.eye(1), [4], 1.5),
    ],
)
def test_reference_values(K: np.ndarray, powers: list[int], expected: float) -> None:
    assert orthant_moment(K, powers) == pytest.approx(expected, abs=6e-11)


@pytest.mark.parametrize(
    ("pieces", "K", "expected"),
    [
        ([LEAKY] * 4, FOUR, 0.0844335485),
        ([LEAKY] * 2, PAIR, 0.3541035193),
        ([([0.1], [1.0])] * 2, PAIR, 0.3710583088),
        ([([0.0, 0.0, 0.01], [0.0, 0.0, 1.0])] * 2, PAIR, 1.0028572408),
        ([LEAKY], np.eye(1), 0.3590480524),
        ([RELU, RELU, STEP, STEP], FOUR, 0.1086651596),
    ],
)
def test_piecewise_reference_values(pieces: list, K: np.ndarray, expected: float) -> None:
    assert piecewise_polynomial_moment(pieces, K).value == pytest.approx(expected, abs=6e-11)


@pytest.mark.parametrize("rho", [0.0, 0.1, 0.5, 0.9, 0.99, 0.9999])
@pytest.mark.parametrize("power", [0, 1])
def test_equal_correlations_by_a_one_dimensional_integral(rho: float, power: int) -> None:
    value, error = orthant_moment_with_error(equicorrelated(rho), [power] * 4)
    assert value == pytest.approx(one_dimensional(rho, power), abs=2e-13)
    assert error < 1e-13


def test_four_variables_by_another_path() -> None:
    rng = np.random.default_rng(5)
    for spread in (1.0, 0.3, 0.05):
        vectors = rng.normal(size=4) * np.array([[1], [-1], [1], [1]]) + spread * rng.normal(size=(4, 4))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        R = vectors @ vectors.T
        np.fill_diagonal(R, 1.0)
        assert orthant_probability(R) == pytest.approx(plackett(R), abs=3e-12)


@pytest.mark.parametrize("distance", [1.0, 1e-2, 1e-4, 1e-6, 1e-9])
@pytest.mark.parametrize("powers", [[1, 0, 0], [0, 0, 1], [1, 1, 0], [2, 1, 1], [1, 3, 0]])
def test_nearly_parallel_variables_against_forty_digits(distance: float, powers: list[int]) -> None:
    """Two of the three inputs are ``distance`` apart."""
    rng = np.random.default_rng(6)
    inputs = rng.normal(size=(3, 3))
    inputs[1] = inputs[0] + distance * rng.normal(size=3)
    K = inputs @ inputs.T
    with mp.workdps(40):
        exact = mp.matrix(inputs.tolist())
        expected = float(reference(exact * exact.T, powers))
    value, error = orthant_moment_with_error(K, powers)
    size = math.prod(K[i, i] ** (p / 2) for i, p in enumerate(powers))
    # K itself is rounded: its last digit moves positive powers by as much, two bare steps by eps / distance.
    rounding = 4e-15 if powers[0] or powers[1] else min(1e-15 / distance, 2e-8)
    assert abs(value - expected) < rounding * size + 4e-15
    assert error < 1e-6


@pytest.mark.slow
def test_estimated_errors_are_honest_under_reordering() -> None:
    """Six orders of the variables are six computations with different rounding: they agree within errors."""
    rng = np.random.default_rng(7)
    for distance in (1.0, 1e-3, 1e-5, 1e-7):
        for kind in range(3):
            inputs = rng.normal(size=(25, 4, 4))
            target = inputs[:, 0] if kind == 0 else inputs[:, 0] - 0.7 * inputs[:, 1]
            inputs[:, 2] = target + distance * rng.normal(size=(25, 4))
            if kind == 2:
                inputs[:, :, 3] *= distance
            K = inputs @ inputs.transpose(0, 2, 1)
            for powers in ([0, 0, 0, 0], [1, 1, 1, 1], [2, 1, 0, 1]):
                found = []
                for order in (
                    [0, 1, 2, 3],
                    [2, 0, 3, 1],
                    [3, 2, 1, 0],
                    [1, 3, 0, 2],
                    [1, 0, 2, 3],
                    [0, 3, 2, 1],
                ):
                    found.append(
                        orthant_moment_with_error(K[:, order][:, :, order], [powers[i] for i in order])
                    )
                for one, two in itertools.combinations(found, 2):
                    assert np.all(np.abs(one.value - two.value) <= one.error + two.error)


@pytest.mark.statistical
def test_against_scrambled_sobol_points() -> None:
    """Sixteen independent scramblings give the mean and its standard error."""
    powers = np.array([[1, 1, 1, 1], [2, 1, 0, 1], [0, 0, 0, 0], [1, 1, 0, 0]])
    sampled = []
    for seed in range(16):
        z = stats.norm.ppf(stats.qmc.Sobol(4, seed=seed).random_base2(17)) @ np.linalg.cholesky(FOUR).T
        moments = [np.where(z >= 0, z**p, 0.0).prod(axis=1).mean() for p in powers]
        sampled.append([*moments, np.where(z > 0, z, 0.1 * z).prod(axis=1).mean()])
    mean, error = np.mean(sampled, axis=0), np.std(sampled, axis=0, ddof=1) / 4
    found = [*(orthant_moment(FOUR, p) for p in powers), piecewise_polynomial_moment([LEAKY] * 4, FOUR).value]
    assert np.all(error < 1e-3 * mean)
    assert np.all(np.abs(found - mean) < 4 * error)


def test_independent_variables_factorise() -> None:
    K = np.diag([1.0, 4.0, 0.25, 9.0])
    expected = math.prod([1 / math.sqrt(2 * math.pi), 0.5 * 4, 0.5, 2 / math.sqrt(2 * math.pi) * 27])
    assert orthant_moment(K, [1, 2, 0, 3]) == pytest.approx(expected, rel=1e-14)


def test_all_orthants_add_up_to_the_plain_moment() -> None:
    for powers in ([0, 0, 0, 0], [1, 1, 1, 1], [2, 1, 0, 1]):
        total = 0.0
        for signs in itertools.product([1.0, -1.0], repeat=4):
            flipped = orthant_moment(FOUR * np.outer(signs, signs), powers)
            total += math.prod(s**p for s, p in zip(signs, powers)) * flipped
        assert total == pytest.approx(gaussian_moment(FOUR, powers), abs=1e-14)


def test_variables_without_a_step_are_plain_powers() -> None:
    # With z_4 free, conditioning on its sign either way and adding must give the same.
    free = orthant_moment(FOUR, [1, 1, 0, 2], steps=[0, 1, 2])
    flip = np.diag([1.0, 1, 1, -1])
    halves = orthant_moment(FOUR, [1, 1, 0, 2]) + orthant_moment(flip @ FOUR @ flip, [1, 1, 0, 2])
    assert free == pytest.approx(halves, abs=1e-14)
    assert orthant_moment(FOUR, [2, 1, 1, 0], steps=[]) == pytest.approx(gaussian_moment(FOUR, [2, 1, 1, 0]))


def test_plain_polynomials_cost_no_step() -> None:
    line = ([0.5, 2.0], [0.5, 2.0])
    K = np.eye(6) + 0.2
    value = piecewise_polynomial_moment([line] * 5 + [RELU], K).value
    expected = sum(
        0.5 ** (5 - sum(powers)) * 2 ** sum(powers) * orthant_moment(K, [*powers, 1], steps=[5])
        for powers in itertools.product([0, 1], repeat=5)
    )
    assert value == pytest.approx(expected, rel=1e-13)


def test_equal_and_opposite_variables() -> None:
    rng = np.random.default_rng(8)
    inputs = rng.normal(size=(3, 4))
    K = inputs @ inputs.T
    for scale in (1.0, 0.3, 7.7):
        doubled = np.vstack([inputs, scale * inputs[0]])
        same = doubled @ doubled.T
        assert orthant_probability(same) == pytest.approx(orthant_probability(K), abs=1e-15)
        assert orthant_moment(same, [1, 1, 0, 2]) == pytest.approx(
            scale**2 * orthant_moment(K, [3, 1, 0]), rel=1e-13
        )
        opposite = np.vstack([inputs, -scale * inputs[0]])
        against = opposite @ opposite.T
        assert orthant_probability(against) == pytest.approx(0, abs=1e-15)
        value, error = orthant_moment_with_error(against, [1, 1, 0, 2])
        assert abs(value) <= error < 1e-11
        free = orthant_moment(against, [1, 1, 0, 3], steps=[0, 1, 2])
        assert free == pytest.approx(-(scale**3) * orthant_moment(K, [4, 1, 0]), rel=1e-13)


def test_three_and_four_equal_variables() -> None:
    ones = np.ones((4, 4))
    assert orthant_probability(ones) == pytest.approx(0.5, abs=1e-15)
    assert orthant_moment(ones, [1, 1, 1, 1]) == pytest.approx(1.5, abs=1e-14)
    assert orthant_moment(ones, [0, 1, 0, 0]) == pytest.approx(1 / math.sqrt(2 * math.pi), abs=1e-15)
    assert orthant_moment(np.ones((3, 3)), [0, 1, 2]) == pytest.approx(2 / math.sqrt(2 * math.pi), abs=1e-15)


def test_linearly_dependent_variables_without_equal_pairs() -> None:
    """With z_4 = z_1 + z_2 its step is implied by the others', and its powers expand."""
    rng = np.random.default_rng(9)
    inputs = rng.normal(size=(3, 3))
    dependent = np.vstack([inputs, inputs[0] + inputs[1]])
    K, full = inputs @ inputs.T, dependent @ dependent.T
    assert orthant_probability(full) == pytest.approx(orthant_probability(K), abs=1e-15)
    assert orthant_moment(full, [0, 0, 0, 1]) == pytest.approx(
        orthant_moment(K, [1, 0, 0]) + orthant_moment(K, [0, 1, 0]), abs=1e-14
    )
    assert orthant_moment(full, [1, 0, 1, 2]) == pytest.approx(
        orthant_moment(K, [3, 0, 1]) + 2 * orthant_moment(K, [2, 1, 1]) + orthant_moment(K, [1, 2, 1]),
        abs=1e-13,
    )


def test_rank_two_is_the_angle_of_a_wedge() -> None:
    """Four directions in a plane: the orthant is the wedge that all half-planes share."""
    for angles in ([0.0, 0.4, 1.1, 1.9], [0.3, -0.9, 0.1, 1.2], [0.0, 2.0, 4.0, 5.0]):
        vectors = np.array([[math.cos(a), math.sin(a)] for a in angles])
        grid = (np.arange(200_000) + 0.5) / 200_000 * 2 * math.pi
        inside = (vectors @ np.array([np.cos(grid), np.sin(grid)]) > 0).all(axis=0)
        assert orthant_probability(vectors @ vectors.T) == pytest.approx(inside.mean(), abs=1e-5)
        radial = (np.array([np.cos(grid), np.sin(grid)]).T @ vectors.T).prod(axis=1)
        expected = 8 * (radial * inside).mean()  # E[r^4] = 8 in the plane
        assert orthant_moment(vectors @ vectors.T, [1, 1, 1, 1]) == pytest.approx(expected, abs=1e-5)


def test_generic_rank_three_is_the_limit_of_full_rank() -> None:
    rng = np.random.default_rng(10)
    inputs = rng.normal(size=(5, 4, 3))
    K = inputs @ inputs.transpose(0, 2, 1)
    limit = [orthant_moment(K + eta * np.eye(4), [1, 1, 1, 1]) for eta in (1e-9, 2e-9)]
    # ReLU moments are smooth enough in K to extrapolate linearly.
    assert orthant_moment(K, [1, 1, 1, 1]) == pytest.approx(2 * limit[0] - limit[1], abs=1e-12)


def test_zero_variance() -> None:
    K = FOUR.copy()
    K[2, :] = K[:, 2] = 0.0
    rest = [0, 1, 3]
    assert orthant_probability(K) == pytest.approx(orthant_probability(FOUR[np.ix_(rest, rest)]), abs=1e-15)
    assert orthant_moment(K, [1, 1, 1, 0]) == 0
    value = piecewise_polynomial_moment([RELU, RELU, ([3.0, 1.0], [2.0, 5.0]), RELU], K).value
    assert value == pytest.approx(2 * orthant_moment(FOUR[np.ix_(rest, rest)], [1, 1, 1]), rel=1e-14)
    assert orthant_probability(np.zeros((4, 4))) == 1
    assert orthant_moment(np.zeros((2, 2)), [1, 0]) == 0


def test_batches_mix_regular_and_singular_covariances() -> None:
    dead = FOUR.copy()
    dead[1, :] = dead[:, 1] = 0.0
    stack = np.stack([FOUR, np.ones((4, 4)), dead, np.zeros((4, 4)), equicorrelated(0.9), 3 * FOUR])
    for powers in ([1, 1, 1, 1], [0, 0, 0, 0], [2, 0, 1, 0]):
        whole = orthant_moment_with_error(stack.reshape(2, 3, 4, 4), powers)
        assert whole.value.shape == whole.error.shape == (2, 3)
        singles = [orthant_moment(K, powers) for K in stack]
        assert whole.value.ravel() == pytest.approx(singles, abs=1e-15)
    assert orthant_moment(np.zeros((0, 4, 4)), [1, 1, 1, 1]).shape == (0,)


def test_large_batches_are_cut() -> None:
    stack = np.tile(FOUR, (9000, 1, 1)) * np.linspace(1, 2, 9000)[:, None, None]
    assert orthant_probability(stack) == pytest.approx(np.full(9000, 0.1082068001), abs=6e-11)


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.floats(-2, 2), min_size=16, max_size=16),
    st.permutations(range(4)),
    st.lists(st.integers(0, 2), min_size=4, max_size=4),
    st.lists(st.floats(0.1, 10), min_size=4, max_size=4),
)
def test_permutations_and_scales(
    entries: list[float], order: list[int], powers: list[int], scales: list[float]
) -> None:
    inputs = np.reshape(entries, (4, 4)) + np.eye(4)
    K = inputs @ inputs.T
    value, error = orthant_moment_with_error(K, powers)
    permuted, other = orthant_moment_with_error(K[np.ix_(order, order)], [powers[i] for i in order])
    assert abs(permuted - value) <= error + other
    scaled, third = orthant_moment_with_error(K * np.outer(scales, scales), powers)
    factor = math.prod(s**p for s, p in zip(scales, powers))
    assert abs(scaled - factor * value) <= third + factor * error
    assert value >= -error


@settings(deadline=None, max_examples=25)
@given(st.floats(-1, 1), st.floats(-1, 1), st.floats(0.2, 5))
def test_pairs_follow_the_closed_form(rho: float, slope: float, scale: float) -> None:
    """<sigma sigma> of a scale-invariant activation (section 2.2), for any correlation including +-1."""
    K = np.array([[scale, rho], [rho, 1 / scale]])
    value, error = piecewise_polynomial_moment([([0.0, slope], [0.0, 1.0])] * 2, K)
    f = (math.sqrt((1 - rho) * (1 + rho)) + rho * (math.pi / 2 + math.asin(rho))) / (2 * math.pi)
    assert value == pytest.approx((1 - slope) ** 2 * f + slope * rho, abs=4e-15)
    assert error < 1e-13


def test_bad_input() -> None:
    with pytest.raises(InputError, match="not symmetric"):
        orthant_probability([[1.0, 0.5], [0.0, 1.0]])
    with pytest.raises(InputError, match="positive semidefinite"):
        orthant_moment([[1.0, 2.0], [2.0, 1.0]], [1, 1])
    with pytest.raises(InputError, match="not finite"):
        orthant_probability([[np.inf]])
    with pytest.raises(InputError, match="square matrix"):
        orthant_probability(1.0)
    with pytest.raises(InputError, match="4 inputs"):
        orthant_moment(np.eye(3), [1, 1, 1, 1])
    with pytest.raises(InputError, match="whole numbers"):
        orthant_moment(np.eye(2), [1, -1])
    with pytest.raises(InputError, match="steps"):
        orthant_moment(np.eye(2), [1, 1], steps=[2])
    with pytest.raises(NotSupportedError, match="5 variables"):
        orthant_probability(np.eye(5))
    with pytest.raises(NotSupportedError, match="order 101"):
        orthant_moment(np.eye(1), [101])
    with pytest.raises(InputError, match="factor 1"):
        piecewise_polynomial_moment([RELU, ([np.nan], [1.0])], np.eye(2))
