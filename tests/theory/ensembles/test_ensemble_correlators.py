from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from functools import cache
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrain.gaussian import expectation, factor
from foretrain.theory import ensembles as correlators_module
from foretrain.theory import linear
from foretrain.theory.architecture import MLP
from foretrain.theory.ensembles import (
    BatchSums,
    Ensemble,
    MetricContractions,
    NeuronAverages,
    connected_correlator,
    correlator,
    weight_law,
)

X = np.array([[1.0, 0.2, -0.5], [0.4, 1.1, 0.3], [-0.7, 0.1, 0.9]])


def all_pairings(items: tuple[int, ...]) -> Iterable[list[tuple[int, int]]]:
    if not items:
        yield []
        return
    for index in range(1, len(items)):
        rest = items[1:index] + items[index + 1 :]
        for pairing in all_pairings(rest):
            yield [(items[0], items[index]), *pairing]


MOMENTS = [
    ((0, 1),),
    ((0,), (1,)),
    ((0, 1), (2, 2)),
    ((0, 0, 1, 2),),
    ((0, 1), (0, 1), (2, 2)),
    ((0,), (1, 1, 2)),
    ((0, 0, 1, 1), (2, 2)),
    ((0, 1), (0, 1), (1, 1), (2, 2)),
]


@pytest.mark.parametrize("moment", MOMENTS)
def test_neuron_averages_against_all_tuples_of_neurons(moment: tuple[tuple[int, ...], ...]) -> None:
    z = np.random.default_rng(1).normal(size=(4, 5, 3))
    tuples = list(permutations(range(5), len(moment)))
    expected = np.zeros(4)
    for chosen in tuples:
        term = np.ones(4)
        for neuron, inputs in zip(chosen, moment, strict=True):
            for index in inputs:
                term = term * z[:, neuron, index]
        expected += term / len(tuples)
    np.testing.assert_allclose(NeuronAverages(z).read(moment), expected, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(NeuronAverages(z[:, ::-1]).read(moment), expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("moment", MOMENTS)
def test_metric_contractions_against_all_pairings(moment: tuple[tuple[int, ...], ...]) -> None:
    root = np.random.default_rng(2).normal(size=(4, 3, 3))
    metric = root @ np.swapaxes(root, 1, 2)
    legs = [(neuron, index) for neuron, inputs in enumerate(moment) for index in inputs]
    expected = np.zeros(4)
    for pairing in all_pairings(tuple(range(len(legs)))) if len(legs) % 2 == 0 else []:
        if all(legs[a][0] == legs[b][0] for a, b in pairing):
            expected += np.prod([metric[:, legs[a][1], legs[b][1]] for a, b in pairing], axis=0)
    np.testing.assert_allclose(MetricContractions(metric).read(moment), expected, rtol=1e-11, atol=1e-13)


def test_too_few_neurons_give_nan() -> None:
    assert np.isnan(NeuronAverages(np.ones((2, 1, 1))).read(((0, 0), (0, 0)))).all()


def terms_by_type(neurons: str, even: bool = True) -> dict[tuple[int, ...], int]:
    """Total coefficient of each type of product in a cumulant of distinct inputs."""
    totals: dict[tuple[int, ...], int] = {}
    for parts, weight in correlators_module._connected_terms(
        neurons, tuple(range(len(neurons))), even
    ).items():
        kind = tuple(sorted((sum(map(len, moment)) for moment in parts), reverse=True))
        totals[kind] = totals.get(kind, 0) + weight
    return totals


def test_cumulants_have_the_reference_coefficients() -> None:
    assert terms_by_type("1111") == {(4,): 1, (2, 2): -3}
    assert terms_by_type("1122") == {(4,): 1, (2, 2): -1}
    assert terms_by_type("111111") == {(6,): 1, (4, 2): -15, (2, 2, 2): 30}
    assert terms_by_type("112233") == {(6,): 1, (4, 2): -3, (2, 2, 2): 2}
    assert terms_by_type("11111111") == {
        (8,): 1,
        (6, 2): -28,
        (4, 4): -35,
        (4, 2, 2): 420,
        (2, 2, 2, 2): -630,
    }
    assert terms_by_type("122", even=False) == {(3,): 1}
    assert terms_by_type("1122", even=False) == {(4,): 1, (2, 2): -3}


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(2, 30))
def test_batches_do_not_depend_on_the_chunks(sizes: list[int], batches: int) -> None:
    draws = sum(sizes) + 1
    values = np.random.default_rng(draws).normal(size=(draws, 2))
    whole, pieces = BatchSums(draws, (2,), batches), BatchSums(draws, (2,), batches)
    whole.add(values)
    for part in np.split(values, np.cumsum(sizes)):
        pieces.add(part)

    def ratio(means: np.ndarray) -> np.ndarray:
        return np.stack([means[..., 0], means[..., 1] ** 2], axis=-1)

    expected, found = whole.estimate(ratio), pieces.estimate(ratio)
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-12)
    if draws % min(batches, draws) == 0:
        assert found[0][0] == pytest.approx(values[:, 0].mean(), abs=1e-12)


def test_standard_error_of_a_mean_is_the_textbook_one() -> None:
    values = np.random.default_rng(0).normal(size=(500, 1))
    sums = BatchSums(500, (1,), 500)
    sums.add(values)
    value, error = sums.estimate(lambda means: means)
    assert value[0] == pytest.approx(values.mean())
    assert error[0] == pytest.approx(values.std(ddof=1) / math.sqrt(500))


def test_jackknife_removes_the_bias_of_a_variance() -> None:
    values = np.random.default_rng(0).normal(size=(60, 1))
    sums = BatchSums(60, (2,), 60)
    sums.add(np.concatenate([values, values**2], axis=1))
    value, _ = sums.estimate(lambda means: means[..., 1:] - means[..., :1] ** 2)
    assert value[0] == pytest.approx(values.var(ddof=1))


@pytest.mark.statistical
@pytest.mark.parametrize("estimator", ["wick", "neurons"])
def test_standard_errors_are_calibrated(estimator: str) -> None:
    """Deep linear, one input, hidden widths 10: κ_2 = 0.2 at layer 2 and 0.44 at layer 3, exactly."""
    mlp = MLP("linear", depth=3, width=10, n_out=4)
    scores = []
    for seed in range(150):
        found = connected_correlator(
            Ensemble(mlp, [[1.0]], 4000, seed=seed), "1122", layers=[2, 3], estimator=estimator
        )
        scores.append((found.value.values.ravel() - [0.2, 0.44]) / found.standard_error.values.ravel())
    spread = np.sqrt(np.mean(np.square(scores), axis=0))
    assert np.abs(np.mean(scores, axis=0)).max() < 4 / math.sqrt(150)
    assert np.abs(spread - 1).max() < 4 / math.sqrt(2 * 150)


def scores(found: Any, expected: Any) -> np.ndarray:
    return np.asarray((found.value - expected) / found.standard_error).ravel()


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("method", ["weights", "conditional"])
@pytest.mark.parametrize("estimator", ["wick", "neurons"])
def test_deep_linear_moments(method: str, estimator: str) -> None:
    """G_2m for hidden widths 8, 16, 4, C_W = 1.2, G^(0) = .7 at layer 4 (reference values)."""
    mlp = MLP("linear", depth=4, width=[8, 16, 4], n_out=3, C_W=1.2)
    ensemble = Ensemble(mlp, [[math.sqrt(0.7)]], 20_000, method=method, seed=11)
    for neurons, expected in (
        ("11", 1.45152),
        ("1122", 4.444263936),
        ("1111", 3 * 4.444263936),
        ("112233", 24.19101746),
    ):
        found = correlator(ensemble, neurons, layers=[4], estimator=estimator)
        assert abs(scores(found, expected)[0]) < 3.5
    kappa = connected_correlator(ensemble, "1122", layers=[4], estimator=estimator)
    assert abs(scores(kappa, 4.444263936 - 1.45152**2)[0]) < 3.5


@pytest.mark.statistical
def test_deep_linear_with_several_inputs() -> None:
    """A_(12)(34) for the reference Gram matrix, hidden 3, 4, and a six-point value."""
    gram = np.array([[1, 0.5, 0.2, 0], [0.5, 1, 0.1, 0.3], [0.2, 0.1, 1, 0.4], [0, 0.3, 0.4, 1]])
    inputs = np.linalg.cholesky(gram) * 2.0
    ensemble = Ensemble(MLP("linear", depth=3, width=[3, 4], n_out=3), inputs, 400_000, seed=5)
    entries = [[0, 1, 2, 3], [0, 2, 1, 3], [0, 3, 1, 2]]
    expected = np.array([0.2733333333, 0.2033333333, 0.1733333333])
    for estimator in ("wick", "neurons"):
        found = correlator(ensemble, "1122", layers=[3], inputs=entries, estimator=estimator)
        assert np.abs(scores(found, expected)).max() < 3.5
    mixed = correlator(ensemble, "1212", layers=[3], inputs=[[0, 2, 1, 3]])
    assert abs(scores(mixed, expected[0])[0]) < 3.5
    six = correlator(ensemble, "112233", layers=[3], inputs=[[0, 1, 2, 3, 0, 1]])
    assert abs(scores(six, 0.725)[0]) < 3.5
    same = correlator(ensemble, "111111", layers=[3], inputs=[[0, 1, 2, 3, 0, 1]])
    assert abs(scores(same, 9.1)[0]) < 3.5


@pytest.mark.statistical
@pytest.mark.parametrize("law", ["uniform", "truncated_normal"])
def test_other_weight_laws_show_their_kurtosis(law: str) -> None:
    """E[z_1² z_2²] = G_4 and E[z⁴] = 3 G_4 + D, with D from the excess kurtosis of the weights."""
    x = np.array([1.0, 0.5, -1.5, 1.0])
    ensemble = Ensemble(
        MLP("linear", depth=3, width=[4, 5], n_out=4), x[None], 400_000, method="weights", law=law, seed=9
    )
    exact = linear.nongaussian_weights(linear.DeepLinear([4, 5, 4]), x, weight_law(law).excess_kurtosis)
    G2, G4, D = (float(exact[name].sel(layer=3)) for name in ("G2", "G4", "D"))
    for neurons, expected in (("11", G2), ("1122", G4), ("1111", 3 * G4 + D)):
        found = correlator(ensemble, neurons, layers=[3], estimator="neurons")
        assert abs(scores(found, expected)[0]) < 3.5
        assert found.standard_error.item() < 0.02 * expected


@pytest.mark.statistical
def test_connected_six_point_with_biases_against_the_exact_theory() -> None:
    mlp = MLP("linear", depth=3, width=[20, 30], n_out=3, C_b=0.3, C_W=0.8)
    ensemble = Ensemble(mlp, [[1.0]], 400_000, seed=13)
    kappa = linear.connected(linear.DeepLinear([20, 30, 3], C_W=0.8, C_b=0.3), 1.0, max_order=3).sel(layer=3)
    for neurons, order, pairings in (("1122", 2, 1), ("112233", 3, 1), ("111111", 3, 15)):
        found = connected_correlator(ensemble, neurons, layers=[3])
        expected = pairings * float(kappa.sel(order=order))
        assert abs(scores(found, expected)[0]) < 3.5
        assert abs(found.value.item()) > 8 * found.standard_error.item()


@pytest.mark.statistical
@pytest.mark.parametrize("method", ["weights", "conditional"])
def test_residual_deep_linear_networks(method: str) -> None:
    """At C_W = 1 - γ², E[z_1² z_2²] = K² (1 + 2(1-γ⁴)/n)^(l-1) exactly."""
    gamma, width = 0.6, 5
    mlp = MLP("linear", depth=5, width=width, C_W=[1.0] + [1 - gamma**2] * 4, gamma=gamma)
    ensemble = Ensemble(mlp, [[1.0]], 200_000, method=method, seed=4)
    found = correlator(ensemble, "1122", layers=[2, 3, 4], estimator="neurons")
    expected = (1 + 2 * (1 - gamma**4) / width) ** np.arange(1, 4)
    assert np.abs(scores(found, expected[:, None, None, None, None])).max() < 3.5


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_conditional_sampler_has_the_law_of_the_weights(activation: str) -> None:
    mlp = MLP(activation, depth=3, width=[3, 4], n_out=3, C_b=0.2, C_W=1.5)
    found = [
        connected_correlator(Ensemble(mlp, X, 20_000, method=method, seed=6), "1122", layers=[2, 3])
        for method in ("weights", "conditional")
    ]
    error = np.hypot(found[0].standard_error, found[1].standard_error)
    assert float(np.abs((found[0].value - found[1].value) / error).max()) < 4.0


def test_all_entries_obey_the_symmetry_of_the_pattern() -> None:
    ensemble = Ensemble(MLP("tanh", depth=2, width=4, n_out=2), X, 500)
    full = correlator(ensemble, "1122", layers=[2], estimator="neurons").value.values[0]
    assert full.shape == (3, 3, 3, 3)
    np.testing.assert_array_equal(full, full.transpose(1, 0, 2, 3))
    np.testing.assert_array_equal(full, full.transpose(2, 3, 0, 1))
    assert np.abs(full - full.transpose(0, 2, 1, 3)).max() > 1e-3
    crossed = correlator(ensemble, "1212", layers=[2], estimator="neurons").value.values[0]
    np.testing.assert_array_equal(crossed, full.transpose(0, 2, 1, 3))
    listed = correlator(ensemble, "1122", layers=[2], inputs=[[0, 1, 2, 2]], estimator="neurons")
    rounding = 1e-13 * np.abs(full).max()  # sums over the draws in another order
    assert listed.value.item() == pytest.approx(full[0, 1, 2, 2], rel=0, abs=rounding)
    assert listed.input_4.item() == 2


def test_first_layer_is_exactly_gaussian() -> None:
    mlp = MLP("tanh", depth=2, width=6, C_b=0.1)
    ensemble = Ensemble(mlp, X, 4000, seed=2)
    exact = correlator(ensemble, "11", layers=[1])
    np.testing.assert_allclose(exact.value[0], mlp.first_kernel(X), rtol=1e-10)
    np.testing.assert_allclose(exact.standard_error, 0, atol=1e-10)
    found = connected_correlator(ensemble, "1122", layers=[1], estimator="neurons")
    assert np.abs(scores(found, 0.0)).max() < 4.0


@pytest.mark.statistical
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize(("method", "estimator"), [("weights", "neurons"), ("conditional", "wick")])
def test_second_layer_is_exact_at_width_three(activation: str, method: str, estimator: str) -> None:
    """(4.37) and (4.40) hold at any width; here n_1 = 3, where their effect is far above the noise."""
    mlp = MLP(activation, depth=2, width=3, n_out=8, C_b=0.2, C_W=1.5)
    K = mlp.first_kernel(X)

    @cache
    def mean(*inputs: int) -> float:
        powers = Counter(inputs)
        rows = list(powers)
        return float(
            expectation([factor(activation, power=powers[i]) for i in rows], K[np.ix_(rows, rows)]).value
        )

    two = np.array([[0.2 + 1.5 * mean(a, b) for b in range(3)] for a in range(3)])
    four = np.empty((3, 3, 3, 3))
    for a, b, c, d in product(range(3), repeat=4):
        four[a, b, c, d] = 1.5**2 / 3 * (mean(a, b, c, d) - mean(a, b) * mean(c, d))
    ensemble = Ensemble(mlp, X, 200_000, method=method, seed=21)
    found_two = correlator(ensemble, "11", layers=[2], estimator=estimator)
    found_four = connected_correlator(ensemble, "1122", layers=[2], estimator=estimator)
    assert np.abs(scores(found_two, two)).max() < 3.8
    assert np.abs(scores(found_four, four)).max() < 3.8
    assert np.abs(found_four.value / found_four.standard_error).max() > 50
