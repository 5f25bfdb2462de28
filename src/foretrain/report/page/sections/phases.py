"""Where the layers lie among the phases of their activation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foretrain.doctor.finding import Severity
from foretrain.report.page.patient import Patient
from foretrain.report.page.plots.phases import phase_plot
from foretrain.report.page.section import Section
from foretrain.support.errors import ForetrainError

if TYPE_CHECKING:
    import xarray


def phases(patient: Patient) -> Section | None:
    """The phase diagram; None for a network without a chain of layers, or whose activation has no phases."""
    from foretrain.doctor.mlp.chain import chain_of
    from foretrain.doctor.setup import Case

    try:
        chain = chain_of(Case(patient.diagnosis.setup))
        plot = phase_plot(chain, _advised(patient))
    except ForetrainError:  # no chain, or an activation that jumps: there are no phases to show
        return None
    lead = (
        "Away from the edge between the phases, signals and gradients grow or shrink by a factor with every layer; "
        "a deep network should lie on the edge, at the critical point."
    )
    return Section("phases", "Phase diagram", lead, [plot])


def _advised(patient: Patient) -> xarray.Dataset | None:
    """Where the layers should lie; None where nobody advises to move them."""
    found = patient.diagnosis.examinations.get("initialisation")
    if found is None or all(finding.severity > Severity.WARNING for finding in found.findings):
        return None
    return patient.data("initialisation", "C_W_wanted", "C_b_wanted")
