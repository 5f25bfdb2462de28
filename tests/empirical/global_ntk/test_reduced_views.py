"""Reduced kernels from random directions of the parameters, against their definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import foretrain as ft
from foretrain.empirical.global_ntk import GlobalNTK, reduced_views
from foretrain.empirical.global_ntk.reduced_views import ReducedViews
from foretrain.support.errors import AccuracyWarning, InputError


def drawn(units: int, samples: int = 3, steps: int = 5) -> GlobalNTK:
    generator = torch.Generator().manual_seed(1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = torch.nn.GRU(2, units, batch_first=True).double()
    return ft.global_ntk(module, torch.randn(samples, steps, 2, generator=generator, dtype=torch.float64))


def defined(kernel: GlobalNTK) -> tuple[torch.Tensor, torch.Tensor]:
    """(15) by loops over the indices that are traced out."""
    batch, time, units = kernel.domain.plain("a test").shape
    entries = kernel.dense().view(batch * time, units, batch * time, units)
    temporal = sum(entries[:, u, :, u] for u in range(units)) / units
    spatial = sum(entries[p, :, p, :] for p in range(batch * time)) / (batch * time)
    return temporal, spatial


def participation(matrix: torch.Tensor) -> float:
    values = torch.linalg.eigvalsh(matrix)
    return float(values.sum() ** 2 / values.square().sum())


def check_exact(kernel: GlobalNTK, found: ReducedViews) -> None:
    temporal, spatial = defined(kernel)
    torch.testing.assert_close(found.temporal, temporal)
    torch.testing.assert_close(found.spatial, spatial)
    assert found.temporal_rank.value == pytest.approx(participation(temporal))
    assert found.spatial_rank.value == pytest.approx(participation(spatial))
    assert (found.temporal_error, found.spatial_rank.standard_error, found.directions) == (0.0, 0.0, 0)


def test_few_states_are_written_out() -> None:
    kernel = drawn(4)
    check_exact(kernel, ft_views(kernel))


def test_few_parameters_are_taken_one_by_one() -> None:
    kernel = drawn(9, samples=10, steps=13)  # 1170 states by 351 parameters
    check_exact(kernel, ft_views(kernel))


def ft_views(kernel: GlobalNTK, **options: float) -> ReducedViews:
    return reduced_views.reduced_views(kernel, **options)


def test_random_directions_give_both_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = drawn(6)
    temporal, spatial = defined(kernel)
    monkeypatch.setattr(reduced_views, "_EXACT_SIZE", 0)
    monkeypatch.setattr(reduced_views, "_EXACT_PARAMETERS", 0)
    found = ft_views(kernel, accuracy=0.03, seed=3)
    assert found.directions > 16
    for rank, exact in ((found.temporal_rank, temporal), (found.spatial_rank, spatial)):
        assert rank.relative_error <= 0.03
        assert abs(rank.value - participation(exact)) < 4 * rank.standard_error
    distances = [
        (found.temporal_error, found.temporal, temporal),
        (found.spatial_error, found.spatial, spatial),
    ]
    for error, estimate, exact in distances:
        distance = float(torch.linalg.norm(estimate - exact) / torch.linalg.norm(exact))
        assert 0.3 * error < distance < 2.5 * error
    assert "random directions" in repr(found)
    again = ft_views(kernel, accuracy=0.03, seed=3)
    assert torch.equal(again.temporal, found.temporal)


def test_of_one_member_of_a_sum() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = torch.nn.LSTM(2, 3, batch_first=True).double()
    x = torch.randn(2, 4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    both = ft.global_ntk(module, x, ("hidden", "cell"))
    cell = GlobalNTK(both.dynamics, ["cell"])
    entries = both.dense()[24:, 24:].view(8, 3, 8, 3)
    torch.testing.assert_close(ft_views(cell).temporal, torch.einsum("aubu->ab", entries) / 3)


def test_what_is_not_reached_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduced_views, "_EXACT_SIZE", 0)
    monkeypatch.setattr(reduced_views, "_EXACT_PARAMETERS", 0)
    monkeypatch.setattr(reduced_views, "_MOST", 16)
    with pytest.warns(AccuracyWarning, match="after 16 random directions"):
        assert ft_views(drawn(4), accuracy=1e-6).directions == 16
    with pytest.raises(InputError, match="accuracy"):
        ft_views(drawn(4), accuracy=-1.0)


@pytest.mark.statistical
def test_stated_errors_are_those_over_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = drawn(8, samples=4, steps=10)
    exact = ft_views(kernel)
    monkeypatch.setattr(reduced_views, "_EXACT_SIZE", 0)
    monkeypatch.setattr(reduced_views, "_EXACT_PARAMETERS", 0)
    monkeypatch.setattr(reduced_views, "_MOST", 64)
    scores = []
    for seed in range(80):
        with pytest.warns(AccuracyWarning):
            found = ft_views(kernel, accuracy=1e-6, seed=seed)
        pairs = ((found.temporal_rank, exact.temporal_rank), (found.spatial_rank, exact.spatial_rank))
        scores.append([(one.value - true.value) / one.standard_error for one, true in pairs])
    # The mean of 80 scores has a standard error of 0.11, their rms one of about 0.08.
    assert np.abs(np.mean(scores, axis=0)).max() < 0.5
    rms = np.sqrt(np.mean(np.square(scores), axis=0))
    assert (rms > 0.7).all() and (rms < 1.4).all()
