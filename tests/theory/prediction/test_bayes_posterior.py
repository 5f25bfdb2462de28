"""The posterior at infinite width: reference numbers, explicit Gaussian conditioning, and what must not matter."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

import foretrain as ft
from foretrain.support.errors import AccuracyWarning, InputError, NotEnoughMemoryError
from foretrain.theory.prediction.bayes import (
    bayes_equivalent_rates,
    bayes_prediction,
    condition,
    log_evidence,
)
from foretrain.theory.prediction.cholesky import factorise
from foretrain.theory.prediction.kernels import (
    cross_kernel,
    cross_tangent_kernel,
    kernel,
    tangent_kernel,
    training_blocks,
)

X = 1.3 * np.array(
    [(1, 0.2, -0.5), (-0.4, 1.1, 0.3), (0.1, -0.6, 1.2), (0.8, 0.7, 0.1), (-0.9, 0.3, 0.8)], dtype=float
)
Y = np.array([(1, -0.5), (-0.7, 0.8), (0.4, 1.2)])
TANH = ft.MLP(
    "tanh",
    depth=3,
    width=100,
    n_out=2,
    C_b=(0.1, 0.1, 0.05),
    C_W=(1.2, 1.3, 1),
    lambda_b=(0.2, 0.3, 0.1),
    lambda_W=(0.6, 0.8, 0.5),
)
RELU = ft.MLP("relu", depth=4, width=100, n_out=2, C_W=2.0, lambda_b=0.125, lambda_W=0.2)


def example_inputs(K1: np.ndarray, C_b: float, C_W: float) -> np.ndarray:
    """Inputs whose first kernel is K1."""
    return np.linalg.cholesky((K1 - C_b) / C_W) * np.sqrt(len(K1))


def test_tanh_of_the_reference() -> None:
    K, Theta = kernel(TANH, X), tangent_kernel(TANH, X)
    np.testing.assert_allclose(
        [K[0, 0], K[0, 1], K[3, 4]], [0.3556194947, 0.0701529318, 0.0542506335], atol=1e-10
    )
    np.testing.assert_allclose(
        [Theta[0, 0], Theta[0, 1], Theta[3, 4]], [0.8089803799, 0.2561721197, 0.2318013940], atol=1e-10
    )
    found = bayes_prediction(TANH, X[:3], Y, X[3:])
    assert found.mean.dims == ("test", "output")
    assert found.covariance is not None
    np.testing.assert_allclose(
        found.mean, [(0.469927978, 0.081900575), (-0.680474001, 1.293872681)], atol=1e-9
    )
    np.testing.assert_allclose(
        found.covariance, [(0.0610782580, -0.0188077428), (-0.0188077428, 0.0634576719)], atol=1e-10
    )
    assert found.jitter == 0
    assert "Log evidence" in repr(found)
    assert set(found.to_dataset()) == {"mean", "covariance", "variance"}


def test_relu_kernels_of_the_reference() -> None:
    K, Theta = kernel(RELU, X), tangent_kernel(RELU, X)
    np.testing.assert_allclose(
        [K[0, 1], Theta[0, 0], Theta[0, 1]], [0.8697001448, 1.08136, 0.4051299111], atol=1e-10
    )


def test_example_of_the_bayesian_reference() -> None:
    mlp = ft.MLP("tanh", depth=3, width=64, n_out=2, C_b=0.1, C_W=1.5)
    inputs = example_inputs(np.array([[1, 0.5, -0.3], [0.5, 0.8, 0.2], [-0.3, 0.2, 1.2]]), 0.1, 1.5)
    targets = np.array([(0.7, -0.4), (0.2, 0.9)]).T
    upper = kernel(mlp, inputs)[np.triu_indices(3)]
    expected = [0.592557713, 0.380727346, 0.062264568, 0.568883578, 0.244215471, 0.610885348]
    np.testing.assert_allclose(upper, expected, atol=1e-9)
    found = bayes_prediction(mlp, inputs[:2], targets, inputs[2:])
    np.testing.assert_allclose(found.mean, [(-0.461599479, 0.506881227)], atol=1e-9)
    np.testing.assert_allclose(found.variance, [0.475737677], atol=1e-9)
    assert found.log_evidence == pytest.approx(-4.504691324, abs=1e-9)


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("mlp", [TANH, RELU, RELU.replace(gamma=0.5)], ids=["tanh", "relu", "residual"])
def test_equals_conditioning_of_the_joint_gaussian_by_its_inverse(mlp: ft.MLP, noise: float) -> None:
    """The precision of the joint law, block by block (6.53)-(6.58): K^BB is the inverse of the covariance."""
    joint = ft.flow(mlp, X, ["K"])["K"].values[-1] + noise * np.diag([1, 1, 1, 0, 0])
    precision = np.linalg.inv(joint)
    covariance = np.linalg.inv(precision[3:, 3:])
    mean = -covariance @ precision[3:, :3] @ Y
    found = bayes_prediction(mlp, X[:3], Y, X[3:], noise=noise)
    np.testing.assert_allclose(found.mean, mean, atol=1e-8)
    np.testing.assert_allclose(found.covariance, covariance, atol=1e-8)
    density = sum(multivariate_normal(cov=joint[:3, :3]).logpdf(y) for y in Y.T)
    assert found.log_evidence == pytest.approx(density, abs=1e-7)


def test_noise_is_on_the_diagonal_and_in_predicted_labels_if_asked() -> None:
    outputs = bayes_prediction(TANH, X[:3], Y, X[3:], noise=0.3)
    labels = bayes_prediction(TANH, X[:3], Y, X[3:], noise=0.3, noisy_labels=True)
    assert outputs.covariance is not None
    assert labels.covariance is not None
    np.testing.assert_allclose(labels.covariance - outputs.covariance, 0.3 * np.eye(2), atol=1e-12)
    np.testing.assert_array_equal(labels.mean, outputs.mean)
    shared = bayes_prediction(TANH.replace(C_b=(0.1, 0.1, 0.35)), X[:3], Y, X[3:])
    assert np.abs(shared.mean - outputs.mean).max() > 0.1  # footnote 6 would shift the last C_b instead


def test_training_points_are_certain_and_far_noise_returns_the_prior() -> None:
    found = bayes_prediction(TANH, X[:3], Y, X[:3])
    np.testing.assert_allclose(found.mean, Y, atol=1e-9)
    np.testing.assert_allclose(found.covariance, np.zeros((3, 3)), atol=1e-9)
    prior = bayes_prediction(TANH, X[:3], Y, X[3:], noise=1e8)
    np.testing.assert_allclose(prior.covariance, kernel(TANH, X[3:]), atol=1e-7)


def test_last_layer_training_is_bayes() -> None:
    """(10.46)-(10.49): Theta = K to the last bit, hence mean (10.40) and covariance (10.41) are the posterior's."""
    equal = bayes_equivalent_rates(TANH)
    K, Theta = kernel(equal, X), tangent_kernel(equal, X)
    np.testing.assert_allclose(Theta, K, atol=1e-15)
    P = Theta[3:, :3] @ np.linalg.inv(Theta[:3, :3])
    Q = np.hstack([-P, np.eye(2)])
    found = bayes_prediction(TANH, X[:3], Y, X[3:])
    np.testing.assert_allclose(found.mean, P @ Y, atol=1e-9)
    np.testing.assert_allclose(found.covariance, Q @ K @ Q.T, atol=1e-9)


def test_gradient_descent_is_never_more_certain() -> None:
    """Cov_GD - Cov_Bayes = (P - P_K) K (P - P_K)^T, with the reference's (10.40), (10.41)."""
    K, Theta = kernel(TANH, X), tangent_kernel(TANH, X)
    P, P_K = (M[3:, :3] @ np.linalg.inv(M[:3, :3]) for M in (Theta, K))
    Q = np.hstack([-P, np.eye(2)])
    gradient = Q @ K @ Q.T
    np.testing.assert_allclose(
        gradient[np.triu_indices(2)], [0.0630783706, -0.0197762170, 0.0667604781], atol=1e-9
    )
    posterior = bayes_prediction(TANH, X[:3], Y, X[3:]).covariance
    np.testing.assert_allclose(gradient - posterior, (P - P_K) @ K[:3, :3] @ (P - P_K).T, atol=1e-10)


def test_blocks_are_those_of_the_whole_matrix() -> None:
    inputs = np.random.default_rng(0).normal(size=(23, 4))
    whole, tangent = kernel(TANH, inputs), tangent_kernel(TANH, inputs)
    np.testing.assert_allclose(cross_kernel(TANH, inputs[:14], inputs[14:]), whole[:14, 14:], atol=1e-10)
    np.testing.assert_allclose(
        cross_tangent_kernel(TANH, inputs[:9], inputs[9:]), tangent[:9, 9:], atol=1e-10
    )
    np.testing.assert_allclose(
        training_blocks(TANH, inputs, inputs, "variance").test, np.diagonal(whole), atol=1e-12
    )


def test_many_inputs_go_in_tiles_and_agree_with_the_whole() -> None:
    rng = np.random.default_rng(1)
    train, test, mlp = rng.normal(size=(700, 5)), rng.normal(size=(400, 5)), RELU.replace(n_out=1)
    targets = np.sin(train[:, 0])
    whole = kernel(mlp, np.concatenate([train, test]))
    expected = condition(whole[:700, :700], targets, whole[:700, 700:], whole[700:, 700:], noise=0.01)
    found = bayes_prediction(mlp, train, targets, test, noise=0.01, spread="variance")
    np.testing.assert_allclose(found.mean, expected.mean, atol=1e-8)
    np.testing.assert_allclose(found.variance, expected.variance, atol=1e-8)
    assert found.covariance is None
    assert bayes_prediction(mlp, train, targets, test, noise=0.01, spread="none").variance is None


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 4), st.sampled_from([0.0, 0.1]))
def test_properties(seed: int, train: int, test: int, noise: float) -> None:
    rng = np.random.default_rng(seed)
    inputs, targets = rng.normal(size=(train + test, 6)), rng.normal(size=(train, 2))
    mlp = RELU if seed % 2 else TANH
    first = bayes_prediction(mlp, inputs[:train], targets, inputs[train:], noise=noise)
    assert first.covariance is not None
    prior = kernel(mlp, inputs[train:])
    assert np.linalg.eigvalsh(first.covariance).min() > -1e-9  # a covariance
    assert np.linalg.eigvalsh(prior - first.covariance.values).min() > -1e-9  # observing never adds doubt
    order, tests = rng.permutation(train), rng.permutation(test)
    other = bayes_prediction(mlp, inputs[:train][order], targets[order], inputs[train:][tests], noise=noise)
    assert other.covariance is not None
    np.testing.assert_allclose(other.mean, first.mean.values[tests], atol=1e-6)
    np.testing.assert_allclose(other.covariance, first.covariance.values[np.ix_(tests, tests)], atol=1e-7)
    assert other.log_evidence == pytest.approx(first.log_evidence, abs=1e-6)
    doubled = bayes_prediction(mlp, inputs[:train], 2 * targets, inputs[train:], noise=noise)
    np.testing.assert_allclose(doubled.mean, 2 * first.mean, atol=1e-6)


def test_evidence_is_a_chain_of_predictions() -> None:
    """log p(y_1, y_2) = log p(y_1) + log p(y_2 | y_1), the second from mean and variance of the prediction."""
    total = 0.0
    for known in range(1, 5):
        found = bayes_prediction(TANH.replace(n_out=1), X[:known], X[:known, 0], X[known : known + 1])
        assert found.variance is not None
        total += -0.5 * float(
            np.log(2 * np.pi * found.variance[0]) + (X[known, 0] - found.mean[0, 0]) ** 2 / found.variance[0]
        )
    one = TANH.replace(n_out=1)
    assert log_evidence(one, X, X[:, 0]) == pytest.approx(
        log_evidence(one, X[:1], X[:1, 0]) + total, abs=1e-8
    )


def test_singular_kernel_is_shifted_and_says_so() -> None:
    repeated = np.concatenate([X[:3], X[:1]])
    with pytest.warns(AccuracyWarning, match="added to its diagonal"):
        found = bayes_prediction(TANH, repeated, np.concatenate([Y, Y[:1]]), X[3:])
    assert 0 < found.jitter < 1e-9
    np.testing.assert_allclose(found.mean, bayes_prediction(TANH, X[:3], Y, X[3:]).mean, atol=1e-7)
    with pytest.raises(InputError, match="not positive definite"):
        factorise([[1.0, 2.0], [2.0, 1.0]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"Y_train": Y[:2]}, "Y_train has shape"),
        ({"X_test": X[3:, :2]}, "same number|n_in"),
        ({"noise": -1.0}, "noise is -1"),
        ({"spread": "standard"}, "spread"),
        ({"mlp": "tanh"}, "give an MLP"),
        ({"mlp": RELU.replace(C_W=1e12, depth=8)}, "exceeds"),
    ],
)
def test_bad_input(change: dict, message: str) -> None:
    arguments = {"mlp": TANH, "X_train": X[:3], "Y_train": Y, "X_test": X[3:], **change}
    with pytest.raises(InputError, match=message):
        bayes_prediction(**arguments)


def test_shapes_of_kernels_are_checked() -> None:
    with pytest.raises(InputError, match="between training and test"):
        condition(np.eye(3), Y, np.ones((2, 3)))
    with pytest.raises(InputError, match="of test inputs"):
        condition(np.eye(3), Y, np.ones((3, 2)), np.eye(3))
    with pytest.raises(InputError, match="not symmetric"):
        condition([[1.0, 0.5], [0.0, 1.0]], [1.0, 2.0], np.ones((2, 1)))
    with pytest.raises(InputError, match="kernel is zero"):
        condition(np.zeros((2, 2)), [1.0, 2.0], np.ones((2, 1)))


def test_too_many_inputs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETRAIN_MEMORY", "1MB")
    with pytest.raises(NotEnoughMemoryError, match="fewer training inputs"):
        kernel(TANH, np.ones((500, 3)))
