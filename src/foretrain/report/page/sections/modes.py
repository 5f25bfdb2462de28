"""The modes of the target: what they look like, and how fast descent learns each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from foretrain.report.page.numbers import number
from foretrain.report.page.patient import Patient
from foretrain.report.page.plots.plot import Plot, axis
from foretrain.report.page.plots.series import line
from foretrain.report.page.plots.tiles import as_matrices, tiled
from foretrain.report.page.section import Part, Section
from foretrain.report.page.table import Table

if TYPE_CHECKING:
    import xarray

_MOST_CURVES = 5
_ACROSS = 5  # pictures in a row


def modes(patient: Patient) -> Section | None:
    """What is left of every mode over the steps, its half-time, and the modes as pictures."""
    data = patient.data("modes", "share", "half_time", "left")
    if data is None:
        return None
    parts: list[Part] = [_half_times(data), _left(data)]
    if "picture" in data:
        parts.append(_pictures(data))
    lead = (
        "The target taken apart into modes; each is learned at its own speed, if the kernel stays as it is."
    )
    return Section("modes", "Modes of the target", lead, parts)


def _names(data: xarray.Dataset) -> list[str]:
    return [f"mode {mode}" for mode in data["mode"].values]


def _half_times(data: xarray.Dataset) -> Table:
    told = "left_after" in data
    budgets = data["budget"].values.tolist() if told else []
    after = data["left_after"].values if told else np.empty((data.sizes["mode"], 0))
    rows = [
        (name, f"{100 * share:.1f} %", half, *(f"{100 * value:.3g} %" for value in left))
        for name, share, half, left in zip(
            _names(data), data["share"].values, data["half_time"].values.tolist(), after, strict=True
        )
    ]
    heads = [f"Left after {number(budget)} steps" for budget in budgets]
    return Table(
        "How fast every mode is learned", ("Mode", "Share of the target", "Half-time in steps", *heads), rows
    )


def _left(data: xarray.Dataset) -> Plot:
    steps, left, names = data["step"].values, data["left"].values, _names(data)
    half = data["half_time"].values
    order = np.argsort(half, kind="stable")
    known = [place for place in order if np.isfinite(half[place])]
    if known:
        others = f", {names[known[-1]]} after {number(half[known[-1]])}" if len(known) > 1 else ""
        told = f"{names[known[0]].capitalize()} is half learned after {number(half[known[0]])} steps{others}."
    else:
        told = f"No mode is half learned within {number(steps[-1])} steps."
    unreached = len(half) - len(known)
    told += (
        f" {unreached} of {len(half)} modes are out of reach of this kernel." if known and unreached else ""
    )
    shown = min(_MOST_CURVES, len(names))
    return Plot(
        "left",
        "What is left of each mode",
        told + (f" Drawn: the {shown} largest." if shown < len(names) else ""),
        [line(names[i], steps, left[i], place=i, hovertemplate="%{y:.3g}") for i in range(shown)],
        {"xaxis": axis("step", "log"), "yaxis": axis("share left"), "hovermode": "x unified"},
        Table(
            "Share left of each mode",
            ("Step", *names),
            [(s, *row) for s, row in zip(steps.tolist(), left.T.tolist())],
        ),
        {"xaxis": "Logarithmic steps"},
        wide=True,
    )


def _pictures(data: xarray.Dataset) -> Plot:
    names, picture = _names(data), data["picture"]
    timed = "time" in picture.dims
    picture = picture.transpose("mode", ..., "time") if timed else picture.transpose("mode", ...)
    matrices = as_matrices(picture.values)
    flat = timed or matrices.shape[1] == 1  # one below another, so that times or features stand in line
    trace, labels, (rows, columns) = tiled(
        matrices, names, "relative weight", 1 if flat else min(_ACROSS, len(names))
    )
    hidden = {"visible": False, "showgrid": False, "zeroline": False}
    axes = [str(dimension) for dimension in picture.dims[1:]]
    folded = picture.ndim == 2 and matrices.shape[1] > 1
    shape = (
        f"{picture.shape[1]} features, folded into rows of {matrices.shape[2]}"
        if folded
        else " × ".join(axes)
    )
    largest = [f"{name} at {_place(one, axes)}" for name, one in zip(names, picture.values, strict=True)]
    return Plot(
        "pictures",
        "Modes as pictures",
        f"Each mode as {picture.attrs.get('picture_of', 'it is')} ({shape}), relative to its largest entry. Largest: "
        f"{'; '.join(largest[:3])}.",
        [trace],
        {
            "xaxis": hidden | ({"visible": True, "title": {"text": axes[-1]}} if flat else {}),
            "yaxis": hidden | {"autorange": "reversed"} | ({} if flat else {"scaleanchor": "x"}),
            "annotations": labels,
            "margin": {"l": 8, "r": 8, "t": 24, "b": 44 if flat else 8},
            **({} if flat else {"meta": {"aspect": rows / columns}}),
        },
        Table(
            "Where each mode is largest",
            ("Mode", "Share of the target", "Largest at"),
            [
                (n, s, _place(one, axes))
                for n, s, one in zip(names, data["share"].values.tolist(), picture.values)
            ],
        ),
        height=80 + 90 * len(names) if flat else 420,
        wide=True,
    )


def _place(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]], axes: list[str]) -> str:
    place = np.unravel_index(int(np.abs(values).argmax()), values.shape)
    return ", ".join(f"{name} {index}" for name, index in zip(axes, place, strict=True))
