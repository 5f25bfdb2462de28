"""All that was found about a network, and the treatment that follows from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from foretrain.doctor.checks import CHECKS
from foretrain.doctor.finding import Examination, Finding, Severity
from foretrain.doctor.setup import Setup

if TYPE_CHECKING:
    import xarray

    from foretrain.doctor.treatment import Plan
    from foretrain.doctor.verification import Verification


@dataclass(frozen=True, eq=False, repr=False)
class Diagnosis:
    """Findings from the worst on; ``examinations`` holds them by check, with the measurements behind them."""

    setup: Setup
    examinations: Mapping[str, Examination]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Sorted by severity; among equals, causes before consequences."""
        return tuple(finding for _, finding in self.by_severity())

    def by_severity(self) -> tuple[tuple[str, Finding], ...]:
        """The same, each with the name of its check."""
        told = [
            (check.name, finding)
            for check in CHECKS
            if check.name in self.examinations
            for finding in self.examinations[check.name].findings
        ]
        return tuple(sorted(told, key=lambda pair: pair[1].severity))

    @property
    def healthy(self) -> bool:
        """Whether nothing critical and no warning was found."""
        return not any(True for _ in self.complaints())

    def complaints(self) -> Iterator[tuple[str, Finding]]:
        """What is critical or a warning, with the name of its check."""
        return (pair for pair in self.by_severity() if pair[1].severity <= Severity.WARNING)

    @property
    def headline(self) -> str:
        """One sentence: how many findings, and the worst."""
        from foretrain.doctor.presentation.text import headline

        return headline(self)

    def cause_of(self, check: str, finding: Finding) -> str | None:
        """The check whose treatment probably also heals this finding; None if it stands for itself.

        Once ``plan()`` has been asked, what it found on the treated network decides. Before, every complaint is
        taken for a consequence of the first treatable one of an earlier check that is at least as severe.
        """
        if finding.severity > Severity.WARNING:
            return None
        if "_plan" in self.__dict__:
            steps = self._plan.steps
            alone = not steps or steps[0].check == check or check in {step.check for step in steps}
            return None if alone or self._plan.persists(check) else steps[0].check
        for other, earlier in self.complaints():
            before = _place(other) < _place(check) and earlier.severity <= finding.severity
            if before and earlier.treatment is not None:
                return other
        return None

    @cached_property
    def _plan(self) -> Plan:
        from foretrain.doctor.treatment import make_plan

        return make_plan(self)

    def plan(self) -> Plan:
        """The treatments in their order, each found on what the earlier ones have made of the network."""
        return self._plan

    def verify(self, steps: int = 200, *, seconds: float = 60.0) -> Verification:
        """Train the network as given and as treated for some steps (or so many seconds), with the same batches."""
        from foretrain.doctor.verification import verify

        return verify(self.plan(), steps, seconds=seconds)

    def to_dict(self) -> dict[str, Any]:
        """All findings for machines: texts and numbers only; a number that is not finite becomes None."""
        from foretrain.doctor.presentation.records import as_record

        return as_record(self)

    def to_dataset(self) -> xarray.Dataset:
        """All measurements in one dataset; names and axes have the check in front, as in "inputs.scale"."""
        from foretrain.doctor.presentation.records import as_dataset

        return as_dataset(self)

    def __repr__(self) -> str:
        from foretrain.doctor.presentation.text import told

        return told(self)


def _place(name: str) -> int:
    return next(place for place, check in enumerate(CHECKS) if check.name == name)
