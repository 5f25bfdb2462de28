"""What the page tells about a network, section by section, in the order of reading."""

from __future__ import annotations

from foretrain.report.page.patient import Patient
from foretrain.report.page.section import Section
from foretrain.report.page.sections.agreement import agreement
from foretrain.report.page.sections.data import data
from foretrain.report.page.sections.findings import checks, findings
from foretrain.report.page.sections.layers import layers
from foretrain.report.page.sections.measurements import measurements
from foretrain.report.page.sections.modes import modes
from foretrain.report.page.sections.phases import phases
from foretrain.report.page.sections.plateau import plateau
from foretrain.report.page.sections.rates import rates
from foretrain.report.page.sections.remedy import remedy
from foretrain.report.page.sections.spectra import spectra
from foretrain.report.page.sections.states import states
from foretrain.report.page.sections.training import training

_ORDER = (
    remedy,
    findings,
    training,
    phases,
    agreement,
    layers,
    spectra,
    modes,
    states,
    plateau,
    rates,
    data,
    checks,
    measurements,
)


def sections_of(patient: Patient) -> tuple[Section, ...]:
    """All sections that have something to tell."""
    told = (section(patient) for section in _ORDER)
    return tuple(section for section in told if section is not None)
