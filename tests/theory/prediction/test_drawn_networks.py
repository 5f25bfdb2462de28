"""Any loss in function space: squared errors by the closed form, explicit integration, kinks, jumps, bad input."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy.integrate import solve_ivp
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
    SampledPrediction,
    output_kernels,
)
from foretrain.theory.prediction.infinite_width.other_losses import (
    error_sums,
    initial_outputs,
    train_networks,
)

DATA = (X[:3], Y, X[3:])
SQUARES = (lambda z, y: np.sum((z - y) ** 2) / 2, lambda z, y: z - y)
HUBER = Loss(
    "Huber's loss",
    lambda z, y: np.sum(
        np.where(np.abs(z - y) < 0.5, (z - y) ** 2 / 2, 0.5 * np.abs(z - y) - 0.125), axis=(-2, -1)
    ),
    lambda z, y: np.clip(z - y, -0.5, 0.5),
)
ABSOLUTE = (lambda z, y: np.sum(np.abs(z - y)), lambda z, y: np.sign(z - y))


@pytest.fixture(scope="module")
def kernels() -> OutputKernels:
    return output_kernels(TANH, X[:3], X[3:])


@pytest.mark.parametrize(
    "way",
    [
        GradientFlow(3.0),
        GradientFlow(40.0, 0.5),
        Descent(0.7, 6),
        Descent(0.4, 25, 0.8),
        Descent(0.2, 9, 0.8, True),
    ],
)
@pytest.mark.parametrize("tolerance", [1e-5, 1e-9])
def test_squared_errors_of_every_network_follow_the_closed_form(
    kernels: OutputKernels, way: Any, tolerance: float
) -> None:
    z = train_networks(kernels, Loss.of_network(*SQUARES), Y, 2, way, 7, seed=3, tolerance=tolerance)
    start, test = initial_outputs(kernels, 2, 7, seed=3)
    np.testing.assert_array_equal(z.start, start)
    for before, after, end in zip(start, test, z.test):
        moved = (
            GradientDescent(kernels, Y - before).after(way).mean.values
        )  # of a network that starts at zero
        np.testing.assert_allclose(end, after + moved, atol=tolerance)


def test_the_kernel_of_stiff_data_leaves_outputs_right(kernels: OutputKernels) -> None:
    """Sums along slow directions, a million times larger than along fast ones, must not blur the outputs of these."""
    source = np.random.default_rng(0)
    vectors, w = np.linalg.qr(source.normal(size=(12, 12)))[0], np.logspace(0, -6, 12)
    Theta, start, y = vectors * w @ vectors.T, source.normal(size=(20, 12, 1)), source.normal(size=(12, 1))
    sums = error_sums(Theta, lambda z: z - y, start, GradientFlow(3000.0), 1e-6)
    left = (vectors * np.exp(-3000 * w)) @ vectors.T
    np.testing.assert_allclose(start - Theta @ sums, y + left @ (start - y), atol=5e-6)


@pytest.mark.parametrize("loss", [HUBER, CROSS_ENTROPY], ids=["huber", "cross-entropy"])
def test_the_flow_is_the_integral_of_its_differential_equation(kernels: OutputKernels, loss: Loss) -> None:
    """Training and test outputs of one network together, by another integrator."""
    targets = np.array([[0.7, 0.3], [0.2, 0.8], [0.5, 0.5]])
    z = train_networks(kernels, loss, targets, 2, GradientFlow(4.0), 2, seed=1, tolerance=1e-9)
    start, test = initial_outputs(kernels, 2, 2, seed=1)
    Theta = np.concatenate([kernels.Theta_train, kernels.Theta_cross])

    def velocity(_: float, flat: np.ndarray) -> np.ndarray:
        outputs = flat.reshape(1, 5, 2)
        return np.asarray(-Theta @ loss.slope(outputs[:, :3], targets)[0]).ravel()

    both = np.concatenate([start[1], test[1]]).ravel()
    end = solve_ivp(velocity, (0, 4.0), both, rtol=1e-10, atol=1e-11, max_step=0.01).y[:, -1].reshape(5, 2)
    np.testing.assert_allclose(z.train[1], end[:3], atol=2e-8)
    np.testing.assert_allclose(z.test[1], end[3:], atol=2e-8)


def test_a_prediction_has_the_law_of_its_networks(kernels: OutputKernels) -> None:
    options: dict[str, Any] = {"loss": HUBER, "algorithm": "flow", "time": 2.0, "draws": 80, "seed": 5}
    found = ft.predict(TANH, *DATA, **options)
    assert isinstance(found, SampledPrediction)
    samples = found.samples.values
    z = train_networks(kernels, HUBER, Y, 2, GradientFlow(2.0), 80, 5)
    np.testing.assert_allclose(samples, z.test, atol=1e-9)
    np.testing.assert_allclose(found.mean, samples.mean(axis=0))
    for output in range(2):
        np.testing.assert_allclose(found.covariance.sel(output=output), np.cov(samples[:, :, output].T))
    np.testing.assert_allclose(found.variance, np.var(samples, axis=0, ddof=1))
    np.testing.assert_allclose(found.mean_standard_error, np.sqrt(found.variance / 80))
    losses = [np.mean(HUBER.value(outputs, Y)) for outputs in (z.start, z.train)]
    np.testing.assert_allclose([found.initial_loss, found.training_loss], losses, rtol=1e-8)
    assert "80 networks drawn" in repr(found)
    assert "after flow time 2 at eta 1" in repr(found)
    alone, none = (ft.predict(TANH, *DATA, **options, spread=spread) for spread in ("variance", "none"))
    assert (alone.covariance, none.covariance, none.variance) == (None, None, None)
    assert alone.variance.dims == ("test", "output")
    np.testing.assert_array_equal(none.mean, alone.mean)
    steps = ft.predict(TANH, *DATA, loss=HUBER, eta=0.01, time=200, draws=80, seed=5)
    np.testing.assert_allclose(steps.samples, samples, atol=0.01)


def test_the_same_seed_draws_the_same_functions_for_every_loss_and_nearly_for_every_kernel() -> None:
    options: dict[str, Any] = {"algorithm": "flow", "draws": 10, "seed": 2}
    first, other, slow = (
        ft.predict(TANH, *DATA, loss=loss, time=time, **options).samples.values
        for loss, time in ((SQUARES, 0.0), (HUBER, 0.0), (HUBER, 1e-9))
    )
    np.testing.assert_array_equal(first, other)
    np.testing.assert_allclose(slow, first, atol=1e-7)
    near = ft.predict(TANH.replace(C_b=[0.1 + 1e-9, 0.1, 0.05]), *DATA, loss=SQUARES, time=0.0, **options)
    np.testing.assert_allclose(near.samples, first, atol=1e-5)


def test_without_rates_networks_stay_as_they_were_drawn() -> None:
    still = TANH.replace(lambda_b=0.0, lambda_W=0.0)
    before, after = (
        ft.predict(still, *DATA, loss=HUBER, algorithm="flow", time=time, draws=4).samples
        for time in (0.0, 9.0)
    )
    np.testing.assert_array_equal(before, after)


def test_a_mean_learns_more_slowly_than_a_sum_by_the_count() -> None:
    mean = (lambda z, y: np.mean((z - y) ** 2), lambda z, y: 2 * (z - y) / z.size)
    options: dict[str, Any] = {"algorithm": "flow", "draws": 5}
    slow = ft.predict(TANH, *DATA, loss=mean, time=6.0, **options)
    fast = ft.predict(TANH, *DATA, loss=SQUARES, time=6.0 * 2 / 6, **options)
    np.testing.assert_allclose(slow.samples, fast.samples, atol=1e-5)


def test_classes_are_given_as_whole_numbers() -> None:
    def value(z: Any, labels: Any) -> Any:
        assert labels.dtype == np.int64
        return CROSS_ENTROPY.value(z, np.eye(3)[labels])

    pair = value, lambda z, labels: CROSS_ENTROPY.slope(z, np.eye(3)[labels])
    three, options = TANH.replace(n_out=3), {"algorithm": "flow", "time": 2.0, "draws": 40}
    named = ft.predict(three, X[:3], [2, 0, 1], X[3:], loss="cross_entropy", **options)  # type: ignore[arg-type]
    for labels in ([2, 0, 1], [[2], [0], [1]]):
        own = ft.predict(three, X[:3], labels, X[3:], loss=pair, **options)  # type: ignore[arg-type]
        np.testing.assert_allclose(own.mean, named.mean, atol=1e-6)
        np.testing.assert_allclose(own.mean_standard_error, named.mean_standard_error, atol=1e-6)


def test_where_the_slope_jumps_the_flow_says_so_and_steps_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretrain.theory.prediction.infinite_width.other_losses._MOST_STEPS", 5000)
    with pytest.raises(NotSupportedError, match=r"from \d+% of its time on .* small steps of descent"):
        ft.predict(TANH, *DATA, loss=ABSOLUTE, algorithm="flow", time=50.0, draws=2, tolerance=1e-7)
    stepped = ft.predict(TANH, *DATA, loss=ABSOLUTE, eta=0.01, time=4000, draws=3)
    assert stepped.training_loss < 0.05


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"time": None}, "no closed form: give a time"),
        ({"algorithm": "newton", "time": None}, "no closed form: give a time"),
        ({"algorithm": "gradient_descent", "time": 3}, "is not known: give eta"),
        (
            {"algorithm": "gradient_descent", "time": 4000, "eta": 1e3},
            "ran away within .* smaller eta than 1000",
        ),
        ({"regime": "finite"}, "known at infinite width only"),
        (
            {"learner": "bayes", "algorithm": "gradient_descent", "time": None},
            "leave loss and label_smoothing",
        ),
        ({"label_smoothing": 0.1}, "label_smoothing is for classes"),
        ({"loss": (SQUARES[0], lambda z, y: 2 * (z - y))}, "the gradient of exactly this value"),
        (
            {"loss": (SQUARES[0], lambda z, y: (z - y).sum())},
            r"gradients of shape \(\) at outputs of shape \(3, 2\)",
        ),
        ({"loss": (lambda z, y: (z - y) ** 2, SQUARES[1])}, r"values of shape \(3, 2\)"),
        ({"loss": (SQUARES[0], lambda z, y: np.log(z - z))}, "give one finite number"),
        ({"loss": 3}, "a pair .value, gradient."),
        ({"loss": (SQUARES[0],)}, "a pair .value, gradient."),
        ({"Y_train": Y[:2]}, "Y_train has shape"),
        ({"draws": 1}, "at least 2"),
        ({"tolerance": 0.0}, "tolerance is 0"),
        ({"tolerance": 2.0}, "tolerance is 2"),
        ({"tolerance": 1e-6, "loss": "squared_error"}, "leave it out"),
        ({"tolerance": 1e-6, "algorithm": "gradient_descent", "eta": 0.1, "time": 3}, "leave it out"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_bad_input(change: dict[str, Any], message: str) -> None:
    options: dict[str, Any] = {"loss": SQUARES, "algorithm": "flow", "time": 1.0, "draws": 4, **change}
    task: dict[str, Any] = {"mlp": TANH, "X_train": X[:3], "Y_train": Y, "X_test": X[3:]}
    with pytest.raises(InputError, match=message):
        ft.predict(**{**task, **options})


def test_losses_without_curvature_train_but_are_not_expanded() -> None:
    expected = partial(
        ft.theory.prediction.infinite_width.expected_loss, ft.predict(TANH, *DATA), np.zeros((2, 2))
    )
    assert expected(SQUARED_ERROR).total > 0
    with pytest.raises(InputError, match="curvature of this loss is not known"):
        expected(Loss("squares", SQUARED_ERROR.value, SQUARED_ERROR.slope))
