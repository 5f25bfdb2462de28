"""Where the layers lie among the phases of their activation."""

from __future__ import annotations

from foretrain.report.page.patient import Patient
from foretrain.report.page.plots.phases import phase_plot
from foretrain.report.page.section import Section
from foretrain.support.errors import ForetrainError


def phases(patient: Patient) -> Section | None:
    """The phase diagram; None for a network without a chain of layers, or whose activation has no phases."""
    from foretrain.doctor.chain import chain_of
    from foretrain.doctor.setup import Case

    try:
        chain = chain_of(Case(patient.diagnosis.setup))
        plot = phase_plot(chain, patient.data("initialisation", "C_W_wanted", "C_b_wanted"))
    except (
        ForetrainError
    ):  # no chain, or an activation that jumps: the section is about something that is not there
        return None
    lead = (
        "Away from the edge between the phases, signals and gradients grow or shrink by a factor with every layer; "
        "a deep network should lie on the edge, at the critical point."
    )
    return Section("phases", "Phase diagram", lead, [plot])
