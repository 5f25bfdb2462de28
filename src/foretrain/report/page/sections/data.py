"""Inputs feature by feature, and what it costs that they are uneven."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from foretrain.report.page.numbers import number
from foretrain.report.page.patient import Patient
from foretrain.report.page.plots.curves import loss_curves, scale_for
from foretrain.report.page.plots.plot import Plot, axis, counting_axis
from foretrain.report.page.plots.series import points
from foretrain.report.page.section import Part, Section
from foretrain.report.page.table import Table

if TYPE_CHECKING:
    import xarray


def data(patient: Patient) -> Section | None:
    """Mean and deviation of every feature; short trainings where it was tried what evening them out brings."""
    found = patient.data("inputs", "mean", "deviation")
    if found is None:
        return None
    parts: list[Part] = [_features(found)]
    if "loss" in found:
        labels = [str(label) for label in found["data"].values]
        last = [
            f"{label}: {number(values[-1])}"
            for label, values in zip(labels, found["loss"].values, strict=True)
        ]
        caption = f"Short real trainings, each at the rate that suits it. Loss at the end: {'; '.join(last)}."
        parts.append(
            loss_curves(
                "trials",
                "What evening out brings",
                caption,
                labels,
                found["step"].values,
                found["loss"].values,
            )
        )
    lead = (
        "Features on very different scales, or far from zero, make some directions of learning much slower."
    )
    return Section("data", "Inputs", lead, parts)


def _features(found: xarray.Dataset) -> Plot:
    features, mean, deviation = (found[key].values for key in ("feature", "mean", "deviation"))
    varying = deviation[deviation > 0]
    spread = (
        f"Deviations go from {number(varying.min())} to {number(varying.max())}"
        if len(varying)
        else "Nothing varies"
    )
    constant = int(found["constant"].sum()) if "constant" in found else 0
    told = (
        f"; {constant} of {len(features)} features are constant"
        if constant
        else f" over {len(features)} features"
    )
    return Plot(
        "features",
        "Size of every feature",
        f"{spread}{told}. The largest mean is {number(np.abs(mean).max())}.",
        [
            points("deviation", features, np.where(deviation > 0, deviation, np.nan), place=0),
            points("size of the mean", features, np.where(mean != 0, np.abs(mean), np.nan), place=1),
        ],
        {
            "xaxis": counting_axis("feature", len(features)),
            "yaxis": axis("in units of x", scale_for(deviation)),
        },
        Table(
            "Features",
            ("Feature", "Mean", "Deviation"),
            list(zip(features.tolist(), mean.tolist(), deviation.tolist(), strict=True)),
        ),
        {"yaxis": "Logarithmic size"},
    )
