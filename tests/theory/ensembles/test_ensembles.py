from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from scipy import stats

from foretrain.support.errors import InputError, NotEnoughMemoryError
from foretrain.theory import ensembles as sampling_module
from foretrain.theory.architecture import MLP
from foretrain.theory.ensembles import (
    Ensemble,
    correlator,
    diagnose,
    forward,
    framework_default,
    sample_metric,
    sample_parameters,
    sample_preactivations,
    truncated_normal_moments,
    weight_law,
)

LAWS = ("gaussian", "uniform", "truncated_normal")
X = np.array([[1.0, 0.2, -0.5], [0.4, 1.1, 0.3], [-0.7, 0.1, 0.9]])


def test_truncated_normal_has_the_reference_moments() -> None:
    variance, excess = truncated_normal_moments(2.0)
    assert variance == pytest.approx(0.7737413, abs=5e-8)
    assert excess == pytest.approx(-0.6344633, abs=5e-8)


@pytest.mark.parametrize("cut", [0.5, 1.0, 2.0, 3.5])
def test_truncated_normal_moments_against_scipy(cut: float) -> None:
    _, variance, _, excess = stats.truncnorm.stats(-cut, cut, moments="mvsk")
    assert truncated_normal_moments(cut) == pytest.approx((variance, excess), rel=1e-8)


@pytest.mark.parametrize("name", LAWS)
def test_laws_have_unit_variance_and_their_kurtosis(name: str) -> None:
    law = weight_law(name)
    values = law.draw(np.random.default_rng(1), (400_000,))
    fourth = 3.0 + law.excess_kurtosis
    assert abs(values.mean()) < 4 / math.sqrt(values.size)
    assert abs((values**2).mean() - 1) < 4 * math.sqrt((fourth - 1) / values.size)
    assert abs((values**4).mean() - fourth) < 4 * (values**4).std() / math.sqrt(values.size)


def test_framework_default_is_the_usual_uniform_initialiser() -> None:
    mlp = framework_default(MLP("relu", depth=3, width=[7, 5], n_in=4))
    parameters = sample_parameters(mlp, 4000, law="uniform", seed=3)
    for fan_in, weights, biases in zip((4, 7, 5), parameters.weights, parameters.biases, strict=True):
        bound = 1 / math.sqrt(fan_in)
        for values in (weights, biases):
            assert 0.998 * bound < np.abs(values).max() <= bound * (1 + 1e-12)


def test_parameters_have_the_shapes_and_variances_of_the_architecture() -> None:
    mlp = MLP("tanh", depth=3, width=[6, 9], n_in=4, n_out=2, C_b=[0.3, 0, 0.1], C_W=[1.0, 2.0, 0.5])
    parameters = sample_parameters(mlp, 5000, seed=2)
    assert [w.shape for w in parameters.weights] == [(5000, 6, 4), (5000, 9, 6), (5000, 2, 9)]
    assert sum(w[0].size for w in (*parameters.weights, *parameters.biases)) == mlp.parameter_count
    for weights, C_W, fan_in in zip(parameters.weights, mlp.C_W, (4, 6, 9), strict=True):
        error = math.sqrt(2 / weights.size)
        assert abs((weights**2).mean() * fan_in / C_W - 1) < 4 * error
    assert abs((parameters.biases[0] ** 2).mean() / 0.3 - 1) < 4 * math.sqrt(2 / 30_000)
    assert not parameters.biases[1].any()


@pytest.mark.parametrize("gamma", [None, 0.7])
def test_forward_pass_against_loops(gamma: float | None) -> None:
    mlp = MLP("gelu", depth=4, width=3, n_in=3, n_out=2, C_b=0.2, gamma=gamma)
    parameters = sample_parameters(mlp, 2, seed=5)
    z = forward(parameters, X)
    assert [z[layer].shape for layer in (1, 2, 3, 4)] == [(2, 3, 3)] * 3 + [(2, 2, 3)]
    for draw, column in product(range(2), range(3)):
        signal, before = X[column], np.zeros(3)
        for layer in range(1, 5):
            weights, biases = parameters.weights[layer - 1][draw], parameters.biases[layer - 1][draw]
            now = [biases[i] + sum(weights[i] * signal) for i in range(len(biases))]
            if gamma and layer in (2, 3):
                now = [value + gamma * old for value, old in zip(now, before, strict=True)]
            np.testing.assert_allclose(z[layer][draw, :, column], now, rtol=1e-12, atol=1e-14)
            before = np.array(now)
            signal = before * 0.5 * (1 + np.array([math.erf(v / math.sqrt(2)) for v in before]))


@pytest.mark.parametrize("method", ["weights", "conditional"])
def test_seeds_reproduce_and_differ(method: str) -> None:
    mlp = MLP("tanh", depth=2, width=4, C_b=0.1)
    first, again, other = (sample_preactivations(mlp, X, 50, method=method, seed=s)[2] for s in (7, 7, 8))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.1


@pytest.mark.parametrize("method", ["weights", "conditional"])
def test_chunks_are_small_and_complete(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling_module, "_CHUNK_BYTES", 20_000)
    mlp = MLP("tanh", depth=3, width=[8, 5], n_out=2)
    chunks = list(Ensemble(mlp, X, 203, method=method).preactivations([2, 3]))
    assert len(chunks) > 5
    assert sum(len(chunk[2]) for chunk in chunks) == 203
    assert all(array.nbytes <= 20_000 for chunk in chunks for array in chunk.values())
    assert len(np.unique(np.concatenate([chunk[3][:, 0, 0] for chunk in chunks]))) == 203
    assert set(sample_preactivations(mlp, X, 203, method=method, layers=[2])) == {2}


def test_weights_with_permuted_inputs_give_permuted_preactivations() -> None:
    mlp = MLP("tanh", depth=3, width=4, C_b=0.3)
    order = [2, 0, 1]
    plain = sample_preactivations(mlp, X, 20, method="weights", seed=1)[3]
    permuted = sample_preactivations(mlp, X[order], 20, method="weights", seed=1)[3]
    np.testing.assert_allclose(permuted, plain[..., order], atol=1e-13)


def test_conditional_sampler_takes_singular_metrics() -> None:
    """Equal inputs, and fewer neurons than inputs."""
    mlp = MLP("tanh", depth=3, width=2, n_out=3)
    z = sample_preactivations(mlp, X[[0, 1, 0, 2, 1]], 200, seed=3)
    for layer in (1, 2, 3):
        np.testing.assert_allclose(z[layer][..., 0], z[layer][..., 2], atol=1e-6)
        np.testing.assert_allclose(z[layer][..., 1], z[layer][..., 4], atol=1e-6)
        assert np.abs(z[layer][..., 0] - z[layer][..., 1]).max() > 0.1


def test_metric_is_the_gram_matrix_of_the_layer_before() -> None:
    mlp = MLP("relu", depth=3, width=[4, 6], C_b=[0.1, 0.2, 0.3], C_W=[1.0, 1.5, 2.0])
    metric = sample_metric(mlp, X, 30, seed=4)
    assert metric.dims == ("draw", "layer", "input_1", "input_2")
    np.testing.assert_allclose(metric.sel(layer=1), np.broadcast_to(mlp.first_kernel(X), (30, 3, 3)))
    activity = np.maximum(sample_preactivations(mlp, X, 30, seed=4, layers=[1, 2])[2], 0)
    expected = 0.3 + 2.0 / 6 * np.einsum("dja,djb->dab", activity, activity)
    np.testing.assert_allclose(metric.sel(layer=3), expected, atol=1e-12)


@pytest.mark.parametrize("method", ["weights", "conditional"])
def test_one_seed_means_one_set_of_networks(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever layers are asked for, and however many chunks it takes."""
    monkeypatch.setattr(sampling_module, "_CHUNK_BYTES", 20_000)
    mlp = MLP("tanh", depth=3, width=[8, 5], n_out=2)
    everything = sample_preactivations(mlp, X, 100, method=method, seed=1)
    alone = sample_preactivations(mlp, X, 100, method=method, seed=1, layers=[2])
    np.testing.assert_array_equal(alone[2], everything[2])
    metric = sample_metric(mlp, X, 100, method=method, seed=1, layers=[3]).values[:, 0]
    activity = np.tanh(everything[2])
    np.testing.assert_allclose(metric, np.einsum("dja,djb->dab", activity, activity) / 5, atol=1e-12)


def test_zero_variances_give_zeros() -> None:
    """With C_W = C_b = 0 everything is zero, and nothing divides by it."""
    z = sample_preactivations(MLP("tanh", depth=3, width=4, C_W=0.0), X, 5)
    assert all(not values.any() for values in z.values())


def test_diagnostics_of_a_deep_linear_network() -> None:
    """R has mean 1 and variance κ_2: excess 3 κ_2, correlation κ_2 / (3 κ_2 + 2)."""
    report = diagnose(MLP("linear", depth=4, width=10), [[1.0], [2.0]], 20_000, seed=3)
    kappa = 1.2 ** np.arange(4) - 1
    expected = {"excess_kurtosis": 3 * kappa, "neuron_correlation": kappa / (3 * kappa + 2)}
    for name, exact in expected.items():
        error = report[f"{name}_standard_error"].values
        np.testing.assert_allclose(report[name].sel(layer=1), 0, atol=1e-10)
        assert np.abs((report[name].values - exact[:, None])[1:] / error[1:]).max() < 3.5
    np.testing.assert_allclose(report.inverse_width, [0, 0.1, 0.2, 0.3])
    assert report.attrs["depth_to_width"] == pytest.approx(0.4)


def test_diagnostics_use_neurons_where_the_shortcut_does_not_hold() -> None:
    residual = diagnose(MLP("tanh", depth=4, width=6, gamma=0.5), X, 500)
    uniform = diagnose(MLP("tanh", depth=4, width=6), X, 500, law="uniform")
    for report in (residual, uniform):
        assert report.attrs["estimator"] == "neurons"
        assert np.isnan(report.neuron_correlation.sel(layer=4)).all()
        assert np.isfinite(report.neuron_correlation.sel(layer=[1, 2, 3])).all()
        assert np.isfinite(report.excess_kurtosis).all()


MLP_2 = MLP("tanh", depth=2, width=4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: weight_law("normal"), "unknown weight law 'normal'"),
        (lambda: Ensemble(MLP_2, X, 10, method="weight"), "did you mean 'weights'"),
        (lambda: Ensemble(MLP_2, X, 10, law="uniform"), "use method='weights'"),
        (lambda: Ensemble(MLP_2, X, 1), "draws is 1"),
        (lambda: Ensemble(MLP_2, X, 10.5), "draws is 10.5"),
        (lambda: Ensemble(MLP_2, X, 10**12), "100,000,000"),
        (lambda: Ensemble(MLP_2, X[0], 10), "X has shape"),
        (lambda: sample_preactivations(MLP_2, X, 10, seed=-1), "seed is -1"),
        (lambda: sample_preactivations(MLP_2, X, 10, layers=[0]), "choose from 1 to 2"),
        (lambda: sample_metric(MLP_2, X, 10, layers=[3]), "choose from 1 to 2"),
        (lambda: sample_parameters(MLP_2, 10), "n_in is not set"),
        (lambda: framework_default(MLP_2), "n_in is not set"),
        (lambda: correlator(Ensemble(MLP_2, X, 10), "1"), "2 to 8"),
        (lambda: correlator(Ensemble(MLP_2, X, 10), "11", estimator="wicks"), "did you mean 'wick'"),
        (lambda: correlator(Ensemble(MLP_2, X, 10), "1122", estimator="neurons"), "layer 2 has 1"),
        (lambda: correlator(Ensemble(MLP_2, X, 10), "11", inputs=[[0, 3]]), "X has inputs 0 to 2"),
        (lambda: correlator(Ensemble(MLP_2, X, 10), "11", inputs=[[0, 1, 2]]), "rows of 2 input numbers"),
        (lambda: correlator(Ensemble(MLP_2, np.ones((30, 1)), 10), "1122"), "list the wanted ones"),
        (
            lambda: correlator(Ensemble(MLP_2, X, 10, method="weights", law="uniform"), "11"),
            "use estimator='neurons'",
        ),
        (
            lambda: correlator(Ensemble(MLP("tanh", depth=3, width=4, gamma=0.5), X, 10), "11"),
            "use estimator='neurons'",
        ),
    ],
)
def test_bad_requests_say_what_to_do(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


def test_samples_that_do_not_fit_are_refused() -> None:
    with pytest.raises(NotEnoughMemoryError, match="fewer draws"):
        sample_preactivations(MLP("tanh", depth=3, width=10_000), X, 10**8)
    with pytest.raises(NotEnoughMemoryError, match="fewer draws"):
        sample_parameters(MLP("tanh", depth=3, width=10_000, n_in=5), 10**6)


def test_what_was_drawn_is_told() -> None:
    text = repr(Ensemble(MLP_2, X, 1000, seed=3))
    assert all(word in text for word in ("MLP tanh", "1000", "conditional", "gaussian"))
    assert "of many networks" in repr(sample_parameters(MLP_2.with_inputs(X), 2))
