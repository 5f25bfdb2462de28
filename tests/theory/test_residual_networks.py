"""Growth of fluctuations with depth in residual networks, best depth and best skip coupling."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrain.gaussian import expectation, factor
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory.architecture import MLP
from foretrain.theory.recursions.residual import residual_flow
from foretrain.theory.residual_networks import (
    fluctuation_rate,
    largest_mutual_information,
    memory_sum,
    odd_overlap,
    optimal_aspect_ratio,
    optimal_skip,
)


@pytest.mark.parametrize(
    ("name", "gamma", "method", "expected"),
    [
        ("relu", 0.3, "book", 4.4681),
        ("relu", 0.6, "book", 2.9696),
        ("relu", 0.9, "book", 0.7961),
        ("relu", 0.3, "complete", 6.2951834678),
        ("relu", 0.6, "complete", 6.1960914932),
        ("relu", 0.9, "complete", 2.5358545522),
        ("tanh", 0.6, "book", 0.5802666667),
        ("tanh", 0.9, "complete", 0.2292666667),
        ("linear", 0.0, "complete", 2.0),
        ("relu", 0.0, "complete", 5.0),
    ],
)
def test_rates_of_the_reference(name: str, gamma: float, method: str, expected: float) -> None:
    assert fluctuation_rate(name, gamma, method) == pytest.approx(expected, abs=1e-10)


def test_relu_fluctuations_rise_before_they_fall() -> None:
    gammas = np.linspace(0, 0.99, 991)
    rates = np.array([fluctuation_rate("relu", g) for g in gammas])
    assert gammas[rates.argmax()] == pytest.approx(0.449, abs=1e-3)
    assert rates.max() == pytest.approx(6.531, abs=5e-4)
    back = gammas[500:][np.argmin(np.abs(rates[500:] - 5))]
    assert back == pytest.approx(0.749, abs=1e-3)
    assert all(fluctuation_rate("relu", -g) < fluctuation_rate("relu", g) for g in (0.2, 0.6, 0.95))


@pytest.mark.parametrize("name", ["relu", "leaky_relu(slope=0.2)"])
def test_limit_of_strong_skips(name: str) -> None:
    excess = (fluctuation_rate(name) + 1) / 3 - 1
    gamma = 1 - 1e-9
    expected = (1 - gamma**2) * (4 + 4 * (2 + np.log(2)) * excess)
    assert fluctuation_rate(name, gamma) == pytest.approx(expected, rel=1e-6)


def test_sum_over_the_past_joins_its_asymptotic_form() -> None:
    """On both sides of the change of rule, and against a plain sum."""
    for gamma in (0.999, 1 - 1.5e-5):
        powers = gamma ** np.arange(1, int(40 / (1 - gamma)))
        assert memory_sum(gamma) == pytest.approx(odd_overlap(powers).sum(), rel=1e-11)
    signed = (-0.9) ** np.arange(1, 500)
    assert memory_sum(-0.9) == pytest.approx(odd_overlap(signed).sum(), rel=1e-11)


def test_overlap_is_the_covariance_of_signed_squares() -> None:
    """O(c) = <z |z| z' |z'>, and c_2 of a scale-invariant activation is made of it."""
    relu, leaky = factor("relu"), factor("leaky_relu(slope=0.3)")
    for c in (-0.8, 0.1, 0.5, 0.99):
        K = np.array([[1.0, c], [c, 1.0]])
        # z |z| = relu(z)^2 - relu(-z)^2, and relu(z)^2 + relu(-z)^2 = z^2.
        twice = expectation([relu**2, relu**2], K).value
        assert 4 * float(twice) == pytest.approx(1 + 2 * c**2 + float(odd_overlap(c)), rel=1e-10)
        A_2, A_4 = (1 + 0.3**2) / 2, (1 + 0.3**4) / 2
        covariance = float(expectation([leaky**2, leaky**2], K).value) - A_2**2
        assert covariance == pytest.approx(2 * A_2**2 * c**2 + (A_4 - A_2**2) * float(odd_overlap(c)))


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("method", ["book", "complete"])
@pytest.mark.parametrize(("name", "gamma"), [("relu", 0.5), ("relu", -0.4), ("leaky_relu(slope=0.3)", 0.6)])
def test_the_recursion_grows_at_this_rate(name: str, gamma: float, method: str) -> None:
    A_2 = 0.5 if name == "relu" else (1 + 0.3**2) / 2
    net = MLP(name, depth=62, width=10, C_W=(1 - gamma**2) / A_2, gamma=gamma)
    V = residual_flow(net, np.ones((1, 1)), method, ("V",))["V"].ravel()
    assert V[60] - V[59] == pytest.approx(fluctuation_rate(name, gamma, method), rel=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "tolerance"), [("tanh", 0.06), ("softsign", 0.12)])
def test_vanishing_kernels_approach_two_thirds(name: str, tolerance: float) -> None:
    """Also where K falls as 1 / depth^2, for a second derivative that jumps at zero."""
    gamma = 0.6
    net = MLP(name, depth=101, width=10, C_W=1 - gamma**2, gamma=gamma)
    found = residual_flow(net, np.full((1, 1), 0.1), "book")
    growth = found["V"].ravel() / found["K"].ravel() ** 2
    slope = (growth[99] - growth[79]) / 20
    assert slope == pytest.approx(fluctuation_rate(name, gamma), rel=tolerance)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("relu", (0.016, 0.0269396552, 0.1004898882)), ("tanh", (0.12, 0.1378676471, 0.3489386450))],
)
def test_best_aspect_ratios_of_the_reference(name: str, expected: tuple[float, ...]) -> None:
    found = [optimal_aspect_ratio(name, gamma, n_out=10, method="book") for gamma in (0, 0.6, 0.9)]
    np.testing.assert_allclose(found, expected, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "expected"), [("relu", 0.9799960176), ("linear", 0.9793703613), ("tanh", 0.9336914848)]
)
def test_best_skips_of_the_reference(name: str, expected: float) -> None:
    assert optimal_skip(name, 0.5, n_out=10, method="book") == pytest.approx(expected, abs=1e-10)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["relu", "linear", "abs", "tanh", "leaky_relu(slope=0.1)"]),
    st.floats(0.02, 50),
    st.integers(1, 40),
    st.sampled_from(["book", "complete"]),
)
def test_best_skip_inverts_best_depth(name: str, r: float, n_out: int, method: str) -> None:
    gamma = optimal_skip(name, r, n_out=n_out, method=method)
    if gamma == 0:
        assert r <= optimal_aspect_ratio(name, n_out=n_out, method=method) * (1 + 1e-12)
    else:
        assert optimal_aspect_ratio(name, gamma, n_out=n_out, method=method) == pytest.approx(r, rel=1e-8)


def test_complete_relu_takes_the_falling_side() -> None:
    edge = optimal_aspect_ratio("relu", n_out=10)
    assert optimal_skip("relu", edge * (1 - 1e-6), n_out=10) == 0
    assert optimal_skip("relu", edge * (1 + 1e-6), n_out=10) == pytest.approx(0.749, abs=1e-3)


def test_largest_information_is_the_value_at_the_best_depth() -> None:
    n_out = 10
    x, m = 4 / (20 + 3 * n_out), n_out / 2
    information = m * m / 8 * x**2 - m * m * (20 + 6 * m) / 48 * x**3
    assert largest_mutual_information(n_out) == pytest.approx(information, rel=1e-12)


def test_bad_input() -> None:
    with pytest.raises(InputError, match="-1 < gamma < 1"):
        fluctuation_rate("relu", 1.0)
    with pytest.raises(InputError, match="unknown method"):
        fluctuation_rate("relu", 0.5, "exact")
    with pytest.raises(NotSupportedError, match="half-stable"):
        fluctuation_rate("gelu")
    with pytest.raises(NotSupportedError, match="no critical"):
        fluctuation_rate("softplus")
    with pytest.raises(InputError, match="aspect ratio"):
        optimal_skip("relu", -1.0, n_out=3)
    with pytest.raises(InputError, match="n_out"):
        optimal_aspect_ratio("relu", n_out=0)
