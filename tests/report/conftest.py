"""Networks on a page: two that were really examined, and one made up to be awkward."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

from foretrain.doctor.diagnosis import Diagnosis
from foretrain.doctor.examine import doctor
from foretrain.doctor.finding import Examination, Finding, Severity
from foretrain.doctor.learning_curve import learning_curve
from foretrain.doctor.setup import Case
from foretrain.report.page import Patient, write_page
from foretrain.training.tasks.memory_pro import MemoryPro, Recurrent

NASTY = "<script>alert('x')</script> & \"quotes\" </title>"


def small_weights(checks: Sequence[str] | None = None) -> Diagnosis:
    """A deep network whose weights are too small, on a task with classes."""
    torch.manual_seed(0)
    layers = [part for _ in range(7) for part in (nn.Linear(12, 12), nn.ReLU())]
    network = nn.Sequential(*layers, nn.Linear(12, 3))
    x = torch.randn(48, 12)
    return doctor(network, x, x[:, :3].argmax(1), optimizer=0.05, checks=checks)


def remembering() -> Diagnosis:
    """A recurrent network that answers in the response period only."""
    task = MemoryPro(stimulus=3, memory=3, response=4)
    angles = task.angles(8)
    network = Recurrent(3, 8, 3, "gru", seed=0)
    return doctor(network, task.inputs(angles), task.targets(angles), loss="mse", optimizer=0.1)


def awkward(like: Diagnosis) -> Diagnosis:
    """Nothing measured, everything that users write full of markup."""
    nasty = Finding(Severity.CRITICAL, NASTY, NASTY, NASTY, NASTY, NASTY, where=(NASTY,))
    return Diagnosis(like.setup, {"gains": Examination((nasty,)), "states": Examination(skipped=NASTY)})


@pytest.fixture(scope="session")
def patients() -> list[Patient]:
    first, second = small_weights(), remembering()
    return [
        Patient("A deep ReLU network", first, first.verify(20), learning_curve(Case(first.setup), 20)),
        Patient("A GRU with memory", second),
        Patient(NASTY, awkward(second)),
    ]


@pytest.fixture(scope="session")
def small_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With every kind of control, but few plots: it is loaded often."""
    few = small_weights(["inputs", "initialisation", "dead_units", "outcome"])
    curve = learning_curve(Case(few.setup), 20)
    path = tmp_path_factory.mktemp("page") / "small.html"
    patients = [Patient("A deep ReLU network", few, few.verify(20), curve), Patient(NASTY, awkward(few))]
    write_page(path, patients, "Two networks")
    return path


@pytest.fixture(scope="session")
def page_file(patients: list[Patient], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(path, patients, "Three networks")
    return path


@pytest.fixture(scope="session")
def single_page(patients: list[Patient], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As a user gets it: one network, whose name is the title."""
    path = tmp_path_factory.mktemp("page") / "single.html"
    write_page(path, patients[:1])
    return path
