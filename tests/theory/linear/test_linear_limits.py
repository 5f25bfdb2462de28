from __future__ import annotations

import math

import numpy as np
import pytest

from foretrain.support.errors import InputError
from foretrain.theory import linear
from foretrain.theory.linear import DeepLinear


def test_reference_values() -> None:
    assert linear.scaling_limit_moments(0.2)[1:] == pytest.approx(
        [1.491824698, 3.320116923, 11.02317638], rel=1e-9
    )
    assert linear.scaling_limit_connected(0.2)[1:] == pytest.approx(
        [0.4918246976, 0.8446428298, 2.967982276], rel=1e-9
    )


def test_cumulants_are_the_printed_combinations() -> None:
    r = 0.37
    found = linear.scaling_limit_connected(r)
    e = math.exp
    assert found[1] == pytest.approx(e(2 * r) - 1)
    assert found[2] == pytest.approx(e(6 * r) - 3 * e(2 * r) + 2)
    assert found[3] == pytest.approx(e(12 * r) - 4 * e(6 * r) - 3 * e(4 * r) + 12 * e(2 * r) - 6)


@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 6, 7])
def test_leading_law_at_small_ratio(m: int) -> None:
    """m^(m-2) (2r)^(m-1), here also beyond m = 4: the digits are there although moments agree to 1e-36."""
    r = 1e-6
    assert linear.scaling_limit_connected(r, 7)[m - 1] == pytest.approx(
        linear.scaling_limit_leading(r, m), rel=1e-4
    )


@pytest.mark.parametrize("m", [2, 3, 4])
def test_limit_is_reached_like_one_over_n(m: int) -> None:
    """Doubling n at r = 0.5 halves the error of (3.55), whose coefficient is predicted."""
    r, errors = 0.5, []
    for n in (400, 800):
        exact = linear.moments(DeepLinear([n] * round(r * n)), 1.0).values[-1, m - 1]
        errors.append(exact / linear.scaling_limit_moments(r)[m - 1] - 1)
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.05)
    assert errors[1] == pytest.approx(linear.scaling_limit_relative_error(r, m, 800), rel=0.05)


def test_error_law_reference_value() -> None:
    assert linear.scaling_limit_relative_error(0.5, 2, 800) == pytest.approx(-3.75e-3)
    exact = linear.moments(DeepLinear([800] * 400), 1.0).values[-1, 1]
    assert exact / math.exp(1.0) - 1 == pytest.approx(-3.74e-3, abs=5e-6)


def test_log_variance_tends_to_a_normal_law() -> None:
    n, r = 500, 0.4
    found = linear.log_variance_statistics(DeepLinear([n] * round(r * n)), 1.0)
    law = linear.scaling_limit_log_variance(r)
    assert law == (-0.4, 0.8)
    assert float(found["mean"][-1]) == pytest.approx(law.mean, rel=0.01)
    assert float(found["variance"][-1]) == pytest.approx(law.variance, rel=0.01)


def test_leading_connected_laws_at_width_one_thousand() -> None:
    k = 9
    found = linear.connected(DeepLinear([1000] * 10), 1.0).values[-1]
    leading = [2 * k / 1e3, (12 * k**2 - 4 * k) / 1e6, (128 * k**3 - 96 * k**2 + 16 * k) / 1e9]
    assert found[1:] / leading == pytest.approx(1, abs=0.05)


def test_perturbation_check() -> None:
    shallow = linear.perturbation_valid(100, 5, 2)
    assert shallow
    assert shallow.ratio == pytest.approx(0.2)
    assert shallow.exact == pytest.approx(1.02**4)
    assert shallow.first_order == pytest.approx(1.08)
    assert shallow.relative_error == pytest.approx(1 - 1.08 / 1.02**4)
    assert not linear.perturbation_valid(10, 50, 2)
    assert not linear.perturbation_valid(100, 5, 2, tolerance=1e-4)
    hopeless = linear.perturbation_valid(10, 10_000, 4)
    assert hopeless.exact == math.inf
    assert not hopeless


def test_draws_needed() -> None:
    assert linear.draws_needed(1.0, 2, 1.0) == pytest.approx(3e3, rel=0.01)
    assert linear.draws_needed(1.0, 3, 1.0) == pytest.approx(7e7, rel=0.07)
    assert linear.draws_needed(1.0, 2, 0.1) == pytest.approx(100 * linear.draws_needed(1.0, 2, 1.0))
    assert linear.draws_needed(0.0, 2, 0.1) == 1.0
    assert linear.draws_needed(100.0, 3, 0.1) == math.inf


def test_draws_needed_by_a_network_is_its_relative_variance() -> None:
    network = DeepLinear([6, 9, 5])
    G = linear.moments(network, 1.0, 2).values[2]
    assert linear.draws_needed_at(network, 1, 0.1) == pytest.approx(100 * (G[1] / G[0] ** 2 - 1))
    assert linear.draws_needed_at(network, 1, 0.1, layer=1) == 1.0
    R = linear.sample_variances(network, 100_000, 1.0, seed=1)[:, -1]
    deviation = 0.1 * math.sqrt(linear.draws_needed_at(network, 1, 0.1))
    assert R.std() / R.mean() == pytest.approx(deviation, rel=0.03)
    biased = DeepLinear([6, 9, 5], C_b=0.5)
    G = linear.moments(biased, 3.0, 2).values[2]
    assert linear.draws_needed_at(biased, 1, 0.1, G0=3.0) == pytest.approx(100 * (G[1] / G[0] ** 2 - 1))
    wide = DeepLinear([1000] * 301)
    assert linear.draws_needed_at(wide, 2, 0.1) == pytest.approx(linear.draws_needed(0.3, 2, 0.1), rel=0.03)


def test_bad_input() -> None:
    with pytest.raises(InputError, match="r = L / n"):
        linear.scaling_limit_moments(-0.1)
    with pytest.raises(InputError, match="r = L / n"):
        linear.scaling_limit_connected(np.inf)
    with pytest.raises(InputError, match="relative error is 0"):
        linear.draws_needed(0.1, 2, 0.0)
    with pytest.raises(InputError, match="order is 0"):
        linear.perturbation_valid(0, 5, 2)
    with pytest.raises(InputError, match="layer 4"):
        linear.draws_needed_at(DeepLinear([3, 3, 3]), 1, 0.1, layer=4)
