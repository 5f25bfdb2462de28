"""Spectra, condition numbers, alignment and regression of tangent kernels, against formulas written out."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

from foretrain.empirical import TangentKernel, ntk
from foretrain.empirical.kernel_analysis import alignment, condition_number, spectrum
from foretrain.empirical.kernel_krylov import conjugate_gradients, lanczos
from foretrain.empirical.kernel_products import ntk_operator
from foretrain.empirical.kernel_regression import regression
from foretrain.support.errors import AccuracyWarning, InputError

Array = NDArray[np.float64]
SAMPLES, OUTPUTS = 9, 3


def network(width: int = 16) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, OUTPUTS)).double()


def inputs(count: int = SAMPLES, seed: int = 1) -> Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def matrix_of(kernel: TangentKernel) -> Array:
    values = np.asarray(kernel)
    n, m, c, _ = values.shape
    return np.transpose(values, (0, 2, 1, 3)).reshape(n * c, m * c)


def targets(seed: int = 0, samples: int = SAMPLES) -> Array:
    return np.random.default_rng(seed).normal(size=(samples, OUTPUTS))


def random_kernel(size: int, rank: int, seed: int = 0) -> Array:
    factor = np.random.default_rng(seed).normal(size=(size, rank))
    return factor @ factor.T


def test_spectrum_of_a_known_matrix() -> None:
    found = spectrum(np.diag([1.0, 4.0, 0.0, 3.0]), top=2)
    assert found.eigenvalues == pytest.approx([4, 3, 1, 0])
    assert found.participation_ratio == pytest.approx(64 / 26)
    shares = np.array([4, 3, 1]) / 8
    assert found.effective_rank == pytest.approx(np.exp(-np.sum(shares * np.log(shares))))
    assert (found.trace, found.trace_error, found.rank, found.complete) == (pytest.approx(8), 0, 3, True)
    assert np.abs(found.modes).reshape(2, 4) == pytest.approx(np.eye(4)[[1, 3]])
    assert "rank 3" in repr(found)


def test_spectrum_is_that_of_the_matrix_over_samples_and_outputs() -> None:
    kernel = ntk(network(), inputs())
    matrix = matrix_of(kernel)
    found = spectrum(kernel, top=4)
    assert found.size == SAMPLES * OUTPUTS
    assert found.eigenvalues == pytest.approx(np.linalg.eigvalsh(matrix)[::-1])
    flat = found.modes.reshape(4, -1)
    assert flat @ matrix @ flat.T == pytest.approx(np.diag(found.eigenvalues[:4]), abs=1e-10)
    labelled = found.to_xarray()
    assert labelled.amplitude.shape == (4, SAMPLES, OUTPUTS)
    assert labelled.attrs["participation_ratio"] == found.participation_ratio


def test_traces_and_layers_are_understood() -> None:
    model, x = network(), inputs()
    traced, layers, whole = ntk(model, x, outputs="trace"), ntk(model, x, by="layer"), ntk(model, x)
    assert spectrum(traced).eigenvalues == pytest.approx(np.linalg.eigvalsh(np.asarray(traced))[::-1])
    assert spectrum(traced).trace == pytest.approx(spectrum(whole).trace)
    assert spectrum(layers).eigenvalues == pytest.approx(spectrum(whole).eigenvalues)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 1000), st.floats(0.01, 100))
def test_spectra_ignore_the_order_of_samples_and_scale_with_the_kernel(seed: int, scale: float) -> None:
    kernel = random_kernel(6, 4, seed)
    order = np.random.default_rng(seed).permutation(6)
    plain, other = spectrum(kernel), spectrum(scale * kernel[np.ix_(order, order)])
    assert other.eigenvalues == pytest.approx(scale * plain.eigenvalues, abs=1e-9 * scale * plain.trace)
    assert other.participation_ratio == pytest.approx(plain.participation_ratio)
    assert other.rank == plain.rank == 4
    y = np.random.default_rng(seed + 1).normal(size=6)
    first, second = alignment(kernel, y), alignment(scale * kernel[np.ix_(order, order)], -3 * y[order])
    assert second.alignment == pytest.approx(first.alignment)
    assert second.centred == pytest.approx(first.centred)


def test_spectrum_of_an_operator() -> None:
    model, x = network(), inputs(20)
    exact = spectrum(ntk(model, x), top=5)
    found = spectrum(ntk_operator(model, x), top=5, probes=300, seed=2)
    assert not found.complete
    assert found.eigenvalues == pytest.approx(exact.eigenvalues[:5], rel=1e-9)
    overlaps = np.abs(np.sum(found.modes * exact.modes, axis=(1, 2)))
    assert overlaps == pytest.approx(np.ones(5), abs=1e-8)
    assert 0 < found.trace_error < 0.02 * exact.trace
    assert abs(found.trace - exact.trace) < 3.5 * found.trace_error
    assert abs(found.participation_ratio - exact.participation_ratio) < 3.5 * found.participation_error
    assert np.isnan(found.effective_rank)
    assert "5 largest known, by Lanczos" in repr(found)


def test_all_modes_of_an_operator_are_exact() -> None:
    model, x = network(), inputs(3)
    found = spectrum(ntk_operator(model, x), top=50)
    exact = spectrum(ntk(model, x), top=9)
    assert found.complete
    assert found.eigenvalues == pytest.approx(exact.eigenvalues)
    assert found.effective_rank == pytest.approx(exact.effective_rank)


@pytest.mark.statistical
def test_standard_errors_of_operator_spectra_are_honest() -> None:
    model, x = network(), inputs(20)
    exact, operator = spectrum(ntk(model, x)), ntk_operator(model, x)
    runs = [spectrum(operator, top=4, probes=40, seed=seed) for seed in range(150)]
    for name, error in (("trace", "trace_error"), ("participation_ratio", "participation_error")):
        z = [(getattr(run, name) - getattr(exact, name)) / getattr(run, error) for run in runs]
        assert abs(np.mean(z)) < 4 / 150**0.5
        assert 0.8 < np.sqrt(np.mean(np.square(z))) < 1.25


def test_condition_numbers() -> None:
    assert condition_number(np.diag([8.0, 2.0, 4.0])) == pytest.approx(4)
    assert condition_number(np.diag([8.0, 2.0, 4.0]), ridge=1.0) == pytest.approx(3)
    singular = random_kernel(6, 3)
    assert condition_number(singular) == np.inf
    largest = np.linalg.eigvalsh(singular)[-1]
    assert condition_number(singular, ridge=0.5) == pytest.approx((largest + 0.5) / 0.5)
    model, x = network(), inputs(7)
    expected = np.linalg.cond(matrix_of(ntk(model, x)))
    assert condition_number(ntk(model, x)) == pytest.approx(expected)
    assert condition_number(ntk_operator(model, x)) == pytest.approx(expected, rel=1e-6)
    assert condition_number(ntk_operator(model, x), ridge=0.3) == pytest.approx(
        condition_number(ntk(model, x), ridge=0.3)
    )
    assert condition_number(ntk_operator(network(2), inputs(30))) == np.inf
    assert condition_number(ntk_operator(network(2).float(), inputs(30).float())) == np.inf


def test_rank_in_single_precision_is_not_rounding() -> None:
    factor = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    found = spectrum(factor @ factor.T)
    assert found.rank == 5
    assert found.eigenvalues.dtype == np.float64
    assert condition_number(factor @ factor.T) == np.inf


def brute_alignment(matrix: Array, y: Array) -> float:
    outer = y @ y.T
    return float(np.sum(matrix * outer) / np.linalg.norm(matrix) / np.linalg.norm(outer))


def centring(samples: int, outputs: int) -> Array:
    return np.kron(np.eye(samples) - 1 / samples, np.eye(outputs))


def test_alignment_of_a_known_case() -> None:
    y = np.array([1.0, -2.0, 0.5, 3.0])
    perfect = alignment(np.outer(y, y), y)
    assert (perfect.alignment, perfect.centred) == (pytest.approx(1), pytest.approx(1))
    assert perfect.energies[0] == pytest.approx(1)
    assert alignment(np.eye(4), y).alignment == pytest.approx(0.5)  # 1 / sqrt(4)
    constant = alignment(np.outer(y, y) + 100.0, y)
    assert constant.centred == pytest.approx(1)
    assert constant.alignment < 0.5


def test_alignment_is_its_formula() -> None:
    kernel, y = ntk(network(), inputs()), targets()
    matrix, flat = matrix_of(kernel), targets().reshape(-1, 1)
    found = alignment(kernel, y)
    middle = centring(SAMPLES, OUTPUTS)
    assert found.alignment == pytest.approx(brute_alignment(matrix, flat))
    assert found.centred == pytest.approx(brute_alignment(middle @ matrix @ middle, middle @ flat))
    modes = np.linalg.eigh(matrix)[1]
    assert found.energies == pytest.approx((modes[:, ::-1].T @ flat)[:, 0] ** 2 / np.sum(flat**2))
    assert found.cumulative[-1] == pytest.approx(1)
    needed = found.modes_for(0.5)
    assert needed is not None
    assert found.cumulative[needed - 1] >= 0.5 > found.cumulative[needed - 2]
    assert found.modes_for(1.0) == SAMPLES * OUTPUTS
    assert len(alignment(kernel, y, top=3).energies) == 3
    assert found.to_xarray().cumulative_energy.values == pytest.approx(found.cumulative)


def test_alignment_with_a_trace_sums_over_columns() -> None:
    kernel, y = ntk(network(), inputs(), outputs="trace"), targets()
    found = alignment(kernel, y)
    middle = centring(SAMPLES, 1)
    matrix = np.asarray(kernel)
    assert found.alignment == pytest.approx(brute_alignment(matrix, y))
    assert found.centred == pytest.approx(brute_alignment(middle @ matrix @ middle, middle @ y))
    assert found.cumulative[-1] == pytest.approx(1)
    signs = np.sign(y[:, 0])
    assert alignment(kernel, signs).alignment == pytest.approx(brute_alignment(matrix, signs[:, None]))


def test_alignment_of_an_operator_within_its_standard_error() -> None:
    model, x, y = network(), inputs(20), targets(samples=20)
    exact = alignment(ntk(model, x), y)
    found = alignment(ntk_operator(model, x), y, top=6, probes=200, seed=1)
    assert found.energies == pytest.approx(exact.energies[:6], abs=1e-8)
    assert 0 < found.alignment_error < 0.05 * exact.alignment
    assert abs(found.alignment - exact.alignment) < 3.5 * found.alignment_error
    assert abs(found.centred - exact.centred) < 3.5 * found.centred_error
    assert found.modes_for(0.999) is None
    assert "more than the 6 known modes" in repr(found)


def test_labels_become_one_hot() -> None:
    kernel = ntk(network(), inputs())
    labels = np.array([0, 2, 1, 1, 0, 2, 2, 0, 1])
    found = alignment(kernel, labels)
    assert found.one_hot
    assert "one-hot" in repr(found)
    assert found.alignment == pytest.approx(alignment(kernel, np.eye(3)[labels]).alignment)
    trained = regression(kernel, torch.as_tensor(labels), ridge=0.1)
    assert trained.one_hot
    assert trained.predictions == pytest.approx(regression(kernel, np.eye(3)[labels], ridge=0.1).predictions)
    some = ntk(network(), inputs(), outputs=[2, 0])
    chosen = np.eye(3)[labels][:, [2, 0]]
    assert alignment(some, labels).alignment == pytest.approx(alignment(some, chosen).alignment)
    one = ntk(network(), inputs(), outputs=[1])
    assert not alignment(one, labels).one_hot


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
    with pytest.warns(AccuracyWarning, match="pass ridge= or time="):
        regression(operator, targets(samples=30), iterations=5)
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


def test_krylov_functions_on_a_known_matrix() -> None:
    matrix = random_kernel(30, 30) / 30 + np.eye(30)
    v = np.random.default_rng(1).normal(size=30)
    solved, count, error = conjugate_gradients(matrix.__matmul__, v, 1e-12, 500)
    assert solved == pytest.approx(np.linalg.solve(matrix, v))
    assert error < 1e-10
    assert 5 < count < 60
    values, modes = np.linalg.eigh(matrix)
    found, count, _ = lanczos(matrix.__matmul__, v, np.sqrt, 1e-12, 500)
    assert found == pytest.approx(modes @ (np.sqrt(values) * (modes.T @ v)))
    assert count <= 30
    assert lanczos(matrix.__matmul__, np.zeros(30), np.sqrt, 1e-12, 5)[0] == pytest.approx(np.zeros(30))
    _, count, error = lanczos(matrix.__matmul__, v, np.sqrt, 1e-12, 4)
    assert (count, error > 1e-6) == (4, True)


def with_nan() -> Array:
    return np.full((4, 4), np.nan)


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "two sides": (lambda: spectrum(ntk(network(), inputs(), inputs())), "leave x2 out"),
    "operator of two sides": (lambda: spectrum(ntk_operator(network(), inputs(), inputs())), "leave x2 out"),
    "not symmetric": (lambda: spectrum(np.triu(np.ones((3, 3)))), "needs a symmetric kernel"),
    "not square": (lambda: spectrum(np.ones((3, 4))), "needs a symmetric kernel"),
    "not a kernel": (lambda: spectrum(np.ones((3, 3, 2))), r"must hold real numbers of shape \(N, N2\)"),
    "nan in the kernel": (lambda: condition_number(with_nan()), "not finite"),
    "zero": (lambda: spectrum(np.zeros((3, 3))), "the kernel is zero"),
    "negative": (lambda: spectrum(np.diag([2.0, -1.0])), "negative eigenvalue -1"),
    "negative in a regression": (
        lambda: regression(np.diag([2.0, -1.0]), np.ones(2)),
        "negative eigenvalue -1",
    ),
    "no modes": (lambda: spectrum(np.eye(3), top=0), "from 1 on"),
    "one probe": (lambda: spectrum(ntk_operator(network(), inputs()), probes=1), "at least 2"),
    "ridge": (lambda: regression(np.eye(3), np.ones(3), ridge=-1.0), "ridge is -1"),
    "time": (lambda: regression(np.eye(3), np.ones(3), time=-1.0), "time is -1"),
    "tolerance": (
        lambda: regression(ntk_operator(network(), inputs()), targets(), tolerance=2.0),
        "tolerance is 2.0",
    ),
    "samples of y": (lambda: alignment(np.eye(3), np.ones(4)), "the 3 samples of the kernel"),
    "columns of y": (lambda: alignment(ntk(network(), inputs()), np.ones((9, 2))), r"pass \(9, 3\) numbers"),
    "nan in y": (lambda: regression(np.eye(2), [1.0, np.nan]), "y has entries that are not finite"),
    "zero y": (lambda: alignment(np.eye(3), np.zeros(3)), "y is zero everywhere"),
    "labels": (
        lambda: alignment(ntk(network(), inputs()), np.full(9, 3)),
        "labels from 3 to 3, but the outputs are numbered 0 to 2",
    ),
    "share": (lambda: alignment(np.eye(3), np.ones(3)).modes_for(2.0), "share is 2"),
    "test of other samples": (
        lambda: regression(np.eye(3), np.ones(3), test=np.ones((2, 4))),
        "the 3 training samples",
    ),
    "start without test": (
        lambda: regression(np.eye(3), np.ones(3), test=np.ones((2, 3)), initial_outputs=np.ones(3)),
        "must be the pair",
    ),
    "start of another shape": (
        lambda: regression(np.eye(3), np.ones(3), initial_outputs=np.ones(4)),
        r"initial_outputs has shape \(4,\), but it must be \(3, 1\)",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name: str) -> None:
    call, message = BAD[name]
    with pytest.raises(InputError, match=message):
        call()


def test_the_model_is_left_alone() -> None:
    model = network()
    before = copy.deepcopy(model.state_dict())
    regression(ntk_operator(model, inputs()), targets(), ridge=0.1)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(value.grad is None for value in model.parameters())
