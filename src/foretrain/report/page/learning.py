"""Pictures of what descent will learn, and when: spectra, modes of the target, states, plateaus and rates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from foretrain.doctor.finding import counted
from foretrain.report.page.patient import Patient
from foretrain.report.page.signals import COLOURS, DASHES, FEW_FACTOR, add_losses, short_names, three_digits
from foretrain.support.answers import (
    BLUE,
    ORANGE,
    RED,
    Answer,
    Axis,
    Column,
    Facts,
    Figure,
    Part,
    Table,
    log,
    names_axis,
    scale_for,
)
from foretrain.support.answers.formulas import number_text

if TYPE_CHECKING:
    import xarray

_NEGLIGIBLE = 1e-12  # of the largest eigenvalue: rounding errors
_MOST_CURVES = 5
_MANY = 100  # points; more of them are drawn smaller
_ACROSS = 5  # pictures in a row
_SMALL_FOLD = 49  # a list of fewer numbers is not folded into a square
_SPECTRUM = {
    "effective_rank": "Effective rank",
    "condition_number": "Condition number",
    "top_share": "Share of the largest",
    "half_steps": "Steps to half the error",
}
_COURSES = {
    "target_energy": "where the target lives",
    "held": "what the states hold of it",
    "reach": "reach of its gradients",
    "changed_states": "change of the states by descent",
}
_FLOWS = {"given": "as given", "rescaled": "small layers rescaled"}
_RATE = ("loss", "given", "largest_rate", "recommended", "rate_times_curvature", "limit")


def training(patient: Patient) -> Answer | None:
    """The predicted learning curve of the network as given, beside what really happens."""
    return None if patient.curve is None else patient.curve.answer()


def spectra(patient: Patient) -> Answer | None:
    """Eigenvalues with the error's energy in them, and the forecast of descent if the kernel stays as it is."""
    data = patient.data("conditioning", "eigenvalue", "energy")
    if data is None:
        return None
    figure = Figure(columns=2)
    modes, values, energy = (data[key].values for key in ("mode", "eigenvalue", "energy"))
    seen = np.where(values > _NEGLIGIBLE * values.max(), values, np.nan)
    panel = figure.panel(
        "Eigenvalues",
        x="eigenmode",
        y=log("eigenvalue (1/step)"),
        caption=f"{int(np.isfinite(seen).sum())} of {len(values)} eigenvalues are above rounding, from "
        f"{number_text(np.nanmax(seen))} to {number_text(np.nanmin(seen))} per step.",
    )
    panel.curve(modes, seen, "o-" if len(modes) <= _MANY else "-", color=BLUE)
    reached = np.cumsum(energy)
    half = int(np.searchsorted(reached, 0.5 * reached[-1])) + 1
    panel = figure.panel(
        "Where the error lies",
        x="eigenmode",
        y=log("share of the error"),
        caption=f"Half of the error's energy lies in the {number_text(half)} fastest of {len(values)} modes.",
    )
    marker = "s" if len(modes) <= _MANY else "."
    panel.curve(modes, np.where(energy > 0, energy, np.nan), marker, "in this mode", ORANGE)
    panel.curve(modes, reached, "-", "in all modes up to this one", BLUE)
    if "left" in data and "step" in data.coords:
        steps, left = data["step"].values, data["left"].values
        said = [
            f"{words} is gone after {number_text(data[name])} steps"
            for name, words in (("half_steps", "half of it"), ("ninety_steps", "nine tenths"))
            if name in data and np.isfinite(float(data[name]))
        ]
        said.append(f"after {number_text(steps[-1])} steps {number_text(100 * left[-1])} % are left")
        panel = figure.panel(
            "How the error would shrink",
            x=log("step"),
            y=Axis("share of the error", low=0.0),
            caption=f"With this kernel and the recommended rate, {'; '.join(said)}.",
        )
        panel.curve(steps, left, color=BLUE)
    lead = (
        "Descent learns every eigenmode at the speed of its eigenvalue; error in small ones stays for long."
    )
    single = {words: number_text(data[name]) for name, words in _SPECTRUM.items() if name in data}
    parts: list[Part] = [Facts(single)] if single else []
    return Answer(lead, [*parts, figure], title="Spectrum of the tangent kernel")


def modes(patient: Patient) -> Answer | None:
    """What is left of every mode over the steps, its half-time, and the modes as pictures."""
    data = patient.data("modes", "share", "half_time", "left")
    if data is None:
        return None
    columns: list[Column | str] = ["Mode", Column("Share of the target", unit="%"), "Half-time in steps"]
    cells: list[list[Any]] = [_mode_names(data)]
    cells += [three_digits(100 * data["share"].values), three_digits(data["half_time"].values)]
    if "left_after" in data:
        for budget, left in zip(data["budget"].values, data["left_after"].values.T, strict=True):
            columns.append(Column(f"Left after {number_text(budget)} steps", unit="%"))
            cells.append(three_digits(100 * left))
    if "picture" in data:
        columns.append("Largest at")
        cells.append(_largest(data))
    table = Table(columns, list(zip(*cells, strict=True)), "How fast every mode is learned")
    steps, left, half, names = (
        data["step"].values,
        data["left"].values,
        data["half_time"].values,
        _mode_names(data),
    )
    known = [place for place in np.argsort(half, kind="stable") if np.isfinite(half[place])]
    said = f"No mode is half learned within {number_text(steps[-1])} steps."
    if known:
        first, last = known[0], known[-1]
        others = f", {names[last]} after {number_text(half[last])}" if len(known) > 1 else ""
        said = f"{names[first].capitalize()} is half learned after {number_text(half[first])} steps{others}."
        if len(known) < len(half):
            said += f" {len(half) - len(known)} of {len(half)} modes are out of reach of this kernel."
    shown = min(_MOST_CURVES, len(names))
    said += f" Drawn: the {shown} largest." if shown < len(names) else ""
    figure = Figure()
    panel = figure.panel("What is left of each mode", x=log("step"), y="share left", caption=said)
    for number in range(shown):
        panel.curve(steps, left[number], DASHES[number], names[number], COLOURS[number])
    parts: list[Part] = [table, figure]
    if "picture" in data:
        parts.append(_mode_pictures(data))
    lead = (
        "The target taken apart into modes; each is learned at its own speed, if the kernel stays as it is."
    )
    return Answer(lead, parts, title="Modes of the target")


def _mode_pictures(data: xarray.Dataset) -> Figure:
    """All modes as matrices in one heat map, each relative to its largest entry, with its name above it."""
    names, picture = _mode_names(data), data["picture"]
    timed = "time" in picture.dims
    picture = picture.transpose("mode", ..., "time") if timed else picture.transpose("mode", ...)
    # (mode, rows, columns): leading axes are averaged, and a list whose length is a square is folded.
    matrices = picture.values
    while matrices.ndim > 3:
        matrices = matrices.mean(1)
    if matrices.ndim == 2:
        side = round(matrices.shape[1] ** 0.5)
        square = side * side == matrices.shape[1] >= _SMALL_FOLD
        matrices = matrices.reshape(len(matrices), *((side, side) if square else (1, -1)))
    _, rows, columns = matrices.shape
    flat = timed or rows == 1  # one below another, so that times or features stand in line
    across = 1 if flat else min(_ACROSS, len(names))
    gap, head = max(1, round(0.1 * columns)), max(1, round(0.25 * rows))
    down = -(-len(matrices) // across)
    tiles = np.full((down * (rows + head), across * (columns + gap) - gap), np.nan)
    axes = [str(dimension) for dimension in picture.dims[1:]]
    folded = f"{picture.shape[1]} features, folded into rows of {columns}"
    shape = folded if picture.ndim == 2 and rows > 1 else " × ".join(axes)
    largest = [f"{name} at {place}" for name, place in zip(names, _largest(data), strict=True)]
    # A matrix of few columns stands on a high panel, one of many is as wide as the page.
    figure = Figure(size=(7.0, (0.8 + 0.9 * len(names)) if flat else 4.6))
    panel = figure.panel(
        "Modes as pictures",
        x=Axis(axes[-1] if flat else "", whole=flat),
        y=Axis(ticks=(), reverse=True),
        equal=not flat,
        bare=not flat,
        caption=f"Each mode as {picture.attrs.get('picture_of', 'it is')} ({shape}), relative to its largest entry. "
        f"Largest: {'; '.join(largest[:3])}.",
    )
    for place, (matrix, name) in enumerate(zip(matrices, names, strict=True)):
        top, left = (place // across) * (rows + head) + head, (place % across) * (columns + gap)
        tiles[top : top + rows, left : left + columns] = matrix / (float(np.abs(matrix).max()) or 1.0)
        panel.note(left + (columns - 1) / 2, top - 0.6, name, align="center", above=True)
    panel.heat_map(tiles, diverging=bool(np.nanmin(tiles) < -1e-6))
    return figure


def _mode_names(data: xarray.Dataset) -> list[str]:
    return [f"mode {mode}" for mode in data["mode"].values]


def _largest(data: xarray.Dataset) -> list[str]:
    """Where the picture of every mode has its largest entry."""
    picture = data["picture"].transpose("mode", ...)
    places = [np.unravel_index(int(np.abs(one).argmax()), one.shape) for one in picture.values]
    return [", ".join(f"{d} {i}" for d, i in zip(picture.dims[1:], place, strict=True)) for place in places]


def states(patient: Patient) -> Answer | None:
    """Courses over the sequence, the temporal kernel with its spectrum, and the modes of the target."""
    data = patient.data("states")
    if data is None:
        return None
    wide, figure = Figure(), Figure(columns=2)
    _add_courses(wide, data)
    if "temporal_gram" in data:
        gram = data["temporal_gram"].values
        diagonal = np.diagonal(gram)
        panel = figure.panel(
            "Temporal kernel of the states",
            x="step",
            y=Axis("step", reverse=True),
            caption="How a change at one step goes with changes at another. States change most at step "
            f"{int(np.argmax(diagonal))}, least at step {int(np.argmin(diagonal))}, by a factor of "
            f"{number_text(diagonal.max() / max(diagonal.min(), 1e-300))}.",
        )
        panel.heat_map(gram, label="kernel", diverging=bool(gram.min() < -1e-6 * np.abs(gram).max()))
    if "temporal_share" in data:
        shares, effective = data["temporal_share"].values, data.attrs.get("temporal_rank")
        rank = f" The effective rank over time is {number_text(effective)}." if effective is not None else ""
        panel = figure.panel(
            "Temporal spectrum",
            x=Axis("temporal eigenmode", whole=True),
            y=log("share of the trace"),
            caption=f"The first eigenmode carries {number_text(100 * shares[0])} % of the kernel over time, the "
            f"first three {number_text(100 * shares[:3].sum())} %.{rank}",
        )
        panel.curve(np.arange(1, len(shares) + 1), shares, "o-", color=BLUE)
    if "mode_course" in data:
        courses = data["mode_course"].values
        names = [f"mode {number + 1}" for number in range(len(courses))]
        half = data["half_time"].values if "half_time" in data else np.full(len(courses), np.nan)
        known = [
            f"{name} in {number_text(value)} steps" for name, value in zip(names, half) if np.isfinite(value)
        ]
        said = f" Halved by descent at the given rate: {'; '.join(known)}." if known else ""
        panel = figure.panel(
            "Modes of the target in time",
            x="step",
            y=names_axis(names, reverse=True),
            caption=f"Where each mode lives over {courses.shape[1]} steps.{said}",
        )
        signed = bool(courses.min() < -1e-6 * np.abs(courses).max())
        panel.heat_map(courses, data["step"].values, label="weight", diverging=signed)
    lead = "What must be remembered has to last until it is asked for, and descent has to reach back to it."
    drawn = [one for one in (wide, figure) if one.panels]
    return Answer(lead, drawn, title="States over time") if drawn else None


def _add_courses(figure: Figure, data: xarray.Dataset) -> None:
    names = [name for name in _COURSES if name in data and data[name].dims == ("step",)]
    if not names:
        return
    said = ""
    if "retention" in data.attrs:
        said = (
            f"When the target is asked for, the states still tell {number_text(100 * data.attrs['retention'])} % of "
            f"what they knew about it at step {number_text(data.attrs['best'])}. "
        )
    panel = figure.panel(
        "Memory of the target",
        x=Axis("step of the sequence", whole=True),
        y="size (relative to the largest)",
        caption=f"{said}Each curve is drawn relative to its largest value.",
    )
    for number, name in enumerate(names):
        relative = data[name].values / max(float(data[name].max()), 1e-300)
        panel.curve(data["step"].values, relative, DASHES[number], _COURSES[name], COLOURS[number])


def plateau(patient: Patient) -> Answer | None:
    """The forecast of the loss along its own gradient flow, and the scale of every layer."""
    data = patient.data("plateau", "given_loss", "relative_scale", "at_bottleneck", "factor")
    if data is None:
        return None
    figure = Figure(columns=2)
    flows = {name: data[f"{name}_step"].values for name in _FLOWS if f"{name}_loss" in data}
    lengths = [f"{_FLOWS[name]} for {counted(steps[-1])} steps" for name, steps in flows.items()]
    wait = float(data.attrs["predicted_steps"])
    if wait > flows["given"][-1]:
        lengths[0] += f" (by the law of small layers it waits for {counted(wait)})"
    level = float(data.attrs["level"])
    panel = figure.panel(
        "Forecast of the loss",
        x=Axis("step", scale_for([steps[-1] for steps in flows.values()], FEW_FACTOR)),
        y=f"loss ({data.attrs.get('loss', 'of the task')})",
        caption=f"The flow was followed {'; '.join(lengths)}. The saddle's level is {number_text(level)}.",
    )
    for (name, steps), style, color in zip(flows.items(), ("-", "s--"), (BLUE, ORANGE)):
        panel.curve(steps, data[f"{name}_loss"].values, style, _FLOWS[name], color)
    panel.level(level, label="level of the saddle", dash=":")
    names, scales = short_names(data["layer"].values), data["relative_scale"].values
    small = data["at_bottleneck"].values.astype(bool)
    count = f"{int(small.sum())} of {len(names)} layers are small" if small.any() else "No layer is small"
    panel = figure.panel(
        "Scale of every layer",
        x=names_axis(names),
        y=log("norm / natural norm"),
        caption=f"{count}; relative to their natural norms the scales go from {number_text(scales.min())} to "
        f"{number_text(scales.max())}.",
    )
    for label, chosen, marker, color in (("small", small, "x", RED), ("not small", ~small, "o", BLUE)):
        if chosen.any():
            panel.curve(np.flatnonzero(chosen), scales[chosen], marker, label, color, size=7)
    panel.level(1.0, label="natural", dash=":")
    lead = "The loss along the network's own gradient flow until it falls below the level of the saddle."
    return Answer(lead, [figure], title="Plateau forecast")


def rates(patient: Patient) -> Answer | None:
    """The rate that is used, the largest stable one, and short trainings at some rates."""
    data = patient.data("learning_rate", *_RATE)
    if data is None:
        return None
    texts: dict[str, Any] = {
        "Rate in use": number_text(data["given"]),
        "Largest stable rate": number_text(data["largest_rate"]),
        "Recommended": number_text(data["recommended"]),
    }
    if np.isfinite(float(data["rate_times_curvature"])):
        product, limit = number_text(data["rate_times_curvature"]), number_text(data["limit"])
        texts["Rate × curvature"] = f"{product} of at most {limit}"
    figure = Figure()
    labels = [f"rate {number_text(rate)}" for rate in data["rate"].values]
    add_losses(figure, "Short trainings", labels, data, "from the same weights")
    if "final_loss" in data and data.sizes["tried_rate"]:
        tried, ends = data["tried_rate"].values, data["final_loss"].values
        panel = figure.panel(
            "Loss by rate",
            x=log("learning rate"),
            y=Axis("loss after the trial", scale_for(ends[np.isfinite(ends)], FEW_FACTOR)),
            caption="The loss after short trainings at rates around the given one; what is missing left all bounds.",
        )
        panel.curve(tried, ends, "o-", "after the trial", BLUE)
        panel.level(x=float(data["given"]), label="rate in use", dash=":")
    lead = "Above the largest stable rate the steepest direction grows with every step instead of shrinking."
    return Answer(lead, [Facts(texts), figure], title="Learning rate")
