"""Trained networks of infinite width: the reference's numbers, iteration, Bayes, other algorithms, bad input."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trained_network import TANH, X, Y

import foretrain as ft
from foretrain.support.errors import AccuracyWarning, InputError, NotEnoughMemoryError, NotSupportedError
from foretrain.theory.gradient_step import ensemble_step
from foretrain.theory.prediction.algorithms import Descent, GradientFlow, named_algorithm
from foretrain.theory.prediction.bayes import bayes_equivalent_rates, bayes_prediction
from foretrain.theory.prediction.infinite_width import (
    CROSS_ENTROPY,
    GradientDescent,
    OutputKernels,
    Outputs,
    Update,
    end_states,
    generalized_squared_error,
    newton_step,
    newton_update,
    output_kernels,
    single_samples,
    train_outputs,
)

RELU = ft.MLP("relu", depth=4, width=100, n_out=2, C_W=2.0, lambda_b=0.125, lambda_W=0.2)


@pytest.fixture(scope="module")
def training() -> GradientDescent:
    return GradientDescent.of(TANH, X[:3], Y, X[3:])


def random_kernels(seed: int, training: int = 4, tests: int = 3) -> OutputKernels:
    rng = np.random.default_rng(seed)
    size = training + tests
    K, Theta = (a @ a.T / size for a in rng.normal(size=(2, size, size + 2)))
    return OutputKernels.from_matrices(K, Theta, training)


def test_kernels_of_the_reference() -> None:
    found = output_kernels(TANH, X)
    K, Theta = found.K_train, found.Theta_train
    assert [K[0, 0], K[0, 1], K[3, 4]] == pytest.approx([0.3556194947, 0.0701529318, 0.0542506335], abs=1e-10)
    assert [Theta[0, 0], Theta[0, 1], Theta[3, 4]] == pytest.approx(
        [0.8089803799, 0.2561721197, 0.2318013940], abs=1e-10
    )
    deep = output_kernels(RELU, X)
    assert deep.K_train[0, 1] == pytest.approx(0.8697001448, abs=1e-10)
    assert deep.Theta_train[0, :2] == pytest.approx([1.08136, 0.4051299111], abs=1e-10)


@pytest.mark.parametrize(
    ("mlp", "mean", "covariance"),
    [
        (
            TANH,
            [[0.449106338, 0.046964001], [-0.569578451, 1.196649210]],
            [[0.0630783706, -0.0197762170], [-0.0197762170, 0.0667604781]],
        ),
        (
            RELU,
            [[0.361214520, 0.057187634], [-0.162508699, 0.711956267]],
            [[0.3015211667, -0.0704417445], [-0.0704417445, 0.5274799546]],
        ),
    ],
)
def test_predictions_of_the_reference(mlp: ft.MLP, mean: list[float], covariance: list[float]) -> None:
    found = ft.predict(mlp, X[:3], Y, X[3:])
    assert found.mean.values == pytest.approx(np.array(mean), abs=2e-9)
    assert found.covariance.values == pytest.approx(np.array(covariance), abs=2e-10)
    assert found.jitter == 0.0


def test_blocks_agree_with_the_flow() -> None:
    residual = ft.MLP("gelu", depth=4, width=30, C_b=0.1, C_W=0.8, gamma=0.5, lambda_b=[0.3, 0.2, 0.1, 0.4])
    flow = ft.flow(residual, X, ["K", "Theta"])
    K, Theta = (flow[name].sel(layer=4).values for name in ("K", "Theta"))
    found = output_kernels(residual, X[:2], X[2:])
    assert found.K_train == pytest.approx(K[:2, :2], rel=1e-9)
    assert found.K_cross == pytest.approx(K[2:, :2], rel=1e-9)
    assert found.K_test == pytest.approx(K[2:, 2:], rel=1e-9)
    assert found.Theta_train == pytest.approx(Theta[:2, :2], rel=1e-9)
    assert found.Theta_cross == pytest.approx(Theta[2:, :2], rel=1e-9)


@pytest.mark.parametrize("eta", [None, 0.3, 1.4])
def test_steps_equal_the_iteration_of_every_network(training: GradientDescent, eta: float | None) -> None:
    """The map z(0) -> z(t) is affine: iterate (10.3) on a basis, then push N(0, K) through it."""
    flow = ft.flow(TANH, X, ["K", "Theta"])
    K, Theta = (flow[name].sel(layer=3).values for name in ("K", "Theta"))
    rate = training.rates.best if eta is None else eta
    start = np.concatenate([np.eye(5), np.zeros((5, 2))], axis=1)
    targets = np.concatenate([np.zeros((3, 5)), Y], axis=1)
    z = start.copy()
    for _ in range(7):
        z = z - rate * Theta[:, :3] @ (z[:3] - targets)
    M, mean = z[:, :5], z[:, 5:]
    found = training.at_step(7, eta)
    assert found.eta == pytest.approx(rate)
    assert found.mean.values == pytest.approx(mean[3:], rel=1e-9)
    assert found.covariance.values == pytest.approx((M @ K @ M.T)[3:, 3:], rel=1e-9)
    inside = training.training_at_step(7, eta)
    assert inside.mean.values == pytest.approx(mean[:3], rel=1e-9)
    assert inside.covariance.values == pytest.approx((M @ K @ M.T)[:3, :3], rel=1e-8, abs=1e-12)


def test_one_step_is_the_step_of_chapter_seven(training: GradientDescent) -> None:
    step = ensemble_step(TANH, X[:3], Y, 0.4, X[3:])
    found = training.at_step(1, 0.4)
    assert found.mean.values == pytest.approx(step["mean"].values[3:], rel=1e-10)
    assert found.covariance.values == pytest.approx(step["covariance"].values[3:, 3:], rel=1e-10)


def test_flow_solves_its_differential_equation(training: GradientDescent) -> None:
    """dm/dt = -eta Theta_BA (m_A - y), by a central difference; and small steps tend to the flow."""
    step = 1e-4
    ahead, behind = (training.at_time(0.7 + sign * step, eta=2.0).mean.values for sign in (1, -1))
    error = training.training_at_time(0.7, eta=2.0).mean.values - Y
    assert (ahead - behind) / (2 * step) == pytest.approx(-2 * training.kernels.Theta_cross @ error, rel=1e-6)
    exact, stepped = training.at_time(1.5), training.at_step(15_000, 1e-4)
    assert stepped.mean.values == pytest.approx(exact.mean.values, abs=1e-4)
    assert stepped.covariance.values == pytest.approx(exact.covariance.values, abs=1e-4)


def test_times_begin_with_the_prior_and_end_at_the_end(training: GradientDescent) -> None:
    for start in (training.at_step(0), training.at_time(0.0)):
        assert np.abs(start.mean.values).max() == 0
        assert start.covariance.values == pytest.approx(training.kernels.K_test)
    end = training.end()
    for late in (training.at_step(400), training.at_time(200.0)):
        assert late.mean.values == pytest.approx(end.mean.values, abs=1e-12)
        assert late.covariance.values == pytest.approx(end.covariance.values, abs=1e-12)


def test_training_inputs_are_learned_exactly() -> None:
    found = ft.predict(TANH, X[:3], Y, X[:3])
    assert found.mean.values == pytest.approx(Y, abs=1e-12)
    assert np.abs(found.covariance.values).max() < 1e-12


def test_training_the_last_layer_alone_is_bayesian_inference() -> None:
    last = TANH.replace(lambda_b=[0, 0, 0.05], lambda_W=[0, 0, 1.0])
    found = ft.predict(last, X[:3], Y, X[3:])
    kernels = output_kernels(last, X[:3], X[3:])
    assert kernels.Theta_train == pytest.approx(kernels.K_train, rel=1e-13)
    expected = [[0.469927978, 0.081900575], [-0.680474001, 1.293872681]]
    assert found.mean.values == pytest.approx(np.array(expected), abs=2e-9)
    posterior = bayes_prediction(TANH, X[:3], Y, X[3:])
    equivalent = ft.predict(bayes_equivalent_rates(TANH), X[:3], Y, X[3:])
    assert equivalent.mean.values == pytest.approx(posterior.mean.values, abs=1e-12)
    assert equivalent.covariance.values == pytest.approx(np.asarray(posterior.covariance), abs=1e-12)
    conditioned = kernels.K_test - kernels.K_cross @ np.linalg.solve(kernels.K_train, kernels.K_cross.T)
    assert found.covariance.values == pytest.approx(conditioned, abs=1e-12)
    assert found.covariance.values[[0, 0, 1], [0, 1, 1]] == pytest.approx(
        [0.0610782580, -0.0188077428, 0.0634576719], abs=2e-10
    )


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), time=st.floats(0.01, 100))
def test_covariance_exceeds_that_of_bayes_at_the_end_and_is_positive_always(seed: int, time: float) -> None:
    kernels = random_kernels(seed)
    training = GradientDescent(kernels, np.ones((4, 1)))
    P_bayes = np.linalg.solve(kernels.K_train, kernels.K_cross.T).T
    P = np.linalg.solve(kernels.Theta_train, kernels.Theta_cross.T).T
    conditioned = kernels.K_test - P_bayes @ kernels.K_cross.T
    gap = (P - P_bayes) @ kernels.K_train @ (P - P_bayes).T
    scale = np.abs(gap).max() + 1
    assert training.end().covariance.values == pytest.approx(conditioned + gap, abs=1e-8 * scale)
    assert np.linalg.eigvalsh(training.at_time(time).covariance.values).min() > -1e-9


def test_small_eigenvalues_lose_no_digits() -> None:
    """Along a direction with w = 1e-13 the prediction is Theta_BA eta t y to first order."""
    Theta = np.diag([1.0, 1e-13, 1.0])
    Theta[2, 1] = Theta[1, 2] = 1e-7
    training = GradientDescent(OutputKernels.from_matrices(np.eye(3), Theta, 2), np.array([[0.0], [1.0]]))
    assert training.at_step(10, 0.5).mean.values.item() == pytest.approx(5e-7, rel=1e-9)
    assert training.at_time(5.0).mean.values.item() == pytest.approx(5e-7, rel=1e-9)


def test_rates_say_where_steps_converge(training: GradientDescent) -> None:
    values = np.linalg.eigvalsh(training.kernels.Theta_train)
    assert training.rates.limit == pytest.approx(2 / values[-1])
    assert training.rates.best == pytest.approx(2 / (values[0] + values[-1]))
    slowest = [np.abs(1 - eta * values).max() for eta in training.rates.best * np.array([0.9, 1.0, 1.1])]
    assert slowest[1] < min(slowest[0], slowest[2])
    for time in (None, 3):
        with pytest.raises(InputError, match=r"2 / lambda_max = 1\.54.* 1\.08"):
            ft.predict(TANH, X[:3], Y, X[3:], algorithm=Descent(1.55, time))


def test_one_network_ends_where_newton_and_iteration_put_it(training: GradientDescent) -> None:
    z = np.random.default_rng(0).normal(size=(5, 2))
    start = Outputs(z[:3], z[3:])
    newton = newton_step(training.kernels, start, Y)
    assert newton.train == pytest.approx(Y, abs=1e-12)
    assert newton.test == pytest.approx(training.network(z[:3], z[3:]), abs=1e-12)
    by_matrix = train_outputs(training.kernels, start, Y, [newton_update(training.kernels)])
    assert by_matrix.test == pytest.approx(newton.test, abs=1e-12)


def test_every_algorithm_ends_alike(training: GradientDescent) -> None:
    """(10.33)-(10.35): steps, single samples, random second-order updates; one that is stopped early does not."""
    kernels, rng = training.kernels, np.random.default_rng(1)
    z = rng.normal(size=(5, 2))
    twisted = [Update(0.05, np.eye(3) + 0.3 * m @ m.T) for m in rng.normal(size=(20, 3, 3))]
    found = end_states(
        kernels,
        Outputs(z[:3], z[3:]),
        Y,
        {
            "descent": [Update(0.8)] * 400,
            "single samples": single_samples(3, 0.9, 3000, seed=2),
            "second order, then Newton": [*twisted, newton_update(kernels)],
            "stopped": [Update(0.8)] * 2,
        },
    )
    assert (found["training_error"].values[:3] < 1e-11).all()
    assert (found["distance"].values[:3] < 1e-11).all()
    assert found["distance"].sel(schedule="stopped") > 1e-3


def test_cross_entropy_then_squares_ends_alike_too(training: GradientDescent) -> None:
    z = np.random.default_rng(3).normal(size=(5, 2))
    p = np.array([[0.7, 0.3], [0.2, 0.8], [0.5, 0.5]])

    def classes(outputs: np.ndarray, _: np.ndarray) -> np.ndarray:
        return CROSS_ENTROPY.slope(outputs, p)

    mixed = [Update(0.5, error=classes)] * 30 + [Update(0.8)] * 400
    found = end_states(training.kernels, Outputs(z[:3], z[3:]), Y, {"mixed": mixed})
    assert float(found["distance"].max()) < 1e-11


def test_second_order_update_descends_the_generalized_squared_error(training: GradientDescent) -> None:
    rng = np.random.default_rng(4)
    z, m = rng.normal(size=(3, 2)), rng.normal(size=(3, 3))
    kappa, step = m @ m.T, 1e-6
    slope = np.empty((3, 2))
    for place in np.ndindex(3, 2):
        moved = [z.copy(), z.copy()]
        moved[0][place] += step
        moved[1][place] -= step
        up, down = (generalized_squared_error(one, Y, kappa) for one in moved)
        slope[place] = (up - down) / (2 * step)
    found = train_outputs(training.kernels, Outputs(z, np.zeros((2, 2))), Y, [Update(0.1, kappa)])
    assert found.train == pytest.approx(z - 0.1 * training.kernels.Theta_train @ slope, rel=1e-7)


def test_jitter_is_reported_and_harmless() -> None:
    """A repeated training input with two targets: the network learns their average."""
    doubled, targets = X[[0, 1, 1]], np.array([1.0, 0.2, 0.6])
    mlp = TANH.replace(n_out=1)
    with pytest.warns(AccuracyWarning, match=r"singular .*[\d.e-]+ was added"):
        found = ft.predict(mlp, doubled, targets, X[3:])
    apart = ft.predict(mlp, X[:2], [1.0, 0.4], X[3:])
    assert found.jitter > 0
    assert found.mean.values == pytest.approx(apart.mean.values, abs=1e-6)
    assert found.covariance.values == pytest.approx(apart.covariance.values, abs=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        late = ft.predict(mlp, doubled, targets, X[3:], algorithm=GradientFlow(300.0))
    assert late.mean.values == pytest.approx(apart.mean.values, abs=1e-9)
    stepped = ft.predict(mlp, doubled, targets, X[3:], algorithm=Descent(steps=400))
    assert stepped.mean.values == pytest.approx(apart.mean.values, abs=1e-9)


def test_linear_network_interpolates_linearly() -> None:
    """More inputs than a linear network can tell apart leave least squares in the features (1, x)."""
    rng = np.random.default_rng(5)
    inputs, targets = rng.normal(size=(6, 2)), rng.normal(size=6)
    mlp = ft.MLP("linear", depth=3, width=50, C_W=1.0)
    found = ft.predict(mlp, inputs, targets, X[:2, :2], algorithm=GradientFlow(1e6))
    features = np.column_stack([np.ones(6), inputs])
    weights = np.linalg.lstsq(features, targets, rcond=None)[0]
    assert found.mean.values.ravel() == pytest.approx(weights[0] + X[:2, :2] @ weights[1:], rel=1e-6)


def test_labels_and_repr(training: GradientDescent) -> None:
    end = training.end()
    assert end.mean.dims == ("test", "output")
    assert end.covariance.dims == ("test_1", "test_2")
    assert set(end.to_dataset()) == {"mean", "covariance", "variance"}
    text = repr(training.at_step(3))
    assert "after 3 steps at eta" in text
    assert "±" in text
    assert "3 × 3 numbers" in repr(training.kernels)
    assert "as many times as you like" in repr(training)


def test_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="did you mean 'newton'"):
        ft.predict(TANH, X[:3], Y, X[3:], algorithm="newtons")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"steps is 1\.5"):
        ft.predict(TANH, X[:3], Y, X[3:], algorithm=Descent(steps=1.5))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="not negative"):
        ft.predict(TANH, X[:3], Y, X[3:], algorithm=GradientFlow(-1.0))
    with pytest.raises(InputError, match="eta is 0"):
        ft.predict(TANH, X[:3], Y, X[3:], algorithm=Descent(0, 3))
    with pytest.raises(InputError, match="one number"):
        ft.predict(TANH, X[:3], Y, X[3:], algorithm=GradientFlow([1.0, 2.0]))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="ends at once"):
        named_algorithm("newton", time=3)
    with pytest.raises(InputError, match="eta, time and momentum"):
        named_algorithm(GradientFlow(2.0), eta=0.1)
    with pytest.raises(InputError, match="Y_train has shape"):
        ft.predict(TANH, X[:3], Y[:2], X[3:])
    with pytest.raises(InputError, match="n_in is 3"):
        ft.predict(TANH, X[:3], Y, X[3:, :2])
    with pytest.raises(InputError, match="nothing is learned"):
        ft.predict(TANH.replace(lambda_b=0.0, lambda_W=0.0), X[:3], Y, X[3:])
    with pytest.raises(InputError, match="nothing is learned"):
        ft.predict(TANH.replace(lambda_b=0.0, lambda_W=0.0), X[:3], Y, X[3:], algorithm=Descent(steps=2))
    with pytest.raises(NotSupportedError, match="jumps"):
        output_kernels(ft.MLP("perceptron", depth=3, width=10), X)
    with pytest.raises(InputError, match="two square matrices"):
        OutputKernels.from_matrices(np.eye(3), np.eye(2), 1)
    with pytest.raises(InputError, match=r"give \(4, outputs\)"):
        GradientDescent(random_kernels(0), np.ones(4))
    monkeypatch.setenv("FORETRAIN_MEMORY", "5kB")
    with pytest.raises(NotEnoughMemoryError, match="fewer test inputs"):
        output_kernels(TANH, np.eye(30, 3))
