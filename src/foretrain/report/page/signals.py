"""Pictures of signals and gradients: phases, theory beside measurement, the network layer by layer, its inputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from foretrain.doctor.finding import Severity
from foretrain.report.page.patient import Patient
from foretrain.support.answers import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    RED,
    Answer,
    Axis,
    Column,
    Figure,
    Part,
    Table,
    log,
    names_axis,
    scale_for,
)
from foretrain.support.answers.figure import Region
from foretrain.support.answers.formulas import number_text
from foretrain.support.errors import ForetrainError

if TYPE_CHECKING:
    import xarray

    from foretrain.doctor.mlp_chain import MlpChain

POINTS = ("o", "s", "D", "^", "x")  # so that colour is not all that tells curves apart
DASHES = ("-", "--", ":", "-.", "--")
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, RED)
FEW_FACTOR = 3.0  # losses that differ by more are drawn on a logarithmic axis
_POINTS = 48  # of the phase diagram along an axis
_SPAN = (4.0, 0.25)  # of C_W and C_b at least
_MARGIN = 1.25  # beyond the layer that is farthest out
_FAR = 3.0  # deviations: beyond this chance is no explanation
_KERNELS = ("K_measured", "K_theory", "K_deviation", "K_z")
_SIGNALS = {"distance": "differences between inputs", "gradient": "gradients"}
_GAINS = ("distance", "gradient", "forward_gain", "backward_gain")
_UNITS = {"dead": "dead", "always_on": "always on", "closed": "closed, over units and samples"}


def phases(patient: Patient) -> Answer | None:
    """The phase diagram; None for a network without a chain of layers, or whose activation has no phases."""
    from foretrain.doctor.mlp_chain import chain_of
    from foretrain.doctor.setup import Case

    try:
        chain = chain_of(Case(patient.diagnosis.setup))
        parts: list[Part] = [_phase_figure(chain)]
    except ForetrainError:  # no chain, or an activation that jumps: there are no phases to show
        return None
    data = patient.data("initialisation", "K_before", "C_W_wanted", "K_before_wanted")
    if data is not None and data.sizes["layer"] > 2:
        findings = patient.diagnosis.examinations["initialisation"].findings
        advised = any(finding.severity <= Severity.WARNING for finding in findings)
        # Hidden layers stand at C_W and the kernel that they get, beside the edge chi_perp = 1 there (9.93).
        from foretrain.doctor.mlp_chain import critical_weights

        # The first layer gets the inputs, and the last one sets the size of the outputs.
        inner = data.isel(layer=slice(1, -1))
        layers = [("layers of this network", inner["C_W"].values, inner["K_before"].values, False)]
        if advised:
            layers.append(("advised", inner["C_W_wanted"].values, inner["K_before_wanted"].values, True))
        kernels = np.concatenate([K[np.isfinite(K) & (K > 0)] for _, _, K, _ in layers])
        figure = Figure(size=(7.2, 4.2))
        caption = "Left of the line differences and gradients shrink in the layer, right of it they grow."
        if advised:
            caption += f" The advice puts every hidden layer on the line, with C_W {_range(layers[1][1])}."
        panel = figure.panel("Every hidden layer beside the edge at its kernel", caption=caption)
        panel.x, panel.y = Axis("weight variance  $C_W$", low=0.0), log("kernel K of the layer before")
        if len(kernels):
            along = np.geomspace(kernels.min() / 2, 2 * kernels.max(), _POINTS)
            panel.curve(critical_weights(chain.activation, along), along, "-", r"$\chi_\perp = 1$", INK)
        for label, C_W, K, hollow in layers:
            panel.curve(
                C_W, np.where(K > 0, K, np.nan), "o", label, INK, size=9 if hollow else 7, hollow=hollow
            )
        parts.append(figure)
    lead = (
        "Away from the edge between the phases, signals and gradients grow or shrink by a factor with every layer. "
        "In a network of finite depth a layer lies on the edge at the kernel that it gets."
    )
    return Answer(lead, parts, title="Phase diagram")


def _phase_figure(chain: MlpChain) -> Figure:
    """Every layer at its (C_W, C_b) over the phases of the activation (section 5.3)."""
    from foretrain.theory.criticality.critical_points import phase_figure
    from foretrain.theory.criticality.phase_diagram import phase_diagram

    C_W, C_b = np.asarray(chain.C_W), np.asarray(chain.C_b)
    widest, highest = (
        max(least, _MARGIN * float(v.max())) for least, v in zip(_SPAN, (C_W, C_b), strict=True)
    )
    diagram = phase_diagram(chain.activation, (0.0, highest), (0.0, widest), points=_POINTS)
    figure = phase_figure(diagram)
    (panel,) = figure.panels
    panel.title = f"Where the layers would lead after many more, among the phases of {chain.activation.label}"
    panel.curve(C_W, C_b, "o", "layers of this network", INK, size=7)
    points = (diagram[f"critical_{key}"].values for key in ("C_W", "C_b", "stability"))
    critical = [
        f"C_W = {number_text(w)}, C_b = {number_text(b)}"
        for w, b, stability in zip(*points, strict=True)
        if stability != "unstable"
    ]
    where = f" {chain.activation.label} is critical at {'; '.join(critical)}." if critical else ""
    unbounded = any(isinstance(mark, Region) for mark in panel.marks)
    grey = "; grey: signals grow without bound" if unbounded else ""
    panel.caption = (
        f"The {len(C_W)} layers of weights have C_W {_range(C_W)} and C_b {_range(C_b)}.{where} Blue: nearby inputs "
        f"merge with depth; orange: they part{grey}."
    )
    return figure


def agreement(patient: Patient) -> Answer | None:
    """What the theory of wide networks says about this one, and what it does."""
    parts: list[Part] = []
    figure = Figure(columns=2)
    kernels = patient.data("initialisation", *_KERNELS)
    if kernels is not None:
        # The table has the kernels by layer; the layers that are far from the theory are named below it.
        layers = kernels["layer"].values.tolist()
        names = kernels["name"].values.tolist() if "name" in kernels.coords else layers
        measured, theory, deviation = (kernels[key].mean("input").values for key in _KERNELS[:3])
        # The inputs share their weights, so their scores do not average out: their mean is typical.
        finite = [z[np.isfinite(z)] for z in kernels["K_z"].values]
        typical = [round(float(z.mean()), 2) if len(z) else np.nan for z in finite]
        columns = (
            "Layer",
            "Module",
            "K by theory",
            "K measured",
            "± between networks",
            Column("z", "deviations"),
        )
        numbers = map(three_digits, (theory, measured, deviation))
        rows = list(zip(layers, names, *numbers, typical, strict=True))
        far = [str(layer) for layer, z in zip(layers, typical, strict=True) if abs(z) > _FAR]
        table = Table(columns, rows, f"Kernels K, means over {kernels.sizes['input']} inputs")
        parts.append(table)
        if far:
            parts.append(f"Farther than {_FAR:g} deviations away: layers {', '.join(far)}.")
        panel = figure.panel(
            "Size of the signal, layer by layer",
            x=Axis("layer", whole=True),
            y=log("kernel K"),
            caption=f"Mean square preactivations go from {number_text(measured[0])} in layer 1 to "
            f"{number_text(measured[-1])} in layer {layers[-1]}; theory says {number_text(theory[0])} and "
            f"{number_text(theory[-1])}.",
        )
        band = (np.maximum(theory - 2 * deviation, theory * 1e-2), theory + 2 * deviation)
        panel.curve(layers, theory, "--", "theory ± 2 deviations", BLUE, band=band)
        panel.curve(layers, measured, "s", "measured", ORANGE)
        scores = kernels["K_z"].values
        known = scores[np.isfinite(scores)]
        reach = max(3.2, 1.1 * float(np.abs(known).max())) if len(known) else 3.2
        inside = int((np.abs(known) <= 2).sum())
        panel = figure.panel(
            "Distance from the theory",
            x=Axis("layer", whole=True),
            y=Axis("z", low=-reach, high=reach),
            caption=f"{inside} of {len(known)} scores lie within 2 deviations; inputs share their weights and go "
            "together.",
        )
        for number, values in enumerate(scores.T):
            marker, color = POINTS[number % len(POINTS)], COLOURS[number % len(COLOURS)]
            panel.curve(layers, values, marker, f"input {number + 1}", color)
        panel.level(2.0, label="+2", dash=":")
        panel.level(-2.0, label="−2", dash=":")
    needed = [f"{key}_{kind}" for key in _SIGNALS for kind in ("measured", "theory")]
    signals = patient.data("initialisation", *needed)
    if signals is not None and signals.sizes["hidden"] > 1:
        hidden, said = signals["hidden"].values, []
        panel = figure.panel(
            "Differences and gradients through the hidden layers",
            x=Axis("hidden layer", whole=True),
            y=log("root mean square"),
        )
        for (key, name), marker, color in zip(_SIGNALS.items(), POINTS, COLOURS):
            measured, theory = (np.sqrt(signals[f"{key}_{kind}"].values) for kind in ("measured", "theory"))
            panel.curve(hidden, theory, "--", f"{name}, theory", color)
            panel.curve(hidden, measured, marker, f"{name}, measured", color)
            ratio = measured[-1] / measured[0] if key == "distance" else measured[0] / measured[-1]
            direction = "forwards" if key == "distance" else "backwards"
            said.append(f"{name} are multiplied by {number_text(ratio)} {direction}")
        panel.caption = f"Through {len(hidden)} hidden layers {' and '.join(said)}."
    lead = (
        "The theory predicts the mean over networks with these widths and variances; z counts how many deviations "
        "between single networks this one is away from it."
    )
    return Answer(lead, [*parts, figure], title="Theory beside measurement") if figure.panels else None


def layers(patient: Patient) -> Answer | None:
    """Gains per block, shares per layer, units that do not answer and scatter, as far as they were measured."""
    figure = Figure(columns=2)
    gains = patient.data("gains", *_GAINS)
    if gains is not None:
        _add_gains(figure, gains)
    shares = patient.data("layer_shares", "relative", "share")
    if shares is not None:
        names, relative = short_names(shares["layer"].values), shares["relative"].values
        low, high = int(np.argmin(relative)), int(np.argmax(relative))
        panel = figure.panel(
            "Share of every layer in learning",
            x=names_axis(names),
            y=log("share / mean share"),
            caption=f"Layer {names[low]} moves the outputs least, {number_text(relative[low])} of the mean layer; "
            f"layer {names[high]} most, {number_text(relative[high])}. The equivalence principle asks for 1.",
        )
        panel.curve(np.arange(len(names)), relative, "o", "this network, at its rates", BLUE)
        if "theory_share" in shares:
            theory = shares["theory_share"].values
            panel.curve(np.arange(len(names)), theory, ":", "theory, at equal rates", ORANGE)
        panel.level(1.0, label="equal shares", dash=":")
    units = patient.data("dead_units", "dead", "closed")
    if units is not None and any(units[key].any() for key in _UNITS if key in units):
        names, keys = short_names(units["layer"].values), [key for key in _UNITS if key in units]
        worst = int(np.argmax(units["dead"].values))
        dead = 100 * float(units["dead"][worst])
        panel = figure.panel(
            "Units that do not answer",
            x=names_axis(names),
            y=Axis("percent", low=0, high=100),
            caption=f"At most {dead:.0f} % of the units of a layer are dead (layer {names[worst]})."
            if dead
            else "No unit is dead.",
        )
        width = 0.8 / len(keys)
        for number, key in enumerate(keys):
            places = np.arange(len(names)) + (number - (len(keys) - 1) / 2) * width
            panel.bars(places, 100 * units[key].values, _UNITS[key], COLOURS[number], width=width)
    scatter = patient.data("aspect_ratio", "fluctuation")
    if scatter is not None:
        layers, values = scatter["layer"].values, scatter["fluctuation"].values
        most, ratio = int(np.nanargmax(values)), scatter.attrs.get("depth_to_width")
        depth = f" Depth over width is {number_text(ratio)}." if ratio is not None else ""
        panel = figure.panel(
            "Scatter between initialisations",
            x=Axis("layer", whole=True),
            y=Axis("relative variance", low=0.0),
            caption="By theory the mean square signal scatters between networks like this one by a relative variance "
            f"of up to {number_text(values[most])}, in layer {layers[most]}.{depth}",
        )
        panel.curve(layers, values, "o-", color=BLUE)
    lead = "Signals should keep their size, all layers take part in learning, and all units answer."
    return Answer(lead, [figure], title="Layer by layer") if figure.panels else None


def _add_gains(figure: Figure, data: xarray.Dataset) -> None:
    blocks = [str(name) for name in data["block"].values]
    distance, gradient, forward, backward = (data[key].values for key in _GAINS)
    ends = ((distance[-1], distance[0]), (gradient[0], gradient[-1]))
    multiplied = [float(above / below) if below else float("inf") for above, below in ends]
    sizes = figure.panel(
        "Signals and gradients through the blocks",
        x=names_axis(blocks),
        y=log("size"),
        caption=f"From the first to the last of {len(blocks)} blocks, differences between samples are multiplied by "
        f"{number_text(multiplied[0])}; backwards, gradients are multiplied by {number_text(multiplied[1])}.",
    )
    gains = figure.panel(
        "Gain of every block",
        x=names_axis(blocks),
        y=log("gain"),
        caption=f"Forward gains lie {_range(forward)}, backward gains {_range(backward)}; 1 keeps the size.",
    )
    places = np.arange(len(blocks))
    for panel, labels, curves in (
        (sizes, ("differences between samples", "gradients"), (distance, gradient)),
        (gains, ("forward", "backward"), (forward, backward)),
    ):
        panel.curve(places, curves[0], "o-", labels[0], BLUE)
        panel.curve(places, curves[1], "s--", labels[1], ORANGE)
    gains.level(1.0, label="keeps the size", dash=":")


def inputs(patient: Patient) -> Answer | None:
    """Mean and deviation of every feature; short trainings where it was tried what evening them out brings."""
    data = patient.data("inputs", "mean", "deviation")
    if data is None:
        return None
    features, mean, deviation = (data[key].values for key in ("feature", "mean", "deviation"))
    varying, constant = deviation[deviation > 0], int(data["constant"].sum()) if "constant" in data else 0
    spread = f"Deviations lie {_range(varying)}" if len(varying) else "Nothing varies"
    many = (
        f"; {constant} of {len(features)} features are constant"
        if constant
        else f" over {len(features)} features"
    )
    figure = Figure(columns=2)
    panel = figure.panel(
        "Size of every feature",
        x=Axis("feature", whole=True),
        y=Axis("size (units of x)", scale_for(varying, FEW_FACTOR)),
        caption=f"{spread}{many}. The largest mean is {number_text(np.abs(mean).max())}.",
    )
    panel.curve(features, np.where(deviation > 0, deviation, np.nan), "o", "deviation", BLUE)
    panel.curve(features, np.where(mean != 0, np.abs(mean), np.nan), "s", "size of the mean", ORANGE)
    if "loss" in data:
        add_losses(
            figure, "What evening out brings", data["data"].values, data, "each at the rate that suits it"
        )
    lead = (
        "Features on very different scales, or far from zero, make some directions of learning much slower."
    )
    return Answer(lead, [figure], title="Inputs")


def add_losses(figure: Figure, title: str, labels: Iterable[Any], data: xarray.Dataset, how: str) -> None:
    """Losses of short trainings over their steps, one curve for each label."""
    names, losses = [str(label) for label in labels], data["loss"].values
    last = [f"{name}: {number_text(values[-1])}" for name, values in zip(names, losses, strict=True)]
    panel = figure.panel(
        title,
        x="step",
        y=Axis("loss", scale_for(losses, FEW_FACTOR)),
        caption=f"Short real trainings, {how}. Loss at the end: {'; '.join(last)}.",
    )
    for number, (name, values) in enumerate(zip(names, losses, strict=True)):
        dash, color = DASHES[number % len(DASHES)], COLOURS[number % len(COLOURS)]
        panel.curve(data["step"].values, values, dash, name, color)


def short_names(names: Iterable[Any]) -> list[str]:
    """Names of weights without what they share, ".weight", where they stay different."""
    full = [str(name) for name in names]
    cut = [name.removesuffix(".weight") for name in full]
    return cut if all(name.endswith(".weight") for name in full) and len(set(cut)) == len(full) else full


def three_digits(values: Iterable[Any]) -> list[float]:
    """Three digits, which are all that a reader of a table compares."""
    return [float(f"{value:.3g}") for value in values]


def _range(values: Sequence[float] | np.ndarray[Any, Any]) -> str:
    low, high = number_text(np.nanmin(values)), number_text(np.nanmax(values))
    return f"from {low} to {high}" if low != high else f"at {low}"
