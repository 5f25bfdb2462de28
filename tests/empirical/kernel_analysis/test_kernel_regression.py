"""Kernel regression, against its closed form and against linearised descent."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
from small_kernels import OUTPUTS, Array, inputs, matrix_of, network, random_kernel, targets
from torch import Tensor, nn

from foretrain.empirical import ntk, ntk_operator
from foretrain.empirical.kernel_analysis import regression, spectrum
from foretrain.support.errors import AccuracyWarning


def test_regression_is_its_closed_form() -> None:
    model, x, x_test, y = network(), inputs(), inputs(5, seed=2), targets()
    kernel, test = ntk(model, x), ntk(model, x_test, x)
    f0, f0_test = model(x).detach(), model(x_test).detach()
    matrix, across = matrix_of(kernel), matrix_of(test)
    wanted = (y - f0.numpy()).reshape(-1)
    for ridge in (0.0, 0.3):
        coefficients = np.linalg.solve(matrix + ridge * np.eye(len(matrix)), wanted)
        found = regression(kernel, y, ridge, test, (f0, f0_test))
        assert found.method == "Cholesky"
        assert found.predictions == pytest.approx(f0_test.numpy() + (across @ coefficients).reshape(5, -1))
        assert found.train_predictions == pytest.approx(f0.numpy() + (matrix @ coefficients).reshape(9, -1))
        assert found.coefficients.reshape(-1) == pytest.approx(coefficients, rel=1e-6)
    assert regression(kernel, y).predictions == pytest.approx(y, abs=1e-8)
    assert regression(kernel, y).residual < 1e-10


def linearised_descent(
    model: nn.Module, x: Tensor, x_test: Tensor, y: Tensor, time: float, steps: int
) -> Array:
    """Gradient descent on the parameters of f_0 + J (theta - theta_0), with J by autograd."""

    def rows(z: Tensor) -> Tensor:
        flat = model(z).reshape(-1)
        parts = [torch.autograd.grad(entry, list(model.parameters()), retain_graph=True) for entry in flat]
        return torch.stack([torch.cat([part.reshape(-1) for part in row]) for row in parts])

    J, J_test = rows(x), rows(x_test)
    f0, f0_test = model(x).detach().reshape(-1), model(x_test).detach()
    change, rate = torch.zeros(J.shape[1], dtype=torch.float64), time / steps
    for _ in range(steps):
        change = change - rate * J.T @ (f0 + J @ change - y.reshape(-1))
    return (f0_test + (J_test @ change).reshape(f0_test.shape)).numpy()


@pytest.mark.slow
def test_regression_is_where_linearised_descent_ends() -> None:
    model, x, x_test = network(40), inputs(3), inputs(4, seed=2)
    y = torch.as_tensor(targets(samples=3))
    found = regression(
        ntk(model, x), y, test=ntk(model, x_test, x), initial_outputs=(model(x), model(x_test))
    )
    rate = 1 / float(spectrum(ntk(model, x)).eigenvalues[0])
    descended = linearised_descent(model, x, x_test, y, 60_000 * rate, 60_000)
    assert found.predictions == pytest.approx(descended, abs=1e-6)


def test_regression_at_a_time_is_where_linearised_descent_is() -> None:
    model, x, x_test = network(), inputs(), inputs(4, seed=2)
    y, time = torch.as_tensor(targets()), 0.3
    kernel, test, start = ntk(model, x), ntk(model, x_test, x), (model(x), model(x_test))
    found = regression(kernel, y, test=test, initial_outputs=start, time=time).predictions
    coarse = linearised_descent(model, x, x_test, y, time, 1000)
    fine = linearised_descent(model, x, x_test, y, time, 2000)
    assert found == pytest.approx(2 * fine - coarse, abs=1e-5)  # without the error of first order in the step
    assert np.abs(found - fine).max() > 1e-5


def test_time_from_the_start_to_the_end() -> None:
    kernel, y = random_kernel(5, 5), np.arange(1.0, 6.0)
    start = np.ones(5)
    assert regression(kernel, y, time=0.0, initial_outputs=start).predictions[:, 0] == pytest.approx(start)
    late = regression(kernel, y, time=1e6, initial_outputs=start)
    assert late.predictions == pytest.approx(regression(kernel, y, initial_outputs=start).predictions)
    values, modes = np.linalg.eigh(kernel)
    decayed = modes @ np.diag(np.exp(-0.2 * values)) @ modes.T @ (start - y)
    early = regression(kernel, y, time=0.2, initial_outputs=start)
    assert early.predictions[:, 0] == pytest.approx(y + decayed)
    assert "gradient flow at time 0.2" in repr(early)
    with_ridge = regression(kernel, y, ridge=0.7, time=1e6)
    assert with_ridge.predictions == pytest.approx(regression(kernel, y, ridge=0.7).predictions)


def test_singular_kernels_are_inverted_on_their_range() -> None:
    kernel, y = random_kernel(8, 3), np.random.default_rng(5).normal(size=8)
    found = regression(kernel, y)
    assert (found.method, found.rank) == ("pseudo-inverse of its eigenmodes", 3)
    assert found.coefficients[:, 0] == pytest.approx(np.linalg.pinv(kernel) @ y)
    basis = np.linalg.svd(kernel)[0][:, :3]
    assert found.residual == pytest.approx(np.linalg.norm(y - basis @ (basis.T @ y)) / np.linalg.norm(y))
    assert "rank 3 of 8" in repr(found)
    late = regression(kernel, y, time=1e12)
    assert late.predictions == pytest.approx(found.predictions)


def test_single_precision_does_not_blow_up() -> None:
    factor = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    y = factor @ np.ones(4, dtype=np.float32)
    found = regression(factor @ factor.T, y)
    assert found.rank == 4
    assert np.abs(found.coefficients).max() < 10
    assert found.predictions[:, 0] == pytest.approx(y, abs=1e-4)


def test_positive_eigenvalues_below_the_precision_are_not_inverted() -> None:
    kernel = np.diag([1.0, 1e-9])
    assert regression(kernel, np.ones(2)).predictions[:, 0] == pytest.approx([1, 1])
    single = regression(kernel.astype(np.float32), np.ones(2))
    assert (single.rank, single.predictions[:, 0].tolist()) == (1, [1, 0])


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("ridge", [0.0, 0.2])
@pytest.mark.parametrize("time", [None, 0.4])
def test_regression_with_operators(ridge: float, time: float | None) -> None:
    model, x, x_test, y = network(), inputs(), inputs(4, seed=2), targets()
    start = model(x), model(x_test)
    exact = regression(ntk(model, x), y, ridge, ntk(model, x_test, x), start, time=time)
    operator, across = ntk_operator(model, x), ntk_operator(model, x_test, x)
    found = regression(operator, y, ridge, across, start, time=time)
    assert found.method == ("conjugate gradients" if time is None else "Lanczos")
    assert found.predictions == pytest.approx(exact.predictions, abs=1e-7)
    assert found.train_predictions == pytest.approx(exact.train_predictions, abs=1e-7)
    assert found.iterations is not None
    assert found.iterations > 3
    mixed = regression(operator, y, ridge, ntk(model, x_test, x), start, time=time)
    assert mixed.predictions == pytest.approx(found.predictions)


def test_conjugate_gradients_say_when_they_did_not_arrive() -> None:
    operator = ntk_operator(network(2), inputs(30))
    with pytest.warns(AccuracyWarning, match="pass ridge= or time=") as warned:
        regression(operator, targets(samples=30), iterations=5)
    assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error", AccuracyWarning)
        late = regression(operator, targets(samples=30), time=1e4)
    exact = regression(ntk(network(2), inputs(30)), targets(samples=30), time=1e4)
    assert late.predictions == pytest.approx(exact.predictions, abs=1e-6)


def test_a_trace_stands_for_equal_outputs() -> None:
    model, x, y = network(), inputs(), targets()
    traced = ntk(model, x, outputs="trace")
    for time in (None, 0.5):
        found = regression(traced, y, ridge=0.1, test=ntk(model, x, x, outputs="trace"), time=time)
        for column in range(OUTPUTS):
            alone = regression(np.asarray(traced) / OUTPUTS, y[:, column], ridge=0.1, time=time)
            assert found.predictions[:, column] == pytest.approx(alone.predictions[:, 0])


def test_the_model_is_left_alone() -> None:
    model = network()
    before = copy.deepcopy(model.state_dict())
    regression(ntk_operator(model, inputs()), targets(), ridge=0.1)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(value.grad is None for value in model.parameters())
