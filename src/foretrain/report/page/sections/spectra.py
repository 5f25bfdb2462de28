"""The tangent kernel of the outputs: its eigenvalues, where the error lies among them, and how it will shrink."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from foretrain.report.page.numbers import number
from foretrain.report.page.patient import Patient
from foretrain.report.page.plots.plot import Plot, axis
from foretrain.report.page.plots.series import line, points
from foretrain.report.page.section import Part, Section
from foretrain.report.page.sections.overview import tiles
from foretrain.report.page.table import Table

if TYPE_CHECKING:
    import xarray

_NEGLIGIBLE = 1e-12  # of the largest eigenvalue: rounding errors


def spectra(patient: Patient) -> Section | None:
    """Eigenvalues with the error's energy in them, and the forecast of descent if the kernel stays as it is."""
    data = patient.data("conditioning", "eigenvalue", "energy")
    if data is None:
        return None
    parts: list[Part] = [*_numbers(data), _eigenvalues(data), _energies(data)]
    if "left" in data and "step" in data.coords:
        parts.append(_left(data))
    lead = (
        "Descent learns every eigenmode at the speed of its eigenvalue; error in small ones stays for long."
    )
    return Section("spectra", "Spectrum of the tangent kernel", lead, parts)


def _numbers(data: xarray.Dataset) -> list[Part]:
    words = {
        "effective_rank": "Effective rank",
        "condition_number": "Condition number",
        "top_share": "Share of the largest",
        "half_steps": "Steps to half the error",
    }
    told = {text: number(data[name]) for name, text in words.items() if name in data}
    return [tiles(told)] if told else []


def _eigenvalues(data: xarray.Dataset) -> Plot:
    modes, values = data["mode"].values, data["eigenvalue"].values
    seen = np.where(values > _NEGLIGIBLE * values.max(), values, np.nan)
    count = int(np.isfinite(seen).sum())
    return Plot(
        "eigenvalues",
        "Eigenvalues",
        f"{count} of {len(values)} eigenvalues are above rounding, from {number(np.nanmax(seen))} to "
        f"{number(np.nanmin(seen))} per step.",
        [
            line(
                "eigenvalue",
                modes,
                seen,
                markers=len(modes) <= 60,
                hovertemplate="mode %{x}: %{y:.3g}<extra></extra>",
            )
        ],
        {"xaxis": axis("eigenmode"), "yaxis": axis("eigenvalue (1/step)", "log")},
        Table(
            "Eigenvalues and the error's energy",
            ("Mode", "Eigenvalue", "Share of the error"),
            list(zip(modes.tolist(), values.tolist(), data["energy"].values.tolist(), strict=True)),
        ),
        {"yaxis": "Logarithmic eigenvalues", "xaxis": "Logarithmic modes"},
    )


def _energies(data: xarray.Dataset) -> Plot:
    values, energy = data["eigenvalue"].values, data["energy"].values
    reached = np.cumsum(energy)
    half = int(np.searchsorted(reached, 0.5 * reached[-1])) + 1
    modes = data["mode"].values
    return Plot(
        "energy",
        "Where the error lies",
        f"Half of the error's energy lies in the {number(half)} fastest of {len(values)} modes.",
        [
            points(
                "in this mode", modes, np.where(energy > 0, energy, np.nan), place=1, hovertemplate="%{y:.3g}"
            ),
            line("in all modes up to this one", modes, reached, place=0, hovertemplate="%{y:.3g}"),
        ],
        {"xaxis": axis("eigenmode"), "yaxis": axis("share of the error", "log"), "hovermode": "x unified"},
        Table(
            "The error's energy, mode by mode",
            ("Mode", "Share", "Up to this mode"),
            list(zip(modes.tolist(), energy.tolist(), reached.tolist(), strict=True)),
        ),
        {"yaxis": "Logarithmic share", "xaxis": "Logarithmic modes"},
    )


def _left(data: xarray.Dataset) -> Plot:
    steps, left = data["step"].values, data["left"].values
    told = [
        f"{word} is gone after {number(float(data[name]))} steps"
        for name, word in (("half_steps", "half of it"), ("ninety_steps", "nine tenths"))
        if name in data and np.isfinite(float(data[name]))
    ]
    never = f"after {number(steps[-1])} steps {number(100 * left[-1])} % are left"
    return Plot(
        "left",
        "How the error would shrink",
        f"With this kernel and the recommended rate, {'; '.join([*told, never])}.",
        [line("error left", steps, left, hovertemplate="step %{x:.3g}: %{y:.3g}<extra></extra>")],
        {"xaxis": axis("step", "log"), "yaxis": axis("share of the error", rangemode="tozero")},
        Table(
            "Share of the error's energy",
            ("Step", "Left"),
            list(zip(steps.tolist(), left.tolist(), strict=True)),
        ),
        {"xaxis": "Logarithmic steps", "yaxis": "Logarithmic share"},
        wide=True,
    )
