"""Large models get shorter trainings, on every machine the same ones, and that is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from foretrain.doctor.examine import Training, make_setup
from foretrain.doctor.setup import Case, Setup, Work, affordable_samples
from foretrain.doctor.stability import edge
from foretrain.doctor.treatment import Plan
from foretrain.doctor.trials import STEPS, Extent, extent, shortened_trials, trial
from foretrain.doctor.verification import verify


def setup(multiplications: int, batch_size: int | None = None) -> Setup:
    """A small model that is said to be large."""
    torch.manual_seed(0)
    x = torch.randn(300, 4)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    made = make_setup(model, x, x[:, :1], Training(optimizer=0.05, batch_size=batch_size))
    return replace(made, known={"work": Work(multiplications, multiplications)})


def test_small_models_are_trained_as_ever() -> None:
    small = setup(40)
    assert extent(small).batch == extent(small).pool == 128
    assert extent(small).steps > 1000
    assert shortened_trials(small) == ()
    assert trial(small).steps == STEPS


@pytest.mark.parametrize(
    ("multiplications", "batch_size", "wanted"),
    [
        (10**8, None, Extent(27, 128, 61)),  # fewer samples in a step
        (6 * 10**8, None, Extent(16, 128, 20)),  # no fewer than 16, and fewer steps
        (2 * 10**9, None, Extent(16, 128, 20)),
        (2 * 10**9, 8, Extent(8, 128, 20)),
    ],
)
def test_large_models_first_get_fewer_samples_then_fewer_steps(
    multiplications: int, batch_size: int | None, wanted: Extent
) -> None:
    large = setup(multiplications, batch_size)
    assert extent(large) == wanted
    found = trial(large, 240)
    assert found.steps == wanted.steps
    assert found.end < found.start


def test_it_is_told() -> None:
    large = setup(6 * 10**8)
    (note,) = shortened_trials(large)
    assert (
        note
        == "One sample costs 600 million multiplications, so short trainings make 20 steps of 16 samples."
    )


def test_the_edge_of_a_large_model_is_measured_on_few_samples() -> None:
    assert edge(Case(setup(40))).samples == 300
    assert edge(Case(setup(10**9))).samples == 16
    assert edge(Case(setup(10**8, 40))).samples == 80


def test_verification_takes_so_few_samples_that_some_steps_fit_into_the_time() -> None:
    large = setup(10**8)
    found = verify(Plan(large, (), large), 30, seconds=5.0)
    assert "16 samples in a step instead of 300" in found.stopped
    assert found.stopped in found.verdict
    assert found.given.steps[-1] == 30
    assert affordable_samples(large, 300, 6 * 30, 5e10) == 16
