"""What observations do inside a network to order 1/n: shifts of hidden layers, and neurons of one layer."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from finite_bayes_example import MLP, SHIFT_2, SHIFT_3, TARGETS, TEST, TRAIN, UNEQUAL
from scipy.integrate import quad
from scipy.stats import chi2

import foretrain as ft
from foretrain.support.errors import AccuracyWarning, InputError, NotSupportedError
from foretrain.theory.prediction.bayes import hebbian_variance, log_evidence_of_kernel, representation_shift
from foretrain.theory.recursions.expectations import PairExpectations

UPPER = np.triu_indices(3)


def test_numbers_of_the_reference() -> None:
    found = representation_shift(MLP, TRAIN, TARGETS, TEST)
    np.testing.assert_allclose(64 * found["metric"].sel(layer=3).values[UPPER], SHIFT_3, atol=1e-8)
    np.testing.assert_allclose(64 * found["metric"].sel(layer=2).values[UPPER], SHIFT_2, atol=1e-8)
    np.testing.assert_allclose(
        64 * 1.5 * found["activations"].sel(hidden_layer=2).values[UPPER], SHIFT_3, atol=1e-8
    )
    np.testing.assert_allclose(found["kernel"].sel(layer=3)[0, 1], 0.380727346, atol=1e-9)


def test_every_layer_moves_at_order_one_over_n() -> None:
    """Footnote 35 of the book would have the layer before the last hidden one at 1/n^2."""
    narrow, wide = (
        representation_shift(MLP.replace(width=width), TRAIN, TARGETS)["metric"] for width in (100, 1000)
    )
    np.testing.assert_allclose(100 * narrow, 1000 * wide, atol=1e-12)
    assert (np.abs(1000 * wide.sel(layer=2)).values > 0.1).all()


def test_shift_is_the_vertex_times_the_gradient_of_the_evidence() -> None:
    """With unequal widths: V of the flow, and differences of the log evidence through the kernel recursion."""
    X = np.random.default_rng(1).normal(size=(3, 4))
    Y = np.array([(0.3, -0.2), (0.8, 0.1), (-0.4, 0.6)])
    found = representation_shift(UNEQUAL, X, Y, noise=0.1)
    flow, h = ft.flow(UNEQUAL, X, ["K", "V"]), 1e-5

    def evidence(K: np.ndarray, layer: int) -> float:
        for own in UNEQUAL.layers[layer:]:
            K = own.C_b + own.C_W * PairExpectations(UNEQUAL.activation, K, 1e-12).of(0, 0)
        return log_evidence_of_kernel(K, Y, noise=0.1)

    for layer in (2, 3, 4):
        K, gradient = flow["K"].sel(layer=layer).values, np.empty((3, 3))
        for a, b in np.ndindex(3, 3):
            step = np.zeros((3, 3))
            step[a, b] += h / 2
            step[b, a] += h / 2
            gradient[a, b] = (evidence(K + step, layer) - evidence(K - step, layer)) / (2 * h)
        np.testing.assert_allclose(found["force"].sel(layer=layer), 2 * gradient, atol=1e-4)
        V = flow["V"].sel(layer=layer).values
        shift = np.einsum("abcd,cd->ab", V, gradient) / UNEQUAL.hidden_widths[layer - 2]
        np.testing.assert_allclose(found["metric"].sel(layer=layer), shift, atol=1e-6)


def test_one_linear_layer_moves_as_its_exact_posterior() -> None:
    """The metric K chi^2_n / n weighted with the density of two targets, extrapolated in 1/n."""
    square, K = 3.4, 1.04

    def shift(n: int) -> float:
        def weighted(x: float, power: int) -> float:
            metric = K * x / n
            return float(chi2.pdf(x, n) * metric ** (power - 1) * np.exp(-0.5 * square / metric))

        low, high = chi2.ppf([1e-14, 1 - 1e-14], n)
        one, mean = (
            quad(weighted, low, high, args=(power,), epsabs=0, epsrel=1e-13, limit=200)[0] for power in (0, 1)
        )
        return float(n * (mean / one - K))

    values = [shift(n) for n in (200, 400, 800, 1600)]
    for power in (2, 4, 8):
        values = [(power * b - a) / (power - 1) for a, b in pairwise(values)]
    mlp = ft.MLP("linear", 2, 1000, n_out=2, C_W=(1.3, 0.8))
    found = representation_shift(mlp, [[1.0]], [[1.1, np.sqrt(square - 1.21)]])
    assert 1000 * found["metric"].item() == pytest.approx(values[0], rel=1e-6)


def test_sampled_shifts_and_a_layer_that_is_cut_off() -> None:
    exact = representation_shift(MLP, TRAIN, TARGETS, TEST)
    found = representation_shift(MLP, TRAIN, TARGETS, TEST, draws=10_000, seed=4)
    scores = (found["metric"] - exact["metric"]) / found["metric_standard_error"]
    assert 0.1 < float(np.abs(scores).max()) < 5
    cut = representation_shift(MLP.replace(C_W=(1.5, 0.0, 1.5)), TRAIN[:1], TARGETS[:1])
    np.testing.assert_array_equal(cut["activations"].sel(hidden_layer=1), 0)


def test_hebbian_number_of_the_reference() -> None:
    found = hebbian_variance(ft.MLP("tanh", 6, 64), [[1.0]], [0.5])
    assert (found["kernel"] + found["association"]).item() == pytest.approx(0.1068981848, abs=1e-10)
    assert 64 * found["metric_correction"].item() == pytest.approx(-0.0798612616, abs=1e-9)
    assert found["variance"].item() == pytest.approx(0.1068981848 - 0.0798612616 / 64, abs=1e-10)


@pytest.mark.parametrize("neurons", [1, 3])
def test_hebbian_association_of_a_linear_layer_is_exact(neurons: int) -> None:
    """Two inputs: the metric is Wishart, so that its conditional mean is known for observations of any size.

    At order 1/n the mean of W given z is K + (z z^T - q K) / n, that is (n K + sum z z^T) / (n + q) expanded.
    """
    mlp = ft.MLP("linear", 2, 400, C_W=(1.3, 0.8))
    inputs = np.array([[1.0, 0.4], [-0.3, 0.9]])
    seen = np.random.default_rng(0).normal(size=(2, neurons))
    found = hebbian_variance(mlp, inputs, seen)
    K = ft.flow(mlp, inputs)["K"].values[-1]
    np.testing.assert_allclose(found["variance"], K + (seen @ seen.T - neurons * K) / 400, atol=1e-12)


def test_hebbian_is_the_wiring_of_a_layer_read_as_output() -> None:
    """The variance of one more neuron is what the shift of the metric predicts, in any layer."""
    found = hebbian_variance(MLP, TRAIN, TARGETS)
    moved = representation_shift(MLP, TRAIN, TARGETS)["metric"].sel(layer=3)
    np.testing.assert_allclose(found["association"], moved, atol=1e-12)
    deeper = hebbian_variance(MLP.replace(depth=5), TRAIN, TARGETS, layer=3)
    np.testing.assert_allclose(deeper["variance"], found["variance"], atol=1e-9)


def test_bad_input() -> None:
    with pytest.raises(InputError, match="independent"):
        hebbian_variance(MLP, TRAIN, TARGETS, layer=1)
    with pytest.raises(InputError, match="observed preactivations has shape"):
        hebbian_variance(MLP, TRAIN, [1.0, 2.0, 3.0])
    with pytest.raises(NotSupportedError, match="skip connections"):
        representation_shift(MLP.replace(gamma=0.4), TRAIN, TARGETS)
    with pytest.warns(AccuracyWarning, match="only a guide"):
        hebbian_variance(MLP, TRAIN[:1], [[9.0]])
