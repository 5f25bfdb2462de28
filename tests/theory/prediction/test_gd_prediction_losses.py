"""Losses of trained networks, the cross-entropy, and updates of the last hidden layer."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax
from trained_network import TANH, X, Y

import foretrain as ft
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory.prediction.algorithms import Descent, GradientFlow
from foretrain.theory.prediction.infinite_width import (
    CROSS_ENTROPY,
    SQUARED_ERROR,
    GradientDescent,
    Loss,
    OutputKernels,
    expected_cross_entropy,
    expected_loss,
    generalization_error,
    hidden_update,
    network_end,
    output_kernels,
    sampled_loss,
    smooth_labels,
    target_logits,
)
from foretrain.theory.prediction.infinite_width.gradient_descent import sampled_moments
from foretrain.theory.prediction.infinite_width.other_losses import error_sums, initial_outputs
from foretrain.theory.prediction.predicted_outputs import prediction

Y_TEST = np.array([(0.3, 0.1), (-0.2, 1.0)])
P = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]])
THREE = TANH.replace(n_out=3)


cross_entropy_prediction: Any = partial(ft.predict, loss="cross_entropy")


def classes(z: np.ndarray) -> np.ndarray:
    return CROSS_ENTROPY.slope(z, P)


@pytest.fixture(scope="module")
def kernels() -> OutputKernels:
    return output_kernels(TANH, X[:3], X[3:])


def test_squared_error_of_the_reference(kernels: OutputKernels) -> None:
    end = GradientDescent(kernels, Y).end()
    found = expected_loss(end, Y_TEST)
    assert [found.bias, found.variance, found.fluctuation] == pytest.approx(
        [0.1001523302, 0.1298388488, 0.0250903618], abs=1e-9
    )
    assert generalization_error(found) == pytest.approx(found.bias + found.variance)
    sampled = sampled_loss(end, Y_TEST, SQUARED_ERROR, draws=20_000, seed=1)
    assert abs(sampled.mean - found.total) < 4 * sampled.standard_error
    assert abs(sampled.variance - found.fluctuation) < 4 * sampled.variance_standard_error


def test_cross_entropy_of_the_reference(kernels: OutputKernels) -> None:
    end = GradientDescent(kernels, Y).end()
    targets = softmax(Y_TEST, axis=1)
    found = expected_loss(end, targets, CROSS_ENTROPY)
    assert [found.bias, found.variance] == pytest.approx([1.2598630307, 0.0234733673], abs=1e-9)
    sampled = sampled_loss(end, targets, CROSS_ENTROPY, draws=200_000, seed=2)
    # What the second order leaves out is of third order in a variance of 0.06.
    assert abs(sampled.mean - found.total) < 4 * sampled.standard_error + 0.01 * found.variance
    assert "bias" in repr(found)


def test_training_loss_falls_from_its_start_to_zero(kernels: OutputKernels) -> None:
    training = GradientDescent(kernels, Y)
    losses = [expected_loss(training.training_at_step(t), Y).total for t in (0, 1, 5, 60)]
    start = (np.sum(Y**2) + 2 * np.trace(kernels.K_train)) / 2
    assert losses[0] == pytest.approx(start)
    assert losses[0] > losses[1] > losses[2] > losses[3]
    assert losses[3] < 1e-12
    test = expected_loss(training.at_step(1), Y_TEST)
    assert generalization_error(test, expected_loss(training.training_at_step(1), Y)) == pytest.approx(
        test.total - losses[1]
    )


@pytest.mark.parametrize("loss", [SQUARED_ERROR, CROSS_ENTROPY])
def test_slopes_and_curvatures_are_derivatives(loss: Loss) -> None:
    rng = np.random.default_rng(0)
    z, y, step = rng.normal(size=(2, 3)), P[:2], 1e-6
    for i in range(3):
        move = step * np.eye(3)[i]
        for a in range(2):
            one = move * (np.arange(2) == a)[:, None]
            slope = (loss.value(z + one, y) - loss.value(z - one, y)) / (2 * step)
            assert loss.slope(z, y)[a, i] == pytest.approx(float(slope), abs=1e-8)
        curvature = (loss.slope(z + move, y) - loss.slope(z - move, y)) / (2 * step)
        assert loss.curvature(z, y)[:, i] == pytest.approx(curvature, abs=1e-8)


def test_soft_labels() -> None:
    found = smooth_labels([0, 2], classes=3, smoothing=0.1)
    assert found == pytest.approx(np.array([[0.9, 0.05, 0.05], [0.05, 0.05, 0.9]]))
    logits = target_logits(found)
    assert softmax(logits, axis=1) == pytest.approx(found)
    assert logits.sum(axis=1) == pytest.approx(0)


def test_each_network_flows_to_its_own_end(kernels: OutputKernels) -> None:
    """Raw logits land on the shift that training conserves; long flow and long descent agree with the closed form."""
    start, test = initial_outputs(kernels, 3, draws=4, seed=3)
    ends = np.stack([network_end(kernels, P, z, z_test) for z, z_test in zip(start, test, strict=True)])
    sums = error_sums(kernels.Theta_train, classes, start, GradientFlow(400.0), 1e-8)
    flowed = test - np.einsum("ba,dai->dbi", kernels.Theta_cross, sums)
    assert flowed == pytest.approx(ends, abs=1e-6)
    stepped = error_sums(kernels.Theta_train, classes, start, Descent(1.5, 600))
    descended = test - np.einsum("ba,dai->dbi", kernels.Theta_cross, stepped)
    assert descended == pytest.approx(ends, abs=1e-7)
    on_training = start - np.einsum("ab,dbi->dai", kernels.Theta_train, sums)
    assert on_training.mean(axis=2) == pytest.approx(start.mean(axis=2), abs=1e-9)
    assert softmax(on_training, axis=2) == pytest.approx(np.broadcast_to(P, on_training.shape), abs=1e-7)


def test_small_steps_tend_to_the_flow(kernels: OutputKernels) -> None:
    start, _ = initial_outputs(kernels, 3, draws=3, seed=4)
    ways = GradientFlow(0.8), Descent(0.8 / 100, 100), Descent(0.8 / 200, 200)
    flowed, *stepped = (error_sums(kernels.Theta_train, classes, start, way) for way in ways)
    errors = [np.abs(sums - flowed).max() for sums in stepped]
    assert errors[1] < 1e-3
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.05)
    assert np.abs(error_sums(kernels.Theta_train, classes, start, GradientFlow(0.0))).max() == 0


def test_ensemble_at_the_end_of_cross_entropy() -> None:
    """Means and covariances of final logits over sampled networks, and what soft outputs do on average."""
    found = cross_entropy_prediction(THREE, X[:3], P, X[3:], draws=40_000, seed=5)
    kernels = output_kernels(THREE, X[:3], X[3:])
    start, test = initial_outputs(kernels, 3, draws=4000, seed=6)
    weights = np.linalg.solve(kernels.Theta_train, kernels.Theta_cross.T).T
    gaps = start - start.mean(axis=2, keepdims=True) - target_logits(P)
    ends = test - np.einsum("ba,dai->dbi", weights, gaps)
    assert ends[0] == pytest.approx(network_end(kernels, P, start[0], test[0]))
    error = np.sqrt(np.diagonal(found.covariance) / 4000)[:, None]
    assert (np.abs(ends.mean(axis=0) - found.mean.values) < 4 * error).all()
    for (b, c), (i, j) in product([(0, 0), (0, 1), (1, 1)], [(0, 0), (1, 1), (0, 1), (2, 1)]):
        products = (ends[:, b, i] - found.mean.values[b, i]) * (ends[:, c, j] - found.mean.values[c, j])
        expected = float((found.covariance if i == j else found.between_outputs)[b, c])
        assert abs(products.mean() - expected) < 4 * products.std() / np.sqrt(len(products))
    soft = softmax(ends, axis=2)
    spread = np.hypot(soft.std(axis=0) / np.sqrt(len(soft)), found.probabilities_standard_error)
    assert (np.abs(soft.mean(axis=0) - found.probabilities.values) < 4 * spread).all()
    assert found.probabilities.values.sum(axis=1) == pytest.approx(1)
    losses = CROSS_ENTROPY.value(ends, P[:2])
    expected = expected_cross_entropy(kernels, P, P[:2])
    assert abs(losses.mean() - expected.total) < 4 * losses.std() / 4000**0.5 + 0.02 * expected.variance


def test_cross_entropy_at_finite_times() -> None:
    flow = cross_entropy_prediction(THREE, X[:3], P, X[3:], algorithm=GradientFlow(0.6), draws=200, seed=7)
    steps = cross_entropy_prediction(THREE, X[:3], P, X[3:], algorithm=Descent(0.01, 60), draws=200, seed=7)
    assert steps.mean.values == pytest.approx(flow.mean.values, abs=0.01)
    assert steps.covariance.values == pytest.approx(flow.covariance.values, abs=0.01)
    before = cross_entropy_prediction(
        THREE, X[:3], np.eye(3), X[3:], algorithm=GradientFlow(0.0), draws=2000, seed=8
    )
    kernels = output_kernels(THREE, X[:3], X[3:])
    K = np.diagonal(kernels.K_test)
    assert (np.abs(np.diagonal(before.covariance) - K) < 4 * K * np.sqrt(2 / 6000)).all()
    assert (np.abs(before.between_outputs) < 4 * K.max() / np.sqrt(6000)).all()
    again = cross_entropy_prediction(
        THREE, X[:3], np.eye(3), X[3:], algorithm=GradientFlow(0.0), draws=2000, seed=8
    )
    assert np.array_equal(before.mean, again.mean)
    assert "after flow time 0" in repr(before)


def test_cross_entropy_refuses() -> None:
    with pytest.raises(InputError, match="never ends"):
        cross_entropy_prediction(THREE, X[:3], np.eye(3), X[3:])
    with pytest.raises(InputError, match="must be probabilities"):
        cross_entropy_prediction(THREE, X[:3], 2 * P, X[3:])
    with pytest.raises(InputError, match="4 / lambda_max"):
        cross_entropy_prediction(THREE, X[:3], P, X[3:], algorithm=Descent(4.0, 3))
    with pytest.raises(InputError, match="one output"):
        cross_entropy_prediction(TANH.replace(n_out=1), X[:3], np.ones(3), X[3:])
    with pytest.raises(InputError, match="unknown algorithm"):
        cross_entropy_prediction(THREE, X[:3], P, X[3:], algorithm="adam")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="at least 2"):
        cross_entropy_prediction(THREE, X[:3], P, X[3:], draws=1)
    with pytest.raises(InputError, match="must be probabilities"):
        expected_loss(GradientDescent.of(TANH, X[:3], Y, X[3:]).end(), Y_TEST, CROSS_ENTROPY)
    with pytest.raises(InputError, match="from 0 to 2"):
        smooth_labels([0, 3], classes=3)


def test_loss_with_correlated_inputs() -> None:
    """Fluctuation of a sum over inputs with a covariance that is far from diagonal, against sampling."""
    covariance = np.array([[0.3, 0.28], [0.28, 0.4]])
    law = prediction(np.array([[0.2, -0.4, 0.1], [0.5, 0.3, 0.0]]), covariance, "made up")
    found = expected_loss(law, P[:2])
    sampled = sampled_loss(law, P[:2], SQUARED_ERROR, draws=50_000, seed=9)
    assert abs(sampled.mean - found.total) < 4 * sampled.standard_error
    assert abs(sampled.variance - found.fluctuation) < 4 * sampled.variance_standard_error


def _gaussian_mean(K: np.ndarray, f: object, nodes: int = 60) -> np.ndarray:
    """<f(z_1, z_2)> by Gauss-Hermite."""
    t, w = np.polynomial.hermite_e.hermegauss(nodes)
    root = np.linalg.cholesky(K)
    z = np.einsum("ab,bij->aij", root, np.stack(np.meshgrid(t, t, indexing="ij")))
    weights = np.outer(w, w) / w.sum() ** 2
    return np.asarray(np.sum(weights * f(z), axis=(-2, -1)))  # type: ignore[operator]


def test_hidden_update_by_hand() -> None:
    """Two training inputs, three layers: (10.11), and (10.12) with B^(2) = C_W^2 <s' s' s' s'> Theta Theta."""
    act = ft.activation("gelu")
    mlp = ft.MLP(act, 3, [40, 80], n_out=2, C_b=0.2, C_W=1.4, lambda_b=0.3, lambda_W=0.9)
    inputs, targets, eta = X[:2], Y[:2], 0.7
    found = hidden_update(mlp, inputs, targets, eta=eta)
    flow = ft.flow(mlp, inputs, ["K", "Theta"])
    K1, K2, K3 = flow["K"].values
    T1, T2, _ = flow["Theta"].values
    slope = _gaussian_mean(K2, lambda z: act.derivative(z)[:, None] * act.derivative(z)[None])
    mixed = _gaussian_mean(K2, lambda z: act.derivative(z)[:, None] * act.value(z)[None])
    weights = slope * (2 * K3 + targets @ targets.T)
    four = _gaussian_mean(K1, lambda z: np.einsum("axy,bxy,cxy,dxy->abcdxy", *[act.derivative(z)] * 4))
    B = 1.4**2 * four * T1[:, None, :, None] * T1[None, :, None, :]
    printed = T2 @ weights @ T2.T
    scale = eta**2 * 1.4 / 80
    assert found.covariance_without_ntk_variance == pytest.approx(scale * printed, rel=1e-8)
    added = 80 / 40 * np.einsum("deab,ab->de", B, weights)
    assert found.covariance == pytest.approx(scale * (printed + added), rel=1e-8)
    assert found.mean == pytest.approx(-eta * 1.4 / 80 * 2 * T2 @ np.diagonal(mixed), rel=1e-8)
    assert "80" in repr(found)


def test_hidden_updates_of_special_networks() -> None:
    assert np.abs(hidden_update(TANH, X[:3], Y).mean).max() < 1e-12  # odd: <s s'> = 0
    shallow = ft.MLP("relu", depth=2, width=50, n_out=2, C_W=2.0)
    found = hidden_update(shallow, X[:3], Y, X[3:])
    assert found.mean.shape == (5,)
    assert found.covariance == pytest.approx(found.covariance_without_ntk_variance)
    squares = Loss("squares again", SQUARED_ERROR.value, SQUARED_ERROR.slope, SQUARED_ERROR.curvature)
    sampled = hidden_update(shallow, X[:3], Y, X[3:], loss=squares, draws=40_000, seed=1)
    assert sampled.mean == pytest.approx(found.mean, rel=1e-12)
    assert sampled.covariance == pytest.approx(found.covariance, rel=0.03)
    soft = sampled_moments(np.zeros((3, 3)), P, CROSS_ENTROPY, draws=10)
    assert soft.products == pytest.approx((1 / 3 - P) @ (1 / 3 - P).T)
    assert soft.curvature == pytest.approx(np.eye(3) * 2 / 3)
    with pytest.raises(InputError, match="no hidden layer"):
        hidden_update(ft.MLP("relu", depth=1), X[:3], Y[:, :1])
    with pytest.raises(NotSupportedError, match="skip connections"):
        hidden_update(ft.MLP("tanh", depth=4, width=9, gamma=0.5), X[:3], Y[:, :1])
