"""``make demo``: the page of two built-in networks, and its headline numbers.

Run as ``python -m foretrain.report.demo FILE.html``; an earlier file of that name is replaced.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from foretrain.report.page import Patient, write_page
from foretrain.support.errors import ForetrainError, NotSupportedError
from foretrain.support.progress import track
from foretrain.support.seeds import Seed

if TYPE_CHECKING:
    from foretrain.doctor.learning_curve import LearningCurve
    from foretrain.doctor.setup import Setup

_STEPS = 200
_SECONDS = 20.0  # of one verification at most, so that the whole takes less than two minutes


def write_demo(path: str | Path, *, steps: int = _STEPS, seed: Seed = 0) -> list[Patient]:
    """Examine the built-in networks, train them with and without the advice, and write their page."""
    from foretrain.doctor.entry import diagnose
    from foretrain.doctor.examples import examples

    patients = list[Patient]()
    for name, setup in track(examples(seed), "built-in networks"):
        found = diagnose(setup)
        patients.append(Patient(name, found, found.verify(steps, seconds=_SECONDS), _curve(setup, steps)))
    write_page(path, patients, "Two built-in networks", overwrite=True)
    return patients


def _curve(setup: Setup, steps: int) -> LearningCurve | None:
    """The predicted learning curve; None for a model that cannot be linearised."""
    from foretrain.doctor.learning_curve import learning_curve
    from foretrain.doctor.setup import Case

    try:
        return learning_curve(Case(setup), steps)
    except NotSupportedError:
        return None


def main(arguments: Sequence[str]) -> int:
    """Write the page to the one file that is named, and say what was found."""
    if len(arguments) != 1:
        print("foretrain: give the name of one file, such as demo/report.html.", file=sys.stderr)
        return 2
    path = Path(arguments[0])
    try:
        patients = write_demo(path)
    except ForetrainError as error:
        print(f"foretrain: {error}", file=sys.stderr)
        return 2
    for patient in patients:
        print(f"{patient.name}\n  {patient.diagnosis.headline}")
        if patient.verification is not None:
            print(f"  Training: {patient.verification.verdict}")
    print(f"Open in a browser: {path.resolve()} ({path.stat().st_size / 1e6:.1f} MB, needs no network)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
