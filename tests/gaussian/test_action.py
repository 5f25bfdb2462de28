from __future__ import annotations

import math
import warnings
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special

from foretrain.gaussian.action import (
    EvenAction,
    NegativeCouplingWarning,
    QuarticAction,
    neuron_kernel,
    physical_expectation,
    physical_moment,
    three_pairings,
)
from foretrain.support.errors import AccuracyWarning, InputError, NotSupportedError

PAIR = np.array([[1.0, 0.3], [0.3, 0.8]])
PAIR_COUPLING = 0.01 * three_pairings(2) / 3


def tanh_squared(z: np.ndarray) -> np.ndarray:
    return np.tanh(z[:, 0]) ** 2


def symmetrised(tensor: np.ndarray) -> np.ndarray:
    return np.mean([tensor.transpose(order) for order in permutations(range(tensor.ndim))], axis=0)


def test_reference_values_in_one_variable() -> None:
    action = QuarticAction(0.7, 0.013)
    exact = [action.exact_expectation(lambda z, p=p: z[:, 0] ** p).value for p in (2, 4)]
    assert exact == pytest.approx([0.6977891914, 1.4576760222], abs=6e-11)
    assert action.exact_expectation(tanh_squared).value == pytest.approx(0.3301189673, abs=6e-11)
    assert action.two_point()[0, 0] == pytest.approx(0.6977705, abs=1e-14)
    assert action.moment([4]) == pytest.approx(1.4575148, abs=1e-14)
    assert action.four_point_linear()[0, 0, 0, 0] == pytest.approx(1.4575148, abs=1e-14)
    assert action.expectation(tanh_squared).value == pytest.approx(0.3301170221, abs=6e-11)


def test_reference_values_in_two_variables() -> None:
    action = QuarticAction(PAIR, PAIR_COUPLING)
    two = action.two_point()
    assert [two[0, 0], two[0, 1], two[1, 1]] == pytest.approx(
        [0.9925566667, 0.29585, 0.7953233333], abs=6e-11
    )
    connected = action.connected_four_point()
    assert [connected[0, 0, 1, 1], connected[0, 0, 0, 0]] == pytest.approx(
        [-0.0045963333, -0.011881], abs=6e-11
    )
    assert action.partition_ratio() == pytest.approx(0.9971333333, abs=6e-11)
    assert action.four_point_linear()[0, 0, 1, 1] == pytest.approx(0.9597923333, abs=6e-11)
    assert action.moment([4, 2]) == pytest.approx(3.341114, abs=1e-12)


def test_tensor_formulas_agree_with_wicks_theorem_and_quadrature() -> None:
    action = QuarticAction(
        PAIR, symmetrised(0.01 * np.random.default_rng(1).normal(size=(2,) * 4)) + 3 * PAIR_COUPLING
    )
    assert action.moment([1, 1]) == pytest.approx(action.two_point()[0, 1], abs=1e-14)
    assert action.moment([3, 1]) == pytest.approx(action.four_point_linear()[0, 0, 0, 1], abs=1e-14)
    by_lattice = action.expectation(lambda z: z[:, 0] ** 3 * z[:, 1])
    assert by_lattice.value == pytest.approx(action.moment([3, 1]), abs=1e-12)
    assert action.moment([0, 0]) == 1.0


def exact_2d(K: np.ndarray, coupling: np.ndarray) -> dict[str, float]:
    """Z ratio, two- and connected four-point by a brute lattice on z itself."""
    axis = np.linspace(-9, 9, 181)
    z = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    gauss = np.exp(-0.5 * np.einsum("pa,ab,pb->p", z, np.linalg.inv(K), z))
    full = gauss * np.exp(-np.einsum("abcd,pa,pb,pc,pd->p", coupling, z, z, z, z) / 24)
    mean = {
        p: (full * z[:, 0] ** p[0] * z[:, 1] ** p[1]).sum() / full.sum()
        for p in ((2, 0), (1, 1), (0, 2), (2, 2))
    }
    return {
        "ratio": full.sum() / gauss.sum(),
        "two": mean[1, 1],
        "connected": mean[2, 2] - mean[2, 0] * mean[0, 2] - 2 * mean[1, 1] ** 2,
    }


def test_errors_are_second_order_in_the_coupling() -> None:
    """Halving epsilon divides every error by about 4."""
    errors = []
    for scale in (0.02, 0.01):
        coupling = scale * three_pairings(2) / 3
        action, exact = QuarticAction(PAIR, coupling), exact_2d(PAIR, coupling)
        found = {
            "ratio": action.partition_ratio(),
            "two": action.two_point()[0, 1],
            "connected": action.connected_four_point()[0, 0, 1, 1],
        }
        errors.append([abs(found[name] - exact[name]) for name in found])
    assert np.array(errors[0]) / np.array(errors[1]) == pytest.approx(4, rel=0.1)


def test_observables_are_second_order_too() -> None:
    errors = []
    for coupling in (0.02, 0.01, 0.005):
        action = QuarticAction(0.7, coupling)
        errors.append(action.expectation(tanh_squared).value - action.exact_expectation(tanh_squared).value)
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.1)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.05)


def test_the_two_four_points_differ_at_second_order() -> None:
    gaps = []
    for scale in (0.02, 0.01):
        action = QuarticAction(PAIR, scale * three_pairings(2))
        gaps.append(np.abs(action.four_point_linear() - action.four_point_from_two_points()).max())
    assert gaps[0] / gaps[1] == pytest.approx(4, rel=1e-9)
    two = action.two_point()
    rebuilt = two[0, 0] * two[1, 1] + 2 * two[0, 1] ** 2 + action.connected_four_point()[0, 0, 1, 1]
    assert action.four_point_from_two_points()[0, 0, 1, 1] == pytest.approx(rebuilt, abs=1e-15)


def test_inverse_map_recovers_the_action_to_first_order() -> None:
    gaps = []
    for scale in (0.02, 0.01):
        action = QuarticAction(PAIR, scale * three_pairings(2))
        found = QuarticAction.from_correlators(action.two_point(), action.connected_four_point())
        gaps.append([np.abs(found.K - action.K).max(), np.abs(found.coupling - action.coupling).max()])
    assert np.array(gaps[0]) / np.array(gaps[1]) == pytest.approx(4, rel=0.15)


def test_inverse_map_formula() -> None:
    c4 = symmetrised(0.01 * np.random.default_rng(2).normal(size=(2,) * 4)) - 0.02 * three_pairings(2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NegativeCouplingWarning)
        found = QuarticAction.from_correlators(PAIR, c4)
    inverse = np.linalg.inv(PAIR)
    assert found.coupling == pytest.approx(
        -np.einsum("ijkl,ai,bj,ck,dl->abcd", c4, *[inverse] * 4), abs=1e-14
    )
    kernel = PAIR - 0.5 * np.einsum("abcd,cd->ab", c4, inverse)
    np.testing.assert_allclose(found.K, kernel, atol=1e-14)


def test_physical_form_equals_the_action_at_first_order() -> None:
    gaps = []
    for scale in (0.02, 0.01):
        action = QuarticAction(PAIR, scale * three_pairings(2))
        physical = physical_expectation(tanh_squared, action.two_point(), action.connected_four_point())
        gaps.append(abs(physical.value - action.expectation(tanh_squared).value))
    assert gaps[0] / gaps[1] == pytest.approx(4, rel=0.15)


def test_physical_moments_are_cumulant_sums() -> None:
    """Up to four points the first-order form is exact: products of two-points plus the connected part."""
    c4 = symmetrised(0.1 * np.random.default_rng(3).normal(size=(2,) * 4))
    expected = PAIR[0, 0] * PAIR[1, 1] + 2 * PAIR[0, 1] ** 2 + c4[0, 0, 1, 1]
    assert physical_moment([2, 2], PAIR, c4) == pytest.approx(expected, abs=1e-14)
    by_lattice = physical_expectation(lambda z: z[:, 0] ** 4 * z[:, 1] ** 2, PAIR, c4)
    assert by_lattice.value == pytest.approx(physical_moment([4, 2], PAIR, c4), abs=1e-11)
    assert physical_moment([2, 0], PAIR, c4) == pytest.approx(PAIR[0, 0])


def test_physical_form_on_an_exact_network_law() -> None:
    """Layer 2 of a deep linear network of width n at G = 0.8, where c4 = 6 G^2 / n: off by O(1/n^2)."""
    G, found = 0.8, []
    for n in (10, 20, 40, 80):
        a, order = math.sqrt(n / G), (n - 1) / 2
        front = 2 * a / (math.sqrt(math.pi) * 2**order * special.gamma(n / 2))

        def integrand(z: float, a: float = a, order: float = order, front: float = front) -> float:
            return float(front * math.tanh(z) ** 2 * (a * z) ** order * special.kv(order, a * z))

        exact = integrate.quad(integrand, 1e-12, 30, epsabs=1e-12)[0]
        found.append(exact - physical_expectation(tanh_squared, G, 6 * G**2 / n).value)
    assert found == pytest.approx([5.8e-4, 1.4e-4, 3.4e-5, 8.5e-6], rel=0.02)


def test_kinks_need_no_derivative() -> None:
    """E[relu] = sqrt(G / 2 pi) (1 - c4 / 24 G^2): the fourth derivative of relu is a distribution."""
    with pytest.warns(AccuracyWarning, match="kinks"):
        found = physical_expectation(lambda z: np.maximum(z[:, 0], 0), 2.0, 0.3, tolerance=1e-14)
    expected = math.sqrt(2 / (2 * math.pi)) * (1 - 0.3 / (24 * 4))
    assert abs(found.value - expected) < found.error < 1e-6


def test_chapter_four_convention() -> None:
    K, neurons, gaps = 0.7, 4, []
    for v in (0.004, 0.002):
        with pytest.warns(NegativeCouplingWarning):
            action = QuarticAction.of_neurons(K, v, neurons)
        kappa_2, G = v * K**4, action.two_point()[0, 0]
        assert action.connected_four_point() == pytest.approx(kappa_2 * three_pairings(neurons), abs=1e-15)
        z = np.random.default_rng(4).normal(size=(5, neurons))
        radius = (z**2).sum(axis=1)
        assert action.value(z) == pytest.approx(radius / (2 * K) - v / 8 * radius**2, rel=1e-12)
        gaps.append(neuron_kernel(G, kappa_2, neurons) - K)
        with pytest.warns(NegativeCouplingWarning):
            found = QuarticAction.from_correlators(G * np.eye(neurons), kappa_2 * three_pairings(neurons)).K
        assert found == pytest.approx(neuron_kernel(G, kappa_2, neurons) * np.eye(neurons), abs=1e-14)
    assert gaps[0] / gaps[1] == pytest.approx(4, rel=0.05)


def test_normalisability_is_found_off_the_axes() -> None:
    def form(xx: float, xy: float) -> np.ndarray:
        tensor = np.zeros((2,) * 4)
        tensor[0, 0, 0, 0] = tensor[1, 1, 1, 1] = xx
        for place in ((0, 0, 1, 1), (0, 1, 0, 1), (0, 1, 1, 0), (1, 0, 0, 1), (1, 0, 1, 0), (1, 1, 0, 0)):
            tensor[place] = xy
        return tensor

    # x^4 + y^4 + 6 c x^2 y^2 is negative on the diagonal for c < -1/3 only.
    assert QuarticAction(np.eye(2), form(1.0, -0.33)).is_normalisable
    with pytest.warns(NegativeCouplingWarning):
        assert not QuarticAction(np.eye(2), form(1.0, -0.34)).is_normalisable
    assert QuarticAction(np.eye(2), form(0.0, 1.0)).is_normalisable
    assert QuarticAction(np.eye(2), np.zeros((2,) * 4)).is_normalisable


def test_even_actions() -> None:
    sextic = EvenAction(1.0, {4: -1.0, 6: 10.0})
    assert sextic.is_normalisable
    z = np.array([[0.5], [-2.0]])
    assert sextic.value(z) == pytest.approx(z[:, 0] ** 2 / 2 - z[:, 0] ** 4 / 24 + z[:, 0] ** 6 / 72)

    def weight(x: float) -> float:
        return math.exp(-(x**2) / 2 + x**4 / 24 - x**6 / 72)

    expected = integrate.quad(lambda x: x**2 * weight(x), -8, 8)[0] / integrate.quad(weight, -8, 8)[0]
    assert sextic.exact_expectation(lambda z: z[:, 0] ** 2).value == pytest.approx(expected, abs=1e-10)
    assert EvenAction(PAIR, {}).value([1.0, 2.0]) == pytest.approx(
        0.5 * np.array([1, 2]) @ np.linalg.inv(PAIR) @ [1, 2]
    )


def test_singular_covariances() -> None:
    K = np.ones((2, 2))
    action = QuarticAction(K, 0.01 * three_pairings(2))
    # Both variables are one, whose coupling is the form at (1, 1): 0.01 * 3 * 4.
    single = QuarticAction(1.0, 0.12)
    assert action.two_point() == pytest.approx(single.two_point()[0, 0] * K, abs=1e-14)
    assert action.expectation(tanh_squared).value == pytest.approx(
        single.expectation(tanh_squared).value, abs=1e-12
    )
    assert action.value([1.0, 2.0]) == np.inf
    assert action.value([2.0, 2.0]) == pytest.approx(single.value([2.0]))
    found = physical_expectation(tanh_squared, K, np.full((2,) * 4, 0.1))
    assert found.value == pytest.approx(physical_expectation(tanh_squared, 1.0, 0.1).value, abs=1e-12)
    with pytest.raises(InputError, match="zero variance"):
        physical_expectation(tanh_squared, K, 0.1 * three_pairings(2))
    assert physical_expectation(lambda z: 1 + z[:, 0], np.zeros((2, 2)), np.zeros((2,) * 4)).value == 1


@settings(deadline=None, max_examples=15)
@given(st.floats(0.2, 3), st.floats(0.001, 0.01), st.integers(0, 2), st.integers(0, 2))
def test_scaling(scale: float, size: float, first: int, second: int) -> None:
    """Units: z -> s z takes K to s^2 K, V to V / s^4, and a monomial to its power of s."""
    powers = [2 * first, 2 * second]
    base = QuarticAction(PAIR, size * three_pairings(2))
    scaled = QuarticAction(scale**2 * PAIR, size * three_pairings(2) / scale**4)
    assert scaled.moment(powers) == pytest.approx(scale ** sum(powers) * base.moment(powers), rel=1e-11)
    assert scaled.partition_ratio() == pytest.approx(base.partition_ratio(), rel=1e-12)


def test_permutation_of_the_variables() -> None:
    coupling = symmetrised(np.random.default_rng(5).normal(size=(3,) * 4)) * 0.001 + 0.01 * three_pairings(3)
    K = np.array([[1.0, 0.3, 0.1], [0.3, 0.8, -0.2], [0.1, -0.2, 1.5]])
    order = [2, 0, 1]
    permuted = QuarticAction(K[np.ix_(order, order)], coupling[np.ix_(*[order] * 4)])
    assert permuted.moment([1, 2, 3]) == pytest.approx(
        QuarticAction(K, coupling).moment([2, 3, 1]), rel=1e-12
    )


def test_bad_input() -> None:
    with pytest.raises(InputError, match="totally symmetric"):
        QuarticAction(PAIR, np.arange(16.0).reshape((2,) * 4))
    with pytest.raises(InputError, match="must have shape"):
        QuarticAction(PAIR, np.zeros((3,) * 4))
    with pytest.raises(InputError, match="not finite"):
        QuarticAction(1.0, np.nan)
    with pytest.raises(InputError, match="order 4, 6"):
        EvenAction(1.0, {3: 1.0})
    with pytest.raises(InputError, match="one covariance"):
        QuarticAction(np.ones((2, 1, 1)), 1.0)
    with pytest.raises(InputError, match="positive semidefinite"):
        QuarticAction([[1.0, 2.0], [2.0, 1.0]], PAIR_COUPLING)
    with pytest.raises(InputError, match="too large"):
        QuarticAction.from_correlators(1.0, 2.5)
    with pytest.raises(InputError, match="one number per point"):
        QuarticAction(1.0, 0.1).expectation(lambda z: z)
    with pytest.raises(InputError, match="not finite everywhere"), np.errstate(divide="ignore"):
        QuarticAction(1.0, 0.1).expectation(lambda z: 1 / z[:, 0])
    with pytest.raises(NotSupportedError, match="rank 4"):
        physical_expectation(tanh_squared, np.eye(4), np.zeros((4,) * 4))
    with pytest.warns(NegativeCouplingWarning), pytest.raises(NotSupportedError, match="not normalisable"):
        QuarticAction(1.0, -0.1).exact_expectation(tanh_squared)
    with pytest.raises(InputError, match="at least one neuron"):
        neuron_kernel(1.0, 0.1, 0)
