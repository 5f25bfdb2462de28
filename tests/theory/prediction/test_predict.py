"""``ft.predict``: the reference's numbers, explicit iteration and conditioning, other algorithms, bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.special import softmax
from scipy.stats import multivariate_normal
from trained_network import TANH, X, Y

import foretrain as ft
from foretrain.support.errors import InputError, NotEnoughMemoryError, NotSupportedError
from foretrain.theory.prediction.bayes import bayes_equivalent_rates
from foretrain.theory.prediction.finite_width import finite_prediction
from foretrain.theory.prediction.infinite_width import CROSS_ENTROPY, expected_loss, target_logits
from foretrain.theory.prediction.kernels import last_layer, tangent_blocks
from foretrain.theory.prediction.predict import class_probabilities

RELU = ft.MLP("relu", depth=4, width=100, n_out=2, C_W=2.0, lambda_b=0.125, lambda_W=0.2)
RESIDUAL = ft.MLP("gelu", depth=4, width=30, n_out=2, C_b=0.1, C_W=0.8, gamma=0.5, lambda_b=0.3, lambda_W=0.4)
ERF = ft.MLP("erf", depth=3, width=100, C_b=0.1, C_W=1.5)
Y_TEST = np.array([(0.3, 0.1), (-0.2, 1.0)])
THREE = TANH.replace(n_out=3)
DATA = (X[:3], Y, X[3:])
UPPER = np.triu_indices(2)


def kernels(mlp: ft.MLP) -> tuple[np.ndarray, np.ndarray]:
    flow = ft.flow(mlp, X, ["K", "Theta"])
    return flow["K"].values[-1], flow["Theta"].values[-1]


@pytest.mark.parametrize(
    ("mlp", "options", "mean", "covariance"),
    [
        (
            TANH,
            {},
            [(0.449106338, 0.046964001), (-0.569578451, 1.196649210)],
            [0.0630783706, -0.0197762170, 0.0667604781],
        ),
        (
            TANH,
            {"learner": "bayes"},
            [(0.469927978, 0.081900575), (-0.680474001, 1.293872681)],
            [0.0610782580, -0.0188077428, 0.0634576719],
        ),
        (
            RELU,
            {},
            [(0.361214520, 0.057187634), (-0.162508699, 0.711956267)],
            [0.3015211667, -0.0704417445, 0.5274799546],
        ),
    ],
    ids=["tanh", "tanh bayes", "relu"],
)
def test_the_reference(mlp: ft.MLP, options: Any, mean: Any, covariance: Any) -> None:
    found = ft.predict(mlp, *DATA, **options)
    assert found.mean.dims == ("test", "output")
    assert found.covariance is not None
    assert found.variance is not None
    np.testing.assert_allclose(found.mean, mean, atol=2e-9)
    np.testing.assert_allclose(found.covariance.values[UPPER], covariance, atol=2e-10)
    np.testing.assert_allclose(found.variance, np.diagonal(found.covariance), atol=0)
    assert found.jitter == 0


def test_losses_of_the_reference() -> None:
    found = ft.predict(TANH, *DATA)
    squares = expected_loss(found, Y_TEST)
    parts = [squares.bias, squares.variance, squares.fluctuation]
    np.testing.assert_allclose(parts, [0.1001523302, 0.1298388488, 0.0250903618], atol=1e-9)
    entropy = expected_loss(found, softmax(Y_TEST, axis=1), CROSS_ENTROPY)
    np.testing.assert_allclose([entropy.bias, entropy.variance], [1.2598630307, 0.0234733673], atol=1e-9)
    alone = expected_loss(ft.predict(TANH, *DATA, spread="variance"), Y_TEST)
    assert (alone.total, alone.fluctuation) == (pytest.approx(squares.total), None)
    with pytest.raises(InputError, match="spread='variance'"):
        expected_loss(ft.predict(TANH, *DATA, spread="none"), Y_TEST)


@pytest.mark.parametrize("mlp", [TANH, RELU, RESIDUAL], ids=["tanh", "relu", "residual"])
def test_steps_are_the_iteration_of_all_networks_outputs(mlp: ft.MLP) -> None:
    """(10.3) iterated on the map z(0) -> z(t), which is affine."""
    K, Theta = kernels(mlp)
    z = np.concatenate([np.eye(5), np.zeros((5, 2))], axis=1)
    targets = np.concatenate([np.zeros((3, 5)), Y], axis=1)
    for _ in range(6):
        z = z - 0.3 * Theta[:, :3] @ (z[:3] - targets)
    M = z[3:, :5]
    found = ft.predict(mlp, *DATA, eta=0.3, time=6)
    np.testing.assert_allclose(found.mean, z[3:, 5:], atol=1e-9)
    np.testing.assert_allclose(found.covariance, M @ K @ M.T, atol=1e-9)


def test_the_flow_is_the_integral_of_its_differential_equation() -> None:
    K, Theta = kernels(RESIDUAL)
    targets = np.concatenate([np.zeros((3, 5)), Y], axis=1)

    def slope(_: float, flat: np.ndarray) -> np.ndarray:
        z = flat.reshape(5, 7)
        return np.asarray((-2.0 * Theta[:, :3] @ (z[:3] - targets)).ravel())

    start = np.concatenate([np.eye(5), np.zeros((5, 2))], axis=1)
    z = solve_ivp(slope, (0, 0.8), start.ravel(), rtol=1e-11, atol=1e-12).y[:, -1].reshape(5, 7)
    found = ft.predict(RESIDUAL, *DATA, algorithm="flow", eta=2.0, time=0.8)
    np.testing.assert_allclose(found.mean, z[3:, 5:], atol=1e-8)
    np.testing.assert_allclose(found.covariance, z[3:, :5] @ K @ z[3:, :5].T, atol=1e-8)


@pytest.mark.parametrize("mlp", [TANH, RESIDUAL], ids=["tanh", "residual"])
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_bayes_is_conditioning_of_the_joint_gaussian(mlp: ft.MLP, noise: float) -> None:
    joint = kernels(mlp)[0] + noise * np.diag([1, 1, 1, 0, 0])
    precision = np.linalg.inv(joint)
    covariance = np.linalg.inv(precision[3:, 3:])
    found: Any = ft.predict(mlp, *DATA, learner="bayes", noise=noise)
    np.testing.assert_allclose(found.mean, -covariance @ precision[3:, :3] @ Y, atol=1e-8)
    np.testing.assert_allclose(found.covariance, covariance, atol=1e-8)
    density = sum(multivariate_normal(cov=joint[:3, :3]).logpdf(y) for y in Y.T)
    assert found.log_evidence == pytest.approx(density, abs=1e-7)
    labels = ft.predict(mlp, *DATA, learner="bayes", noise=noise, noisy_labels=True)
    np.testing.assert_allclose(labels.variance, found.variance + noise, atol=1e-12)


def test_training_the_last_layer_alone_is_bayesian_inference() -> None:
    trained = ft.predict(bayes_equivalent_rates(RESIDUAL), *DATA)
    inferred = ft.predict(RESIDUAL, *DATA, learner="bayes")
    np.testing.assert_allclose(trained.mean, inferred.mean, atol=1e-10)
    np.testing.assert_allclose(trained.covariance, inferred.covariance, atol=1e-10)


def test_every_algorithm_ends_alike() -> None:
    end = ft.predict(TANH, *DATA)
    for options in (
        {"algorithm": "two_step"},
        {"algorithm": "newton"},
        {"algorithm": "flow"},
        {"algorithm": "flow", "time": 300.0},
        {"eta": 0.7, "time": 600},
    ):
        other = ft.predict(TANH, *DATA, **options)  # type: ignore[arg-type]
        np.testing.assert_allclose(other.mean, end.mean, atol=1e-11)
        np.testing.assert_allclose(other.covariance, end.covariance, atol=1e-11)


def test_cross_entropy_with_classes_and_soft_labels() -> None:
    labels = np.array([2, 0, 1])
    found: Any = ft.predict(
        THREE, X[:3], labels, X[3:], loss="cross_entropy", label_smoothing=0.1, draws=4000
    )
    soft = np.full((3, 3), 0.05) + 0.85 * np.eye(3)[labels]
    squares = ft.predict(THREE, X[:3], target_logits(soft), X[3:])
    np.testing.assert_allclose(found.mean, squares.mean, atol=1e-12)  # (10.37)
    np.testing.assert_allclose(found.without_shift().covariance, squares.covariance, atol=1e-12)
    K = kernels(THREE)[0][3:, 3:]
    np.testing.assert_allclose(found.covariance, squares.covariance * 2 / 3 + K / 3, atol=1e-12)
    assert (np.abs(found.probabilities.sum("output") - 1) < 1e-12).all()
    for given in (soft, np.eye(3)[labels]):
        smoothing = None if given is soft else 0.1
        same = ft.predict(
            THREE, X[:3], given, X[3:], loss="cross_entropy", label_smoothing=smoothing, draws=4000
        )
        np.testing.assert_allclose(same.mean, found.mean, atol=1e-12)
    loss = expected_loss(found.without_shift(), soft[:2], CROSS_ENTROPY)
    assert loss.total == pytest.approx(expected_loss(squares, soft[:2], CROSS_ENTROPY).total)


def test_cross_entropy_at_a_time_needs_no_smoothing_and_keeps_only_what_is_asked_for() -> None:
    task: Any = (THREE, X[:3], [2, 0, 1], X[3:])
    options: Any = {"loss": "cross_entropy", "algorithm": "flow", "time": 0.7, "draws": 50}
    found: Any = ft.predict(*task, **options)
    alone: Any = ft.predict(*task, **options, spread="variance")
    none: Any = ft.predict(*task, **options, spread="none")
    np.testing.assert_allclose(found.variance, np.diagonal(found.covariance))
    assert alone.covariance is None
    np.testing.assert_allclose(alone.without_shift().variance, alone.variance - alone.between_outputs)
    assert none.variance is None
    assert none.between_outputs is None
    assert none.without_shift().variance is None
    np.testing.assert_array_equal(none.probabilities, alone.probabilities)
    other = ft.predict(*task, **options, seed=1)
    assert np.abs(other.mean - found.mean).max() > 1e-4
    at_end = {"loss": "cross_entropy", "label_smoothing": 0.2, "draws": 50}
    end, short = (ft.predict(*task, **at_end, spread=spread) for spread in ("covariance", "variance"))
    np.testing.assert_allclose(short.variance, end.variance, atol=1e-12)
    assert ft.predict(*task, **at_end, spread="none").variance is None


@pytest.mark.parametrize("options", [{}, {"learner": "bayes"}, {"algorithm": "flow", "time": 2.0}])
def test_many_tests_go_in_tiles_and_need_no_kernel_between_them(options: Any) -> None:
    rng = np.random.default_rng(0)
    train, test = rng.normal(size=(40, 6)), rng.normal(size=(1100, 6))
    mlp, targets = ERF, rng.normal(size=40)
    found = ft.predict(mlp, train, targets, test, spread="variance", **options)
    part = ft.predict(mlp, train, targets, test[900:1000], **options)
    np.testing.assert_allclose(found.mean[900:1000], part.mean, atol=1e-7)
    np.testing.assert_allclose(found.variance[900:1000], part.variance, atol=1e-7)
    assert found.covariance is None
    assert ft.predict(mlp, train, targets, test, spread="none", **options).variance is None
    whole = ft.predict(mlp, train, targets, test, **options)
    assert whole.covariance is not None
    np.testing.assert_allclose(whole.covariance[900:1000, 900:1000], part.covariance, atol=1e-7)


def test_many_tests_need_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    task: Any = (
        ERF,
        rng.normal(size=(20, 3)),
        rng.normal(size=20),
        rng.normal(size=(4000, 3)),
    )
    monkeypatch.setenv("FORETRAIN_MEMORY", "50MB")  # K between all tests would be 128 MB
    assert ft.predict(*task, spread="variance").mean.shape == (4000, 1)
    with pytest.raises(NotEnoughMemoryError, match="fewer test inputs"):
        ft.predict(*task)


def test_rectangular_blocks_of_both_kernels() -> None:
    inputs = np.random.default_rng(1).normal(size=(23, 4))
    whole = last_layer(RESIDUAL, inputs)
    for found, expected in zip(tangent_blocks(RESIDUAL, inputs[:14], inputs[14:]), whole, strict=True):
        np.testing.assert_allclose(found.cross, expected[:14, 14:], atol=1e-9)
        np.testing.assert_allclose(found.train, expected[:14, :14], atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["gradient_descent", "two_step"])
def test_finite_width_adds_terms_to_the_mean(algorithm: Any) -> None:
    mlp = ft.MLP("sin", depth=2, width=100, C_b=0.1, C_W=1.3, lambda_b=0.5)
    task: Any = (mlp, [[-0.1, -0.7], [2.1, 0.25]], [-0.3, 1.6], [[-1.2, -0.95]])
    found: Any = ft.predict(*task, regime="finite", algorithm=algorithm)
    expected = finite_prediction(*task, algorithm)
    np.testing.assert_allclose(found.mean, expected.mean, atol=1e-12)
    np.testing.assert_allclose(found.infinite_mean, ft.predict(*task).mean, atol=1e-9)
    np.testing.assert_allclose(found.mean, found.infinite_mean + sum(found.terms.values()), atol=1e-12)
    wide: Any = ft.predict(mlp.replace(width=1000), *task[1:], regime="finite", algorithm=algorithm)
    np.testing.assert_allclose(
        10 * (wide.mean - wide.infinite_mean), found.mean - found.infinite_mean, rtol=1e-9
    )


def test_finite_width_of_the_posterior() -> None:
    """Example T of the Bayesian reference at n = 64, in the form of the first order."""
    K = np.array([[1, 0.5, -0.3], [0.5, 0.8, 0.2], [-0.3, 0.2, 1.2]])
    inputs = np.linalg.cholesky((K - 0.1) / 1.5) * np.sqrt(3)
    mlp = ft.MLP("tanh", depth=3, width=64, n_out=2, C_b=0.1, C_W=1.5)
    targets = np.array([(0.7, -0.4), (0.2, 0.9)]).T
    found: Any = ft.predict(mlp, inputs[:2], targets, inputs[2:], regime="finite", learner="bayes")
    np.testing.assert_allclose(found.mean, [(-0.456098486, 0.511008892)], atol=2e-8)
    assert found.log_evidence == pytest.approx(-4.504691324 - 3.672560350 / 64, abs=1e-7)
    wiring = np.array([[1.839399705, -1.023924756], [-1.023924756, 1.071173719]]) / 64
    np.testing.assert_allclose(found.wiring.squeeze(), wiring, atol=1e-7)
    loss = expected_loss(found, [[0.0, 0.0]])
    expected = 0.5 * (2 * (0.475737677 - 1.494715315 / 64) + np.trace(wiring))
    assert loss.variance == pytest.approx(expected, abs=1e-7)
    assert loss.fluctuation is None


def test_results_are_labelled_and_teach() -> None:
    found = ft.predict(TANH, *DATA, eta=0.5, time=3)
    data = found.to_dataset()
    assert {"mean", "covariance", "variance", "x", "y"} <= set(data)
    assert (data.attrs["eta"], data.attrs["time"], data.attrs["jitter"]) == (0.5, 3, 0.0)
    assert found.standard_deviation is not None
    np.testing.assert_allclose(found.standard_deviation**2, found.variance)
    text = repr(found)
    assert "after 3 steps at eta 0.5: 2 test inputs, 2 outputs" in text
    assert "± spread" in text
    bare = ft.predict(TANH, *DATA, spread="none")
    assert "±" not in repr(bare)
    assert bare.standard_deviation is None
    assert "Log evidence" in repr(ft.predict(TANH, *DATA, learner="bayes"))
    many = ft.predict(TANH.replace(n_out=1), X[:1], [1.0], np.eye(20, 3))
    assert "15 of 20 rows" in repr(many)
    classes = ft.predict(THREE, X[:3], [0, 1, 2], X[3:], loss="cross_entropy", label_smoothing=0.1)
    assert "Mean probabilities over 1000 networks" in repr(classes)
    assert {"probabilities", "between_outputs"} <= set(classes.to_dataset())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"regime": "finit"}, "unknown regime"),
        ({"learner": "sgd"}, "unknown learner"),
        ({"algorithm": "adam"}, "unknown algorithm"),
        ({"loss": "mse"}, "unknown loss"),
        ({"spread": "all"}, "unknown spread"),
        ({"noise": 0.1}, "learner='bayes'"),
        ({"noise": -0.1}, "noise is -0.1"),
        ({"noisy_labels": True}, "learner='bayes'"),
        ({"label_smoothing": 0.1}, "loss='cross_entropy'"),
        ({"learner": "bayes", "time": 3}, "algorithm, eta, time and momentum"),
        ({"learner": "bayes", "algorithm": "flow"}, "algorithm, eta, time and momentum"),
        ({"learner": "bayes", "loss": "cross_entropy"}, "give noise="),
        ({"algorithm": "newton", "eta": -0.1}, "eta is -0.1"),
        ({"algorithm": "newton", "time": 1}, "leave time out"),
        ({"algorithm": "two_step", "time": 1}, "leave time out"),
        ({"eta": -1.0}, "eta is -1"),
        ({"eta": 50.0}, "converges only below"),
        ({"time": 1.5}, "algorithm='flow'"),
        ({"regime": "finite", "algorithm": "newton"}, "algorithm='two_step'"),
        ({"regime": "finite", "loss": "cross_entropy"}, "infinite width only"),
        ({"regime": "finite", "learner": "bayes", "noisy_labels": True}, "add the noise"),
        ({"mlp": "tanh"}, "give an MLP"),
        ({"Y_train": Y[:2]}, "Y_train has shape"),
        ({"X_test": X[3:, :2]}, "n_in is 3"),
        ({"loss": "cross_entropy", "Y_train": [0, 1, 1]}, "label_smoothing=0.1"),
        ({"loss": "cross_entropy", "Y_train": [0, 1, 7]}, "from 0 to 1"),
        ({"loss": "cross_entropy"}, "must be probabilities"),
        ({"mlp": TANH.replace(n_out=1), "loss": "cross_entropy", "Y_train": [0, 0, 0]}, "n_out >= 2"),
    ],
)
def test_bad_input(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"mlp": TANH, "X_train": X[:3], "Y_train": Y, "X_test": X[3:], **change}
    with pytest.raises(InputError, match=message):
        ft.predict(**arguments)


@pytest.mark.parametrize(
    "way", [{}, {"learner": "bayes"}, {"regime": "finite"}, {"regime": "finite", "learner": "bayes"}]
)
@pytest.mark.parametrize("name", ["X_train", "X_test"])
def test_bad_inputs_are_named(name: str, way: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"mlp": TANH, "X_train": X[:3], "Y_train": Y, "X_test": X[3:], **way}
    with pytest.raises(InputError, match=f"^{name} .*not finite"):
        ft.predict(**{**arguments, name: np.full_like(arguments[name], np.nan)})
    known = TANH.replace(n_in=X.shape[1])
    with pytest.raises(InputError, match=f"^{name} .*{X.shape[1] + 1}"):
        ft.predict(**{**arguments, "mlp": known, name: np.pad(arguments[name], ((0, 0), (0, 1)))})


def test_a_jump_has_a_posterior_but_no_training() -> None:
    step = ft.MLP("perceptron", depth=3, width=10, n_out=2, C_b=0.1, C_W=1.0)
    with pytest.raises(NotSupportedError, match="Bayesian inference"):
        ft.predict(step, *DATA)
    assert np.isfinite(ft.predict(step, *DATA, learner="bayes").mean).all()


def test_smoothing_of_probabilities() -> None:
    np.testing.assert_allclose(class_probabilities([[0.5, 0.5, 0.0]], 3, 0.2), [[0.45, 0.45, 0.1]])
    with pytest.raises(InputError, match="below 1"):
        class_probabilities([[0.5, 0.5]], 2, 1.5)
