"""Real trainings of many kinds: healthy ones raise no complaint, planted faults are told by their names."""

from __future__ import annotations

import numpy as np
import pytest
from tests.doctor.training_log.record_trainings import EXPECTED, PLACE

import foretrain as ft
from foretrain.doctor import Severity

LOGS: dict[str, dict[str, np.ndarray]] = {}
with np.load(PLACE, allow_pickle=False) as arrays:
    for key in arrays.files:
        name, _, column = key.partition("|")
        LOGS.setdefault(name, {})[column] = arrays[key].astype(float)
HEALTHY = [name for name in LOGS if name.startswith("healthy")]
# It really waits near a loss of 1.85 for a third of its run, before it learns in a sixth of it.
WAITS = "healthy attention, Adam"


def reading(name: str, *, baseline: bool = True) -> ft.doctor.training_log.TrainingLog:
    log = LOGS[name]
    validation = (log["validation step"], log["validation loss"]) if "validation loss" in log else None
    return ft.read_log(
        log["loss"],
        log["lr"],
        steps=log["step"],
        gradient_norms=log["grad_norm"],
        epochs=log.get("epoch"),
        validation=validation,
        baseline=float(log["baseline"]) if baseline and "baseline" in log else None,
    )


def test_every_fault_was_recorded() -> None:
    assert set(LOGS) == {*HEALTHY, *EXPECTED}
    assert len(HEALTHY) >= 20
    assert len(EXPECTED) >= 25


@pytest.mark.slow(after=6)
@pytest.mark.parametrize("name", [name for name in HEALTHY if name != WAITS])
@pytest.mark.parametrize("baseline", [True, False])
def test_healthy_trainings_raise_no_complaint(name: str, baseline: bool) -> None:
    log = reading(name, baseline=baseline)
    assert log.healthy, log.headline
    assert set(log.by_name) <= {"end", "noise"}


def test_a_wait_is_told_of_a_training_that_learns_in_the_end() -> None:
    assert {name for name, one in reading(WAITS).by_name.items() if one.severity <= Severity.WARNING} == {
        "plateau"
    }


@pytest.mark.slow(after=6)
@pytest.mark.parametrize("name", EXPECTED)
def test_planted_faults_are_told(name: str) -> None:
    log = reading(name)
    told = set(EXPECTED[name]) & set(log.by_name)
    assert told, f"{name}: {log.headline}"
    # An "end" is found in every log that falls: only a complaint about it counts.
    assert told != {"end"} or log.by_name["end"].severity is Severity.WARNING
