"""Spectra and condition numbers of tangent kernels, against dense linear algebra."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_kernels import OUTPUTS, SAMPLES, inputs, matrix_of, network, random_kernel
from torch import nn

import foretrain as ft
from foretrain.empirical import ntk, ntk_operator
from foretrain.empirical.kernel_analysis import alignment, condition_number, spectrum


def test_spectrum_of_a_known_matrix() -> None:
    found = spectrum(np.diag([1.0, 4.0, 0.0, 3.0]), top=2)
    assert found.eigenvalues == pytest.approx([4, 3, 1, 0])
    assert found.effective_rank == pytest.approx(64 / 26)
    shares = np.array([4, 3, 1]) / 8
    assert found.entropy_rank == pytest.approx(np.exp(-np.sum(shares * np.log(shares))))
    assert (found.trace, found.trace_error, found.rank, found.complete) == (pytest.approx(8), 0, 3, True)
    assert np.abs(found.modes).reshape(2, 4) == pytest.approx(np.eye(4)[[1, 3]])
    assert "rank 3" in repr(found)
    assert "effective rank 2.462 (trace² / squares), entropy rank 2.649" in repr(found)


def test_spectrum_is_that_of_the_matrix_over_samples_and_outputs() -> None:
    kernel = ntk(network(), inputs())
    matrix = matrix_of(kernel)
    found = spectrum(kernel, top=4)
    assert found.size == SAMPLES * OUTPUTS
    assert found.eigenvalues == pytest.approx(np.linalg.eigvalsh(matrix)[::-1])
    flat = found.modes.reshape(4, -1)
    assert flat @ matrix @ flat.T == pytest.approx(np.diag(found.eigenvalues[:4]), abs=1e-10)
    labelled = found.to_dataset()
    assert labelled.amplitude.shape == (4, SAMPLES, OUTPUTS)
    assert labelled.attrs["effective_rank"] == found.effective_rank


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
    assert other.effective_rank == pytest.approx(plain.effective_rank)
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
    assert abs(found.effective_rank - exact.effective_rank) < 3.5 * found.effective_rank_error
    assert np.isnan(found.entropy_rank)
    assert "5 largest known, by Lanczos" in repr(found)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_every_output_has_its_copy_of_an_eigenvalue(dtype: torch.dtype) -> None:
    """The kernel of a linear model is X X^T + 1 for each of its outputs, and nothing between them."""
    torch.manual_seed(0)
    x, outputs = torch.randn(20, 12, dtype=dtype), 30
    operator = ntk_operator(nn.Linear(12, outputs, dtype=dtype), x)
    alone = np.linalg.eigvalsh((x @ x.T + 1).double().numpy())[::-1]
    for top in (12, 40):
        found = spectrum(operator, top=top)
        assert found.eigenvalues == pytest.approx(alone.repeat(outputs)[:top], rel=1e-5)
        assert found.residuals is not None
        assert found.residuals.max() < 2e-5 * alone[0]
    flat = found.modes.reshape(top, -1)
    assert flat @ flat.T == pytest.approx(np.eye(top), abs=1e-5)


def test_all_modes_of_an_operator_are_exact() -> None:
    model, x = network(), inputs(3)
    found = spectrum(ntk_operator(model, x), top=50)
    exact = spectrum(ntk(model, x), top=9)
    assert found.complete
    assert found.eigenvalues == pytest.approx(exact.eigenvalues)
    assert found.entropy_rank == pytest.approx(exact.entropy_rank)


@pytest.mark.statistical
def test_standard_errors_of_operator_spectra_are_honest() -> None:
    model, x = network(), inputs(20)
    exact, operator = spectrum(ntk(model, x)), ntk_operator(model, x)
    runs = [spectrum(operator, top=4, probes=40, seed=seed) for seed in range(150)]
    for name, error in (("trace", "trace_error"), ("effective_rank", "effective_rank_error")):
        z = [(getattr(run, name) - getattr(exact, name)) / getattr(run, error) for run in runs]
        assert abs(np.mean(z)) < 4 / 150**0.5
        assert 0.8 < np.sqrt(np.mean(np.square(z))) < 1.25


@pytest.mark.slow
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


def test_spectra_are_saved_and_loaded(tmp_path: Path) -> None:
    found = spectrum(ntk_operator(network(), inputs()), top=np.int64(3))
    loaded = ft.load(ft.save(found, tmp_path / "spectrum.zarr"))
    assert loaded["eigenvalue"].values == pytest.approx(found.eigenvalues)
    assert loaded["residual"].shape == (3,)
    assert loaded.attrs["trace_error"] == found.trace_error
