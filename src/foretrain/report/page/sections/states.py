"""Recurrent networks over time: what the states hold, where descent can change them, and the target's modes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from foretrain.report.page.numbers import number
from foretrain.report.page.patient import Patient
from foretrain.report.page.plots.heatmap import heatmap
from foretrain.report.page.plots.plot import Plot, axis
from foretrain.report.page.plots.series import bars, line
from foretrain.report.page.section import Section
from foretrain.report.page.table import Table

if TYPE_CHECKING:
    import xarray

_COURSES = {
    "target_energy": "where the target lives",
    "held": "what the states hold of it",
    "reach": "reach of its gradients",
    "changed_states": "change of the states by descent",
}


def states(patient: Patient) -> Section | None:
    """Courses over the sequence, the temporal kernel with its spectrum, and the modes of the target."""
    data = patient.data("states")
    if data is None:
        return None
    drawn = (_courses(data), _kernel(data), _spectrum(data), _modes(data))
    plots = [plot for plot in drawn if plot is not None]
    if not plots:
        return None
    lead = "What must be remembered has to last until it is asked for, and descent has to reach back to it."
    return Section("states", "States over time", lead, plots)


def _courses(data: xarray.Dataset) -> Plot | None:
    names = [name for name in _COURSES if name in data and data[name].dims == ("step",)]
    if not names:
        return None
    steps = data["step"].values
    relative = [data[name].values / max(float(data[name].max()), 1e-300) for name in names]
    told = []
    if "retention" in data.attrs:
        told.append(
            f"When the target is asked for, the states still tell {number(100 * data.attrs['retention'])} % of what "
            f"they knew about it at step {number(data.attrs['best'])}."
        )
    told.append("Each curve is drawn relative to its largest value.")
    return Plot(
        "courses",
        "Memory of the target",
        " ".join(told),
        [
            line(_COURSES[n], steps, y, place=i, hovertemplate="%{y:.3g}")
            for i, (n, y) in enumerate(zip(names, relative))
        ],
        {
            "xaxis": axis("step of the sequence"),
            "yaxis": axis("relative to the largest"),
            "hovermode": "x unified",
        },
        Table(
            "Courses, each relative to its largest value",
            ("Step", *(_COURSES[name] for name in names)),
            [(int(step), *row) for step, row in zip(steps, np.stack(relative, 1).tolist(), strict=True)],
        ),
        {"yaxis": "Logarithmic size"},
        wide=True,
    )


def _kernel(data: xarray.Dataset) -> Plot | None:
    if "temporal_gram" not in data:
        return None
    gram = data["temporal_gram"].values
    steps = np.arange(len(gram))
    diagonal = np.diagonal(gram)
    place = int(np.argmax(diagonal))
    return Plot(
        "kernel",
        "Temporal kernel of the states",
        f"How a change at one step goes with changes at another. States change most at step {place}, least at step "
        f"{int(np.argmin(diagonal))}, by a factor of {number(diagonal.max() / max(diagonal.min(), 1e-300))}.",
        [heatmap(steps, steps, gram, "kernel", "steps %{x} and %{y}: %{z:.3g}")],
        {
            "xaxis": axis("step"),
            "yaxis": axis("step", autorange="reversed"),
            "margin": {"l": 50, "r": 14, "t": 12, "b": 44},
        },
        Table(
            "Diagonal of the temporal kernel",
            ("Step", "Kernel"),
            list(zip(steps.tolist(), diagonal.tolist(), strict=True)),
        ),
    )


def _spectrum(data: xarray.Dataset) -> Plot | None:
    if "temporal_share" not in data:
        return None
    shares = data["temporal_share"].values
    ranks = np.arange(1, len(shares) + 1)
    effective = data.attrs.get("temporal_rank")
    told = f" The effective rank over time is {number(effective)}." if effective is not None else ""
    return Plot(
        "spectrum",
        "Temporal spectrum",
        f"The first eigenmode carries {number(100 * shares[0])} % of the kernel over time, the first three "
        f"{number(100 * shares[:3].sum())} %.{told}",
        [bars("share", ranks, shares, hovertemplate="eigenmode %{x}: %{y:.3g}<extra></extra>")],
        {"xaxis": axis("temporal eigenmode"), "yaxis": axis("share of the trace", "log")},
        Table(
            "Temporal spectrum",
            ("Eigenmode", "Share"),
            list(zip(ranks.tolist(), shares.tolist(), strict=True)),
        ),
        {"yaxis": "Logarithmic share"},
    )


def _modes(data: xarray.Dataset) -> Plot | None:
    if "mode_course" not in data:
        return None
    courses = data["mode_course"].values
    names = [f"mode {i + 1}" for i in range(len(courses))]
    half = data["half_time"].values if "half_time" in data else np.full(len(courses), np.nan)
    known = [f"{name} in {number(value)} steps" for name, value in zip(names, half) if np.isfinite(value)]
    told = f" Halved by descent at the given rate: {'; '.join(known)}." if known else ""
    return Plot(
        "modes",
        "Modes of the target in time",
        f"Where each mode lives over {courses.shape[1]} steps.{told}",
        [heatmap(data["step"].values, names, courses, "weight", "%{y}, step %{x}: %{z:.3g}")],
        {"xaxis": axis("step"), "yaxis": axis("", "category", autorange="reversed")},
        Table(
            "Modes of the target",
            ("Mode", "Half-time in steps"),
            list(zip(names, half.tolist(), strict=True)),
        ),
        height=max(240, 90 + 34 * len(courses)),
    )
