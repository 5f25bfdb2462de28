"""A network on the page: its name, its diagnosis, and what was seen when it was trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import xarray

    from foretrain.doctor.diagnosis import Diagnosis
    from foretrain.doctor.learning_curve import LearningCurve
    from foretrain.doctor.verification import Verification


@dataclass(frozen=True, eq=False)
class Patient:
    """A network on the page. Sections whose data are missing are left out."""

    name: str
    diagnosis: Diagnosis
    verification: Verification | None = None
    curve: LearningCurve | None = None

    def data(self, check: str, *needed: str) -> xarray.Dataset | None:
        """The measurements of a check, if it was carried out and has those that are needed."""
        found = self.measurements.get(check)
        return found if found is not None and all(name in found for name in needed) else None

    @property
    def measurements(self) -> Mapping[str, xarray.Dataset]:
        """All measurements, by check."""
        found = {name: one.data for name, one in self.diagnosis.examinations.items()}
        return {name: data for name, data in found.items() if data is not None}
