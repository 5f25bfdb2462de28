"""Spectral densities: exact where all eigenvalues are known, unbiased with honest errors where they are sampled."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from foretrain.empirical import ntk, ntk_operator
from foretrain.empirical.kernel_analysis import SpectralDensity, spectral_density
from foretrain.operators.estimators.density import density_of, probed
from foretrain.support.errors import InputError

Array = NDArray[np.float64]
SIZE = 500
EIGENVALUES = 1 / np.arange(1.0, SIZE + 1) ** 1.5


def sampled(eigenvalues: Array, steps: int = 12, seed: int = 0, probes: int = 16) -> SpectralDensity:
    size = len(eigenvalues)
    modes = np.linalg.qr(np.random.default_rng(3).normal(size=(size, size)))[0]
    matrix = torch.from_numpy((modes * eigenvalues) @ modes.T)
    krylov = probed(lambda rows: rows @ matrix, size, probes, steps, seed)
    for _ in range(steps):
        if not krylov.exhausted:
            krylov.extend()
    return density_of(krylov, lambda largest: size * 2.2e-16 * largest, seed)


def entropy_rank(eigenvalues: Array) -> float:
    shares = eigenvalues[eigenvalues > 0] / eigenvalues.sum()
    return float(np.exp(-np.sum(shares * np.log(shares))))


def test_of_a_matrix_all_are_known() -> None:
    found = spectral_density(np.diag([4.0, 2.0, 2.0, 0.0]))
    assert found.known == pytest.approx([4, 2, 2, 0])
    assert found.counts([1.0, 3.0, 5.0]).value.tolist() == [2, 1]
    assert found.sum_of(np.sqrt).value == pytest.approx(2 + 2 * 2**0.5)
    rank = found.entropy_rank()
    assert (rank.value, rank.standard_error, found.probes) == (
        pytest.approx(entropy_rank(found.known)),
        0.0,
        0,
    )
    assert "all known" in repr(found)


def test_sums_have_honest_errors() -> None:
    functions = [lambda v: np.maximum(v, 0.0), lambda v: v**2, lambda v: np.log(np.maximum(v, 0.0) + 1e-2)]
    scores = []
    for seed in range(12):
        found = sampled(EIGENVALUES, seed=seed)
        for function in functions:
            estimate = found.sum_of(function)
            exact = float(np.sum(function(EIGENVALUES)))
            scores.append((estimate.value - exact) / estimate.standard_error)
            assert estimate.standard_error < 0.05 * abs(exact)
        rank = found.entropy_rank(float(EIGENVALUES.sum()))
        scores.append((rank.value - entropy_rank(EIGENVALUES)) / rank.standard_error)
    assert 0.6 < np.sqrt(np.mean(np.square(scores))) < 1.6
    assert np.abs(scores).max() < 5


def test_leading_eigenvalues_are_counted_exactly() -> None:
    found = sampled(EIGENVALUES)
    assert len(found.known) > 20
    assert found.known[:20] == pytest.approx(EIGENVALUES[:20], rel=1e-8)
    counts = found.counts([EIGENVALUES[9] * 0.99, EIGENVALUES[4] * 0.99, 2.0])
    assert counts.value == pytest.approx([5, 5], abs=1e-12)
    assert counts.standard_error == pytest.approx([0, 0], abs=1e-12)


def test_counts_above_the_resolution() -> None:
    found = sampled(EIGENVALUES)
    edges = np.geomspace(found.resolution, 2.0, 6)
    counts = found.counts(edges)
    exact = np.histogram(EIGENVALUES, edges)[0]
    assert np.all(np.abs(counts.value - exact) < 3.5 * counts.standard_error + 1e-9)
    low = found.counts([found.resolution / 100, np.inf])
    assert low.standard_error[0] > 10  # below the resolution nothing is promised


def test_everything_is_known_once_the_space_is_the_whole() -> None:
    found = sampled(EIGENVALUES[:90], steps=12)
    assert found.probes == 0
    assert found.known == pytest.approx(EIGENVALUES[:90], abs=1e-14)


def test_many_equal_eigenvalues_are_not_taken_for_few() -> None:
    eigenvalues = np.repeat([3.0, 1.0, 0.0], [2, 200, 98])
    found = sampled(eigenvalues)
    assert found.known == pytest.approx([3, 3])
    ones = found.counts([0.5, 2.0])
    assert abs(ones.value[0] - 200) < 4 * ones.standard_error[0]


def test_the_same_seed_gives_the_same_density() -> None:
    first, again, other = (sampled(EIGENVALUES[:400], 4, seed) for seed in (1, 1, 2))
    assert np.array_equal(first.weights, again.weights)
    assert not np.array_equal(first.weights, other.weights)


def test_operators_and_their_kernels_agree() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    x = torch.randn(30, 3, dtype=torch.float64)
    exact, found = spectral_density(ntk(model, x)), spectral_density(ntk_operator(model, x), steps=5)
    for estimate, truth in (
        (found.sum_of(np.abs), exact.sum_of(np.abs)),
        (found.sum_of(np.square), exact.sum_of(np.square)),
    ):
        assert estimate.value == pytest.approx(truth.value, rel=1e-8, abs=4 * float(estimate.standard_error))
    data = found.to_dataset()
    assert data["count"].sizes == {"interval": 40}
    assert data.attrs["below"] + float(data["count"].sum()) == pytest.approx(60)


def test_bad_numbers_are_refused() -> None:
    model = nn.Linear(3, 1).double()
    operator = ntk_operator(model, torch.randn(5, 3, dtype=torch.float64))
    with pytest.raises(InputError, match="probes is 1"):
        spectral_density(operator, probes=1)
    with pytest.raises(InputError, match="steps is 0"):
        spectral_density(operator, steps=0)
    numbers = {"probes": np.int64(3), "steps": np.int64(2)}
    assert spectral_density(operator, **numbers).size == 5  # type: ignore[arg-type]
