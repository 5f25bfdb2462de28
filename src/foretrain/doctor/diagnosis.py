"""All that was found about a network, and the treatment that follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foretrain.doctor.finding import Examination, Finding, Severity
from foretrain.doctor.setup import Setup

if TYPE_CHECKING:
    from foretrain.doctor.treatment import Plan
    from foretrain.doctor.verification import Verification


@dataclass(frozen=True, eq=False, repr=False)
class Diagnosis:
    """Findings from the worst on; ``examinations`` holds them by check, with the measurements behind them."""

    setup: Setup
    examinations: Mapping[str, Examination]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Sorted by severity; causes before consequences."""
        told = [finding for one in self.examinations.values() for finding in one.findings]
        return tuple(sorted(told, key=lambda finding: finding.severity))

    @property
    def healthy(self) -> bool:
        """Whether nothing critical and no warning was found."""
        return all(finding.severity > Severity.WARNING for finding in self.findings)

    def plan(self) -> Plan:
        """The treatments in their order, each found on what the earlier ones have made of the network."""
        from foretrain.doctor.treatment import make_plan

        return make_plan(self)

    def verify(self, steps: int = 200) -> Verification:
        """Train the network as given and as treated for some steps, with the same batches."""
        from foretrain.doctor.verification import verify

        return verify(self.plan(), steps)

    def __repr__(self) -> str:
        from foretrain.doctor.presentation import told

        return told(self)
