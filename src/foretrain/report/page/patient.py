"""A network on the page: its name, its diagnosis, and what was seen when it was trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foretrain.support.errors import NotSupportedError
from foretrain.support.progress import track
from foretrain.support.seeds import Seed

if TYPE_CHECKING:
    import xarray

    from foretrain.doctor.diagnosis import Diagnosis
    from foretrain.doctor.learning_curve import LearningCurve
    from foretrain.doctor.verification import Verification

_SECONDS = 20.0  # of one verification of a built-in network at most, so that both take less than two minutes


@dataclass(frozen=True, eq=False)
class Patient:
    """A network on the page. Sections whose data are missing are left out."""

    name: str
    diagnosis: Diagnosis
    verification: Verification | None = None
    curve: LearningCurve | None = None

    @classmethod
    def trained(cls, name: str, diagnosis: Diagnosis, steps: int, seconds: float = 60.0) -> Patient:
        """With its predicted and real learning curve and its verification; without them for 0 steps."""
        from foretrain.doctor.learning_curve import learning_curve
        from foretrain.doctor.setup import Case

        if not steps:
            return cls(name, diagnosis)
        try:
            curve = learning_curve(Case(diagnosis.setup), steps)
        except NotSupportedError:  # the page has no prediction for a model that cannot be linearised
            curve = None
        return cls(name, diagnosis, diagnosis.verify(steps, seconds=seconds), curve)

    def data(self, check: str, *needed: str) -> xarray.Dataset | None:
        """The measurements of a check, if it was carried out and has those that are needed."""
        found = self.measurements.get(check)
        return found if found is not None and all(name in found for name in needed) else None

    @property
    def measurements(self) -> Mapping[str, xarray.Dataset]:
        """All measurements, by check."""
        found = {name: one.data for name, one in self.diagnosis.examinations.items()}
        return {name: data for name, data in found.items() if data is not None}


def example_patients(steps: int, seed: Seed = 0) -> list[Patient]:
    """The two built-in networks: diagnosis, learning curve and verification; without training for 0 steps."""
    from foretrain.doctor.examine import diagnose
    from foretrain.doctor.examples import examples

    return [
        Patient.trained(name, diagnose(setup), steps, seconds=_SECONDS)
        for name, setup in track(examples(seed), "built-in networks")
    ]
