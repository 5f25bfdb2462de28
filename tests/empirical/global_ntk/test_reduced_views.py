"""Reduced kernels from random directions of the parameters, against their definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import foretrain as ft
from foretrain.empirical.global_ntk import GlobalNTK, reduced_views
from foretrain.empirical.global_ntk.reduced_views import ReducedView
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


def view(kernel: GlobalNTK, kind: Any, **options: Any) -> ReducedView:
    return reduced_views.reduced_view(kernel, kind, **options)


KINDS = ("temporal", "spatial")


def check_exact(kernel: GlobalNTK) -> None:
    for kind, exact in zip(KINDS, defined(kernel)):
        found = view(kernel, kind)
        torch.testing.assert_close(found.matrix, exact)
        assert found.rank.value == pytest.approx(participation(exact))
        assert (found.error, found.rank.standard_error, found.directions) == (0.0, 0.0, 0)
        assert "exact" in repr(found)


def test_few_states_are_written_out() -> None:
    check_exact(drawn(4))


def test_few_parameters_are_taken_one_by_one() -> None:
    check_exact(drawn(9, samples=10, steps=13))  # 1170 states by 351 parameters


def test_few_parameters_of_large_kernels_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = drawn(9, samples=10, steps=13)
    monkeypatch.setattr(reduced_views, "_EXACT_FLOPS", 2.0 * 351 * 9**2 * 130)  # of the kernel in space
    assert view(kernel, "spatial").directions == 0
    sampled, exact = view(kernel, "temporal"), participation(defined(kernel)[0])
    assert sampled.directions > 0
    assert abs(sampled.rank.value - exact) < 4 * sampled.rank.standard_error


@pytest.fixture
def never_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduced_views, "_EXACT_SIZE", 0)
    monkeypatch.setattr(reduced_views, "_EXACT_PARAMETERS", 0)


@pytest.mark.usefixtures("never_exact")
def test_random_directions_give_both_kernels() -> None:
    kernel = drawn(6)
    for kind, exact in zip(KINDS, defined(kernel)):
        found = view(kernel, kind, accuracy=0.02, seed=3)
        assert found.directions > 16
        assert found.rank.relative_error <= 0.02
        assert abs(found.rank.value - participation(exact)) < 4 * found.rank.standard_error
        distance = float(torch.linalg.norm(found.matrix - exact) / torch.linalg.norm(exact))
        assert 0.3 * found.error < distance < 2.5 * found.error
        assert "random directions" in repr(found)
        assert torch.equal(view(kernel, kind, accuracy=0.02, seed=3).matrix, found.matrix)


@pytest.mark.parametrize(("steps", "units"), [(9, 4), (4, 9)])
def test_states_that_explode_stay_finite_in_float32(
    steps: int, units: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = ft.global_ntk(torch.nn.RNN(2, units, batch_first=True), torch.randn(1, steps, 2))
    sheets = torch.randn(12, steps * units, generator=torch.Generator().manual_seed(4))
    found = []
    for scale in (1.0, 1e10):
        cut = reduced_views._Cut(kernel.domain.plain("a test"), "temporal")
        one = ReducedView(kernel, cut, 0)
        monkeypatch.setattr(kernel.dynamics, "random_states", lambda *_, scale=scale, **__: scale * sheets)
        one.draw(12, torch.Generator())
        found.append((one.rank, one.trace(), one.frobenius_norm()))
    for small, large, factor in zip(*found, (1.0, 1e20, 1e20)):
        assert large.value == pytest.approx(factor * small.value, rel=1e-5)  # rounding of float32
        assert large.standard_error == pytest.approx(factor * small.standard_error, rel=1e-4)


def test_of_one_member_of_a_sum() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = torch.nn.LSTM(2, 3, batch_first=True).double()
    x = torch.randn(2, 4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    both = ft.global_ntk(module, x, ("hidden", "cell"))
    cell = GlobalNTK(both.dynamics, ["cell"])
    entries = both.dense()[24:, 24:].view(8, 3, 8, 3)
    torch.testing.assert_close(view(cell, "temporal").matrix, torch.einsum("aubu->ab", entries) / 3)


@pytest.mark.usefixtures("never_exact")
def test_what_is_not_reached_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduced_views, "_MOST", 16)
    with pytest.warns(AccuracyWarning, match="16 random directions") as warned:
        assert view(drawn(4), "spatial", accuracy=1e-6).directions == 16
    assert warned[0].filename == __file__


def test_bad_input() -> None:
    with pytest.raises(InputError, match="accuracy"):
        view(drawn(4), "temporal", accuracy=-1.0)
    with pytest.raises(InputError, match="spatial"):
        view(drawn(4), "spacial")


@pytest.mark.statistical
@pytest.mark.usefixtures("never_exact")
@pytest.mark.filterwarnings("ignore::foretrain.support.errors.AccuracyWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_stated_errors_are_those_over_seeds(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = drawn(8, samples=4, steps=10)
    exact = participation(defined(kernel)[KINDS.index(kind)])
    monkeypatch.setattr(reduced_views, "_MOST", 64)
    ranks = [view(kernel, kind, accuracy=1e-6, seed=seed).rank for seed in range(80)]
    scores = [(rank.value - exact) / rank.standard_error for rank in ranks]
    # The mean of 80 scores has a standard error of 0.11, their rms one of about 0.08.
    assert abs(np.mean(scores)) < 0.5
    assert 0.7 < np.sqrt(np.mean(np.square(scores))) < 1.4


@pytest.mark.usefixtures("never_exact")
@pytest.mark.parametrize(("kind", "samples", "steps"), [("temporal", 12, 25), ("spatial", 1, 5)])
def test_members_that_are_not_seen_by_all_unit_vectors(
    kind: Any, samples: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foretrain.operators.reductions._EVERY_DIRECTION", 5)
    kernel = drawn(6, samples, steps)
    exact = defined(kernel)[KINDS.index(kind)]
    found = view(kernel, kind, accuracy=0.1, seed=1)
    for estimate, truth in (
        (found.rank, participation(exact)),
        (found.trace(), float(exact.trace())),
        (found.frobenius_norm(), float(exact.norm())),
    ):
        assert 0 < estimate.standard_error < 0.3 * truth
        assert abs(estimate.value - truth) < 4 * estimate.standard_error
    distance = float(torch.linalg.norm(found.matrix - exact) / torch.linalg.norm(exact))
    assert 0.3 * found.error < distance < 2.5 * found.error
    torch.testing.assert_close(found.dense(), found.matrix)
    assert_ranks_of_the_mean(found)


def assert_ranks_of_the_mean(found: ReducedView) -> None:
    """Other ranks than the participation ratio have the distance of the matrix in their error."""
    entropy = found.effective_rank(kind="entropy")
    values = torch.linalg.eigvalsh(found.matrix).clamp(min=1e-300)
    shares = values / values.sum()
    assert entropy.value == pytest.approx(float(torch.exp(-(shares * shares.log()).sum())), rel=0.05)
    assert entropy.standard_error >= found.error * entropy.value
    with pytest.warns(AccuracyWarning, match="accuracy="):
        found.effective_rank(accuracy=1e-6)


MODELS = {
    "gru": lambda: torch.nn.GRU(2, 3, batch_first=True),
    "gru without biases": lambda: torch.nn.GRU(2, 3, bias=False, batch_first=True),
    "two layers in both directions": lambda: torch.nn.GRU(2, 2, 2, bidirectional=True, batch_first=True),
    "rnn": lambda: torch.nn.RNN(2, 3, batch_first=True),
    "lstm": lambda: torch.nn.LSTM(2, 3, batch_first=True),
}


@pytest.mark.parametrize("parameters", [None, "weight_hh*", "weight_ih*"])
@pytest.mark.parametrize("name", MODELS)
def test_every_sample_has_directions_of_its_own(name: str, parameters: Any) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = MODELS[name]().double()
        kernel = ft.global_ntk(module, torch.randn(2, 4, 2, dtype=torch.float64), parameters=parameters)
    count = 20_000
    generator = torch.Generator().manual_seed(1)
    states = kernel.dynamics.random_states(count, generator, by_sample=True)
    exact = kernel.full.dense()
    found = states.t() @ states / count
    # Blocks of one sample are those of the kernel, and samples have nothing to do with each other.
    members = kernel.full.size // (2 * 4 * module.hidden_size)
    sample = torch.arange(2).repeat_interleave(4 * module.hidden_size).repeat(members)
    expected = torch.where(sample[:, None] == sample, exact, 0.0)
    deviation = torch.sqrt((expected.diagonal()[:, None] * expected.diagonal() + expected.square()) / count)
    scores = (found - expected) / deviation.clamp(min=1e-12)
    assert float(scores.abs().max()) < 6
    assert 0.7 < float(scores[deviation > 0].square().mean().sqrt()) < 1.3


@pytest.mark.parametrize("states", [None, ("hidden_0", "hidden_1")])
def test_the_trace_by_random_directions(states: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = torch.nn.GRU(2, 6, 2, batch_first=True).double()
        kernel = ft.global_ntk(module, torch.randn(20, 4, 2, dtype=torch.float64), states)
    exact = float(kernel.dense().trace())
    monkeypatch.setattr("foretrain.operators.estimators.traces.is_affordable", lambda *_, **__: False)
    monkeypatch.setattr(GlobalNTK, "trace_by_structure", lambda *_: None)
    scores = []
    for seed in range(60):
        found = kernel.trace(accuracy=0.03, seed=seed)
        assert found.method == "random directions"
        assert found.relative_error <= 0.03
        scores.append((found.value - exact) / found.standard_error)
    # The mean of 60 scores has a standard error of 0.13, their root mean square one of about 0.1.
    assert abs(np.mean(scores)) < 0.5
    assert 0.7 < np.sqrt(np.mean(np.square(scores))) < 1.4
