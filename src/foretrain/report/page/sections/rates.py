"""The learning rate against the edge of stability, with short real trainings."""

from __future__ import annotations

import numpy as np

from foretrain.report.page.numbers import number
from foretrain.report.page.patient import Patient
from foretrain.report.page.plots.curves import loss_curves
from foretrain.report.page.section import Section
from foretrain.report.page.sections.overview import tiles

_PRODUCT = "rate_times_curvature"


def rates(patient: Patient) -> Section | None:
    """The rate that is used, the largest stable one, and short trainings at some rates."""
    found = patient.data("learning_rate", "loss", "given", "largest_rate", "recommended", _PRODUCT, "limit")
    if found is None:
        return None
    labels = [f"rate {number(rate)}" for rate in found["rate"].values]
    last = [f"{label}: {number(row[-1])}" for label, row in zip(labels, found["loss"].values, strict=True)]
    caption = f"Short real trainings from the same weights. Loss at the end: {'; '.join(last)}."
    plot = loss_curves(
        "rates", "Short trainings", caption, labels, found["step"].values, found["loss"].values
    )
    told = {
        "Rate in use": number(found["given"]),
        "Largest stable rate": number(found["largest_rate"]),
        "Recommended": number(found["recommended"]),
    }
    if np.isfinite(float(found[_PRODUCT])):
        told["Rate × curvature"] = f"{number(found[_PRODUCT])} of at most {number(found['limit'])}"
    lead = "Above the largest stable rate the steepest direction grows with every step instead of shrinking."
    return Section("rate", "Learning rate", lead, [tiles(told), plot])
