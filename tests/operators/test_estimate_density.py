"""Spectral densities against smoothed spectra."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import ndtr
from spectral_operators import Matrix, Spectral, random_matrix, spectrum

from foretrain.operators.estimators import SpectralDensity, spectral_density
from foretrain.support.errors import InputError


def smoothed(values: np.ndarray, found: SpectralDensity) -> tuple[np.ndarray, np.ndarray]:
    """Density and number above, of known values."""
    distances = (values[None] - found.points[:, None]) / found.width
    bumps = np.exp(-(distances**2) / 2) / (found.width * np.sqrt(2 * np.pi))
    return bumps.mean(1), ndtr(distances).sum(1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", ["ramp", "stretched", "power 0.5"])
def test_densities_agree_with_smoothed_spectra(name: str, dtype: torch.dtype) -> None:
    values = spectrum(name, 1500)
    found = spectral_density(Spectral(values.to(dtype)), points=np.int64(60), products=16 * 40, seed=1)
    density, above = smoothed(values.numpy(), found)
    scale = density.max()
    assert np.all(np.abs(found.density - density) <= 5 * found.standard_error + 0.02 * scale)
    assert np.all(np.abs(found.count_above - above) <= 5 * found.count_error + 0.005 * 1500)
    assert found.standard_error.max() < 0.2 * scale
    assert np.trapezoid(found.density, found.points) == pytest.approx(1, abs=0.01)


@pytest.mark.slow
def test_errors_are_those_of_the_probes() -> None:
    """Over seeds, the spread of the density is what one run states."""
    operator = Spectral(spectrum("stretched", 800))
    places = np.linspace(0, 0.9, 7)
    found = [
        spectral_density(operator, points=places, products=12 * 20, depth=20, width=0.05, seed=seed)
        for seed in range(60)
    ]
    spread = np.std([one.density for one in found], axis=0, ddof=1)
    stated = np.sqrt(np.mean([one.standard_error**2 for one in found], axis=0))
    assert np.all((stated / spread > 0.7) & (stated / spread < 1.4))


def test_counts_by_chains_have_honest_errors() -> None:
    """Probes with nodes of their own count eigenvalues between edges, and sum functions of them."""
    values = spectrum("power 0.5", 600)
    scores = []
    for seed in range(6):
        found = spectral_density(Spectral(values), probes=12, depth=25, seed=seed)
        edges = np.geomspace(max(found.resolution, 0.05), 1.1, 5)
        counts = found.counts(edges)
        exact = np.histogram(values.numpy(), edges)[0]
        scores += list((counts.value - exact) / counts.standard_error)
        total = found.sum_of(np.square)
        scores.append((total.value - float(values.square().sum())) / total.standard_error)
    assert np.abs(scores).max() < 4
    assert np.sqrt(np.mean(np.square(scores))) < 1.4


def test_one_space_of_all_probes_finds_leading_values_one_by_one() -> None:
    values = 1 / torch.arange(1.0, 501.0, dtype=torch.float64) ** 1.5
    found = spectral_density(Spectral(values), 16, 12, seed=0)
    assert found.products == 12
    assert found.known[:20] == pytest.approx(values[:20].numpy(), rel=1e-8)
    density, above = smoothed(values.numpy(), found)
    assert np.all(np.abs(found.density - density) <= 5 * found.standard_error + 0.02 * density.max())
    assert np.all(np.abs(found.count_above - above) <= 5 * found.count_error + 5)


def test_singular_values_of_operators_without_symmetry() -> None:
    matrix = random_matrix(300, 200)
    operator = Matrix(matrix)
    found = spectral_density(operator, points=40, products=16 * 2 * 30, depth=30, seed=0)
    density, above = smoothed(torch.linalg.svdvals(matrix).numpy(), found)
    assert np.all(np.abs(found.density - density) <= 5 * found.standard_error + 0.03 * density.max())
    assert np.all(np.abs(found.count_above - above) <= 5 * found.count_error + 2)
    assert found.products == operator.calls == 960


def test_simple_spectra_are_exact() -> None:
    found = spectral_density(Spectral(torch.full((50,), 2.0, dtype=torch.float64)), points=[1.0, 2.0, 3.0])
    assert found.count_above == pytest.approx([50, 25, 0], abs=1e-6)
    nothing = spectral_density(Spectral(torch.zeros(50, dtype=torch.float64)), points=[-9.0, 9.0])
    assert nothing.count_above == pytest.approx([50, 0], abs=1e-6)
    one = spectral_density(Matrix(torch.tensor([[4.0]]), symmetric=True), points=[3.0, 5.0], width=0.1)
    assert one.count_above == pytest.approx([1, 0], abs=1e-6)


def test_results_are_labelled_and_say_what_they_are() -> None:
    found = spectral_density(Spectral(spectrum("ramp", 300)), points=10)
    table = found.to_dataset()
    assert table["density"].dims == ("value",)
    assert set(table.data_vars) == {"density", "standard_error", "count_above", "count_error"}
    assert table.attrs["probes"] == found.probes
    assert "300 values seen by 16 probes" in repr(found)


def test_bad_input_is_refused() -> None:
    operator = Spectral(spectrum("ramp", 300))
    with pytest.raises(InputError, match="raise products="):
        spectral_density(operator, products=50)
    with pytest.raises(InputError, match="at least 2"):
        spectral_density(operator, points=1)
    with pytest.raises(InputError, match="finite places"):
        spectral_density(operator, points=[0.0, float("nan")])
    with pytest.raises(InputError, match="Lanczos steps"):
        spectral_density(operator, depth=0)
