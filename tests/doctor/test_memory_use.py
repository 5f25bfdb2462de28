"""The doctor needs no more than twice the memory of a training step, however many samples and outputs there are."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from foretrain.doctor.examine import Training, make_setup
from foretrain.doctor.setup import Case, Setup, Work, in_parts, samples_at_once, seen_in_a_pass, work_of
from foretrain.doctor.short_training import divide, outputs_at_rest, value_at_rest

ROOT = Path(__file__).parents[2]


def setup(numbers: int, multiplications: int = 50, batch_size: int | None = 8) -> Setup:
    """A small model with batch normalisation whose layers are said to return so much, and to cost so much."""
    torch.manual_seed(0)
    x = torch.randn(300, 4)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
    made = make_setup(model, x, x[:, :1], Training(optimizer=0.05, batch_size=batch_size))
    return replace(made, known={"work": Work(multiplications, multiplications, numbers)})


def test_passes_take_as_many_samples_as_a_step_or_hardly_any_memory() -> None:
    assert samples_at_once(setup(10)) == 1_000_000
    assert samples_at_once(setup(500_000)) == 20
    assert samples_at_once(setup(10**9)) == 8
    assert samples_at_once(setup(10**9, batch_size=None)) == 300
    assert len(Case(setup(10**9)).chosen(256).x) == 8
    assert len(Case(setup(10**9)).pool(256).x) == 256


def test_parts_hold_every_sample_once() -> None:
    large = setup(500_000)
    parts = list(in_parts(large, large.task))
    assert [len(part.x) for part in parts] == [20] * 15
    assert torch.equal(torch.cat([part.x for part in parts]), large.task.x)


def test_losses_and_outputs_in_parts_are_those_of_all() -> None:
    small, large = setup(10), setup(500_000)
    model, task = small.model.eval(), small.task
    assert value_at_rest(large, model, task) == pytest.approx(value_at_rest(small, model, task), rel=1e-5)
    outputs = [outputs_at_rest(one, model, task) for one in (small, large)]
    assert torch.allclose(*outputs, rtol=1e-5, atol=1e-6)


def test_statistics_of_batch_normalisation_come_from_all_parts_and_are_kept() -> None:
    small, large = (Case(setup(numbers)) for numbers in (10, 500_000))
    given = small.model[0](small.task.x)  # type: ignore[index]
    for case in (small, large, Case(large.setup)):
        assert torch.allclose(case.model[1].running_mean, given.mean(0), atol=1e-5)  # type: ignore[index]
        assert torch.allclose(case.model[1].running_var, given.var(0), rtol=0.1)  # type: ignore[index]


def test_fewer_samples_are_looked_at_where_passes_take_long() -> None:
    assert seen_in_a_pass(setup(10), 512) == 512
    assert seen_in_a_pass(setup(10, 10**8), 512) == 100
    assert seen_in_a_pass(setup(10, 10**10), 512) == 64
    assert len(divide(setup(10, 10**10)).held_out.x) == 60  # a fifth


def test_work_counts_what_layers_return() -> None:
    made = make_setup(
        nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)), torch.randn(20, 4), torch.randn(20, 1)
    )
    assert work_of(made).numbers == 8 + 8 + 1


SCRIPT = """
import torch
import foretrain as ft
from bench.doctor.cost import Language, Patient, text
from bench.peer_side.memory import peak_increase

def language(vocabulary):
    return Patient("", lambda: Language(vocabulary, 64, 2, 2, 64), lambda: text(128, vocabulary), 8)

language(50).diagnose()  # imports everything
patient = language(20_000)
print(peak_increase(patient.step), peak_increase(patient.diagnose))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells the peak of a call")
def test_a_language_model_is_examined_in_twice_the_memory_of_a_step() -> None:
    """Logits of all samples together would take thirty times as much."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=True
    )
    step, whole = map(int, done.stdout.split())
    assert whole < 2 * step
