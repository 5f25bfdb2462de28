"""The two built-in networks as patients of the page: examined, and trained with and without the advice."""

from __future__ import annotations

from foretrain.report.page.patient import Patient
from foretrain.support.progress import track
from foretrain.support.seeds import Seed

_SECONDS = 20.0  # of one verification at most, so that the whole takes less than two minutes


def example_patients(steps: int, seed: Seed = 0) -> list[Patient]:
    """Diagnosis, learning curve and verification of each; without training for 0 steps."""
    from foretrain.doctor.entry import diagnose
    from foretrain.doctor.examples import examples

    return [
        Patient.trained(name, diagnose(setup), steps, seconds=_SECONDS)
        for name, setup in track(examples(seed), "built-in networks")
    ]
