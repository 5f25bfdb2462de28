"""Kernels in memory, on disk and by products are operators that agree with each other, and arrays where they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import foretrain as ft
from foretrain.empirical import condition_number, ntk, ntk_operator, spectral_density, spectrum
from foretrain.empirical.any_kernel import AnyKernel
from foretrain.operators import Operator
from foretrain.support.errors import InputError

N, C = 7, 2


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 9), nn.Tanh(), nn.Linear(9, C)).double()


def samples(count: int = N, seed: int = 1) -> torch.Tensor:
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(seed)).double()


@pytest.fixture(params=["in memory", "by layer", "on disk", "by products"])
def kernel(request: pytest.FixtureRequest, tmp_path: Path) -> AnyKernel:
    model, x = network(), samples()
    if request.param == "on disk":
        return ntk(model, x, store=tmp_path / "k.zarr", workers=1)
    if request.param == "by products":
        return ntk_operator(model, x)
    return ntk(model, x, by="layer" if request.param == "by layer" else None)


@pytest.fixture
def matrix() -> torch.Tensor:
    return torch.as_tensor(np.asarray(ntk(network(), samples()))).transpose(1, 2).reshape(N * C, N * C)


def test_every_kernel_is_an_operator(kernel: AnyKernel, matrix: torch.Tensor) -> None:
    assert isinstance(kernel, Operator)
    assert kernel.positive
    assert kernel.domain.describe() == f"(sample {N}, output {C})"
    torch.testing.assert_close(kernel.dense(), matrix)
    kernel.check()
    twice = kernel + 2 * kernel
    torch.testing.assert_close((twice @ kernel).dense(), 3 * matrix @ matrix)
    last = kernel.restrict(sample=[0, 3], output=1)
    places = torch.tensor([1, 7])
    torch.testing.assert_close(last.dense(), matrix[places][:, places])
    reduced = kernel.partial_trace(over="output")
    torch.testing.assert_close(
        reduced.dense(), torch.einsum("aibi->ab", matrix.reshape(N, C, N, C)), rtol=1e-10, atol=1e-12
    )


def test_questions_have_one_answer(kernel: AnyKernel, matrix: torch.Tensor) -> None:
    values = torch.linalg.eigvalsh(matrix).flip(0)
    trace, squares = float(values.sum()), float(values.square().sum())
    assert float(kernel.trace(method="auto")) == pytest.approx(trace)
    assert kernel.effective_rank() == pytest.approx(trace**2 / squares)
    assert kernel.effective_rank(kind="entropy") == pytest.approx(spectrum(matrix.numpy()).entropy_rank)
    assert kernel.top_modes(3).values.numpy() == pytest.approx(values[:3].numpy())
    assert kernel.spectrum(top=3).eigenvalues[:3] == pytest.approx(values[:3].numpy(), rel=1e-8)
    assert kernel.condition_number(0.1) == pytest.approx(
        float((values[0] + 0.1) / (values[-1] + 0.1)), rel=1e-4
    )
    known = kernel.spectral_density(steps=14)
    assert known.known == pytest.approx(values.numpy(), abs=1e-10)
    assert known.count_above[0] == pytest.approx(N * C, abs=0.1)
    assert kernel.quadratic(torch.ones(N, C)) == pytest.approx(float(matrix.sum()))


def test_products_have_the_form_of_what_was_given(kernel: AnyKernel, matrix: torch.Tensor) -> None:
    v = samples(N, 5)[:, :C]
    expected = matrix @ v.flatten()
    torch.testing.assert_close(kernel.matvec(v), expected.reshape(N, C))
    torch.testing.assert_close(kernel.matvec(v.flatten()), expected)
    torch.testing.assert_close(kernel.matmat(torch.stack([v, -v]))[1], -expected.reshape(N, C))
    torch.testing.assert_close(kernel @ v.float(), (matrix @ v.float().double().flatten()).reshape(N, C))
    assert kernel.linear_operator() @ v.flatten().numpy() == pytest.approx(expected.numpy())
    with pytest.raises(InputError, match="not finite"):
        kernel.matvec(torch.full((N, C), torch.nan))


def test_kernels_with_entries_stay_arrays(tmp_path: Path) -> None:
    model, x = network(), samples()
    array = np.asarray(ntk(model, x, outputs="trace"))
    for kernel in (
        ntk(model, x, outputs="trace"),
        ntk(model, x, outputs="trace", store=tmp_path / "k", workers=1),
    ):
        found: Any = kernel
        assert found.shape == (N, N)
        assert found.traced
        np.testing.assert_array_equal(np.abs(found), np.abs(array))
        np.testing.assert_array_equal(found - array, np.zeros((N, N)))
        np.testing.assert_array_equal(array / found, np.ones((N, N)))
        np.testing.assert_array_equal(found * array, array**2)
        assert found @ np.eye(N)[:, :3] == pytest.approx(array[:, :3])
        assert np.eye(N)[:3] @ found == pytest.approx(array[:3])
        assert isinstance(2 * found, Operator)


def test_the_dense_form_of_a_store_is_one_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from foretrain.empirical.stored_kernel import reading

    kernel = ntk(network(), samples(), samples(4, 3), by="layer", store=tmp_path / "k", workers=1)
    read, readings = reading.pieces, []

    def counted(given: Any) -> Any:
        readings.append(given)
        return read(given)

    monkeypatch.setattr(reading, "pieces", counted)
    total = np.asarray(ntk(network(), samples(), samples(4, 3)))
    expected = total.transpose(0, 2, 1, 3).reshape(N * C, 4 * C)
    assert kernel.dense().numpy() == pytest.approx(expected, rel=1e-12)
    assert len(readings) == 1
    assert kernel.T.dense().numpy() == pytest.approx(expected.T, rel=1e-12)


def test_any_operator_has_a_spectrum() -> None:
    torch.manual_seed(0)
    states = ft.global_ntk(nn.GRU(2, 5, batch_first=True).double(), torch.randn(4, 6, 2).double())
    values = torch.linalg.eigvalsh(states.dense()).flip(0)
    found = spectrum(states, top=4)
    assert found.eigenvalues == pytest.approx(values[:4].numpy(), rel=1e-8)
    assert abs(found.trace - float(values.sum())) < 4 * found.trace_error
    assert condition_number(states, ridge=0.5) == pytest.approx(
        float((values[0] + 0.5) / (values[-1] + 0.5)), rel=1e-3
    )
    density = spectral_density(states, steps=4)
    assert (
        abs(density.sum_of(np.abs).value - float(values.sum()))
        < 4 * density.sum_of(np.abs).standard_error + 1e-9
    )


def test_a_kernel_in_other_units_is_a_kernel_and_an_array_beside_numbers_of_numpy() -> None:
    kernel = ntk(network(), samples(), outputs="trace")
    array, V = np.asarray(kernel), np.random.default_rng(0).standard_normal((N, N))
    for scaled, factor in ((2 * kernel, 2.0), (kernel / 4, 0.25), (kernel + kernel, 2.0)):
        np.testing.assert_allclose(
            scaled @ V, factor * array @ V
        )  # the product of matrices, as of the kernel
        np.testing.assert_allclose(np.asarray(scaled), factor * array)
        assert scaled.spectrum().eigenvalues[0] == pytest.approx(factor * kernel.spectrum().eigenvalues[0])
    assert not (-1 * kernel).positive
    for scaled in (kernel / array.max(), kernel * np.float64(2), np.float64(2) * kernel):
        assert isinstance(scaled, np.ndarray)
        assert scaled.shape == (N, N)
