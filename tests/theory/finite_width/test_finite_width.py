"""Observables at order 1/n: closed forms, exact layers, deep linear networks, brute force and real networks."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrain.gaussian import factor, z
from foretrain.support.errors import AccuracyWarning, InputError, NotSupportedError
from foretrain.theory import linear
from foretrain.theory.architecture import MLP
from foretrain.theory.ensembles import Ensemble, sample_metric
from foretrain.theory.finite_width import (
    FirstOrder,
    connected_four_point,
    covariance_of,
    covariance_within_neuron,
    excess_kurtosis,
    expansion_parameter,
    layer_statistics,
    mean_of,
    neuron_covariance,
    second_moment,
)

TWO_INPUTS = np.array([[1.0, -0.5, 0.8], [0.3, 1.1, -0.4]])
PYRAMID = MLP("tanh", depth=4, width=[12, 24, 16], n_out=20, C_b=0.15, C_W=1.6)


def of_first_input(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda points: function(points[:, 0])


def test_cosine_from_the_reference_values() -> None:
    # tanh, C_b = 0, C_W = 1, K^(1) = 1: K, V, G1 of layer 3 as the reference prints them.
    K, V, G1, n = 0.2364504105, 0.06780749389, -0.03093251987, 40
    found = mean_of(["cos"], MLP("tanh", depth=3, width=n), [[1.0]])
    assert found.leading == pytest.approx(np.exp(-K / 2), rel=1e-9)
    assert found.correction == pytest.approx(np.exp(-K / 2) * (V / 8 - G1 / 2) / n, rel=1e-8)
    assert found.value == float(found) == found.leading + found.correction
    assert 0 <= found.error < 1e-12
    shared = covariance_of([z**2], ["cos"], MLP("tanh", depth=3, width=n), [[1.0]])
    assert shared.leading == 0
    assert shared.value == pytest.approx(-np.exp(-K / 2) * V / (2 * n), rel=1e-8)


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("inputs", [1, 2, 3])
def test_functions_of_several_inputs_have_the_closed_form_of_a_plane_wave(inputs: int) -> None:
    """<cos(u.z)> = exp(-u K u / 2), whose derivatives in K are elementary."""
    rng = np.random.default_rng(inputs)
    X, u = rng.standard_normal((inputs, 4)), rng.uniform(0.4, 0.8, inputs)
    at = layer_statistics(PYRAMID, X, 3)
    wave = np.exp(-u @ at.K @ u / 2)
    shift = wave * (np.einsum("abcd,a,b,c,d->", at.V, u, u, u, u) / 8 - u @ at.G1 @ u / 2)
    found = mean_of(lambda points: np.cos(points @ u), PYRAMID, X, 3)
    assert found.leading == pytest.approx(wave, rel=1e-9)
    assert found.correction == pytest.approx(shift / 24, rel=1e-7)
    half = 0.5 * u
    shared = covariance_of(
        lambda points: np.cos(points @ u), lambda points: np.cos(points @ half), PYRAMID, X, 3
    )
    gradients = [-0.5 * np.outer(w, w) * np.exp(-w @ at.K @ w / 2) for w in (u, half)]
    expected = np.einsum("ab,abcd,cd->", gradients[0], at.V, gradients[1]) / 24
    assert shared.value == pytest.approx(expected, rel=1e-7)


def test_many_inputs_are_sampled_with_a_standard_error() -> None:
    X = np.random.default_rng(3).standard_normal((5, 6))
    u = np.full(5, 0.3)
    at = layer_statistics(PYRAMID, X, 2)
    wave = np.exp(-u @ at.K @ u / 2)
    expected = wave * (1 + np.einsum("abcd,a,b,c,d->", at.V, u, u, u, u) / 8 / 12)
    found = mean_of(lambda points: np.cos(points @ u), PYRAMID, X, 2)
    assert 0 < found.error < 1e-3
    assert abs(found.value - expected) < 5 * found.error


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("factors", "function"),
    [
        (["cos", z**2], lambda p: np.cos(p[:, 0]) * p[:, 1] ** 2),
        ([factor("tanh", 1), "tanh"], lambda p: np.tanh(p[:, 1]) / np.cosh(p[:, 0]) ** 2),
        ([factor("tanh") ** 2, factor("sin") ** 2], lambda p: np.tanh(p[:, 0]) ** 2 * np.sin(p[:, 1]) ** 2),
        (["relu", "relu"], lambda p: np.maximum(p[:, 0], 0) * np.maximum(p[:, 1], 0)),
        ([factor("relu") ** 2, "abs"], lambda p: np.maximum(p[:, 0], 0) ** 2 * np.abs(p[:, 1])),
    ],
)
def test_derivatives_and_weights_agree(
    factors: list[object], function: Callable[[np.ndarray], np.ndarray]
) -> None:
    by_factor = mean_of(factors, PYRAMID, TWO_INPUTS, 3)
    by_weight = mean_of(function, PYRAMID, TWO_INPUTS, 3, kinks=[0.0])
    assert by_factor.leading == pytest.approx(by_weight.leading, rel=1e-8)
    assert by_factor.correction == pytest.approx(by_weight.correction, rel=1e-7, abs=1e-12)
    other = lambda p: np.cos(p[:, 0])  # noqa: E731
    assert covariance_of(factors, ["cos", 1.0], PYRAMID, TWO_INPUTS, 3).value == pytest.approx(
        covariance_of(function, other, PYRAMID, TWO_INPUTS, 3, kinks=[0.0]).value, rel=1e-7
    )
    assert covariance_within_neuron(factors, ["cos", "cos"], PYRAMID, TWO_INPUTS, 3).value == pytest.approx(
        covariance_within_neuron(
            function, lambda p: np.cos(p[:, 0]) * np.cos(p[:, 1]), PYRAMID, TWO_INPUTS, 3, kinks=[0.0]
        ).value,
        rel=1e-7,
    )


def test_a_delta_function_is_the_density_at_zero() -> None:
    # <delta>_K = (2 pi K)^(-1/2), so the corrections are those of a power of K.
    at = layer_statistics(PYRAMID, TWO_INPUTS[:1], 4)
    K, V, G1 = at.K[0, 0], at.V[0, 0, 0, 0], at.G1[0, 0]
    density = 1 / np.sqrt(2 * np.pi * K)
    found = mean_of([factor("relu", 2)], PYRAMID, TWO_INPUTS[:1])
    assert found.leading == pytest.approx(density, rel=1e-10)
    assert found.correction == pytest.approx(density * (3 * V / (8 * K**2) - G1 / (2 * K)) / 16, rel=1e-9)


@pytest.mark.slow
def test_copies_of_an_input_are_one_input() -> None:
    twice = TWO_INPUTS[[0, 1, 0]]
    assert mean_of(["tanh", "cos", "tanh"], PYRAMID, twice).correction == pytest.approx(
        mean_of([factor("tanh") ** 2, "cos"], PYRAMID, TWO_INPUTS).correction, rel=1e-7
    )
    kinked = mean_of(["relu", 1.0, "relu"], PYRAMID, twice)
    G1 = layer_statistics(PYRAMID, TWO_INPUTS[:1]).G1[0, 0]
    assert kinked.correction == pytest.approx(G1 / 2 / 16, rel=1e-7)  # <relu^2> = K / 2

    def wave(points: np.ndarray) -> np.ndarray:
        return np.cos(points[:, 0] + points[:, -1])

    assert covariance_of(wave, wave, PYRAMID, twice[[0, 2]]).value == pytest.approx(
        covariance_of(wave, wave, PYRAMID, TWO_INPUTS[:1]).value, rel=1e-7
    )


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("distance", [1e-2, 1e-4, 1e-6])
def test_nearly_equal_inputs_lose_no_digits_that_the_error_does_not_own(distance: float) -> None:
    X = np.array([TWO_INPUTS[0], TWO_INPUTS[0] + distance * TWO_INPUTS[1]])
    exact = mean_of(["cos", "cos"], PYRAMID, X)
    weighted = mean_of(lambda points: np.cos(points).prod(axis=1), PYRAMID, X)
    assert abs(weighted.value - exact.value) < weighted.error + 1e-10
    assert weighted.error < 1e-6


def test_an_input_without_signal_stays_zero() -> None:
    silent = MLP("tanh", depth=3, width=20)
    found = mean_of(["cos", "cos"], silent, [[0.0, 0.0], [1.0, 1.0]])
    alone = mean_of(["cos"], silent, [[1.0, 1.0]])
    assert found.value == pytest.approx(alone.value, rel=1e-12)
    assert mean_of(of_first_input(np.cos), silent, [[0.0]]).value == 1.0


def test_inputs_that_no_factor_looks_at_do_not_matter() -> None:
    X = np.random.default_rng(0).standard_normal((7, 3))
    X[[2, 5]] = TWO_INPUTS
    picked = [1.0, 1.0, "cos", 1.0, 2.0, z**2, 1.0]
    assert mean_of(picked, PYRAMID, X).value == pytest.approx(
        2 * mean_of(["cos", z**2], PYRAMID, TWO_INPUTS).value, rel=1e-10
    )


@pytest.mark.slow
@settings(max_examples=3, deadline=None)
@given(st.integers(0, 2**31 - 1))
def test_the_order_of_inputs_does_not_matter(seed: int) -> None:
    X = np.random.default_rng(seed).standard_normal((3, 4))
    net = MLP("erf", depth=3, width=30, C_b=0.1, C_W=1.3)
    factors = ["sin", "tanh", z**2]
    order = np.random.default_rng(seed).permutation(3)
    assert mean_of([factors[i] for i in order], net, X[order]).value == pytest.approx(
        mean_of(factors, net, X).value, abs=1e-8
    )


def test_layer_one_is_gaussian() -> None:
    found = mean_of(["cos"], PYRAMID, TWO_INPUTS[:1], layer=1)
    K = PYRAMID.first_kernel(TWO_INPUTS)[0, 0]
    assert (found.value, found.correction) == (pytest.approx(np.exp(-K / 2)), 0.0)


def test_quartic_moments_of_layer_two_are_exact_at_width_two() -> None:
    net = MLP("sin", depth=2, width=2, C_b=0.2, C_W=1.5)
    points, weights = np.polynomial.hermite_e.hermegauss(40)
    root = np.linalg.cholesky(net.first_kernel(TWO_INPUTS))
    grid = np.array(list(product(points, repeat=2))) @ root.T
    mass = np.array([a * b for a, b in product(weights, repeat=2)]) / (2 * np.pi)
    one = np.einsum("pa,pb->pab", np.sin(grid), np.sin(grid)) * 1.5 / 2
    metric = 0.2 + one[:, None] + one[None]  # two hidden neurons
    exact = np.einsum(
        "p,q,pq->", mass, mass, metric[..., 0, 0] * metric[..., 1, 1] + 2 * metric[..., 0, 1] ** 2
    )
    found = mean_of([z**2, z**2], net, TWO_INPUTS)
    assert found.value == pytest.approx(exact, rel=1e-9)
    assert connected_four_point(net, TWO_INPUTS, (0, 0, 0, 0), (0, 0, 1, 1)) == pytest.approx(
        exact - found.leading, rel=1e-9
    )


def test_deep_linear_moments_to_first_order() -> None:
    gaps = []
    for n in (50, 100):
        net = MLP("linear", depth=4, width=[n, 2 * n, 3 * n])
        exact = linear.moments(linear.DeepLinear([n, 2 * n, 3 * n, 1]), 0.7)
        for order, pairings in ((2, 3), (3, 15)):
            found = mean_of([z ** (2 * order)], net, [[np.sqrt(0.7)]])
            first = pairings * 0.7**order * (1 + order * (order - 1) * (1 / n + 1 / (2 * n) + 1 / (3 * n)))
            assert found.value == pytest.approx(first, rel=1e-11)
        gaps.append(15 * float(exact.sel(layer=4, order=3)) - found.value)
    assert gaps[0] / gaps[1] == pytest.approx(4, rel=0.05)


def test_deep_linear_correlators_of_several_inputs() -> None:
    gram = TWO_INPUTS @ TWO_INPUTS.T / 3
    gaps = []
    for scale in (1, 2):
        widths = [40 * scale, 60 * scale]
        net = MLP("linear", depth=3, width=widths, n_out=3, C_b=0.1, C_W=0.9)
        deep = linear.DeepLinear([*widths, 3], C_W=0.9, C_b=0.1)
        exact = linear.connected_four_point(deep, gram, [[0, 1, 0, 1], [0, 0, 1, 1]]).values
        at = {"neurons": (0, 0, 1, 1), "inputs": (0, 1, 0, 1)}
        assert connected_four_point(net, TWO_INPUTS, **at, layer=2) == pytest.approx(exact[1, 0], rel=1e-11)
        assert connected_four_point(net, TWO_INPUTS, **at) == pytest.approx(exact[2, 0], rel=0.05)
        squares = connected_four_point(net, TWO_INPUTS, (0, 0, 1, 1), (0, 0, 1, 1))
        gaps.append(exact[2, 1] - squares)
    assert gaps[0] / gaps[1] == pytest.approx(4, rel=1e-6)  # at layer 3 nothing beyond n^-2 is left


def test_the_neurons_decide_which_vertices_enter() -> None:
    V = layer_statistics(PYRAMID, TWO_INPUTS).V / 16
    entry = (0, 1, 1, 1)

    def at(*neurons: int) -> float:
        return connected_four_point(PYRAMID, TWO_INPUTS, neurons, entry)

    assert at(0, 0, 1, 1) == pytest.approx(V[0, 1, 1, 1])
    assert at(0, 1, 0, 1) == pytest.approx(V[0, 1, 1, 1])
    assert at(2, 2, 2, 2) == pytest.approx(3 * V[0, 1, 1, 1])
    assert at(0, 1, 2, 3) == at(0, 0, 1, 2) == 0.0
    mixed = connected_four_point(PYRAMID, TWO_INPUTS, (0, 1, 0, 1), (0, 0, 1, 1))
    assert mixed == pytest.approx(V[0, 1, 0, 1])


def test_tables_by_layer() -> None:
    at = layer_statistics(PYRAMID, TWO_INPUTS, 4)
    kurtosis = excess_kurtosis(PYRAMID, TWO_INPUTS)
    assert kurtosis.dims == ("layer", "input")
    np.testing.assert_array_equal(kurtosis.sel(layer=1), 0.0)
    assert float(kurtosis.sel(layer=4, input=1)) == pytest.approx(
        3 * at.V[1, 1, 1, 1] / (16 * at.K[1, 1] ** 2), rel=1e-9
    )
    assert at.fluctuation == pytest.approx(float(kurtosis.sel(layer=4).max()) / 3, rel=1e-9)
    shared = neuron_covariance(PYRAMID, TWO_INPUTS)
    np.testing.assert_allclose(shared.sel(layer=4), np.einsum("aabb->ab", at.V) / 16, rtol=1e-8)
    moments = second_moment(PYRAMID, TWO_INPUTS)
    np.testing.assert_allclose(moments["value"].sel(layer=4), at.K + at.G1 / 16, rtol=1e-9)
    assert mean_of([z, z], PYRAMID, TWO_INPUTS).value == pytest.approx(
        float(moments["value"].sel(layer=4)[0, 1]), rel=1e-9
    )
    squares = covariance_of([z**2, 1.0], [1.0, z**2], PYRAMID, TWO_INPUTS)
    assert squares.value == pytest.approx(float(shared.sel(layer=4)[0, 1]), rel=1e-8)


@pytest.mark.parametrize(
    ("net", "growth"),
    [
        (MLP("relu", 10, 1000, C_W=2.0), 5.0),
        (MLP("linear", 10, 1000), 2.0),
        (MLP("relu", 10, 1000, C_b=0.1, C_W=2.0), 5 / 3),
        (MLP("tanh", 10, 1000), 2 / 3),
        (MLP("gelu", 10, 1000, C_b=0.1729223908, C_W=1.9830582574), 4.904),
        (MLP("tanh", 10, 1000, C_W=1.5), None),
        (MLP("tanh", 10, 1000, C_W=[1.0, *[0.75] * 8, 1.0], gamma=0.5), 2 / 3 * (1 - 0.5**4)),
        (MLP("sigmoid", 10, 1000), None),
    ],
)
def test_the_expansion_parameter_knows_the_class(net: MLP, growth: float | None) -> None:
    found = expansion_parameter(net)
    assert found.growth == (None if growth is None else pytest.approx(growth, rel=1e-4))
    assert found.value == pytest.approx(0.01 * (growth or 1.0), rel=1e-4)
    assert found.verdict.startswith("small")


def test_too_deep_a_network_comes_with_a_warning() -> None:
    deep = MLP("relu", depth=10, width=50, C_W=2.0)
    with pytest.warns(AccuracyWarning, match="first order in 1/n"):
        assert expansion_parameter(deep).verdict.startswith("large")
    with pytest.warns(AccuracyWarning, match="first order in 1/n"):
        found = mean_of(["cos"], deep, [[1.0]])
    assert found.fluctuation == pytest.approx(5 * 9 / 50)
    assert "0.165546" in repr(found)


def test_results_are_told() -> None:
    text = repr(FirstOrder(0.25, -0.125, 0.0, 2, 50, 0.1))
    assert re.search(r"value +0.125 +The sum of both orders", text)
    told = repr(layer_statistics(PYRAMID, TWO_INPUTS))
    assert "2 × 2 × 2 × 2 numbers" in told
    assert "array" not in told


def test_bad_input() -> None:
    with pytest.raises(InputError, match="layer is 5"):
        mean_of(["cos"], PYRAMID, TWO_INPUTS[:1], 5)
    with pytest.raises(InputError, match="layer is 'two'"):
        mean_of(["cos"], PYRAMID, TWO_INPUTS[:1], "two")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"1 factors .*2 inputs"):
        mean_of(["cos"], PYRAMID, TWO_INPUTS)
    with pytest.raises(InputError, match="no observable"):
        mean_of(3.0, PYRAMID, TWO_INPUTS)
    with pytest.raises(NotSupportedError, match="two of a kind"):
        covariance_within_neuron(["cos"], np.cos, PYRAMID, TWO_INPUTS[:1])
    with pytest.raises(NotSupportedError, match="delta function"):
        mean_of([factor("relu", 2) ** 2], PYRAMID, TWO_INPUTS[:1])
    with pytest.raises(InputError, match=r"neurons .*0\.\.20"):
        connected_four_point(PYRAMID, TWO_INPUTS, (0, 0, 20, 20), (0, 0, 0, 0))
    residual = MLP("tanh", depth=4, width=10, gamma=0.5)
    for refused in (
        lambda: mean_of(["cos"], residual, TWO_INPUTS[:1]),
        lambda: excess_kurtosis(residual, TWO_INPUTS),
        lambda: connected_four_point(residual, TWO_INPUTS, (0, 0, 0, 0), (0, 0, 0, 0)),
    ):
        with pytest.raises(NotSupportedError, match="without skip connections"):
            refused()
    with pytest.raises(InputError, match="give 4 whole numbers"):
        connected_four_point(PYRAMID, TWO_INPUTS, (0, 0), (0, 0))


def real_networks(draws: int) -> tuple[MLP, list[np.ndarray]]:
    """Preactivations (draws, neurons) of layer 3 at one input, from explicit weights, in batches."""
    net = MLP("tanh", depth=4, width=40)
    chunks = Ensemble(net, [[1.0]], draws, method="weights", seed=11).preactivations([3])
    return net, [chunk[3][:, :, 0] for chunk in chunks]


def mean_and_error(batches: list[np.ndarray]) -> tuple[float, float]:
    values = np.concatenate(batches)
    return float(values.mean()), float(values.std() / np.sqrt(len(values)))


@pytest.mark.statistical
def test_cosine_on_real_networks() -> None:
    net, layers = real_networks(150_000)
    found = mean_of(["cos"], net, [[1.0]], layer=3)
    # E[cos z | metric] = exp(-metric / 2); the mean over 40 neurons is another estimate of it.
    measured, error = mean_and_error([np.cos(zs).mean(axis=1) for zs in layers])
    assert abs(measured - found.value) < 4 * error + found.fluctuation * abs(found.correction)
    assert abs(measured - found.leading) > 5 * error  # the shift itself is seen


@pytest.mark.statistical
def test_a_kinked_function_of_two_inputs_on_real_networks() -> None:
    net = MLP("tanh", depth=3, width=40, C_b=0.1, C_W=1.5)
    found = mean_of(["relu", "relu"], net, TWO_INPUTS)
    metric = sample_metric(net, TWO_INPUTS, 150_000, method="weights", layers=[3], seed=5).values[:, 0]
    size = np.sqrt(metric[:, 0, 0] * metric[:, 1, 1])
    psi = np.arccos(metric[:, 0, 1] / size)
    # The mean over the last layer's weights is done exactly: <relu relu> of the metric.
    given_metric = size * (np.sin(psi) + (np.pi - psi) * np.cos(psi)) / (2 * np.pi)
    measured, error = mean_and_error([given_metric])
    assert abs(measured - found.value) < 4 * error + 2 * found.fluctuation * abs(found.correction)
    assert abs(measured - found.leading) > 5 * error


@pytest.mark.statistical
def test_covariance_of_two_neurons_on_real_networks() -> None:
    net, layers = real_networks(150_000)
    found = covariance_of([z**2], ["cos"], net, [[1.0]], layer=3)
    means = [mean_of([F], net, [[1.0]], layer=3).value for F in (z**2, "cos")]
    products = []
    for zs in layers:
        F, H, m = zs**2 - means[0], np.cos(zs) - means[1], zs.shape[1]
        products.append((F.sum(axis=1) * H.sum(axis=1) - (F * H).sum(axis=1)) / (m * (m - 1)))
    measured, error = mean_and_error(products)
    # What is left out is of relative order 1/n times a few, as V itself shows.
    assert abs(measured - found.value) < 4 * error + 2 * found.fluctuation * abs(found.value)
    assert error < 0.02 * abs(found.value)
    within = covariance_within_neuron([z**2], ["cos"], net, [[1.0]], layer=3)
    same = [((zs**2 - means[0]) * (np.cos(zs) - means[1])).mean(axis=1) for zs in layers]
    measured, error = mean_and_error(same)
    assert abs(measured - within.value) < 4 * error + 2 * within.fluctuation * abs(within.correction)
    assert abs(measured - within.leading) > 5 * error
