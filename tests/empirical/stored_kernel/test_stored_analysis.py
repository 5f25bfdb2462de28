"""Spectra, alignment and regression of kernels on disk, against dense linear algebra."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiled_stores import Array, dense, inputs, network, stored, write

from foretrain.empirical import TangentKernel, alignment, condition_number, ntk, regression, spectrum
from foretrain.empirical.kernel_analysis.matrix_functions import conjugate_gradients
from foretrain.empirical.stored_kernel.reading import StoredKernel
from foretrain.support.errors import AccuracyWarning, InputError

OPTIONS: list[dict[str, Any]] = [{}, {"outputs": "trace"}, {"by": "layer"}]


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", AccuracyWarning)
        yield


def targets(samples: int, columns: int = 3) -> Array:
    return np.random.default_rng(5).normal(size=(samples, columns))


def given(matrix: Array, path: Path, side: int = 25) -> StoredKernel:
    """A matrix with one output, on disk."""
    return write(
        TangentKernel(torch.from_numpy(matrix)[..., None, None], False, (0,), None, None, {}, True, 0.0),
        path,
        side,
    )


def matrix_with(eigenvalues: Array, seed: int = 0) -> Array:
    random = np.random.default_rng(seed)
    modes = np.linalg.qr(random.normal(size=(len(eigenvalues),) * 2))[0]
    found = (modes * eigenvalues) @ modes.T
    return np.asarray((found + found.T) / 2)


@pytest.mark.parametrize("options", OPTIONS)
def test_leading_modes(tmp_path: Path, options: dict[str, Any]) -> None:
    kernel, expected = stored(tmp_path / "k.zarr", samples=60, side=20, **options)
    matrix = dense(expected)
    values = np.linalg.eigvalsh(matrix)[::-1]
    found = kernel.spectrum(top=7)
    assert found.eigenvalues == pytest.approx(values[:7], rel=1e-10)
    assert found.residuals is not None
    assert found.residuals.max() <= 1e-10 * values[0]
    modes = found.modes.reshape(7, -1).T
    assert np.linalg.norm(matrix @ modes - modes * found.eigenvalues, axis=0).max() < 2e-10 * values[0]
    assert modes.T @ modes == pytest.approx(np.eye(7), abs=1e-12)
    assert found.modes.shape == (7, 60, kernel.width)
    assert (found.trace, found.trace_error) == (pytest.approx(values.sum(), rel=1e-12), 0.0)
    assert found.effective_rank == pytest.approx(values.sum() ** 2 / (values**2).sum(), rel=1e-12)
    assert found.readings is not None
    assert found.readings < 12
    assert "readings of the store" in repr(found)
    assert spectrum(kernel, 7).eigenvalues == pytest.approx(found.eigenvalues, rel=1e-12)


def test_all_modes_of_a_small_kernel(tmp_path: Path) -> None:
    kernel, expected = stored(tmp_path / "k.zarr")
    exact = expected.spectrum()
    found = kernel.spectrum(top=1000)
    assert found.complete
    assert found.eigenvalues == pytest.approx(exact.eigenvalues, abs=1e-12 * exact.eigenvalues[0])
    assert found.entropy_rank == pytest.approx(exact.entropy_rank, rel=1e-9)


def test_slow_spectra_take_few_readings(tmp_path: Path) -> None:
    eigenvalues = 1 / np.arange(1.0, 401.0)
    kernel = given(matrix_with(eigenvalues), tmp_path / "k.zarr", side=100)
    found = kernel.spectrum(top=10)
    assert found.eigenvalues == pytest.approx(eigenvalues[:10], rel=1e-10)
    assert found.readings is not None
    assert found.readings <= 12


def test_restarts_when_the_basis_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    eigenvalues = 1 / np.sqrt(np.arange(1.0, 501.0))
    kernel = given(matrix_with(eigenvalues), tmp_path / "k.zarr", side=125)
    monkeypatch.setenv("FORETRAIN_MEMORY", "1MB")
    found = kernel.spectrum(top=5)
    assert found.eigenvalues == pytest.approx(eigenvalues[:5], rel=1e-10)


def test_degenerate_and_low_rank_kernels(tmp_path: Path) -> None:
    flat = np.repeat([3.0, 2.0, 0.0], [4, 36, 60])
    kernel = given(matrix_with(flat), tmp_path / "flat.zarr")
    assert kernel.spectrum(top=30).eigenvalues == pytest.approx(flat[:30], rel=1e-10)
    few = np.repeat([3.0, 2.0, 0.0], [1, 1, 98])
    found = given(matrix_with(few), tmp_path / "few.zarr").spectrum(top=5)
    assert found.eigenvalues == pytest.approx(few[:5], abs=1e-12)
    with pytest.raises(InputError, match="the kernel is zero"):
        given(np.zeros((10, 10)), tmp_path / "zero.zarr").spectrum()


@pytest.mark.slow
def test_condition_number(tmp_path: Path) -> None:
    kernel, expected = stored(tmp_path / "k.zarr")
    values = np.linalg.eigvalsh(dense(expected))
    assert kernel.condition_number() == pytest.approx(values[-1] / values[0], rel=1e-8)
    assert condition_number(kernel, 0.1) == pytest.approx((values[-1] + 0.1) / (values[0] + 0.1), rel=1e-8)
    singular = given(matrix_with(np.repeat([1.0, 0.0], [20, 280])), tmp_path / "singular.zarr", side=300)
    assert singular.condition_number() == np.inf
    assert singular.condition_number(ridge=0.5) == pytest.approx(3.0, rel=1e-4)
    large = given(matrix_with(np.linspace(1.0, 100.0, 600)), tmp_path / "large.zarr", side=200)
    assert large.condition_number() == pytest.approx(100.0, rel=1e-4)


@pytest.mark.parametrize("options", OPTIONS)
def test_alignment(tmp_path: Path, options: dict[str, Any]) -> None:
    kernel, expected = stored(tmp_path / "k.zarr", samples=40, side=15, **options)
    y = targets(40)
    exact, found = alignment(expected, y), kernel.alignment(y, top=6)
    assert found.alignment == pytest.approx(exact.alignment, rel=1e-10)
    assert found.centred == pytest.approx(exact.centred, rel=1e-10)
    assert (found.alignment_error, found.centred_error) == (0.0, 0.0)
    assert found.energies == pytest.approx(exact.energies[:6], rel=1e-7)
    labels = np.arange(40) % 3
    assert kernel.alignment(labels).alignment == pytest.approx(
        alignment(expected, labels).alignment, rel=1e-10
    )


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(("ridge", "time"), [(0.05, None), (0.0, 3.0), (0.02, 50.0)])
def test_regression_with_a_stored_test_kernel(
    tmp_path: Path, options: dict[str, Any], ridge: float, time: float | None
) -> None:
    kernel, expected = stored(tmp_path / "k.zarr", samples=40, side=15, **options)
    across = ntk(network(), inputs(9, seed=3), inputs(40), **options)
    test = write(across, tmp_path / "test.zarr", 4)
    y, start = targets(40), (targets(40), targets(9))
    exact = regression(expected, y, ridge, across, start, time=time)
    found = kernel.regression(y, ridge, test, start, time=time, tolerance=1e-12)
    assert found.predictions == pytest.approx(exact.predictions, rel=1e-8, abs=1e-9)
    assert found.train_predictions == pytest.approx(exact.train_predictions, rel=1e-8, abs=1e-9)
    assert found.residual == pytest.approx(exact.residual, rel=1e-8)
    in_memory = kernel.regression(y, ridge, across, start, time=time, tolerance=1e-12)
    assert in_memory.predictions == pytest.approx(found.predictions, rel=1e-10)
    assert found.tolerance == 1e-12
    assert found.iterations is not None


def test_preconditioning_saves_readings(tmp_path: Path) -> None:
    eigenvalues = 1 / np.arange(1.0, 501.0) ** 2
    matrix = matrix_with(eigenvalues)
    kernel = given(matrix, tmp_path / "k.zarr", side=250)
    y = np.random.default_rng(0).normal(size=500)
    found = kernel.regression(y, 1e-6)
    exact = np.linalg.solve(matrix + 1e-6 * np.eye(500), y)
    assert np.linalg.norm(found.coefficients[:, 0] - exact) < 1e-7 * np.linalg.norm(exact)
    _, plain, _ = conjugate_gradients(lambda v: matrix @ v + 1e-6 * v, y, 1e-8, 5000)
    assert found.iterations is not None
    assert 5 * found.iterations < plain
    with pytest.warns(AccuracyWarning, match="instead of the tolerance") as warned:
        kernel.regression(y, 1e-6, iterations=2)
    assert warned[0].filename == __file__


def test_single_precision_reaches_the_tolerance(tmp_path: Path) -> None:
    kernel, expected = stored(tmp_path / "k.zarr", dtype=torch.float32)
    y, matrix = targets(23), dense(expected)
    matrix = (matrix + matrix.T) / 2
    found = kernel.regression(y, 0.01, tolerance=1e-10)
    exact = np.linalg.solve(matrix + 0.01 * np.eye(69), y.ravel())
    assert np.linalg.norm(found.coefficients.ravel() - exact) < 1e-4 * np.linalg.norm(exact)


@pytest.mark.slow
def test_analyses_of_a_kernel_larger_than_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, expected = stored(tmp_path / "k.zarr", samples=150, side=30)
    matrix, y = dense(expected), targets(150)
    exact = np.linalg.solve(matrix + 0.1 * np.eye(450), y.ravel())
    assert kernel.nbytes > 1.5e6
    monkeypatch.setenv("FORETRAIN_MEMORY", "1.5MB")
    with pytest.raises(MemoryError):
        np.asarray(kernel)
    values = np.linalg.eigvalsh(matrix)[::-1]
    assert kernel.spectrum(top=4).eigenvalues == pytest.approx(values[:4], rel=1e-10)
    found = kernel.regression(y, 0.1, tolerance=1e-11)
    assert found.coefficients.ravel() == pytest.approx(exact, rel=1e-7, abs=1e-8)
    cosine = y.ravel() @ matrix @ y.ravel() / (np.sum(y**2) * np.linalg.norm(matrix))
    assert kernel.alignment(y, top=3).alignment == pytest.approx(cosine, rel=1e-10)


def test_kernels_of_two_sets_are_refused(tmp_path: Path) -> None:
    kernel, _ = stored(tmp_path / "k.zarr", x2=inputs(7, seed=2))
    for ask in (kernel.spectrum, kernel.condition_number, kernel.spectral_density, kernel.summary):
        with pytest.raises(InputError, match="leave x2 out"):
            ask()
    for asked in (kernel.alignment, kernel.regression):
        with pytest.raises(InputError, match="leave x2 out"):
            asked(targets(23))
