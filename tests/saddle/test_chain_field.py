"""The scalar flow against plain quadrature, the network it reduces, conservation laws and exact solutions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from chain_reference import (
    chain_rates,
    network_gradients,
    plain_rates,
    runge_kutta_arrival,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

import foretrain as ft
from foretrain.saddle import ChainField, escape_time, normal_form, reduced_flow, square_differences
from foretrain.support.errors import AccuracyWarning, InputError, NotSupportedError


def normal_density(z: Any) -> Any:
    return np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)


FUNCTIONS = {
    "tanh": (np.tanh, lambda z: 1 / np.cosh(z) ** 2),
    "sin": (np.sin, np.cos),
    "gelu": (lambda z: z * special.ndtr(z), lambda z: special.ndtr(z) + z * normal_density(z)),
    "softplus": (lambda z: np.logaddexp(0, z), special.expit),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    "X", [[0.3, 0.2], [0.03, 0.05, 0.07, 0.09], [0.9, -0.4, 1.3], [0.5, 0.6, 0.7, 0.8, 0.9]]
)
def test_rates_against_plain_quadrature(name: str, X: list[float]) -> None:
    sigma, slope = FUNCTIONS[name]
    state = np.array(X)
    rates = ChainField(ft.activation(name), 16, 1.3).rates(state)
    np.testing.assert_allclose(rates, chain_rates(state, 16, 1.3, sigma, slope), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(rates, plain_rates(state, 16, 1.3, sigma), rtol=1e-5, atol=1e-7)


def test_rates_of_many_states_at_once() -> None:
    field = ChainField(ft.activation("gelu"), 8, 1.0)
    states = np.random.default_rng(3).uniform(0.1, 1.0, (2, 5, 3))
    np.testing.assert_allclose(field.rates(states)[1, 4], field.rates(states[1, 4]), rtol=1e-13)
    np.testing.assert_allclose(field.loss(states)[0, 2], field.loss(states[0, 2]), rtol=1e-13)


def test_the_network_moves_as_the_scalars_in_matrix_time() -> None:
    """Normalized metric on the symmetric manifold: dX/ds = (dX/dt) / N, and the manifold is kept."""
    N, beta, direction = 5, 1.3, np.array([0.6, 0.8])
    X = np.array([0.7, 0.5, 0.9, 0.4])
    weights = [X[0] * np.outer(np.ones(N), direction)]
    weights += [np.full((N, N), scale / N) for scale in X[1:-1]] + [np.full((1, N), X[-1] / math.sqrt(N))]
    gradients = network_gradients(weights, direction, beta)
    moves = [-gradients[0], *(-gradient / N for gradient in gradients[1:])]
    expected = ChainField(ft.activation("tanh"), N, beta).rates(X) / N
    np.testing.assert_allclose(moves[0], expected[0] * np.outer(np.ones(N), direction), rtol=1e-8, atol=1e-12)
    for middle, move in zip(expected[1:-1], moves[1:-1]):
        np.testing.assert_allclose(move, middle / N, rtol=1e-8)
    np.testing.assert_allclose(moves[-1], expected[-1] / math.sqrt(N), rtol=1e-8)


@pytest.mark.parametrize("name", ["tanh", "gelu", "softplus", "relu"])
def test_imbalance_identity_of_the_scalar_flow(name: str) -> None:
    """(2): the rate of X_{l+1}^2 - X_l^2 is an average over phi(c_l); zero for ReLU."""
    field, X = ChainField(ft.activation(name), 16, 1.0), np.array([0.4, 0.7, 0.5, 0.9])
    direct = np.diff(2 * X * field.rates(X))
    np.testing.assert_allclose(field.imbalance_rates(X), direct, rtol=1e-10, atol=1e-14)
    assert (np.abs(direct).max() < 1e-14) == (name == "relu")


@pytest.mark.parametrize(("name", "q"), [("tanh", 3), ("gelu", 2), (lambda z: z / (1 + z**4) ** 0.25, 5)])
def test_near_balance(name: Any, q: int) -> None:
    """(28): d(X_i^2 - X_j^2)/dt = O(|X|^(L + (q-1) i)) for i < j."""
    field, X = ChainField(ft.activation(name), 16, 1.0), np.array([0.9, 1.0, 1.1, 1.2])
    sizes = np.array([0.01, 0.02]) if q < 5 else np.array([0.04, 0.08])
    small, large = (np.abs(field.imbalance_rates(size * X)) for size in sizes)
    for i in (1, 2):
        assert math.log2(large[i - 1] / small[i - 1]) == pytest.approx(4 + (q - 1) * i, abs=0.15)


def test_differences_of_squares_and_the_normal_form() -> None:
    """Conserved at leading order; the drift falls by two more powers of the scales in the normal form (q = 3)."""
    drifts = []
    for size in (0.05, 0.1):
        path = reduced_flow("tanh", [0.6 * size, 0.8 * size, size, size], threshold=1.5 * size, points=3)
        ends = path["X"].values[[0, -1]]
        plain = np.diff(square_differences(ends), axis=0)[0, -1] / size**2
        better = np.diff(square_differences(normal_form("tanh", ends)), axis=0)[0, -1] / size**2
        drifts.append((abs(plain), abs(better)))
    (small, small_better), (large, large_better) = drifts
    assert large / small == pytest.approx(4.0, rel=0.1)
    assert large_better / small_better > 12
    assert large_better < 0.1 * large


@given(
    scales=st.lists(st.floats(0.02, 0.12), min_size=3, max_size=5),
    name=st.sampled_from(["linear", "relu", "leaky_relu(slope=0.3)"]),
)
@settings(max_examples=8, deadline=None)
def test_class_a_conserves_differences_exactly(scales: list[float], name: str) -> None:
    path = reduced_flow(name, scales, until=300.0, points=4)
    differences = square_differences(path["X"].values)
    np.testing.assert_allclose(differences, differences[:1].repeat(4, axis=0), atol=1e-11)


@pytest.mark.parametrize(("name", "strength"), [("linear", 1.0), ("relu", 0.5)])
@pytest.mark.parametrize("time", ["matrix", "reduced"])
def test_two_balanced_linear_layers_are_logistic(name: str, strength: float, time: Any) -> None:
    """X^2 solves dp/dt = 2 E[sigma^2] sqrt(N) p (beta - sqrt(N) p), also far from small scales."""
    N, beta, start, end = 25, 0.8, 0.01, 0.39
    ratio = [p / (beta - 5 * p) for p in (start**2, end**2)]
    expected = math.log(ratio[1] / ratio[0]) / (2 * strength * 5 * beta) * (N if time == "matrix" else 1)
    found = escape_time(name, [start, start], width=N, beta=beta, threshold=end, method="reduced", time=time)
    assert found == pytest.approx(expected, rel=1e-9)
    never = escape_time(name, [start, start], width=N, beta=beta, threshold=0.401, method="reduced")
    assert never == math.inf


def test_arrival_against_small_steps() -> None:
    sigma, slope = FUNCTIONS["tanh"]
    start = np.array([0.2, 0.15, 0.3])
    found = escape_time("tanh", start, width=16, beta=1.2, threshold=0.4, method="reduced", time="reduced")
    plain = runge_kutta_arrival(lambda X: chain_rates(X, 16, 1.2, sigma, slope), start, 0.4, found / 400)
    assert found == pytest.approx(plain, rel=1e-5)


def test_a_trajectory() -> None:
    scales = [0.03, 0.05, 0.07, 0.09]
    path = reduced_flow("tanh", scales, times=[0.0, 1000.0, 1887.6706876, 4000.0])
    assert path["X"].dims == ("time", "layer")
    assert path["X"].sel(layer=1).values[:3:2] == pytest.approx([0.03, 0.3], rel=1e-6)
    assert (np.diff(path["loss"]) < 0).all()
    assert path["loss"][0] == pytest.approx(0.19710149, rel=1e-6)
    assert path["product"].values[0] == pytest.approx(np.prod(scales))
    short = reduced_flow("tanh", scales, until=1000.0 / 64, points=2, time="reduced")
    np.testing.assert_allclose(short["X"].values[-1], path["X"].values[1], rtol=1e-9)
    assert short.attrs["K"] == pytest.approx(64 * path.attrs["K"])


def test_flipping_two_neighbours_changes_nothing_for_odd_activations() -> None:
    plain = reduced_flow("tanh", [0.1, 0.2, 0.15], until=150.0, points=3)["X"].values
    flipped = reduced_flow("tanh", [-0.1, -0.2, 0.15], until=150.0, points=3)["X"].values
    np.testing.assert_allclose(flipped, plain * [-1, -1, 1], rtol=1e-9)


def test_a_flow_that_comes_to_rest_never_arrives() -> None:
    assert escape_time("linear", [0.1, 0.1, 0.1], threshold=1.0, method="reduced") == math.inf
    # Two layers copy the teacher exactly: X_1 tends to 1 and does not reach it.
    assert escape_time("tanh", [0.1, 0.1], threshold=1.0, method="reduced") == math.inf
    assert 1000 < escape_time("tanh", [0.1, 0.1], threshold=0.99, method="reduced") < 20_000


def test_a_creeping_flow_is_given_up_with_a_warning() -> None:
    with pytest.warns(AccuracyWarning, match="still moves slowly"):
        assert escape_time("tanh", [0.1] * 4, threshold=1.0, method="reduced") == math.inf


def test_polynomials_through_many_layers_are_refused() -> None:
    with pytest.raises(NotSupportedError, match="overflow"):
        escape_time(lambda z: z + 0.1 * z**5, [0.3] * 6, threshold=0.5, method="reduced")


def test_kinks_that_move_into_the_average_are_reported() -> None:
    with pytest.warns(AccuracyWarning, match="accurate to"):
        reduced_flow(lambda z: np.clip(z, -1.0, 1.0), [0.5, 0.9, 0.5], until=10.0, points=3)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({}, "exactly one"),
        ({"until": 1.0, "threshold": 0.3}, "exactly one"),
        ({"until": -1.0}, "until"),
        ({"until": 1.0, "points": 1}, "points"),
        ({"times": [0.0, 2.0, 1.0]}, "increase"),
        ({"times": []}, "finite"),
        ({"until": 1.0, "beta": math.nan}, "beta"),
        ({"threshold": 3.0}, "never"),
    ],
)
def test_bad_input_of_a_trajectory(arguments: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        reduced_flow("linear", [0.1, 0.1], **arguments)
